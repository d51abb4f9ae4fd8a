//! On-policy distillation: the student answers, a separate frozen teacher says how likely each token of the answer
//! is, and the student moves towards the teacher where it went.
//! This file is the recipe as it is read from the host: describe, select, propose, evaluate.
#![no_std]
#![deny(missing_docs)]

mod settings;

use reef_recipe::prelude::*;

use settings::{Settings, keys};

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct Opd;

impl Recipe for Opd {
    fn describe() -> Manifest {
        use Capability::{Experience, Metrics, Training};
        keys(Manifest::weights("opd", env!("CARGO_PKG_VERSION")))
            .asks(&[Experience, Training, Metrics])
            .judged_on_held_out()
    }

    fn select(ctx: &Context, pool: &Pool) -> Result<Selection> {
        let (usable, retired) = Needs::fresh(ctx.max_staleness).sift(pool)?;
        Ok(usable.first(settings::BATCH_SIZE.get()?).retire(retired))
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        let settings = Settings::read()?;
        let lags: Vec<f64> = batch.lags()?.into_iter().map(f64::from).collect();
        metrics::gauge("lag_mean", maths::mean(&lags));
        metrics::gauge("lag_max", maths::max(&lags));
        let loss = Distillation::new(Policy::Named(settings.teacher), Divergence::REVERSE).over(Support::Sampled);
        Trainer::open()?.learn(batch, loss, settings.optimizer)
    }

    fn evaluate(_: &Context, _: Candidate) -> Result<Verdict> {
        Verdict::on_held_out()
    }
}

reef_recipe::export!(Opd);
