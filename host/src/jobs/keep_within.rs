//! Keeps each scenario within what the operator wants to keep: lets old records go and expires samples that nobody used.
//! Runs beside serving for as long as the server does; the store works in small batches, and nothing goes that a waiting
//! or running sample needs.

use std::sync::Arc;
use std::time::Duration;

use reef_store::{Retention, Store, StoreError};
use serde::{Deserialize, Serialize};

use crate::clock::now_ms;
use crate::scenarios::{Scenario, Scenarios};

const DAY_MS: i64 = 86_400_000;

/// The section `retention` of the configuration; what is null is kept without limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionSection {
    /// Days that a record is kept.
    pub age_days_max: Option<u32>,
    /// Records of a scenario.
    pub records_max: Option<u32>,
    /// Megabytes of a scenario's records.
    pub megabytes_max: Option<u32>,
    /// Days after which a report that no step used expires.
    pub sample_days_max: Option<u32>,
    /// Minutes between two passes.
    pub every_minutes: u64,
}

impl Default for RetentionSection {
    fn default() -> Self {
        Self { age_days_max: None, records_max: None, megabytes_max: None, sample_days_max: None, every_minutes: 60 }
    }
}

impl RetentionSection {
    fn is_none(&self) -> bool {
        *self == Self { every_minutes: self.every_minutes, ..Self::default() }
    }

    fn rule(&self) -> Retention {
        Retention {
            age_ms_max: self.age_days_max.map(|days| i64::from(days) * DAY_MS),
            records_max: self.records_max.map(i64::from),
            bytes_max: self.megabytes_max.map(|megabytes| i64::from(megabytes) << 20),
        }
    }
}

/// One pass after another, until it is aborted.
pub async fn keep_within(section: RetentionSection, store: Store, scenarios: Arc<Scenarios>) {
    if section.is_none() {
        return;
    }
    let mut next = tokio::time::interval(Duration::from_secs(section.every_minutes.max(1) * 60));
    loop {
        next.tick().await;
        for scenario in scenarios.all().await {
            if let Err(error) = pass(&section, &store, &scenario).await {
                tracing::warn!(scenario = %scenario.key.1, %error, "retention");
            }
        }
    }
}

async fn pass(section: &RetentionSection, store: &Store, scenario: &Scenario) -> Result<(), StoreError> {
    let ((tenant, name), now) = (&scenario.key, now_ms());
    if let Some(days) = section.sample_days_max {
        let expired = store.expire(tenant, name, now - i64::from(days) * DAY_MS, now).await?;
        metrics::counter!("reef_samples_expired_total").increment(expired);
    }
    let dropped = store.retain(tenant, name, &section.rule(), now).await?;
    metrics::counter!("reef_records_dropped_total").increment(dropped.records);
    if dropped.records > 0 {
        tracing::info!(scenario = %name, records = dropped.records, bytes = dropped.bytes, "retention");
    }
    Ok(())
}
