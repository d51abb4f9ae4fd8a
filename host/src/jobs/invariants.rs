//! What must hold in every step, measured by the host whatever the recipe publishes.
//! The `training` capability tells it what the trainer said; the step stores its figures under `trainer/`, and an
//! operator hears its alarms in `GET /reef/status` and the metrics. It changes nothing: a gate decides about releases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use reef_sandbox::PoolSample;

/// Where the figures of a step begin.
pub const PREFIX: &str = "trainer/";
/// Where a recipe tells that it had nothing to learn from, by convention.
const ZERO_ADVANTAGE: &str = "zero_advantage_batch";

/// Nats a token that serving and training may differ by on what the head itself sampled. Rounding alone gives less than
/// a thousandth; a ratio that is wrong by 5 % drowns what one step learns.
const LOGPROB_DIFF_MAX: f64 = 0.05;
/// Share of the action tokens that the bounds of a ratio may drop before most of a batch teaches nothing.
const MASKED_SHARE_MAX: f64 = 0.5;
/// Lags that are counted one by one; larger ones together.
const LAGS: u32 = 8;

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alarm {
    /// Its name among metrics.
    pub invariant: &'static str,
    /// What is the matter and what helps.
    pub told: String,
}

/// Measures one step. Clones measure the same.
#[derive(Debug, Clone, Default)]
pub struct Invariants(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    /// Trainers whose weights are no longer those of the head.
    moved: BTreeSet<u32>,
    batches: u32,
    skipped: u32,
    tokens: f64,
    effective_tokens: f64,
    /// Action tokens that the bounds dropped.
    masked: f64,
    first_step_kl: Option<f64>,
    logprob_diff: Option<f64>,
    gradient_norm: f64,
}

impl Invariants {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what a trainer said of one batch; `steps`: it has made a step on it.
    pub fn observe(&self, trainer: u32, metrics: &BTreeMap<String, f64>, steps: bool) {
        let mut seen = self.seen();
        let metric = |name: &str| metrics.get(name).copied();
        let larger = |known: Option<f64>, new: f64| Some(known.unwrap_or_default().max(new.abs()));
        seen.batches += 1;
        let skipped = metric("skipped") == Some(1.0);
        seen.skipped += u32::from(skipped);
        let tokens = metric("tokens").unwrap_or_default();
        seen.tokens += tokens;
        seen.effective_tokens += metric("effective_tokens").unwrap_or_default();
        seen.masked += metric("masked_share").unwrap_or_default() * tokens;
        seen.gradient_norm = seen.gradient_norm.max(metric("gradient_norm").unwrap_or_default());
        if !seen.moved.contains(&trainer) && !skipped {
            if let Some(kl) = metric("first_step_kl") {
                seen.first_step_kl = larger(seen.first_step_kl, kl);
            }
            if let Some(apart) = metric("own_logprob_abs_diff") {
                seen.logprob_diff = larger(seen.logprob_diff, apart);
            }
        }
        if steps && !skipped {
            seen.moved.insert(trainer);
        }
    }

    /// Takes note of a step on a gradient that the recipe made.
    pub fn moved(&self, trainer: u32) {
        self.seen().moved.insert(trainer);
    }

    /// The figures of the step; none of the trainer's where it was not asked.
    pub fn figures(&self, samples: &[PoolSample]) -> BTreeMap<String, f64> {
        let seen = self.seen();
        let mut figures: BTreeMap<String, f64> = BTreeMap::new();
        for sample in samples {
            let place = if sample.lag < LAGS { sample.lag.to_string() } else { format!("{LAGS}_and_more") };
            *figures.entry(format!("{PREFIX}lag_{place}")).or_default() += 1.0;
        }
        if seen.batches > 0 {
            let measured = [
                ("batches", f64::from(seen.batches)),
                ("batches_skipped", f64::from(seen.skipped)),
                ("tokens", seen.tokens),
                ("effective_tokens", seen.effective_tokens),
                ("masked_share", seen.masked / seen.tokens.max(1.0)),
                ("gradient_norm_max", seen.gradient_norm),
            ];
            figures.extend(measured.map(|(name, value)| (format!("{PREFIX}{name}"), value)));
        }
        let first = [("first_step_kl", seen.first_step_kl), ("engine_logprob_abs_diff", seen.logprob_diff)];
        figures.extend(first.into_iter().filter_map(|(name, value)| Some((format!("{PREFIX}{name}"), value?))));
        figures
    }
}

