//! The trainer: a private copy of an adapter, its optimizer state and a critic over a shared frozen model.
//! One call is one batch: forward, log-probs, loss, backward for each micro-batch, then one step. Gradients
//! add up to those of the whole batch, and an error or a cancellation leaves weights and moments as they were.
//! Only response tokens get logits.
//!
//! Legend: `b` rows, `t` padded positions, `n` response tokens of a micro-batch, `c` of a chunk, `d` hidden
//! size, `v` vocabulary.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use reef_core::Sample;
use tch::{Kind, Tensor, no_grad};

use super::batch::{Batch, Bounds, Columns};
use super::control::TrainControl;
use super::critic::Critic;
use super::loss::{LossColumns, Reduction, Weight, reduced, token_losses, token_shares};
use super::optimizer::{AdamW, Optimizer, gradient_norm, zero_gradients};
use super::state;
use crate::adapter::{Lora, LoraConfig};
use crate::engine::{Engine, ServingLoad};
use crate::error::EngineError;
use crate::model::Model;
use crate::peft::{CONFIG_FILE, WEIGHTS_FILE};

/// Response tokens whose logits exist at one time: 64 rows of a vocabulary of 49,152 are 12 MiB a copy.
const LOGIT_ROWS_MAX: usize = 64;

/// Whose distribution a forward pass reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The trainer's adapter as it is now.
    Current,
    /// The frozen base model.
    Base,
}

/// What one optimizer step minimises.
#[derive(Debug, Clone, PartialEq)]
pub enum Objective {
    /// −f(r)·A·log π, see `Weight`.
    PolicyGradient {
        /// The factor f(r).
        weight: Weight,
        /// A: one per response token, concatenated in the order of the items; finite, and ignored where the mask is 0.
        advantages: Vec<f32>,
        /// How token losses become one number.
        reduction: Reduction,
    },
    /// Negative log-likelihood of the action tokens at the sample's temperature, sample-token-mean.
    Nll,
}

/// Trains one adapter. Blocking; used from one thread at a time.
pub struct Trainer {
    model: Arc<Model>,
    serving: Arc<ServingLoad>,
    threads: i32,
    lora: Lora,
    /// The adapter as it was when the trainer was opened.
    start: Lora,
    /// Every tensor of `lora`, in its fixed order; they share storage and gradients.
    parameters: Vec<Tensor>,
    adam: AdamW,
    critic: Critic,
    control: TrainControl,
}

impl fmt::Debug for Trainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trainer")
            .field("steps", &self.adam.steps)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// An objective with its columns in row order: weight, advantages, shares.
struct Plan {
    weight: Weight,
    advantages: Vec<f32>,
    shares: Vec<f32>,
}

/// Sums over the action tokens of a batch, for the metrics.
#[derive(Default)]
struct Tally {
    loss: f64,
    dropped: f64,
    logp: f64,
    logp_difference: f64,
    first_step_kl: f64,
}

impl Trainer {
    /// A trainer over the files of a release: `adapter_config.json` and `adapter_model.safetensors`, or a fresh
    /// adapter made by `fresh`; `trainer_state.safetensors`, or zero moments; `critic.safetensors`, or a critic of
    /// zeros. So the adapter of one checkpoint can go on with the critic of another.
    ///
    /// Rank and alpha of the files win over `fresh`.
    ///
    /// # Errors
    /// One of the two adapter files is missing; a file is damaged, or made for another model.
    pub fn open(engine: &Engine, fresh: &LoraConfig, files: Option<&[(String, Vec<u8>)]>) -> Result<Self, EngineError> {
        let threads = i32::try_from(engine.threads()).unwrap_or(i32::MAX);
        Self::over(engine.model(), (engine.serving(), threads), fresh, files)
    }

    /// The same over a model that no engine serves.
    pub(super) fn over(
        model: Arc<Model>,
        (serving, threads): (Arc<ServingLoad>, i32),
        fresh: &LoraConfig,
        files: Option<&[(String, Vec<u8>)]>,
    ) -> Result<Self, EngineError> {
        let files = files.unwrap_or_default();
        let file = |wanted: &str| files.iter().find(|(name, _)| name == wanted).map(|(_, bytes)| bytes.as_slice());
        let start = match file(WEIGHTS_FILE).or(file(CONFIG_FILE)) {
            Some(_) => Lora::from_files(model.config(), files)?,
            None => Lora::init(model.config(), fresh)?,
        };
        let lora = start.duplicate()?;
        let parameters =
            lora.parameters().into_iter().map(|p| p.f_set_requires_grad(true)).collect::<Result<Vec<_>, _>>()?;
        let mut adam = AdamW::new(&parameters)?;
        let mut critic = Critic::new(model.config().hidden_size)?;
        if let Some(bytes) = file(state::TRAINER_STATE_FILE) {
            state::read_optimizer(bytes, &mut adam)?;
        }
        if let Some(bytes) = file(state::CRITIC_FILE) {
            state::read_critic(bytes, &mut critic)?;
        }
        Ok(Self { model, serving, threads, lora, start, parameters, adam, critic, control: TrainControl::new() })
    }

