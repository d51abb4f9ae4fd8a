//! The import `training`: each function translates its arguments, asks the call's state, and translates the answer.

use std::collections::BTreeMap;

use super::bindings::reef::recipe::training as wit;
use super::bindings::reef::recipe::types::Measurement;
use crate::call_state::CallState;
use crate::training::{Advantages, Draft, DraftTerm, TrainingRefusal};
use crate::{
    Bounds, Distillation, Divergence, DivergenceKind, Importance, KlPenalty, Optimizer, Policy, PolicyGradient,
    RatioSource, Reduction, Support, TopKDistillation, TrainingError, Weight,
};

impl From<TrainingRefusal> for wit::TrainingError {
    fn from(refusal: TrainingRefusal) -> Self {
        match refusal {
            TrainingRefusal::UnknownSample(sample) => Self::UnknownSample(sample),
            TrainingRefusal::UnknownTrainer(trainer) => Self::UnknownTrainer(trainer),
            TrainingRefusal::Refused(TrainingError::Invalid(told)) => Self::Invalid(told),
            TrainingRefusal::Refused(TrainingError::Budget(told)) => Self::Budget(told),
            TrainingRefusal::Refused(TrainingError::Unsupported(told)) => Self::Unsupported(told),
            TrainingRefusal::Refused(TrainingError::Cancelled) => Self::Cancelled,
            TrainingRefusal::Refused(TrainingError::Other(told)) => Self::Other(told),
        }
    }
}

fn policy(raw: wit::Policy) -> Policy {
    match raw {
        wit::Policy::Current => Policy::Current,
        wit::Policy::Base => Policy::Base,
        wit::Policy::Ema => Policy::Ema,
        wit::Policy::Named(binding) => Policy::Named(binding),
    }
}

fn bounds(raw: wit::Bounds) -> Bounds {
    Bounds { low: raw.low, high: raw.high }
}

fn weight(raw: wit::Weight) -> Weight {
    match raw {
        wit::Weight::Reinforce => Weight::Reinforce,
        wit::Weight::Ratio => Weight::Ratio,
        wit::Weight::Truncated(cap) => Weight::Truncated(cap),
        wit::Weight::Masked(given) => Weight::Masked(bounds(given)),
        wit::Weight::Ppo(given) => Weight::Ppo(bounds(given)),
    }
}

fn reduction(raw: wit::Reduction) -> Reduction {
    match raw {
        wit::Reduction::TokenSum => Reduction::TokenSum,
        wit::Reduction::SampleTokenMean => Reduction::SampleTokenMean,
        wit::Reduction::GlobalTokenMean => Reduction::GlobalTokenMean,
    }
}

fn policy_gradient(raw: wit::PolicyGradient) -> Draft {
    let advantages = match raw.advantages {
        wit::Advantages::PerSample(column) => Advantages::PerSample(column),
        wit::Advantages::PerToken(column) => Advantages::PerToken(column),
    };
    let gradient = PolicyGradient {
        weight: weight(raw.weight),
        old: match raw.old {
            wit::RatioSource::Rollout => RatioSource::Rollout,
            wit::RatioSource::Recomputed => RatioSource::Recomputed,
        },
        advantages: Vec::new(),
        reduction: reduction(raw.reduction),
        kl: raw.kl.map(|kl| KlPenalty { coefficient: kl.coefficient, reference: policy(kl.reference) }),
        entropy: raw.entropy,
        score_centering: raw.score_centering,
    };
    Draft::PolicyGradient(gradient, advantages)
}

fn distillation(raw: wit::Distillation) -> Distillation {
    Distillation {
        teacher: policy(raw.teacher),
        contexts: raw.contexts,
        divergence: Divergence {
            kind: match raw.divergence.kind {
                wit::DivergenceKind::Forward => DivergenceKind::Forward,
                wit::DivergenceKind::Reverse => DivergenceKind::Reverse,
                wit::DivergenceKind::JensenShannon => DivergenceKind::JensenShannon,
            },
            beta: raw.divergence.beta,
        },
        support: match raw.support {
            wit::Support::Exact => Support::Exact,
            wit::Support::TopKRenormalised(k) => Support::TopKRenormalised(k),
            wit::Support::TopKTail(k) => Support::TopKTail(k),
            wit::Support::Sampled => Support::Sampled,
        },
        importance: match raw.importance {
            wit::Importance::Off => Importance::Off,
            wit::Importance::Token(cap) => Importance::Token(cap),
            wit::Importance::Sequence(cap) => Importance::Sequence(cap),
        },
        weights: raw.weights,
        skip: raw.skip,
    }
}

