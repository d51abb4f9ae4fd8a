//! Forward and backward passes of the samples of one call over the frozen model, micro-batch by micro-batch.
//! The trainer and the accumulation of gradients run everything that costs time through it; between two
//! micro-batches it looks for cancellation and makes room for serving. Only response tokens get logits, a
//! bounded number at a time. It knows no loss.
//!
//! Legend: `b` rows, `t` padded positions, `n` response tokens of a micro-batch, `c` of a chunk, `d` hidden
//! size, `v` vocabulary.

use std::sync::Arc;
use std::time::Instant;

use reef_core::{ReleaseId, Sample};
use tch::{Kind, Tensor, no_grad};

use super::batch::{Batch, Bounds, Columns, Row};
use super::control::TrainControl;
use super::layout::Layout;
use crate::adapter::Lora;
use crate::engine::ServingLoad;
use crate::error::EngineError;
use crate::model::{Kept, Model};

/// Response tokens whose logits exist at one time: 64 rows of a vocabulary of 49,152 are 12 MiB a copy.
const LOGIT_ROWS_MAX: usize = 64;

/// The frozen model, how many cores its passes take, and who may interrupt them.
pub(super) struct Passes {
    pub model: Arc<Model>,
    pub serving: Arc<ServingLoad>,
    pub threads: i32,
    pub control: TrainControl,
    /// The release whose log-probs must be those of the trainer before its first step.
    pub release: Option<ReleaseId>,
    /// Rank of this worker and how many there are.
    pub place: (usize, usize),
}

/// From hidden states back to the adapter that they were computed with.
pub(super) enum Way {
    /// Through what the forward pass left.
    Graph(Tensor),
    /// Block by block, computed again; the states of all positions have this size.
    Recomputed { kept: Kept, size: Vec<i64>, positions_n: Tensor },
}

/// Response tokens that have logits together.
pub(super) struct Chunk {
    start: i64,
    length: i64,
    /// Log-probs of the whole vocabulary at the sampling temperatures, f32 [c, v].
    pub logp_cv: Tensor,
    /// Log-probs of the response tokens themselves, f32 [c].
    pub logp_c: Tensor,
}

impl Passes {
    /// A look at cancellation and a word to this thread's kernels, before anything that calls them: the number
    /// of threads belongs to the thread that calls, and sums depend on it.
    pub fn begin(&self) -> Result<(), EngineError> {
        self.control.check()?;
        tch::set_num_threads(self.threads);
        Ok(())
    }

