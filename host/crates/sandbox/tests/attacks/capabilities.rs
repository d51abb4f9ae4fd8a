//! Guests that misuse what they were granted, and host calls that are slow.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reef_sandbox::{Cancel, Capability, FaultKind, Optimizer, Policy, Proposal, Term, Training, TrainingError};

use crate::guest::*;

/// A trainer whose `open` takes a while.
pub struct Slow {
    open_ms: u64,
    derived: u32,
    dropped: Arc<AtomicBool>,
    /// Cancelled as soon as `open` runs.
    cancel: Option<Cancel>,
}

impl Slow {
    pub fn taking(open_ms: u64) -> Option<Box<dyn Training>> {
        Some(Box::new(Self { open_ms, derived: 0, dropped: Arc::default(), cancel: None }))
    }

    /// Somebody cancels the call while `open` runs.
    fn cancelled(open_ms: u64, cancel: &Cancel) -> Option<Box<dyn Training>> {
        Some(Box::new(Self { open_ms, derived: 0, dropped: Arc::default(), cancel: Some(cancel.clone()) }))
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

impl Training for Slow {
    fn open(&mut self) -> Result<u32, TrainingError> {
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
        std::thread::sleep(Duration::from_millis(self.open_ms));
        Ok(3)
    }
    fn forward(&mut self, _: u32, _: Policy, _: &[u32]) -> Result<Vec<f32>, TrainingError> {
        Ok(vec![])
    }
    fn derive(&mut self, _: u32, _: Option<Vec<u32>>, _: Option<Vec<u32>>) -> Result<u32, TrainingError> {
        self.derived += 1;
        Ok(99 + self.derived)
    }
    fn train(&mut self, _: u32, _: &[u32], _: Vec<Term>, _: Optimizer) -> Result<BTreeMap<String, f64>, TrainingError> {
        Ok(BTreeMap::new())
    }
    fn forward_backward(&mut self, _: u32, _: &[u32], _: Vec<Term>) -> Result<BTreeMap<String, f64>, TrainingError> {
        Ok(BTreeMap::new())
    }
    fn backward(&mut self, _: u32, _: &[u32], _: Vec<f32>) -> Result<BTreeMap<String, f64>, TrainingError> {
        Ok(BTreeMap::new())
    }
    fn optimizer_step(&mut self, _: u32, _: Optimizer) -> Result<BTreeMap<String, f64>, TrainingError> {
        Ok(BTreeMap::new())
    }
    fn update_ema(&mut self, _: u32, _: f64) -> Result<(), TrainingError> {
        Ok(())
    }
    fn values(&mut self, _: u32, _: &[u32]) -> Result<Vec<f32>, TrainingError> {
        Ok(vec![])
    }
    fn fit_values(
        &mut self,
        _: u32,
        _: &[u32],
        _: Vec<f32>,
        _: f64,
        _: u32,
    ) -> Result<BTreeMap<String, f64>, TrainingError> {
        Ok(BTreeMap::new())
    }
    fn checkpoint(&mut self, trainer: u32) -> Result<u32, TrainingError> {
        Ok(trainer * 10)
    }
}

fn opening(then: &str) -> Guest {
    let guest = Guest::good().importing("training", "open", "(param i32)");
    Guest { propose: format!("(call $open (i32.const 64)) {then}"), ..guest }
}

/// select-samples, a million host calls → HostLimit(experience) soon after twice the budget, 5 s.
#[tokio::test]
async fn a_flood_of_host_calls_is_cut_off() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let guest = Guest::good().importing("experience", "scores", "(param i32 i32 i32)");
        let flood = "(loop $again (call $scores (i32.const 0) (i32.const 0) (i32.const 64)) (br $again)) unreachable";
        let recipe = load(&sandbox, Guest { select: flood.into(), ..guest }).await.expect("loads");
        let outcome = within(5_000, recipe.select_samples(call())).await;
        assert_eq!(kind(&outcome), FaultKind::HostLimit(Capability::Experience));
        assert!(outcome.report.host_calls["experience"] > 2 * small().host_calls_max);
        still_works(&sandbox).await;
    })
    .await;
}

