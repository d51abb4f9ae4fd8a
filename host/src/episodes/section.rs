//! The operator's keys for harnesses that evolve: on what, how they are tried, and who releases them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use reef_core::{ScenarioName, TenantId};
use reef_episodes::Isolation;
use serde::{Deserialize, Serialize};

/// Harnesses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HarnessSection {
    /// Component that evolves the harness of every scenario, beside the recipe of the weights; none = only what is
    /// uploaded for a scenario, or the server's `recipe` where that evolves harnesses.
    pub recipe: Option<PathBuf>,
    /// Values for the keys of that recipe, and of those that are uploaded; a scenario may override them.
    pub config: BTreeMap<String, serde_json::Value>,
    /// `auto`: what passes is released; `review`: it waits for a person.
    pub release: ReleaseMode,
    /// Folders of tasks, by scenario, or by `TENANT/SCENARIO` where several tenants have one of that name.
    pub tasks: BTreeMap<String, PathBuf>,
    /// The model that installed agents and those of episodes ask for; absent = the server's own.
    pub model: Option<String>,
    /// How a tree is tried.
    pub episodes: EpisodeSection,
}

/// Who releases a candidate that passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReleaseMode {
    /// The server.
    #[default]
    Auto,
    /// A person.
    Review,
}

/// How a tree is tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EpisodeSection {
    /// The agent program that plays; the release is rendered for it.
    pub adapter: String,
    /// Its path; absent = found on the PATH. The native agent needs none.
    pub program: Option<PathBuf>,
    /// `required`: nothing runs without bubblewrap; `preferred`: where it works; `none`: never.
    pub isolation: Isolation,
    /// Episodes of one step, those of the gate included.
    pub per_step_max: u32,
    /// Seconds that all episodes of one step may take together.
    pub seconds_per_step_max: u64,
    /// Model requests of one episode.
    pub calls_max: u32,
}

impl Default for HarnessSection {
    fn default() -> Self {
        Self {
            recipe: None,
            config: BTreeMap::new(),
            release: ReleaseMode::Auto,
            tasks: BTreeMap::new(),
            model: None,
            episodes: EpisodeSection::default(),
        }
    }
}

impl Default for EpisodeSection {
    fn default() -> Self {
        Self {
            adapter: "native".to_owned(),
            program: None,
            isolation: Isolation::Required,
            per_step_max: 200,
            seconds_per_step_max: 1500,
            calls_max: 100,
        }
    }
}

impl HarnessSection {
    /// Ranges and names that types cannot say.
    pub fn check(&self) -> Result<(), String> {
        let episodes = &self.episodes;
        if episodes.per_step_max == 0 || episodes.seconds_per_step_max == 0 || episodes.calls_max == 0 {
            return Err("harness.episodes: a limit is 0; use a number of at least 1".to_owned());
        }
        for key in self.tasks.keys() {
            let (tenant, scenario) = key.split_once('/').map_or((None, key.as_str()), |(t, s)| (Some(t), s));
            let tenant = tenant.map(|tenant| TenantId::parse(tenant).map_err(|error| error.to_string())).transpose();
            let scenario = ScenarioName::parse(scenario).map_err(|error| error.to_string());
            tenant.and(scenario.map(drop)).map_err(|problem| format!("harness.tasks.{key}: {problem}"))?;
        }
        Ok(())
    }

    /// The tasks of a scenario.
    pub fn tasks_of(&self, tenant: &TenantId, scenario: &ScenarioName) -> Option<&PathBuf> {
        let own = self.tasks.get(&format!("{tenant}/{scenario}"));
        own.or_else(|| self.tasks.get(scenario.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_found_by_scenario_and_before_that_by_tenant() {
        let section: HarnessSection = serde_yaml_ng::from_str("tasks: { agent: a, acme/agent: b }").expect("a section");
        assert_eq!(section.check(), Ok(()));
        let of = |tenant: &str, name: &str| {
            let (tenant, name) = (TenantId::parse(tenant).expect("a name"), ScenarioName::parse(name).expect("a name"));
            section.tasks_of(&tenant, &name).map(|path| path.display().to_string())
        };
        assert_eq!(of("acme", "agent"), Some("b".to_owned()));
        assert_eq!((of("beta", "agent"), of("acme", "other")), (Some("a".to_owned()), None));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_key() {
        let told = |yaml: &str| {
            let section: HarnessSection = serde_yaml_ng::from_str(yaml).expect("a section");
            section.check().expect_err("refused")
        };
        assert!(told("tasks: { 'a b': x }").starts_with("harness.tasks.a b: "));
        assert!(told("episodes: { per_step_max: 0 }").contains("at least 1"));
        assert!(serde_yaml_ng::from_str::<HarnessSection>("episodes: { isolation: maybe }").is_err());
    }
}
