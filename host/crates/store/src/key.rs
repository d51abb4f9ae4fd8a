//! The key that leads every row: a tenant and its scenario.

use reef_core::{ScenarioName, TenantId};

use crate::error::{Fault, StoreError};

/// Owned, because writes travel to the writer task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    tenant: TenantId,
    scenario: ScenarioName,
}

impl Key {
    pub(crate) fn of(tenant: &TenantId, scenario: &ScenarioName) -> Self {
        Self { tenant: tenant.clone(), scenario: scenario.clone() }
    }

    pub(crate) fn tenant(&self) -> &str {
        self.tenant.as_str()
    }

    pub(crate) fn scenario(&self) -> &str {
        self.scenario.as_str()
    }

    pub(crate) fn scenario_name(&self) -> &ScenarioName {
        &self.scenario
    }

    /// The refusal of a key without a scenario.
    pub(crate) fn unknown(&self) -> Fault {
        StoreError::UnknownScenario(self.scenario.clone()).into()
    }

    /// Does a release say that it belongs here?
    pub(crate) fn owns(&self, tenant: &TenantId, scenario: &ScenarioName) -> bool {
        self.tenant == *tenant && self.scenario == *scenario
    }
}
