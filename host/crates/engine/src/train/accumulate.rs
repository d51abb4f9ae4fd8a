//! The gradient of a batch, and what is measured on the way.
//! The trainer calls it with planned terms or with a gradient that the caller computed. Each micro-batch goes
//! forward and backward once, whatever the number of terms; policies that the adapter is compared with go
//! forward without a graph. Gradients add up in the parameters of the adapter, in row order.
//!
//! Legend: `n` response tokens of a micro-batch, `c` of a chunk.

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

use super::batch::{Batch, Columns};
use super::loss::{LossColumns, entropy, k3, reduced, token_losses};
use super::objective::{Plan, PlannedTerm, RatioSource};
use super::passes::{Chunk, Passes};
use super::policies::{Policies, Policy};
use crate::error::EngineError;

/// Sums over the action tokens of a batch, for the metrics.
#[derive(Debug, Default)]
pub(super) struct Tally {
    loss: f64,
    dropped: f64,
    logp: f64,
    logp_difference: f64,
    first_step_kl: f64,
    /// k3, over all terms that have a penalty.
    kl: f64,
    entropy: f64,
}

/// Adds the gradient of the sum of the terms to the parameters of the current adapter.
pub(super) fn accumulate_terms(
    passes: &Passes,
    policies: &Policies,
    batch: &Batch<'_>,
    plan: &Plan,
) -> Result<Tally, EngineError> {
    let mut tally = Tally::default();
    let mut done = 0;
    passes.each_micro_batch(batch, |columns| {
        let references = References::compute(passes, policies, columns, (plan, done == 0))?;
        let terms = plan.terms.iter().map(|term| TermColumns::cut(term, done, columns, &references));
        let terms = terms.collect::<Result<Vec<_>, _>>()?;
        let mut logp = Vec::with_capacity(columns.len());
        passes.backward(&policies.current, columns, |chunk| {
            logp.extend(Vec::<f32>::try_from(&chunk.logp_c.f_detach()?)?);
            chunk_loss(&terms, columns, chunk, &mut tally)
        })?;
        if let Some(logp_start) = references.start.filter(|_| done == 0) {
            let start = Vec::<f32>::try_from(&logp_start)?;
            let drift = start.iter().zip(&logp).map(|(start, now)| f64::from(*start) - f64::from(*now));
            tally.first_step_kl = drift.sum::<f64>() / logp.len() as f64;
        }
        done += columns.len();
        Ok(())
    })?;
    Ok(tally)
}

/// Adds the gradient of a loss whose derivative by each log-prob is given, in row order.
pub(super) fn accumulate_given(
    passes: &Passes,
    policies: &Policies,
    batch: &Batch<'_>,
    gradients: &[f32],
) -> Result<(), EngineError> {
    let mut done = 0;
    passes.each_micro_batch(batch, |columns| {
        let gradients_n = part(gradients, done, columns)?;
        done += columns.len();
        passes.backward(&policies.current, columns, |chunk| {
            Ok(chunk.cut(&gradients_n)?.f_mul(&chunk.logp_c)?.f_sum(Kind::Float)?)
        })
    })
}

/// Log-probs f32 [n] of the response tokens under the policies that a plan compares with.
struct References {
    start: Option<Tensor>,
    base: Option<Tensor>,
    ema: Option<Tensor>,
}

impl References {
    /// Those that the terms name; the start for the first micro-batch too, which measures the drift.
    fn compute(
        passes: &Passes,
        policies: &Policies,
        columns: &Columns,
        (plan, first): (&Plan, bool),
    ) -> Result<Self, EngineError> {
        let penalised = |which| plan.terms.iter().filter_map(|term| term.kl).any(|kl| kl.reference == which);
        let forward = |wanted: bool, adapter| match wanted {
            true => Ok(Some(Tensor::f_from_slice(&passes.log_probs(adapter, columns)?)?)),
            false => Ok::<_, EngineError>(None),
        };
        let recomputed = plan.terms.iter().any(|term| term.old == RatioSource::Recomputed);
        Ok(Self {
            start: forward(first || recomputed, Some(&policies.start))?,
            base: forward(penalised(Policy::Base), None)?,
            ema: forward(penalised(Policy::Ema), policies.adapter(Policy::Ema))?,
        })
    }

    fn of(&self, which: Policy) -> Option<&Tensor> {
        match which {
            Policy::Base => self.base.as_ref(),
            Policy::Ema => self.ema.as_ref(),
            Policy::Current => None,
        }
    }
}

/// One term and its columns of one micro-batch, f32 [n].
struct TermColumns<'a> {
    term: &'a PlannedTerm,
    advantages_n: Tensor,
    shares_n: Tensor,
    logp_old_n: &'a Tensor,
    /// Coefficient and log-probs of the penalty's reference.
    kl: Option<(f64, &'a Tensor)>,
}

impl<'a> TermColumns<'a> {
    fn cut(
        term: &'a PlannedTerm,
        done: usize,
        columns: &'a Columns,
        references: &'a References,
    ) -> Result<Self, EngineError> {
        let recomputed = references.start.as_ref().filter(|_| term.old == RatioSource::Recomputed);
        let penalty = term.kl.and_then(|kl| Some((f64::from(kl.coefficient), references.of(kl.reference)?)));
        Ok(Self {
            term,
            advantages_n: part(&term.advantages, done, columns)?,
            shares_n: part(&term.shares, done, columns)?,
            logp_old_n: recomputed.unwrap_or(&columns.logp_old_n),
            kl: penalty,
        })
    }

