//! Reports: feedback appended durably and exactly once. A report that references records becomes a sample
//! (`samples.rs`) in the same transaction; `feedback.rs` says what later word does to it.

use reef_core::{Report, ScenarioName, TenantId};

use crate::Store;
use crate::entry::Entry;
use crate::error::StoreError;
use crate::key::Key;

/// Where a record went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Its sequence in the scenario.
    pub sequence: i64,
    /// It was there already with the same content, and is counted once.
    pub duplicate: bool,
}

impl Store {
    /// Appends a report; durable on return. The same id and content, however often and however
    /// concurrently, is one report; other content is a `Conflict`.
    pub async fn append_report(&self, t: &TenantId, s: &ScenarioName, report: Report) -> Result<Appended, StoreError> {
        let entry = self.told(Entry::report(Key::of(t, s), report).await)?;
        self.submit_record(entry).await
    }
}
