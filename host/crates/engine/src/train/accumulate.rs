//! The gradient of a batch, and what is measured on the way.
//! The trainer calls it with planned terms or with a gradient that the caller computed. Each micro-batch goes
//! forward and backward once, whatever the number of terms; policies that the adapter is compared with go
//! forward without a graph. Gradients add up in the parameters of the adapter, in row order.
//!
//! Legend: `n` response tokens of a micro-batch, `c` of a chunk.

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

use super::alternatives::{AlternativeColumns, centering};
use super::batch::{Batch, Columns};
use super::distill::{DistillColumns, TopKColumns, counted, total};
use super::loss::{LossColumns, entropy, k3, reduced, token_losses};
use super::objective::RatioSource;
use super::passes::{Chunk, Passes};
use super::plan::{Plan, Planned, PlannedGradient, PlannedTerm, Teacher};
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
    /// D, over all distances to a teacher, and the tokens that it was measured on.
    divergence: f64,
    compared: f64,
}

/// One micro-batch on its way through the model.
pub(super) struct Pass<'a> {
    pub passes: &'a Passes,
    pub policies: &'a Policies,
    pub columns: &'a Columns<'a>,
    /// States of the current adapter that predict the response tokens, with their graph, f32 [n, d].
    pub hidden_nd: Tensor,
}

/// Adds the gradient of the sum of the terms to the parameters of the current adapter.
pub(super) fn accumulate_terms(
    passes: &Passes,
    policies: &Policies,
    batch: &Batch<'_>,
    plan: &Plan<'_>,
) -> Result<Tally, EngineError> {
    let mut tally = Tally::default();
    let mut first = true;
    passes.each_micro_batch(batch, |columns| {
        let hidden_nd = passes.hidden(Some(&policies.current), &columns.layout)?;
        let pass = Pass { passes, policies, columns, hidden_nd };
        let references = References::compute(&pass, plan, first)?;
        let logp = accumulate_micro_batch(&pass, plan, &references, &mut tally)?;
        if let Some(logp_start) = references.start.filter(|_| first) {
            let start = Vec::<f32>::try_from(&logp_start)?;
            let drift = start.iter().zip(&logp).map(|(start, now)| f64::from(*start) - f64::from(*now));
            tally.first_step_kl = drift.sum::<f64>() / logp.len() as f64;
        }
        first = false;
        Ok(())
    })?;
    Ok(tally)
}

/// Adds the gradient of one micro-batch to what its hidden states were computed with. The log-probs of the response
/// tokens, on the way.
pub(super) fn accumulate_micro_batch(
    pass: &Pass<'_>,
    plan: &Plan<'_>,
    references: &References<'_>,
    tally: &mut Tally,
) -> Result<Vec<f32>, EngineError> {
    let terms = plan.terms.iter().map(|term| TermColumns::cut(term, pass, references));
    let terms = terms.collect::<Result<Vec<_>, _>>()?;
    let mut logp = Vec::with_capacity(pass.columns.len());
    pass.passes.backward(&pass.hidden_nd, pass.columns, |chunk| {
        logp.extend(Vec::<f32>::try_from(&chunk.logp_c.f_detach()?)?);
        chunk_loss(&terms, pass, chunk, tally)
    })?;
    Ok(logp)
}

/// Adds the gradient of a loss whose derivative by each log-prob is given, in row order.
pub(super) fn accumulate_given(
    passes: &Passes,
    policies: &Policies,
    batch: &Batch<'_>,
    gradients: &[f32],
) -> Result<(), EngineError> {
    passes.each_micro_batch(batch, |columns| {
        let gradients_n = columns.tensor(gradients)?;
        let hidden_nd = passes.hidden(Some(&policies.current), &columns.layout)?;
        passes.backward(&hidden_nd, columns, |chunk| {
            Ok(chunk.cut(&gradients_n)?.f_mul(&chunk.logp_c)?.f_sum(Kind::Float)?)
        })
    })
}

/// What the policies that a plan compares with say about the response tokens.
pub(super) struct References<'a> {
    /// Log-probs f32 [n] under the adapter at `open`.
    pub start: Option<Tensor>,
    /// Log-probs f32 [n] under the references of penalties.
    pub penalties: Vec<(Policy, Tensor)>,
    /// Hidden states f32 [n, d] of teachers.
    pub teachers: Vec<(Teacher<'a>, Tensor)>,
}

