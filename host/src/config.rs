//! The configuration: one YAML file, every key with a default, every value with a known source.
//! `serve`, `demo` and `bench` build a `Config` here and nowhere else. Unknown keys are refused with
//! the nearest valid one; secrets are digests or names of environment variables, never values.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use reef_core::{Gate, ScenarioName, TenantId};
use reef_engine::{LoraConfig, ServedWeights};
use reef_intake::{RedactionConfig, Redactor};
use reef_sandbox::SandboxConfig;
use reef_store::TrainingMode;
use serde::{Deserialize, Serialize};
use serde_yaml_ng::Value;

use crate::episodes::HarnessSection;
use crate::error::StartError;
use crate::jobs::keep_within::RetentionSection;
use crate::jobs::training_section::TrainingSection;
use crate::provider::config::{self as upstreams, BindingSection, ProviderSection};
use crate::release_keys::ReleaseSection;
use crate::store_place::StoreSection;
use crate::telemetry::TelemetrySection;
use crate::verifiers::check_name;

/// Everything an operator can set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address to serve on; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Folder of the database and the release repository.
    pub data: PathBuf,
    /// GGUF file or Hugging Face folder of the base model.
    pub model: PathBuf,
    /// Component that every scenario learns with; none = serve and record only, unless `harness.recipe` names one.
    pub recipe: Option<PathBuf>,
    /// The embedded engine.
    pub engine: EngineSection,
    /// Who may do what.
    pub auth: AuthSection,
    /// Defaults of new scenarios.
    pub scenarios: ScenarioSection,
    /// What recipes may do, and their configuration.
    pub recipes: RecipeSection,
    /// Upstreams that answer beside the embedded engine, by name.
    pub providers: BTreeMap<String, ProviderSection>,
    /// Upstream models that recipes may call, by the name they use.
    pub bindings: BTreeMap<String, BindingSection>,
    /// Limits of sandboxed calls.
    pub sandbox: SandboxConfig,
    /// The trainer.
    pub training: TrainingSection,
    /// Where the log of records, steps and releases is.
    pub store: StoreSection,
    /// Who signs releases, and whose signatures count.
    pub releases: ReleaseSection,
    /// What is kept of it.
    pub retention: RetentionSection,
    /// Harnesses that evolve.
    pub harness: HarnessSection,
    /// Limits of the HTTP side.
    pub http: HttpSection,
    /// Secrets that are taken out of what is stored.
    pub redaction: RedactionConfig,
    /// Logs and traces.
    pub telemetry: TelemetrySection,
}

/// The embedded engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineSection {
    /// Threads of a forward pass; 0 = all cores.
    pub threads: usize,
    /// Requests decoded together.
    pub batch_max: usize,
    /// Tokens of prompt and answer together; capped by the model.
    pub context_max: usize,
    /// Requests of one tenant that may wait for a slot; more are answered 429.
    pub queue_max: usize,
    /// What the served copy of the model is stored in: file (as it is), int8 or int4.
    pub weights: ServedWeights,
    /// Megabytes of keys and values, those kept for prompts with the same beginning included; one full context
    /// always has room.
    pub cache_mb_max: usize,
    /// Shape of the adapters.
    pub lora: LoraConfig,
    /// Adapters of earlier releases kept in memory for pinned requests.
    pub adapters_retained_max: usize,
}

/// Who may do what.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthSection {
    /// Without any token only loopback is served, as tenant `default` with every scope.
    pub tokens: Vec<TokenEntry>,
}

/// One bearer token, by digest or by the variable that holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEntry {
    /// SHA-256 of the token, 64 hex digits.
    #[serde(default)]
    pub sha256: Option<String>,
    /// Environment variable that holds the token.
    #[serde(default)]
    pub env: Option<String>,
    /// Who bears it: releases that this person decides on say so.
    #[serde(default)]
    pub name: Option<String>,
    /// Tenant of the bearer.
    pub tenant: TenantId,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// Scenario of requests that name none.
    #[serde(default)]
    pub default_scenario: Option<ScenarioName>,
    /// If set, only these scenarios.
    #[serde(default)]
    pub scenarios: Option<Vec<ScenarioName>>,
}

