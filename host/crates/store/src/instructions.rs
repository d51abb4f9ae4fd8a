//! Instructions: what people ask of the harness, appended durably and exactly once, as records of a kind of their own.
//! No sample comes of them; `proposals.rs` knows what answers one.

use reef_core::{Instruction, ScenarioName, TenantId};

use crate::Store;
use crate::entry::Entry;
use crate::error::StoreError;
use crate::key::Key;
use crate::reports::Appended;

impl Store {
    /// Appends an instruction; durable on return. The same id and content again is one instruction; other content is a
    /// `Conflict`.
    pub async fn append_instruction(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        instruction: Instruction,
    ) -> Result<Appended, StoreError> {
        let entry = self.told(Entry::instruction(Key::of(t, s), instruction).await)?;
        self.submit_record(entry).await
    }
}
