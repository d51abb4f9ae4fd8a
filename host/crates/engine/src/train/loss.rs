//! Policy-gradient losses and penalties as functions of log-probs, and how token losses become one number.
//! The trainer calls them on the response tokens of one micro-batch. Every factor f(r) is detached, and a
//! token outside the mask has loss 0 and gradient 0 whatever its columns hold. Nothing here knows a model.
//!
//! Legend: `n` response tokens, observations included, `c` those of a chunk, `v` vocabulary.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::error::EngineError;

/// Clamp of log r where a gradient flows through r.
pub(super) const LOG_RATIO_MAX: f64 = 20.0;

/// The factor f(r) in the token loss −sg(f(r))·A·log π_θ, with r = exp(log π_θ − log π_old).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Weight {
    /// f = 1.
    Reinforce,
    /// f = r.
    Ratio,
    /// f = min(r, cap).
    Truncated(f32),
    /// f = r if low < r < high, else 0: the double-sided mask DIS of SAO (arXiv 2607.07508).
    Masked {
        /// Lower bound, exclusive: 1 − ε_l.
        low: f32,
        /// Upper bound, exclusive: 1 + ε_h.
        high: f32,
    },
    /// The clipped surrogate max(−r·A, −clip(r, low, high)·A) of PPO (arXiv 1707.06347, equation 7); the gradient
    /// flows through r. log r is clamped to ±20: the gradient of a clipped token would else be 0·∞.
    Ppo {
        /// Lower end of the clip.
        low: f32,
        /// Upper end of the clip.
        high: f32,
    },
}

/// How the token losses of a batch become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reduction {
    /// Sum over the action tokens.
    TokenSum,
    /// Mean over the action tokens of a sample, then mean over all samples of the batch.
    SampleTokenMean,
    /// Mean over the action tokens of the batch.
    GlobalTokenMean,
}

/// Columns of n response tokens.
#[derive(Debug)]
pub struct LossColumns<'a> {
    /// log π_θ, f32 [n]; the only column that carries a gradient.
    pub logp_n: &'a Tensor,
    /// Recorded log π_old, f32 [n].
    pub logp_old_n: &'a Tensor,
    /// Advantages A, f32 [n].
    pub advantages_n: &'a Tensor,
    /// True on action tokens, bool [n].
    pub mask_n: &'a Tensor,
}

/// Losses of n response tokens before the reduction.
#[derive(Debug)]
pub struct TokenLosses {
    /// f32 [n], 0 outside the mask.
    pub loss_n: Tensor,
    /// True on action tokens whose gradient the bounds removed, bool [n].
    pub dropped_n: Tensor,
}

/// The token losses of `weight`.
pub fn token_losses(weight: Weight, columns: &LossColumns<'_>) -> Result<TokenLosses, EngineError> {
    // Masked first, so that a wild value outside the mask cannot turn 0·∞ into NaN.
    let action = |column_n: &Tensor| column_n.f_where_self(columns.mask_n, &column_n.f_zeros_like()?);
    let logp_n = action(columns.logp_n)?;
    let advantages_n = action(columns.advantages_n)?;
    let log_ratio_n = logp_n.f_sub(&action(columns.logp_old_n)?)?;
    if let Weight::Ppo { low, high } = weight {
        let ratio_n = log_ratio_n.f_clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)?.f_exp()?;
        return clipped_surrogate(&ratio_n, &advantages_n, (low, high));
    }

    let factor_n = factor(weight, &log_ratio_n.f_detach()?.f_exp()?)?;
    let loss_n = factor_n.f_mul(&advantages_n)?.f_mul(&logp_n)?.f_neg()?;
    let dropped_n = factor_n.f_eq(0.0)?.f_logical_and(columns.mask_n)?;
    Ok(TokenLosses { loss_n, dropped_n })
}

