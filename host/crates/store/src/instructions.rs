//! Instructions: what people ask of the harness, appended durably and exactly once, as records of a kind of their own.
//! Where a recipe of the harness reads them, each is a sample of it too; `proposals.rs` knows what else answers one.

use reef_core::{Instruction, RecordId, ScenarioName, Surface, TenantId};

use crate::Store;
use crate::entry::Entry;
use crate::error::{StoreError, damaged};
use crate::key::Key;
use crate::reports::Appended;
use crate::sql;

/// Where an instruction is on its way through a recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstructionState {
    /// No step has taken it yet.
    Waiting,
    /// This step works on it.
    InStep(u32),
    /// This step used it.
    Used(u32),
    /// It was set aside, and why.
    SetAside(String),
}

impl Store {
    /// Appends an instruction; durable on return. The same id and content again is one instruction; other content is a
    /// `Conflict`. `read`: a recipe of the harness reads what is asked.
    pub async fn append_instruction(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        instruction: Instruction,
        read: bool,
    ) -> Result<Appended, StoreError> {
        let entry = self.told(Entry::instruction(Key::of(t, s), instruction, read).await)?;
        self.submit_record(entry).await
    }

    /// Where an instruction is; none if no recipe reads it.
    pub async fn instruction_state(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        id: &RecordId,
    ) -> Result<Option<InstructionState>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT state, step, reason FROM samples \
                   WHERE tenant = $1 AND scenario = $2 AND report = $3 AND surface = $4";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(id.as_str());
        let query = query.bind(Surface::Harness.as_str());
        let row: Option<(String, Option<i64>, Option<String>)> = self.told(query.fetch_optional(&mut conn).await)?;
        let Some((state, step, reason)) = row else { return Ok(None) };
        let step = step.and_then(|step| u32::try_from(step).ok());
        self.told(match (state.as_str(), step) {
            ("pending", _) => Ok(Some(InstructionState::Waiting)),
            ("reserved", Some(step)) => Ok(Some(InstructionState::InStep(step))),
            ("consumed", Some(step)) => Ok(Some(InstructionState::Used(step))),
            ("retired", _) => Ok(Some(InstructionState::SetAside(reason.unwrap_or_default()))),
            _ => Err(damaged("state of a sample", state)),
        })
    }

    /// Does an instruction wait for a recipe?
    pub async fn instruction_waits(&self, t: &TenantId, s: &ScenarioName) -> Result<bool, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT s.sequence FROM samples AS s JOIN records AS r ON r.tenant = s.tenant \
                     AND r.scenario = s.scenario AND r.sequence = s.sequence \
                   WHERE s.tenant = $1 AND s.scenario = $2 AND s.surface = $3 AND s.state = 'pending' \
                     AND r.kind = 'instruction' LIMIT 1";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(Surface::Harness.as_str());
        let found: Option<i64> = self.told(query.scalar_optional(&mut conn).await)?;
        Ok(found.is_some())
    }
}
