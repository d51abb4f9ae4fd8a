//! The trainer: a private copy of an adapter, its gradient, optimizer state, moving average and a critic over a
//! shared frozen model.
//! One call is one batch. A call that fails, or that is cancelled, leaves all of it as it was; gradients add up
//! over calls until a step, and a checkpoint holds everything but the gradient.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use reef_core::{ReleaseId, Sample};
use tch::{Tensor, no_grad};

use super::accumulate::{accumulate_given, accumulate_terms};
use super::batch::Batch;
use super::control::TrainControl;
use super::critic::Critic;
use super::gradient::Gradient;
use super::objective::Term;
use super::optimizer::{AdamW, Optimizer};
use super::passes::Passes;
use super::plan::Plan;
use super::policies::{self, Policies, Policy};
use super::reduce::Reduce;
use super::state;
use super::workers::{Call, Workers, bare};
use crate::adapter::Lora;
use crate::engine::{Engine, ServingLoad};
use crate::error::EngineError;
use crate::lora_config::LoraConfig;
use crate::model::Model;
use crate::peft::{CONFIG_FILE, WEIGHTS_FILE};

/// Trains one adapter. Blocking; used from one thread at a time.
pub struct Trainer {
    passes: Passes,
    pub(super) policies: Policies,
    pub(super) gradient: Gradient,
    adam: AdamW,
    critic: Critic,
    reduce: Reduce,
    /// Steps of the optimizer when it was opened.
    steps_before: i64,
}

/// What a trainer is opened beside.
#[derive(Debug, Default)]
pub struct Beside<'w> {
    /// The release whose files it is opened on: what that recorded must be what the trainer computes.
    pub release: Option<ReleaseId>,
    /// Who computes parts of each batch with it.
    pub workers: Option<&'w mut Workers>,
    /// Handle to cancel it with, also while workers start.
    pub control: TrainControl,
}

/// Where a trainer computes.
pub(super) struct Setting {
    pub serving: Arc<ServingLoad>,
    pub threads: i32,
    pub release: Option<ReleaseId>,
    pub reduce: Reduce,
    pub control: TrainControl,
}

impl fmt::Debug for Trainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trainer")
            .field("steps", &self.adam.steps)
            .field("threads", &self.passes.threads)
            .finish_non_exhaustive()
    }
}

impl Trainer {
    /// A trainer over the files of a release: `adapter_config.json` and `adapter_model.safetensors`, or a fresh
    /// adapter made by `fresh`; `trainer_state.safetensors`, or zero moments; `critic.safetensors`, or a critic of
    /// zeros; `ema.safetensors`, or a moving average that starts at the adapter. So the adapter of one checkpoint
    /// can go on with the critic of another.
    ///
    /// Rank and alpha of the files win over `fresh`.
    ///
    /// # Errors
    /// One of the two adapter files is missing; a file is damaged, or made for another model.
    pub fn open(engine: &Engine, fresh: &LoraConfig, files: Option<&[(String, Vec<u8>)]>) -> Result<Self, EngineError> {
        Self::open_beside(engine, fresh, files, Beside::default())
    }

    /// The same with workers, who do in their processes what this trainer does, and compute their part of each batch.
    ///
    /// # Errors
    /// As `open`; `Worker` when one cannot be started.
    pub fn open_beside(
        engine: &Engine,
        fresh: &LoraConfig,
        files: Option<&[(String, Vec<u8>)]>,
        Beside { release, workers, control }: Beside<'_>,
    ) -> Result<Self, EngineError> {
        let (mut threads, mut reduce) = (i32::try_from(engine.threads()).unwrap_or(i32::MAX), Reduce::Alone);
        if let Some(workers) = workers {
            threads = workers.threads(engine.threads());
            reduce = workers.join(engine, &control)?;
        }
        let setting = Setting { serving: engine.serving(), threads, release, reduce, control };
        Self::over(engine.model()?, setting, fresh, files.unwrap_or_default())
    }

    /// The same over a model that no engine serves.
    pub(super) fn over(
        model: Arc<Model>,
        setting: Setting,
        fresh: &LoraConfig,
        files: &[(String, Vec<u8>)],
    ) -> Result<Self, EngineError> {
        let reduce = setting.reduce.clone();
        Self::opened(model, setting, fresh, files).inspect_err(|error| reduce.part(error))
    }