/// f(r), of the shape of the ratios. The surrogate of PPO is no product with a factor; r stands for it.
pub(super) fn factor(weight: Weight, ratio: &Tensor) -> Result<Tensor, EngineError> {
    Ok(match weight {
        Weight::Reinforce => ratio.f_ones_like()?,
        Weight::Truncated(cap) => ratio.f_clamp_max(f64::from(cap))?,
        Weight::Masked { low, high } => {
            let inside = ratio.f_gt(f64::from(low))?.f_logical_and(&ratio.f_lt(f64::from(high))?)?;
            ratio.f_where_self(&inside, &ratio.f_zeros_like()?)?
        }
        Weight::Ratio | Weight::Ppo { .. } => ratio.shallow_clone(),
    })
}

/// max(−r·A, −clip(r)·A); a token is dropped where the clipped side is the larger.
fn clipped_surrogate(ratio_n: &Tensor, advantages_n: &Tensor, clip: (f32, f32)) -> Result<TokenLosses, EngineError> {
    let plain_n = ratio_n.f_mul(advantages_n)?.f_neg()?;
    let clipped_n = ratio_n.f_clamp(f64::from(clip.0), f64::from(clip.1))?.f_mul(advantages_n)?.f_neg()?;
    Ok(TokenLosses { loss_n: plain_n.f_maximum(&clipped_n)?, dropped_n: clipped_n.f_gt_tensor(&plain_n)? })
}

/// k3 = exp(d) − d − 1 with d = log π_reference − log π_θ, f32 [n]: an estimate of KL(π_θ, π_reference) on tokens of
/// π_θ that is never negative (Schulman, "Approximating KL divergence", 2020). 0 outside the mask; the gradient
/// 1 − exp(d) flows through log π_θ.
pub fn k3(logp_n: &Tensor, logp_reference_n: &Tensor, mask_n: &Tensor) -> Result<Tensor, EngineError> {
    let action = |column_n: &Tensor| column_n.f_where_self(mask_n, &column_n.f_zeros_like()?);
    let apart_n = action(logp_reference_n)?.f_sub(&action(logp_n)?)?;
    // exp(d) − 1 in one go: the difference of the two would lose the digits of a small d.
    Ok(apart_n.f_expm1()?.f_sub(&apart_n)?)
}

/// H = −Σ π·log π of each row in nats, f32 [c], from log-probs of the whole vocabulary, f32 [c, v].
pub fn entropy(logp_cv: &Tensor) -> Result<Tensor, EngineError> {
    Ok(logp_cv.f_exp()?.f_mul(logp_cv)?.f_sum_dim_intlist([-1i64].as_slice(), false, Kind::Float)?.f_neg()?)
}

/// Σ share·loss, a scalar. Summed over the micro-batches of a batch this is the loss of the whole batch,
/// because the shares were taken over the whole batch.
pub fn reduced(loss_n: &Tensor, shares_n: &Tensor) -> Result<Tensor, EngineError> {
    Ok(loss_n.f_mul(shares_n)?.f_sum(Kind::Float)?)
}

/// What each response token counts in the loss of a batch, samples concatenated; 0 outside the mask.
///
/// A sample without action tokens adds 0 to the sum and still counts as a sample.
pub fn token_shares(reduction: Reduction, masks: &[&[u8]]) -> Vec<f32> {
    let actions = |mask: &[u8]| mask.iter().filter(|&&m| m != 0).count();
    let batch_actions: usize = masks.iter().map(|mask| actions(mask)).sum();
    let mut shares = Vec::with_capacity(masks.iter().map(|mask| mask.len()).sum());
    for mask in masks {
        let denominator = match reduction {
            Reduction::TokenSum => 1,
            Reduction::SampleTokenMean => masks.len() * actions(mask),
            Reduction::GlobalTokenMean => batch_actions,
        };
        let share = 1.0 / denominator.max(1) as f32;
        shares.extend(mask.iter().map(|&m| if m != 0 { share } else { 0.0 }));
    }
    shares
}