/// A right of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Model requests.
    Infer,
    /// Reports.
    Report,
    /// Reading records, steps, releases and the status.
    Read,
    /// Scenarios, rollback, promotion, held-out tasks.
    Admin,
    /// Unrecorded inference for evaluation.
    Evaluate,
}

/// Defaults of new scenarios.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScenarioSection {
    /// A request with a new scenario name creates it.
    pub allow_implicit_scenario_creation: bool,
    /// Scenarios of one tenant.
    pub per_tenant_max: usize,
    /// Scenario of requests without a token that name none.
    pub default: ScenarioName,
    /// `auto`: steps run by themselves; `manual`: never.
    pub training_mode: TrainingMode,
    /// Samples whose weights are more releases old expire.
    pub max_staleness: u32,
    /// The operator's rule for releasing a candidate.
    pub gate: Gate,
}

/// What recipes may do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecipeSection {
    /// Capabilities granted; none listed = all that the recipe asks for.
    pub grants: Option<reef_sandbox::Grants>,
    /// Values for the recipe's own keys; a scenario may override them.
    pub config: BTreeMap<String, serde_json::Value>,
    /// Verifiers that recipes may ask by name: components of the world `verifier`.
    pub verifiers: BTreeMap<String, PathBuf>,
    /// Compile recipes in the server's own process instead of a bounded one for each: for programs that embed a server.
    pub compile_in_process: bool,
}

/// Limits of the HTTP side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSection {
    /// Bytes of a request body.
    pub body_bytes_max: usize,
    /// Seconds a request may wait for a report's record to become durable.
    pub receipt_wait_seconds_max: u64,
    /// Seconds that running requests have to end after a shutdown was asked for; what they said until then is
    /// recorded.
    pub drain_seconds_max: u64,
    /// Connections at the same time; more wait to be accepted.
    pub connections_max: usize,
    /// Seconds that the head of a request may take, and that a connection may lie idle.
    pub head_seconds_max: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8420)),
            data: PathBuf::from(".reef"),
            model: PathBuf::from(".deps/models/smollm2-135m-instruct-q4_1.gguf"),
            recipe: None,
            engine: EngineSection::default(),
            auth: AuthSection::default(),
            scenarios: ScenarioSection::default(),
            recipes: RecipeSection::default(),
            providers: BTreeMap::new(),
            bindings: BTreeMap::new(),
            sandbox: SandboxConfig::default(),
            training: TrainingSection::default(),
            store: StoreSection::default(),
            releases: ReleaseSection::default(),
            retention: RetentionSection::default(),
            harness: HarnessSection::default(),
            http: HttpSection::default(),
            redaction: RedactionConfig::default(),
            telemetry: TelemetrySection::default(),
        }
    }
}

impl Default for EngineSection {
    fn default() -> Self {
        Self {
            threads: 0,
            batch_max: 32,
            context_max: 8192,
            queue_max: 256,
            weights: ServedWeights::File,
            cache_mb_max: 1024,
            lora: LoraConfig::default(),
            adapters_retained_max: 4,
        }
    }
}

impl Default for ScenarioSection {
    fn default() -> Self {
        Self {
            allow_implicit_scenario_creation: true,
            per_tenant_max: 1000,
            default: default_scenario(),
            training_mode: TrainingMode::Auto,
            max_staleness: 4,
            gate: Gate::non_inferiority(0.05),
        }
    }
}

#[expect(clippy::expect_used, reason = "a constant name; the default-config test parses it")]
fn default_scenario() -> ScenarioName {
    ScenarioName::parse("default").expect("the constant is a valid scenario name")
}

impl Default for HttpSection {
    fn default() -> Self {
        Self {
            body_bytes_max: 64 * 1024 * 1024,
            receipt_wait_seconds_max: 30,
            drain_seconds_max: 20,
            connections_max: 4096,
            head_seconds_max: 60,
        }
    }
}

