//! The critic: a linear value head on the final hidden states of the frozen base model.
//! The value of a response token is read from the hidden state that predicts it. Only the head learns, by
//! AdamW on the mean squared error over action tokens; no gradient enters the model. Features are scaled by
//! 1/√d: the final norm leaves them of order 1 each, so their vector then has length of order 1 whatever d is.
//!
//! Legend: `d` hidden size, `n` response tokens, `a` action tokens.

use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor, no_grad};

use super::batch::Batch;
use super::optimizer::{AdamW, Optimizer, zero_gradients};
use crate::error::EngineError;

/// Updates of one `fit_values`; a head of d + 1 numbers has long converged.
const CRITIC_UPDATES_MAX: u32 = 1_000;

/// Cached features of one batch.
const FEATURE_BYTES_MAX: usize = 1 << 30;

/// The value head, its moments, and the features of the batch it saw last.
#[derive(Debug)]
pub(super) struct Critic {
    /// Weight f32 [d], bias f32 [1].
    pub head: [Tensor; 2],
    pub adam: AdamW,
    cache: Option<(Vec<FeatureKey>, Tensor)>,
}

/// What the features of a sample depend on.
#[derive(Debug, PartialEq, Eq)]
struct FeatureKey {
    tokens: Vec<u32>,
    prompt_length: usize,
}

impl Critic {
    /// A head of zeros: every value is 0 before the first fit.
    pub fn new(hidden_size: i64, device: Device) -> Result<Self, EngineError> {
        let zeros = |length: i64| Tensor::f_zeros([length], (Kind::Float, device))?.f_set_requires_grad(true);
        let head = [zeros(hidden_size)?, zeros(1)?];
        let adam = AdamW::new(&head)?;
        Ok(Self { head, adam, cache: None })
    }

    /// Features f32 [n, d] of the batch in row order, if it is the one seen last.
    ///
    /// # Errors
    /// `Invalid` when the features of the batch would exceed the cache.
    pub fn cached(&self, batch: &Batch<'_>) -> Result<Option<Tensor>, EngineError> {
        let size = self.head[0].numel();
        let most = FEATURE_BYTES_MAX / size_of::<f32>() / size;
        if batch.response_tokens > most {
            return Err(EngineError::Invalid(format!(
                "items: the critic reads at most {most} response tokens at once; split the batch"
            )));
        }
        let hit = self.cache.as_ref().filter(|(keys, _)| *keys == feature_keys(batch));
        Ok(hit.map(|(_, features_nd)| features_nd.shallow_clone()))
    }

    /// Scales the final hidden states of the base, f32 [n, d] in row order, to features and keeps them.
    pub fn remember(&mut self, batch: &Batch<'_>, hidden_nd: &Tensor) -> Result<Tensor, EngineError> {
        let features_nd = hidden_nd.f_mul_scalar(1.0 / (self.head[0].numel() as f64).sqrt())?;
        self.cache = Some((feature_keys(batch), features_nd.shallow_clone()));
        Ok(features_nd)
    }

    /// V = features·w + b, f32 [n].
    pub fn values(&self, features_nd: &Tensor) -> Result<Tensor, EngineError> {
        let [weight_d, bias] = &self.head;
        Ok(features_nd.f_mv(weight_d)?.f_add(bias)?)
    }

