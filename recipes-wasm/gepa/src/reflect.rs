//! What the model that reflects reads, and the new text in its answer. Pure functions on texts.

use reef_evolution::untrusted::{WARNING, quoted};
use reef_recipe::prelude::*;

/// Characters of the component's text in the prompt.
const TEXT_CHARS_MAX: usize = 16_000;
/// Characters of one example.
const EXAMPLE_CHARS_MAX: usize = 3_000;

/// One try of a task, as the model reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// What happened, and what was said of it.
    pub trace: String,
    /// Its score.
    pub score: f64,
}

/// The instruction.
pub fn instruction() -> String {
    format!(
        "You improve one text of an AI agent. You are given the text, and tries of tasks that the agent made with it, each \
with its score (1 is perfect) and, where there is any, feedback. Find out what the agent must know and do to succeed: \
facts about the tasks that the text lacks, and a way of working that holds in general. Then write the text anew. Keep \
what works. Never copy a task or an answer. {WARNING} End with the whole new text between ``` fences."
    )
}

/// The material: the text of the component and the examples.
pub fn material(component: &str, text: &str, examples: &[Example]) -> String {
    let examples = examples.iter().enumerate().map(|(number, example)| {
        let trace = quoted("try", &example.trace, EXAMPLE_CHARS_MAX);
        format!("Try {}, score {}:\n{trace}", number + 1, example.score)
    });
    let examples: Vec<String> = examples.collect();
    format!("The text {component}:\n{}\n\n{}", quoted("text", text, TEXT_CHARS_MAX), examples.join("\n\n"))
}

/// The new text: what stands between the first fence and the last, without the name of a language.
///
/// # Errors
/// One sentence: what is wrong with the answer.
pub fn new_text(answer: &str, chars_max: usize) -> Result<String, String> {
    let fence = "```";
    let inner = answer.split_once(fence).and_then(|(_, rest)| rest.rsplit_once(fence));
    let (inner, _) = inner.ok_or_else(|| "the answer has no text between ``` fences".to_owned())?;
    let text = match inner.split_once('\n') {
        Some((first, rest)) if is_language(first.trim()) => rest,
        _ => inner,
    };
    let text = text.trim();
    if text.is_empty() {
        return Err("the text between the ``` fences of the answer is empty".to_owned());
    }
    let count = text.chars().count();
    if count > chars_max {
        return Err(format!("the new text has {count} characters, text_chars_max is {chars_max}"));
    }
    Ok(text.to_owned())
}

/// Is it the empty rest of the line of a fence, or a name such as `markdown`?
fn is_language(first: &str) -> bool {
    first.len() <= 16 && first.chars().all(|c| c.is_ascii_lowercase() || c == '-')
}