impl Config {
    /// Reads a file over the defaults. Paths in it are relative to the working folder.
    pub fn read(path: &Path) -> Result<(Self, Value), StartError> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| {
            StartError::Config(format!(
                "the configuration file {shown} cannot be read: {e}; check the path given with --config"
            ))
        })?;
        let value: Value = serde_yaml_ng::from_str(&text)
            .map_err(|e| StartError::Config(format!("the configuration file {shown} is not YAML: {e}")))?;
        let config = Self::from_value(&value).map_err(|problem| StartError::Config(format!("{shown}: {problem}")))?;
        Ok((config, value))
    }

    fn from_value(value: &Value) -> Result<Self, String> {
        if value.is_null() {
            return Ok(Self::default());
        }
        let known = serde_yaml_ng::to_value(Self::default()).map_err(|e| e.to_string())?;
        refuse_unknown_keys(value, &known, "")?;
        let config: Self = serde_path_to_error::deserialize(value.clone())
            .map_err(|e| format!("the key '{}' is not valid: {}", e.path(), e.inner()))?;
        config.check()?;
        Ok(config)
    }

    /// Ranges that types cannot say.
    pub fn check(&self) -> Result<(), String> {
        self.training.check()?;
        for (key, value) in [
            ("engine.batch_max", self.engine.batch_max),
            ("engine.context_max", self.engine.context_max),
            ("http.body_bytes_max", self.http.body_bytes_max),
            ("http.connections_max", self.http.connections_max),
            ("scenarios.per_tenant_max", self.scenarios.per_tenant_max),
        ] {
            if value == 0 {
                return Err(format!("{key} is 0; use a number of at least 1"));
            }
        }
        if self.engine.batch_max > BATCH_MAX {
            return Err(format!("engine.batch_max is {}; use at most {BATCH_MAX}", self.engine.batch_max));
        }
        self.engine.lora.check().map_err(|problem| format!("engine.lora has {problem}"))?;
        self.releases.check()?;
        self.scenarios.gate.check().map_err(|problem| format!("scenarios.{problem}"))?;
        self.recipes.verifiers.keys().try_for_each(|name| check_name(name))?;
        self.harness.check()?;
        upstreams::check(&self.providers, &self.bindings)?;
        Redactor::new(&self.redaction).map_err(|error| error.to_string())?;
        for (index, token) in self.auth.tokens.iter().enumerate() {
            if token.sha256.is_some() == token.env.is_some() {
                return Err(format!("auth.tokens[{index}] needs exactly one of 'sha256' and 'env'"));
            }
        }
        Ok(())
    }
}

/// Rows of one forward pass.
const BATCH_MAX: usize = 256;

/// Maps whose keys are the operator's own.
const FREE_MAPS: [&str; 8] = [
    "recipes.config",
    "harness.config",
    "harness.tasks",
    "recipes.verifiers",
    "sandbox.overrides",
    "scenarios.gate",
    "providers",
    "bindings",
];

fn refuse_unknown_keys(value: &Value, known: &Value, path: &str) -> Result<(), String> {
    if FREE_MAPS.contains(&path) {
        return Ok(());
    }
    let (Value::Mapping(given), Value::Mapping(known)) = (value, known) else { return Ok(()) };
    for (key, inner) in given {
        let name = key.as_str().ok_or_else(|| format!("a key under '{path}' is not text"))?;
        let at = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match known.get(key) {
            Some(inner_known) => refuse_unknown_keys(inner, inner_known, &at)?,
            None => {
                let names: Vec<&str> = known.keys().filter_map(Value::as_str).collect();
                return Err(format!("the key '{at}' is not known; did you mean '{}'?", nearest(name, &names)));
            }
        }
    }
    Ok(())
}

