//! The configuration of upstreams: where they are, what they speak, which models clients may ask there.
//! Keys are named by the variable that holds them and never stand in a file.

use std::collections::BTreeMap;

use reef_core::ReleaseId;
use reef_dialects::Dialect;
use serde::{Deserialize, Serialize};

/// Models of one provider.
const MODELS_MAX: usize = 256;
/// Headers of one provider.
const HEADERS_MAX: usize = 32;
/// Seconds of any limit: a day.
const SECONDS_MAX: u64 = 86_400;
/// Tries after the first.
const RETRIES_MAX: u32 = 10;

/// One upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderSection {
    /// Address up to where the dialect's path begins: `https://api.openai.com` or `https://openrouter.ai/api/v1`.
    pub url: String,
    /// What it speaks.
    #[serde(default)]
    pub dialect: Dialect,
    /// Environment variable that holds the key; none = the provider wants none.
    #[serde(default)]
    pub key_env: Option<String>,
    /// Models that clients may ask for: the name that they use, and the provider's.
    pub models: BTreeMap<String, String>,
    /// Seconds to reach it.
    #[serde(default = "connect_seconds_max")]
    pub connect_seconds_max: u64,
    /// Seconds until an answer begins; an answer that is not streamed begins when it is complete.
    #[serde(default = "first_byte_seconds_max")]
    pub first_byte_seconds_max: u64,
    /// Seconds between two pieces of an answer.
    #[serde(default = "idle_seconds_max")]
    pub idle_seconds_max: u64,
    /// Seconds of an answer in all, from its beginning.
    #[serde(default = "answer_seconds_max")]
    pub answer_seconds_max: u64,
    /// Tries after the first, of requests of which nothing was answered.
    #[serde(default = "retries_max")]
    pub retries_max: u32,
    /// Headers of every request, such as the name of an organisation; keys do not belong here.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

/// The model behind a name that recipes call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BindingSection {
    /// Its provider's name in this configuration, or `embedded`.
    pub provider: String,
    /// One of the provider's models, by the name that clients use. Of `embedded`: `base`, or the id of a release.
    pub model: String,
}

fn connect_seconds_max() -> u64 {
    10
}

fn first_byte_seconds_max() -> u64 {
    600
}

fn idle_seconds_max() -> u64 {
    120
}

fn answer_seconds_max() -> u64 {
    3600
}

fn retries_max() -> u32 {
    2
}

/// Ranges that types cannot say, and names that lead nowhere.
pub fn check(
    providers: &BTreeMap<String, ProviderSection>,
    bindings: &BTreeMap<String, BindingSection>,
) -> Result<(), String> {
    if providers.contains_key(EMBEDDED) {
        return Err(format!("providers.{EMBEDDED} is the name of the server's own engine; choose another"));
    }
    for (name, section) in providers {
        section.check().map_err(|problem| format!("providers.{name}.{problem}"))?;
    }
    for (name, binding) in bindings {
        if OWN_BINDINGS.contains(&name.as_str()) {
            return Err(format!("bindings.{name} is the name of the server's own model; choose another"));
        }
        if binding.provider == EMBEDDED {
            let release = binding.model == "base" || ReleaseId::parse(&binding.model).is_ok();
            let told = || format!("bindings.{name}.model is '{}'; use base or the id of a release", binding.model);
            release.then_some(()).ok_or_else(told)?;
            continue;
        }
        let provider = providers.get(&binding.provider);
        if !provider.is_some_and(|provider| provider.models.contains_key(&binding.model)) {
            let BindingSection { provider, model } = binding;
            return Err(format!("bindings.{name} names model '{model}' of provider '{provider}'; add it to providers"));
        }
    }
    Ok(())
}

/// The provider of bindings to the server's own engine: what its trainer compares with.
pub const EMBEDDED: &str = "embedded";

/// Names under which a step calls the server's own weights.
const OWN_BINDINGS: [&str; 3] = ["candidate", "served", "base"];

impl ProviderSection {
    fn check(&self) -> Result<(), String> {
        if self.models.is_empty() || self.models.len() > MODELS_MAX {
            return Err(format!("models must name 1 to {MODELS_MAX} models that clients may ask for"));
        }
        if let Some(name) = self.models.iter().flat_map(|(name, own)| [name, own]).find(|name| name.trim().is_empty()) {
            return Err(format!("models has the blank name '{name}'; give the model's name"));
        }
        if self.headers.len() > HEADERS_MAX {
            return Err(format!("headers has {} entries; use at most {HEADERS_MAX}", self.headers.len()));
        }
        if self.retries_max > RETRIES_MAX {
            return Err(format!("retries_max is {}; use at most {RETRIES_MAX}", self.retries_max));
        }
        for (key, seconds) in [
            ("connect_seconds_max", self.connect_seconds_max),
            ("first_byte_seconds_max", self.first_byte_seconds_max),
            ("idle_seconds_max", self.idle_seconds_max),
            ("answer_seconds_max", self.answer_seconds_max),
        ] {
            if !(1..=SECONDS_MAX).contains(&seconds) {
                return Err(format!("{key} is {seconds}; use a number from 1 to {SECONDS_MAX}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn checked(providers: Value, bindings: Value) -> Result<(), String> {
        let providers = serde_json::from_value(providers).map_err(|error| error.to_string())?;
        check(&providers, &serde_json::from_value(bindings).map_err(|error| error.to_string())?)
    }

    #[test]
    fn a_provider_needs_little_and_a_wrong_key_is_named() {
        let plain = json!({ "p": { "url": "http://h", "models": { "m": "m" } } });
        assert_eq!(checked(plain.clone(), json!({ "judge": { "provider": "p", "model": "m" } })), Ok(()));
        let changed = |key: &str, value: Value| {
            let mut section = plain.clone();
            section["p"][key] = value;
            checked(section, json!({})).expect_err(key)
        };
        for (key, value) in [
            ("idle_second_max", json!(1)),
            ("idle_seconds_max", json!(0)),
            ("answer_seconds_max", json!(0)),
            ("retries_max", json!(11)),
            ("models", json!({})),
            ("models", json!({ "m": " " })),
            ("dialect", json!("soap")),
            ("key", json!("sk-1")),
        ] {
            let told = changed(key, value);
            assert!(told.contains(key) || told.contains("soap"), "{told}");
        }
        for model in ["base".to_owned(), "a".repeat(40)] {
            let own = json!({ "teacher": { "provider": "embedded", "model": model } });
            assert_eq!(checked(plain.clone(), own), Ok(()));
        }
        assert!(
            checked(json!({ "embedded": plain["p"] }), json!({})).expect_err("taken").contains("providers.embedded")
        );
        for (name, binding) in [
            ("base", json!({ "provider": "p", "model": "m" })),
            ("judge", json!({ "provider": "p", "model": "x" })),
            ("teacher", json!({ "provider": "embedded", "model": "newest" })),
        ] {
            let told = checked(plain.clone(), json!({ name: binding })).expect_err(name);
            assert!(told.contains(&format!("bindings.{name}")), "{told}");
        }
    }
}
