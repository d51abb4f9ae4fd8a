//! One step: drop groups without signal, advantages, pull to the base model, one update, checkpoint.

extern crate alloc;

use alloc::collections::BTreeSet;

use reef_recipe::prelude::*;

use crate::entropic;
use crate::grid::Shape;
use crate::reference;
use crate::settings::Settings;

/// An advantage this close to 0 is the rounding of a constant group.
const ADVANTAGE_ZERO: f64 = 1e-9;

/// Learns from a full grid, which comes in the order (group, rollout): a candidate, or a skip with its reason.
pub(crate) fn propose(batch: &Batch, settings: &Settings) -> Result<Proposal> {
    let releases: BTreeSet<String> = batch.releases()?.into_iter().collect();
    if releases.len() > 1 {
        metrics::gauge("mixed_releases", releases.len() as f64);
        log::warn!("a grid of {} releases is discarded", releases.len());
        let reason = format!("the rollouts of the grid come from {} releases: the step is discarded", releases.len());
        return Ok(Proposal::skip(reason));
    }
    let scores = batch.scores()?;
    let rollouts = rollouts_per_group(batch)?;
    let kept = Kept::of(batch, &scores, rollouts);
    report_grid(&scores, rollouts, &kept);

    let trainer = Trainer::open()?;
    let advantages = advantages(&trainer, &kept, settings.kl_coefficient)?;
    if advantages.values().iter().all(|&advantage| f64::from(advantage).abs() < ADVANTAGE_ZERO) {
        metrics::gauge("zero_advantage_batch", 1.0);
        log::warn!("every advantage of the grid is zero: nothing to learn from");
        return Ok(Proposal::skip("every advantage of the grid is zero: nothing to learn from"));
    }
    let loss = PolicyGradient::new(Weight::Ratio, advantages).reduced(Reduction::TokenSum);
    for (name, value) in trainer.train(&kept.samples, loss, settings.optimizer)?.iter() {
        metrics::gauge(&format!("policy/{name}"), value);
    }
    Ok(trainer.checkpoint()?.into())
}

/// R, as the first report says it; the selection took only samples that agree.
fn rollouts_per_group(batch: &Batch) -> Result<usize> {
    let first = batch.handles().first().ok_or_else(|| Failure::other("the batch has no samples"))?;
    let shape = Shape::of(*first)?.filter(|shape| shape.rollouts > 0);
    let rollouts = shape.map(|shape| shape.rollouts as usize).filter(|&rollouts| batch.len().is_multiple_of(rollouts));
    rollouts.ok_or_else(|| Failure::other(format!("the {} samples of the batch are no grid", batch.len())))
}

/// The groups that teach something: those whose scores differ; if there are none, the first.
struct Kept {
    samples: Batch,
    /// Scores of each group.
    groups: Vec<Vec<f64>>,
    /// Groups of the grid without signal.
    constant: usize,
}

impl Kept {
    fn of(batch: &Batch, scores: &[f64], rollouts: usize) -> Self {
        let mut kept = Self { samples: Batch::default(), groups: Vec::new(), constant: 0 };
        let mut samples = Vec::new();
        for (group, scores) in batch.handles().chunks(rollouts).zip(scores.chunks(rollouts)) {
            if scores.iter().all(|score| Some(score) == scores.first()) {
                kept.constant += 1;
            } else {
                samples.extend_from_slice(group);
                kept.groups.push(scores.to_vec());
            }
        }
        if kept.groups.is_empty() {
            samples.extend(batch.handles().iter().take(rollouts));
            kept.groups.extend(scores.chunks(rollouts).next().map(<[f64]>::to_vec));
        }
        kept.samples = samples.into();
        kept
    }
}

/// The entropic advantage of each rollout on its tokens, with the pull to the base model.
fn advantages(trainer: &Trainer, kept: &Kept, kl_coefficient: f64) -> Result<PerToken<f32>> {
    let per_sample: Vec<f64> = kept.groups.iter().flat_map(|scores| entropic::advantages(scores)).collect();
    let lengths = kept.samples.response_lengths()?;
    let spread = per_sample.iter().zip(&lengths).flat_map(|(&own, &t)| core::iter::repeat_n(own, t as usize));
    let mut column: Vec<f64> = spread.collect();
    if kl_coefficient > 0.0 {
        let base = trainer.forward(Policy::Base, &kept.samples)?;
        let (rollout, masks) = (kept.samples.logprobs()?, masks(&kept.samples, &lengths)?);
        let pull = reference::pull(rollout.values(), base.values(), masks.values(), kl_coefficient);
        column.iter_mut().zip(pull).for_each(|(advantage, pull)| *advantage += pull);
    }
    PerToken::new(column.into_iter().map(|advantage| advantage as f32).collect(), &lengths)
}

/// The masks, read from the host only where a response has observations: a grid of single turns has none, and every
/// column of tokens is a host call a sample.
fn masks(samples: &Batch, lengths: &[u32]) -> Result<PerToken<u8>> {
    let actions = samples.action_counts()?;
    let own = samples.handles().iter().zip(lengths).zip(actions).map(|((&sample, &length), actions)| {
        if actions == length {
            return Ok(vec![1; length as usize]);
        }
        Ok(Batch::from(vec![sample]).masks()?.values().to_vec())
    });
    own.collect()
}

fn report_grid(scores: &[f64], rollouts: usize, kept: &Kept) {
    // Scaled, so that the squares of large scores do not overflow.
    let scale = scores.iter().fold(1.0, |largest: f64, score| largest.max(score.abs()));
    let scaled: Vec<f64> = scores.iter().map(|score| score / scale).collect();
    let zeros = scores.iter().filter(|&&score| score == 0.0).count();
    let grid_groups = scores.len() / rollouts.max(1);
    let numbers = [
        ("reward_min", scores.iter().copied().reduce(f64::min).unwrap_or(0.0)),
        ("reward_max", maths::max(scores)),
        ("reward_mean", scale * maths::mean(&scaled)),
        ("reward_std", scale * maths::sqrt(maths::variance(&scaled))),
        ("zero_fraction", zeros as f64 / scores.len().max(1) as f64),
        ("constant_groups", kept.constant as f64),
        ("grid_groups", grid_groups as f64),
        ("grid_rollouts", scores.len() as f64),
        ("training_groups", kept.groups.len() as f64),
        ("training_rollouts", kept.samples.len() as f64),
    ];
    for (name, value) in numbers {
        metrics::gauge(name, value);
    }
}