/// select-samples, a forged sample in a column call → the typed error unknown-sample with the handle, 5 s.
#[tokio::test]
async fn a_forged_handle_in_a_host_call_is_a_typed_error() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let mut guest = Guest::good().importing("experience", "scores", "(param i32 i32 i32)");
        let (forged, answer) = (guest.data.words(&[99]), guest.data.train(&[0], &[]));
        // Expects err(unknown-sample(99)) at 64 and traps on anything else.
        guest.select = format!(
            "(call $scores (i32.const {forged}) (i32.const 1) (i32.const 64))
         (if (i32.ne (i32.load8_u (i32.const 64)) (i32.const 1)) (then unreachable))
         (if (i32.ne (i32.load8_u (i32.const 68)) (i32.const 0)) (then unreachable))
         (if (i32.ne (i32.load (i32.const 72)) (i32.const 99)) (then unreachable))
         i32.const {answer}"
        );
        let recipe = load(&sandbox, guest).await.expect("loads");
        assert!(within(5_000, recipe.select_samples(call())).await.result.is_ok());
    })
    .await;
}

/// select-samples, 600 log lines of 1 KiB → the call succeeds, 64 KiB are kept, the rest is counted, 5 s.
#[tokio::test]
async fn a_huge_log_is_dropped_and_counted() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let mut guest = Guest::good().importing("log", "log", "(param i32 i32 i32)");
        let [line, length] = guest.data.text(&"x".repeat(1_024));
        let answer = guest.data.train(&[0], &[]);
        guest.select = format!(
            "(local $n i32)
         (loop $again
           (call $log (i32.const 2) (i32.const {line}) (i32.const {length}))
           (local.set $n (i32.add (local.get $n) (i32.const 1)))
           (br_if $again (i32.lt_u (local.get $n) (i32.const 600))))
         i32.const {answer}"
        );
        let recipe = load(&sandbox, guest).await.expect("loads");
        let outcome = within(5_000, recipe.select_samples(call())).await;
        assert!(outcome.result.is_ok(), "{:?}", outcome.result);
        assert_eq!(outcome.report.log_dropped_bytes, (600 - 64) * 1_024);
    })
    .await;
}

fn setting(then: &str) -> Guest {
    let mut guest = Guest::good().importing("state", "set", "(param i32 i32 i32 i32 i32)");
    let ([key, key_length], [value, value_length]) = (guest.data.text("k"), guest.data.text("v"));
    let set = format!(
        "(call $set (i32.const {key}) (i32.const {key_length}) (i32.const {value}) (i32.const {value_length})
            (i32.const 64))"
    );
    guest.select = format!("{set} {then}");
    guest
}

/// select-samples, a write of state and then an answer or a trap → the write, or nothing, 5 s each.
#[tokio::test]
async fn writes_of_state_are_dropped_with_the_call() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let recipe = load(&sandbox, setting(&Guest::good().select)).await.expect("loads");
        assert_eq!(within(5_000, recipe.select_samples(call())).await.state, [("k".to_owned(), Some(b"v".to_vec()))]);
        let trapping = load(&sandbox, setting("unreachable")).await.expect("loads");
        let outcome = within(5_000, trapping.select_samples(call())).await;
        assert_eq!(kind(&outcome), FaultKind::Trap);
        assert_eq!(outcome.report.host_calls["state"], 1);
    })
    .await;
}

/// propose-update, a trap while a trainer is open → Trap, and the trainer comes back, 5 s.
#[tokio::test]
async fn the_trainer_comes_back_from_a_guest_that_traps() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let recipe = load(&sandbox, opening("unreachable")).await.expect("loads");
        let mut call = call();
        call.training = Slow::taking(0);
        let outcome = within(5_000, recipe.propose_update(call)).await;
        assert_eq!(kind(&outcome), FaultKind::Trap);
        assert!(outcome.training.is_some());
    })
    .await;
}