    /// Σ share·loss of the action tokens of a chunk, times the factor.
    fn loss(
        &self,
        chunk: &Chunk,
        mask_c: &Tensor,
        entropy_c: Option<&Tensor>,
        tally: &mut Tally,
    ) -> Result<Tensor, EngineError> {
        let mut losses = token_losses(
            self.term.weight,
            &LossColumns {
                logp_n: &chunk.logp_c,
                logp_old_n: &chunk.cut(self.logp_old_n)?,
                advantages_n: &chunk.cut(&self.advantages_n)?,
                mask_n: mask_c,
            },
        )?;
        if self.term.bounded {
            tally.dropped += total(&losses.dropped_n)?;
        }
        if let Some((coefficient, reference_n)) = self.kl {
            let k3_c = k3(&chunk.logp_c, &chunk.cut(reference_n)?, mask_c)?;
            tally.kl += total(&k3_c)?;
            losses.loss_n = losses.loss_n.f_add(&k3_c.f_mul_scalar(coefficient)?)?;
        }
        if let Some(entropy_c) = entropy_c.filter(|_| self.term.entropy != 0.0) {
            losses.loss_n = losses.loss_n.f_sub(&entropy_c.f_mul_scalar(self.term.entropy)?)?;
        }
        Ok(reduced(&losses, &chunk.cut(&self.shares_n)?)?.f_mul_scalar(self.term.factor)?)
    }
}

/// The loss of one chunk, a scalar: the sum of all terms.
fn chunk_loss(
    terms: &[TermColumns<'_>],
    columns: &Columns,
    chunk: &Chunk,
    tally: &mut Tally,
) -> Result<Tensor, EngineError> {
    let mask_c = chunk.cut(&columns.mask_n)?;
    let wanted = terms.iter().any(|term| term.term.entropy != 0.0);
    let entropy_c = if wanted { Some(entropy(&chunk.logp_cv)?) } else { None };
    if let Some(entropy_c) = &entropy_c {
        tally.entropy += total(&entropy_c.f_masked_select(&mask_c)?)?;
    }
    let mut sum: Option<Tensor> = None;
    for term in terms {
        let loss = term.loss(chunk, &mask_c, entropy_c.as_ref(), tally)?;
        sum = Some(match sum {
            Some(sum) => sum.f_add(&loss)?,
            None => loss,
        });
    }
    // A plan has at least one term.
    let loss = sum.ok_or_else(|| EngineError::Invalid("terms: the list is empty".to_owned()))?;
    tally.loss += f64::try_from(&loss)?;
    tally.logp += total(&chunk.logp_c.f_masked_select(&mask_c)?)?;
    let apart_c = chunk.logp_c.f_sub(&chunk.cut(&columns.logp_old_n)?)?;
    tally.logp_difference += total(&apart_c.f_abs()?.f_masked_select(&mask_c)?)?;
    Ok(loss)
}

/// The part [n] of a column in row order that belongs to a micro-batch after `done` tokens.
fn part(column: &[f32], done: usize, columns: &Columns) -> Result<Tensor, EngineError> {
    Ok(Tensor::f_from_slice(column.get(done..done + columns.len()).unwrap_or_default())?)
}

/// Sum of a tensor in f64.
fn total(tensor: &Tensor) -> Result<f64, EngineError> {
    Ok(f64::try_from(&tensor.f_sum(Kind::Double)?)?)
}

impl Plan {
    /// The metrics of a call that had nothing to do.
    pub fn nothing(&self) -> BTreeMap<String, f64> {
        Tally::default().metrics(self, 0.0)
    }
}

impl Tally {
    /// The metrics of one call, see `Trainer::forward_backward`.
    pub fn metrics(&self, plan: &Plan, gradient_norm: f64) -> BTreeMap<String, f64> {
        let count = |of: fn(&PlannedTerm) -> bool| plan.terms.iter().filter(|term| of(term)).count();
        let mean = |sum: f64, terms: usize| sum / (plan.tokens * terms).max(1) as f64;
        let mut metrics: BTreeMap<String, f64> = [
            ("loss", self.loss),
            ("gradient_norm", gradient_norm),
            ("masked_share", mean(self.dropped, count(|term| term.bounded))),
            ("first_step_kl", self.first_step_kl),
            ("logprob_abs_diff", mean(self.logp_difference, 1)),
            ("tokens", plan.tokens as f64),
            ("entropy", mean(-self.logp, 1)),
            ("skipped", f64::from(u8::from(gradient_norm == 0.0))),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let penalties = count(|term| term.kl.is_some());
        if penalties > 0 {
            metrics.insert("kl".to_owned(), mean(self.kl, penalties));
        }
        if count(|term| term.entropy != 0.0) > 0 {
            metrics.insert("entropy_exact".to_owned(), mean(self.entropy, 1));
        }
        metrics
    }
}
