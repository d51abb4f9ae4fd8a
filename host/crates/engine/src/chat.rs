//! Chat templates: a conversation, with tools, to token ids.
//! The engine's handle calls it; the template is the model's own, run by minijinja. Text of a client that spells a
//! control token stays text, in whatever place it stands: such spellings are broken by a marker character before
//! rendering, and the marker is removed after the control tokens of the template have been found.

mod python;
#[cfg(test)]
mod tests;
mod turn;

use std::borrow::Cow;
use std::collections::HashSet;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Value, context};
use reef_core::Message;
use serde_json::Value as Json;

use crate::checkpoint::{Checkpoint, Source, read_json, unsupported};
use crate::control::{Control, Piece};
use crate::error::EngineError;
use crate::tokenizer::Tokenizer;
use crate::tool_calls::CallFormat;

pub use turn::{ChatCall, ChatTurn};

/// Roles that a template may see; it may print them, so they are not free text.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];
/// Messages of one conversation.
pub const MESSAGES_MAX: usize = 4096;
/// Bytes of a text whose tokens are counted one by one; the rest is taken to be like them.
const COUNTED_BYTES_MAX: usize = 1 << 20;
/// Name under which the template is kept.
const NAME: &str = "chat";
/// Characters that markers are taken from; a conversation that uses all of them is refused.
const MARKERS: std::ops::RangeInclusive<char> = '\u{e000}'..='\u{f8ff}';

/// Names that the template's own variables have.
const TAKEN: [&str; 6] = ["messages", "tools", "xml_tools", "add_generation_prompt", "bos_token", "eos_token"];

/// What else a template reads: `enable_thinking` and the like.
pub type Variables = serde_json::Map<String, Json>;

/// A conversation as a template gets it.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// The turns; an assistant's that says nothing is left out.
    pub turns: &'a [ChatTurn],
    /// `{type: "function", function: {name, description, parameters}}`; a template that knows no tools gets them as
    /// text.
    pub tools: &'a [Json],
    /// What the template may ask for besides.
    pub variables: &'a Variables,
}

/// A compiled template.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    /// It renders tools itself; else they are put into the conversation as text.
    knows_tools: bool,
    call_format: CallFormat,
    opens_reasoning: bool,
}

/// Tokens of a text: those of its beginning, and of the rest as many as it lets one expect.
pub(crate) fn counted(
    text: &str,
    count: impl FnOnce(&str) -> Result<usize, EngineError>,
) -> Result<usize, EngineError> {
    let part = text.get(..text.floor_char_boundary(COUNTED_BYTES_MAX)).unwrap_or(text);
    Ok(count(part)?.saturating_mul(text.len()).div_ceil(part.len().max(1)))
}

/// What of a tokenizer a template's text depends on.
struct Spelling<'a> {
    control: &'a Control,
    bos: &'a str,
    eos: &'a str,
}

