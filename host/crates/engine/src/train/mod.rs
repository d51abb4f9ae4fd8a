//! The LoRA trainer: log-probs, gradients, optimizer steps, a moving average, a critic, checkpoints.
//! The job that runs a step opens a `Trainer` on the files of the head release and calls it from one thread at
//! a time; serving shares the base weights and never sees the trainer's copy of the adapter. It reads no
//! record and decides no loss: samples and objectives come from the caller.

mod accumulate;
mod alternatives;
mod batch;
mod control;
mod critic;
mod distill;
mod divergence;
#[cfg(test)]
pub(crate) mod fixture;
mod gradient;
mod layout;
mod loss;
mod nccl;
mod objective;
mod optimizer;
mod passes;
mod plan;
mod policies;
mod reduce;
mod state;
mod tally;
#[cfg(test)]
mod tests;
mod trainer;
mod workers;

pub use batch::check_sample;
pub use control::{TRAIN_SHARE_DEFAULT, TrainControl};
pub use divergence::{Divergence, Importance, Support};
pub use loss::{LossColumns, Reduction, TokenLosses, Weight, entropy, k3, reduced, token_losses, token_shares};
pub use objective::{Distillation, KlPenalty, Objective, PolicyGradient, RatioSource, Term, TopKDistillation};
pub use optimizer::Optimizer;
pub use policies::Policy;
pub use state::{CRITIC_FILE, EMA_FILE, TRAINER_STATE_FILE};
pub use trainer::{Beside, Trainer};
pub use workers::{Launch, Transport, WORKERS_MAX, Workers, work};
