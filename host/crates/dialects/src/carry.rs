//! The fields beside the conversation that describe the client, its account or the billing: which of them another
//! dialect has a word for too, and goes on, and which it lacks. Of those that it lacks, one that changes what an answer
//! costs, holds or where it is made is refused by its name, and one that only describes the client is left out. This is
//! the one list of both; a body that stays in its dialect keeps everything.

use serde_json::{Map, Value, json};

use crate::ask::{Ask, Refusal};
use crate::dialect::Dialect;

/// What OpenAI's dialects call the same.
const SHARED: [&str; 7] =
    ["user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier"];
/// What only describes the client, or asks for what an upstream of another dialect does by itself: keys and marks of
/// caches, what else of the provider's own tools an answer should show, and metadata that nobody reads.
const LEFT_OUT: [&str; 14] = [
    "metadata",
    "store",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "cache_control",
    "client_metadata",
    "include",
    "stream_options",
    "max_tool_calls",
    "truncation",
    "context_management",
    "diagnostics",
    "instructions",
];
/// The same of accounts.
const LEFT_OUT_ACCOUNTS: [&str; 2] = ["user_profile_id", "workspace_id"];
/// Values that ask for what happens without them.
const NEUTRAL: [(&str, &str); 5] = [
    ("service_tier", "auto"),
    ("speed", "standard"),
    ("inference_geo", "global"),
    ("verbosity", "medium"),
    ("text", "medium"),
];

/// The descriptive fields of `ask` in the words of another dialect.
pub(crate) fn carried(ask: &Ask, to: Dialect) -> Result<Map<String, Value>, Refusal> {
    let from = ask.dialect.unwrap_or(to);
    let mut body = Map::new();
    for (name, value) in &ask.descriptive {
        match word(from, to, (name, value)) {
            Some((name, value)) => drop(body.entry(name).or_insert(value)),
            None if is_left_out(name, value) => {}
            None => {
                let name = if name == "text" { "text.verbosity" } else { name };
                let message = format!("'{name}' of this value cannot be told to this model's provider; leave it out");
                return Err(Refusal::new(name, message));
            }
        }
    }
    Ok(body)
}

/// Name and value of a field in the other dialect.
fn word(from: Dialect, to: Dialect, (name, value): (&str, &Value)) -> Option<(String, Value)> {
    let told = |name: &str, value: Value| Some((name.to_owned(), value));
    let openai = |dialect: Dialect| dialect != Dialect::Messages;
    match (name, openai(from), openai(to)) {
        ("verbosity", true, true) if to == Dialect::Responses => told("text", json!({ "verbosity": value })),
        ("text", true, true) if to == Dialect::Chat => told("verbosity", value.get("verbosity")?.clone()),
        (_, true, true) if SHARED.contains(&name) => told(name, value.clone()),
        ("user" | "safety_identifier", true, false) => told("metadata", json!({ "user_id": value })),
        ("service_tier", true, false) if value == "default" => told(name, json!("standard_only")),
        ("metadata", false, true) => told("user", value.get("user_id").filter(|user| user.is_string())?.clone()),
        ("service_tier", false, true) if value == "standard_only" => told(name, json!("default")),
        _ => None,
    }
}

fn is_left_out(name: &str, value: &Value) -> bool {
    let word = value.as_str().or_else(|| value.get("verbosity")?.as_str());
    LEFT_OUT.contains(&name)
        || LEFT_OUT_ACCOUNTS.contains(&name)
        || NEUTRAL.iter().any(|(neutral, plain)| *neutral == name && word == Some(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(dialect: Dialect, fields: Value) -> Ask {
        let mut body = match dialect {
            Dialect::Responses => json!({ "model": "m", "input": "hi" }),
            _ => json!({ "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }] }),
        };
        let body = body.as_object_mut().expect("object");
        body.extend(fields.as_object().expect("object").clone());
        dialect.parse(body).expect("parsed")
    }

    #[test]
    fn what_both_dialects_have_goes_on() {
        let shared = json!({
            "user": "u", "metadata": { "a": "b" }, "store": true, "safety_identifier": "s", "prompt_cache_key": "k",
            "service_tier": "flex",
        });
        for (from, to, own, theirs) in [
            (Dialect::Chat, Dialect::Responses, json!({ "verbosity": "low" }), "/text/verbosity"),
            (Dialect::Responses, Dialect::Chat, json!({ "text": { "verbosity": "low" } }), "/verbosity"),
        ] {
            let mut fields = shared.clone();
            fields.as_object_mut().expect("object").extend(own.as_object().expect("object").clone());
            let body = to.write(&ask(from, fields), "up", false).expect("written");
            for (name, value) in shared.as_object().expect("object") {
                assert_eq!(&body[name], value, "{from:?}: {name}");
            }
            assert_eq!(body.pointer(theirs), Some(&json!("low")), "{from:?}");
        }
        for from in [Dialect::Chat, Dialect::Responses] {
            let body = Dialect::Messages.write(&ask(from, json!({ "user": "u" })), "up", false).expect("written");
            assert_eq!(body["metadata"], json!({ "user_id": "u" }));
            let back =
                ask(Dialect::Messages, json!({ "metadata": { "user_id": "u" }, "service_tier": "standard_only" }));
            let body = from.write(&back, "up", false).expect("written");
            assert_eq!((&body["user"], &body["service_tier"]), (&json!("u"), &json!("default")));
        }
    }

    #[test]
    fn what_changes_cost_or_answer_and_has_no_word_is_refused_by_name() {
        for (from, to, fields, at) in [
            (Dialect::Chat, Dialect::Messages, json!({ "service_tier": "priority" }), "service_tier"),
            (Dialect::Chat, Dialect::Messages, json!({ "verbosity": "low" }), "verbosity"),
            (Dialect::Responses, Dialect::Messages, json!({ "text": { "verbosity": "high" } }), "text.verbosity"),
            (Dialect::Messages, Dialect::Chat, json!({ "speed": "fast" }), "speed"),
            (Dialect::Messages, Dialect::Responses, json!({ "inference_geo": "us" }), "inference_geo"),
        ] {
            assert_eq!(to.write(&ask(from, fields), "up", false).expect_err("refused").param, at);
        }
        let agents = json!({ "store": false, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "text": { "verbosity": "medium" } });
        for to in [Dialect::Chat, Dialect::Messages] {
            assert!(to.write(&ask(Dialect::Responses, agents.clone()), "up", false).is_ok());
        }
    }
}
