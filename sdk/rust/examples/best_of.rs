//! Best-of: answers that scored above the mean of their batch become likelier, the others less likely.
//! It uses a little of everything that a recipe of weights has at hand: configuration, retirement, state,
//! metrics, a line of the log, and a verdict with a measurement.
#![no_std]
use reef_recipe::prelude::*;

/// The recipe.
pub(crate) struct BestOf;

const BATCH_SIZE: Key<u32> = Key::count("batch_size", 4, "scored answers per step").within(2.0, 512.0);
const LEARNING_RATE: Key<f64> = Key::number("learning_rate", 5e-4, "learning rate of the adapter");

/// State key: batches without a signal so far, u32.
const SKIPPED: &str = "skipped";

impl Recipe for BestOf {
    fn describe() -> Manifest {
        use Capability::{Experience, Metrics, State, Training};
        Manifest::weights("best-of", "0.1.0")
            .needs_score()
            .asks(&[Experience, Training, State, Metrics])
            .key(BATCH_SIZE)
            .key(LEARNING_RATE)
    }

    fn select(_: &Context, pool: &Pool) -> Result<Selection> {
        let (mut usable, mut retired) = (Vec::new(), Vec::new());
        for ((&sample, score), _prompt_key) in pool.handles().iter().zip(pool.scores()?).zip(pool.prompt_keys()?) {
            if score.is_finite() {
                usable.push(sample);
            } else {
                retired.push(Retirement::new(sample, "no score"));
            }
        }
        Ok(Pool::from(usable).first(BATCH_SIZE.get()?).retire(retired))
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        let scores = batch.scores()?;
        let mean = maths::mean(&scores);
        if scores.iter().all(|score| Some(score) == scores.first()) {
            state::set(SKIPPED, &(state::get::<u32>(SKIPPED)?.unwrap_or(0) + 1))?;
            return Ok(Proposal::skip("all scores are equal"));
        }
        let better: Vec<f64> = scores.iter().map(|score| score - mean).collect();
        let trainer = Trainer::open()?;
        trainer.train(batch, PolicyGradient::new(Weight::Reinforce, better), Optimizer::adamw(LEARNING_RATE.get()?))?;
        metrics::gauge("best_of/mean", mean);
        log::info!(context: "best-of", "trained on {} samples", batch.len());
        Ok(trainer.checkpoint()?.into())
    }

    fn evaluate(_: &Context, subject: Candidate) -> Result<Verdict> {
        let verdict = Verdict::promote("left to the operator's gate");
        Ok(verdict.measure("best_of/candidate", f64::from(subject.handle())))
    }
}

reef_recipe::export!(BestOf);