/// The candidate with the smallest edit distance.
pub fn nearest<'a>(name: &str, candidates: &[&'a str]) -> &'a str {
    // A key that begins like the name is nearer than a short one that shares nothing with it.
    let begins = |candidate: &str| candidate.chars().take(name.chars().count()).collect::<String>();
    let distance = |candidate: &str| edit_distance(name, candidate).min(1 + edit_distance(name, &begins(candidate)));
    candidates.iter().min_by_key(|candidate| distance(candidate)).copied().unwrap_or("")
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(&b) {
            let above = *cell;
            *cell = (above + 1).min(left + 1).min(diagonal + usize::from(x != *y));
            diagonal = above;
            left = *cell;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

/// Each value with where it came from, for `--print-config`.
pub fn print_config(config: &Config, file: Option<&Value>, flags: &[&str]) -> Result<String, StartError> {
    let value = serde_yaml_ng::to_value(config).map_err(|e| StartError::Config(e.to_string()))?;
    let mut lines = Vec::new();
    list_leaves(&value, file, "", &mut |path, shown, from_file| {
        let source = if flags.contains(&path) {
            "flag"
        } else if from_file {
            "file"
        } else {
            "default"
        };
        lines.push(format!("{path} = {shown}  # {source}"));
    });
    Ok(lines.join("\n"))
}

fn list_leaves(value: &Value, file: Option<&Value>, path: &str, line: &mut dyn FnMut(&str, &str, bool)) {
    if let Value::Mapping(map) = value
        && !map.is_empty()
    {
        for (key, inner) in map {
            let name = key.as_str().unwrap_or_default();
            let at = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            list_leaves(inner, file.and_then(|f| f.get(key)), &at, line);
        }
        return;
    }
    let shown = serde_json::to_string(value).unwrap_or_default();
    line(path, &shown, file.is_some());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::from_value(&serde_yaml_ng::from_str(text).expect("yaml"))
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_one() {
        let refusal = parse("engine:\n  bach_max: 4\n").expect_err("refused");
        assert!(refusal.contains("engine.bach_max") && refusal.contains("'batch_max'"), "{refusal}");
        assert!(parse("lisen: 127.0.0.1:1\n").expect_err("refused").contains("'listen'"));
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        assert_eq!(parse("").expect("defaults"), Config::default());
    }

    #[test]
    fn the_documented_file_equals_the_defaults() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/reef.yaml");
        let text = std::fs::read_to_string(path).expect("config/reef.yaml");
        assert_eq!(parse(&text).expect("parses"), Config::default());
        let value: Value = serde_yaml_ng::from_str(&text).expect("yaml");
        let mut missing = Vec::new();
        let known = serde_yaml_ng::to_value(Config::default()).expect("yaml");
        list_leaves(&known, Some(&value), "", &mut |path, _, given| {
            if !given {
                missing.push(path.to_owned());
            }
        });
        assert!(missing.is_empty(), "config/reef.yaml does not mention {missing:?}");
    }

    #[test]
    fn a_token_needs_one_source() {
        let refusal = parse("auth:\n  tokens:\n    - tenant: a\n      scopes: [infer]\n").expect_err("refused");
        assert!(refusal.contains("exactly one"), "{refusal}");
    }

    #[test]
    fn patterns_of_secrets_are_checked_at_the_start() {
        let refusal = parse("redaction:\n  patterns:\n    - { name: badge, regex: '(' }\n").expect_err("refused");
        assert!(refusal.contains("redaction.patterns 'badge'"), "{refusal}");
        assert!(parse("redaction: { enabled: false, keep: [jwt] }\n").is_ok());
    }

    #[test]
    fn every_value_names_its_source() {
        let file: Value = serde_yaml_ng::from_str("engine:\n  batch_max: 4\n").expect("yaml");
        let config = Config::from_value(&file).expect("config");
        let printed = print_config(&config, Some(&file), &["listen"]).expect("printed");
        assert!(printed.contains("engine.batch_max = 4  # file"));
        assert!(printed.contains("# flag") && printed.contains("# default"));
    }
}
