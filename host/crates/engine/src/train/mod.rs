//! The LoRA trainer: log-probs, one optimizer step, a critic, checkpoints.
//! The job that runs a step opens a `Trainer` on the files of the head release and calls it from one thread at
//! a time; serving shares the base weights and never sees the trainer's copy of the adapter. It reads no
//! record and decides no loss: samples and objective come from the caller.

mod batch;
mod control;
mod critic;
#[cfg(test)]
pub(crate) mod fixture;
mod loss;
mod optimizer;
mod state;
#[cfg(test)]
mod tests;
mod trainer;

pub use control::{TRAIN_SHARE_DEFAULT, TrainControl};
pub use loss::{LossColumns, Reduction, TokenLosses, Weight, reduced, token_losses, token_shares};
pub use optimizer::Optimizer;
pub use state::{CRITIC_FILE, TRAINER_STATE_FILE};
pub use trainer::{Objective, Policy, Trainer};
