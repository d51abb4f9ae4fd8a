//! Memory of one call: the sum over all memories and tables of its store stays under the budget.
//! wasmtime asks before every growth; a refused growth is -1 for the guest, and insisting ends the call.

use wasmtime::ResourceLimiter;

use crate::limits::{INSTANCES_MAX, MEMORIES_MAX, TABLE_ELEMENT_BYTES, TABLES_MAX};
use crate::{Fault, FaultKind};

/// Refused growths after which the call ends: a guest that loops on `memory.grow` does not burn its fuel.
const REFUSALS_MAX: u32 = 16;

/// Counts the bytes of one store.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    bytes_max: usize,
    memory_bytes: usize,
    table_bytes: usize,
    peak_bytes: usize,
    refusals: u32,
    pending_bytes: usize,
}

impl MemoryBudget {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        Self { bytes_max, memory_bytes: 0, table_bytes: 0, peak_bytes: 0, refusals: 0, pending_bytes: 0 }
    }

    /// Peak of memories and tables, which share the budget.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak_bytes as u64
    }

    /// Was a growth refused?
    pub(crate) fn refused(&self) -> bool {
        self.refusals > 0
    }

    pub(crate) fn fault(&self) -> Fault {
        Fault::new(FaultKind::OutOfMemory, format!("the guest needs more than {} bytes of memory", self.bytes_max))
    }

    fn note_peak(&mut self) {
        self.peak_bytes = self.peak_bytes.max(self.memory_bytes.saturating_add(self.table_bytes));
    }

    /// Counts `added` bytes if they fit.
    fn admit(&mut self, added: usize) -> wasmtime::Result<bool> {
        let total = self.memory_bytes.saturating_add(self.table_bytes).saturating_add(added);
        if total <= self.bytes_max {
            return Ok(true);
        }
        self.refusals = self.refusals.saturating_add(1);
        if self.refusals > REFUSALS_MAX { Err(wasmtime::Error::new(self.fault())) } else { Ok(false) }
    }
}

impl ResourceLimiter for MemoryBudget {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let added = desired.saturating_sub(current);
        self.pending_bytes = 0;
        // Growth beyond the memory's own maximum fails in wasmtime and must not be counted.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        if !self.admit(added)? {
            return Ok(false);
        }
        self.memory_bytes = self.memory_bytes.saturating_add(added);
        self.pending_bytes = added;
        self.note_peak();
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory_bytes = self.memory_bytes.saturating_sub(std::mem::take(&mut self.pending_bytes));
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let added = desired.saturating_sub(current).saturating_mul(TABLE_ELEMENT_BYTES);
        if maximum.is_some_and(|maximum| desired > maximum) || !self.admit(added)? {
            return Ok(false);
        }
        self.table_bytes = self.table_bytes.saturating_add(added);
        self.note_peak();
        Ok(true)
    }

    fn instances(&self) -> usize {
        INSTANCES_MAX
    }

    fn tables(&self) -> usize {
        TABLES_MAX
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 65_536;

    #[test]
    fn memories_and_tables_share_one_budget() {
        let mut budget = MemoryBudget::new(3 * PAGE as u64);
        assert!(budget.memory_growing(0, PAGE, None).expect("first"));
        assert!(budget.memory_growing(0, PAGE, None).expect("second memory"));
        assert!(!budget.memory_growing(PAGE, 3 * PAGE, None).expect("refused"));
        assert!(budget.table_growing(0, PAGE / TABLE_ELEMENT_BYTES, None).expect("table"));
        assert!(!budget.table_growing(0, 1, None).expect("full"));
        assert!(budget.refused());
        assert_eq!(budget.peak_bytes(), 3 * PAGE as u64);
    }

    #[test]
    fn a_failed_growth_is_given_back() {
        let mut budget = MemoryBudget::new(2 * PAGE as u64);
        assert!(budget.memory_growing(0, 2 * PAGE, None).expect("asked"));
        budget.memory_grow_failed(wasmtime::Error::msg("no memory")).expect("noted");
        assert!(budget.memory_growing(0, 2 * PAGE, None).expect("asked again"));
    }

    #[test]
    fn insisting_ends_the_call() {
        let mut budget = MemoryBudget::new(0);
        let refusals = (0..100).take_while(|_| budget.memory_growing(0, PAGE, None).is_ok()).count();
        assert_eq!(refusals, REFUSALS_MAX as usize);
    }
}
