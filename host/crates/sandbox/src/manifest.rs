//! What a recipe says of itself, checked once when it is loaded.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::bindings::reef::recipe::types as wit;
use crate::text::clean;
use crate::{Capability, SandboxError};

/// Bytes of a recipe name, a version and a key.
const NAME_BYTES_MAX: usize = 64;
/// Report fields and configuration keys of one recipe.
const FIELDS_MAX: usize = 64;
/// Characters of a field's documentation.
const DOC_CHARS_MAX: usize = 1_000;
/// Alternatives per token that a sampler can record.
const TOP_K_MAX: u32 = 64;

/// What a recipe evolves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Surface {
    /// The model's weights.
    Weights,
    /// The agent's harness.
    Harness,
    /// The router's policy.
    Router,
}

/// The type of a report field or a configuration key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueKind {
    /// A finite number.
    Number,
    /// A string.
    Text,
    /// `true` or `false`.
    Boolean,
}

impl ValueKind {
    /// Is the value of this kind?
    pub fn accepts(self, value: &Value) -> bool {
        match self {
            Self::Number => value.is_number(),
            Self::Text => value.is_string(),
            Self::Boolean => value.is_boolean(),
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Text => "a text",
            Self::Boolean => "true or false",
        }
    }
}

/// A field of the `metadata` of a report that the recipe reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReportField {
    /// Key in `metadata`.
    pub name: String,
    /// Its type.
    pub kind: ValueKind,
    /// Must every report carry it?
    pub required: bool,
    /// For people.
    pub doc: String,
}

/// A configuration key of the recipe.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigKey {
    /// The key.
    pub name: String,
    /// Its type.
    pub kind: ValueKind,
    /// Used when the operator sets nothing.
    pub default: Value,
    /// For people.
    pub doc: String,
}

/// What a recipe says of itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Manifest {
    /// Lower-case letters, digits and `-`.
    pub name: String,
    /// Semantic version.
    pub version: String,
    /// What it evolves.
    pub surface: Surface,
    /// Is a report without a score useless to it?
    pub needs_score: bool,
    /// Fields it reads.
    pub report_fields: Vec<ReportField>,
    /// Keys it understands.
    pub config: Vec<ConfigKey>,
    /// Interfaces it asks for.
    pub capabilities: BTreeSet<Capability>,
    /// Alternatives per token that the sampler must record; 0 = none.
    pub top_k: u32,
}

impl Manifest {
    /// Checks an operator's configuration: known keys, right types. The message names the key.
    pub fn check_config(&self, config: &Map<String, Value>) -> Result<(), String> {
        for (name, value) in config {
            let Some(key) = self.config.iter().find(|key| key.name == *name) else {
                let known: Vec<&str> = self.config.iter().map(|key| key.name.as_str()).collect();
                return Err(format!(
                    "recipe {} has no configuration key '{}'; it knows: {}",
                    self.name,
                    clean(name, 64),
                    known.join(", ")
                ));
            };
            if !key.kind.accepts(value) {
                return Err(format!("configuration key '{name}' of recipe {} must be {}", self.name, key.kind.noun()));
            }
        }
        Ok(())
    }

