//! Tools and the choice of them, read and written.
//! A tool of another type than `function` is kept as sent: but for a custom tool, which responses have too, only an
//! upstream of the same dialect can use it.

use serde_json::{Map, Value, json};

use crate::ask::{Refusal, Tool, ToolChoice};
use crate::custom::{self, CUSTOM};
use crate::fields::{flag, present, text};
use crate::items::{list, named, object, only, required};

const TOOLS_MAX: usize = 4096;

/// Reads `tools`.
pub(super) fn tools(body: &Map<String, Value>) -> Result<Vec<Tool>, Refusal> {
    let list = match present(body, "tools") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= TOOLS_MAX => list,
        Some(_) => return Err(Refusal::new("tools", format!("tools must be a list of up to {TOOLS_MAX} tools"))),
    };
    list.iter()
        .enumerate()
        .map(|(index, item)| {
            let at = format!("tools[{index}]");
            tool(item, &at)
        })
        .collect()
}

fn tool(value: &Value, at: &str) -> Result<Tool, Refusal> {
    let fields = object(value, at)?;
    let kind = required(fields, "type", at)?;
    if kind != "function" {
        return Ok(Tool {
            name: kind,
            description: None,
            parameters: no_parameters(),
            strict: false,
            hosted: Some(value.clone()),
        });
    }
    only(fields, &["type", "function", "cache_control"], at)?;
    let at = format!("{at}.function");
    let fields = object(fields.get("function").unwrap_or(&Value::Null), &at)?;
    only(fields, &["name", "description", "parameters", "strict", "cache_control"], &at)?;
    let parameters = match present(fields, "parameters") {
        None => no_parameters(),
        Some(schema) => Value::Object(object(schema, &format!("{at}.parameters"))?.clone()),
    };
    Ok(Tool {
        name: named(fields, "name", &at)?,
        description: text(fields, "description").map_err(|refusal| refusal.under(&at))?,
        parameters,
        strict: flag(fields, "strict").map_err(|refusal| refusal.under(&at))?.unwrap_or(false),
        hosted: None,
    })
}

/// Is there a function of this name?
pub(super) fn has_function(tools: &[Tool], name: &str) -> bool {
    tools.iter().any(|tool| tool.hosted.is_none() && tool.name == name)
}

/// What leaving `parameters` out means.
fn no_parameters() -> Value {
    json!({ "type": "object", "properties": {} })
}

/// Reads `tool_choice`. `allowed_tools` leaves only those in `tools`: what the model is not told of, it cannot call.
pub(super) fn choice(body: &Map<String, Value>, tools: &mut Vec<Tool>) -> Result<ToolChoice, Refusal> {
    let value = match present(body, "tool_choice") {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => return word_choice(word, "tool_choice"),
        Some(value) => value,
    };
    match value.get("type").and_then(Value::as_str) {
        Some("function") => name_of(value, "tool_choice").map(ToolChoice::Named),
        Some("allowed_tools") => {
            let at = "tool_choice.allowed_tools";
            let fields = object(value.get("allowed_tools").unwrap_or(&Value::Null), at)?;
            let allowed = list(fields, "tools", TOOLS_MAX).map_err(|refusal| refusal.under(at))?;
            let name = |(index, tool)| name_of(tool, &format!("{at}.tools[{index}]"));
            let allowed = allowed.iter().enumerate().map(name).collect::<Result<Vec<String>, _>>()?;
            tools.retain(|tool| allowed.iter().any(|name| tool.is(name)));
            word_choice(&required(fields, "mode", at)?, "tool_choice.allowed_tools.mode")
        }
        _ => word_choice("", "tool_choice"),
    }
}

fn word_choice(word: &str, at: &str) -> Result<ToolChoice, Refusal> {
    match word {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        _ => Err(Refusal::new(
            at,
            format!("{at} must be auto, none, required or an object of type function or allowed_tools"),
        )),
    }
}

/// The name in `{"type":"function","function":{"name":…}}`; of a tool of another type, the type.
fn name_of(value: &Value, at: &str) -> Result<String, Refusal> {
    let fields = object(value, at)?;
    match required(fields, "type", at)?.as_str() {
        "function" => {
            let at = format!("{at}.function");
            named(object(fields.get("function").unwrap_or(&Value::Null), &at)?, "name", &at)
        }
        kind => Ok(kind.to_owned()),
    }
}

/// Writes the tools. Those that only another dialect's providers host are left out: the model never hears of them.
pub(super) fn write_tools(tools: &[Tool], same_dialect: bool) -> Vec<Value> {
    tools
        .iter()
        .filter_map(|tool| match &tool.hosted {
            Some(hosted) if same_dialect => Some(hosted.clone()),
            Some(_) => custom::tool_to_chat(tool),
            None => Some(write_function(tool)),
        })
        .collect()
}

fn write_function(tool: &Tool) -> Value {
    let mut function = json!({ "name": tool.name, "parameters": tool.parameters });
    if let Some(description) = &tool.description {
        function["description"] = json!(description);
    }
    if tool.strict {
        function["strict"] = json!(true);
    }
    json!({ "type": "function", "function": function })
}

/// Writes the choice; `auto` is what leaving it out means.
pub(super) fn write_choice(choice: &ToolChoice, tools: &[Tool]) -> Option<Value> {
    match choice {
        ToolChoice::Auto => None,
        ToolChoice::None => Some(json!("none")),
        ToolChoice::Required => Some(json!("required")),
        ToolChoice::Named(name) if !has_function(tools, name) => {
            Some(json!({ "type": CUSTOM, CUSTOM: { "name": name } }))
        }
        ToolChoice::Named(name) => Some(json!({ "type": "function", "function": { "name": name } })),
    }
}
