//! What the teacher reads: the prompt of the turn with a hint at the end of the last user message. The recorded prompt
//! may hold more than its messages, e.g. the list of tools, so the hint is set into the recorded tokens: the template
//! renders the messages with and without it, and what differs is exchanged.

use reef_recipe::prelude::*;

/// The conversation with the hint; `None` if no user has spoken.
pub fn hinted(conversation: &[Message], hint: &str) -> Option<Vec<Message>> {
    let mut messages = conversation.to_vec();
    let last = messages.iter_mut().rev().find(|message| message.role == "user")?;
    last.content = format!("{}\n\n[Hint]\n{hint}", last.content);
    Some(messages)
}

/// `recorded` with the difference between `plain` and `hinted` in it; `None` if its end is not that of `plain` from
/// the difference on.
pub fn spliced(recorded: &[u32], plain: &[u32], hinted: &[u32]) -> Option<Vec<u32>> {
    let shared = plain.iter().zip(hinted).take_while(|(a, b)| a == b).count();
    let (_, plain_rest) = plain.split_at_checked(shared)?;
    let (_, hinted_rest) = hinted.split_at_checked(shared)?;
    let head = recorded.strip_suffix(plain_rest)?;
    Some([head, hinted_rest].concat())
}

/// The sample as the teacher reads it; `None` where the hint has no place.
///
/// # Errors
/// The host's refusal, e.g. of a prompt that is too long.
pub(crate) fn context(sample: Sample, conversation: &[Message], hint: &str) -> Result<Option<Sample>> {
    let Some(messages) = hinted(conversation, hint) else { return Ok(None) };
    let (plain, hinted) = (tokens::render(conversation)?, tokens::render(&messages)?);
    match spliced(&experience::prompt_tokens(sample)?, &plain, &hinted) {
        Some(prompt) => Trainer::derive(sample, Some(&prompt), None).map(Some),
        None => Ok(None),
    }
}
