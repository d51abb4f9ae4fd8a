//! Divergences between a teacher and the student that learns, as functions of their log-probs, and the weights of
//! off-policy tokens. The accumulation of gradients calls them on the response tokens of one chunk. The gradient
//! flows through the student alone. Nothing here knows a model or a reduction.
//!
//! Legend: `c` response tokens of a chunk, `v` vocabulary, `k` ids that are compared. `p` is the student, `t` the
//! teacher.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::loss::LOG_RATIO_MAX;
use crate::error::EngineError;

/// Largest log-mass of the compared ids for which there is a rest: below it f32 knows the rest to a few digits.
const LOG_MASS_MAX: f64 = -1e-7;

/// D(teacher, student) of one token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Divergence {
    /// KL(t ‖ p) = Σ t·(log t − log p).
    Forward,
    /// KL(p ‖ t) = Σ p·(log p − log t).
    Reverse,
    /// β·KL(t ‖ m) + (1 − β)·KL(p ‖ m) with m = β·t + (1 − β)·p (generalised Jensen-Shannon, arXiv 2306.13649,
    /// equation 1).
    JensenShannon {
        /// In (0, 1).
        beta: f32,
    },
}

/// Which part of the vocabulary is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Support {
    /// All of it.
    Exact,
    /// The student's K most likely ids, renormalised.
    TopKRenormalised(u32),
    /// The student's K most likely ids and one bucket for the rest.
    TopKTail(u32),
    /// The sampled id only: an estimate without bias, in value and gradient, on tokens that the student sampled.
    Sampled,
}

/// How off-policy tokens are weighted, with the ratio exp(log π_θ − log π_rollout), log-ratio clamped to ±20.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Importance {
    /// Not at all.
    Off,
    /// min(ratio, cap) of each token.
    Token(f32),
    /// Mean of min(ratio, cap) over the tokens of the sample that count.
    Sequence(f32),
}

/// What is known of the response tokens of a chunk.
#[derive(Debug)]
pub(super) struct Pair<'a> {
    /// Log-probs of the student and of the teacher over the whole vocabulary, f32 [c, v].
    pub logp_cv: &'a Tensor,
    pub logt_cv: &'a Tensor,
    /// Of the sampled tokens, f32 [c].
    pub logp_c: &'a Tensor,
    pub logt_c: &'a Tensor,
}

/// D of each token, f32 [c].
pub(super) fn divergence(what: Divergence, support: Support, pair: &Pair<'_>) -> Result<Tensor, EngineError> {
    let top = |k: u32| {
        let k = i64::from(k).min(pair.logp_cv.size2()?.1);
        let ids_ck = pair.logp_cv.f_detach()?.f_topk(k, 1, true, true)?.1;
        Ok::<_, EngineError>((pair.logp_cv.f_gather(1, &ids_ck, false)?, pair.logt_cv.f_gather(1, &ids_ck, false)?))
    };
    match support {
        Support::Exact => summed(what, pair.logp_cv, pair.logt_cv),
        Support::TopKRenormalised(k) => {
            let (logp_ck, logt_ck) = top(k)?;
            summed(what, &logp_ck.f_log_softmax(1, Kind::Float)?, &logt_ck.f_log_softmax(1, Kind::Float)?)
        }
        Support::TopKTail(k) => {
            let (logp_ck, logt_ck) = top(k)?;
            summed(what, &with_rest(&logp_ck)?, &with_rest(&logt_ck)?)
        }
        Support::Sampled => sampled(what, pair.logp_c, pair.logt_c),
    }
}