/// What the figures of a step say is wrong; `metrics`: all of the step, the recipe's too.
pub fn alarms(step: u32, metrics: &BTreeMap<String, f64>) -> Vec<Alarm> {
    let own = |name: &str| metrics.get(&format!("{PREFIX}{name}")).copied();
    let mut alarms = Vec::new();
    let mut tell = |invariant, told: String| alarms.push(Alarm { invariant, told: format!("step {step}: {told}") });
    if let Some(kl) = own("first_step_kl").filter(|kl| *kl != 0.0) {
        tell(
            "first_step_kl",
            format!(
                "the first batch was measured at a KL of {kl:.1e} from the weights it began with, which are the same; report this as a fault of Reef"
            ),
        );
    }
    if let Some(apart) = own("engine_logprob_abs_diff").filter(|apart| *apart > LOGPROB_DIFF_MAX) {
        tell(
            "logprob_abs_diff",
            format!(
                "serving and training differ by {apart:.3} nats a token (at most {LOGPROB_DIFF_MAX}), so that ratios are noise; serve the model as it is (engine.weights: file)"
            ),
        );
    }
    let (batches, skipped) = (own("batches").unwrap_or_default(), own("batches_skipped").unwrap_or_default());
    if skipped > 0.0 && skipped == batches || metrics.get(ZERO_ADVANTAGE).is_some_and(|told| *told > 0.0) {
        tell(
            "zero_advantage",
            "no sample of the batch had an advantage, so nothing was learned; see that reports score good and bad answers differently".to_owned(),
        );
    }
    if let Some(share) = own("masked_share").filter(|share| *share > MASKED_SHARE_MAX) {
        tell(
            "masked_share",
            format!(
                "{:.0} % of the tokens lay outside the bounds of the ratio and taught nothing; lower scenarios.max_staleness or the learning rate",
                share * 100.0
            ),
        );
    }
    alarms
}

/// Puts the figures and alarms of a step that has ended into the metrics.
pub fn publish(metrics: &BTreeMap<String, f64>, samples: &[PoolSample], alarms: &[Alarm]) {
    let own = |name: &str| metrics.get(&format!("{PREFIX}{name}")).copied();
    for sample in samples {
        metrics::histogram!("reef_training_lag").record(f64::from(sample.lag));
    }
    for (name, counter) in [
        ("tokens", metrics::counter!("reef_training_tokens_total")),
        ("effective_tokens", metrics::counter!("reef_training_effective_tokens_total")),
        ("batches", metrics::counter!("reef_training_batches_total")),
        ("batches_skipped", metrics::counter!("reef_training_batches_skipped_total")),
    ] {
        counter.increment(own(name).unwrap_or_default() as u64);
    }
    for (name, gauge) in [
        ("first_step_kl", metrics::gauge!("reef_training_first_step_kl")),
        ("engine_logprob_abs_diff", metrics::gauge!("reef_training_engine_logprob_abs_diff")),
        ("masked_share", metrics::gauge!("reef_training_masked_share")),
        ("gradient_norm_max", metrics::gauge!("reef_training_gradient_norm")),
    ] {
        own(name).iter().for_each(|value| gauge.set(*value));
    }
    for alarm in alarms {
        metrics::counter!("reef_training_alarms_total", "invariant" => alarm.invariant).increment(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(pairs: &[(&str, f64)]) -> BTreeMap<String, f64> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn the_figures_of_a_step_are_those_of_all_its_batches() {
        let invariants = Invariants::default();
        let batch = [("tokens", 30.0), ("effective_tokens", 20.0), ("masked_share", 0.1), ("gradient_norm", 2.0)];
        let first = [&batch[..], &[("first_step_kl", 0.0), ("own_logprob_abs_diff", 1e-4)]].concat();
        invariants.observe(0, &metrics(&first), true);
        // The same trainer has moved: its distance from the start is what a step is for.
        let second = [&batch[..], &[("first_step_kl", 0.3), ("gradient_norm", 3.0)]].concat();
        invariants.observe(0, &metrics(&second), true);
        invariants.observe(1, &metrics(&[("skipped", 1.0), ("tokens", 10.0), ("first_step_kl", 0.0)]), true);
        invariants.moved(2);
        invariants.observe(2, &metrics(&[("first_step_kl", 0.2)]), false);
        let figures = invariants.figures(&[]);
        for (name, value) in [
            ("batches", 4.0),
            ("batches_skipped", 1.0),
            ("tokens", 70.0),
            ("effective_tokens", 40.0),
            ("masked_share", 6.0 / 70.0),
            ("gradient_norm_max", 3.0),
            ("first_step_kl", 0.0),
            ("engine_logprob_abs_diff", 1e-4),
        ] {
            assert!((figures[&format!("{PREFIX}{name}")] - value).abs() < 1e-12, "{name}: {figures:?}");
        }
        assert_eq!(alarms(1, &figures), []);
        assert!(Invariants::default().figures(&[]).is_empty(), "a trainer that was not asked says nothing");
    }

    #[test]
    fn each_invariant_that_does_not_hold_is_told_with_its_remedy() {
        for (broken, invariant, remedy) in [
            (("trainer/first_step_kl", 1e-9), "first_step_kl", "report this"),
            (("trainer/engine_logprob_abs_diff", 0.2), "logprob_abs_diff", "engine.weights"),
            (("trainer/masked_share", 0.8), "masked_share", "max_staleness"),
            (("zero_advantage_batch", 1.0), "zero_advantage", "score"),
        ] {
            let told = alarms(7, &metrics(&[broken]));
            assert_eq!(told.len(), 1, "{told:?}");
            assert_eq!(told[0].invariant, invariant);
            assert!(told[0].told.starts_with("step 7: ") && told[0].told.contains(remedy), "{told:?}");
        }
        let some = [("trainer/batches", 2.0), ("trainer/batches_skipped", 1.0)];
        assert_eq!(alarms(1, &metrics(&some)), [], "one batch of two taught something");
        let all = [("trainer/batches", 2.0), ("trainer/batches_skipped", 2.0)];
        assert_eq!(alarms(1, &metrics(&all)).len(), 1);
    }
}
