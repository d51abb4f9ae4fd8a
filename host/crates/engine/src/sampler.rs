//! Draws the next token of each request and states its log-prob.
//! The batch calls it once per step and request. Log-probs are those of the model at the sampling temperature over
//! the whole vocabulary, before biases, penalties, a constraint, top-k and top-p change it: what a trainer computes
//! again. A greedy request (0, or nearly) has those of temperature 1.

use std::collections::HashMap;

use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use reef_core::Sampling;
use reef_cpu::exp_of;

use crate::error::EngineError;
use crate::guide::Guide;

/// Alternatives a request may ask for, per token: as many as a recipe may have recorded.
pub(crate) const TOP_MAX: u32 = 64;
/// Temperatures below it are greedy: they pick the best token anyway, and dividing by much smaller ones overflows.
const GREEDY_BELOW: f32 = 1e-4;
/// Candidates that are sorted first when only top-p limits; nearly always they hold the nucleus.
const NUCLEUS_FIRST: usize = 512;
/// Weights that are summed together on the way to the drawn one.
const STRIDE: usize = 512;

/// What changes the model's distribution before a token is drawn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Adjustments {
    /// Subtracted from a token's logit for each time it stands in the answer.
    pub frequency_penalty: f32,
    /// Subtracted once if it does.
    pub presence_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Adjustments {
    fn is_none(&self) -> bool {
        self.frequency_penalty == 0.0 && self.presence_penalty == 0.0 && self.logit_bias.is_empty()
    }
}

/// One request's generator and parameters.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    top: usize,
    generator: ChaCha12Rng,
    adjustments: Adjustments,
    /// How often each token stands in the answer; kept only for penalties.
    counts: HashMap<u32, u32>,
    /// Tokens whose logits were adjusted in this draw, with the model's.
    original: Vec<(u32, f32)>,
    guide: Option<Guide>,
    allowed: Vec<u32>,
}

/// A drawn token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Drawn {
    pub id: u32,
    pub logprob: f32,
    /// Best first.
    pub top: Vec<(u32, f32)>,
}

/// Memory for one row, used again and again.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    values: Vec<f32>,
    sums: Vec<f64>,
}

impl Weights {
    /// exp((logit − largest) / temperature), their sums by stride, and the sum of all; NaN if a logit is.
    fn fill(&mut self, logits: &[f32], largest: f32, temperature: f32) -> f64 {
        self.values.clear();
        self.values.extend_from_slice(logits);
        self.sums.clear();
        self.sums.extend(self.values.chunks_mut(STRIDE).map(|part| exp_of(part, 1.0 / temperature, largest)));
        self.sums.iter().sum()
    }

    /// Index where the cumulated weights pass `uniform` times their sum.
    fn walk(&self, uniform: f64) -> usize {
        let mut left = uniform * self.sums.iter().sum::<f64>();
        let (mut start, mut last) = (0, 0);
        for (part, sum) in self.values.chunks(STRIDE).zip(&self.sums) {
            if *sum > 0.0 {
                if left < *sum {
                    return start + walk(part.iter().copied().enumerate(), left);
                }
                // Rounding may leave a little behind the end: then the last that weighs anything is taken.
                last = start + part.iter().rposition(|weight| *weight > 0.0).unwrap_or(0);
            }
            left -= sum;
            start += part.len();
        }
        last
    }
}

impl Sampler {
    /// `top`: alternatives per token, at most 64.
    pub fn new(sampling: Sampling, top: u32, adjustments: Adjustments, guide: Option<Guide>) -> Self {
        Self {
            top: top.min(TOP_MAX) as usize,
            generator: ChaCha12Rng::seed_from_u64(sampling.seed),
            sampling,
            adjustments,
            counts: HashMap::new(),
            original: Vec::new(),
            allowed: vec![0; guide.as_ref().map_or(0, Guide::words)],
            guide,
        }
    }

