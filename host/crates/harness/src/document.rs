//! Settings in the languages of agent programs: JSON, TOML and YAML, read into one form and written from it with keys
//! in alphabetical order, so that equal settings are equal bytes. The writers quote; nobody pastes text into a document.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Language of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// JSON, two spaces deep.
    Json,
    /// TOML.
    Toml,
    /// YAML.
    Yaml,
}

impl Format {
    /// Reads a document; the error says where it is wrong.
    pub fn read(self, text: &str) -> Result<Value, String> {
        match self {
            Self::Json => serde_json::from_str(text).map_err(|error| error.to_string()),
            Self::Toml => toml::from_str(text).map_err(|error| error.to_string()),
            Self::Yaml => serde_yaml_ng::from_str(text).map_err(|error| error.to_string()),
        }
    }

    /// Writes a document that ends with a line end; the error says what the language cannot express.
    pub fn write(self, value: &Value) -> Result<String, String> {
        match self {
            Self::Json => Ok(json(value)),
            Self::Toml => toml::to_string_pretty(&sorted(value)).map_err(|error| error.to_string()),
            Self::Yaml => serde_yaml_ng::to_string(&sorted(value)).map_err(|error| error.to_string()),
        }
    }
}

/// JSON, two spaces deep, keys in alphabetical order.
pub(crate) fn json(value: &Value) -> String {
    format!("{:#}\n", sorted(value))
}

/// Keys in alphabetical order, at every depth.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            Value::Object(entries.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

/// Puts `from` over `into`: objects are merged, everything else is replaced.
pub(crate) fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            (_, value) => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

/// The place at a path of keys, made when it is not there; none when something else than an object is on the way.
pub(crate) fn place<'a>(root: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    let mut here = root;
    for key in path {
        if here.is_null() {
            *here = Value::Object(Map::new());
        }
        here = here.as_object_mut()?.entry(key.clone()).or_insert(Value::Null);
    }
    Some(here)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Any text, hostile ones first: what the three languages treat in a special way.
    fn hostile() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("\"'`$\\\n\t{{url}} !!js x: # - @ % & *a | > [] {}".to_owned()),
            Just("null".to_owned()),
            Just("1e3".to_owned()),
            Just("'''".to_owned()),
            Just("\"\"\"".to_owned()),
            Just("\u{2028}\u{85}\u{7f}".to_owned()),
            ".*",
            any::<String>(),
        ]
    }

    proptest! {
        #[test]
        fn any_text_survives_every_language(key in hostile(), text in hostile(), number in any::<i64>(), flag in any::<bool>()) {
            let value = json!({ "outer": { key: text.clone() }, "list": [text, "x"], "number": number, "flag": flag });
            for format in [Format::Json, Format::Toml, Format::Yaml] {
                let written = format.write(&value).expect("written");
                prop_assert_eq!(format.read(&written).expect("read"), value.clone(), "{:?}: {}", format, written);
                prop_assert!(written.ends_with('\n'));
            }
        }
    }

    #[test]
    fn keys_are_in_alphabetical_order_whatever_came_in() {
        let one = r#"{"b":{"d":1,"c":2},"a":[{"f":1,"e":2}]}"#;
        let two = r#"{"a":[{"e":2,"f":1}],"b":{"c":2,"d":1}}"#;
        for format in [Format::Json, Format::Toml, Format::Yaml] {
            let written = |text| format.write(&Format::Json.read(text).expect("JSON")).expect("written");
            assert_eq!(written(one), written(two));
        }
    }

    #[test]
    fn hostile_documents_are_answered() {
        for format in [Format::Json, Format::Toml, Format::Yaml] {
            assert!(format.read(&"{".repeat(1000)).is_err());
            assert!(format.read(&"[".repeat(100_000)).is_err());
        }
    }
}
