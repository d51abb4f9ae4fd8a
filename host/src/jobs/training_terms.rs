//! The recipe's words for training in the engine's: policies, objectives and optimizers. What they refer to, samples
//! and model bindings, is looked up where the step keeps it; a binding that the trainer cannot evaluate is refused by
//! name, never approximated.

use std::sync::Arc;

use reef_core::Sample;
use reef_engine::train;
use reef_sandbox::{
    Distillation, Divergence, DivergenceKind, Importance, Objective, Optimizer, Policy, PolicyGradient, PoolSample,
    RatioSource, Reduction, Support, Term, TopKDistillation, TrainingError, Weight,
};

use super::named_policies::NamedPolicies;

/// What terms refer to.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// Policies by name.
    pub policies: &'a NamedPolicies,
    /// Samples of the call.
    pub samples: &'a [PoolSample],
    /// Samples that the call derived; their items follow those of the samples.
    pub derived: &'a [Arc<Sample>],
}

impl Names<'_> {
    /// The prompt of an item.
    fn prompt(&self, item: u32) -> Result<Vec<u32>, TrainingError> {
        let trajectory = &sample(self.samples, self.derived, item)?.trajectory;
        Ok(trajectory.tokens.get(..trajectory.prompt_length).unwrap_or_default().to_vec())
    }
}

/// The sample of an item, own or derived.
pub fn sample<'a>(
    samples: &'a [PoolSample],
    derived: &'a [Arc<Sample>],
    item: u32,
) -> Result<&'a Sample, TrainingError> {
    let index = item as usize;
    let own = samples.get(index).map(|pooled| &pooled.sample);
    own.or_else(|| derived.get(index.checked_sub(samples.len())?).map(AsRef::as_ref))
        .ok_or_else(|| TrainingError::Other(format!("sample {item} is gone")))
}

/// Whose distribution a pass reads.
pub fn policy(which: Policy, names: &Names<'_>) -> Result<train::Policy, TrainingError> {
    match which {
        Policy::Current => Ok(train::Policy::Current),
        Policy::Base => Ok(train::Policy::Base),
        Policy::Ema => Ok(train::Policy::Ema),
        Policy::Named(binding) => names.policies.find(&binding),
    }
}

/// A weighted sum of objectives.
pub fn terms(terms: Vec<Term>, names: &Names<'_>) -> Result<Vec<train::Term>, TrainingError> {
    let each = |term: Term| Ok(train::Term { factor: term.factor, objective: objective(term.objective, names)? });
    terms.into_iter().map(each).collect()
}

fn objective(objective: Objective, names: &Names<'_>) -> Result<train::Objective, TrainingError> {
    Ok(match objective {
        Objective::Nll => train::Objective::Nll,
        Objective::PolicyGradient(gradient) => train::Objective::PolicyGradient(policy_gradient(gradient, names)?),
        Objective::Distill(what) => train::Objective::Distill(distillation(what, names)?),
        Objective::DistillTopK(TopKDistillation { teacher, contexts, advantage_max, bounds }) => {
            train::Objective::DistillTopK(train::TopKDistillation {
                teacher: policy(teacher, names)?,
                prompts: prompts(&contexts, names)?,
                advantage_max,
                bounds: (bounds.low, bounds.high),
            })
        }
    })
}

fn policy_gradient(gradient: PolicyGradient, names: &Names<'_>) -> Result<train::PolicyGradient, TrainingError> {
    let kl = gradient.kl.map(|kl| {
        Ok::<_, TrainingError>(train::KlPenalty {
            coefficient: kl.coefficient,
            reference: policy(kl.reference, names)?,
        })
    });
    Ok(train::PolicyGradient {
        weight: match gradient.weight {
            Weight::Reinforce => train::Weight::Reinforce,
            Weight::Ratio => train::Weight::Ratio,
            Weight::Truncated(cap) => train::Weight::Truncated(cap),
            Weight::Masked(bounds) => train::Weight::Masked { low: bounds.low, high: bounds.high },
            Weight::Ppo(bounds) => train::Weight::Ppo { low: bounds.low, high: bounds.high },
        },
        old: match gradient.old {
            RatioSource::Rollout => train::RatioSource::Rollout,
            RatioSource::Recomputed => train::RatioSource::Recomputed,
        },
        advantages: gradient.advantages,
        reduction: match gradient.reduction {
            Reduction::TokenSum => train::Reduction::TokenSum,
            Reduction::SampleTokenMean => train::Reduction::SampleTokenMean,
            Reduction::GlobalTokenMean => train::Reduction::GlobalTokenMean,
        },
        kl: kl.transpose()?,
        entropy: gradient.entropy,
        score_centering: gradient.score_centering,
    })
}

fn distillation(what: Distillation, names: &Names<'_>) -> Result<train::Distillation, TrainingError> {
    let Divergence { kind, beta } = what.divergence;
    Ok(train::Distillation {
        teacher: policy(what.teacher, names)?,
        prompts: prompts(&what.contexts, names)?,
        divergence: match kind {
            DivergenceKind::Forward => train::Divergence::Forward,
            DivergenceKind::Reverse => train::Divergence::Reverse,
            DivergenceKind::JensenShannon => train::Divergence::JensenShannon { beta },
        },
        support: match what.support {
            Support::Exact => train::Support::Exact,
            Support::TopKRenormalised(k) => train::Support::TopKRenormalised(k),
            Support::TopKTail(k) => train::Support::TopKTail(k),
            Support::Sampled => train::Support::Sampled,
        },
        importance: match what.importance {
            Importance::Off => train::Importance::Off,
            Importance::Token(cap) => train::Importance::Token(cap),
            Importance::Sequence(cap) => train::Importance::Sequence(cap),
        },
        weights: what.weights,
        skip: usize::try_from(what.skip).unwrap_or(usize::MAX),
    })
}

fn prompts(contexts: &[u32], names: &Names<'_>) -> Result<Vec<Vec<u32>>, TrainingError> {
    contexts.iter().map(|item| names.prompt(*item)).collect()
}

/// AdamW.
pub fn optimizer(optimizer: Optimizer) -> train::Optimizer {
    train::Optimizer {
        learning_rate: optimizer.learning_rate,
        beta1: optimizer.beta1,
        beta2: optimizer.beta2,
        epsilon: optimizer.epsilon,
        weight_decay: optimizer.weight_decay,
        gradient_norm_max: optimizer.gradient_norm_max,
    }
}
