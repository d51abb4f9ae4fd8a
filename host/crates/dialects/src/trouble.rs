//! What upstreams call their troubles, in one place: a conversation that is too long, and errors in a stream.
//! Clients look for words: OpenAI's for a code, Anthropic's for a phrase. Both directions are here.

use std::borrow::Cow;

use serde_json::Value;

use crate::dialect::Dialect;

/// OpenAI's code for a conversation that does not fit into the model's context.
pub const OVERFLOW: &str = "context_length_exceeded";
/// Anthropic's phrase for it.
const OVERFLOW_PHRASE: &str = "prompt is too long";
/// Phrases of providers that give it no code of its own.
const OVERFLOW_PHRASES: [&str; 4] =
    [OVERFLOW_PHRASE, "maximum context length", "exceeds the context window", "exceed context limit"];
/// After it, OpenAI's sentence, and that of servers that copy it, names the maximum.
const MAXIMUM_IS: &str = "maximum context length is";

/// Does this sentence of an error say that a conversation is too long?
pub fn is_overflow(sentence: &str) -> bool {
    let sentence = sentence.to_lowercase();
    OVERFLOW_PHRASES.iter().any(|phrase| sentence.contains(phrase))
}

/// The message of an error as clients of the dialect expect it.
pub(crate) fn message<'a>(dialect: Dialect, code: &str, message: &'a str) -> Cow<'a, str> {
    if dialect != Dialect::Messages || code != OVERFLOW || message.contains(OVERFLOW_PHRASE) {
        return Cow::Borrowed(message);
    }
    match counts(message) {
        Some((tokens, max)) => Cow::Owned(format!("{OVERFLOW_PHRASE}: {tokens} tokens > {max} maximum; {message}")),
        None => Cow::Owned(format!("{OVERFLOW_PHRASE}: {message}")),
    }
}

/// The tokens that were sent, with those that the answer may take if only both together are too many, and the maximum.
fn counts(message: &str) -> Option<(u64, u64)> {
    let (_, rest) = message.split_once(MAXIMUM_IS)?;
    let words = rest.split(|char: char| char.is_whitespace() || "().;".contains(char));
    let mut numbers = words.filter_map(|word| word.trim_end_matches(',').replace(',', "").parse::<u64>().ok());
    let (max, first) = (numbers.next()?, numbers.next()?);
    if first > max {
        return Some((first, max));
    }
    let both = first.saturating_add(numbers.next()?);
    (both > max).then_some((both, max))
}

/// The HTTP status that stands for an error in an upstream's stream, and the word that it had; none where it has no
/// word of those that are known, and for troubles that are nobody's but the upstream's or its key's.
pub fn reported(data: &str) -> Option<(u16, &'static str)> {
    let data: Value = serde_json::from_str(data).ok()?;
    let places = ["/error/code", "/error/type", "/response/error/code", "/response/error/type", "/code", "/type"];
    let words = places.iter().filter_map(|place| data.pointer(place));
    let known = |word: &Value| match (word.as_str(), word.as_u64()) {
        (Some(OVERFLOW), _) => Some((400, OVERFLOW)),
        (Some("invalid_request_error"), _) => Some((400, "invalid_request_error")),
        (Some("invalid_prompt"), _) => Some((400, "invalid_prompt")),
        (Some("rate_limit_exceeded" | "rate_limit_error"), _) | (_, Some(429)) => Some((429, "rate_limit_exceeded")),
        (Some("overloaded_error" | "server_overloaded" | "overloaded"), _) | (_, Some(503 | 529)) => {
            Some((503, "overloaded_error"))
        }
        _ => None,
    };
    words.into_iter().find_map(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_that_is_too_long_says_so_in_the_phrase_that_clients_look_for() {
        for (sentence, begins) in [
            (
                "This model's maximum context length is 128,000 tokens. However, your messages resulted in 130,500 tokens.",
                "prompt is too long: 130500 tokens > 128000 maximum; This model's",
            ),
            (
                "this model's maximum context length is 64 tokens; the prompt takes 60 and the answer may take 9; shorten either",
                "prompt is too long: 69 tokens > 64 maximum; this model's",
            ),
            (
                "this model's maximum context length is 64 tokens, the answer included; the prompt has at least 70; shorten it",
                "prompt is too long: 70 tokens > 64 maximum; this model's",
            ),
            ("Your input exceeds the context window of this model.", "prompt is too long: Your input"),
            ("prompt is too long: 9 tokens > 8 maximum", "prompt is too long: 9 tokens > 8 maximum"),
        ] {
            assert!(is_overflow(sentence), "{sentence}");
            let told = message(Dialect::Messages, OVERFLOW, sentence);
            assert!(told.starts_with(begins), "{told}");
            assert_eq!(message(Dialect::Chat, OVERFLOW, sentence), sentence);
            assert_eq!(message(Dialect::Messages, "other", sentence), sentence);
            let body = Dialect::Messages.error_body(400, OVERFLOW, sentence, None);
            assert_eq!(body["error"]["message"], told.as_ref());
        }
        assert!(!is_overflow("no such colour"));
    }

    #[test]
    fn the_word_of_an_error_in_a_stream_is_known_in_every_dialect() {
        for (data, status) in [
            (r#"{"type":"error","error":{"type":"overloaded_error","message":"m"}}"#, Some(503)),
            (r#"{"type":"error","error":{"type":"rate_limit_error","message":"m"}}"#, Some(429)),
            (r#"{"error":{"message":"m","type":"requests","code":"rate_limit_exceeded"}}"#, Some(429)),
            (r#"{"error":{"message":"m","code":429}}"#, Some(429)),
            (r#"{"type":"error","code":"rate_limit_exceeded","message":"m"}"#, Some(429)),
            (r#"{"type":"response.failed","response":{"error":{"code":"context_length_exceeded"}}}"#, Some(400)),
            (r#"{"error":{"message":"m","type":"server_error"}}"#, None),
            ("no JSON", None),
        ] {
            assert_eq!(reported(data).map(|(status, _)| status), status, "{data}");
        }
    }
}
