//! A recipe that misbehaves on request, so that the sandbox can be tested with what a compiler really makes.
//! Config `fault` says how and `where` in which call; with `none` it is plain REINFORCE on two samples. The calls
//! without configuration are told by their input: `migrate` by the state, `ingest` and `transform` by a tag.
//! It is built by the tests and never shipped.
#![no_std]

mod exports;
mod fault;

use reef_recipe::prelude::*;

use fault::Fault;

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct Faults;

const FAULT: Key<&str> = Key::text(
    "fault",
    "none",
    "none, spin, hog, trap, overflow, lie, nan, flood, flood_samples, flood_training, flood_models, chatter, hoard or fail",
);
const WHERE: Key<&str> = Key::text("where", "propose", "select, propose or evaluate");
const BATCH_SIZE: Key<u32> = Key::count("batch_size", 2, "samples per step").within(1.0, 512.0);
const POLICY_LR: Key<f64> = Key::number("policy_lr", 1e-3, "learning rate").within(0.0, 1.0);

/// The fault of this call, if it is to happen here.
fn fault_in(call: &str) -> Result<Option<Fault>> {
    if WHERE.get()? == call { Fault::named(&FAULT.get()?) } else { Ok(None) }
}

impl Recipe for Faults {
    fn describe() -> Manifest {
        use Capability::{Experience, Metrics, Models, State, Training};
        Manifest::weights("faults", env!("CARGO_PKG_VERSION"))
            .needs_score()
            .asks(&[Experience, Training, Models, State, Metrics])
            .key(FAULT)
            .key(WHERE)
            .key(BATCH_SIZE)
            .key(POLICY_LR)
    }

    fn select(_: &Context, pool: &Pool) -> Result<Selection> {
        match fault_in("select")? {
            Some(Fault::Lie) => Ok(fault::forged_selection(pool)),
            Some(other) => other.happen(pool).and(Ok(pool.first(BATCH_SIZE.get()?))),
            None => Ok(pool.first(BATCH_SIZE.get()?)),
        }
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        match fault_in("propose")? {
            Some(Fault::Lie) => Ok(Candidate::from(fault::FORGED).into()),
            Some(Fault::Nan) => reinforce(batch, f64::NAN),
            Some(other) => other.happen(batch).and_then(|()| reinforce(batch, 0.0)),
            None => reinforce(batch, 0.0),
        }
    }

    fn evaluate(_: &Context, _: Candidate) -> Result<Verdict> {
        let promoted = Verdict::promote("promoted unseen").measure("answer", 42.0);
        match fault_in("evaluate")? {
            Some(Fault::Lie) => Ok(promoted.measure("", 0.0).measure("a\nb\u{1b}[31m", 0.0)),
            Some(Fault::Nan) => Ok(promoted.measure("nan", f64::NAN)),
            Some(other) => other.happen(&Pool::default()).and(Ok(promoted)),
            None => Ok(promoted),
        }
    }
}

/// One policy-gradient step with the batch mean as baseline; `noise` is added to every advantage.
fn reinforce(batch: &Batch, noise: f64) -> Result<Proposal> {
    let scores = batch.scores()?;
    let mean = maths::mean(&scores);
    let advantages: Vec<f64> = scores.iter().map(|score| score - mean + noise).collect();
    let trainer = Trainer::open()?;
    trainer.train(batch, PolicyGradient::new(Weight::Reinforce, advantages), Optimizer::adamw(POLICY_LR.get()?))?;
    metrics::gauge("reward_mean", mean);
    Ok(trainer.checkpoint()?.into())
}

reef_recipe::export!(Faults);
reef_recipe::export_migration!(Faults);
reef_recipe::export_live!(Faults);
reef_recipe::export_requests!(Faults);