impl<'a> References<'a> {
    /// Of those that the terms name, each once; the start for the first micro-batch too, which measures the drift.
    fn compute(pass: &Pass<'_>, plan: &'a Plan<'_>, first: bool) -> Result<Self, EngineError> {
        let states = |which, prompts: &[_]| pass.passes.hidden_after(which, pass.columns, prompts);
        let log_probs = |adapter| {
            let logp = pass.passes.log_probs(&states(adapter, &[])?, pass.columns)?;
            Ok::<_, EngineError>(Tensor::f_from_slice(&logp)?)
        };
        let recomputed = plan.gradients().any(|gradient| gradient.old == RatioSource::Recomputed);
        let start = if first || recomputed { Some(log_probs(Some(&pass.policies.start))?) } else { None };
        let mut penalties: Vec<(Policy, Tensor)> = Vec::new();
        for kl in plan.gradients().filter_map(|gradient| gradient.kl) {
            if penalties.iter().all(|(known, _)| *known != kl.reference) {
                penalties.push((kl.reference, log_probs(pass.policies.adapter(kl.reference)?)?));
            }
        }
        let mut teachers: Vec<(Teacher<'_>, Tensor)> = Vec::new();
        for teacher in plan.terms.iter().filter_map(PlannedTerm::teacher) {
            if teachers.iter().all(|(known, _)| *known != teacher) {
                teachers.push((teacher, states(pass.policies.adapter(teacher.policy)?, teacher.prompts)?));
            }
        }
        Ok(Self { start, penalties, teachers })
    }

    fn of(&self, which: Policy) -> Option<&Tensor> {
        self.penalties.iter().find(|(known, _)| *known == which).map(|(_, logp_n)| logp_n)
    }

    fn teacher(&self, wanted: Teacher<'_>) -> Result<&Tensor, EngineError> {
        let found = self.teachers.iter().find(|(known, _)| *known == wanted);
        found
            .map(|(_, hidden_nd)| hidden_nd)
            .ok_or_else(|| EngineError::Invalid("terms: a teacher was not computed".to_owned()))
    }
}

/// One term and what it reads of one micro-batch.
struct TermColumns<'a> {
    factor: f64,
    shares_n: Tensor,
    what: Cut<'a>,
}

