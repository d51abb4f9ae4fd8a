//! What a pass minimises: a weighted sum of objectives, checked once and brought into the order of a batch.
//! Callers build `Term`s; the accumulation of gradients reads the plan. Every refusal names the term and the
//! field. Nothing here computes a loss.

use super::batch::Batch;
use super::loss::{Reduction, Weight, token_shares};
use super::policies::Policy;
use crate::error::EngineError;

/// Terms of one sum; each costs memory and a loss per token, and none of the known recipes has more than three.
const TERMS_MAX: usize = 16;

/// One term of a weighted sum of objectives.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// What the loss of the objective is multiplied with; finite.
    pub factor: f32,
    /// The objective.
    pub objective: Objective,
}

/// What is minimised.
#[derive(Debug, Clone, PartialEq)]
pub enum Objective {
    /// −f(r)·A·log π, see `Weight`.
    PolicyGradient(PolicyGradient),
    /// Negative log-likelihood of the action tokens at the sample's temperature, sample-token-mean.
    Nll,
}

/// A policy gradient with optional penalties: the token loss is
/// −f(r)·A·log π + coefficient·k3(π, π_reference) − entropy·H(π).
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyGradient {
    /// The factor f(r).
    pub weight: Weight,
    /// What π_old in the ratio r is.
    pub old: RatioSource,
    /// A: one per response token, concatenated in the order of the items; finite, and ignored where the mask is 0.
    pub advantages: Vec<f32>,
    /// How token losses become one number.
    pub reduction: Reduction,
    /// A penalty for the distance to another policy.
    pub kl: Option<KlPenalty>,
    /// Coefficient of the entropy bonus, finite; H is exact over the whole vocabulary, in nats, at the sample's
    /// temperature. 0 = off.
    pub entropy: f32,
}

/// What π_old is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RatioSource {
    /// The log-probs recorded when the tokens were sampled.
    Rollout,
    /// The log-probs of the adapter as it was when the trainer was opened.
    Recomputed,
}

/// Adds coefficient·k3 to every token's loss, see `k3`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KlPenalty {
    /// Finite.
    pub coefficient: f32,
    /// `Base` or `Ema`.
    pub reference: Policy,
}

impl PolicyGradient {
    /// Against the recorded log-probs, without penalties.
    pub fn new(weight: Weight, advantages: Vec<f32>, reduction: Reduction) -> Self {
        Self { weight, old: RatioSource::Rollout, advantages, reduction, kl: None, entropy: 0.0 }
    }
}

impl From<Objective> for Term {
    fn from(objective: Objective) -> Self {
        Self { factor: 1.0, objective }
    }
}

impl From<PolicyGradient> for Term {
    fn from(gradient: PolicyGradient) -> Self {
        Objective::PolicyGradient(gradient).into()
    }
}

/// The terms of one call over one batch.
#[derive(Debug)]
pub(super) struct Plan {
    pub terms: Vec<PlannedTerm>,
    /// Action tokens of the batch.
    pub tokens: usize,
}

/// A term with its columns in row order.
#[derive(Debug)]
pub(super) struct PlannedTerm {
    pub factor: f64,
    pub weight: Weight,
    pub old: RatioSource,
    pub advantages: Vec<f32>,
    /// What each response token counts, see `token_shares`.
    pub shares: Vec<f32>,
    pub kl: Option<KlPenalty>,
    pub entropy: f64,
    /// A policy gradient, whose bounds can drop tokens.
    pub bounded: bool,
}

impl Plan {
    /// Checks the terms.
    ///
    /// # Errors
    /// `Invalid` with the term and its field.
    pub fn new(batch: &Batch<'_>, terms: &[Term]) -> Result<Self, EngineError> {
        if terms.is_empty() || terms.len() > TERMS_MAX {
            return Err(EngineError::Invalid(format!("terms: {} of them; give 1 to {TERMS_MAX}", terms.len())));
        }
        let named = |(index, term): (usize, &Term)| PlannedTerm::new(batch, term, &format!("terms[{index}]"));
        let terms = terms.iter().enumerate().map(named).collect::<Result<_, _>>()?;
        let tokens = batch.masks().iter().flat_map(|mask| mask.iter()).filter(|&&action| action != 0).count();
        Ok(Self { terms, tokens })
    }

    /// Can the batch have a gradient, or is there anything to measure that needs a pass?
    pub fn has_signal(&self) -> bool {
        self.terms.iter().any(PlannedTerm::has_signal)
    }
}

impl PlannedTerm {
    fn new(batch: &Batch<'_>, term: &Term, name: &str) -> Result<Self, EngineError> {
        let finite = |field: &str, value: f32| match value.is_finite() {
            true => Ok(f64::from(value)),
            false => Err(EngineError::Invalid(format!("{name}.{field}: {value} is not finite"))),
        };
        let factor = finite("factor", term.factor)?;
        let masks = batch.masks();
        let Objective::PolicyGradient(gradient) = &term.objective else {
            // −log π is the policy-gradient loss with f = 1 and A = 1.
            return Ok(Self {
                factor,
                weight: Weight::Reinforce,
                old: RatioSource::Rollout,
                advantages: vec![1.0; batch.response_tokens],
                shares: token_shares(Reduction::SampleTokenMean, &masks),
                kl: None,
                entropy: 0.0,
                bounded: false,
            });
        };
        gradient.weight.check().map_err(|error| EngineError::Invalid(format!("{name}: {error}")))?;
        if let Some(kl) = gradient.kl {
            finite("kl.coefficient", kl.coefficient)?;
            if kl.reference == Policy::Current {
                return Err(EngineError::Invalid(format!(
                    "{name}.kl.reference: the adapter is at distance 0 from itself; compare it with base or ema"
                )));
            }
        }
        // f = 1 reads no π_old, so nothing is computed for it.
        let old = if gradient.weight == Weight::Reinforce { RatioSource::Rollout } else { gradient.old };
        Ok(Self {
            factor,
            weight: gradient.weight,
            old,
            advantages: batch.to_rows(&gradient.advantages, &format!("{name}.advantages"))?,
            shares: token_shares(gradient.reduction, &masks),
            kl: gradient.kl,
            entropy: finite("entropy", gradient.entropy)?,
            bounded: true,
        })
    }

    fn has_signal(&self) -> bool {
        let extra = self.kl.is_some() || self.entropy != 0.0;
        self.advantages.iter().zip(&self.shares).any(|(advantage, share)| *share > 0.0 && (extra || *advantage != 0.0))
    }
}
