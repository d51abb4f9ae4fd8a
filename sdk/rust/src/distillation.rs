//! The distillation loss, token by token, in f64: the definition that the host's `distill` objective is held to.
//! Distributions are natural log-probs over the same outcomes, student p and teacher t. The loss of a batch is
//! the mean over samples of weight · mean over counted tokens of importance · D(t, p).
//! Divergences: arXiv 2306.13649, equations 1 to 3; importance: arXiv 2601.19897 and 2601.20802.

use alloc::vec::Vec;

use crate::maths::{exp, expm1, ln};
use crate::{Divergence, DivergenceKind};

/// A ratio of probabilities is computed from a difference of log-probs within ±this.
const LOG_RATIO_ABS_MAX: f64 = 20.0;
/// Smallest mass of the tail is about 1e-7: its logarithm stays finite.
const LOG_HEAD_MAX: f64 = -1e-7;

impl Divergence {
    /// D(t, p): forward Σ t(log t − log p), reverse Σ p(log p − log t), Jensen-Shannon with m = βt + (1−β)p:
    /// β·KL(t‖m) + (1−β)·KL(p‖m).
    pub fn of(self, teacher: &[f64], student: &[f64]) -> f64 {
        let beta = f64::from(self.beta);
        match self.kind {
            DivergenceKind::Forward => kl(teacher, student),
            DivergenceKind::Reverse => kl(student, teacher),
            DivergenceKind::JensenShannon => {
                let mixture = mixture(teacher, student, beta);
                beta * kl(teacher, &mixture) + (1.0 - beta) * kl(student, &mixture)
            }
        }
    }

    /// The derivative of [`Divergence::of`] by the student's logits: p − t for forward, else p·(g − Σ p·g) with
    /// g = log p − log t for reverse and (1−β)(log p − log m) for Jensen-Shannon.
    pub fn gradient(self, teacher: &[f64], student: &[f64]) -> Vec<f64> {
        let beta = f64::from(self.beta);
        match self.kind {
            DivergenceKind::Forward => student.iter().zip(teacher).map(|(&p, &t)| exp(p) - exp(t)).collect(),
            DivergenceKind::Reverse => through_softmax(student, &differences(student, teacher, 1.0)),
            DivergenceKind::JensenShannon => {
                let mixture = mixture(teacher, student, beta);
                through_softmax(student, &differences(student, &mixture, 1.0 - beta))
            }
        }
    }
}

/// Log-probs of logits.
pub fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let normaliser = log_sum_exp(logits);
    logits.iter().map(|logit| logit - normaliser).collect()
}

/// The `k` likeliest outcomes, likeliest first; of equal ones the first.
pub fn top_k(logprobs: &[f64], k: usize) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..logprobs.len()).collect();
    ids.sort_by(|&a, &b| value(logprobs, b).total_cmp(&value(logprobs, a)));
    ids.truncate(k);
    ids
}

/// The distribution on `ids` alone.
pub fn renormalised(logprobs: &[f64], ids: &[usize]) -> Vec<f64> {
    log_softmax(&chosen(logprobs, ids))
}

/// The distribution on `ids`, and in the last place the rest of the mass: log(−expm1(min(lse, −1e-7))).
pub fn with_tail(logprobs: &[f64], ids: &[usize]) -> Vec<f64> {
    let mut head = chosen(logprobs, ids);
    let mass = log_sum_exp(&head).min(LOG_HEAD_MAX);
    head.push(ln(-expm1(mass)));
    head
}

/// The reverse divergence estimated from the sampled token y alone: log p(y) − log t(y). It is also what its
/// derivative multiplies ∇log p(y) by.
pub fn gap(teacher: f64, student: f64) -> f64 {
    student - teacher
}

