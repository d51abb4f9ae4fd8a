//! The token ids of a demonstrated answer, as the model would have to sample them: what the chat template puts
//! between the prompt that asks for an answer and the start of the next turn.

use reef_recipe::prelude::*;

/// Ids that follow the text of an assistant's turn when one more answer is asked for: the end of the turn, then the
/// prompt for the answer. The first of them is where the model stops.
///
/// # Errors
/// The host's refusal of a conversation of two words.
pub fn closing() -> Result<Vec<u32>> {
    // Two conversations that differ in one character of the answer only: all after it is the same.
    let with = |answer: &str| tokens::render(&[Message::user("?"), Message::assistant(answer)]);
    let (first, second) = (with("0")?, with("1")?);
    let alike = first.iter().rev().zip(second.iter().rev()).take_while(|(a, b)| a == b).count();
    Ok(first.get(first.len() - alike..).unwrap_or_default().to_vec())
}

/// The answer's ids with the token that ends its turn. `asked`: the rendering of the request; `answered`: that of the
/// request and the answer, up to where one more answer is asked for.
///
/// # Errors
/// `other` when the chat template does not continue the prompt with the answer, or does not end the answer.
pub fn answer(asked: &[u32], answered: &[u32], closing: &[u32]) -> Result<Vec<u32>> {
    let Some(rest) = answered.strip_prefix(asked) else {
        return Err(Failure::other(
            "the chat template changes the prompt once it is answered: sft needs one whose prompt is a prefix of the \
             whole conversation",
        ));
    };
    let (Some(text), Some(&end)) = (rest.strip_suffix(closing), closing.first()) else {
        return Err(Failure::other("the chat template does not end the assistant's turn: sft cannot teach to stop"));
    };
    Ok(text.iter().copied().chain([end]).collect())
}
