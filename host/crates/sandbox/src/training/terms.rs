//! Objectives as a guest gives them, and the checks that turn them into [`Term`]s. Pure: lengths come in as numbers.

use super::{
    Bounds, Distillation, Divergence, DivergenceKind, Importance, KlPenalty, Objective, Optimizer, Policy,
    PolicyGradient, Support, Term, TopKDistillation, TrainingError, Weight,
};
use crate::text::{clean, is_binding_name};
use crate::traffic::Bytes;

/// Terms of one sum.
const TERMS_MAX: usize = 8;
/// Most likely ids of a distillation's support.
const SUPPORT_IDS_MAX: u32 = 1_024;

/// Advantages as given.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Advantages {
    PerSample(Vec<f32>),
    PerToken(Vec<f32>),
}

/// An objective as given.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Draft {
    /// The advantages of the gradient are empty and come beside it.
    PolicyGradient(PolicyGradient, Advantages),
    Nll,
    Distill(Distillation),
    DistillTopK(TopKDistillation),
}

/// A term as given.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DraftTerm {
    pub(crate) factor: f32,
    pub(crate) objective: Draft,
}

impl Bytes for DraftTerm {
    /// Columns only: the numbers beside them are few.
    fn bytes(&self) -> u64 {
        let columns = match &self.objective {
            Draft::PolicyGradient(_, Advantages::PerSample(column) | Advantages::PerToken(column)) => column.bytes(),
            Draft::Nll => 0,
            Draft::Distill(what) => (&what.contexts, &what.weights).bytes(),
            Draft::DistillTopK(what) => what.contexts.bytes(),
        };
        self.factor.bytes().saturating_add(columns)
    }
}

/// What terms are checked against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope<'a> {
    /// Response tokens of each item.
    pub(super) lengths: &'a [usize],
    /// Alternatives per token that the manifest asks for.
    pub(super) top_k: u32,
}

impl Scope<'_> {
    fn tokens(&self) -> usize {
        self.lengths.iter().fold(0, |sum, length| sum.saturating_add(*length))
    }
}

fn invalid<T>(told: impl Into<String>) -> Result<T, TrainingError> {
    Err(TrainingError::Invalid(told.into()))
}

/// Checks every term. The error names the argument.
pub(super) fn terms(drafts: Vec<DraftTerm>, scope: Scope<'_>) -> Result<Vec<Term>, TrainingError> {
    if drafts.is_empty() || drafts.len() > TERMS_MAX {
        return invalid(format!("terms: {} is not in 1 to {TERMS_MAX}", drafts.len()));
    }
    drafts
        .into_iter()
        .map(|draft| {
            range("factor", f64::from(draft.factor), true, "a finite number")?;
            Ok(Term { factor: draft.factor, objective: objective(draft.objective, scope)? })
        })
        .collect()
}

fn objective(draft: Draft, scope: Scope<'_>) -> Result<Objective, TrainingError> {
    Ok(match draft {
        Draft::Nll => Objective::Nll,
        Draft::PolicyGradient(gradient, advantages) => {
            Objective::PolicyGradient(policy_gradient(gradient, advantages, scope)?)
        }
        Draft::Distill(what) => {
            distillation(&what, scope)?;
            Objective::Distill(what)
        }
        Draft::DistillTopK(what) => {
            recorded_alternatives("distill-top-k", scope)?;
            policy("teacher", &what.teacher)?;
            per_item("contexts", what.contexts.len(), scope)?;
            range("advantage-max", f64::from(what.advantage_max), what.advantage_max > 0.0, "a finite number above 0")?;
            bounds(what.bounds)?;
            Objective::DistillTopK(what)
        }
    })
}

fn policy_gradient(
    gradient: PolicyGradient,
    advantages: Advantages,
    scope: Scope<'_>,
) -> Result<PolicyGradient, TrainingError> {
    let advantages = expand(advantages, scope)?;
    weight(gradient.weight)?;
    if let Some(KlPenalty { coefficient, reference }) = &gradient.kl {
        range("kl.coefficient", f64::from(*coefficient), *coefficient >= 0.0, "a finite number of at least 0")?;
        policy("kl.reference", reference)?;
    }
    range("entropy", f64::from(gradient.entropy), true, "a finite number")?;
    if gradient.score_centering {
        recorded_alternatives("score-centering", scope)?;
    }
    Ok(PolicyGradient { advantages, ..gradient })
}

