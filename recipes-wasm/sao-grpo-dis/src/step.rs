//! One step: advantages group by group, one update on the groups that say anything, checkpoint.

use reef_recipe::prelude::*;

use crate::advantage::group_relative;
use crate::settings::Settings;

/// Learns from the batch: a candidate, or a skip with its reason.
pub(crate) fn propose(batch: &Batch, settings: &Settings) -> Result<Proposal> {
    let scores = batch.scores()?;
    let (mut samples, mut advantages, mut constant) = (Vec::new(), Vec::new(), 0.0);
    let groups = settings.grid.cut(batch.handles())?.zip(settings.grid.cut(&scores)?);
    for (group, rewards) in groups {
        match group_relative(rewards, settings.divide_by_std) {
            Some(relative) => {
                samples.extend_from_slice(group);
                advantages.extend(relative);
            }
            None => constant += 1.0,
        }
    }
    report(batch, &scores, &advantages)?;
    metrics::gauge("constant_groups", constant);
    if samples.is_empty() {
        metrics::gauge("zero_advantage_batch", 1.0);
        log::warn!("every group of the batch has equal scores: nothing to learn from");
        return Ok(Proposal::skip("every group of the batch has equal scores: nothing to learn from"));
    }
    let loss = PolicyGradient::new(settings.dis.weight(), advantages);
    Trainer::open()?.learn(&samples.into(), loss, settings.policy)
}

fn report(batch: &Batch, scores: &[f64], advantages: &[f64]) -> Result<()> {
    let lags: Vec<f64> = batch.lags()?.into_iter().map(f64::from).collect();
    let sizes: Vec<f64> = advantages.iter().copied().map(f64::abs).collect();
    let numbers = [
        ("reward_mean", maths::mean(scores)),
        ("reward_max", maths::max(scores)),
        ("advantage_abs_mean", maths::mean(&sizes)),
        ("lag_mean", maths::mean(&lags)),
        ("lag_max", maths::max(&lags)),
    ];
    for (name, value) in numbers {
        metrics::gauge(name, value);
    }
    Ok(())
}
