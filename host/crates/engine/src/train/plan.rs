//! The terms of one call, checked once and brought into the order of a batch.
//! The trainer plans before it computes; the accumulation of gradients reads the plan. Every refusal names the
//! term and the field. Nothing here computes a loss.

use super::batch::Batch;
use super::divergence::{Divergence, Importance, Support};
use super::loss::{Reduction, Weight, token_shares};
use super::objective::{Distillation, KlPenalty, Objective, PolicyGradient, RatioSource, Term, TopKDistillation};
use super::policies::Policy;
use crate::error::EngineError;

/// Terms of one sum; each costs memory and a loss per token, and none of the known recipes has more than three.
const TERMS_MAX: usize = 16;

/// The terms of one call over one batch.
#[derive(Debug)]
pub(super) struct Plan<'t> {
    pub terms: Vec<PlannedTerm<'t>>,
    /// Action tokens of the batch.
    pub tokens: usize,
}

/// A term with its columns in row order.
#[derive(Debug)]
pub(super) struct PlannedTerm<'t> {
    pub factor: f64,
    /// What each response token counts, see `token_shares`.
    pub shares: Vec<f32>,
    pub what: Planned<'t>,
}

/// An objective.
#[derive(Debug)]
pub(super) enum Planned<'t> {
    Gradient(PlannedGradient),
    Distill(PlannedDistillation<'t>),
    TopK(PlannedTopK<'t>),
}

/// A policy gradient; also the likelihood.
#[derive(Debug)]
pub(super) struct PlannedGradient {
    pub weight: Weight,
    pub old: RatioSource,
    pub advantages: Vec<f32>,
    pub kl: Option<KlPenalty>,
    pub entropy: f64,
    /// Its bounds can drop tokens.
    pub bounded: bool,
    /// Recorded alternatives over which the score is centred; 0 = none.
    pub centred: usize,
}

/// Who teaches, and what it reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Teacher<'t> {
    pub policy: Policy,
    /// One per item of the caller; empty = their own.
    pub prompts: &'t [Vec<u32>],
}

/// A distance to a teacher.
#[derive(Debug)]
pub(super) struct PlannedDistillation<'t> {
    pub teacher: Teacher<'t>,
    pub divergence: Divergence,
    pub support: Support,
    pub importance: Importance,
}

/// Distillation over recorded alternatives.
#[derive(Debug)]
pub(super) struct PlannedTopK<'t> {
    pub teacher: Teacher<'t>,
    pub advantage_max: f64,
    pub bounds: (f64, f64),
    /// Alternatives of each token.
    pub k: usize,
}

impl<'t> Plan<'t> {
    /// Checks the terms.
    ///
    /// # Errors
    /// `Invalid` with the term and its field.
    pub fn new(batch: &Batch<'_>, terms: &'t [Term]) -> Result<Self, EngineError> {
        if terms.is_empty() || terms.len() > TERMS_MAX {
            return Err(EngineError::Invalid(format!("terms: {} of them; give 1 to {TERMS_MAX}", terms.len())));
        }
        let named = |(index, term): (usize, &'t Term)| {
            let refused = |problem| EngineError::Invalid(format!("terms[{index}]{problem}"));
            PlannedTerm::new(batch, term).map_err(refused)
        };
        let terms = terms.iter().enumerate().map(named).collect::<Result<_, _>>()?;
        let tokens = batch.masks().iter().flat_map(|mask| mask.iter()).filter(|&&action| action != 0).count();
        Ok(Self { terms, tokens })
    }

    /// Can the batch have a gradient, or is there anything to measure that needs a pass?
    pub fn has_signal(&self) -> bool {
        self.terms.iter().any(PlannedTerm::has_signal)
    }

    /// The policy gradients.
    pub fn gradients(&self) -> impl Iterator<Item = &PlannedGradient> {
        self.terms.iter().filter_map(|term| match &term.what {
            Planned::Gradient(gradient) => Some(gradient),
            Planned::Distill(_) | Planned::TopK(_) => None,
        })
    }
}

/// What is wrong with a term, as it goes on after the name of the term.
type Problem = String;

fn finite(field: &str, value: f32) -> Result<f64, Problem> {
    if value.is_finite() { Ok(f64::from(value)) } else { Err(format!(".{field}: {value} is not finite")) }
}

impl<'t> PlannedTerm<'t> {
    fn new(batch: &Batch<'_>, term: &'t Term) -> Result<Self, Problem> {
        let factor = finite("factor", term.factor)?;
        let (what, shares) = match &term.objective {
            Objective::Nll => nll(batch),
            Objective::PolicyGradient(gradient) => policy_gradient(batch, gradient)?,
            Objective::Distill(distillation) => distill(batch, distillation)?,
            Objective::DistillTopK(distillation) => distill_top_k(batch, distillation)?,
        };
        Ok(Self { factor, shares, what })
    }

    /// Who teaches, if anybody does.
    pub fn teacher(&self) -> Option<Teacher<'t>> {
        match &self.what {
            Planned::Gradient(_) => None,
            Planned::Distill(distillation) => Some(distillation.teacher),
            Planned::TopK(distillation) => Some(distillation.teacher),
        }
    }

    fn has_signal(&self) -> bool {
        match &self.what {
            Planned::Gradient(gradient) => {
                let extra = gradient.kl.is_some() || gradient.entropy != 0.0;
                let mut tokens = gradient.advantages.iter().zip(&self.shares);
                tokens.any(|(advantage, share)| *share > 0.0 && (extra || *advantage != 0.0))
            }
            Planned::Distill(_) | Planned::TopK(_) => self.shares.iter().any(|share| *share != 0.0),
        }
    }
}

