//! What an edit needs that no edit can give: a permission, a variable of the environment, a service. The model names
//! it, a person grants it; nothing here grants anything. Pure.

use reef_evolution::edits::line;
use reef_evolution::json::{Map, Value};
use reef_recipe::prelude::*;

/// Needs of one edit.
const REQUIRES_MAX: usize = 8;
/// What a need may be.
const KINDS: [&str; 3] = ["permission", "env", "service"];

/// The needs that an answer names, one line each.
///
/// # Errors
/// One sentence: what is wrong with the list.
pub fn requires(answer: &Map<String, Value>) -> Result<Vec<String>, String> {
    let items = match answer.get("requires") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(_) => return Err("'requires' is not a list".to_owned()),
    };
    if items.len() > REQUIRES_MAX {
        return Err(format!("the answer requires {} things, at most {REQUIRES_MAX}", items.len()));
    }
    items.iter().map(|item| item.as_object().and_then(need).ok_or_else(wrong)).collect()
}

fn wrong() -> String {
    format!("an item of 'requires' needs a kind ({}) and a name", KINDS.join(", "))
}

fn need(item: &Map<String, Value>) -> Option<String> {
    let (kind, name, why) = (line(item, "kind"), line(item, "name"), line(item, "why"));
    let known = KINDS.contains(&kind.as_str()) && !name.is_empty();
    // The name of a variable is shown to people as something to set: it must be one.
    let variable = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let sound = kind != "env" || (name.chars().all(variable) && !name.starts_with(|c: char| c.is_ascii_digit()));
    (known && sound).then(|| if why.is_empty() { format!("{kind} {name}") } else { format!("{kind} {name} ({why})") })
}
