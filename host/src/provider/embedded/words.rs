//! Words that a dialect knows and this engine does not act on.
//! An effort, a kind of thinking or a part to include changes nothing in the answer of a model that has no such thing,
//! so the words are taken and recorded; a word outside of the dialect's list is refused, as its own provider would.

use reef_dialects::{Ask, Dialect};
use serde_json::Value;

use super::prompt::TEMPLATE_VARIABLES;
use super::{ProviderError, refusal};

/// Variables of the model's template that a request may set, and bytes of a name.
const VARIABLES_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 64;

const OPENAI_EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];
const ANTHROPIC_EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];
const THINKING: [&str; 3] = ["enabled", "disabled", "adaptive"];
/// What a response may include; but for the log-probs it belongs to tools, images and thoughts that are not here.
const INCLUDE: [&str; 8] = [
    "message.output_text.logprobs",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
];

/// Refuses the first word that the dialect does not know.
pub(super) fn check(ask: &Ask, dialect: Dialect) -> Result<(), ProviderError> {
    let reasoning = ask.reasoning.as_ref();
    let field = |name: &str| reasoning.and_then(|reasoning| reasoning.get(name)).and_then(Value::as_str);
    match dialect {
        Dialect::Chat => {
            known("reasoning_effort", reasoning.and_then(Value::as_str), &OPENAI_EFFORTS)?;
            template_variables(ask.unknown.get(TEMPLATE_VARIABLES))
        }
        Dialect::Completions => Ok(()),
        Dialect::Messages => {
            known("thinking.type", field("type"), &THINKING)?;
            known("output_config.effort", field("effort"), &ANTHROPIC_EFFORTS)
        }
        Dialect::Responses => {
            known("reasoning.effort", field("effort"), &OPENAI_EFFORTS)?;
            let included = ask.descriptive.get("include").and_then(Value::as_array);
            included.into_iter().flatten().try_for_each(|entry| known("include", entry.as_str(), &INCLUDE))?;
            calls_max(ask.descriptive.get("max_tool_calls"))
        }
    }
}

fn template_variables(given: Option<&Value>) -> Result<(), ProviderError> {
    let fits = |name: &String| name.len() <= NAME_BYTES_MAX && !name.is_empty();
    let object =
        given.map(|value| value.as_object().is_some_and(|map| map.len() <= VARIABLES_MAX && map.keys().all(fits)));
    if object != Some(false) {
        return Ok(());
    }
    let message =
        format!("{TEMPLATE_VARIABLES} must be an object of up to {VARIABLES_MAX} names of 1 to {NAME_BYTES_MAX} bytes");
    Err(refusal("invalid_request", TEMPLATE_VARIABLES, message))
}

fn known(param: &str, word: Option<&str>, words: &[&str]) -> Result<(), ProviderError> {
    match word {
        Some(word) if !words.contains(&word) => {
            let shown: String = word.escape_debug().take(64).collect();
            let message = format!("{param} is '{shown}'; use one of {}", words.join(", "));
            Err(refusal("invalid_request", param, message))
        }
        _ => Ok(()),
    }
}

/// It bounds calls of hosted tools, of which there are none here; a bound of none is no bound.
fn calls_max(given: Option<&Value>) -> Result<(), ProviderError> {
    match given {
        None | Some(Value::Null) => Ok(()),
        Some(number) if number.as_u64().is_some_and(|calls| calls > 0) => Ok(()),
        Some(_) => {
            let message = "max_tool_calls must be a whole number of at least 1; leave it out for no limit";
            Err(refusal("invalid_request", "max_tool_calls", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn param(dialect: Dialect, extra: Value) -> Option<String> {
        let mut body = json!({ "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }] });
        if dialect == Dialect::Responses {
            body = json!({ "model": "m", "input": "hi" });
        }
        let fields = body.as_object_mut().expect("an object");
        fields.extend(extra.as_object().expect("an object").clone());
        let ask = dialect.parse(fields).expect("parsed");
        check(&ask, dialect).err().and_then(|refused| refused.param().map(str::to_owned))
    }

    #[test]
    fn words_without_a_meaning_are_refused_by_name() {
        for (dialect, extra, at) in [
            (Dialect::Chat, json!({ "reasoning_effort": "banana" }), "reasoning_effort"),
            (Dialect::Messages, json!({ "thinking": { "type": "banana" } }), "thinking.type"),
            (Dialect::Messages, json!({ "output_config": { "effort": "x" } }), "output_config.effort"),
            (Dialect::Responses, json!({ "reasoning": { "effort": "x" } }), "reasoning.effort"),
            (Dialect::Responses, json!({ "include": ["everything"] }), "include"),
            (Dialect::Responses, json!({ "max_tool_calls": 0 }), "max_tool_calls"),
            (Dialect::Chat, json!({ "chat_template_kwargs": [] }), "chat_template_kwargs"),
            (Dialect::Chat, json!({ "chat_template_kwargs": { "": 1 } }), "chat_template_kwargs"),
        ] {
            assert_eq!(param(dialect, extra.clone()).as_deref(), Some(at), "{extra}");
        }
    }

    #[test]
    fn the_dialects_own_words_are_taken() {
        for effort in OPENAI_EFFORTS {
            assert_eq!(param(Dialect::Chat, json!({ "reasoning_effort": effort })), None);
            assert_eq!(
                param(Dialect::Responses, json!({ "reasoning": { "effort": effort, "summary": "auto" } })),
                None
            );
        }
        let variables = json!({ "chat_template_kwargs": { "enable_thinking": false } });
        assert_eq!(param(Dialect::Chat, variables), None);
        let thinking = json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } });
        assert_eq!(param(Dialect::Messages, thinking), None);
        let agents = json!({ "include": ["reasoning.encrypted_content"], "max_tool_calls": 3, "reasoning": null });
        assert_eq!(param(Dialect::Responses, agents), None);
    }
}