/// An objective with the shares of its tokens.
type Shared<'t> = (Planned<'t>, Vec<f32>);

/// −log π is the policy-gradient loss with f = 1 and A = 1.
fn nll<'t>(batch: &Batch<'_>) -> Shared<'t> {
    let gradient = PlannedGradient {
        weight: Weight::Reinforce,
        old: RatioSource::Rollout,
        advantages: vec![1.0; batch.response_tokens],
        kl: None,
        entropy: 0.0,
        bounded: false,
        centred: 0,
    };
    (Planned::Gradient(gradient), token_shares(Reduction::SampleTokenMean, &batch.masks()))
}

fn policy_gradient<'t>(batch: &Batch<'_>, gradient: &PolicyGradient) -> Result<Shared<'t>, Problem> {
    gradient.weight.check().map_err(|error| format!(": {error}"))?;
    if let Some(kl) = gradient.kl {
        finite("kl.coefficient", kl.coefficient)?;
        if kl.reference == Policy::Current {
            let remedy = "the adapter is at distance 0 from itself; compare it with another policy";
            return Err(format!(".kl.reference: {remedy}"));
        }
    }
    // f = 1 reads no π_old, so nothing is computed for it.
    let old = if gradient.weight == Weight::Reinforce { RatioSource::Rollout } else { gradient.old };
    let mut centred = 0;
    if gradient.score_centering {
        if matches!(gradient.weight, Weight::Ppo { .. }) || old == RatioSource::Recomputed {
            let remedy = "it needs a weight that is a factor and ratios to the rollout; take another weight than ppo";
            return Err(format!(".score_centering: {remedy}, and old = rollout"));
        }
        centred = batch.alternatives().map_err(|problem| format!(".score_centering: {problem}"))?;
    }
    let planned = PlannedGradient {
        weight: gradient.weight,
        old,
        advantages: batch.to_rows(&gradient.advantages, ".advantages").map_err(|error| error.to_string())?,
        kl: gradient.kl,
        entropy: finite("entropy", gradient.entropy)?,
        bounded: true,
        centred,
    };
    Ok((Planned::Gradient(planned), token_shares(gradient.reduction, &batch.masks())))
}

fn distill<'t>(batch: &Batch<'_>, what: &'t Distillation) -> Result<Shared<'t>, Problem> {
    let checks = [what.divergence.check(), what.support.check(), what.importance.check()];
    checks.into_iter().collect::<Result<(), _>>().map_err(|problem| format!(".{problem}"))?;
    if !(what.weights.is_empty() || what.weights.len() == batch.rows.len()) {
        return Err(format!(".weights: {} of them for {} items", what.weights.len(), batch.rows.len()));
    }
    what.weights.iter().try_for_each(|weight| finite("weights", *weight).map(drop))?;
    let counted: Vec<Vec<u8>> = batch.masks().iter().map(|mask| after(mask, what.skip)).collect();
    let counted: Vec<&[u8]> = counted.iter().map(Vec::as_slice).collect();
    let mut shares = token_shares(Reduction::SampleTokenMean, &counted);
    let factors = batch.rows.iter().map(|row| what.weights.get(row.item).copied().unwrap_or(1.0));
    let factors = factors.zip(&counted).flat_map(|(factor, mask)| std::iter::repeat_n(factor, mask.len()));
    shares.iter_mut().zip(factors).for_each(|(share, factor)| *share *= factor);
    let planned = PlannedDistillation {
        teacher: teacher(batch, what.teacher, &what.prompts)?,
        divergence: what.divergence,
        support: what.support,
        importance: what.importance,
    };
    Ok((Planned::Distill(planned), shares))
}

/// The mask without the first `skip` tokens.
fn after(mask: &[u8], skip: usize) -> Vec<u8> {
    mask.iter().enumerate().map(|(index, action)| if index < skip { 0 } else { *action }).collect()
}

fn distill_top_k<'t>(batch: &Batch<'_>, what: &'t TopKDistillation) -> Result<Shared<'t>, Problem> {
    if !(what.advantage_max.is_finite() && what.advantage_max > 0.0) {
        return Err(format!(".advantage_max: {} must be finite and above 0", what.advantage_max));
    }
    let (low, high) = what.bounds;
    Weight::Ppo { low, high }.check().map_err(|error| format!(".bounds: {error}"))?;
    let planned = PlannedTopK {
        teacher: teacher(batch, what.teacher, &what.prompts)?,
        advantage_max: f64::from(what.advantage_max),
        bounds: (f64::from(low), f64::from(high)),
        k: batch.alternatives().map_err(|problem| format!(": {problem}"))?,
    };
    Ok((Planned::TopK(planned), token_shares(Reduction::SampleTokenMean, &batch.masks())))
}

fn teacher<'t>(batch: &Batch<'_>, policy: Policy, prompts: &'t [Vec<u32>]) -> Result<Teacher<'t>, Problem> {
    if prompts.is_empty() && policy == Policy::Current {
        let remedy = "give it other prompts, or take another teacher";
        return Err(format!(".teacher: the adapter is at distance 0 from itself on the same prompts; {remedy}"));
    }
    if !prompts.is_empty() {
        batch.check_prompts(prompts).map_err(|problem| format!(".prompts{problem}"))?;
    }
    Ok(Teacher { policy, prompts })
}