/// min(p/q, cap) of every token, q the rollout's; detached from the gradient.
pub fn token_importance(student: &[f64], rollout: &[f64], cap: f64) -> Vec<f64> {
    let ratio = |(p, q): (&f64, &f64)| exp((p - q).clamp(-LOG_RATIO_ABS_MAX, LOG_RATIO_ABS_MAX));
    student.iter().zip(rollout).map(|pair| ratio(pair).min(cap)).collect()
}

/// The mean of [`token_importance`] over action tokens: one factor for the whole sample.
pub fn sequence_importance(student: &[f64], rollout: &[f64], mask: &[u8], cap: f64) -> f64 {
    let weights = token_importance(student, rollout, cap);
    let actions: Vec<f64> = weights.into_iter().zip(mask).filter(|&(_, &bit)| bit != 0).map(|(w, _)| w).collect();
    crate::maths::mean(&actions)
}

/// The loss of one sample: the mean of `importance · divergence` over its action tokens after the first `skip`
/// response tokens; 0 when none is left.
pub fn sample_loss(divergences: &[f64], importance: &[f64], mask: &[u8], skip: usize) -> f64 {
    let tokens = divergences.iter().zip(importance).zip(mask).skip(skip);
    let counted: Vec<f64> = tokens.filter(|&(_, &bit)| bit != 0).map(|((d, w), _)| d * w).collect();
    crate::maths::mean(&counted)
}

/// Σ a(log a − log b); an outcome without mass adds nothing.
fn kl(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).filter(|(a, _)| exp(**a) > 0.0).map(|(&a, &b)| exp(a) * (a - b)).sum()
}

fn mixture(teacher: &[f64], student: &[f64], beta: f64) -> Vec<f64> {
    teacher.iter().zip(student).map(|(&t, &p)| ln(beta * exp(t) + (1.0 - beta) * exp(p))).collect()
}

fn differences(a: &[f64], b: &[f64], factor: f64) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| factor * (a - b)).collect()
}

/// dL/d(logits) of L = Σ p·g with dL/dp = g up to a constant.
fn through_softmax(student: &[f64], g: &[f64]) -> Vec<f64> {
    let mean: f64 = student.iter().zip(g).map(|(&p, g)| exp(p) * g).sum();
    student.iter().zip(g).map(|(&p, g)| exp(p) * (g - mean)).collect()
}

fn log_sum_exp(values: &[f64]) -> f64 {
    let top = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    top + ln(values.iter().map(|value| exp(value - top)).sum())
}

fn chosen(logprobs: &[f64], ids: &[usize]) -> Vec<f64> {
    ids.iter().map(|&id| value(logprobs, id)).collect()
}

