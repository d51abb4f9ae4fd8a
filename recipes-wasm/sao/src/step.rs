//! One step: values, advantages, critic, policy, checkpoint. The advantages come from the values before this
//! step's fit of the critic, so that no answer is judged by a baseline that has already seen its reward.

use reef_recipe::prelude::*;

use crate::gae;
use crate::schedule::{Turn, take_turn};
use crate::settings::Settings;

/// What the critic makes of a batch, in f64 and one entry per response token of each sample.
struct Estimate {
    advantages: Vec<Vec<f64>>,
    targets: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
}

/// Learns from the batch: a candidate, or a skip with its reason.
pub(crate) fn propose(batch: &Batch, settings: &Settings) -> Result<Proposal> {
    let trainer = Trainer::open()?;
    let (scores, masks) = (batch.scores()?, batch.masks()?);
    let estimate = estimate(&trainer.values(batch)?, &masks, &scores, settings);
    report_batch(batch, &scores, &masks, &estimate)?;

    let turn = take_turn(settings.critic_warmup_steps)?;
    let updates = match turn {
        Turn::WarmUp { .. } => settings.critic_warmup_updates,
        Turn::Actor => settings.critic_steps_per_actor,
    };
    let targets = column(&estimate.targets);
    let fit = trainer.fit_values(batch, &targets, CriticOptimizer { learning_rate: settings.critic_lr, updates })?;
    if let Some(loss) = fit.get("value_loss") {
        metrics::gauge("critic/value_loss", loss);
    }
    if let Turn::WarmUp { number, of } = turn {
        trainer.checkpoint()?;
        return Ok(Proposal::skip(format!("critic warm-up {number} of {of}")));
    }

    let advantages = column(&estimate.advantages);
    if advantages.values().iter().all(|&advantage| advantage == 0.0) {
        trainer.checkpoint()?;
        metrics::gauge("zero_advantage_batch", 1.0);
        log::warn!("every advantage of the batch is zero: nothing to learn from");
        return Ok(Proposal::skip("every advantage of the batch is zero: nothing to learn from"));
    }
    trainer.learn(batch, PolicyGradient::new(settings.dis.weight(), advantages), settings.policy)
}

fn estimate(values: &PerToken<f32>, masks: &PerToken<u8>, scores: &[f64], settings: &Settings) -> Estimate {
    let mut estimate = Estimate { advantages: Vec::new(), targets: Vec::new(), values: Vec::new() };
    for ((values, mask), &score) in values.parts().zip(masks.parts()).zip(scores) {
        let values: Vec<f64> = values.iter().copied().map(f64::from).collect();
        let lambda = settings.lambda.at(mask.len());
        estimate.advantages.push(gae::advantages(&values, mask, score, settings.gamma, lambda));
        estimate.targets.push(gae::critic_targets(&values, mask, score, settings.gamma));
        estimate.values.push(values);
    }
    estimate
}

/// The host's shape and precision.
fn column(parts: &[Vec<f64>]) -> PerToken<f32> {
    parts.iter().map(|part| part.iter().map(|&number| number as f32).collect()).collect()
}

fn report_batch(batch: &Batch, scores: &[f64], masks: &PerToken<u8>, estimate: &Estimate) -> Result<()> {
    let lags: Vec<f64> = batch.lags()?.into_iter().map(f64::from).collect();
    let actions = |parts: &[Vec<f64>]| action_tokens(parts, masks);
    let advantages: Vec<f64> = actions(&estimate.advantages).into_iter().map(f64::abs).collect();
    let returns = actions(&estimate.targets);
    let numbers = [
        ("reward_mean", maths::mean(scores)),
        ("reward_max", maths::max(scores)),
        ("advantage_abs_mean", maths::mean(&advantages)),
        ("lag_mean", maths::mean(&lags)),
        ("lag_max", maths::max(&lags)),
        ("effective_token_rate", returns.len() as f64 / masks.values().len().max(1) as f64),
        ("critic/explained_variance", explained_variance(&returns, &actions(&estimate.values))),
    ];
    for (name, value) in numbers {
        metrics::gauge(name, value);
    }
    Ok(())
}

fn action_tokens(parts: &[Vec<f64>], masks: &PerToken<u8>) -> Vec<f64> {
    let tokens = parts.iter().flatten().zip(masks.values());
    tokens.filter(|&(_, &action)| action != 0).map(|(&number, _)| number).collect()
}

/// 1 − Var(R − V)/Var(R); 0 when all returns are equal, since there is nothing to explain.
fn explained_variance(returns: &[f64], values: &[f64]) -> f64 {
    let spread = maths::variance(returns);
    if spread == 0.0 {
        return 0.0;
    }
    let missed: Vec<f64> = returns.iter().zip(values).map(|(target, value)| target - value).collect();
    1.0 - maths::variance(&missed) / spread
}