/// The sum over the ids of each row.
fn summed(what: Divergence, logp_ck: &Tensor, logt_ck: &Tensor) -> Result<Tensor, EngineError> {
    // KL(a ‖ b).
    let kl = |loga_ck: &Tensor, logb_ck: &Tensor| {
        let each_ck = loga_ck.f_exp()?.f_mul(&loga_ck.f_sub(logb_ck)?)?;
        Ok::<_, EngineError>(each_ck.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?)
    };
    match what {
        Divergence::Forward => kl(logt_ck, logp_ck),
        Divergence::Reverse => kl(logp_ck, logt_ck),
        Divergence::JensenShannon { beta } => {
            let beta = f64::from(beta);
            let logm_ck = mixture(beta, logp_ck, logt_ck)?;
            let (of_teacher_c, of_student_c) = (kl(logt_ck, &logm_ck)?, kl(logp_ck, &logm_ck)?);
            Ok(of_teacher_c.f_mul_scalar(beta)?.f_add(&of_student_c.f_mul_scalar(1.0 - beta)?)?)
        }
    }
}

/// log m with m = β·t + (1 − β)·p.
fn mixture(beta: f64, logp: &Tensor, logt: &Tensor) -> Result<Tensor, EngineError> {
    Ok(logt.f_add_scalar(beta.ln())?.f_logaddexp(&logp.f_add_scalar((1.0 - beta).ln())?)?)
}

/// The log-probs [c, k] with the log-prob of everything else, [c, k + 1].
fn with_rest(log_ck: &Tensor) -> Result<Tensor, EngineError> {
    let mass_c1 = log_ck.f_logsumexp([1i64].as_slice(), true)?.f_clamp_max(LOG_MASS_MAX)?;
    Ok(Tensor::f_cat(&[log_ck, &mass_c1.f_expm1()?.f_neg()?.f_log()?], 1)?)
}

/// D = E_p[d] with d a function of t/p, and ∇D = E_p[g·∇log p]: d and g at the sampled tokens, the log-ratio
/// clamped to ±20.
fn sampled(what: Divergence, logp_c: &Tensor, logt_c: &Tensor) -> Result<Tensor, EngineError> {
    let now_c = logp_c.f_detach()?;
    let gap_c = now_c.f_sub(logt_c)?.f_clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)?;
    let (value_c, slope_c) = match what {
        Divergence::Forward => {
            let ratio_c = gap_c.f_neg()?.f_exp()?;
            // E_p[∇log p] = 0: the 1 takes nothing from the mean, and the noise where both agree.
            (ratio_c.f_mul(&gap_c)?.f_neg()?, ratio_c.f_neg()?.f_add_scalar(1.0)?)
        }
        Divergence::Reverse => (gap_c.shallow_clone(), gap_c),
        Divergence::JensenShannon { beta } => {
            let beta = f64::from(beta);
            // Relative to p: log p = 0, log t = −gap.
            let logt_c = gap_c.f_neg()?;
            let logm_c = mixture(beta, &gap_c.f_zeros_like()?, &logt_c)?;
            let slope_c = logm_c.f_mul_scalar(beta - 1.0)?;
            let of_teacher_c = logt_c.f_exp()?.f_mul(&logt_c.f_sub(&logm_c)?)?.f_mul_scalar(beta)?;
            (of_teacher_c.f_add(&slope_c)?, slope_c)
        }
    };
    // The value of one, the gradient of the other.
    Ok(slope_c.f_mul(&logp_c.f_sub(&now_c)?)?.f_add(&value_c)?)
}

/// min(ratio, cap) of each token without a graph, f32 of the shape of the arguments.
pub(super) fn capped_ratios(logp: &Tensor, logp_rollout: &Tensor, cap: f32) -> Result<Tensor, EngineError> {
    let apart = logp.f_detach()?.f_sub(logp_rollout)?.f_clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)?;
    Ok(apart.f_exp()?.f_clamp_max(f64::from(cap))?)
}

impl Divergence {
    /// Refuses a β outside (0, 1).
    pub(super) fn check(self) -> Result<(), String> {
        match self {
            Self::JensenShannon { beta } if !(beta > 0.0 && beta < 1.0) => {
                Err(format!("divergence: beta {beta} must be in (0, 1)"))
            }
            _ => Ok(()),
        }
    }
}