    fn opened(
        model: Arc<Model>,
        Setting { serving, threads, release, reduce, control }: Setting,
        fresh: &LoraConfig,
        files: &[(String, Vec<u8>)],
    ) -> Result<Self, EngineError> {
        reduce.announce(|trainer| Call::Open { trainer, fresh: *fresh, release: release.clone() }, files)?;
        let file = |wanted: &str| files.iter().find(|(name, _)| name == wanted).map(|(_, bytes)| bytes.as_slice());
        let start = match file(WEIGHTS_FILE).or(file(CONFIG_FILE)) {
            Some(_) => Lora::from_files(model.config(), files)?,
            None => Lora::init(model.config(), fresh)?,
        };
        let policies = Policies::new(start.on(model.device())?, file(state::EMA_FILE))?;
        let parameters = policies.parameters()?;
        let mut adam = AdamW::new(&parameters)?;
        let mut critic = Critic::new(model.config().hidden_size, model.device())?;
        if let Some(bytes) = file(state::TRAINER_STATE_FILE) {
            state::read_optimizer(bytes, &mut adam)?;
        }
        if let Some(bytes) = file(state::CRITIC_FILE) {
            state::read_critic(bytes, &mut critic)?;
        }
        let mut gradient = Gradient::new(parameters);
        if reduce.place().1 > 1 {
            gradient.make_whole()?;
        }
        reduce.settle(0.0, &control)?;
        let passes = Passes { model, serving, threads, control, release, place: reduce.place() };
        let steps_before = adam.steps;
        Ok(Self { passes, policies, gradient, adam, critic, reduce, steps_before })
    }

    /// Makes a call here and in all workers. `work` gives a value and the gradient norm that all of them must agree on.
    fn everywhere<T>(
        &mut self,
        call: impl FnOnce(u32) -> Call,
        work: impl FnOnce(&mut Self) -> Result<(T, f64), EngineError>,
    ) -> Result<T, EngineError> {
        let made = self.reduce.announce(call, &[]).and_then(|()| work(self));
        let settled = made.and_then(|(value, norm)| {
            self.reduce.settle(norm, &self.passes.control)?;
            Ok(value)
        });
        settled.inspect_err(|error| self.reduce.part(error))
    }

    /// A handle to cancel the trainer or to change its share of wall time, from another thread.
    pub fn control(&self) -> TrainControl {
        self.passes.control.clone()
    }

    /// Adds the adapter of a release, from its files, as a policy to compare with; without files the release is the
    /// base model.
    ///
    /// # Errors
    /// A file is missing, damaged, or made for another model.
    pub fn add_policy(&mut self, files: &[(String, Vec<u8>)]) -> Result<Policy, EngineError> {
        let adapted = files.iter().any(|(name, _)| name == WEIGHTS_FILE || name == CONFIG_FILE);
        let model = &self.passes.model;
        let read = || Lora::from_files(model.config(), files)?.on(model.device());
        let adapter = if adapted { Some(read()?) } else { None };
        let told = self.reduce.announce(|trainer| Call::Policy { trainer }, files);
        let told = told.and_then(|()| self.reduce.settle(0.0, &self.passes.control));
        told.inspect_err(|error| self.reduce.part(error))?;
        Ok(self.policies.add(adapter))
    }

    /// Natural-log probabilities of the recorded response tokens, observations included, at each sample's
    /// temperature; samples concatenated in the order of `items`.
    pub fn forward(&mut self, which: Policy, items: &[&Sample]) -> Result<Vec<f32>, EngineError> {
        let batch = self.passes.batch(items)?;
        let adapter = self.policies.adapter(which)?;
        let mut logp = Vec::new();
        self.passes.each_micro_batch(&batch, |columns| {
            let hidden_nd = self.passes.hidden_after(adapter, columns, &[])?;
            logp.push(self.passes.log_probs(&hidden_nd, columns)?);
            Ok(())
        })?;
        Ok(batch.to_items(&Vec::<f32>::try_from(Tensor::f_cat(&logp, 0)?)?))
    }

