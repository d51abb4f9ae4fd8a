//! What a recipe says of itself, checked once when it is loaded.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::raw;
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
    /// Smallest number that makes sense.
    pub minimum: Option<f64>,
    /// Largest number that makes sense.
    pub maximum: Option<f64>,
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
    /// Releases after which an evaluation of the head is worth repeating; 0 = never.
    pub re_evaluate_every: u32,
}

impl ConfigKey {
    /// The kind and the range. The error completes "the value …".
    fn accepts(&self, value: &Value) -> Result<(), String> {
        if !self.kind.accepts(value) {
            return Err(format!("must be {}", self.kind.noun()));
        }
        let Some(number) = value.as_f64() else { return Ok(()) };
        match (self.minimum, self.maximum) {
            (Some(minimum), _) if number < minimum => Err(format!("is {number} and must be at least {minimum}")),
            (_, Some(maximum)) if number > maximum => Err(format!("is {number} and must be at most {maximum}")),
            _ => Ok(()),
        }
    }
}

impl Manifest {
    /// Checks an operator's configuration: known keys, right types, numbers in range. The message names the key.
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
            key.accepts(value).map_err(|told| format!("configuration key '{name}' of recipe {} {told}", self.name))?;
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

    pub(crate) fn from_guest(raw: raw::Manifest, known: &[Capability]) -> Result<Self, SandboxError> {
        check(is_recipe_name(&raw.name), "name", "must be 1 to 64 of a-z, 0-9 and '-', starting with a letter")?;
        check(is_version(&raw.version), "version", "must be a semantic version such as 1.2.3")?;
        check(raw.surface != Surface::Router, "surface", "must be weights or harness: this server evolves no router")?;
        check(raw.report_fields.len() <= FIELDS_MAX, "report-fields", "has more than 64 entries")?;
        check(raw.config.len() <= FIELDS_MAX, "config", "has more than 64 entries")?;
        check(raw.top_k <= TOP_K_MAX, "top-k", "must be at most 64")?;
        Ok(Self {
            name: raw.name,
            version: raw.version,
            surface: raw.surface,
            needs_score: raw.needs_score,
            report_fields: report_fields(raw.report_fields)?,
            config: config_keys(raw.config)?,
            capabilities: capabilities(&raw.capabilities, known)?,
            top_k: raw.top_k,
            re_evaluate_every: raw.re_evaluate_every,
        })
    }
}

fn check(holds: bool, field: &str, problem: &str) -> Result<(), SandboxError> {
    if holds { Ok(()) } else { Err(problem_of(field, problem)) }
}

fn problem_of(field: &str, problem: &str) -> SandboxError {
    SandboxError::Manifest { field: clean(field, NAME_BYTES_MAX), problem: problem.to_owned() }
}

fn report_fields(raw: Vec<ReportField>) -> Result<Vec<ReportField>, SandboxError> {
    let mut seen = BTreeSet::new();
    raw.into_iter()
        .map(|field| {
            check(
                is_key(&field.name),
                &format!("report-fields '{}'", field.name),
                "must be 1 to 64 of a-z, A-Z, 0-9, '_', '-' and '.'",
            )?;
            check(seen.insert(field.name.clone()), &format!("report-fields '{}'", field.name), "is declared twice")?;
            Ok(ReportField { doc: clean(&field.doc, DOC_CHARS_MAX), ..field })
        })
        .collect()
}

fn config_keys(raw: Vec<raw::ConfigKey>) -> Result<Vec<ConfigKey>, SandboxError> {
    let mut seen = BTreeSet::new();
    raw.into_iter()
        .map(|key| {
            let named = format!("config '{}'", key.name);
            check(is_key(&key.name), &named, "must be 1 to 64 of a-z, A-Z, 0-9, '_', '-' and '.'")?;
            check(seen.insert(key.name.clone()), &named, "is declared twice")?;
            check_range(&key, &named)?;
            let default: Value = serde_json::from_str(&key.default_json)
                .map_err(|_| problem_of(&named, "has a default that is not JSON"))?;
            check(key.kind.accepts(&default), &named, &format!("has a default that is not {}", key.kind.noun()))?;
            let doc = clean(&key.doc, DOC_CHARS_MAX);
            let (minimum, maximum) = (key.minimum, key.maximum);
            let key = ConfigKey { name: key.name, kind: key.kind, default, minimum, maximum, doc };
            key.accepts(&key.default).map_err(|told| problem_of(&named, &format!("has a default that {told}")))?;
            Ok(key)
        })
        .collect()
}

/// Numbers only, finite, and not crossed.
fn check_range(key: &raw::ConfigKey, named: &str) -> Result<(), SandboxError> {
    let given = [key.minimum, key.maximum];
    let numbers = given.iter().flatten();
    check(key.kind == ValueKind::Number || given == [None; 2], named, "has a range and is not a number")?;
    check(numbers.clone().all(|bound| bound.is_finite()), named, "has a range that is not finite")?;
    let crossed = key.minimum.zip(key.maximum).is_some_and(|(minimum, maximum)| minimum > maximum);
    check(!crossed, named, "has a minimum above its maximum")
}