impl Support {
    /// Refuses an empty support.
    pub(super) fn check(self) -> Result<(), String> {
        match self {
            Self::TopKRenormalised(0) | Self::TopKTail(0) => Err("support: it must have at least 1 id".to_owned()),
            _ => Ok(()),
        }
    }
}

impl Importance {
    /// Refuses a cap that is not finite or not above 0.
    pub(super) fn check(self) -> Result<(), String> {
        match self {
            Self::Token(cap) | Self::Sequence(cap) if !(cap.is_finite() && cap > 0.0) => {
                Err(format!("importance: cap {cap} must be finite and above 0"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUDENT: [f32; 4] = [1.0, 0.0, -1.0, 0.5];
    const TEACHER: [f32; 4] = [0.2, 0.8, -0.5, 0.0];
    const JSD: Divergence = Divergence::JensenShannon { beta: 0.5 };

    fn close(got: &[f32], want: &[f32], slack: f32) {
        assert_eq!(got.len(), want.len());
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < slack), "{got:?} is not {want:?}");
    }

    fn read(tensor: &Tensor) -> Vec<f32> {
        Vec::<f32>::try_from(tensor.detach().flatten(0, -1)).expect("f32")
    }

    /// D and its gradient by the student's logits, the token `sampled`.
    fn run(what: Divergence, support: Support, sampled: i64) -> (f32, Vec<f32>) {
        let logits_cv = Tensor::from_slice(&STUDENT).view([1, 4]).set_requires_grad(true);
        let logp_cv = logits_cv.log_softmax(1, Kind::Float);
        let logt_cv = Tensor::from_slice(&TEACHER).view([1, 4]).log_softmax(1, Kind::Float);
        let at = |log_cv: &Tensor| log_cv.narrow(1, sampled, 1).squeeze_dim(1);
        let (logp_c, logt_c) = (at(&logp_cv), at(&logt_cv));
        let pair = Pair { logp_cv: &logp_cv, logt_cv: &logt_cv, logp_c: &logp_c, logt_c: &logt_c };
        let apart_c = divergence(what, support, &pair).expect("divergence");
        apart_c.sum(Kind::Float).backward();
        (read(&apart_c)[0], read(&logits_cv.grad()))
    }

    #[test]
    fn exact_divergences_keep_the_golden_values_and_gradients() {
        let cases = [
            (Divergence::Forward, 0.246_522_73, [0.232_295, -0.266_027, -0.055_875, 0.089_606]),
            (Divergence::Reverse, 0.224_875_36, [0.212_648, -0.200_766, -0.054_613, 0.042_731]),
            (JSD, 0.057_412_29, [0.052_423, -0.054_649, -0.013_517, 0.015_743]),
        ];
        for (what, value, slopes) in cases {
            let (got, gradient) = run(what, Support::Exact, 0);
            close(&[got], &[value], 1e-7);
            close(&gradient, &slopes, 1e-6);
        }
        close(&[run(Divergence::JensenShannon { beta: 0.3 }, Support::Exact, 0).0], &[0.049_263_44], 1e-7);
    }

    #[test]
    fn two_ids_keep_the_golden_values_renormalised_and_with_a_rest() {
        let cases = [
            (Divergence::Forward, 0.010_987_916, 0.242_037_27),
            (Divergence::Reverse, 0.010_799_7, 0.222_864_84),
            (JSD, 0.002_720_671, 0.056_718_767),
        ];
        for (what, renormalised, with_rest) in cases {
            close(&[run(what, Support::TopKRenormalised(2), 0).0], &[renormalised], 1e-7);
            close(&[run(what, Support::TopKTail(2), 0).0], &[with_rest], 2e-7);
        }
    }

    #[test]
    fn a_support_as_large_as_the_vocabulary_is_exact() {
        for what in [Divergence::Forward, Divergence::Reverse, JSD] {
            let (exact, slopes) = run(what, Support::Exact, 0);
            for k in [4, 1_000] {
                let (value, gradient) = run(what, Support::TopKRenormalised(k), 0);
                close(&[value], &[exact], 1e-6);
                close(&gradient, &slopes, 1e-6);
            }
            // The rest of everything is nothing, and no NaN.
            let (value, gradient) = run(what, Support::TopKTail(4), 0);
            close(&[value], &[exact], 1e-5);
            close(&gradient, &slopes, 1e-5);
        }
    }

    #[test]
    fn the_sampled_estimate_has_no_bias() {
        let p = read(&Tensor::from_slice(&STUDENT).softmax(0, Kind::Float));
        for what in [Divergence::Forward, Divergence::Reverse, JSD, Divergence::JensenShannon { beta: 0.3 }] {
            let (exact, slopes) = run(what, Support::Exact, 0);
            let (mut value, mut gradient) = (0.0, vec![0.0; 4]);
            for (id, p) in (0i64..).zip(&p) {
                let (one, slopes) = run(what, Support::Sampled, id);
                value += p * one;
                gradient.iter_mut().zip(slopes).for_each(|(sum, slope)| *sum += p * slope);
            }
            close(&[value], &[exact], 1e-6);
            close(&gradient, &slopes, 1e-6);
        }
    }

    #[test]
    fn the_reverse_estimate_is_the_gap_and_its_slope() {
        let log = |logits: &[f32; 4]| read(&Tensor::from_slice(logits).log_softmax(0, Kind::Float));
        let gap = log(&STUDENT)[2] - log(&TEACHER)[2];
        let (value, gradient) = run(Divergence::Reverse, Support::Sampled, 2);
        close(&[value], &[gap], 1e-7);
        // gap·∇log p(y), and ∇log p(y) = onehot(y) − p.
        let p = log(&STUDENT).into_iter().map(f32::exp).enumerate();
        let slopes: Vec<f32> = p.map(|(id, p)| gap * (f32::from(u8::from(id == 2)) - p)).collect();
        close(&gradient, &slopes, 1e-7);
    }

    #[test]
    fn ratios_are_capped_and_survive_wild_log_probs() {
        let ratios = |logp: &[f32], rollout: &[f32], cap| {
            read(&capped_ratios(&Tensor::from_slice(logp), &Tensor::from_slice(rollout), cap).expect("ratios"))
        };
        let golden = ratios(&[-1.0, -0.2, -3.0], &[-1.3, -0.1, -5.0], 2.0);
        close(&golden, &[1.349_859, 0.904_837, 2.0], 1e-6);
        close(&[golden.iter().sum::<f32>() / 3.0], &[1.418_232], 1e-6);
        assert_eq!(ratios(&[0.0, -1e30], &[-1e30, 0.0], 5.0), [5.0, (-20.0f32).exp()]);
    }

    #[test]
    fn certain_distributions_have_no_nan() {
        let certain_cv = Tensor::from_slice(&[0.0f32, -1e4, -1e4]).view([1, 3]).log_softmax(1, Kind::Float);
        let other_cv = Tensor::from_slice(&[-1e4f32, 0.0, -1e4]).view([1, 3]).log_softmax(1, Kind::Float);
        let at = |log_cv: &Tensor| log_cv.narrow(1, 0, 1).squeeze_dim(1);
        for what in [Divergence::Forward, Divergence::Reverse, JSD] {
            for support in [Support::Exact, Support::TopKRenormalised(2), Support::TopKTail(2), Support::Sampled] {
                let logp_cv = certain_cv.copy().set_requires_grad(true);
                let (logp_c, logt_c) = (at(&logp_cv), at(&other_cv));
                let pair = Pair { logp_cv: &logp_cv, logt_cv: &other_cv, logp_c: &logp_c, logt_c: &logt_c };
                let apart_c = divergence(what, support, &pair).expect("divergence");
                apart_c.sum(Kind::Float).backward();
                let finite = read(&apart_c).iter().chain(&read(&logp_cv.grad())).all(|number| number.is_finite());
                assert!(finite, "{what:?} {support:?}: {apart_c} {}", logp_cv.grad());
            }
        }
    }
}