    /// Adds the gradient of the sum of the terms over the whole batch to the trainer's gradient.
    ///
    /// Metrics: `loss`; `gradient_norm` of the gradient of this call; `masked_share` of the action tokens that the
    /// bounds of a weight dropped, over all policy gradients; `first_step_kl`, the mean over the first micro-batch
    /// of log π_start − log π, exactly 0 before the first step after `open`; `logprob_abs_diff`, the mean over
    /// action tokens of |log π − recorded|; `tokens`, the action tokens; `entropy`, estimated as the mean of −log π
    /// over them; `kl`, the mean of k3 over them and over the terms with a penalty, if there are any;
    /// `entropy_exact`, the mean of H over them, if a term asks for entropy; `divergence`, the mean of D over the
    /// tokens that count of all distances to a teacher, if there are any; `skipped`, 1 when no action token has
    /// an advantage or a penalty, or the gradient is exactly 0; `effective_tokens`, those that have a gradient;
    /// `own_logprob_abs_diff`, as `logprob_abs_diff` over the tokens that the trainer's release sampled, which is there
    /// only before the first step and where the batch has such tokens: it says how far serving and training are apart.
    ///
    /// # Errors
    /// `Invalid` for a wrong term or sample and for a gradient that is not finite; `Cancelled`; `Worker`, after which
    /// every call is refused. Nothing of a failed call stays in the gradient.
    pub fn forward_backward(
        &mut self,
        items: &[&Sample],
        terms: &[Term],
    ) -> Result<BTreeMap<String, f64>, EngineError> {
        let batch = self.passes.batch(items)?;
        let plan = Plan::new(&batch, terms)?;
        if !plan.has_signal() {
            return plan.nothing();
        }
        let call = |trainer| Call::Terms { trainer, items: bare(items), terms: terms.to_vec(), optimizer: None };
        self.everywhere(call, |this| {
            let first = this.adam.steps == this.steps_before;
            let (tally, norms) = this.gradient.add(|parameters| {
                let tally = accumulate_terms(&this.passes, &this.policies, &batch, &plan)?;
                this.reduce.sum(&mut summed(parameters, Some(tally.tensor()))?, &this.passes.control)?;
                Ok(tally)
            })?;
            Ok((tally.metrics(&plan, norms.added, first)?, norms.sum))
        })
    }

    /// Adds the gradient of any loss that is a function of the response log-probs to the trainer's gradient.
    /// `gradients` is dL/d(log π), one per response token, concatenated in the order of `items`; it is used as
    /// given, on observations too. What a loss of this crate would hand down gives the same bits.
    ///
    /// Metrics: `tokens`, the response tokens; `gradient_norm` of the trainer's gradient so far.
    ///
    /// # Errors
    /// As `forward_backward`.
    pub fn backward(&mut self, items: &[&Sample], gradients: &[f32]) -> Result<BTreeMap<String, f64>, EngineError> {
        let batch = self.passes.batch(items)?;
        let gradients = batch.to_rows(gradients, "gradients")?;
        let norm = if gradients.iter().all(|&gradient| gradient == 0.0) {
            self.gradient.norm()?
        } else {
            let given = batch.to_items(&gradients);
            self.everywhere(
                |trainer| Call::Backward { trainer, items: bare(items), gradients: given },
                |this| {
                    let norms = this.gradient.add(|parameters| {
                        accumulate_given(&this.passes, &this.policies, &batch, &gradients)?;
                        this.reduce.sum(&mut summed(parameters, None)?, &this.passes.control)
                    })?;
                    Ok((norms.1.sum, norms.1.sum))
                },
            )?
        };
        let metrics = [("tokens", batch.response_tokens as f64), ("gradient_norm", norm)];
        Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
    }

    /// One step on the trainer's gradient, which is then 0.
    ///
    /// Metrics: `gradient_norm` before clipping; `skipped`, 1 when the gradient was exactly 0 and nothing changed:
    /// the moments would else move the weights without evidence.
    ///
    /// # Errors
    /// `Invalid` for a wrong setting; `Cancelled`. Weights, moments and gradient are then as they were.
    pub fn optimizer_step(&mut self, optimizer: &Optimizer) -> Result<BTreeMap<String, f64>, EngineError> {
        optimizer.check()?;
        self.passes.begin()?;
        let norm = self.everywhere(
            |trainer| Call::Step { trainer, optimizer: *optimizer },
            |this| {
                let norm = this.gradient.step(|parameters, norm| this.adam.step(parameters, norm, optimizer))?;
                Ok((norm, norm))
            },
        )?;
        let metrics = [("gradient_norm", norm), ("skipped", f64::from(u8::from(norm == 0.0)))];
        Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
    }

