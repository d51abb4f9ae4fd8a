//! The gradient of a batch, and what is measured on the way.
//! The trainer calls it with planned terms or with a gradient that the caller computed. Each micro-batch goes
//! forward and backward once, whatever the number of terms; policies that the adapter is compared with go
//! forward without a graph. Gradients add up in the parameters of the adapter, in row order.
//!
//! Legend: `n` response tokens of a micro-batch, `c` of a chunk.

use tch::{Kind, Tensor};

use super::alternatives::{AlternativeColumns, centering};
use super::batch::{Batch, Columns};
use super::distill::{DistillColumns, TopKColumns, counted};
use super::loss::{LossColumns, entropy, k3, reduced, token_losses};
use super::objective::RatioSource;
use super::passes::{Chunk, Passes};
use super::plan::{Plan, Planned, PlannedGradient, PlannedTerm, Teacher};
use super::policies::{Policies, Policy};
use super::tally::{Sum, Tally};
use crate::error::EngineError;

/// One micro-batch on its way through the model.
pub(super) struct Pass<'a> {
    pub passes: &'a Passes,
    pub policies: &'a Policies,
    pub columns: &'a Columns<'a>,
    /// States of the current adapter that predict the response tokens, a leaf, f32 [n, d].
    pub hidden_nd: Tensor,
}

/// Adds the gradient of the sum of the terms to the parameters of the current adapter.
pub(super) fn accumulate_terms(
    passes: &Passes,
    policies: &Policies,
    batch: &Batch<'_>,
    plan: &Plan<'_>,
) -> Result<Tally, EngineError> {
    let mut tally = Tally::new(batch.bounds.device)?;
    passes.each_micro_batch_of_ours(batch, |columns, first| {
        let (hidden_nd, way) = passes.forward(&policies.current, &columns.layout)?;
        let pass = Pass { passes, policies, columns, hidden_nd };
        let references = References::compute(&pass, plan, first)?;
        let logp_n = accumulate_micro_batch(&pass, plan, &references, &mut tally)?;
        passes.back(way, &policies.current, &pass.hidden_nd)?;
        if let Some(start_n) = references.start.filter(|_| first) {
            tally.add(Sum::Drift, &start_n.f_to_kind(Kind::Double)?.f_sub(&logp_n)?)?;
            tally.add(Sum::Compared, &logp_n.f_ones_like()?)?;
        }
        Ok(())
    })?;
    Ok(tally)
}

/// Adds the gradient of one micro-batch to its hidden states. The log-probs of the response tokens on the way, f32 [n].
pub(super) fn accumulate_micro_batch(
    pass: &Pass<'_>,
    plan: &Plan<'_>,
    references: &References<'_>,
    tally: &mut Tally,
) -> Result<Tensor, EngineError> {
    let terms = plan.terms.iter().map(|term| TermColumns::cut(term, pass, references));
    let terms = terms.collect::<Result<Vec<_>, _>>()?;
    let mut logp = Vec::new();
    pass.passes.backward(&pass.hidden_nd, pass.columns, |chunk| {
        logp.push(chunk.logp_c.f_detach()?);
        chunk_loss(&terms, pass, chunk, tally)
    })?;
    Ok(Tensor::f_cat(&logp, 0)?)
}

