//! Where the parts stand that only some dialects can say, so that a refusal names them as the client finds them:
//! `messages[3].content[1]`. A dialect's `parse` notes the places, its `write` asks for them.

use serde_json::Value;

use crate::ask::{Ask, Input, Part, Refusal, Turn};
use crate::custom;
use crate::fields::shown;
use crate::image::Image;

/// Depth of a part in a conversation: item, content, result, its content.
const DEPTH_MAX: usize = 8;

/// Paths of the `Other` parts of `turns`, in their order, within `conversation`, which is the body's field `field`.
pub(crate) fn places(turns: &[Turn], conversation: Option<&Value>, field: &str) -> Vec<String> {
    let mut others: Vec<&Value> = others(turns).map(|(_, value)| value).collect();
    let mut found = Vec::with_capacity(others.len());
    others.reverse();
    if let (Some(conversation), false) = (conversation, others.is_empty()) {
        walk(conversation, field, DEPTH_MAX, (&mut others, &mut found));
    }
    found
}

/// In the order of the document, which is that of the parts.
fn walk(value: &Value, at: &str, depth: usize, (left, found): (&mut Vec<&Value>, &mut Vec<String>)) {
    let Some(next) = left.last() else { return };
    if value == *next {
        left.pop();
        found.push(at.to_owned());
        return;
    }
    let Some(depth) = depth.checked_sub(1) else { return };
    match value {
        Value::Array(list) => {
            for (index, item) in list.iter().enumerate() {
                walk(item, &format!("{at}[{index}]"), depth, (left, found));
            }
        }
        Value::Object(fields) => {
            for name in ["content", "output", "tool_calls"] {
                if let Some(inner) = fields.get(name) {
                    walk(inner, &format!("{at}.{name}"), depth, (left, found));
                }
            }
        }
        _ => {}
    }
}

/// Refuses the first part that another dialect than the client's has no word for, if its place is known; `customs`: it
/// has calls of custom tools.
pub(crate) fn check(ask: &Ask, customs: bool) -> Result<(), Refusal> {
    let Input::Turns(turns) = &ask.input else { return Ok(()) };
    for ((kind, value), at) in others(turns).zip(&ask.places) {
        let custom = customs && (custom::read(kind, value).is_some() || custom::output(kind, value).is_some());
        if Image::of(kind, value).is_none() && !custom {
            let kind = shown(kind);
            let message =
                format!("{at} is of type '{kind}', which the provider of this model cannot take; leave it out");
            return Err(Refusal::new(at.as_str(), message));
        }
    }
    Ok(())
}

fn others(turns: &[Turn]) -> impl Iterator<Item = (&str, &Value)> {
    turns.iter().flat_map(|turn| &turn.parts).filter_map(|part| match part {
        Part::Other { kind, value } => Some((kind.as_str(), value)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::dialect::Dialect;

    #[test]
    fn a_part_without_a_word_is_refused_at_its_place() {
        let text = json!({ "type": "text", "text": "a" });
        let image = json!({ "type": "image_url", "image_url": { "url": "https://example.org/a.png" } });
        let sound = json!({ "type": "input_audio", "input_audio": {} });
        let document = json!({ "type": "document", "source": { "type": "text", "data": "x" } });
        let result = json!({ "type": "tool_result", "tool_use_id": "a", "content": [text, document] });
        let user = |content| json!({ "role": "user", "content": content });
        for (from, to, conversation, at) in [
            (
                Dialect::Chat,
                Dialect::Messages,
                json!([{ "role": "system", "content": "s" }, user(json!("hi")), user(json!([image, text, sound]))]),
                "messages[2].content[2]",
            ),
            (
                Dialect::Messages,
                Dialect::Chat,
                json!([user(json!([text])), user(json!([text, document]))]),
                "messages[1].content[1]",
            ),
            (
                Dialect::Messages,
                Dialect::Responses,
                json!([user(json!([result]))]),
                "messages[0].content[0].content[1]",
            ),
            (
                Dialect::Responses,
                Dialect::Messages,
                json!([user(json!("hi")), { "type": "custom_tool_call", "call_id": "c", "name": "n", "input": "i" }]),
                "input[1]",
            ),
        ] {
            let field = if from == Dialect::Responses { "input" } else { "messages" };
            let body = json!({ "model": "m", "max_tokens": if from == Dialect::Messages { json!(9) } else { json!(null) }, field: conversation });
            let ask = from.parse(body.as_object().expect("object")).expect("parsed");
            let refused = to.write(&ask, "up", false).expect_err("refused");
            assert_eq!(refused.param, at, "{}", refused.message);
            assert!(refused.message.starts_with(at), "{}", refused.message);
        }
    }
}
