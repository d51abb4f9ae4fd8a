//! One policy gradient, computed twice: with `loss` = `host` the trainer computes loss and gradient, with `guest`
//! this recipe computes dL/d(log π) itself and hands it to the backward pass. Both must give the same adapter.
//! It is built by the tests and never shipped.
#![no_std]

pub mod masked;

use reef_recipe::prelude::*;

use masked::{Columns, Masked};

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct OwnLoss;

const LOSS: Key<&str> = Key::text("loss", "guest", "who computes the loss: host or guest");
const BATCH_SIZE: Key<u32> = Key::count("batch_size", 4, "scored answers per step").within(1.0, 512.0);
const LEARNING_RATE: Key<f64> = Key::number("learning_rate", 5e-4, "learning rate of the adapter").within(0.0, 1.0);
const EPSILON: Key<f64> = Key::number("epsilon", 1e-8, "epsilon of AdamW").within(0.0, 1.0);
const LOW: Key<f64> = Key::number("low", 0.7, "tokens count while the ratio is above").within(0.0, 1.0);
const HIGH: Key<f64> = Key::number("high", 6.0, "tokens count while the ratio is below").within(1.0, 1_000.0);

impl Recipe for OwnLoss {
    fn describe() -> Manifest {
        use Capability::{Experience, Metrics, Training};
        Manifest::weights("own-loss", env!("CARGO_PKG_VERSION"))
            .needs_score()
            .asks(&[Experience, Training, Metrics])
            .key(LOSS)
            .key(BATCH_SIZE)
            .key(LEARNING_RATE)
            .key(EPSILON)
            .key(LOW)
            .key(HIGH)
    }

    fn select(_: &Context, pool: &Pool) -> Result<Selection> {
        Ok(pool.first(BATCH_SIZE.get()?))
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        let scores = batch.scores()?;
        let better: Vec<f64> = scores.iter().map(|score| score - maths::mean(&scores)).collect();
        let advantages = batch.per_token(&better)?;
        let optimizer = Optimizer { epsilon: EPSILON.get()?, ..Optimizer::adamw(LEARNING_RATE.get()?) };
        let trainer = Trainer::open()?;
        let measured = match LOSS.get()?.as_str() {
            "host" => trainer.train(batch, PolicyGradient::new(Weight::Masked(bounds()?), advantages), optimizer)?,
            "guest" => {
                trainer.backward(batch, &gradient(&trainer, batch, &advantages)?)?;
                trainer.optimizer_step(optimizer)?
            }
            other => return Err(Failure::config(LOSS.name, &format!("'{other}' is neither host nor guest"))),
        };
        if let Some(norm) = measured.get("gradient_norm") {
            metrics::gauge("gradient_norm", norm);
        }
        Ok(trainer.checkpoint()?.into())
    }
}

/// In the host's precision, so that both sides compare with the same numbers.
fn bounds() -> Result<Bounds> {
    Ok(Bounds { low: LOW.get()? as f32, high: HIGH.get()? as f32 })
}

fn gradient(trainer: &Trainer, batch: &Batch, advantages: &PerToken<f32>) -> Result<PerToken<f32>> {
    let Bounds { low, high } = bounds()?;
    let loss = Masked { low: low.into(), high: high.into() };
    let (masks, current, rollout) = (batch.masks()?, trainer.forward(Policy::Current, batch)?, batch.logprobs()?);
    let samples = masks.parts().zip(current.parts()).zip(rollout.parts()).zip(advantages.parts());
    let narrow = |gradient: Vec<f64>| gradient.into_iter().map(|number| number as f32).collect::<Vec<f32>>();
    Ok(samples
        .map(|(((mask, current), rollout), advantages)| {
            narrow(loss.gradient(Columns { mask, current, rollout, advantages }, batch.len()))
        })
        .collect())
}

reef_recipe::export!(OwnLoss);