impl ChatTemplate {
    /// From the file's metadata, from chat_template.jinja or from tokenizer_config.json.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, EngineError> {
        let path = checkpoint.path();
        let source = match checkpoint.source() {
            Source::Gguf { header, .. } => header.text("tokenizer.chat_template").map(str::to_owned),
            Source::Folder { .. } => std::fs::read_to_string(path.join("chat_template.jinja")).ok().or_else(|| {
                let settings = read_json(&path.join("tokenizer_config.json")).ok()?;
                settings.get("chat_template").and_then(Json::as_str).map(str::to_owned)
            }),
        };
        let source =
            source.ok_or_else(|| unsupported(path, "it has no chat template; use an instruction-tuned model"))?;
        Self::compile(source).map_err(|e| unsupported(path, format!("its chat template cannot be compiled: {e}")))
    }

    fn compile(source: String) -> Result<Self, minijinja::Error> {
        let mut environment = Environment::new();
        // As Hugging Face sets Jinja up for chat templates.
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        python::install(&mut environment);
        let (knows_tools, call_format) = (source.contains("tools"), CallFormat::of_template(&source));
        environment.add_template_owned(NAME, without_marks(&source).into_owned())?;
        let mut template = Self { environment, knows_tools, call_format, opens_reasoning: false };
        template.opens_reasoning = template.opens(&Variables::new());
        Ok(template)
    }

    /// A template that refuses so short a conversation is taken to open nothing.
    fn opens(&self, variables: &Variables) -> bool {
        let Ok(control) = Control::new(&std::collections::BTreeMap::new()) else { return false };
        let turn = ChatTurn { role: "user".to_owned(), content: "?".to_owned(), ..ChatTurn::default() };
        let conversation = Conversation { turns: &[turn], tools: &[], variables };
        let text = self.text(conversation, &Spelling { control: &control, bos: "", eos: "" });
        text.is_ok_and(|(text, _)| text.trim_end().ends_with("<think>"))
    }

    /// How the model is told to write calls, by its template or by us.
    pub fn call_format(&self) -> CallFormat {
        self.call_format
    }

    /// Does the prompt end inside of `<think>`, so that the answer begins with reasoning?
    pub fn opens_reasoning(&self, variables: &Variables) -> bool {
        if variables.is_empty() { self.opens_reasoning } else { self.opens(variables) }
    }

    /// Token ids of `messages` and of the start of the assistant's answer, fewer than `context`.
    pub fn render(&self, messages: &[Message], tokenizer: &Tokenizer, context: usize) -> Result<Vec<u32>, EngineError> {
        let turns: Vec<ChatTurn> = messages.iter().map(ChatTurn::from).collect();
        let conversation = Conversation { turns: &turns, tools: &[], variables: &Variables::new() };
        self.render_turns(conversation, tokenizer, context)
    }

    /// Token ids of the conversation and of the start of the assistant's answer, fewer than `context`.
    pub fn render_turns(
        &self,
        conversation: Conversation<'_>,
        tokenizer: &Tokenizer,
        context: usize,
    ) -> Result<Vec<u32>, EngineError> {
        let spelling = Spelling { control: tokenizer.control(), bos: &tokenizer.bos_text, eos: &tokenizer.eos_text };
        let (text, marker) = self.text(conversation, &spelling)?;
        tokenise(&text, tokenizer, marker, context)
    }

    /// Tokens of the conversation, however many they are.
    pub fn count_turns(&self, conversation: Conversation<'_>, tokenizer: &Tokenizer) -> Result<usize, EngineError> {
        let spelling = Spelling { control: tokenizer.control(), bos: &tokenizer.bos_text, eos: &tokenizer.eos_text };
        let (text, marker) = self.text(conversation, &spelling)?;
        counted(&text, |part| Ok(tokenise(part, tokenizer, marker, usize::MAX)?.len()))
    }

    /// What the template makes of a conversation, and the marker that breaks the spellings of control tokens in it.
    fn text(&self, conversation: Conversation<'_>, spelling: &Spelling) -> Result<(String, char), EngineError> {
        let Conversation { turns, tools, variables } = conversation;
        if let Some(name) = TAKEN.into_iter().find(|name| variables.contains_key(*name)) {
            return Err(EngineError::Invalid(format!(
                "chat_template_kwargs: '{name}' is set by the server; leave it out"
            )));
        }
        let turns: Vec<ChatTurn> = turns.iter().filter(|turn| !turn.is_silent()).cloned().collect();
        check(&turns)?;
        let (turns, tools) =
            if self.knows_tools { (turns, tools) } else { (turn::without_tools(&turns, tools), [].as_slice()) };
        let turns: Vec<Json> = turns.iter().map(ChatTurn::to_json).collect();
        let marker = free_marker(turns.iter().chain(tools).chain(variables.values()))
            .ok_or_else(|| EngineError::Invalid("messages: they use every private-use character".to_owned()))?;
        let guard = |text: &str, key: bool| guarded(text, key, spelling.control, marker);
        let messages: Value = turns.iter().map(|turn| message(turn, &guard)).collect();
        // As Hugging Face passes them: none rather than undefined or empty.
        let tools = match tools {
            [] => Value::from(()),
            tools => tools.iter().map(|tool| python::value_of(tool, &guard)).collect(),
        };
        let variables =
            Value::from_pairs(variables.iter().map(|(name, value)| (name.as_str(), python::value_of(value, &guard))));
        let text = self.environment.get_template(NAME).and_then(|template| {
            template.render(context! {
                messages,
                // SmolLM3 has its own name for them.
                xml_tools => tools.clone(),
                tools,
                add_generation_prompt => true,
                bos_token => spelling.bos,
                eos_token => spelling.eos,
                ..variables
            })
        });
        let text = text.map_err(|e| {
            EngineError::Invalid(format!(
                "messages: the model's chat template refuses them: {}",
                e.detail().unwrap_or("it failed")
            ))
        })?;
        Ok((text, marker))
    }
}