    /// The next token from `logits`, which are changed.
    pub fn draw(&mut self, logits: &mut [f32], weights: &mut Weights) -> Result<Drawn, EngineError> {
        let temperature = stated_temperature(self.sampling.temperature);
        let largest = reef_cpu::largest(logits);
        let total = weights.fill(logits, largest, temperature);
        if !(total.is_finite() && largest.is_finite()) {
            let damaged = "the model's output is not finite; its weights or adapter are damaged";
            return Err(EngineError::Invalid(damaged.to_owned()));
        }
        let top = best(logits, self.top);
        let stated =
            |logit: f32| ((f64::from(logit) - f64::from(largest)) / f64::from(temperature) - total.ln()) as f32;
        let state = |(id, logit): (usize, f32)| (id as u32, stated(logit));
        let top = top.into_iter().map(state).collect();
        let (changed, mut adjusted) = (self.adjusts(), largest);
        if changed {
            self.adjust(logits)?;
            adjusted = reef_cpu::largest(logits);
        }
        if !adjusted.is_finite() {
            return Err(EngineError::Invalid("biases and constraint leave no token to draw".to_owned()));
        }
        let id = if self.sampling.temperature < GREEDY_BELOW {
            logits.iter().position(|logit| *logit == adjusted).unwrap_or(0)
        } else {
            if changed {
                weights.fill(logits, adjusted, temperature);
            }
            self.pick(weights)
        };
        let now = logits.get(id).copied().unwrap_or(f32::NEG_INFINITY);
        // What a constraint allows it does not change.
        let logit = self.original.iter().find(|(changed, _)| *changed as usize == id).map_or(now, |(_, logit)| *logit);
        self.take(id as u32)?;
        Ok(Drawn { id: id as u32, logprob: stated(logit), top })
    }

    fn adjusts(&self) -> bool {
        self.guide.is_some() || !self.adjustments.is_none()
    }

    fn adjust(&mut self, logits: &mut [f32]) -> Result<(), EngineError> {
        self.original.clear();
        // The first entry of a token is the model's own.
        let mut add = |id: u32, more: f32| {
            if let Some(logit) = logits.get_mut(id as usize) {
                self.original.push((id, *logit));
                *logit += more;
            }
        };
        self.adjustments.logit_bias.iter().for_each(|(id, bias)| add(*id, *bias));
        for (id, count) in &self.counts {
            add(*id, -(self.adjustments.frequency_penalty * *count as f32 + self.adjustments.presence_penalty));
        }
        if let Some(guide) = &mut self.guide {
            guide.mask(&mut self.allowed)?;
            for (logits, allowed) in logits.chunks_mut(32).zip(&self.allowed) {
                let barred = logits.iter_mut().enumerate().filter(|(bit, _)| allowed >> bit & 1 == 0);
                barred.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
            }
        }
        Ok(())
    }

    fn take(&mut self, id: u32) -> Result<(), EngineError> {
        if self.adjustments.frequency_penalty != 0.0 || self.adjustments.presence_penalty != 0.0 {
            *self.counts.entry(id).or_default() += 1;
        }
        match &mut self.guide {
            Some(guide) => guide.take(id),
            None => Ok(()),
        }
    }

    /// One uniform number per token, whatever the filters are.
    fn pick(&mut self, weights: &Weights) -> usize {
        let uniform: f64 = self.generator.random();
        let (top_k, top_p) = (self.sampling.top_k as usize, self.sampling.top_p);
        if (top_k == 0 || top_k >= weights.values.len()) && top_p >= 1.0 {
            return weights.walk(uniform);
        }
        let kept = candidates(weights, top_k, top_p);
        let total: f64 = kept.iter().map(|(_, weight)| f64::from(*weight)).sum();
        walk(kept.into_iter(), uniform * total)
    }
}

/// The temperature of the log-probs that are stated for a request.
pub(crate) fn stated_temperature(requested: f32) -> f32 {
    if requested >= GREEDY_BELOW { requested } else { 1.0 }
}