/// Impossible outside the vocabulary.
fn value(logprobs: &[f64], id: usize) -> f64 {
    logprobs.get(id).copied().unwrap_or(f64::NEG_INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSD: Divergence = Divergence::jensen_shannon(0.5);

    fn student() -> Vec<f64> {
        log_softmax(&[1.0, 0.0, -1.0, 0.5])
    }

    fn teacher() -> Vec<f64> {
        log_softmax(&[0.2, 0.8, -0.5, 0.0])
    }

    fn close(found: &[f64], wanted: &[f64], tolerance: f64) {
        assert_eq!(found.len(), wanted.len());
        for (found, wanted) in found.iter().zip(wanted) {
            assert!((found - wanted).abs() < tolerance, "{found} is not {wanted}");
        }
    }

    fn all(teacher: &[f64], student: &[f64]) -> [f64; 3] {
        [Divergence::FORWARD, Divergence::REVERSE, JSD].map(|divergence| divergence.of(teacher, student))
    }

    #[test]
    fn log_probs_of_the_worked_example() {
        close(&student(), &[-0.746567, -1.746567, -2.746567, -1.246567], 1e-6);
        close(&teacher(), &[-1.420076, -0.820076, -2.120076, -1.620076], 1e-6);
    }

    #[test]
    fn divergences_over_the_whole_vocabulary() {
        close(&all(&teacher(), &student()), &[0.246522726, 0.224875361, 0.057412289], 1e-9);
        close(&[Divergence::jensen_shannon(0.3).of(&teacher(), &student())], &[0.049263442], 1e-8);
    }

    #[test]
    fn divergences_over_the_likeliest_ids_renormalised_and_with_a_tail() {
        let ids = top_k(&student(), 2);
        assert_eq!(ids, [0, 3]);
        let alone = all(&renormalised(&teacher(), &ids), &renormalised(&student(), &ids));
        close(&alone, &[0.010987916, 0.0107997, 0.002720671], 1e-7);
        let tail = all(&with_tail(&teacher(), &ids), &with_tail(&student(), &ids));
        close(&tail, &[0.24203727, 0.222864837, 0.056718767], 1e-8);
    }

    #[test]
    fn gradients_by_the_students_logits() {
        let gradient = |divergence: Divergence| divergence.gradient(&teacher(), &student());
        close(&gradient(Divergence::FORWARD), &[0.232295, -0.266027, -0.055875, 0.089606], 1e-6);
        close(&gradient(Divergence::REVERSE), &[0.212648, -0.200766, -0.054613, 0.042731], 1e-6);
        close(&gradient(JSD), &[0.052423, -0.054649, -0.013517, 0.015743], 1e-6);
    }

    #[test]
    fn gradients_are_the_slopes_of_the_divergences() {
        let logits = [1.0, 0.0, -1.0, 0.5];
        for divergence in [Divergence::FORWARD, Divergence::REVERSE, Divergence::jensen_shannon(0.3)] {
            let gradient = divergence.gradient(&teacher(), &student());
            for (id, slope) in gradient.into_iter().enumerate() {
                let at = |step: f64| {
                    let mut moved = logits;
                    moved[id] += step;
                    divergence.of(&teacher(), &log_softmax(&moved))
                };
                let measured = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!((measured - slope).abs() < 1e-9, "{divergence:?} {id}: {measured} is not {slope}");
            }
        }
    }

    #[test]
    fn importance_is_capped_per_token_and_averaged_per_sequence() {
        let (now, then) = ([-1.0, -0.2, -3.0], [-1.3, -0.1, -5.0]);
        close(&token_importance(&now, &then, 2.0), &[1.349859, 0.904837, 2.0], 1e-6);
        close(&[sequence_importance(&now, &then, &[1, 1, 1], 2.0)], &[1.418232], 1e-6);
        close(&[sequence_importance(&now, &then, &[1, 0, 1], 2.0)], &[1.674929], 1e-6);
        assert!(token_importance(&[0.0], &[-1e9], f64::MAX)[0].is_finite());
    }

    #[test]
    fn a_head_that_holds_all_the_mass_leaves_a_finite_tail() {
        let certain = [0.0, f64::NEG_INFINITY];
        let tail = with_tail(&certain, &[0]);
        assert!(tail[1].is_finite() && tail[1] < -16.0, "{tail:?}");
        assert!(Divergence::FORWARD.of(&tail, &with_tail(&student(), &[0])).is_finite());
    }

    #[test]
    fn equal_distributions_diverge_by_nothing_and_pull_nowhere() {
        close(&all(&student(), &student()), &[0.0; 3], 1e-15);
        close(&JSD.gradient(&student(), &student()), &[0.0; 4], 1e-15);
        assert_eq!(gap(-1.5, -1.5), 0.0);
    }

    #[test]
    fn a_sample_counts_its_action_tokens_after_the_skipped_ones() {
        let (divergences, ones) = ([8.0, 4.0, 2.0, 1.0], [1.0; 4]);
        assert_eq!(sample_loss(&divergences, &ones, &[1, 1, 0, 1], 1), 2.5);
        assert_eq!(sample_loss(&divergences, &[1.0, 0.5, 1.0, 2.0], &[1, 1, 0, 1], 1), 2.0);
        assert_eq!(sample_loss(&divergences, &ones, &[1, 0, 0, 0], 1), 0.0);
    }
}