    /// Checks the `metadata` of a report: required fields present, fields that are read of the right type.
    pub fn check_metadata(&self, metadata: &Map<String, Value>) -> Result<(), String> {
        for field in &self.report_fields {
            match metadata.get(&field.name).filter(|value| !value.is_null()) {
                None if field.required => {
                    return Err(format!("metadata field '{}' is required by recipe {}", field.name, self.name));
                }
                Some(value) if !field.kind.accepts(value) => {
                    return Err(format!("metadata field '{}' must be {}", field.name, field.kind.noun()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn from_guest(raw: wit::Manifest) -> Result<Self, SandboxError> {
        check(is_recipe_name(&raw.name), "name", "must be 1 to 64 of a-z, 0-9 and '-', starting with a letter")?;
        check(is_version(&raw.version), "version", "must be a semantic version such as 1.2.3")?;
        check(
            raw.surface == wit::Surface::Weights,
            "surface",
            "must be weights: the world weight-recipe evolves nothing else",
        )?;
        check(raw.report_fields.len() <= FIELDS_MAX, "report-fields", "has more than 64 entries")?;
        check(raw.config.len() <= FIELDS_MAX, "config", "has more than 64 entries")?;
        check(raw.top_k <= TOP_K_MAX, "top-k", "must be at most 64")?;
        Ok(Self {
            name: raw.name,
            version: raw.version,
            surface: Surface::Weights,
            needs_score: raw.needs_score,
            report_fields: report_fields(raw.report_fields)?,
            config: config_keys(raw.config)?,
            capabilities: capabilities(raw.capabilities)?,
            top_k: raw.top_k,
        })
    }
}

fn check(holds: bool, field: &str, problem: &str) -> Result<(), SandboxError> {
    if holds { Ok(()) } else { Err(problem_of(field, problem)) }
}

fn problem_of(field: &str, problem: &str) -> SandboxError {
    SandboxError::Manifest { field: clean(field, NAME_BYTES_MAX), problem: problem.to_owned() }
}

fn report_fields(raw: Vec<wit::ReportField>) -> Result<Vec<ReportField>, SandboxError> {
    let mut seen = BTreeSet::new();
    raw.into_iter()
        .map(|field| {
            check(
                is_key(&field.name),
                &format!("report-fields '{}'", field.name),
                "must be 1 to 64 of a-z, A-Z, 0-9, '_', '-' and '.'",
            )?;
            check(seen.insert(field.name.clone()), &format!("report-fields '{}'", field.name), "is declared twice")?;
            Ok(ReportField {
                name: field.name,
                kind: kind(field.kind),
                required: field.required,
                doc: clean(&field.doc, DOC_CHARS_MAX),
            })
        })
        .collect()
}

fn config_keys(raw: Vec<wit::ConfigKey>) -> Result<Vec<ConfigKey>, SandboxError> {
    let mut seen = BTreeSet::new();
    raw.into_iter()
        .map(|key| {
            let named = format!("config '{}'", key.name);
            check(is_key(&key.name), &named, "must be 1 to 64 of a-z, A-Z, 0-9, '_', '-' and '.'")?;
            check(seen.insert(key.name.clone()), &named, "is declared twice")?;
            let kind = kind(key.kind);
            let default: Value = serde_json::from_str(&key.default_value)
                .map_err(|_| problem_of(&named, "has a default that is not JSON"))?;
            check(kind.accepts(&default), &named, &format!("has a default that is not {}", kind.noun()))?;
            Ok(ConfigKey { name: key.name, kind, default, doc: clean(&key.doc, DOC_CHARS_MAX) })
        })
        .collect()
}

fn capabilities(raw: Vec<String>) -> Result<BTreeSet<Capability>, SandboxError> {
    raw.iter()
        .map(|name| {
            let known = Capability::ALL.map(Capability::as_str).join(", ");
            Capability::parse(name).ok_or_else(|| {
                problem_of(
                    "capabilities",
                    &format!("names '{}', which is none of {known}", clean(name, NAME_BYTES_MAX)),
                )
            })
        })
        .collect()
}

fn kind(raw: wit::ValueKind) -> ValueKind {
    match raw {
        wit::ValueKind::Number => ValueKind::Number,
        wit::ValueKind::Text => ValueKind::Text,
        wit::ValueKind::Boolean => ValueKind::Boolean,
    }
}

fn is_recipe_name(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

fn is_key(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

fn is_version(text: &str) -> bool {
    let core = text.split(['-', '+']).next().unwrap_or_default();
    let parts: Vec<&str> = core.split('.').collect();
    text.len() <= NAME_BYTES_MAX
        && parts.len() == 3
        && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b".-+".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn raw() -> wit::Manifest {
        wit::Manifest {
            name: "sao".into(),
            version: "0.1.0".into(),
            surface: wit::Surface::Weights,
            needs_score: true,
            report_fields: vec![wit::ReportField {
                name: "task".into(),
                kind: wit::ValueKind::Text,
                required: true,
                doc: "a\nb".into(),
            }],
            config: vec![wit::ConfigKey {
                name: "batch".into(),
                kind: wit::ValueKind::Number,
                default_value: "32".into(),
                doc: String::new(),
            }],
            capabilities: vec!["experience".into(), "log".into()],
            top_k: 0,
        }
    }

    fn refusal(raw: wit::Manifest) -> String {
        Manifest::from_guest(raw).expect_err("refused").to_string()
    }

    #[test]
    fn a_good_manifest_is_taken() {
        let manifest = Manifest::from_guest(raw()).expect("valid");
        assert_eq!(manifest.config[0].default, json!(32));
        assert_eq!(manifest.report_fields[0].doc, "a\\nb");
    }

    #[test]
    fn every_broken_rule_is_named() {
        assert!(refusal(wit::Manifest { name: "../x".into(), ..raw() }).contains("name must be"));
        assert!(refusal(wit::Manifest { version: "1.2".into(), ..raw() }).contains("version must be"));
        assert!(
            refusal(wit::Manifest { capabilities: vec!["net\u{1b}".into()], ..raw() }).contains("names 'net\\u{1b}'")
        );
        let mut twice = raw();
        twice.config.push(twice.config[0].clone());
        assert!(refusal(twice).contains("'batch' is declared twice"));
        let mut wrong = raw();
        wrong.config[0].default_value = "\"x\"".into();
        assert!(refusal(wrong).contains("not a number"));
    }

    #[test]
    fn configuration_and_metadata_are_checked_by_key() {
        let manifest = Manifest::from_guest(raw()).expect("valid");
        let object = |value: Value| value.as_object().expect("object").clone();
        assert_eq!(manifest.check_config(&object(json!({"batch": 8}))), Ok(()));
        assert!(manifest.check_config(&object(json!({"batch": "8"}))).expect_err("kind").contains("must be a number"));
        assert!(manifest.check_config(&object(json!({"bach": 8}))).expect_err("name").contains("it knows: batch"));
        assert!(manifest.check_metadata(&object(json!({}))).expect_err("missing").contains("'task' is required"));
        assert_eq!(manifest.check_metadata(&object(json!({"task": "t", "other": 1}))), Ok(()));
    }
}
