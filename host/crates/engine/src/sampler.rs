//! Draws the next token of each request and states its log-prob.
//! The scheduler calls it once per step with the logits of all rows. Log-probs are those of the distribution at
//! the sampling temperature over the whole vocabulary, before top-k and top-p cut it; a greedy request (0,
//! or nearly) has those of temperature 1.
//!
//! Legend: `s` rows, `v` vocabulary.

use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use reef_core::Sampling;
use tch::{Kind, Tensor};

use crate::error::EngineError;

/// Alternatives a request may ask for, per token.
pub(crate) const TOP_MAX: u32 = 20;
/// Temperatures below it are greedy: they pick the best token anyway, and dividing by much smaller ones overflows.
const GREEDY_BELOW: f32 = 1e-4;
/// Candidates that are sorted first when only top-p limits; nearly always they hold the nucleus.
const NUCLEUS_FIRST: usize = 512;

/// One request's generator and parameters.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    top: usize,
    generator: ChaCha12Rng,
}

/// A drawn token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Drawn {
    pub id: u32,
    pub logprob: f32,
    /// Best first.
    pub top: Vec<(u32, f32)>,
}

/// Probabilities and log-probs of all rows, in memory.
#[derive(Debug)]
pub(crate) struct Distributions {
    vocabulary: usize,
    logprobs: Vec<f32>,
    probs: Vec<f32>,
}

impl Distributions {
    /// From logits `[s, v]` and one temperature per row, in one log-softmax.
    pub fn new(logits_sv: &Tensor, temperatures: &[f32]) -> Result<Self, EngineError> {
        let (rows, vocabulary) = logits_sv.size2()?;
        let scales: Vec<f32> = temperatures.iter().copied().map(stated_temperature).collect();
        let scales = Tensor::f_from_slice(&scales)?.f_view([rows, 1])?;
        let logprobs_sv = logits_sv.f_div(&scales)?.f_log_softmax(-1, Kind::Float)?;
        let copy = |tensor: &Tensor| {
            let mut values = vec![0f32; tensor.numel()];
            tensor.f_copy_data(&mut values, tensor.numel())?;
            Ok::<_, EngineError>(values)
        };
        Ok(Self {
            vocabulary: vocabulary.unsigned_abs() as usize,
            logprobs: copy(&logprobs_sv)?,
            probs: copy(&logprobs_sv.f_exp()?)?,
        })
    }

    fn row<'a>(&self, values: &'a [f32], row: usize) -> Result<&'a [f32], EngineError> {
        let found = values.get(row * self.vocabulary..(row + 1) * self.vocabulary);
        found.ok_or_else(|| EngineError::Invalid(format!("the step has no row {row}")))
    }
}

impl Sampler {
    /// `top`: alternatives per token, at most 20.
    pub fn new(sampling: Sampling, top: u32) -> Self {
        Self { sampling, top: top.min(TOP_MAX) as usize, generator: ChaCha12Rng::seed_from_u64(sampling.seed) }
    }

    /// Its temperature, as requested.
    pub fn temperature(&self) -> f32 {
        self.sampling.temperature
    }

    /// The next token from row `row`.
    pub fn draw(&mut self, distributions: &Distributions, row: usize) -> Result<Drawn, EngineError> {
        let logprobs = distributions.row(&distributions.logprobs, row)?;
        let probs = distributions.row(&distributions.probs, row)?;
        let id = if self.sampling.temperature >= GREEDY_BELOW { self.pick(probs) } else { best(logprobs) };
        let logprob = logprobs.get(id).copied().filter(|logprob| logprob.is_finite());
        let logprob = logprob.ok_or_else(|| {
            EngineError::Invalid("the model's output is not finite; its weights or adapter are damaged".to_owned())
        })?;
        let top = largest(logprobs, self.top).into_iter().map(|(id, logprob)| (id as u32, logprob)).collect();
        Ok(Drawn { id: id as u32, logprob, top })
    }

    /// One uniform number per token, whatever the filters are.
    fn pick(&mut self, probs: &[f32]) -> usize {
        let uniform: f64 = self.generator.random();
        let (top_k, top_p) = (self.sampling.top_k as usize, self.sampling.top_p);
        if (top_k == 0 || top_k >= probs.len()) && top_p >= 1.0 {
            return walk(probs.iter().copied().enumerate(), uniform);
        }
        walk(candidates(probs, top_k, top_p).into_iter(), uniform)
    }
}

/// The temperature of the log-probs that are stated for a request.
pub(crate) fn stated_temperature(requested: f32) -> f32 {
    if requested >= GREEDY_BELOW { requested } else { 1.0 }
}

/// Index where the cumulated weights pass `uniform` times their sum.
fn walk(weights: impl Iterator<Item = (usize, f32)> + Clone, uniform: f64) -> usize {
    let total: f64 = weights.clone().map(|(_, weight)| f64::from(weight)).sum();
    let mut left = uniform * total;
    let mut last = 0;
    for (index, weight) in weights.filter(|(_, weight)| *weight > 0.0) {
        last = index;
        left -= f64::from(weight);
        if left < 0.0 {
            break;
        }
    }
    last
}

/// The tokens that top-k leaves, then the fewest of them that hold `top_p` of their mass; best first.
fn candidates(probs: &[f32], top_k: usize, top_p: f32) -> Vec<(usize, f32)> {
    let kept = if top_k == 0 { probs.len() } else { top_k.min(probs.len()) };
    let mass: f64 = if top_k == 0 { 1.0 } else { largest(probs, kept).iter().map(|(_, p)| f64::from(*p)).sum() };
    let mut sorted = largest(probs, if top_p < 1.0 { kept.min(NUCLEUS_FIRST) } else { kept });
    if top_p >= 1.0 {
        return sorted;
    }
    loop {
        let mut sum = 0.0;
        let wanted = f64::from(top_p) * mass;
        let end = sorted.iter().position(|(_, p)| {
            sum += f64::from(*p);
            sum >= wanted
        });
        match end {
            Some(end) => sorted.truncate(end + 1),
            None if sorted.len() < kept => {
                sorted = largest(probs, kept);
                continue;
            }
            None => {}
        }
        return sorted;
    }
}

