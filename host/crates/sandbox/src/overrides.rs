//! Limits of single recipes and tenants that differ from everybody's, as the operator sets them.
//! [`SandboxConfig`] asks it for the limits of a call; the pool and the loader ask it for the largest memory.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{SandboxConfig, SandboxError};

/// First part of the key of a tenant's limits; every other key is the name of a recipe.
const TENANT: &str = "tenant:";

/// Limits that replace those of the same name; what is left out stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Override {
    /// Bytes of all memories and tables of a call together.
    pub memory_bytes_max: Option<u64>,
    /// Fuel of `select-samples`.
    pub fuel_select: Option<u64>,
    /// Fuel of `propose-update`.
    pub fuel_propose: Option<u64>,
    /// Fuel of `evaluate` and `migrate`.
    pub fuel_evaluate: Option<u64>,
    /// Milliseconds of guest time of `select-samples`.
    pub wall_select_ms: Option<u64>,
    /// Milliseconds of guest time of `propose-update`.
    pub wall_propose_ms: Option<u64>,
    /// Milliseconds of guest time of `evaluate` and `migrate`.
    pub wall_evaluate_ms: Option<u64>,
}

impl Override {
    fn apply(&self, config: &mut SandboxConfig) {
        let limits = [
            (&mut config.memory_bytes_max, self.memory_bytes_max),
            (&mut config.fuel_select, self.fuel_select),
            (&mut config.fuel_propose, self.fuel_propose),
            (&mut config.fuel_evaluate, self.fuel_evaluate),
            (&mut config.wall_select_ms, self.wall_select_ms),
            (&mut config.wall_propose_ms, self.wall_propose_ms),
            (&mut config.wall_evaluate_ms, self.wall_evaluate_ms),
        ];
        for (limit, own) in limits {
            *limit = own.unwrap_or(*limit);
        }
    }
}

impl SandboxConfig {
    /// Limits of a call: the recipe's own over its tenant's over everybody's.
    pub(crate) fn of_call(self: &Arc<Self>, tenant: &str, recipe: &str) -> Arc<Self> {
        if self.overrides.is_empty() {
            return Arc::clone(self);
        }
        let mut config = Self::clone(self);
        for key in [format!("{TENANT}{tenant}").as_str(), recipe] {
            if let Some(own) = self.overrides.get(key) {
                own.apply(&mut config);
            }
        }
        Arc::new(config)
    }

    /// Limits of `describe`: the name of the recipe is not known yet, so it gets the memory of the one that has most.
    pub(crate) fn of_describe(&self) -> Arc<Self> {
        Arc::new(Self { memory_bytes_max: self.memory_most(), ..self.clone() })
    }

    /// The largest memory that any call may use.
    pub(crate) fn memory_most(&self) -> u64 {
        let own = self.overrides.values().filter_map(|own| own.memory_bytes_max);
        own.fold(self.memory_bytes_max, u64::max)
    }

    /// The largest memory that a call of this recipe may use, whoever calls it.
    pub(crate) fn memory_most_of(&self, recipe: &str) -> u64 {
        if let Some(bytes) = self.overrides.get(recipe).and_then(|own| own.memory_bytes_max) {
            return bytes;
        }
        let tenants = self.overrides.iter().filter(|(key, _)| key.starts_with(TENANT));
        tenants.filter_map(|(_, own)| own.memory_bytes_max).fold(self.memory_bytes_max, u64::max)
    }

    /// Every override is held to the rules of the limits that it replaces.
    pub(crate) fn check_overrides(&self) -> Result<(), SandboxError> {
        for (key, own) in &self.overrides {
            if key.is_empty() || key == TENANT {
                let told =
                    format!("sandbox.overrides has the key '{key}'; name a recipe, or a tenant as '{TENANT}NAME'");
                return Err(SandboxError::Start(told));
            }
            let mut config = self.clone();
            own.apply(&mut config);
            config.check_values(&format!("overrides.{key}."))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(overrides: &str) -> Arc<SandboxConfig> {
        let overrides = serde_json::from_str(overrides).expect("overrides");
        Arc::new(SandboxConfig { overrides, ..Default::default() })
    }

    #[test]
    fn a_recipes_limits_win_over_its_tenants_and_those_over_everybodys() {
        let config = config(
            r#"{"tenant:a": {"memory_bytes_max": 200000000, "fuel_select": 7}, "py": {"memory_bytes_max": 100000000}}"#,
        );
        let limits = |tenant, recipe| {
            let limits = config.of_call(tenant, recipe);
            (limits.memory_bytes_max, limits.fuel_select)
        };
        let usual = SandboxConfig::default();
        assert_eq!(limits("a", "py"), (100_000_000, 7));
        assert_eq!(limits("a", "other"), (200_000_000, 7));
        assert_eq!(limits("b", "py"), (100_000_000, usual.fuel_select));
        assert_eq!(limits("b", "other"), (usual.memory_bytes_max, usual.fuel_select));
        assert_eq!(limits("b", "tenant"), limits("b", "other"));
    }

    #[test]
    fn loading_and_the_pool_know_the_largest_memory() {
        let config = config(r#"{"tenant:a": {"memory_bytes_max": 200000000}, "py": {"memory_bytes_max": 300000000}}"#);
        assert_eq!((config.memory_most(), config.of_describe().memory_bytes_max), (300_000_000, 300_000_000));
        assert_eq!((config.memory_most_of("py"), config.memory_most_of("other")), (300_000_000, 200_000_000));
        assert_eq!(SandboxConfig::default().memory_most(), SandboxConfig::default().memory_bytes_max);
    }

    #[test]
    fn overrides_are_checked_like_the_limits_that_they_replace() {
        let told = |overrides| config(overrides).check().expect_err("refused").to_string();
        assert!(told(r#"{"py": {"memory_bytes_max": 1}}"#).contains("sandbox.overrides.py.memory_bytes_max is 1"));
        assert!(told(r#"{"tenant:a": {"fuel_select": 0}}"#).contains("sandbox.overrides.tenant:a.fuel_select is 0"));
        assert!(told(r#"{"tenant:": {}}"#).contains("name a recipe"));
        assert_eq!(config(r#"{"py": {}}"#).check(), Ok(()));
        assert!(serde_json::from_str::<Override>(r#"{"fuel": 1}"#).is_err());
    }
}