/// Adds the gradient of a loss whose derivative by each log-prob is given, in row order.
pub(super) fn accumulate_given(
    passes: &Passes,
    policies: &Policies,
    batch: &Batch<'_>,
    gradients: &[f32],
) -> Result<(), EngineError> {
    passes.each_micro_batch_of_ours(batch, |columns, _| {
        let gradients_n = columns.tensor(gradients)?;
        let (hidden_nd, way) = passes.forward(&policies.current, &columns.layout)?;
        passes.backward(&hidden_nd, columns, |chunk| {
            Ok(chunk.cut(&gradients_n)?.f_mul(&chunk.logp_c)?.f_sum(Kind::Float)?)
        })?;
        passes.back(way, &policies.current, &hidden_nd)
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
        let log_probs = |adapter| pass.passes.log_probs(&states(adapter, &[])?, pass.columns);
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
        Ok(Self {
            factor: term.factor,
            shares_n: Tensor::f_from_slice(shares)?.f_to_device(pass.columns.device())?,
            what,
        })
    }

    fn wants_entropy(&self) -> bool {
        matches!(&self.what, Cut::Gradient(gradient) if gradient.what.entropy != 0.0)
    }

    /// Σ share·loss of the tokens of a chunk, times the factor; and which tokens have a gradient, bool [c].
    fn loss(
        &self,
        chunk: &Chunk,
        pass: &Pass<'_>,
        entropy_c: Option<&Tensor>,
        tally: &mut Tally,
    ) -> Result<(Tensor, Tensor), EngineError> {
        let shares_c = chunk.cut(&self.shares_n)?;
        let counts_c = shares_c.f_ne(0.0)?;
        let (loss_c, acts_c) = match &self.what {
            Cut::Gradient(gradient) => gradient.loss(chunk, &chunk.cut(&pass.columns.mask_n)?, entropy_c, tally)?,
            Cut::Distill(distill) => {
                let (loss_c, plain_c) = distill.loss(chunk, &counts_c, pass)?;
                tally.add(Sum::Divergence, &plain_c)?;
                tally.add(Sum::Taught, &counts_c)?;
                (loss_c, counts_c.shallow_clone())
            }
            Cut::TopK(distill) => (distill.loss(chunk, &counts_c, pass)?, counts_c.shallow_clone()),
        };
        Ok((reduced(&loss_c, &shares_c)?.f_mul_scalar(self.factor)?, acts_c.f_logical_and(&counts_c)?))
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

    /// The loss of each token, f32 [c], with its penalties; 0 outside the mask but for the entropy. And which tokens
    /// have a gradient, bool [c].
    fn loss(
        &self,
        chunk: &Chunk,
        mask_c: &Tensor,
        entropy_c: Option<&Tensor>,
        tally: &mut Tally,
    ) -> Result<(Tensor, Tensor), EngineError> {
        let advantages_c = chunk.cut(&self.advantages_n)?;
        let columns = LossColumns {
            logp_n: &chunk.logp_c,
            logp_old_n: &chunk.cut(self.logp_old_n)?,
            advantages_n: &advantages_c,
            mask_n: mask_c,
        };
        let losses = token_losses(self.what.weight, &columns)?;
        let mut loss_c = losses.loss_n;
        let penalised = self.kl.is_some() || self.what.entropy != 0.0;
        let acts_c = match penalised {
            true => mask_c.shallow_clone(),
            false => {
                mask_c.f_logical_and(&advantages_c.f_ne(0.0)?)?.f_logical_and(&losses.dropped_n.f_logical_not()?)?
            }
        };
        if self.what.bounded {
            tally.add(Sum::Dropped, &losses.dropped_n)?;
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
            tally.add(Sum::Kl, &k3_c)?;
            loss_c = loss_c.f_add(&k3_c.f_mul_scalar(coefficient)?)?;
        }
        if let Some(entropy_c) = entropy_c.filter(|_| self.what.entropy != 0.0) {
            loss_c = loss_c.f_sub(&entropy_c.f_mul_scalar(self.what.entropy)?)?;
        }
        Ok((loss_c, acts_c))
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
        tally.add(Sum::Entropy, &counted(entropy_c, &mask_c)?)?;
    }
    let mut sum: Option<(Tensor, Tensor)> = None;
    for term in terms {
        let (loss, acts_c) = term.loss(chunk, pass, entropy_c.as_ref(), tally)?;
        sum = Some(match sum {
            Some((sum, some_c)) => (sum.f_add(&loss)?, some_c.f_logical_or(&acts_c)?),
            None => (loss, acts_c),
        });
    }
    // A plan has at least one term.
    let (loss, acts_c) = sum.ok_or_else(|| EngineError::Invalid("terms: the list is empty".to_owned()))?;
    tally.add(Sum::Effective, &acts_c)?;
    tally.add(Sum::Loss, &loss)?;
    tally.add(Sum::Logp, &counted(&chunk.logp_c, &mask_c)?)?;
    let apart_c = chunk.logp_c.f_sub(&chunk.cut(&pass.columns.logp_old_n)?)?.f_abs()?;
    tally.add(Sum::LogpDifference, &counted(&apart_c, &mask_c)?)?;
    let own_c = chunk.cut(&pass.columns.own_n)?;
    tally.add(Sum::OwnDifference, &counted(&apart_c, &own_c)?)?;
    tally.add(Sum::Own, &own_c)?;
    Ok(loss)
}