    /// A handle to cancel the trainer or to change its share of wall time, from another thread.
    pub fn control(&self) -> TrainControl {
        self.control.clone()
    }

    /// Natural-log probabilities of the recorded response tokens, observations included, at each sample's
    /// temperature; samples concatenated in the order of `items`.
    pub fn forward(&mut self, which: Policy, items: &[&Sample]) -> Result<Vec<f32>, EngineError> {
        let batch = self.batch(items)?;
        let adapter = match which {
            Policy::Current => Some(&self.lora),
            Policy::Base => None,
        };
        let mut logp = Vec::with_capacity(batch.response_tokens);
        self.each_micro_batch(&batch, |columns| {
            logp.extend(self.log_probs(adapter, columns)?);
            Ok(())
        })?;
        Ok(batch.to_items(&logp))
    }

    /// One optimizer step on the whole batch.
    ///
    /// Metrics: `loss`; `gradient_norm` before clipping; `masked_share` of action tokens that the bounds of the
    /// weight dropped; `first_step_kl`, the mean over the first micro-batch of log π_start − log π_θ before this
    /// step, exactly 0 in the first call after `open`; `logprob_abs_diff`, the mean over action tokens of
    /// |log π_θ before this step − recorded|; `tokens`, the action tokens; `entropy`, estimated as the mean of −log π_θ over them; `skipped`.
    ///
    /// `skipped` is 1, and nothing changes, when no action token has an advantage or the gradient is exactly 0:
    /// the moments would else move the weights without evidence.
    ///
    /// # Errors
    /// `Invalid` for a wrong column, setting or sample and for a gradient that is not finite; `Cancelled`.
    pub fn train(
        &mut self,
        items: &[&Sample],
        objective: &Objective,
        optimizer: &Optimizer,
    ) -> Result<BTreeMap<String, f64>, EngineError> {
        optimizer.check()?;
        let batch = self.batch(items)?;
        let plan = plan(&batch, objective)?;
        let tokens = plan.shares.iter().filter(|&&share| share > 0.0).count();
        if !plan.has_signal() {
            return Ok(train_metrics(&Tally::default(), tokens, 0.0, true));
        }
        zero_gradients(&self.parameters)?;
        let tally = self.accumulate(&batch, &plan)?;
        let norm = gradient_norm(&self.parameters)?;
        if !norm.is_finite() {
            return Err(EngineError::Invalid(format!(
                "objective: its gradient norm is {norm}; lower the advantages or bound the ratio"
            )));
        }
        if norm > 0.0 {
            self.adam.step(&self.parameters, norm, optimizer)?;
        }
        Ok(train_metrics(&tally, tokens, norm, norm == 0.0))
    }

    /// Critic values of the response tokens, samples concatenated in the order of `items`; 0 before the first fit.
    pub fn values(&mut self, items: &[&Sample]) -> Result<Vec<f32>, EngineError> {
        let batch = self.batch(items)?;
        let features_nd = self.features(&batch)?;
        let values = no_grad(|| self.critic.values(&features_nd))?;
        Ok(batch.to_items(&Vec::<f32>::try_from(&values)?))
    }

    /// Regresses the critic on `returns` (one per response token, concatenated; mean squared error over action
    /// tokens) with `updates` AdamW updates. Metrics: `value_loss` and `explained_variance` before the first
    /// update, `value_loss_after`.
    pub fn fit_values(
        &mut self,
        items: &[&Sample],
        returns: &[f32],
        learning_rate: f64,
        updates: u32,
    ) -> Result<BTreeMap<String, f64>, EngineError> {
        let batch = self.batch(items)?;
        let returns = batch.to_rows(returns, "returns")?;
        let features_nd = self.features(&batch)?;
        let mut begin = Instant::now();
        self.critic.fit(&features_nd, (&returns, &batch.masks().concat()), (learning_rate, updates), || {
            self.control.make_room(begin.elapsed(), || self.serving.active())?;
            begin = Instant::now();
            Ok(())
        })
    }

