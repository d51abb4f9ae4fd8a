//! The recipe's words for training in the engine's: policies, objectives and optimizers. What the interface names
//! and the engine's trainer does not do is refused by name, never approximated.

use reef_engine::train;
use reef_sandbox::{Objective, Optimizer, Policy, PolicyGradient, RatioSource, Reduction, Term, TrainingError, Weight};

/// A refusal that names what is missing.
fn unsupported<T>(what: &str) -> Result<T, TrainingError> {
    Err(TrainingError::Unsupported(format!("the trainer of this server does not support {what}")))
}

/// Whose distribution a pass reads.
pub fn policy(which: Policy) -> Result<train::Policy, TrainingError> {
    match which {
        Policy::Current => Ok(train::Policy::Current),
        Policy::Base => Ok(train::Policy::Base),
        Policy::Ema => Ok(train::Policy::Ema),
        Policy::Named(binding) => unsupported(&format!("the model binding '{binding}' as a policy")),
    }
}

/// A weighted sum of objectives.
pub fn terms(terms: Vec<Term>) -> Result<Vec<train::Term>, TrainingError> {
    let each = |term: Term| Ok(train::Term { factor: term.factor, objective: objective(term.objective)? });
    terms.into_iter().map(each).collect()
}

fn objective(objective: Objective) -> Result<train::Objective, TrainingError> {
    match objective {
        Objective::Nll => Ok(train::Objective::Nll),
        Objective::PolicyGradient(gradient) => Ok(train::Objective::PolicyGradient(policy_gradient(gradient)?)),
        other => unsupported(other.name()),
    }
}

fn policy_gradient(gradient: PolicyGradient) -> Result<train::PolicyGradient, TrainingError> {
    if gradient.score_centering {
        return unsupported("score-centering");
    }
    let kl = gradient.kl.map(|kl| {
        Ok::<_, TrainingError>(train::KlPenalty { coefficient: kl.coefficient, reference: policy(kl.reference)? })
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
    })
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