/// The `count` largest values with their indices, best first; the lower index first among equals.
fn largest(values: &[f32], count: usize) -> Vec<(usize, f32)> {
    if count == 0 {
        return Vec::new();
    }
    let order = |a: &(usize, f32), b: &(usize, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let mut all: Vec<(usize, f32)> = values.iter().copied().enumerate().collect();
    if count < all.len() {
        all.select_nth_unstable_by(count - 1, order);
        all.truncate(count);
    }
    all.sort_unstable_by(order);
    all
}

/// Index of the largest value; the lowest among equals.
fn best(values: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, value) in values.iter().copied().enumerate() {
        if value > best.1 {
            best = (index, value);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f32, top_k: u32, top_p: f32, seed: u64) -> Sampler {
        Sampler::new(Sampling { temperature, top_p, top_k, seed }, 3)
    }

    fn logits() -> Tensor {
        Tensor::from_slice(&[1.0f32, 3.0, 2.0, 3.0, -50.0, 0.0, 1.0, 2.0, 3.0, 4.0]).view([2, 5])
    }

    #[test]
    fn greedy_takes_the_first_of_the_best_and_states_temperature_one() {
        let distributions = Distributions::new(&logits(), &[0.0, 0.0]).expect("softmax");
        let drawn = sampler(0.0, 0, 1.0, 0).draw(&distributions, 0).expect("drawn");
        assert_eq!((drawn.id, drawn.top[0].0, drawn.top[1].0), (1, 1, 3));
        let total: f32 = [1.0f32, 3.0, 2.0, 3.0, -50.0].iter().map(|l| l.exp()).sum();
        assert!((drawn.logprob - (3.0 - total.ln())).abs() < 1e-5);
    }

    #[test]
    fn temperatures_next_to_zero_are_greedy() {
        for temperature in [f32::MIN_POSITIVE, 1e-38, 9e-5, GREEDY_BELOW] {
            let distributions = Distributions::new(&(logits() * 50.0), &[temperature, 0.0]).expect("softmax");
            let drawn = sampler(temperature, 0, 1.0, 9).draw(&distributions, 0).expect("drawn");
            assert!(drawn.logprob.is_finite() && [1, 3].contains(&drawn.id), "{temperature}: {drawn:?}");
            assert!(drawn.id == 1 || temperature >= GREEDY_BELOW);
        }
    }

    #[test]
    fn probabilities_sum_to_one_at_every_temperature() {
        for temperature in [0.1, 0.7, 1.0, 3.0] {
            let distributions = Distributions::new(&logits(), &[temperature, 1.0]).expect("softmax");
            for row in 0..2 {
                let sum: f32 = distributions.logprobs[row * 5..row * 5 + 5].iter().map(|l| l.exp()).sum();
                assert!((sum - 1.0).abs() < 1e-5, "{temperature}: {sum}");
            }
        }
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let distributions = Distributions::new(&logits(), &[1.0, 1.0]).expect("softmax");
        let mut sampler = sampler(1.0, 0, 1.0, 7);
        let mut counts = [0u32; 5];
        for _ in 0..20_000 {
            counts[sampler.draw(&distributions, 1).expect("drawn").id as usize] += 1;
        }
        for (id, count) in counts.into_iter().enumerate() {
            let wanted = distributions.probs[5 + id];
            assert!((count as f32 / 20_000.0 - wanted).abs() < 0.015, "{id}: {count} against {wanted}");
        }
    }

    #[test]
    fn filters_keep_the_best_and_log_probs_stay_those_of_all_tokens() {
        let distributions = Distributions::new(&logits(), &[1.0, 1.0]).expect("softmax");
        for seed in 0..50 {
            let drawn = sampler(1.0, 2, 1.0, seed).draw(&distributions, 1).expect("drawn");
            assert!(drawn.id >= 3);
            assert!((drawn.logprob - distributions.logprobs[5 + drawn.id as usize]).abs() < 1e-6);
            assert_eq!(sampler(1.0, 0, 0.5, seed).draw(&distributions, 1).expect("drawn").id, 4);
        }
        assert_eq!(candidates(&[0.1, 0.4, 0.2, 0.3], 2, 0.5), [(1, 0.4)]);
        assert_eq!(candidates(&[0.1, 0.4, 0.2, 0.3], 2, 0.6), [(1, 0.4), (3, 0.3)]);
        assert_eq!(candidates(&[0.1, 0.4, 0.2, 0.3], 0, 0.95).len(), 4);
    }

    #[test]
    fn equal_seeds_draw_equal_tokens() {
        let distributions = Distributions::new(&logits(), &[2.0, 2.0]).expect("softmax");
        let draw = |seed| {
            let mut sampler = sampler(2.0, 0, 1.0, seed);
            (0..40).map(|_| sampler.draw(&distributions, 0).expect("drawn").id).collect::<Vec<_>>()
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }

    #[test]
    fn output_that_is_not_finite_is_an_error() {
        let distributions =
            Distributions::new(&Tensor::from_slice(&[f32::NAN, 1.0]).view([1, 2]), &[0.0]).expect("softmax");
        assert!(sampler(0.0, 0, 1.0, 0).draw(&distributions, 0).is_err());
    }
}