/// propose-update, open then checkpoint → the candidate's handle; time in the trainer is host time, 5 s.
#[tokio::test]
async fn a_checkpoint_becomes_the_proposal_and_training_is_host_time() {
    for_each_sandbox(async || {
        let sandbox = sandbox(reef_sandbox::SandboxConfig { wall_propose_ms: 100, ..small() });
        let guest = opening(
            "(call $checkpoint (i32.load (i32.const 68)) (i32.const 128)) (i32.store (i32.const 72)
            (i32.load (i32.const 132))) (i32.store (i32.const 68) (i32.const 0)) i32.const 64",
        );
        let guest = guest.importing("training", "checkpoint", "(param i32 i32)");
        let recipe = load(&sandbox, guest).await.expect("loads");
        let mut call = call();
        call.training = Slow::taking(300);
        let outcome = within(5_000, recipe.propose_update(call)).await;
        assert_eq!(outcome.result.expect("proposal"), Proposal::Weights(30));
        assert!(outcome.report.host_us >= 300_000 && outcome.report.guest_us < 100_000, "{:?}", outcome.report);
    })
    .await;
}

/// propose-update without a trainer → MissingCapability before any guest code runs.
#[tokio::test]
async fn a_call_without_its_trainer_is_refused() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let recipe = load(&sandbox, opening("unreachable")).await.expect("loads");
        let outcome = recipe.propose_update(call()).await;
        assert_eq!((kind(&outcome), outcome.report.fuel), (FaultKind::MissingCapability, 0));
    })
    .await;
}

fn cancel_after(ms: u64) -> Cancel {
    let cancel = Cancel::new();
    let clone = cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        clone.cancel();
    });
    cancel
}

/// propose-update, cancelled during a host call that ends within the grace and during one that does not → Cancelled both
/// times, 2 s and 5 s; the trainer comes back from the first.
#[tokio::test]
async fn cancelling_during_a_slow_host_call_ends_the_call() {
    for_each_sandbox(async || {
        for (open_ms, cancel_grace_ms, comes_back) in [(200, 30_000, true), (10_000, 300, false)] {
            let sandbox = sandbox(reef_sandbox::SandboxConfig { cancel_grace_ms, ..small() });
            let recipe = load(&sandbox, opening("(loop $spin (br $spin)) unreachable")).await.expect("loads");
            let cancel = Cancel::new();
            let training = Slow::cancelled(open_ms, &cancel);
            let call = reef_sandbox::Call { training, cancel, ..call() };
            let outcome = within(5_000, recipe.propose_update(call)).await;
            assert_eq!(kind(&outcome), FaultKind::Cancelled);
            assert_eq!(outcome.training.is_some(), comes_back, "{open_ms} ms");
            still_works(&sandbox).await;
        }
    })
    .await;
}

/// select-samples, an endless loop, cancelled after 50 ms → Cancelled, 1.5 s.
#[tokio::test]
async fn cancelling_ends_a_guest_that_runs() {
    for_each_sandbox(async || {
        let sandbox = sandbox(reef_sandbox::SandboxConfig { fuel_select: u64::MAX / 2, ..small() });
        let recipe = load(&sandbox, Guest::doing("(loop $spin (br $spin)) unreachable")).await.expect("loads");
        let outcome =
            within(1_500, recipe.select_samples(reef_sandbox::Call { cancel: cancel_after(50), ..call() })).await;
        assert_eq!(kind(&outcome), FaultKind::Cancelled);
    })
    .await;
}

/// propose-update, the caller goes away during a host call → the slot is free again and the trainer is dropped, 5 s.
#[tokio::test]
async fn a_caller_that_goes_away_leaves_nothing_behind() {
    for_each_sandbox(async || {
        let sandbox = sandbox(reef_sandbox::SandboxConfig { calls_concurrent_max: 1, ..small() });
        let recipe = load(&sandbox, opening("unreachable")).await.expect("loads");
        let dropped = Arc::new(AtomicBool::new(false));
        let slow = Slow { open_ms: 200, derived: 0, dropped: Arc::clone(&dropped), cancel: None };
        let training: Box<dyn Training> = Box::new(slow);
        let gone = recipe.propose_update(reef_sandbox::Call { training: Some(training), ..call() });
        assert!(tokio::time::timeout(Duration::from_millis(50), gone).await.is_err());
        within(5_000, still_works(&sandbox)).await;
        let waiting = async {
            while !dropped.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(5_000, waiting).await;
    })
    .await;
}
