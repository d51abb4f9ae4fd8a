//! When a recipe that keeps failing is left alone. Pure: the caller gives the time and keeps one per scenario.
//! Faults in a window lead to a pause; a fault after the pause doubles it; a success ends the story.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::{Blame, Fault, FaultKind};

/// When to pause, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuarantinePolicy {
    /// Faults within the window that lead to a pause.
    pub faults_max: u32,
    /// Milliseconds that a fault is remembered.
    pub window_ms: u64,
    /// Milliseconds of the first pause.
    pub pause_ms: u64,
    /// Milliseconds of the longest pause.
    pub pause_ms_max: u64,
}

impl Default for QuarantinePolicy {
    fn default() -> Self {
        Self { faults_max: 3, window_ms: 600_000, pause_ms: 60_000, pause_ms_max: 3_600_000 }
    }
}

/// A pause that is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// End of the pause, milliseconds since the Unix epoch.
    pub until_ms: i64,
    /// The fault that led to it.
    pub reason: String,
}

/// The record of one recipe in one scenario. As JSON it is what happened, without the policy.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Quarantine {
    #[serde(skip)]
    policy: QuarantinePolicy,
    faults_ms: VecDeque<i64>,
    pauses: u32,
    block: Option<Block>,
}

impl Quarantine {
    /// A clean record.
    pub fn new(policy: QuarantinePolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Notes a fault. Faults that are the host's, and cancelled calls, are not held against the recipe.
    pub fn record(&mut self, now_ms: i64, fault: &Fault) {
        if fault.blame() == Blame::Host || fault.kind == FaultKind::Cancelled {
            return;
        }
        let oldest = now_ms.saturating_sub(saturating(self.policy.window_ms));
        self.faults_ms.retain(|at| *at >= oldest);
        self.faults_ms.push_back(now_ms);
        // Once paused, a recipe is on probation until it succeeds.
        let allowed = if self.pauses > 0 { 1 } else { self.policy.faults_max.max(1) };
        if self.faults_ms.len() < allowed as usize {
            return;
        }
        let factor = 1_u64.checked_shl(self.pauses.min(32)).unwrap_or(u64::MAX);
        let pause_ms = self.policy.pause_ms.saturating_mul(factor).min(self.policy.pause_ms_max);
        self.pauses = self.pauses.saturating_add(1);
        self.faults_ms.clear();
        self.block = Some(Block { until_ms: now_ms.saturating_add(saturating(pause_ms)), reason: fault.to_string() });
    }

    /// Nothing is held against the recipe.
    pub fn is_clean(&self) -> bool {
        self.faults_ms.is_empty() && self.pauses == 0 && self.block.is_none()
    }

    /// The pause that is in force now.
    pub fn blocked(&self, now_ms: i64) -> Option<&Block> {
        self.block.as_ref().filter(|block| now_ms < block.until_ms)
    }

    /// Notes a call that ended well.
    pub fn success(&mut self) {
        self.faults_ms.clear();
        self.pauses = 0;
        self.block = None;
    }
}

fn saturating(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trap() -> Fault {
        Fault::new(FaultKind::Trap, "unreachable")
    }

    #[test]
    fn three_faults_in_the_window_pause_the_recipe() {
        let mut record = Quarantine::default();
        for now in [0, 700_000, 700_001] {
            record.record(now, &trap());
            assert_eq!(record.blocked(now), None);
        }
        record.record(700_002, &trap());
        let block = record.blocked(700_003).expect("paused");
        assert_eq!(block.until_ms, 760_002);
        assert!(block.reason.contains("unreachable"));
        assert_eq!(record.blocked(760_002), None);
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_a_success_resets_them() {
        let mut record = Quarantine::default();
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..2 {
            record.record(now, &trap());
        }
        for _ in 0..9 {
            record.record(now, &trap());
            let until = record.blocked(now).expect("paused").until_ms;
            pauses.push((until - now) / 60_000);
            now = until;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        record.success();
        record.record(now, &trap());
        assert_eq!(record.blocked(now), None);
    }

    #[test]
    fn a_record_that_was_written_and_read_pauses_as_before() {
        let mut record = Quarantine::default();
        for now in 0..4 {
            record.record(now, &trap());
        }
        let text = serde_json::to_string(&record).expect("text");
        let mut read: Quarantine = serde_json::from_str(&text).expect("read");
        assert_eq!(read.blocked(5), record.blocked(5));
        read.record(200_000, &trap());
        record.record(200_000, &trap());
        assert_eq!(
            read.blocked(200_001).expect("doubled").until_ms,
            record.blocked(200_001).expect("doubled").until_ms
        );
        assert!(!read.is_clean());
        read.success();
        assert!(read.is_clean());
    }

    #[test]
    fn faults_of_others_do_not_count() {
        let mut record = Quarantine::new(QuarantinePolicy { faults_max: 1, ..Default::default() });
        for kind in [FaultKind::Overloaded, FaultKind::Cancelled, FaultKind::HostBug, FaultKind::MissingCapability] {
            record.record(0, &Fault::new(kind, "not the recipe's doing"));
            assert_eq!(record.blocked(0), None);
        }
        record.record(0, &Fault::new(FaultKind::Declined, "no"));
        assert!(record.blocked(0).is_some());
    }
}