impl Weight {
    /// Refuses bounds that are not finite, not positive or not in order.
    pub(crate) fn check(self) -> Result<(), EngineError> {
        let valid = match self {
            Self::Reinforce | Self::Ratio => true,
            Self::Truncated(cap) => cap.is_finite() && cap > 0.0,
            Self::Masked { low, high } | Self::Ppo { low, high } => {
                low.is_finite() && high.is_finite() && low >= 0.0 && low < high
            }
        };
        if valid {
            Ok(())
        } else {
            Err(EngineError::Invalid(format!("weight {self:?}: its bounds must be finite, not negative and in order")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIS: Weight = Weight::Masked { low: 0.7, high: 6.0 };
    const PPO: Weight = Weight::Ppo { low: 0.8, high: 1.28 };

    struct Outcome {
        loss: Vec<f32>,
        gradient: Vec<f32>,
        dropped: Vec<bool>,
    }

    fn run(weight: Weight, logp: &[f32], old: &[f32], advantages: &[f32], mask: &[u8]) -> Outcome {
        let logp_n = Tensor::from_slice(logp).set_requires_grad(true);
        let mask_n = Tensor::from_slice(mask).to_kind(Kind::Bool);
        let columns = LossColumns {
            logp_n: &logp_n,
            logp_old_n: &Tensor::from_slice(old),
            advantages_n: &Tensor::from_slice(advantages),
            mask_n: &mask_n,
        };
        let losses = token_losses(weight, &columns).expect("losses");
        losses.loss_n.sum(Kind::Float).backward();
        let read = |tensor: &Tensor| Vec::<f32>::try_from(tensor).expect("f32");
        Outcome {
            loss: read(&losses.loss_n.detach()),
            gradient: read(&logp_n.grad()),
            dropped: Vec::<bool>::try_from(&losses.dropped_n).expect("bool"),
        }
    }

    /// Loss, dL/dlogp and whether the bounds dropped one action token.
    fn one(weight: Weight, logp: f32, old: f32, advantage: f32) -> (f32, f32, bool) {
        let outcome = run(weight, &[logp], &[old], &[advantage], &[1]);
        (outcome.loss[0], outcome.gradient[0], outcome.dropped[0])
    }

    fn close(got: f32, want: f32) {
        assert!((got - want).abs() < 2e-6 * want.abs().max(1.0), "{got} is not {want}");
    }

    #[test]
    fn dis_keeps_the_golden_losses_and_gradients() {
        let (loss, gradient, dropped) = one(DIS, -1.0, -1.0, 0.7);
        close(loss, 0.7);
        close(gradient, -0.7);
        assert!(!dropped);
        let (loss, gradient, _) = one(DIS, -1.3, -1.0, 0.7);
        close(loss, 0.674_145);
        close(gradient, -0.518_573);
        let (loss, gradient, dropped) = one(DIS, -1.3, -3.0, 0.7);
        close(loss, 5.473_947 * 0.7 * 1.3);
        close(gradient, -5.473_947 * 0.7);
        assert!(!dropped);
        let (_, gradient, _) = one(DIS, -0.8, -1.0, -0.5);
        close(gradient, 0.610_701);
    }

    #[test]
    fn dis_drops_what_lies_outside_its_bounds() {
        assert_eq!(one(DIS, -1.4, -1.0, 0.7), (0.0, 0.0, true));
        assert_eq!(one(DIS, -1.2, -3.0, 0.7), (0.0, 0.0, true));
    }

    #[test]
    fn dis_bounds_are_strict() {
        let at_one = |low, high| one(Weight::Masked { low, high }, -1.0, -1.0, 1.0).2;
        assert!(at_one(1.0, 2.0));
        assert!(at_one(0.5, 1.0));
        assert!(!at_one(0.5, 2.0));
    }

    #[test]
    fn ppo_gives_the_golden_pairs() {
        for (ratio, advantage, want) in
            [(1.5f32, 1.0f32, -1.28f32), (1.5, -1.0, 1.5), (0.5, 1.0, -0.5), (0.5, -1.0, 0.8), (1.1, 1.0, -1.1)]
        {
            close(one(PPO, ratio.ln(), 0.0, advantage).0, want);
        }
    }

    #[test]
    fn ppo_has_a_gradient_only_where_the_clip_is_not_the_larger_loss() {
        let (_, gradient, dropped) = one(PPO, 1.5f32.ln(), 0.0, 1.0);
        assert_eq!((gradient, dropped), (0.0, true));
        let (_, gradient, dropped) = one(PPO, 1.5f32.ln(), 0.0, -1.0);
        close(gradient, 1.5);
        assert!(!dropped);
        close(one(PPO, 1.1f32.ln(), 0.0, 1.0).1, -1.1);
    }

    #[test]
    fn an_infinite_ratio_drops_a_token_and_poisons_none() {
        assert_eq!(one(DIS, -1.0, -1e30, 0.7), (0.0, 0.0, true));
        let (loss, gradient, dropped) = one(PPO, -1.0, -1e30, 0.7);
        close(loss, -1.28 * 0.7);
        assert_eq!((gradient, dropped), (0.0, true));
        assert!(one(Weight::Truncated(2.0), -1.0, -1e30, 0.7).1.is_finite());
    }

    #[test]
    fn reinforce_ratio_and_truncated_differ_only_in_the_factor() {
        let ratio = 0.5f32.exp();
        let gradient = |weight| one(weight, -1.0, -1.5, 2.0).1;
        close(gradient(Weight::Reinforce), -2.0);
        close(gradient(Weight::Ratio), -2.0 * ratio);
        close(gradient(Weight::Truncated(1.2)), -2.4);
        close(gradient(Weight::Truncated(2.0)), -2.0 * ratio);
    }

    #[test]
    fn tokens_outside_the_mask_have_no_loss_no_gradient_and_no_nan() {
        let wild = [f32::NEG_INFINITY, f32::NAN, 1e30];
        for weight in [Weight::Reinforce, Weight::Ratio, Weight::Truncated(1.0), DIS, PPO] {
            let outcome = run(weight, &wild, &[f32::INFINITY, 0.0, -1e30], &[1.0, f32::NAN, 1e30], &[0, 0, 0]);
            assert!(outcome.loss.iter().all(|&loss| loss == 0.0), "{weight:?}: {:?}", outcome.loss);
            assert_eq!(outcome.gradient, [0.0; 3], "{weight:?}");
            assert_eq!(outcome.dropped, [false; 3], "{weight:?}");
        }
    }

    #[test]
    fn reductions_of_uneven_lengths() {
        let masks: [&[u8]; 3] = [&[1, 1, 0, 1], &[1], &[0, 0]];
        let shares = |reduction| token_shares(reduction, &masks);
        assert_eq!(shares(Reduction::TokenSum), [1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
        let ninth = 1.0 / 9.0;
        assert_eq!(shares(Reduction::SampleTokenMean), [ninth, ninth, 0.0, ninth, 1.0 / 3.0, 0.0, 0.0]);
        assert_eq!(shares(Reduction::GlobalTokenMean), [0.25, 0.25, 0.0, 0.25, 0.25, 0.0, 0.0]);
    }

    #[test]
    fn every_weight_reduces_to_the_sum_of_its_shares() {
        let masks: [&[u8]; 2] = [&[1, 0, 1], &[1]];
        let (logp, old) = ([-1.0, -9.0, -1.3, -0.8], [-1.0, 0.0, -1.0, -1.0]);
        let mask_n = Tensor::from_slice(&[1u8, 0, 1, 1]).to_kind(Kind::Bool);
        for weight in [Weight::Reinforce, Weight::Ratio, Weight::Truncated(1.1), DIS, PPO] {
            for reduction in [Reduction::TokenSum, Reduction::SampleTokenMean, Reduction::GlobalTokenMean] {
                let columns = LossColumns {
                    logp_n: &Tensor::from_slice(&logp.map(|x: f32| x)),
                    logp_old_n: &Tensor::from_slice(&old.map(|x: f32| x)),
                    advantages_n: &Tensor::from_slice(&[0.7f32, 5.0, 0.7, -0.5]),
                    mask_n: &mask_n,
                };
                let losses = token_losses(weight, &columns).expect("losses");
                let shares = token_shares(reduction, &masks);
                let loss_n = Vec::<f32>::try_from(&losses.loss_n).expect("f32");
                let want: f32 = loss_n.iter().zip(&shares).map(|(loss, share)| loss * share).sum();
                close(
                    f32::try_from(reduced(&losses.loss_n, &Tensor::from_slice(&shares)).expect("scalar")).expect("f32"),
                    want,
                );
            }
        }
    }

    #[test]
    fn k3_keeps_the_golden_values_and_gradients() {
        // d, exp(d) − d − 1 and 1 − exp(d).
        for (d, value, slope) in [
            (-0.5, 0.106_530_66, 0.393_469_34),
            (0.5, 0.148_721_27, -0.648_721_3),
            (2.0, 4.389_056, -6.389_056),
            (0.0, 0.0, 0.0),
            (1e-3, 5.001_667e-7, -1.000_500_2e-3),
        ] {
            let logp_n = Tensor::from_slice(&[-1.0f32, -1.0]).set_requires_grad(true);
            let reference_n = Tensor::from_slice(&[d - 1.0f32, f32::NEG_INFINITY]);
            let mask_n = Tensor::from_slice(&[1u8, 0]).to_kind(Kind::Bool);
            let k3_n = k3(&logp_n, &reference_n, &mask_n).expect("k3");
            k3_n.sum(Kind::Float).backward();
            let read = |tensor: Tensor| Vec::<f32>::try_from(tensor).expect("f32");
            let (got, gradient) = (read(k3_n.detach()), read(logp_n.grad()));
            // d itself is rounded to 6e-8 by the subtraction from 1.
            assert!((got[0] - value).abs() < 1e-6 * value.max(1e-3), "{d}: {} is not {value}", got[0]);
            close(gradient[0], slope);
            assert_eq!((got[1], gradient[1]), (0.0, 0.0), "outside the mask");
        }
    }

    #[test]
    fn entropy_of_known_logits_is_exact_and_so_is_its_gradient() {
        // π = (½, ¼, ¼): H = 1.5·ln 2, ∂H/∂z = −π·(log π + H).
        let logits_cv =
            Tensor::from_slice(&[2.0f32.ln(), 0.0, 0.0, 7.0, 7.0, 7.0]).view([2, 3]).set_requires_grad(true);
        let entropy_c = entropy(&logits_cv.log_softmax(1, Kind::Float)).expect("entropy");
        entropy_c.sum(Kind::Float).backward();
        let read = |tensor: Tensor| Vec::<f32>::try_from(tensor).expect("f32");
        let gradient = read(logits_cv.grad().flatten(0, 1));
        for (got, want) in read(entropy_c.detach()).into_iter().zip([1.039_720_8, 1.098_612_3]) {
            close(got, want);
        }
        for (got, want) in gradient.into_iter().zip([-0.173_286_8, 0.086_643_4, 0.086_643_4, 0.0, 0.0, 0.0]) {
            close(got, want);
        }
        // A certain distribution has none, and no NaN.
        let certain_cv = Tensor::from_slice(&[0.0f32, -1e4]).view([1, 2]).log_softmax(1, Kind::Float);
        assert_eq!(read(entropy(&certain_cv).expect("entropy")), [0.0]);
    }

    #[test]
    fn bounds_out_of_order_are_refused() {
        assert!(Weight::Masked { low: 2.0, high: 1.0 }.check().is_err());
        assert!(Weight::Truncated(f32::NAN).check().is_err());
        assert!(PPO.check().is_ok());
    }
}
