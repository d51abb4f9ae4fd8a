//! Reading of the objects inside a body: messages, items, content parts, tools.
//! Every refusal carries the path of what is wrong, `messages[2].content[0].text`, so that a client finds it.

use serde_json::{Map, Value};

use crate::ask::Refusal;
use crate::fields::{present, shown, text};

/// The list `field` of the body, which must have from 1 to `items_max` entries.
pub(crate) fn list<'a>(body: &'a Map<String, Value>, field: &str, items_max: usize) -> Result<&'a [Value], Refusal> {
    match present(body, field) {
        Some(Value::Array(items)) if items.len() > items_max => {
            Err(Refusal::new(field, format!("{field} holds more than {items_max} entries; send fewer")))
        }
        Some(Value::Array(items)) if !items.is_empty() => Ok(items),
        _ => Err(Refusal::new(field, format!("{field} must be a list with at least one entry"))),
    }
}

/// An object.
pub(crate) fn object<'a>(value: &'a Value, at: &str) -> Result<&'a Map<String, Value>, Refusal> {
    value.as_object().ok_or_else(|| Refusal::new(at, format!("{at} must be an object")))
}

/// The text `field` of the object at `at`; it must be there.
pub(crate) fn required(map: &Map<String, Value>, field: &str, at: &str) -> Result<String, Refusal> {
    let path = format!("{at}.{field}");
    text(map, field)
        .map_err(|refusal| refusal.under(at))?
        .ok_or_else(|| Refusal::new(path.as_str(), format!("{path} is missing; it must be a text")))
}

/// As `required`, and not empty.
pub(crate) fn named(map: &Map<String, Value>, field: &str, at: &str) -> Result<String, Refusal> {
    let name = required(map, field, at)?;
    if name.is_empty() {
        return Err(Refusal::new(format!("{at}.{field}"), format!("{at}.{field} must not be empty")));
    }
    Ok(name)
}

/// Refuses a field that is neither null nor in `allowed`.
pub(crate) fn only(map: &Map<String, Value>, allowed: &[&str], at: &str) -> Result<(), Refusal> {
    match map.iter().find(|(name, value)| !value.is_null() && !allowed.contains(&name.as_str())) {
        None => Ok(()),
        Some((name, _)) => {
            let name = shown(name);
            Err(Refusal::new(
                format!("{at}.{name}"),
                format!("'{name}' of {at} is not known to this server; leave it out"),
            ))
        }
    }
}

/// What an object holds beside the fields that are read, for `Ask::unknown`.
pub(crate) fn rest(map: &Map<String, Value>, read: &[&str]) -> Option<Value> {
    let rest: Map<String, Value> = map
        .iter()
        .filter(|(name, value)| !value.is_null() && !read.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    (!rest.is_empty()).then_some(Value::Object(rest))
}

/// Inserts `fields` into `body`; objects of the same name are joined, since `rest` keeps a part of one.
pub(crate) fn join(body: &mut Map<String, Value>, fields: &Map<String, Value>) {
    for (name, value) in fields {
        match (body.get_mut(name), value) {
            (Some(Value::Object(there)), Value::Object(more)) => there.extend(more.clone()),
            (Some(_), _) => {}
            (None, _) => {
                body.insert(name.clone(), value.clone());
            }
        }
    }
}