fn term(raw: wit::Term) -> DraftTerm {
    let objective = match raw.what {
        wit::Objective::PolicyGradient(gradient) => policy_gradient(gradient),
        wit::Objective::Nll => Draft::Nll,
        wit::Objective::Distill(what) => Draft::Distill(distillation(what)),
        wit::Objective::DistillTopK(what) => Draft::DistillTopK(TopKDistillation {
            teacher: policy(what.teacher),
            contexts: what.contexts,
            advantage_max: what.advantage_max,
            bounds: bounds(what.bounds),
        }),
    };
    DraftTerm { factor: raw.factor, objective }
}

fn terms(raw: Vec<wit::Term>) -> Vec<DraftTerm> {
    raw.into_iter().map(term).collect()
}

fn optimizer(raw: wit::Optimizer) -> Optimizer {
    Optimizer {
        learning_rate: raw.learning_rate,
        beta1: raw.beta1,
        beta2: raw.beta2,
        epsilon: raw.epsilon,
        weight_decay: raw.weight_decay,
        gradient_norm_max: raw.gradient_norm_max,
    }
}

fn measurements(metrics: BTreeMap<String, f64>) -> Vec<Measurement> {
    metrics.into_iter().map(|(name, value)| Measurement { name, value }).collect()
}

impl wit::Host for CallState {
    async fn open(&mut self) -> Result<u32, wit::TrainingError> {
        let answer = CallState::open(self).await;
        self.hand(answer)
    }

    async fn derive(
        &mut self,
        item: u32,
        prompt: Option<Vec<u32>>,
        response: Option<Vec<u32>>,
    ) -> Result<u32, wit::TrainingError> {
        let answer = CallState::derive(self, item, prompt, response).await;
        self.hand(answer)
    }

    async fn forward(&mut self, on: u32, which: wit::Policy, items: Vec<u32>) -> Result<Vec<f32>, wit::TrainingError> {
        let answer = CallState::forward(self, on, policy(which), items).await;
        self.hand(answer)
    }

    async fn train(
        &mut self,
        on: u32,
        items: Vec<u32>,
        what: Vec<wit::Term>,
        how: wit::Optimizer,
    ) -> Result<Vec<Measurement>, wit::TrainingError> {
        let answer = CallState::train(self, on, items, terms(what), optimizer(how)).await;
        self.hand(answer).map(measurements)
    }

    async fn forward_backward(
        &mut self,
        on: u32,
        items: Vec<u32>,
        what: Vec<wit::Term>,
    ) -> Result<Vec<Measurement>, wit::TrainingError> {
        let answer = CallState::forward_backward(self, on, items, terms(what)).await;
        self.hand(answer).map(measurements)
    }

    async fn backward(
        &mut self,
        on: u32,
        items: Vec<u32>,
        gradients: Vec<f32>,
    ) -> Result<Vec<Measurement>, wit::TrainingError> {
        let answer = CallState::backward(self, on, items, gradients).await;
        self.hand(answer).map(measurements)
    }

    async fn optimizer_step(&mut self, on: u32, how: wit::Optimizer) -> Result<Vec<Measurement>, wit::TrainingError> {
        let answer = CallState::optimizer_step(self, on, optimizer(how)).await;
        self.hand(answer).map(measurements)
    }

    async fn update_ema(&mut self, on: u32, rate: f64) -> Result<(), wit::TrainingError> {
        let answer = CallState::update_ema(self, on, rate).await;
        self.hand(answer)
    }

    async fn values(&mut self, on: u32, items: Vec<u32>) -> Result<Vec<f32>, wit::TrainingError> {
        let answer = CallState::values(self, on, items).await;
        self.hand(answer)
    }

    async fn fit_values(
        &mut self,
        on: u32,
        items: Vec<u32>,
        returns: Vec<f32>,
        how: wit::CriticOptimizer,
    ) -> Result<Vec<Measurement>, wit::TrainingError> {
        let answer = CallState::fit_values(self, on, items, returns, (how.learning_rate, how.updates)).await;
        self.hand(answer).map(measurements)
    }

    async fn checkpoint(&mut self, on: u32) -> Result<u32, wit::TrainingError> {
        let answer = CallState::checkpoint(self, on).await;
        self.hand(answer)
    }
}