    /// Begins, and checks the samples.
    pub fn batch<'a>(&self, items: &[&'a Sample]) -> Result<Batch<'a>, EngineError> {
        self.begin()?;
        let config = self.model.config();
        let bounds = Bounds {
            vocabulary: config.vocabulary,
            context: config.context_length,
            device: self.model.device(),
            micro_batch_tokens: self.model.compute().micro_batch_tokens,
        };
        Ok(Batch::new(items, bounds)?.mark_own(self.release.as_ref()))
    }

    /// Runs `work` on the columns of each micro-batch in row order, and makes room for serving in between.
    pub fn each_micro_batch(
        &self,
        batch: &Batch<'_>,
        mut work: impl FnMut(&Columns<'_>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        batch.micro_batches().into_iter().try_for_each(|rows| self.micro_batch(rows, batch.bounds, &mut work))
    }

    /// The same on the micro-batches that are this worker's, with whether it is the first of the batch.
    pub fn each_micro_batch_of_ours(
        &self,
        batch: &Batch<'_>,
        mut work: impl FnMut(&Columns<'_>, bool) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let (rank, world) = self.place;
        let ours = batch.micro_batches().into_iter().enumerate().skip(rank).step_by(world.max(1));
        ours.into_iter().try_for_each(|(index, rows)| {
            self.micro_batch(rows, batch.bounds, &mut |columns: &Columns<'_>| work(columns, index == 0))
        })
    }

    fn micro_batch(
        &self,
        rows: &[Row<'_>],
        bounds: Bounds,
        work: &mut impl FnMut(&Columns<'_>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        self.control.check()?;
        let begin = Instant::now();
        work(&Columns::new(rows, bounds)?)?;
        self.control.make_room(begin.elapsed(), || self.serving.active())
    }

    /// Final hidden states that predict the response tokens, f32 [n, d].
    pub fn hidden(&self, adapter: Option<&Lora>, layout: &Layout) -> Result<Tensor, EngineError> {
        Ok(self.model.hidden(&layout.sequences, adapter)?.f_index_select(0, &layout.positions_n)?)
    }

    /// The same as a leaf that gathers the gradient of a loss, and the way on from there.
    pub fn forward(&self, adapter: &Lora, layout: &Layout) -> Result<(Tensor, Way), EngineError> {
        let (hidden_nd, way) = if self.model.compute().gradient_checkpointing {
            let (all_nd, kept) = self.model.hidden_kept(&layout.sequences, adapter)?;
            let positions_n = layout.positions_n.shallow_clone();
            let size = all_nd.size();
            (all_nd.f_index_select(0, &positions_n)?, Way::Recomputed { kept, size, positions_n })
        } else {
            let hidden_nd = self.hidden(Some(adapter), layout)?;
            (hidden_nd.shallow_clone(), Way::Graph(hidden_nd))
        };
        Ok((hidden_nd.f_detach()?.f_set_requires_grad(true)?, way))
    }

    /// Adds to the tensors of the adapter what `hidden_nd`, the leaf of `forward`, has gathered.
    pub fn back(&self, way: Way, adapter: &Lora, hidden_nd: &Tensor) -> Result<(), EngineError> {
        let gradient_nd = hidden_nd.f_grad()?;
        match way {
            Way::Graph(hidden_nd) => Ok(hidden_nd.f_mul(&gradient_nd)?.f_sum(Kind::Float)?.f_backward()?),
            Way::Recomputed { kept, size, positions_n } => {
                let none_nd = Tensor::f_zeros(size, (Kind::Float, self.model.device()))?;
                self.model.backward(kept, adapter, &none_nd.f_index_add(0, &positions_n, &gradient_nd)?)
            }
        }
    }

    /// As `hidden`, without a graph and after other prompts, one per item of the caller; none = their own.
    pub fn hidden_after(
        &self,
        adapter: Option<&Lora>,
        columns: &Columns<'_>,
        prompts: &[Vec<u32>],
    ) -> Result<Tensor, EngineError> {
        no_grad(|| {
            if prompts.is_empty() {
                return self.hidden(adapter, &columns.layout);
            }
            let mut parts = Vec::new();
            for layout in columns.after(prompts)? {
                self.control.check()?;
                parts.push(self.hidden(adapter, &layout)?);
            }
            Ok(Tensor::f_cat(&parts, 0)?)
        })
    }

    /// Log-probs f32 [n] of the response tokens without a graph, from the states that predict them.
    pub fn log_probs(&self, hidden_nd: &Tensor, columns: &Columns<'_>) -> Result<Tensor, EngineError> {
        no_grad(|| {
            let chunks = chunks(columns.len()).map(|range| Ok(self.chunk(hidden_nd, columns, range)?.logp_c));
            Ok(Tensor::f_cat(&chunks.collect::<Result<Vec<_>, EngineError>>()?, 0)?)
        })
    }

    /// Adds the gradient of one micro-batch to `hidden_nd`, a leaf. `loss` makes a scalar of each chunk, in order, from
    /// its log-probs; a token's loss may need no other token. The head runs backward chunk by chunk, so that the logits
    /// of one chunk exist at a time; the gradient of the leaf then goes through the layers once.
    pub fn backward(
        &self,
        hidden_nd: &Tensor,
        columns: &Columns<'_>,
        mut loss: impl FnMut(&Chunk) -> Result<Tensor, EngineError>,
    ) -> Result<(), EngineError> {
        for range in chunks(columns.len()) {
            loss(&self.chunk(hidden_nd, columns, range)?)?.f_backward()?;
        }
        Ok(())
    }

    /// What other hidden states say about the tokens of `chunk`, without a graph.
    pub fn beside(&self, chunk: &Chunk, hidden_nd: &Tensor, columns: &Columns<'_>) -> Result<Chunk, EngineError> {
        no_grad(|| self.chunk(hidden_nd, columns, (chunk.start, chunk.length)))
    }

    fn chunk(&self, hidden_nd: &Tensor, columns: &Columns<'_>, range: (i64, i64)) -> Result<Chunk, EngineError> {
        let (start, length) = range;
        let cut = |column_n: &Tensor| column_n.f_narrow(0, start, length);
        let logits_cv = self.model.logits(&cut(hidden_nd)?)?.f_div(&cut(&columns.temperature_n)?.f_unsqueeze(1)?)?;
        let logp_cv = logits_cv.f_log_softmax(1, Kind::Float)?;
        let targets_c1 = cut(&columns.targets_n)?.f_unsqueeze(1)?;
        let logp_c = logp_cv.f_gather(1, &targets_c1, false)?.f_squeeze_dim(1)?;
        Ok(Chunk { start, length, logp_cv, logp_c })
    }
}

impl Chunk {
    /// The part [c] of a column [n] of the micro-batch that belongs to this chunk.
    pub fn cut(&self, column_n: &Tensor) -> Result<Tensor, EngineError> {
        Ok(column_n.f_narrow(0, self.start, self.length)?)
    }
}

/// Start and length of the pieces of `0..length` that get logits together.
fn chunks(length: usize) -> impl Iterator<Item = (i64, i64)> {
    (0..length).step_by(LOGIT_ROWS_MAX).map(move |start| (start as i64, LOGIT_ROWS_MAX.min(length - start) as i64))
}