    /// The files of a candidate: adapter, optimizer state and critic. Equal state gives equal bytes.
    pub fn checkpoint(&self) -> Result<Vec<(String, Vec<u8>)>, EngineError> {
        let mut files = self.lora.to_files()?;
        files.push((state::TRAINER_STATE_FILE.to_owned(), state::write_optimizer(&self.adam)?));
        files.push((state::CRITIC_FILE.to_owned(), state::write_critic(&self.critic)?));
        Ok(files)
    }

    /// Checks the samples, after a look at cancellation and a word to this thread's kernels.
    fn batch<'a>(&self, items: &[&'a Sample]) -> Result<Batch<'a>, EngineError> {
        self.control.check()?;
        // The number of threads of a kernel belongs to the thread that calls it.
        tch::set_num_threads(self.threads);
        let config = self.model.config();
        Batch::new(items, Bounds { vocabulary: config.vocabulary, context: config.context_length })
    }

    /// Runs `work` on the columns of each micro-batch in row order, and makes room for serving in between.
    fn each_micro_batch(
        &self,
        batch: &Batch<'_>,
        mut work: impl FnMut(&Columns) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        for rows in batch.micro_batches() {
            self.control.check()?;
            let begin = Instant::now();
            work(&Columns::new(rows)?)?;
            self.control.make_room(begin.elapsed(), || self.serving.active())?;
        }
        Ok(())
    }

    /// Final hidden states that predict the response tokens, f32 [n, d].
    fn hidden(&self, adapter: Option<&Lora>, columns: &Columns) -> Result<Tensor, EngineError> {
        let hidden_btd = self.model.hidden_train(&columns.tokens_bt, adapter)?;
        Ok(hidden_btd.f_flatten(0, 1)?.f_index_select(0, &columns.positions_n)?)
    }

    /// Log-probs of the response tokens without a graph.
    fn log_probs(&self, adapter: Option<&Lora>, columns: &Columns) -> Result<Vec<f32>, EngineError> {
        no_grad(|| {
            let hidden_nd = self.hidden(adapter, columns)?;
            let mut logp = Vec::with_capacity(columns.len());
            for chunk in chunks(columns.len()) {
                let logp_c = chosen_log_probs(&self.model, &hidden_nd, columns, chunk)?;
                logp.extend(Vec::<f32>::try_from(&logp_c)?);
            }
            Ok(logp)
        })
    }

    /// Adds the gradient of the batch to the parameters.
    fn accumulate(&self, batch: &Batch<'_>, plan: &Plan) -> Result<Tally, EngineError> {
        let mut tally = Tally::default();
        let mut done = 0;
        self.each_micro_batch(batch, |columns| {
            let end = done + columns.len();
            let part = |column: &[f32]| {
                Ok::<Tensor, EngineError>(Tensor::f_from_slice(column.get(done..end).unwrap_or_default())?)
            };
            let logp_n =
                self.backward(columns, (plan.weight, part(&plan.advantages)?, part(&plan.shares)?), &mut tally)?;
            if done == 0 {
                let logp_start = self.log_probs(Some(&self.start), columns)?;
                let drift = logp_start.iter().zip(&logp_n).map(|(start, now)| f64::from(*start) - f64::from(*now));
                tally.first_step_kl = drift.sum::<f64>() / logp_n.len() as f64;
            }
            done = end;
            Ok(())
        })?;
        Ok(tally)
    }

    /// Forward and backward of one micro-batch; the log-probs of its response tokens.
    fn backward(
        &self,
        columns: &Columns,
        objective: (Weight, Tensor, Tensor),
        tally: &mut Tally,
    ) -> Result<Vec<f32>, EngineError> {
        let (weight, advantages_n, shares_n) = objective;
        let hidden_nd = self.hidden(Some(&self.lora), columns)?;
        // A token's loss needs no other token, so the head runs backward chunk by chunk into a leaf, and the
        // logits of one chunk exist at a time. The gradient of the leaf then goes through the layers once.
        let leaf_nd = hidden_nd.f_detach()?.f_set_requires_grad(true)?;
        let mut logp = Vec::with_capacity(columns.len());
        for chunk in chunks(columns.len()) {
            let cut = |column_n: &Tensor| column_n.f_narrow(0, chunk.0, chunk.1);
            let logp_c = chosen_log_probs(&self.model, &leaf_nd, columns, chunk)?;
            let (logp_old_c, mask_c) = (cut(&columns.logp_old_n)?, cut(&columns.mask_n)?);
            let terms = LossColumns {
                logp_n: &logp_c,
                logp_old_n: &logp_old_c,
                advantages_n: &cut(&advantages_n)?,
                mask_n: &mask_c,
            };
            let losses = token_losses(weight, &terms)?;
            let loss = reduced(&losses, &cut(&shares_n)?)?;
            loss.f_backward()?;

            tally.loss += f64::try_from(&loss)?;
            tally.dropped += total(&losses.dropped_n)?;
            tally.logp += total(&logp_c.f_masked_select(&mask_c)?)?;
            tally.logp_difference += total(&logp_c.f_sub(&logp_old_c)?.f_abs()?.f_masked_select(&mask_c)?)?;
            logp.extend(Vec::<f32>::try_from(&logp_c.f_detach()?)?);
        }
        hidden_nd.f_mul(&leaf_nd.f_grad()?)?.f_sum(Kind::Float)?.f_backward()?;
        Ok(logp)
    }

    /// The last gradient, unclipped, all parameters side by side.
    #[cfg(test)]
    pub(super) fn gradient(&self) -> Vec<f32> {
        let flat: Vec<Tensor> = self.parameters.iter().map(|p| p.grad().flatten(0, -1)).collect();
        Vec::<f32>::try_from(Tensor::cat(&flat, 0)).expect("f32")
    }

    /// Features of the batch for the critic, f32 [n, d] in row order.
    fn features(&mut self, batch: &Batch<'_>) -> Result<Tensor, EngineError> {
        if let Some(features_nd) = self.critic.cached(batch)? {
            return Ok(features_nd);
        }
        let mut parts = Vec::new();
        self.each_micro_batch(batch, |columns| {
            parts.push(no_grad(|| self.hidden(None, columns))?);
            Ok(())
        })?;
        self.critic.remember(batch, &Tensor::f_cat(&parts, 0)?)
    }
}