    /// Regresses the head on `returns` (row order, one per response token). `value_loss` and
    /// `explained_variance` = 1 − Var(R − V)/Var(R) speak of the values before the first update, so that they
    /// say how well the critic foresaw returns it was not fitted to; the latter is 0 when all returns are equal.
    ///
    /// # Errors
    /// `Invalid` for settings out of range and for returns so large that the error is not finite, and whatever
    /// `between`, called after each update, says. The critic is then as it was.
    pub fn fit(
        &mut self,
        features_nd: &Tensor,
        (returns, mask): (&[f32], &[u8]),
        (learning_rate, updates): (f64, u32),
        between: impl FnMut() -> Result<(), EngineError>,
    ) -> Result<BTreeMap<String, f64>, EngineError> {
        if updates > CRITIC_UPDATES_MAX {
            return Err(EngineError::Invalid(format!("updates {updates}: at most {CRITIC_UPDATES_MAX}")));
        }
        let how = Optimizer {
            learning_rate,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            gradient_norm_max: 0.0,
        };
        how.check()?;
        let actions: Vec<i64> = (0..).zip(mask).filter(|(_, m)| **m != 0).map(|(index, _)| index).collect();
        if actions.is_empty() {
            return Ok(fit_metrics(0.0, 0.0, 0.0));
        }
        let device = features_nd.device();
        let actions_a = Tensor::f_from_slice(&actions)?.f_to_device(device)?;
        let features_ad = features_nd.f_index_select(0, &actions_a)?;
        let returns_a = Tensor::f_from_slice(returns)?.f_to_device(device)?.f_index_select(0, &actions_a)?;

        let explained = no_grad(|| explained_variance(&returns_a, &self.values(&features_ad)?))?;
        let before = no_grad(|| self.finite_error(&features_ad, &returns_a))?;
        let kept = self.copies()?;
        match self.regress((&features_ad, &returns_a), &how, updates, between) {
            Ok(after) => Ok(fit_metrics(before, after, explained)),
            Err(error) => {
                self.restore(&kept)?;
                Err(error)
            }
        }
    }

    /// `updates` AdamW updates; the error after them.
    fn regress(
        &mut self,
        (features_ad, returns_a): (&Tensor, &Tensor),
        how: &Optimizer,
        updates: u32,
        mut between: impl FnMut() -> Result<(), EngineError>,
    ) -> Result<f64, EngineError> {
        for _ in 0..updates {
            zero_gradients(&self.head)?;
            self.error(features_ad, returns_a)?.f_backward()?;
            // Nothing is clipped, so no norm is needed, and a device is not waited for.
            self.adam.step(&self.head, 0.0, how)?;
            between()?;
        }
        // What was not finite on the way has made the head or a moment so.
        let finite =
            self.written().map(|tensor| Ok(tensor.f_isfinite()?.f_all()?)).collect::<Result<Vec<_>, EngineError>>()?;
        if !bool::try_from(&Tensor::f_stack(&finite, 0)?.f_all()?)? {
            return Err(too_large(f64::INFINITY));
        }
        no_grad(|| self.finite_error(features_ad, returns_a))
    }

    /// Everything an update writes: head and moments.
    fn written(&self) -> impl Iterator<Item = &Tensor> {
        self.head.iter().chain(&self.adam.first).chain(&self.adam.second)
    }

    fn copies(&self) -> Result<(Vec<Tensor>, i64), EngineError> {
        let copies = self.written().map(Tensor::f_detach_copy).collect::<Result<_, _>>()?;
        Ok((copies, self.adam.steps))
    }

    fn restore(&mut self, (copies, steps): &(Vec<Tensor>, i64)) -> Result<(), EngineError> {
        self.adam.steps = *steps;
        for (tensor, copy) in self.written().zip(copies) {
            no_grad(|| tensor.shallow_clone().f_copy_(copy))?;
        }
        Ok(())
    }

    /// The mean squared error as a finite number.
    fn finite_error(&self, features_ad: &Tensor, returns_a: &Tensor) -> Result<f64, EngineError> {
        match f64::try_from(&self.error(features_ad, returns_a)?)? {
            value if value.is_finite() => Ok(value),
            value => Err(too_large(value)),
        }
    }

    /// Mean squared error, a scalar.
    fn error(&self, features_ad: &Tensor, returns_a: &Tensor) -> Result<Tensor, EngineError> {
        Ok(self.values(features_ad)?.f_sub(returns_a)?.f_square()?.f_mean(Kind::Float)?)
    }
}

fn too_large(value: f64) -> EngineError {
    EngineError::Invalid(format!("returns: the critic's error is {value}; scale the scores down"))
}

fn feature_keys(batch: &Batch<'_>) -> Vec<FeatureKey> {
    let trajectories = batch.rows.iter().map(|row| &row.sample.trajectory);
    trajectories.map(|t| FeatureKey { tokens: t.tokens.clone(), prompt_length: t.prompt_length }).collect()
}