/// One number per token, whatever was given.
fn expand(advantages: Advantages, scope: Scope<'_>) -> Result<Vec<f32>, TrainingError> {
    match advantages {
        Advantages::PerToken(values) => {
            column("advantages", &values, scope.tokens())?;
            Ok(values)
        }
        Advantages::PerSample(values) => {
            if values.len() != scope.lengths.len() {
                return invalid(format!("advantages: {} numbers for {} samples", values.len(), scope.lengths.len()));
            }
            finite("advantages", &values)?;
            let spread = values.iter().zip(scope.lengths);
            Ok(spread.flat_map(|(value, length)| std::iter::repeat_n(*value, *length)).collect())
        }
    }
}

fn distillation(what: &Distillation, scope: Scope<'_>) -> Result<(), TrainingError> {
    policy("teacher", &what.teacher)?;
    per_item("contexts", what.contexts.len(), scope)?;
    per_item("weights", what.weights.len(), scope)?;
    finite("weights", &what.weights)?;
    let Divergence { kind, beta } = what.divergence;
    if kind == DivergenceKind::JensenShannon {
        range("beta", f64::from(beta), beta > 0.0 && beta < 1.0, "in (0, 1)")?;
    }
    if let Support::TopKRenormalised(k) | Support::TopKTail(k) = what.support
        && !(1..=SUPPORT_IDS_MAX).contains(&k)
    {
        return invalid(format!("support: {k} is not in 1 to {SUPPORT_IDS_MAX}"));
    }
    match what.importance {
        Importance::Token(cap) | Importance::Sequence(cap) => {
            range("importance", f64::from(cap), cap > 0.0, "a finite number above 0")
        }
        Importance::Off => Ok(()),
    }
}

fn recorded_alternatives(name: &str, scope: Scope<'_>) -> Result<(), TrainingError> {
    if scope.top_k > 0 {
        return Ok(());
    }
    invalid(format!("{name}: needs recorded alternatives, and the manifest asks for none; set its top-k"))
}

fn per_item(name: &str, count: usize, scope: Scope<'_>) -> Result<(), TrainingError> {
    if count == 0 || count == scope.lengths.len() {
        return Ok(());
    }
    invalid(format!("{name}: {count} given for {} samples; give none or one for each", scope.lengths.len()))
}

pub(super) fn policy(name: &str, which: &Policy) -> Result<(), TrainingError> {
    match which {
        Policy::Named(binding) if !is_binding_name(binding) => {
            invalid(format!("{name}: '{}' is no name of a model binding", clean(binding, 64)))
        }
        _ => Ok(()),
    }
}

fn weight(weight: Weight) -> Result<(), TrainingError> {
    match weight {
        Weight::Reinforce | Weight::Ratio => Ok(()),
        Weight::Truncated(cap) => range("weight.truncated", f64::from(cap), cap > 0.0, "a finite number above 0"),
        Weight::Masked(given) | Weight::Ppo(given) => bounds(given),
    }
}

fn bounds(given: Bounds) -> Result<(), TrainingError> {
    let (low, high) = (f64::from(given.low), f64::from(given.high));
    range("bounds.low", low, low >= 0.0, "a finite number of at least 0")?;
    range("bounds.high", high, high > low, "a finite number above bounds.low")
}

pub(super) fn optimizer(how: Optimizer) -> Result<Optimizer, TrainingError> {
    let unit = |name: &str, value: f64| range(name, value, (0.0..=1.0).contains(&value), "in [0, 1]");
    unit("learning-rate", how.learning_rate)?;
    range("beta1", how.beta1, (0.0..1.0).contains(&how.beta1), "in [0, 1)")?;
    range("beta2", how.beta2, (0.0..1.0).contains(&how.beta2), "in [0, 1)")?;
    range("epsilon", how.epsilon, how.epsilon > 0.0 && how.epsilon <= 1.0, "in (0, 1]")?;
    unit("weight-decay", how.weight_decay)?;
    range("gradient-norm-max", how.gradient_norm_max, how.gradient_norm_max >= 0.0, "a finite number of at least 0")?;
    Ok(how)
}

/// One finite number per response token.
pub(super) fn column(name: &str, values: &[f32], tokens: usize) -> Result<(), TrainingError> {
    if values.len() != tokens {
        return invalid(format!("{name}: {} numbers for {tokens} response tokens", values.len()));
    }
    finite(name, values)
}

fn finite(name: &str, values: &[f32]) -> Result<(), TrainingError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => invalid(format!("{name}: number {index} is not finite")),
        None => Ok(()),
    }
}

pub(super) fn range(name: &str, value: f64, holds: bool, wanted: &str) -> Result<(), TrainingError> {
    if value.is_finite() && holds { Ok(()) } else { invalid(format!("{name}: {value} is not {wanted}")) }
}
