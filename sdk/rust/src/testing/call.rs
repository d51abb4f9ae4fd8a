//! What a recipe asked of a test double.

use crate::harness::Tree;
use crate::{ChatRequest, CriticOptimizer, Message, Optimizer, Policy, Sample, Term};

/// What a recipe asked of training, models, verifiers and harness, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// `training.open`
    Open,
    /// `training.derive`
    Derive {
        /// From which sample.
        item: Sample,
        /// Another prompt.
        prompt: Option<Vec<u32>>,
        /// Another response.
        response: Option<Vec<u32>>,
    },
    /// `training.forward`
    Forward {
        /// Whose distribution.
        which: Policy,
        /// On which samples.
        items: Vec<Sample>,
    },
    /// `training.train`
    Train {
        /// On which samples.
        items: Vec<Sample>,
        /// The loss.
        terms: Vec<Term>,
        /// The step.
        optimizer: Optimizer,
    },
    /// `training.forward-backward`
    ForwardBackward {
        /// On which samples.
        items: Vec<Sample>,
        /// The loss.
        terms: Vec<Term>,
    },
    /// `training.backward`
    Backward {
        /// On which samples.
        items: Vec<Sample>,
        /// dL/d(log π), concatenated.
        gradients: Vec<f32>,
    },
    /// `training.optimizer-step`
    OptimizerStep(Optimizer),
    /// `training.update-ema`
    UpdateEma(f64),
    /// `training.values`
    Values(Vec<Sample>),
    /// `training.fit-values`
    FitValues {
        /// On which samples.
        items: Vec<Sample>,
        /// Targets, concatenated.
        returns: Vec<f32>,
        /// How often and how fast.
        optimizer: CriticOptimizer,
    },
    /// `training.checkpoint`
    Checkpoint,
    /// `models.chat`
    Chat {
        /// On which binding.
        binding: String,
        /// The conversations.
        requests: Vec<ChatRequest>,
    },
    /// `models.score`
    Score {
        /// On which binding.
        binding: String,
        /// The conversation.
        messages: Vec<Message>,
        /// Its answer.
        answer: String,
    },
    /// `models.held-out-scores`: binding, first and count.
    HeldOut(String, u32, u32),
    /// `verify.check`: verifier, task and answer.
    Verify(String, String, String),
    /// `harness.run-episode`
    Episode {
        /// On which tree.
        tree: Tree,
        /// Which task.
        task: String,
        /// With which seed.
        seed: u32,
    },
}
