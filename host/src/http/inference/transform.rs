//! A recipe's word on a request before it is answered: its export `requests`, if the operator grants it.
//! It sees the text of each turn; a message that it gives back unchanged keeps what else the turn holds, and an answer
//! that loses a call, a result or an image is not taken. The recipe has 10 milliseconds of its own and the request waits
//! a little longer for a thread; a fault or a late answer leaves the request as it was, and repeated faults silence it.

use std::sync::Arc;
use std::time::Duration;

use reef_core::Message;
use reef_dialects::{Ask, Dialect, Input, Part, Role, Turn};
use reef_sandbox::{Call, RequestView};
use serde_json::{Map, Value};

use crate::http::caller::Caller;
use crate::jobs::run_step::context_outside;
use crate::scenarios::Scenario;

/// How long a request waits for the recipe, queues included.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// Fields that hold a conversation, of all dialects.
const CONVERSATION: [&str; 4] = ["messages", "system", "input", "instructions"];

/// Changes the turns of the request, and of the body that is recorded and passed on.
pub async fn transform(
    scenario: &Arc<Scenario>,
    (dialect, caller): (Dialect, &Caller),
    ask: &mut Ask,
    body: &mut Map<String, Value>,
) {
    // Where two recipes would have a word, that of the first surface has it.
    let Some((surface, now)) = scenario.recipes().find(|(_, now)| now.recipe.exports().requests) else { return };
    let Input::Turns(turns) = &ask.input else { return };
    if !scenario.side(surface).hears_requests() {
        metrics::counter!("reef_requests_transformed_total", "outcome" => "quarantined").increment(1);
        return;
    }
    let view = RequestView {
        messages: turns.iter().map(message).collect(),
        session: caller.session.clone(),
        tags: caller.tags.iter().map(|(tag, value)| (tag.to_string(), value.clone())).collect(),
    };
    let config = scenario.recipe_config(surface, &now.config);
    let call = Call { config, ..Call::new(context_outside(scenario)) };
    let (asked, recipe) = (Arc::clone(scenario), now.recipe);
    // It goes on when the request does not wait any more: how it ends is remembered either way.
    let hearing = tokio::spawn(async move {
        let ended = recipe.transform_request(call, view).await.result;
        asked.side(surface).heard_request(ended.as_ref().map(drop));
        ended
    });
    let outcome = match tokio::time::timeout(WAIT_MAX, hearing).await {
        Ok(Ok(Ok(None))) => "unchanged",
        Ok(Ok(Ok(Some(messages)))) => match merged(turns, messages).and_then(|turns| put(dialect, turns, ask, body)) {
            Some(()) => "changed",
            None => "unfit",
        },
        Ok(Ok(Err(fault))) => {
            tracing::warn!(scenario = %scenario.key.1, %fault, "recipe.transform_request");
            "failed"
        }
        Ok(Err(_)) => "failed",
        Err(_) => "late",
    };
    metrics::counter!("reef_requests_transformed_total", "outcome" => outcome).increment(1);
}

const ROLES: [(Role, &str); 4] =
    [(Role::System, "system"), (Role::User, "user"), (Role::Assistant, "assistant"), (Role::Tool, "tool")];

/// A turn as the recipe sees it: of its results, their texts.
fn message(turn: &Turn) -> Message {
    let role = ROLES.iter().find(|(role, _)| *role == turn.role).map_or("user", |(_, name)| name);
    let texts = turn.parts.iter().map(|part| match part {
        Part::Text(text) | Part::Result { text, .. } => text.as_str(),
        Part::Reasoning { .. } | Part::Call { .. } | Part::Other { .. } => "",
    });
    Message { role: role.to_owned(), content: texts.collect() }
}

/// The turns that the recipe's messages stand for; none if one of them has no role or something would be lost.
fn merged(turns: &[Turn], messages: Vec<Message>) -> Option<Vec<Turn>> {
    let (mut left, mut merged) = (turns, Vec::with_capacity(messages.len()));
    for changed in messages {
        if let Some(at) = left.iter().position(|turn| message(turn) == changed) {
            let (passed, rest) = left.split_at(at);
            if passed.iter().all(is_text) {
                merged.extend(rest.first().cloned());
                left = rest.get(1..).unwrap_or_default();
                continue;
            }
        }
        let role = ROLES.iter().find(|(_, name)| *name == changed.role)?.0;
        merged.push(Turn { role, parts: vec![Part::Text(changed.content)] });
    }
    left.iter().all(is_text).then_some(merged)
}

fn is_text(turn: &Turn) -> bool {
    turn.parts.iter().all(|part| matches!(part, Part::Text(_)))
}

/// Puts the turns into the request, and into its body in the words of its dialect.
fn put(dialect: Dialect, turns: Vec<Turn>, ask: &mut Ask, body: &mut Map<String, Value>) -> Option<()> {
    let changed = Ask { input: Input::Turns(turns), ..ask.clone() };
    let Ok(Value::Object(mut written)) = dialect.write(&changed, &changed.model, true) else { return None };
    for field in CONVERSATION {
        body.remove(field);
        if let Some(value) = written.remove(field) {
            body.insert(field.to_owned(), value);
        }
    }
    *ask = changed;
    Some(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(role: &str, text: &str) -> Message {
        Message { role: role.to_owned(), content: text.to_owned() }
    }

    fn turns() -> Vec<Turn> {
        let call = Part::Call { id: "1".to_owned(), name: "f".to_owned(), arguments: "{}".to_owned() };
        let result = Part::Result { id: "1".to_owned(), text: "42".to_owned(), failed: false };
        vec![
            Turn { role: Role::User, parts: vec![Part::Text("hi".to_owned())] },
            Turn { role: Role::Assistant, parts: vec![call] },
            Turn { role: Role::Tool, parts: vec![result] },
        ]
    }

    #[test]
    fn unchanged_messages_keep_what_else_their_turns_hold() {
        let seen: Vec<Message> = turns().iter().map(message).collect();
        assert_eq!(seen, [said("user", "hi"), said("assistant", ""), said("tool", "42")]);
        assert_eq!(merged(&turns(), seen), Some(turns()));
        let more = vec![said("system", "s"), said("user", "ho"), said("assistant", ""), said("tool", "42")];
        let merged = merged(&turns(), more).expect("fits");
        assert_eq!(merged[1].parts, [Part::Text("ho".to_owned())]);
        assert_eq!(merged[2..], turns()[1..]);
    }

    #[test]
    fn an_answer_that_loses_a_call_or_invents_a_role_is_not_taken() {
        assert_eq!(merged(&turns(), vec![said("user", "hi"), said("tool", "42")]), None);
        assert_eq!(merged(&turns(), vec![said("narrator", "hi")]), None);
    }

    #[test]
    fn the_body_says_the_same_in_its_dialect() {
        let body = json!({ "model": "m", "max_tokens": 5, "system": "old", "messages": [{ "role": "user", "content": "hi" }], "metadata": { "user_id": "u" } });
        let mut body = body.as_object().expect("object").clone();
        let mut ask = Dialect::Messages.parse(&body).expect("parsed");
        let changed = vec![Turn { role: Role::User, parts: vec![Part::Text("ho".to_owned())] }];
        put(Dialect::Messages, changed, &mut ask, &mut body).expect("put");
        assert!(!body.contains_key("system") && body["metadata"]["user_id"] == "u", "{body:?}");
        assert!(body["messages"].to_string().contains("ho"), "{body:?}");
    }
}