/// The weight that `left` falls on.
fn walk(weights: impl Iterator<Item = (usize, f32)>, mut left: f64) -> usize {
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
fn candidates(weights: &Weights, top_k: usize, top_p: f32) -> Vec<(usize, f32)> {
    let values = &weights.values;
    let kept = if top_k == 0 { values.len() } else { top_k.min(values.len()) };
    if top_p >= 1.0 {
        return best(values, kept);
    }
    let mass: f64 = if top_k == 0 {
        weights.sums.iter().sum()
    } else {
        best(values, kept).iter().map(|(_, weight)| f64::from(*weight)).sum()
    };
    let mut sorted = best(values, kept.min(NUCLEUS_FIRST));
    loop {
        let mut sum = 0.0;
        let wanted = f64::from(top_p) * mass;
        let end = sorted.iter().position(|(_, weight)| {
            sum += f64::from(*weight);
            sum >= wanted
        });
        match end {
            Some(end) => sorted.truncate(end + 1),
            None if sorted.len() < kept => {
                sorted = best(values, kept);
                continue;
            }
            None => {}
        }
        return sorted;
    }
}

/// The `count` largest values with their indices, best first; the lower index first among equals.
fn best(values: &[f32], count: usize) -> Vec<(usize, f32)> {
    let order = |a: &(usize, f32), b: &(usize, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let mut found: Vec<(usize, f32)> = Vec::with_capacity(count.min(values.len()) * 2);
    if count == 0 {
        return found;
    }
    // Most values are passed over by one comparison: what is kept is cut back whenever it has doubled.
    let mut least = f32::NEG_INFINITY;
    for (index, value) in values.iter().copied().enumerate() {
        if value < least {
            continue;
        }
        found.push((index, value));
        if found.len() >= count.saturating_mul(2) {
            found.select_nth_unstable_by(count - 1, order);
            found.truncate(count);
            least = found.last().map_or(least, |(_, value)| *value);
        }
    }
    found.sort_unstable_by(order);
    found.truncate(count);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f32, top_k: u32, top_p: f32, seed: u64) -> Sampler {
        Sampler::new(Sampling { temperature, top_p, top_k, seed }, 3, Adjustments::default(), None)
    }

    const FIRST: [f32; 5] = [1.0, 3.0, 2.0, 3.0, -50.0];
    const SECOND: [f32; 5] = [0.0, 1.0, 2.0, 3.0, 4.0];

    fn draw(sampler: &mut Sampler, logits: &[f32]) -> Drawn {
        sampler.draw(&mut logits.to_vec(), &mut Weights::default()).expect("drawn")
    }

    fn logprob(logits: &[f32], id: usize, temperature: f32) -> f32 {
        let total: f32 = logits.iter().map(|logit| (logit / temperature).exp()).sum();
        logits[id] / temperature - total.ln()
    }

    #[test]
    fn greedy_takes_the_first_of_the_best_and_states_temperature_one() {
        let drawn = draw(&mut sampler(0.0, 0, 1.0, 0), &FIRST);
        assert_eq!((drawn.id, drawn.top[0].0, drawn.top[1].0), (1, 1, 3));
        assert!((drawn.logprob - logprob(&FIRST, 1, 1.0)).abs() < 1e-5 && drawn.top[0].1 == drawn.logprob);
    }

    #[test]
    fn temperatures_next_to_zero_are_greedy() {
        let logits = FIRST.map(|logit| logit * 50.0);
        for temperature in [f32::MIN_POSITIVE, 1e-38, 9e-5, GREEDY_BELOW] {
            let drawn = draw(&mut sampler(temperature, 0, 1.0, 9), &logits);
            assert!(drawn.logprob.is_finite() && [1, 3].contains(&drawn.id), "{temperature}: {drawn:?}");
            assert!(drawn.id == 1 || temperature >= GREEDY_BELOW);
        }
    }

    #[test]
    fn log_probs_are_those_of_the_temperature() {
        for temperature in [0.1, 0.7, 1.0, 3.0] {
            for seed in 0..20 {
                let drawn = draw(&mut sampler(temperature, 0, 1.0, seed), &SECOND);
                assert!((drawn.logprob - logprob(&SECOND, drawn.id as usize, temperature)).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        // More than one stride, most of it nearly impossible.
        let mut logits = vec![-30.0f32; 2 * STRIDE + 7];
        let places = [0, 5, STRIDE - 1, STRIDE, 2 * STRIDE + 6];
        places.iter().zip(SECOND).for_each(|(place, logit)| logits[*place] = logit);
        let mut sampler = sampler(1.0, 0, 1.0, 7);
        let mut counts = HashMap::<u32, u32>::new();
        for _ in 0..20_000 {
            *counts.entry(draw(&mut sampler, &logits).id).or_default() += 1;
        }
        for (place, index) in places.iter().zip(0..) {
            let (count, wanted) =
                (counts.get(&(*place as u32)).copied().unwrap_or(0), logprob(&SECOND, index, 1.0).exp());
            assert!((count as f32 / 20_000.0 - wanted).abs() < 0.015, "{place}: {count} against {wanted}");
        }
    }

    #[test]
    fn filters_keep_the_best_and_log_probs_stay_those_of_all_tokens() {
        for seed in 0..50 {
            let drawn = draw(&mut sampler(1.0, 2, 1.0, seed), &SECOND);
            assert!(drawn.id >= 3);
            assert!((drawn.logprob - logprob(&SECOND, drawn.id as usize, 1.0)).abs() < 1e-5);
            assert_eq!(draw(&mut sampler(1.0, 0, 0.5, seed), &SECOND).id, 4);
        }
        let kept = |top_k, top_p| {
            let mut weights = Weights::default();
            weights.fill(&[0.1f32.ln(), 0.4f32.ln(), 0.2f32.ln(), 0.3f32.ln()], 0.0, 1.0);
            candidates(&weights, top_k, top_p).into_iter().map(|(id, _)| id).collect::<Vec<_>>()
        };
        assert_eq!((kept(2, 0.5), kept(2, 0.6), kept(0, 0.95).len()), (vec![1], vec![1, 3], 4));
    }

    #[test]
    fn the_best_are_those_of_a_full_sort() {
        let values: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 997) as f32).collect();
        let mut sorted: Vec<(usize, f32)> = values.iter().copied().enumerate().collect();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        for count in [0, 1, 3, 512, 4999, 5000, 6000] {
            assert_eq!(best(&values, count), sorted[..count.min(5000)]);
        }
    }

    #[test]
    fn biases_and_penalties_change_the_draw_and_not_the_log_prob() {
        let adjustments = Adjustments { logit_bias: vec![(0, 100.0), (99, 1.0)], ..Adjustments::default() };
        let mut biased =
            Sampler::new(Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, seed: 1 }, 0, adjustments, None);
        let drawn = draw(&mut biased, &SECOND);
        assert!(drawn.id == 0 && (drawn.logprob - logprob(&SECOND, 0, 1.0)).abs() < 1e-5);
        let adjustments = Adjustments { frequency_penalty: 0.8, presence_penalty: 0.4, ..Adjustments::default() };
        let mut greedy =
            Sampler::new(Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 1 }, 0, adjustments, None);
        let drawn: Vec<u32> = (0..5).map(|_| draw(&mut greedy, &SECOND).id).collect();
        assert_eq!(drawn, [4, 3, 4, 2, 4]);
    }

    #[test]
    fn equal_seeds_draw_equal_tokens() {
        let drawn = |seed| {
            let mut sampler = sampler(2.0, 0, 1.0, seed);
            (0..40).map(|_| draw(&mut sampler, &FIRST).id).collect::<Vec<_>>()
        };
        assert_eq!(drawn(5), drawn(5));
        assert_ne!(drawn(5), drawn(6));
    }

    #[test]
    fn output_that_is_not_finite_is_an_error() {
        for bad in [f32::NAN, f32::INFINITY] {
            let drawn = sampler(0.0, 0, 1.0, 0).draw(&mut [bad, 1.0], &mut Weights::default());
            assert!(drawn.is_err());
        }
        assert!(sampler(0.0, 0, 1.0, 0).draw(&mut [f32::NEG_INFINITY; 2], &mut Weights::default()).is_err());
    }
}
