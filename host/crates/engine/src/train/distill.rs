//! The loss of a chunk under the objectives that have a teacher.
//! The accumulation of gradients cuts a term for each micro-batch and asks it for the loss of each chunk. The
//! teacher's hidden states are there for the whole micro-batch; its log-probs exist for one chunk at a time, without
//! a graph.
//!
//! Legend: `n` response tokens of a micro-batch, `c` of a chunk, `d` hidden size, `v` vocabulary, `k` alternatives.

use tch::{Kind, Tensor};

use super::accumulate::Pass;
use super::alternatives::{AlternativeColumns, top_k_surrogate};
use super::batch::Columns;
use super::divergence::{Importance, Pair, capped_ratios, divergence};
use super::passes::Chunk;
use super::plan::{PlannedDistillation, PlannedTopK};
use crate::error::EngineError;

/// A distance to a teacher, in one micro-batch.
pub(super) struct DistillColumns<'a> {
    what: &'a PlannedDistillation<'a>,
    teacher_nd: &'a Tensor,
    /// Weights of whole samples, f32 [n].
    sequence_n: Option<Tensor>,
}

impl<'a> DistillColumns<'a> {
    /// `shares`: of the tokens of the micro-batch; those that count are not 0.
    pub fn cut(
        what: &'a PlannedDistillation<'a>,
        shares: &[f32],
        teacher_nd: &'a Tensor,
        pass: &Pass<'_>,
    ) -> Result<Self, EngineError> {
        let sequence_n = match what.importance {
            Importance::Sequence(cap) => {
                let logp_n = Tensor::f_from_slice(&pass.passes.log_probs(&pass.hidden_nd, pass.columns)?)?;
                let ratios_n = capped_ratios(&logp_n, &pass.columns.logp_old_n, cap)?;
                let means = sequence_means(pass.columns, &Vec::<f32>::try_from(&ratios_n)?, shares);
                Some(Tensor::f_from_slice(&means)?)
            }
            Importance::Off | Importance::Token(_) => None,
        };
        Ok(Self { what, teacher_nd, sequence_n })
    }

    /// Weighted D of each token and D alone without a graph, both f32 [c] and 0 where `counts_c` is not true.
    pub fn loss(&self, chunk: &Chunk, counts_c: &Tensor, pass: &Pass<'_>) -> Result<(Tensor, Tensor), EngineError> {
        let teacher = pass.passes.beside(chunk, self.teacher_nd, pass.columns)?;
        let pair =
            Pair { logp_cv: &chunk.logp_cv, logt_cv: &teacher.logp_cv, logp_c: &chunk.logp_c, logt_c: &teacher.logp_c };
        let apart_c = counted(&divergence(self.what.divergence, self.what.support, &pair)?, counts_c)?;
        let plain_c = apart_c.f_detach()?;
        let weight_c = match (self.what.importance, &self.sequence_n) {
            (Importance::Token(cap), _) => capped_ratios(&chunk.logp_c, &chunk.cut(&pass.columns.logp_old_n)?, cap)?,
            (_, Some(sequence_n)) => chunk.cut(sequence_n)?,
            (_, None) => return Ok((apart_c, plain_c)),
        };
        Ok((apart_c.f_mul(&weight_c)?, plain_c))
    }
}

/// Distillation over recorded alternatives, in one micro-batch.
pub(super) struct TopKColumns<'a> {
    what: &'a PlannedTopK<'a>,
    teacher_nd: &'a Tensor,
    ids_nk: Tensor,
    recorded_nk: Tensor,
}

impl<'a> TopKColumns<'a> {
    pub fn cut(what: &'a PlannedTopK<'a>, teacher_nd: &'a Tensor, pass: &Pass<'_>) -> Result<Self, EngineError> {
        let (ids_nk, recorded_nk) = pass.columns.alternatives(what.k)?;
        Ok(Self { what, teacher_nd, ids_nk, recorded_nk })
    }

    /// The surrogate of each token, f32 [c], 0 where `counts_c` is not true.
    pub fn loss(&self, chunk: &Chunk, counts_c: &Tensor, pass: &Pass<'_>) -> Result<Tensor, EngineError> {
        let teacher = pass.passes.beside(chunk, self.teacher_nd, pass.columns)?;
        let ids_ck = chunk.cut(&self.ids_nk)?;
        let columns = AlternativeColumns {
            recorded_ck: &chunk.cut(&self.recorded_nk)?,
            logp_ck: &chunk.logp_cv.f_gather(1, &ids_ck, false)?,
        };
        let logt_ck = teacher.logp_cv.f_gather(1, &ids_ck, false)?;
        counted(&top_k_surrogate(&columns, &logt_ck, self.what.advantage_max, self.what.bounds)?, counts_c)
    }
}

/// What stands on other tokens is 0, whatever it was.
pub(super) fn counted(column_c: &Tensor, counts_c: &Tensor) -> Result<Tensor, EngineError> {
    Ok(column_c.f_where_self(counts_c, &column_c.f_zeros_like()?)?)
}

/// The mean of each sample's ratios over its tokens that count, at each of its tokens.
fn sequence_means(columns: &Columns<'_>, ratios: &[f32], shares: &[f32]) -> Vec<f32> {
    let mut means = Vec::with_capacity(ratios.len());
    let mut rest = ratios.iter().zip(shares);
    for row in columns.rows {
        let length = row.sample.trajectory.mask.len();
        let counted = rest.by_ref().take(length).filter(|(_, share)| **share != 0.0);
        let (sum, count) = counted.fold((0.0, 0.0), |(sum, count), (ratio, _)| (sum + f64::from(*ratio), count + 1.0));
        let mean = if count > 0.0 { sum / count } else { 0.0 };
        means.extend(std::iter::repeat_n(mean as f32, length));
    }
    means
}

/// Sum of a tensor in f64.
pub(super) fn total(tensor: &Tensor) -> Result<f64, EngineError> {
    Ok(f64::try_from(&tensor.f_sum(Kind::Double)?)?)
}
