//! What kind of call a request is: the conversation itself, or one that a harness makes beside it.
//! Only facts decide, in this order: the client's own tag, what a harness says in its headers, and sentences that a
//! harness always puts in the same place. Whatever none of them names is the conversation itself, so that nothing is
//! kept from learning by a guess.

mod markers;

use std::fmt;

use serde_json::{Map, Value};

use self::markers::{MARKERS, Place};
use crate::request::Body;

/// The tag with which a client says it itself (`x-reef-tag-kind: main | title | compaction | sub-agent | other |
/// other:words`), and in which the kind is recorded.
pub const KIND_TAG: &str = reef_core::CALL_TAG;
/// Headers in which harnesses say that a call is not the conversation itself.
pub const CALL_HEADERS: [&str; 6] = [
    "x-claude-code-agent-id",
    "x-claude-code-parent-agent-id",
    "x-openai-subagent",
    "x-openai-memgen-request",
    "x-codex-parent-thread-id",
    "x-parent-session-id",
];
/// Characters of a kind that a client names.
const KIND_CHARS_MAX: usize = 64;

/// What a call is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallKind {
    /// The conversation.
    Main,
    /// A name for it.
    Title,
    /// A summary that takes its place.
    Compaction,
    /// A conversation that an agent has with another.
    SubAgent,
    /// Something else beside it, in a word or two.
    Other(String),
}

impl CallKind {
    /// Reads a client's tag. Other words are the client's own affair, and say nothing here.
    fn parse(tag: &str) -> Option<Self> {
        Some(match tag.trim().to_ascii_lowercase().as_str() {
            "main" => Self::Main,
            "title" => Self::Title,
            "compaction" | "compact" => Self::Compaction,
            "sub-agent" | "subagent" => Self::SubAgent,
            "other" => Self::Other("other".to_owned()),
            words => Self::Other(words.strip_prefix("other:")?.trim().chars().take(KIND_CHARS_MAX).collect()),
        })
    }
}

/// `main`, `title`, `compaction`, `sub-agent`, or the other's own words.
impl fmt::Display for CallKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Main => "main",
            Self::Title => "title",
            Self::Compaction => "compaction",
            Self::SubAgent => "sub-agent",
            Self::Other(text) => text,
        })
    }
}

/// A kind and the fact that decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The kind.
    pub kind: CallKind,
    /// The fact, as part of a sentence.
    pub reason: String,
}

impl Call {
    fn new(kind: CallKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }

    /// Is it the conversation itself? Nothing else is learned from.
    pub fn is_main(&self) -> bool {
        self.kind == CallKind::Main
    }
}

/// The kind of a request: its tag `kind`, its headers (`header` gives one of `CALL_HEADERS`), its body in any dialect.
pub fn call_of<'h>(tag: Option<&str>, header: impl Fn(&str) -> Option<&'h str>, body: &Map<String, Value>) -> Call {
    if let Some(kind) = tag.and_then(CallKind::parse) {
        return Call::new(kind, "its tag 'kind' says so");
    }
    let body = Body(body);
    let header = |name: &'static str| header(name).map(str::trim).filter(|value| !value.is_empty());
    let named = by_codex(header).or_else(|| by_marker(body)).or_else(|| by_probe(body)).or_else(|| by_title(body));
    named.or_else(|| by_agent(header)).unwrap_or_else(|| Call::new(CallKind::Main, "nothing says otherwise"))
}

/// Codex names its own calls; those of agents that it started are left to `by_agent`.
fn by_codex<'h>(header: impl Fn(&'static str) -> Option<&'h str>) -> Option<Call> {
    if header("x-openai-memgen-request").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Some(Call::new(CallKind::Other("memory".to_owned()), "its header x-openai-memgen-request says so"));
    }
    let kind = match header("x-openai-subagent")? {
        "compact" => CallKind::Compaction,
        "memory_consolidation" => CallKind::Other("memory".to_owned()),
        _ => return None,
    };
    Some(Call::new(kind, "its header x-openai-subagent says so"))
}

fn by_marker(body: Body<'_>) -> Option<Call> {
    let found = MARKERS.iter().find(|marker| match marker.place {
        Place::System => body.system().any(|text| marker.begins(text)),
        Place::SystemWithoutTools => !body.has_tools() && body.system().any(|text| marker.begins(text)),
        Place::LastSaid => body.last_said().any(|text| marker.begins(text)),
    })?;
    Some(Call::new(found.kind(), format!("{} of {} begins so: {}", found.place, found.harness, found.text)))
}

/// Claude Code asks for one token to learn whether the account may ask at all.
fn by_probe(body: Body<'_>) -> Option<Call> {
    let quota = body.said_count() == 1 && body.last_said().eq(["quota"]);
    (quota && body.tokens_max() == Some(1) && !body.has_tools())
        .then(|| Call::new(CallKind::Other("probe".to_owned()), "it asks for one token about 'quota'"))
}

/// An operator's instruction to name a conversation, and nothing else to do: no tools.
fn by_title(body: Body<'_>) -> Option<Call> {
    if body.has_tools() {
        return None;
    }
    body.system().any(markers::asks_for_title).then(|| {
        Call::new(CallKind::Title, "its system prompt begins with the order to write a title, and it has no tools")
    })
}

fn by_agent<'h>(header: impl Fn(&'static str) -> Option<&'h str>) -> Option<Call> {
    let names =
        ["x-claude-code-agent-id", "x-claude-code-parent-agent-id", "x-openai-subagent", "x-codex-parent-thread-id"];
    let found = names.into_iter().chain(["x-parent-session-id"]).find(|name| header(name).is_some())?;
    Some(Call::new(CallKind::SubAgent, format!("it has the header {found}")))
}
