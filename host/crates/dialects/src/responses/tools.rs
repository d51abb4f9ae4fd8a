//! Tools and the choice among them, in both directions.
//! No type of tool is refused: agents send types that only their vendor's server has, and lose nothing but a choice when
//! the model is not told of them.

use serde_json::{Map, Value, json};

use crate::ask::{Ask, Refusal, Tool, ToolChoice};
use crate::custom;
use crate::fields::{flag, present, text};
use crate::items::{list, named, object, only, required};

const TOOLS_MAX: usize = 4096;
const TOOL_FIELDS: [&str; 9] = [
    "type",
    "name",
    "description",
    "parameters",
    "strict",
    "allowed_callers",
    "async",
    "defer_loading",
    "output_schema",
];

/// `tools` and `tool_choice`.
pub(super) fn parse(body: &Map<String, Value>) -> Result<(Vec<Tool>, ToolChoice), Refusal> {
    let sent: &[Value] = match present(body, "tools") {
        None => &[],
        Some(Value::Array(tools)) if tools.is_empty() => &[],
        Some(_) => list(body, "tools", TOOLS_MAX)?,
    };
    let tools = sent.iter().enumerate().map(|(index, value)| tool(value, &format!("tools[{index}]")));
    let mut tools = tools.collect::<Result<Vec<Tool>, _>>()?;
    let choice = choice(present(body, "tool_choice"), &mut tools)?;
    if tools.is_empty() && choice == ToolChoice::Required {
        let message = "tool_choice asks for a call, but there are no tools; send tools";
        return Err(Refusal::new("tool_choice", message));
    }
    Ok((tools, choice))
}

fn tool(value: &Value, at: &str) -> Result<Tool, Refusal> {
    let fields = object(value, at)?;
    let kind = text(fields, "type").map_err(|refusal| refusal.under(at))?.unwrap_or_else(|| "unknown".to_owned());
    if kind != "function" {
        let parameters = Value::Object(Map::new());
        return Ok(Tool { name: kind, description: None, parameters, strict: false, hosted: Some(value.clone()) });
    }
    only(fields, &TOOL_FIELDS, at)?;
    let parameters = match present(fields, "parameters") {
        None => json!({ "type": "object", "properties": {} }),
        Some(schema) if schema.is_object() => schema.clone(),
        Some(_) => {
            let path = format!("{at}.parameters");
            return Err(Refusal::new(path.as_str(), format!("{path} must be a JSON schema of an object")));
        }
    };
    Ok(Tool {
        name: named(fields, "name", at)?,
        description: text(fields, "description").map_err(|refusal| refusal.under(at))?,
        parameters,
        strict: flag(fields, "strict").map_err(|refusal| refusal.under(at))?.unwrap_or(false),
        hosted: None,
    })
}

/// `allowed_tools` leaves only those in `tools`: what the model is not told of, it cannot call.
fn choice(value: Option<&Value>, tools: &mut Vec<Tool>) -> Result<ToolChoice, Refusal> {
    let at = "tool_choice";
    let fields = match value {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => return word_choice(word, at),
        Some(value) => object(value, at)?,
    };
    let kind = required(fields, "type", at)?;
    if kind == "allowed_tools" {
        let allowed = list(fields, "tools", TOOLS_MAX).map_err(|refusal| refusal.under(at))?;
        let allowed = allowed.iter().enumerate().map(|(index, tool)| {
            let at = format!("{at}.tools[{index}]");
            name_of(object(tool, &at)?, &at)
        });
        let allowed = allowed.collect::<Result<Vec<String>, _>>()?;
        tools.retain(|tool| allowed.iter().any(|name| tool.is(name)));
        return word_choice(&required(fields, "mode", at)?, "tool_choice.mode");
    }
    let name = name_of(fields, at)?;
    if tools.iter().any(|tool| tool.is(&name)) {
        return Ok(ToolChoice::Named(name));
    }
    Err(Refusal::new(at, "tool_choice must name one of the tools"))
}

fn word_choice(word: &str, at: &str) -> Result<ToolChoice, Refusal> {
    match word {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        _ => Err(Refusal::new(at, format!("{at} must be auto, none, required or an object that names a tool"))),
    }
}

/// The name of a function or of a custom tool; else the type.
fn name_of(fields: &Map<String, Value>, at: &str) -> Result<String, Refusal> {
    match required(fields, "type", at)?.as_str() {
        "function" | "custom" => named(fields, "name", at),
        kind => Ok(kind.to_owned()),
    }
}

/// `tools` of a body; those that are no functions only for the dialect they came in.
pub(super) fn write_tools(ask: &Ask, same_dialect: bool) -> Vec<Value> {
    let tools = ask.tools.iter().filter_map(|tool| match &tool.hosted {
        Some(sent) if same_dialect => Some(sent.clone()),
        Some(_) => custom::tool_to_responses(tool),
        None => {
            let mut written = json!({
                "type": "function",
                "name": tool.name,
                "parameters": tool.parameters,
                "strict": tool.strict,
            });
            if let Some(description) = &tool.description {
                written["description"] = json!(description);
            }
            Some(written)
        }
    });
    tools.collect()
}

/// `tool_choice`, of this or of an answer; `None` where there is none to name.
pub(super) fn write_choice(ask: &Ask, same_dialect: bool) -> Option<Value> {
    match &ask.tool_choice {
        ToolChoice::Auto => Some(json!("auto")),
        ToolChoice::None => Some(json!("none")),
        ToolChoice::Required => Some(json!("required")),
        ToolChoice::Named(name) => {
            let chosen = ask.tools.iter().find(|tool| tool.is(name))?;
            match &chosen.hosted {
                None => Some(json!({ "type": "function", "name": name })),
                Some(sent) if same_dialect => {
                    let kept = ["type", "name", "server_label"];
                    let kept = kept.iter().filter_map(|field| Some(((*field).to_owned(), sent.get(field)?.clone())));
                    Some(Value::Object(kept.collect()))
                }
                Some(_) => None,
            }
        }
    }
}
