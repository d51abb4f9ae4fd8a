//! REINFORCE: every token of an answer is credited with how much better than the average that answer was.
#![no_std]
use reef_recipe::prelude::*;

struct Reinforce;

const BATCH_SIZE: Key<u32> = Key::count("batch_size", 32, "scored answers per step").within(2.0, 512.0);

impl Recipe for Reinforce {
    fn describe() -> Manifest {
        let asks = [Capability::Experience, Capability::Training];
        Manifest::weights("reinforce", "0.1.0").needs_score().asks(&asks).key(BATCH_SIZE)
    }

    fn select(_: &Context, pool: &Pool) -> Result<Selection> {
        Ok(pool.first(BATCH_SIZE.get()?))
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        let scores = batch.scores()?;
        let better: Vec<f64> = scores.iter().map(|score| score - maths::mean(&scores)).collect();
        let trainer = Trainer::open()?;
        trainer.train(batch, PolicyGradient::new(Weight::Reinforce, better), Optimizer::adamw(5e-4))?;
        Ok(trainer.checkpoint()?.into())
    }
}

reef_recipe::export!(Reinforce);