enum Cut<'a> {
    Gradient(GradientColumns<'a>),
    Distill(DistillColumns<'a>),
    TopK(TopKColumns<'a>),
}

impl<'a> TermColumns<'a> {
    fn cut(term: &'a PlannedTerm<'a>, pass: &Pass<'a>, references: &'a References<'_>) -> Result<Self, EngineError> {
        let shares = pass.columns.part(&term.shares);
        let what = match &term.what {
            Planned::Gradient(what) => Cut::Gradient(GradientColumns::cut(what, pass, references)?),
            Planned::Distill(what) => {
                Cut::Distill(DistillColumns::cut(what, shares, references.teacher(what.teacher)?, pass)?)
            }
            Planned::TopK(what) => Cut::TopK(TopKColumns::cut(what, references.teacher(what.teacher)?, pass)?),
        };
        Ok(Self { factor: term.factor, shares_n: Tensor::f_from_slice(shares)?, what })
    }

    fn wants_entropy(&self) -> bool {
        matches!(&self.what, Cut::Gradient(gradient) if gradient.what.entropy != 0.0)
    }

    /// Σ share·loss of the tokens of a chunk, times the factor.
    fn loss(
        &self,
        chunk: &Chunk,
        pass: &Pass<'_>,
        entropy_c: Option<&Tensor>,
        tally: &mut Tally,
    ) -> Result<Tensor, EngineError> {
        let shares_c = chunk.cut(&self.shares_n)?;
        let loss_c = match &self.what {
            Cut::Gradient(gradient) => gradient.loss(chunk, &chunk.cut(&pass.columns.mask_n)?, entropy_c, tally)?,
            Cut::Distill(distill) => {
                let counts_c = shares_c.f_ne(0.0)?;
                let (loss_c, plain_c) = distill.loss(chunk, &counts_c, pass)?;
                tally.divergence += total(&plain_c)?;
                tally.compared += total(&counts_c)?;
                loss_c
            }
            Cut::TopK(distill) => distill.loss(chunk, &shares_c.f_ne(0.0)?, pass)?,
        };
        Ok(reduced(&loss_c, &shares_c)?.f_mul_scalar(self.factor)?)
    }
}

/// A policy gradient in one micro-batch; columns f32 [n].
struct GradientColumns<'a> {
    what: &'a PlannedGradient,
    advantages_n: Tensor,
    logp_old_n: &'a Tensor,
    /// Coefficient and log-probs of the penalty's reference.
    kl: Option<(f64, &'a Tensor)>,
    /// Ids [n, k] and recorded log-probs [n, k] over which the score is centred.
    alternatives: Option<(Tensor, Tensor)>,
}

impl<'a> GradientColumns<'a> {
    fn cut(what: &'a PlannedGradient, pass: &Pass<'a>, references: &'a References<'_>) -> Result<Self, EngineError> {
        let recomputed = references.start.as_ref().filter(|_| what.old == RatioSource::Recomputed);
        let kl = what.kl.and_then(|kl| Some((f64::from(kl.coefficient), references.of(kl.reference)?)));
        Ok(Self {
            what,
            advantages_n: pass.columns.tensor(&what.advantages)?,
            logp_old_n: recomputed.unwrap_or(&pass.columns.logp_old_n),
            kl,
            alternatives: if what.centred > 0 { Some(pass.columns.alternatives(what.centred)?) } else { None },
        })
    }

    /// The loss of each token, f32 [c], with its penalties; 0 outside the mask but for the entropy.
    fn loss(
        &self,
        chunk: &Chunk,
        mask_c: &Tensor,
        entropy_c: Option<&Tensor>,
        tally: &mut Tally,
    ) -> Result<Tensor, EngineError> {
        let advantages_c = chunk.cut(&self.advantages_n)?;
        let columns = LossColumns {
            logp_n: &chunk.logp_c,
            logp_old_n: &chunk.cut(self.logp_old_n)?,
            advantages_n: &advantages_c,
            mask_n: mask_c,
        };
        let losses = token_losses(self.what.weight, &columns)?;
        let mut loss_c = losses.loss_n;
        if self.what.bounded {
            tally.dropped += total(&losses.dropped_n)?;
        }
        if let Some((ids_nk, recorded_nk)) = &self.alternatives {
            let columns = AlternativeColumns {
                recorded_ck: &chunk.cut(recorded_nk)?,
                logp_ck: &chunk.logp_cv.f_gather(1, &chunk.cut(ids_nk)?, false)?,
            };
            let centre_c = centering(self.what.weight, &columns)?.f_mul(&advantages_c)?;
            loss_c = loss_c.f_add(&counted(&centre_c, mask_c)?)?;
        }
        if let Some((coefficient, reference_n)) = self.kl {
            let k3_c = k3(&chunk.logp_c, &chunk.cut(reference_n)?, mask_c)?;
            tally.kl += total(&k3_c)?;
            loss_c = loss_c.f_add(&k3_c.f_mul_scalar(coefficient)?)?;
        }
        if let Some(entropy_c) = entropy_c.filter(|_| self.what.entropy != 0.0) {
            loss_c = loss_c.f_sub(&entropy_c.f_mul_scalar(self.what.entropy)?)?;
        }
        Ok(loss_c)
    }
}

/// The loss of one chunk, a scalar: the sum of all terms.
fn chunk_loss(
    terms: &[TermColumns<'_>],
    pass: &Pass<'_>,
    chunk: &Chunk,
    tally: &mut Tally,
) -> Result<Tensor, EngineError> {
    let mask_c = chunk.cut(&pass.columns.mask_n)?;
    let wanted = terms.iter().any(TermColumns::wants_entropy);
    let entropy_c = if wanted { Some(entropy(&chunk.logp_cv)?) } else { None };
    if let Some(entropy_c) = &entropy_c {
        tally.entropy += total(&entropy_c.f_masked_select(&mask_c)?)?;
    }
    let mut sum: Option<Tensor> = None;
    for term in terms {
        let loss = term.loss(chunk, pass, entropy_c.as_ref(), tally)?;
        sum = Some(match sum {
            Some(sum) => sum.f_add(&loss)?,
            None => loss,
        });
    }
    // A plan has at least one term.
    let loss = sum.ok_or_else(|| EngineError::Invalid("terms: the list is empty".to_owned()))?;
    tally.loss += f64::try_from(&loss)?;
    tally.logp += total(&chunk.logp_c.f_masked_select(&mask_c)?)?;
    let apart_c = chunk.logp_c.f_sub(&chunk.cut(&pass.columns.logp_old_n)?)?;
    tally.logp_difference += total(&apart_c.f_abs()?.f_masked_select(&mask_c)?)?;
    Ok(loss)
}

impl Plan<'_> {
    /// The metrics of a call that had nothing to do.
    pub fn nothing(&self) -> BTreeMap<String, f64> {
        Tally::default().metrics(self, 0.0)
    }
}

impl Tally {
    /// The metrics of one call, see `Trainer::forward_backward`.
    pub fn metrics(&self, plan: &Plan<'_>, gradient_norm: f64) -> BTreeMap<String, f64> {
        let count = |of: fn(&PlannedGradient) -> bool| plan.gradients().filter(|gradient| of(gradient)).count();
        let mean = |sum: f64, terms: usize| sum / (plan.tokens * terms).max(1) as f64;
        let mut metrics: BTreeMap<String, f64> = [
            ("loss", self.loss),
            ("gradient_norm", gradient_norm),
            ("masked_share", mean(self.dropped, count(|gradient| gradient.bounded))),
            ("first_step_kl", self.first_step_kl),
            ("logprob_abs_diff", mean(self.logp_difference, 1)),
            ("tokens", plan.tokens as f64),
            ("entropy", mean(-self.logp, 1)),
            ("skipped", f64::from(u8::from(gradient_norm == 0.0))),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let penalties = count(|gradient| gradient.kl.is_some());
        if penalties > 0 {
            metrics.insert("kl".to_owned(), mean(self.kl, penalties));
        }
        if count(|gradient| gradient.entropy != 0.0) > 0 {
            metrics.insert("entropy_exact".to_owned(), mean(self.entropy, 1));
        }
        if plan.terms.iter().any(|term| matches!(term.what, Planned::Distill(_))) {
            metrics.insert("divergence".to_owned(), self.divergence / self.compared.max(1.0));
        }
        metrics
    }
}
