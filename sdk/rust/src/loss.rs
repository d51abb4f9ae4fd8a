//! What a trainer minimises: an objective of the host, or a weighted sum of several. A loss that the host does
//! not know goes through [`crate::Trainer::backward`] instead.

use alloc::vec;
use alloc::vec::Vec;

use crate::{
    Advantages, Distillation, Divergence, DivergenceKind, Importance, KlPenalty, Objective, PerToken, Policy,
    PolicyGradient, RatioSource, Reduction, Samples, Support, Term, TopKDistillation, Weight,
};

/// A weighted sum of objectives.
///
/// ```
/// use reef_recipe::prelude::*;
/// # let advantages = vec![1.0];
/// let loss = Loss::of(1.0, PolicyGradient::new(Weight::Ratio, advantages)).and(0.1, Objective::Nll);
/// assert_eq!(loss.terms().len(), 2);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Loss(Vec<Term>);

impl Loss {
    /// `factor` times an objective.
    pub fn of(factor: f32, what: impl Into<Objective>) -> Self {
        Self(vec![Term { factor, what: what.into() }])
    }

    /// Adds `factor` times another objective.
    #[must_use]
    pub fn and(mut self, factor: f32, what: impl Into<Objective>) -> Self {
        self.0.push(Term { factor, what: what.into() });
        self
    }

    /// The terms, in order.
    pub fn terms(&self) -> &[Term] {
        &self.0
    }
}

impl From<Vec<Term>> for Loss {
    fn from(terms: Vec<Term>) -> Self {
        Self(terms)
    }
}

impl From<Objective> for Loss {
    fn from(objective: Objective) -> Self {
        Self::of(1.0, objective)
    }
}

impl From<PolicyGradient> for Objective {
    fn from(objective: PolicyGradient) -> Self {
        Self::PolicyGradient(objective)
    }
}

impl From<PolicyGradient> for Loss {
    fn from(objective: PolicyGradient) -> Self {
        Self::of(1.0, objective)
    }
}

impl From<Distillation> for Objective {
    fn from(objective: Distillation) -> Self {
        Self::Distill(objective)
    }
}

impl From<Distillation> for Loss {
    fn from(objective: Distillation) -> Self {
        Self::of(1.0, objective)
    }
}

impl From<TopKDistillation> for Objective {
    fn from(objective: TopKDistillation) -> Self {
        Self::DistillTopK(objective)
    }
}

impl From<TopKDistillation> for Loss {
    fn from(objective: TopKDistillation) -> Self {
        Self::of(1.0, objective)
    }
}

impl From<PerToken<f32>> for Advantages {
    fn from(column: PerToken<f32>) -> Self {
        Self::PerToken(column.into_values())
    }
}

/// One number a sample, in the precision of the host.
impl From<Vec<f64>> for Advantages {
    fn from(numbers: Vec<f64>) -> Self {
        Self::PerSample(numbers.into_iter().map(|number| number as f32).collect())
    }
}

impl PolicyGradient {
    /// −f(r)·A·log π with one advantage a sample (`Vec<f64>`) or one a response token (`PerToken<f32>`); the ratio
    /// is to the log-probs of the rollout; mean over the action tokens of a sample, then over samples.
    pub fn new(weight: Weight, advantages: impl Into<Advantages>) -> Self {
        Self {
            weight,
            old: RatioSource::Rollout,
            advantages: advantages.into(),
            reduction: Reduction::SampleTokenMean,
            kl: None,
            entropy: 0.0,
            score_centering: false,
        }
    }

    /// How token losses become one number.
    #[must_use]
    pub fn reduced(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// The ratio is to the log-probs of the head release, computed by the trainer.
    #[must_use]
    pub fn to_recomputed(mut self) -> Self {
        self.old = RatioSource::Recomputed;
        self
    }

    /// Adds coefficient·k3 to the reference to every token's loss.
    #[must_use]
    pub fn kl(mut self, coefficient: f32, reference: Policy) -> Self {
        self.kl = Some(KlPenalty { coefficient, reference });
        self
    }

    /// Adds −coefficient·H(π) to every token's loss.
    #[must_use]
    pub fn entropy(mut self, coefficient: f32) -> Self {
        self.entropy = coefficient;
        self
    }

    /// Score centering over the recorded top-K (arXiv 2609.20807); needs `Manifest::top_k`.
    #[must_use]
    pub fn score_centered(mut self) -> Self {
        self.score_centering = true;
        self
    }
}

impl Divergence {
    /// KL(teacher ‖ student).
    pub const FORWARD: Self = Self { kind: DivergenceKind::Forward, beta: 0.5 };
    /// KL(student ‖ teacher).
    pub const REVERSE: Self = Self { kind: DivergenceKind::Reverse, beta: 0.5 };

    /// Jensen-Shannon with β in (0, 1).
    pub const fn jensen_shannon(beta: f32) -> Self {
        Self { kind: DivergenceKind::JensenShannon, beta }
    }
}

impl Distillation {
    /// The divergence to a teacher over the whole vocabulary; the teacher reads the student's own prompts, every
    /// sample and every token counts, and no importance weight corrects for stale samples.
    pub fn new(teacher: Policy, divergence: Divergence) -> Self {
        Self {
            teacher,
            contexts: Vec::new(),
            divergence,
            support: Support::Exact,
            importance: Importance::Off,
            weights: Vec::new(),
            skip: 0,
        }
    }

    /// The samples whose prompts the teacher reads instead, one per item; see [`crate::Trainer::derive`].
    #[must_use]
    pub fn reading(mut self, contexts: &Samples) -> Self {
        self.contexts = contexts.handles().to_vec();
        self
    }

    /// Which part of the vocabulary is compared.
    #[must_use]
    pub fn over(mut self, support: Support) -> Self {
        self.support = support;
        self
    }

    /// Corrects for samples of an older policy.
    #[must_use]
    pub fn importance(mut self, importance: Importance) -> Self {
        self.importance = importance;
        self
    }

    /// One factor per sample.
    #[must_use]
    pub fn weighted(mut self, weights: &[f64]) -> Self {
        self.weights = weights.iter().map(|&weight| weight as f32).collect();
        self
    }

    /// Response tokens at the start of each sample that do not count.
    #[must_use]
    pub fn skipping(mut self, tokens: u32) -> Self {
        self.skip = tokens;
        self
    }
}
