//! Losses over the alternatives that the sampler recorded beside each token: on-policy distillation over the
//! recorded top-K, and score centering. The accumulation of gradients calls them on the response tokens of one
//! chunk. Every weight is detached; the gradient flows through the log-probs of the alternatives.
//!
//! Legend: `c` response tokens of a chunk, `k` alternatives of each.

use tch::{Kind, Tensor};

use super::loss::{LOG_RATIO_MAX, Weight, factor};
use crate::error::EngineError;

/// Least probability of what lies outside the alternatives.
const REST_MIN: f64 = 1e-6;

/// Log-probs of the alternatives, f32 [c, k].
#[derive(Debug)]
pub(super) struct AlternativeColumns<'a> {
    /// As recorded when the token was sampled.
    pub recorded_ck: &'a Tensor,
    /// Of the policy that learns; the only one that carries a gradient.
    pub logp_ck: &'a Tensor,
}

/// The clipped surrogate max(−ρ·A, −clip(ρ, low, high)·A) summed over the alternatives, f32 [c], with
/// A = clamp(log t − log q, ±`advantage_max`)·softmax(log q), ρ = exp(log π − log q), q the recorded log-probs and t
/// the teacher's, f32 [c, k] (OpenClaw-RL, arXiv 2603.10165).
pub(super) fn top_k_surrogate(
    columns: &AlternativeColumns<'_>,
    logt_ck: &Tensor,
    advantage_max: f64,
    (low, high): (f64, f64),
) -> Result<Tensor, EngineError> {
    let weight_ck = columns.recorded_ck.f_softmax(1, Kind::Float)?;
    let apart_ck = logt_ck.f_sub(columns.recorded_ck)?.f_clamp(-advantage_max, advantage_max)?;
    let advantage_ck = apart_ck.f_mul(&weight_ck)?;
    let log_ratio_ck = columns.logp_ck.f_sub(columns.recorded_ck)?.f_clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)?;
    let ratio_ck = log_ratio_ck.f_exp()?;
    let plain_ck = ratio_ck.f_mul(&advantage_ck)?.f_neg()?;
    let clipped_ck = ratio_ck.f_clamp(low, high)?.f_mul(&advantage_ck)?.f_neg()?;
    Ok(plain_ck.f_maximum(&clipped_ck)?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?)
}

/// Σ sg[q·f(p/q) − α·p]·log p over the alternatives, f32 [c]: with the advantage as its factor it takes the mean of
/// the score out of a policy gradient. α = ρ·f(1/ρ), with ρ = max(1 − Σq, ε)/max(1 − Σp, ε) for what lies outside
/// the alternatives (arXiv 2609.20807). In f64: the two parts of a coefficient nearly cancel.
pub(super) fn centering(weight: Weight, columns: &AlternativeColumns<'_>) -> Result<Tensor, EngineError> {
    let logp_ck = columns.logp_ck.f_to_kind(Kind::Double)?;
    let logq_ck = columns.recorded_ck.f_to_kind(Kind::Double)?;
    let (p_ck, q_ck) = (logp_ck.f_detach()?.f_exp()?, logq_ck.f_exp()?);
    let rest = |of_ck: &Tensor| {
        let mass_c1 = of_ck.f_sum_dim_intlist([1i64].as_slice(), true, Kind::Double)?;
        Ok::<_, EngineError>(mass_c1.f_neg()?.f_add_scalar(1.0)?.f_clamp_min(REST_MIN)?)
    };
    let rho_c1 = rest(&q_ck)?.f_div(&rest(&p_ck)?)?;
    let alpha_c1 = rho_c1.f_mul(&factor(weight, &rho_c1.f_reciprocal()?)?)?;
    let ratio_ck = logp_ck.f_detach()?.f_sub(&logq_ck)?.f_exp()?;
    let coefficient_ck = q_ck.f_mul(&factor(weight, &ratio_ck)?)?.f_sub(&alpha_c1.f_mul(&p_ck)?)?;
    let sum_c = coefficient_ck.f_mul(&logp_ck)?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Double)?;
    Ok(sum_c.f_to_kind(Kind::Float)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(numbers: &[f32]) -> Tensor {
        Tensor::from_slice(numbers).view([1, numbers.len() as i64])
    }

    fn read(tensor: &Tensor) -> Vec<f32> {
        Vec::<f32>::try_from(tensor.detach().flatten(0, -1)).expect("f32")
    }

    fn close(got: &[f32], want: &[f32], slack: f32) {
        assert_eq!(got.len(), want.len());
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < slack), "{got:?} is not {want:?}");
    }

    #[test]
    fn distillation_over_four_alternatives_keeps_the_golden_numbers() {
        let recorded = [-0.3, -1.8, -2.6, -4.0];
        let (recorded_ck, logt_ck) = (row(&recorded), row(&[-0.9, -0.7, -2.6, -6.0]));
        let run = |logp: &[f32]| {
            let logp_ck = row(logp).set_requires_grad(true);
            let columns = AlternativeColumns { recorded_ck: &recorded_ck, logp_ck: &logp_ck };
            let loss_c = top_k_surrogate(&columns, &logt_ck, 1.0, (0.8, 1.28)).expect("loss");
            loss_c.sum(Kind::Float).backward();
            (read(&loss_c)[0], read(&logp_ck.grad()))
        };
        let advantages = [-0.445_066_7, 0.165_513, 0.0, -0.018_339_364];
        // At ρ = 1 the gradient of each alternative is −A.
        let (loss, gradient) = run(&recorded);
        close(&[loss], &[0.297_893_06], 1e-7);
        close(&gradient, &advantages.map(|advantage: f32| -advantage), 1e-6);
        // ρ = e on all: where the clip is the larger loss the gradient is 0.
        let (loss, gradient) = run(&recorded.map(|logprob| logprob + 1.0));
        let e = 1f32.exp();
        close(&[loss], &[e * (0.445_066_7 + 0.018_339_364) - 1.28 * 0.165_513], 1e-5);
        close(&gradient, &[e * 0.445_066_7, 0.0, 0.0, e * 0.018_339_364], 1e-5);
    }

    #[test]
    fn centering_keeps_the_golden_coefficients_and_term() {
        let run = |weight, p: &[f32], q: &[f32]| {
            let logp_ck = row(p).log().set_requires_grad(true);
            let columns = AlternativeColumns { recorded_ck: &row(q).log(), logp_ck: &logp_ck };
            let term_c = centering(weight, &columns).expect("term");
            term_c.sum(Kind::Float).backward();
            (read(&term_c)[0], read(&logp_ck.grad()))
        };
        let (term, coefficients) = run(Weight::Truncated(1.2), &[0.5, 0.3], &[0.6, 0.2]);
        close(&[term], &[0.072_238_37], 1e-7);
        close(&coefficients, &[0.0, -0.06], 1e-7);
        // Nothing to centre where f(r) = r, or where both agree.
        close(&[run(Weight::Ratio, &[0.5, 0.3], &[0.6, 0.2]).0], &[0.0], 1e-7);
        for weight in [Weight::Reinforce, Weight::Truncated(1.2), Weight::Masked { low: 0.5, high: 2.0 }] {
            close(&[run(weight, &[0.5, 0.3], &[0.5, 0.3]).0], &[0.0], 1e-7);
        }
        // Alternatives that hold everything leave a rest of ε on both sides.
        assert!(run(Weight::Truncated(1.2), &[0.7, 0.3], &[0.6, 0.4]).0.is_finite());
    }
}
