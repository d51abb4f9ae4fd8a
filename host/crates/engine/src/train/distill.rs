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
                let logp_n = pass.passes.log_probs(&pass.hidden_nd, pass.columns)?;
                let ratios_n = capped_ratios(&logp_n, &pass.columns.logp_old_n, cap)?;
                Some(sequence_means(pass.columns, &ratios_n, shares)?)
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

/// The mean of each sample's ratios over its tokens that count, at each of its tokens; f32 [n].
fn sequence_means(columns: &Columns<'_>, ratios_n: &Tensor, shares: &[f32]) -> Result<Tensor, EngineError> {
    let lengths = columns.rows.iter().map(|row| row.sample.trajectory.mask.len());
    let rows: Vec<i64> = (0i64..).zip(lengths).flat_map(|(row, length)| std::iter::repeat_n(row, length)).collect();
    let rows_n = Tensor::f_from_slice(&rows)?.f_to_device(columns.device())?;
    let counts_n = Tensor::f_from_slice(shares)?.f_to_device(columns.device())?.f_ne(0.0)?.f_to_kind(Kind::Double)?;
    let sums = |column_n: &Tensor| {
        let none_b = Tensor::f_zeros([columns.rows.len() as i64], (Kind::Double, column_n.device()))?;
        none_b.f_index_add(0, &rows_n, column_n)
    };
    // Where nothing counts the sum is 0 too.
    let means_b =
        sums(&ratios_n.f_to_kind(Kind::Double)?.f_mul(&counts_n)?)?.f_div(&sums(&counts_n)?.f_clamp_min(1.0)?)?;
    Ok(means_b.f_index_select(0, &rows_n)?.f_to_kind(Kind::Float)?)
}