fn capabilities(names: &[String], known: &[Capability]) -> Result<BTreeSet<Capability>, SandboxError> {
    names
        .iter()
        .map(|name| {
            let capability = Capability::parse(name).filter(|capability| known.contains(capability));
            capability.ok_or_else(|| {
                let known: Vec<&str> = known.iter().map(|capability| capability.as_str()).collect();
                let shown = clean(name, NAME_BYTES_MAX);
                problem_of("capabilities", &format!("names '{shown}', which is none of {}", known.join(", ")))
            })
        })
        .collect()
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

    fn raw() -> raw::Manifest {
        raw::Manifest {
            name: "sao".into(),
            version: "0.1.0".into(),
            surface: Surface::Weights,
            needs_score: true,
            report_fields: vec![ReportField {
                name: "task".into(),
                kind: ValueKind::Text,
                required: true,
                doc: "a\nb".into(),
            }],
            config: vec![raw::ConfigKey {
                name: "batch".into(),
                kind: ValueKind::Number,
                default_json: "32".into(),
                minimum: Some(1.0),
                maximum: Some(64.0),
                doc: String::new(),
            }],
            capabilities: vec!["experience".into(), "log".into()],
            top_k: 0,
            re_evaluate_every: 3,
        }
    }

    fn refusal(raw: raw::Manifest) -> String {
        Manifest::from_guest(raw, &Capability::ALL).expect_err("refused").to_string()
    }

    #[test]
    fn a_good_manifest_is_taken() {
        let manifest = Manifest::from_guest(raw(), &Capability::ALL).expect("valid");
        assert_eq!(manifest.config[0].default, json!(32));
        assert_eq!(manifest.report_fields[0].doc, "a\\nb");
    }

    #[test]
    fn every_broken_rule_is_named() {
        assert!(refusal(raw::Manifest { name: "../x".into(), ..raw() }).contains("name must be"));
        assert!(refusal(raw::Manifest { version: "1.2".into(), ..raw() }).contains("version must be"));
        assert!(
            refusal(raw::Manifest { capabilities: vec!["net\u{1b}".into()], ..raw() }).contains("names 'net\\u{1b}'")
        );
        let mut twice = raw();
        twice.config.extend(raw().config);
        assert!(refusal(twice).contains("'batch' is declared twice"));
        let mut wrong = raw();
        wrong.config[0].default_json = "\"x\"".into();
        assert!(refusal(wrong).contains("not a number"));
        assert!(refusal(raw::Manifest { surface: Surface::Router, ..raw() }).contains("evolves no router"));
        let older = Manifest::from_guest(raw(), &[Capability::Log]).expect_err("unknown to it").to_string();
        assert!(older.contains("names 'experience', which is none of log"), "{older}");
    }

    #[test]
    fn ranges_are_of_numbers_and_hold_the_default() {
        let ranged = |minimum, maximum, kind, default: &str| {
            let mut raw = raw();
            let key = &mut raw.config[0];
            (key.minimum, key.maximum, key.kind, key.default_json) = (minimum, maximum, kind, default.to_owned());
            Manifest::from_guest(raw, &Capability::ALL).map_err(|error| error.to_string())
        };
        assert!(ranged(Some(1.0), None, ValueKind::Number, "1").is_ok());
        assert!(ranged(Some(2.0), None, ValueKind::Number, "1").expect_err("default").contains("at least 2"));
        assert!(ranged(Some(2.0), Some(1.0), ValueKind::Number, "2").expect_err("crossed").contains("above"));
        assert!(ranged(Some(f64::NAN), None, ValueKind::Number, "2").expect_err("nan").contains("not finite"));
        assert!(ranged(None, Some(1.0), ValueKind::Text, "\"x\"").expect_err("text").contains("not a number"));
    }

    #[test]
    fn configuration_and_metadata_are_checked_by_key() {
        let manifest = Manifest::from_guest(raw(), &Capability::ALL).expect("valid");
        let object = |value: Value| value.as_object().expect("object").clone();
        assert_eq!(manifest.check_config(&object(json!({"batch": 8}))), Ok(()));
        assert!(manifest.check_config(&object(json!({"batch": "8"}))).expect_err("kind").contains("must be a number"));
        assert!(
            manifest
                .check_config(&object(json!({"batch": 0})))
                .expect_err("low")
                .contains("is 0 and must be at least 1")
        );
        assert!(manifest.check_config(&object(json!({"batch": 65}))).expect_err("high").contains("at most 64"));
        assert!(manifest.check_config(&object(json!({"bach": 8}))).expect_err("name").contains("it knows: batch"));
        assert!(manifest.check_metadata(&object(json!({}))).expect_err("missing").contains("'task' is required"));
        assert_eq!(manifest.check_metadata(&object(json!({"task": "t", "other": 1}))), Ok(()));
    }
}
