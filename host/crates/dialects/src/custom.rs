//! Calls of custom tools, whose input is any text, which chat completions and responses can say, each in its own words.
//! Between the two they are an `Other` part in the words of responses; what no dialect of the two wrote is none.

use serde_json::{Map, Value, json};

use crate::ask::{Part, Tool};

/// What responses call a call, and its result.
pub(crate) const CALL: &str = "custom_tool_call";
pub(crate) const OUTPUT: &str = "custom_tool_call_output";
/// What chat completions call the call, and both dialects the tool.
pub(crate) const CUSTOM: &str = "custom";

/// A call.
pub(crate) fn call(id: &str, name: &str, input: &str) -> Part {
    let value = json!({ "type": CALL, "call_id": id, "name": name, "input": input });
    Part::Other { kind: CALL.to_owned(), value }
}

/// The input of a call that `call` made.
pub(crate) fn input(value: &mut Value) -> Option<&mut String> {
    match value.get_mut("input") {
        Some(Value::String(input)) => Some(input),
        _ => None,
    }
}

/// Id, tool and input of a call in either dialect.
pub(crate) fn read<'a>(kind: &str, value: &'a Value) -> Option<(&'a str, &'a str, &'a str)> {
    let text = |path: &str| value.pointer(path).and_then(Value::as_str);
    match kind {
        CALL => Some((text("/call_id")?, text("/name")?, text("/input")?)),
        CUSTOM => Some((text("/id")?, text("/custom/name")?, text("/custom/input")?)),
        _ => None,
    }
}

/// Id and text of a call's result in the words of responses.
pub(crate) fn output(kind: &str, value: &Value) -> Option<(String, String)> {
    let id = value.get("call_id").and_then(Value::as_str).filter(|_| kind == OUTPUT)?;
    let text = match value.get("output")? {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| part.get("text").and_then(Value::as_str));
            texts.collect::<Option<String>>()?
        }
        _ => return None,
    };
    Some((id.to_owned(), text))
}

/// The call as an entry of chat's `tool_calls`.
pub(crate) fn to_chat((id, name, input): (&str, &str, &str)) -> Value {
    json!({ "id": id, "type": CUSTOM, "custom": { "name": name, "input": input } })
}

/// The call as an item of responses.
pub(crate) fn to_responses((id, name, input): (&str, &str, &str)) -> Value {
    json!({ "type": CALL, "call_id": id, "name": name, "input": input })
}

/// The name of a custom tool.
pub(crate) fn tool_name(tool: &Tool) -> Option<&str> {
    let sent = tool.hosted.as_ref().filter(|sent| sent["type"] == CUSTOM)?;
    sent.get("name").or_else(|| sent.pointer("/custom/name"))?.as_str()
}

/// A custom tool in chat's words, whichever of the two dialects it came in.
pub(crate) fn tool_to_chat(tool: &Tool) -> Option<Value> {
    let mut fields = tool_fields(tool)?;
    if let Some(Value::Object(format)) = fields.get_mut("format")
        && format.get("type").is_some_and(|kind| kind == "grammar")
        && !format.contains_key("grammar")
    {
        let grammar: Map<String, Value> = format.clone().into_iter().filter(|(name, _)| name != "type").collect();
        *format = [("type".to_owned(), json!("grammar")), ("grammar".to_owned(), Value::Object(grammar))]
            .into_iter()
            .collect();
    }
    Some(json!({ "type": CUSTOM, "custom": fields }))
}

/// A custom tool in the words of responses, whichever of the two dialects it came in.
pub(crate) fn tool_to_responses(tool: &Tool) -> Option<Value> {
    let mut fields = tool_fields(tool)?;
    if let Some(Value::Object(format)) = fields.get_mut("format")
        && let Some(Value::Object(grammar)) = format.remove("grammar")
    {
        format.extend(grammar);
    }
    fields.insert("type".to_owned(), json!(CUSTOM));
    Some(Value::Object(fields))
}

/// Name, description and format.
fn tool_fields(tool: &Tool) -> Option<Map<String, Value>> {
    tool_name(tool)?;
    let sent = tool.hosted.as_ref()?;
    let fields = sent.get(CUSTOM).unwrap_or(sent).as_object()?;
    let kept = ["name", "description", "format"].iter();
    Some(kept.filter_map(|field| Some(((*field).to_owned(), fields.get(*field)?.clone()))).collect())
}
