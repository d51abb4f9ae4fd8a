//! Chat templates: a conversation to token ids.
//! The engine's handle calls it; the template is the model's own, run by minijinja. A message that spells a
//! control token stays text: such spellings are broken by a marker character before rendering, and the marker
//! is removed after the control tokens of the template have been found.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};
use reef_core::Message;
use serde_json::Value as Json;

use crate::checkpoint::{Checkpoint, Source, read_json, unsupported};
use crate::control::Piece;
use crate::error::EngineError;
use crate::tokenizer::Tokenizer;

/// Roles that a template may see; it may print them, so they are not free text.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];
/// Messages of one conversation.
pub const MESSAGES_MAX: usize = 4096;
/// Name under which the template is kept.
const NAME: &str = "chat";

/// A compiled template.
#[derive(Debug)]
pub(crate) struct ChatTemplate(Environment<'static>);

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
        environment.add_function("raise_exception", |message: String| {
            Err::<Value, _>(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.set_unknown_method_callback(|_, value, method, arguments| string_method(value, method, arguments));
        environment.add_template_owned(NAME, source)?;
        Ok(Self(environment))
    }

    /// Token ids of `messages` and of the start of the assistant's answer, fewer than `context`.
    pub fn render(&self, messages: &[Message], tokenizer: &Tokenizer, context: usize) -> Result<Vec<u32>, EngineError> {
        check(messages)?;
        let marker = free_marker(messages)
            .ok_or_else(|| EngineError::Invalid("messages: they use every private-use character".to_owned()))?;
        tokenise(&self.text(messages, tokenizer, marker)?, tokenizer, marker, context)
    }

    /// What the template makes of `messages`, in which `marker` breaks the spellings of control tokens.
    fn text(&self, messages: &[Message], tokenizer: &Tokenizer, marker: char) -> Result<String, EngineError> {
        let guarded: Vec<Value> = messages
            .iter()
            .map(|message| context! { role => &message.role, content => tokenizer.control().guard(&message.content, marker) })
            .collect();
        let text = self.0.get_template(NAME).and_then(|template| {
            template.render(context! {
                messages => guarded,
                add_generation_prompt => true,
                bos_token => &tokenizer.bos_text,
                eos_token => &tokenizer.eos_text,
            })
        });
        text.map_err(|e| {
            EngineError::Invalid(format!(
                "messages: the model's chat template refuses them: {}",
                e.detail().unwrap_or("it failed")
            ))
        })
    }
}

/// Are they few enough, and of roles that a template may print?
fn check(messages: &[Message]) -> Result<(), EngineError> {
    if messages.is_empty() || messages.len() > MESSAGES_MAX {
        return Err(EngineError::Invalid(format!("messages: {} messages; give 1 to {MESSAGES_MAX}", messages.len())));
    }
    if let Some(message) = messages.iter().find(|message| !ROLES.contains(&message.role.as_str())) {
        let role: String = message.role.chars().take(32).flat_map(char::escape_default).collect();
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

/// The string methods of Python that templates use.
fn string_method(value: &Value, method: &str, arguments: &[Value]) -> Result<Value, minijinja::Error> {
    let unknown = || minijinja::Error::from(ErrorKind::UnknownMethod);
    let text = value.as_str().ok_or_else(unknown)?;
    let argument = arguments.first().and_then(Value::as_str);
    Ok(match (method, argument) {
        ("strip", None) => text.trim().into(),
        ("lstrip", None) => text.trim_start().into(),
        ("rstrip", None) => text.trim_end().into(),
        ("strip", Some(set)) => text.trim_matches(|c| set.contains(c)).into(),
        ("lstrip", Some(set)) => text.trim_start_matches(|c| set.contains(c)).into(),
        ("rstrip", Some(set)) => text.trim_end_matches(|c| set.contains(c)).into(),
        ("startswith", Some(part)) => text.starts_with(part).into(),
        ("endswith", Some(part)) => text.ends_with(part).into(),
        ("split", Some(by)) if !by.is_empty() => text.split(by).map(Value::from).collect(),
        ("upper", None) => text.to_uppercase().into(),
        ("lower", None) => text.to_lowercase().into(),
        _ => return Err(unknown()),
    })
}

/// A private-use character that no message contains.
fn free_marker(messages: &[Message]) -> Option<char> {
    let used: std::collections::HashSet<char> = messages
        .iter()
        .flat_map(|message| message.content.chars())
        .filter(|c| ('\u{e000}'..='\u{f8ff}').contains(c))
        .collect();
    ('\u{e000}'..='\u{f8ff}').find(|c| !used.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_refuses_in_its_own_words() {
        let template = ChatTemplate::compile("{{ raise_exception('only pairs') }}".to_owned()).expect("compiles");
        let refusal = template.0.get_template(NAME).and_then(|t| t.render(context! {})).expect_err("refused");
        assert_eq!(refusal.detail(), Some("only pairs"));
    }
}
