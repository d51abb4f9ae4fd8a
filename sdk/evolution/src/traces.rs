//! What a recorded exchange looks like to a model: what was asked, answered, and said of it.

use reef_recipe::prelude::*;

use crate::untrusted::shortened;

/// What was wrong or right, in words.
pub const FEEDBACK: Field<&'static str> = Field::new("feedback", "what was wrong or right, in words; a model reads it");

/// A line a message, the answer, and the feedback if there is any; at most `chars` characters.
///
/// # Errors
/// The host's refusal.
pub fn trace(sample: Sample, chars: usize) -> Result<String> {
    let mut lines: Vec<String> =
        experience::messages(sample)?.iter().map(|turn| format!("{}: {}", turn.role, turn.content)).collect();
    lines.push(format!("assistant: {}", experience::response_text(sample)?));
    lines.extend(FEEDBACK.of(sample)?.map(|text| format!("feedback: {text}")));
    Ok(shortened(&lines.join("\n"), chars))
}