impl Plan {
    /// Is there an action token whose advantage is not 0?
    fn has_signal(&self) -> bool {
        self.advantages.iter().zip(&self.shares).any(|(advantage, share)| *advantage != 0.0 && *share > 0.0)
    }
}

/// Checks an objective and brings its columns into row order.
fn plan(batch: &Batch<'_>, objective: &Objective) -> Result<Plan, EngineError> {
    let masks = batch.masks();
    match objective {
        Objective::PolicyGradient { weight, advantages, reduction } => {
            weight.check()?;
            let advantages = batch.to_rows(advantages, "advantages")?;
            Ok(Plan { weight: *weight, advantages, shares: token_shares(*reduction, &masks) })
        }
        // −log π is the policy-gradient loss with f = 1 and A = 1.
        Objective::Nll => Ok(Plan {
            weight: Weight::Reinforce,
            advantages: vec![1.0; batch.response_tokens],
            shares: token_shares(Reduction::SampleTokenMean, &masks),
        }),
    }
}

/// Log-probs f32 [c] of the response tokens of a chunk at their temperatures.
fn chosen_log_probs(
    model: &Model,
    hidden_nd: &Tensor,
    columns: &Columns,
    (start, length): (i64, i64),
) -> Result<Tensor, EngineError> {
    let cut = |column_n: &Tensor| column_n.f_narrow(0, start, length);
    let logits_cv = model.logits(&cut(hidden_nd)?)?.f_div(&cut(&columns.temperature_n)?.f_unsqueeze(1)?)?;
    let targets_c1 = cut(&columns.targets_n)?.f_unsqueeze(1)?;
    Ok(logits_cv.f_log_softmax(1, Kind::Float)?.f_gather(1, &targets_c1, false)?.f_squeeze_dim(1)?)
}

/// Start and length of the pieces of `0..length` that get logits together.
fn chunks(length: usize) -> impl Iterator<Item = (i64, i64)> {
    (0..length).step_by(LOGIT_ROWS_MAX).map(move |start| (start as i64, LOGIT_ROWS_MAX.min(length - start) as i64))
}

/// Sum of a tensor in f64.
fn total(tensor: &Tensor) -> Result<f64, EngineError> {
    Ok(f64::try_from(&tensor.f_sum(Kind::Double)?)?)
}

fn train_metrics(tally: &Tally, tokens: usize, gradient_norm: f64, skipped: bool) -> BTreeMap<String, f64> {
    let mean = |sum: f64| sum / tokens.max(1) as f64;
    [
        ("loss", tally.loss),
        ("gradient_norm", gradient_norm),
        ("masked_share", mean(tally.dropped)),
        ("first_step_kl", tally.first_step_kl),
        ("logprob_abs_diff", mean(tally.logp_difference)),
        ("tokens", tokens as f64),
        ("entropy", mean(-tally.logp)),
        ("skipped", f64::from(u8::from(skipped))),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