/// A turn as the template reads it. Its role is one of ours and is compared, so it stays as it is.
fn message(turn: &Json, guard: &dyn Fn(&str, bool) -> String) -> Value {
    let members = turn.as_object().into_iter().flatten().map(|(key, value)| {
        let value = match value {
            Json::String(role) if key == "role" => role.as_str().into(),
            value => python::value_of(value, guard),
        };
        (key.as_str(), value)
    });
    Value::from_pairs(members)
}

/// Text without spellings of control tokens. Keys that are plain words are not marked for what they might become
/// together with text around: templates look them up.
fn guarded(text: &str, key: bool, control: &Control, marker: char) -> String {
    let word = || text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if key && word() && control.split(text).iter().all(|piece| matches!(piece, Piece::Text(_))) {
        return text.to_owned();
    }
    control.guard(text, marker)
}

/// Hugging Face marks the assistant's text for training by `{% generation %}`, which changes nothing in it.
fn without_marks(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut rest = source;
    let mut text = String::with_capacity(source.len());
    while let Some((before, (inside, after))) =
        rest.split_once("{%").and_then(|(before, tag)| Some((before, tag.split_once("%}")?)))
    {
        let word = inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let inside = match word {
            "generation" => inside.replace(word, "if true"),
            "endgeneration" => inside.replace(word, "endif"),
            _ => inside.to_owned(),
        };
        text.extend([before, "{%", &inside, "%}"]);
        rest = after;
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// Are they few enough, and of roles that a template may print?
fn check(turns: &[ChatTurn]) -> Result<(), EngineError> {
    if turns.is_empty() || turns.len() > MESSAGES_MAX {
        return Err(EngineError::Invalid(format!("messages: {} messages; give 1 to {MESSAGES_MAX}", turns.len())));
    }
    if let Some(turn) = turns.iter().find(|turn| !ROLES.contains(&turn.role.as_str())) {
        let role: String = turn.role.chars().take(32).flat_map(char::escape_default).collect();
        return Err(EngineError::Invalid(format!(
            "messages: role '{role}' is unknown; roles are {}",
            ROLES.join(", ")
        )));
    }
    Ok(())
}

/// Token ids of rendered text. Text that cannot fit is refused before it is tokenised, which takes much longer.
fn tokenise(text: &str, tokenizer: &Tokenizer, marker: char, context: usize) -> Result<Vec<u32>, EngineError> {
    let pieces = tokenizer.control().split(text);
    let plain = |text: &str| text.replace(marker, "");
    let fewest = pieces.iter().map(|piece| match piece {
        Piece::Control(_) => 1,
        Piece::Text(text) => tokenizer.fewest(&plain(text)),
    });
    let fits = |tokens: usize| {
        if tokens < context { Ok(()) } else { Err(EngineError::ContextExceeded { prompt: tokens, max: context }) }
    };
    fits(fewest.sum())?;
    let mut ids = Vec::new();
    for piece in &pieces {
        match piece {
            Piece::Control(id) => ids.push(*id),
            Piece::Text(text) => ids.extend(tokenizer.encode(&plain(text))?),
        }
        fits(ids.len())?;
    }
    Ok(ids)
}

/// A private-use character that no text of the conversation contains.
fn free_marker<'a>(texts: impl Iterator<Item = &'a Json>) -> Option<char> {
    let mut used = HashSet::new();
    texts.for_each(|text| collect_marks(text, &mut used));
    MARKERS.into_iter().find(|c| !used.contains(c))
}

fn collect_marks(json: &Json, used: &mut HashSet<char>) {
    let mut collect = |text: &str| used.extend(text.chars().filter(|c| MARKERS.contains(c)));
    match json {
        Json::String(text) => collect(text),
        Json::Array(list) => list.iter().for_each(|value| collect_marks(value, used)),
        Json::Object(map) => map.iter().for_each(|(key, value)| {
            used.extend(key.chars().filter(|c| MARKERS.contains(c)));
            collect_marks(value, used);
        }),
        _ => {}
    }
}
