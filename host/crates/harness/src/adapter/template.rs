//! Templates: text with `{{name}}` in it, filled in one pass, so that a value is never read as a template. In a document
//! (settings, records) a string that is nothing but one name takes the value with its type, and is dropped where there
//! is none.

use serde::Deserialize;
use serde_json::{Map, Value};

/// A piece of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Taken as it is.
    Literal(String),
    /// A value by name.
    Name(String),
}

/// Text with names in it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Template {
    pieces: Vec<Piece>,
}

impl TryFrom<String> for Template {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl Template {
    /// Reads a template; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let (name, end) = after.split_once("}}").ok_or_else(|| format!("'{text}' has '{{{{' without '}}}}'"))?;
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
                return Err(format!("'{text}' names '{name}', and a name has a-z and '_' only"));
            }
            if !before.is_empty() {
                pieces.push(Piece::Literal(before.to_owned()));
            }
            pieces.push(Piece::Name(name.to_owned()));
            rest = end;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Literal(rest.to_owned()));
        }
        Ok(Self { pieces })
    }

    /// Its pieces, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Names in it.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Name(name) => Some(name.as_str()),
            Piece::Literal(_) => None,
        })
    }

    /// Its text, with the values in their places.
    pub fn fill(&self, values: &Map<String, Value>) -> String {
        let text = |piece: &Piece| match piece {
            Piece::Literal(text) => text.clone(),
            Piece::Name(name) => match values.get(name) {
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
                None => String::new(),
            },
        };
        self.pieces.iter().map(text).collect()
    }
}

/// Names in a document, and what is wrong with its templates.
pub fn names_in(value: &Value) -> Result<Vec<String>, String> {
    Ok(match value {
        Value::String(text) => Template::parse(text)?.names().map(str::to_owned).collect(),
        Value::Array(items) => items.iter().map(names_in).collect::<Result<Vec<_>, _>>()?.concat(),
        Value::Object(map) => {
            let inner = map.iter().map(|(key, value)| {
                let mut names: Vec<String> = Template::parse(key)?.names().map(str::to_owned).collect();
                names.extend(names_in(value)?);
                Ok(names)
            });
            inner.collect::<Result<Vec<_>, String>>()?.concat()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    })
}

/// Fills a document; none where it is nothing but a name without a value.
pub fn fill_document(value: &Value, values: &Map<String, Value>) -> Result<Option<Value>, String> {
    Ok(Some(match value {
        Value::String(text) => {
            let template = Template::parse(text)?;
            match template.pieces() {
                [Piece::Name(name)] => return Ok(values.get(name).cloned()),
                _ => Value::String(template.fill(values)),
            }
        }
        Value::Array(items) => {
            let filled = items.iter().map(|item| fill_document(item, values)).collect::<Result<Vec<_>, _>>()?;
            Value::Array(filled.into_iter().flatten().collect())
        }
        Value::Object(map) => {
            let mut filled = Map::new();
            for (key, value) in map {
                if let Some(value) = fill_document(value, values)? {
                    filled.insert(Template::parse(key)?.fill(values), value);
                }
            }
            Value::Object(filled)
        }
        other => other.clone(),
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn wrong_templates_are_refused() {
        for bad in ["{{", "a {{b", "{{}}", "{{A}}", "{{a b}}", "{{{a}}"] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
        assert!(Template::parse("{env:X} ${Y} }} {").is_ok());
    }

    #[test]
    fn a_lone_name_keeps_its_type_and_nothing_leaves_a_gap() {
        let template = json!({ "{{id}}": { "n": "{{number}}", "gone": "{{absent}}", "list": ["{{absent}}", "{{list}}"], "t": "at {{number}}" } });
        let values = map(json!({ "id": "k", "number": 3, "list": [1] }));
        let filled = fill_document(&template, &values).expect("filled");
        assert_eq!(filled, Some(json!({ "k": { "n": 3, "list": [[1]], "t": "at 3" } })));
        assert_eq!(names_in(&template).expect("names").len(), 6);
    }

    proptest! {
        #[test]
        fn a_value_is_never_read_as_a_template(value in prop_oneof![Just("{{url}}{{".to_owned()), any::<String>()]) {
            let values = map(json!({ "model": value.clone(), "url": "U" }));
            let text = Template::parse("<{{model}}|{{url}}>").expect("a template").fill(&values);
            prop_assert_eq!(text, format!("<{value}|U>"));
        }
    }
}