fn fit_metrics(before: f64, after: f64, explained: f64) -> BTreeMap<String, f64> {
    [("value_loss", before), ("value_loss_after", after), ("explained_variance", explained)]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}

fn explained_variance(returns_a: &Tensor, values_a: &Tensor) -> Result<f64, EngineError> {
    let variance =
        |column: &Tensor| Ok::<f64, EngineError>(f64::try_from(&column.f_to_kind(Kind::Double)?.f_var(false)?)?);
    let spread = variance(returns_a)?;
    if spread == 0.0 {
        return Ok(0.0);
    }
    Ok(1.0 - variance(&returns_a.f_sub(values_a)?)? / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(critic: &mut Critic, returns: &[f32], mask: &[u8], updates: u32) -> BTreeMap<String, f64> {
        let features_nd = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0]).view([3, 2]);
        critic.fit(&features_nd, (returns, mask), (0.05, updates), || Ok(())).expect("fit")
    }

    #[test]
    fn a_fresh_critic_says_zero_and_learns_a_linear_return() {
        let mut critic = Critic::new(2, Device::Cpu).expect("critic");
        let features_nd = Tensor::from_slice(&[3.0f32, 4.0]).view([1, 2]);
        assert_eq!(Vec::<f32>::try_from(critic.values(&features_nd).expect("values").detach()).expect("f32"), [0.0]);
        let first = fit(&mut critic, &[1.0, -1.0, 0.0], &[1, 1, 1], 300);
        assert!((first["value_loss"] - 2.0 / 3.0).abs() < 1e-6, "{first:?}");
        assert!(first["value_loss_after"] < 1e-3, "{first:?}");
        assert_eq!(first["explained_variance"], 0.0);
        assert!(fit(&mut critic, &[1.0, -1.0, 0.0], &[1, 1, 1], 0)["explained_variance"] > 0.99);
    }

    #[test]
    fn observation_tokens_do_not_teach() {
        let mut critic = Critic::new(2, Device::Cpu).expect("critic");
        let metrics = fit(&mut critic, &[0.0, 0.0, 9.0], &[1, 1, 0], 5);
        assert_eq!(
            (metrics["value_loss"], metrics["value_loss_after"], metrics["explained_variance"]),
            (0.0, 0.0, 0.0)
        );
        assert_eq!(fit(&mut critic, &[9.0; 3], &[0; 3], 5)["value_loss"], 0.0);
    }

    #[test]
    fn a_refused_or_cancelled_fit_leaves_the_critic_as_it_was() {
        let mut critic = Critic::new(2, Device::Cpu).expect("critic");
        fit(&mut critic, &[1.0, -1.0, 0.0], &[1, 1, 1], 3);
        let read = |critic: &Critic| -> Vec<Vec<f32>> {
            critic.written().map(|tensor| Vec::<f32>::try_from(tensor.detach()).expect("f32")).collect()
        };
        let (before, steps) = (read(&critic), critic.adam.steps);
        let features_nd = Tensor::from_slice(&[1.0f32, 0.0]).view([1, 2]);
        let huge = critic.fit(&features_nd, (&[1e30], &[1]), (0.05, 2), || Ok(()));
        assert!(huge.expect_err("refused").to_string().contains("returns"));
        let mut updates = 0;
        let cancelled = critic.fit(&features_nd, (&[1.0], &[1]), (0.05, 9), || {
            updates += 1;
            if updates < 4 { Ok(()) } else { Err(EngineError::Cancelled) }
        });
        assert!(matches!(cancelled, Err(EngineError::Cancelled)));
        assert_eq!((read(&critic), critic.adam.steps), (before, steps));
    }

    #[test]
    fn too_many_updates_are_refused() {
        let mut critic = Critic::new(2, Device::Cpu).expect("critic");
        let features_nd = Tensor::from_slice(&[1.0f32, 0.0]).view([1, 2]);
        assert!(critic.fit(&features_nd, (&[1.0], &[1]), (0.05, CRITIC_UPDATES_MAX + 1), || Ok(())).is_err());
    }
}
