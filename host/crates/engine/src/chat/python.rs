//! What templates expect of Python: methods of strings and mappings, and JSON as `json.dumps` writes it.
//! The template's environment is given them; they are the same in every template.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Value as Json;

/// Nesting of a value that is written as JSON.
const DEPTH_MAX: usize = 128;

/// Adds the filter `tojson`, the test `iterable`, the function `raise_exception` and Python's methods.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_function("raise_exception", |message: String| {
        Err::<Value, _>(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_filter("tojson", to_json);
    // Templates ask it before they take the length of what may be none.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.set_unknown_method_callback(|_, value, method, arguments| match value.kind() {
        ValueKind::String => string_method(value, method, arguments),
        ValueKind::Map => map_method(value, method, arguments),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    });
}

/// JSON as Python writes it by default, characters outside of ASCII as they are.
pub(super) fn dumps(value: &Json) -> String {
    let mut text = String::new();
    // It cannot fail: parsed JSON is nested 127 deep at most.
    let _ = write(&mut text, &value_of(value, &|text, _| text.to_owned()), (None, 0));
    text
}

/// JSON as a template's value; `text` makes each string of it, keys (`true`) too.
pub(super) fn value_of(json: &Json, text: &dyn Fn(&str, bool) -> String) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => (*value).into(),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => value.into(),
            (None, Some(value)) => value.into(),
            (None, None) => number.as_f64().unwrap_or_default().into(),
        },
        Json::String(value) => text(value, false).into(),
        Json::Array(list) => list.iter().map(|value| value_of(value, text)).collect(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(key, value)| (text(key, true), value_of(value, text)))),
    }
}

/// Templates' `tojson`; `ensure_ascii` is off as with Hugging Face, and other options of Python's are ignored.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let mut text = String::new();
    write(&mut text, value, (indent.map(|indent| indent.min(16)), 0))?;
    for ignored in ["ensure_ascii", "separators", "sort_keys"] {
        let _: Option<Value> = options.get(ignored)?;
    }
    options.assert_all_used()?;
    Ok(text)
}

fn write(out: &mut String, value: &Value, (indent, depth): (Option<usize>, usize)) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, "the value is nested too deep for JSON"));
    }
    let line = |out: &mut String, first: bool, depth: usize| {
        out.push_str(match (first, indent) {
            (true, _) => "",
            (false, None) => ", ",
            (false, Some(_)) => ",",
        });
        if let Some(indent) = indent {
            out.push('\n');
            out.push_str(&" ".repeat(indent * depth));
        }
    };
    let (open, close) = if value.kind() == ValueKind::Map { ('{', '}') } else { ('[', ']') };
    match value.kind() {
        ValueKind::Undefined => return Err(Error::new(ErrorKind::UndefinedError, "undefined is no JSON")),
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::Map | ValueKind::Seq | ValueKind::Iterable => {
            out.push(open);
            let mut first = true;
            for item in value.try_iter()?.checked() {
                let item = item?;
                line(out, first, depth + 1);
                first = false;
                if open == '{' {
                    quote(out, &item.to_string());
                    out.push_str(": ");
                    write(out, &value.get_item(&item)?, (indent, depth + 1))?;
                } else {
                    write(out, &item, (indent, depth + 1))?;
                }
            }
            if !first && indent.is_some() {
                line(out, true, depth);
            }
            out.push(close);
        }
        _ => quote(out, &value.to_string()),
    }
    Ok(())
}

fn quote(out: &mut String, text: &str) {
    // A string always has a JSON form.
    out.push_str(&serde_json::to_string(text).unwrap_or_default());
}

/// A float as Python's `repr` has it: the shortest digits, with an exponent from 1e16 and below 1e-4.
fn float(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "NaN"
        } else if value > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned();
    }
    if value == 0.0 || (1e-4..1e16).contains(&value.abs()) {
        return format!("{value:?}");
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

fn string_method(value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let unknown = || Error::from(ErrorKind::UnknownMethod);
    let text = value.as_str().ok_or_else(unknown)?;
    let argument = arguments.first().and_then(Value::as_str);
    Ok(match (method, argument) {
        ("strip", None) => text.trim().into(),
        ("lstrip", None) => text.trim_start().into(),
        ("rstrip", None) => text.trim_end().into(),
        ("strip", Some(set)) => text.trim_matches(|c| set.contains(c)).into(),
        ("lstrip", Some(set)) => text.trim_start_matches(|c| set.contains(c)).into(),
        ("rstrip", Some(set)) => text.trim_end_matches(|c| set.contains(c)).into(),
        ("startswith" | "endswith", None) => affixes(text, method, arguments.first().ok_or_else(unknown)?)?.into(),
        ("startswith", Some(part)) => text.starts_with(part).into(),
        ("endswith", Some(part)) => text.ends_with(part).into(),
        ("removeprefix", Some(part)) => text.strip_prefix(part).unwrap_or(text).into(),
        ("removesuffix", Some(part)) => text.strip_suffix(part).unwrap_or(text).into(),
        ("split", None) => text.split_whitespace().map(Value::from).collect(),
        ("split", Some(by)) if !by.is_empty() => match arguments.get(1).and_then(Value::as_usize) {
            Some(most) => text.splitn(most.saturating_add(1), by).map(Value::from).collect(),
            None => text.split(by).map(Value::from).collect(),
        },
        ("splitlines", None) => text.lines().map(Value::from).collect(),
        ("replace", Some(from)) => {
            let to = arguments.get(1).and_then(Value::as_str).ok_or_else(unknown)?;
            match arguments.get(2).and_then(Value::as_usize) {
                Some(most) => text.replacen(from, to, most).into(),
                None => text.replace(from, to).into(),
            }
        }
        ("find", Some(part)) => text.split_once(part).map_or(-1, |(before, _)| before.chars().count() as i64).into(),
        ("count", Some(part)) if !part.is_empty() => text.matches(part).count().into(),
        ("isdigit", None) => (!text.is_empty() && text.chars().all(|c| c.is_ascii_digit())).into(),
        ("upper", None) => text.to_uppercase().into(),
        ("lower", None) => text.to_lowercase().into(),
        ("title", None) => title(text).into(),
        ("capitalize", None) => capital(text).into(),
        _ => return Err(unknown()),
    })
}

/// `startswith` and `endswith` of several.
fn affixes(text: &str, method: &str, parts: &Value) -> Result<bool, Error> {
    for part in parts.try_iter()? {
        let part = part.as_str().unwrap_or("\u{0}");
        if if method == "startswith" { text.starts_with(part) } else { text.ends_with(part) } {
            return Ok(true);
        }
    }
    Ok(false)
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map(|first| first.to_uppercase().chain(chars.flat_map(char::to_lowercase)).collect())
        .unwrap_or_default()
}

fn title(text: &str) -> String {
    text.split_inclusive(|c: char| !c.is_alphabetic()).map(capital).collect()
}

fn map_method(value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let pairs = |of: &dyn Fn(Value, Value) -> Value| {
        value.try_iter()?.map(|key| Ok(of(key.clone(), value.get_item(&key)?))).collect::<Result<Vec<_>, Error>>()
    };
    Ok(match (method, arguments) {
        ("items", []) => pairs(&|key, value| Value::from(vec![key, value]))?.into(),
        ("keys", []) => pairs(&|key, _| key)?.into(),
        ("values", []) => pairs(&|_, value| value)?.into(),
        ("get", [key, rest @ ..]) => {
            let found = value.get_item(key)?;
            let other = rest.first().cloned().unwrap_or_else(|| Value::from(()));
            if found.is_undefined() { other } else { found }
        }
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}