    /// One optimizer step on the whole batch: `forward_backward` from a gradient of 0, then `optimizer_step`. What
    /// earlier calls have added to the gradient has no part in it, and is gone once it succeeds.
    ///
    /// Metrics as of `forward_backward`, before the step; `gradient_norm` before clipping. `skipped` is 1, and
    /// weights and moments do not change, when the gradient is exactly 0.
    ///
    /// # Errors
    /// As `forward_backward`, and `Invalid` for a wrong setting. Weights, moments and gradient are then as they were.
    pub fn train(
        &mut self,
        items: &[&Sample],
        terms: &[Term],
        optimizer: &Optimizer,
    ) -> Result<BTreeMap<String, f64>, EngineError> {
        optimizer.check()?;
        let batch = self.passes.batch(items)?;
        let plan = Plan::new(&batch, terms)?;
        let optimizer = Some(*optimizer);
        let call = |trainer| Call::Terms { trainer, items: bare(items), terms: terms.to_vec(), optimizer };
        self.everywhere(call, |this| {
            if !plan.has_signal() {
                this.gradient.clear()?;
                return Ok((plan.nothing()?, 0.0));
            }
            let first = this.adam.steps == this.steps_before;
            let (tally, norm) = this.gradient.step_on(
                |parameters| {
                    let tally = accumulate_terms(&this.passes, &this.policies, &batch, &plan)?;
                    this.reduce.sum(&mut summed(parameters, Some(tally.tensor()))?, &this.passes.control)?;
                    Ok(tally)
                },
                |parameters, norm| optimizer.iter().try_for_each(|how| this.adam.step(parameters, norm, how)),
            )?;
            Ok((tally.metrics(&plan, norm, first)?, norm))
        })
    }

    /// Moves the moving average towards the adapter: ema ← (1 − rate)·ema + rate·adapter, rate in [0, 1]. It starts
    /// as a copy of the adapter at `open`, unless the files held one.
    ///
    /// # Errors
    /// `Invalid` for a rate out of range; `Cancelled`. The average is then as it was.
    pub fn update_ema(&mut self, rate: f64) -> Result<(), EngineError> {
        self.passes.begin()?;
        policies::check_rate(rate)?;
        self.everywhere(|trainer| Call::Ema { trainer, rate }, |this| Ok((this.policies.update_ema(rate)?, 0.0)))
    }

    /// Critic values of the response tokens, samples concatenated in the order of `items`; 0 before the first fit.
    pub fn values(&mut self, items: &[&Sample]) -> Result<Vec<f32>, EngineError> {
        let batch = self.passes.batch(items)?;
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
        let batch = self.passes.batch(items)?;
        let returns = batch.to_rows(returns, "returns")?;
        let features_nd = self.features(&batch)?;
        let mut begin = Instant::now();
        self.critic.fit(&features_nd, (&returns, &batch.masks().concat()), (learning_rate, updates), || {
            self.passes.control.make_room(begin.elapsed(), || self.passes.serving.active())?;
            begin = Instant::now();
            Ok(())
        })
    }

    /// The files of a candidate: adapter, optimizer state and critic, and the moving average if it was ever
    /// updated. Equal state gives equal bytes.
    ///
    /// # Errors
    /// `Worker` after a call that a worker failed in.
    pub fn checkpoint(&self) -> Result<Vec<(String, Vec<u8>)>, EngineError> {
        self.reduce.check()?;
        let mut files = self.policies.current.to_files()?;
        files.push((state::TRAINER_STATE_FILE.to_owned(), state::write_optimizer(&self.adam)?));
        files.push((state::CRITIC_FILE.to_owned(), state::write_critic(&self.critic)?));
        files.extend(self.policies.ema_file()?.map(|bytes| (state::EMA_FILE.to_owned(), bytes)));
        Ok(files)
    }

    /// Features of the batch for the critic, f32 [n, d] in row order.
    fn features(&mut self, batch: &Batch<'_>) -> Result<Tensor, EngineError> {
        if let Some(features_nd) = self.critic.cached(batch)? {
            return Ok(features_nd);
        }
        let mut parts = Vec::new();
        self.passes.each_micro_batch(batch, |columns| {
            parts.push(self.passes.hidden_after(None, columns, &[])?);
            Ok(())
        })?;
        self.critic.remember(batch, &Tensor::f_cat(&parts, 0)?)
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        // The others forget it too; if they are gone, they have.
        let _ = self.reduce.announce(|trainer| Call::Close { trainer }, &[]);
    }
}

/// What all workers add up: gradients, and sums over tokens.
fn summed(parameters: &[Tensor], sums: Option<Tensor>) -> Result<Vec<Tensor>, EngineError> {
    let gradients = parameters.iter().map(Tensor::f_grad).collect::<Result<Vec<_>, _>>()?;
    Ok(gradients.into_iter().chain(sums).collect())
}
