//! Sentences with which harnesses begin the calls that they make beside the conversation.
//! Taken from the published npm packages, audited 2026-11-30: @earendil-works/pi-coding-agent 1.6.0,
//! @anthropic-ai/claude-code 2.1.257, @openai/codex 0.171.0, opencode-ai 1.18.33. A marker must stand at the very
//! beginning of its text, so that a person who quotes one is not taken for a harness.

use std::fmt;

use super::CallKind;

/// Where a marker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A block of the system prompt.
    System,
    /// A block of the system prompt of a call that may call nothing.
    SystemWithoutTools,
    /// A text of the last message, which is a person's or the harness's in their name.
    LastSaid,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System | Self::SystemWithoutTools => "a system prompt",
            Self::LastSaid => "the last message",
        })
    }
}

/// What a marked call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marked {
    Title,
    Compaction,
    SubAgent,
    Other(&'static str),
}

/// One sentence of one harness.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marker {
    pub(super) harness: &'static str,
    pub(super) place: Place,
    pub(super) text: &'static str,
    /// What the text also holds; empty: whatever else it holds.
    also: &'static str,
    kind: Marked,
}

impl Marker {
    pub(super) fn begins(&self, text: &str) -> bool {
        text.trim_start().starts_with(self.text) && text.contains(self.also)
    }

    pub(super) fn kind(&self) -> CallKind {
        match self.kind {
            Marked::Title => CallKind::Title,
            Marked::Compaction => CallKind::Compaction,
            Marked::SubAgent => CallKind::SubAgent,
            Marked::Other(text) => CallKind::Other(text.to_owned()),
        }
    }
}

const fn marker(harness: &'static str, kind: Marked, place: Place, text: &'static str, also: &'static str) -> Marker {
    Marker { harness, place, text, also, kind }
}

const PI: &str = "pi";
const CLAUDE: &str = "Claude Code";
const CODEX: &str = "Codex";
const OPENCODE: &str = "OpenCode";

pub(super) const MARKERS: [Marker; 22] = [
    marker(
        PI,
        Marked::Compaction,
        Place::System,
        "You are a context summarization assistant. Your task is to read",
        "",
    ),
    marker(PI, Marked::Other("bug report"), Place::System, "You are helping a user file a bug report about pi,", ""),
    marker(CLAUDE, Marked::Title, Place::System, "You are naming a coding session so the user can pick it out", ""),
    marker(CLAUDE, Marked::Title, Place::System, "Generate a short kebab-case name (2-4 words) that captures", ""),
    marker(CLAUDE, Marked::Title, Place::LastSaid, "Generate a short kebab-case name (2-4 words) that captures", ""),
    marker(
        CLAUDE,
        Marked::Compaction,
        Place::LastSaid,
        "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
        "Your task is to create a detailed summary of ",
    ),
    marker(
        CLAUDE,
        Marked::Compaction,
        Place::LastSaid,
        "Your task is to create a detailed summary of the conversation so far",
        "",
    ),
    marker(
        CLAUDE,
        Marked::Compaction,
        Place::System,
        "You are a helpful AI assistant tasked with summarizing conversations.",
        "",
    ),
    marker(
        CLAUDE,
        Marked::Other("suggestion"),
        Place::LastSaid,
        "[SUGGESTION MODE: Suggest what the user might naturally type next",
        "",
    ),
    marker(
        CLAUDE,
        Marked::Other("recap"),
        Place::LastSaid,
        "The user stepped away and is coming back. Recap in under 40 words",
        "",
    ),
    marker(
        CLAUDE,
        Marked::Other("progress"),
        Place::LastSaid,
        "Describe your most recent action in 3-5 words using present tense",
        "",
    ),
    marker(
        CLAUDE,
        Marked::Other("label"),
        Place::System,
        "Write a short summary label describing what these tool calls accomplished.",
        "",
    ),
    marker(CLAUDE, Marked::Other("web page"), Place::LastSaid, "Web page content:\n---", ""),
    marker(
        CLAUDE,
        Marked::Other("web search"),
        Place::System,
        "You are an assistant for performing a web search tool use",
        "",
    ),
    marker(
        CLAUDE,
        Marked::SubAgent,
        Place::System,
        "You are an agent for Claude Code, Anthropic's official CLI for Claude.",
        "",
    ),
    marker(CLAUDE, Marked::SubAgent, Place::System, "You are a file search specialist for Claude Code,", ""),
    marker(
        CLAUDE,
        Marked::SubAgent,
        Place::System,
        "You are a software architect and planning specialist for Claude Code.",
        "",
    ),
    marker(CODEX, Marked::Compaction, Place::LastSaid, "You are performing a CONTEXT CHECKPOINT COMPACTION.", ""),
    marker(CODEX, Marked::Other("approval"), Place::System, "You are judging one planned coding-agent action.", ""),
    marker(
        OPENCODE,
        Marked::Title,
        Place::SystemWithoutTools,
        "You are a title generator. You output ONLY a thread title.",
        "",
    ),
    marker(
        OPENCODE,
        Marked::Compaction,
        Place::SystemWithoutTools,
        "You are a context summarization agent. You are given a conversation",
        "",
    ),
    marker(
        OPENCODE,
        Marked::SubAgent,
        Place::System,
        "You are a file search specialist. You excel at thoroughly navigating",
        "",
    ),
];

/// Bytes of a system prompt's beginning in which its order stands.
const ORDER_BYTES_MAX: usize = 200;

/// Orders to write a title for a conversation, in the words of chat programs at large.
pub(super) fn asks_for_title(text: &str) -> bool {
    let text = text.trim_start();
    let end = (0..=ORDER_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let order = text.get(..end).unwrap_or_default().to_ascii_lowercase();
    let words: Vec<&str> = order.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let at = |wanted: &[&str]| words.iter().position(|word| wanted.contains(word));
    let verb = at(&["generate", "create", "write", "provide", "produce", "suggest"]);
    let title = at(&["title", "titles"]);
    let subject = at(&["conversation", "chat", "thread", "session", "dialogue"]);
    matches!((verb, title, subject), (Some(verb), Some(title), Some(_)) if verb < title && title - verb <= 8)
}
