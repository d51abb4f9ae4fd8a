//! Generated experience: short answers with scores, and the odd sample that real traffic has too — no score, an old
//! release, several turns. One seed names one pool.

use std::sync::Arc;

use reef_core::{Alternatives, Message, RecordId, ReleaseId, Sample, Trajectory, TurnSpan};
use reef_sandbox::{Exchange, PoolSample, RecordView, Records, RequestView};
use serde_json::json;

use crate::demo::random::Random;

/// The release that serves in the lab.
pub const HEAD: &str = "1abe11ed1abe11ed1abe11ed1abe11ed1abe11ed";
/// Tokens of a prompt and of a response, least and most.
const PROMPT_TOKENS: (usize, usize) = (8, 40);
const RESPONSE_TOKENS: (usize, usize) = (1, 24);
/// One in so many samples has no score, is of an older release, or has an observation between two turns.
const ODD_ONE_IN: usize = 8;
/// Ids in use.
const VOCABULARY: usize = 1_000;
/// Exchanges that a recipe which follows live sessions is given.
const EXCHANGES: usize = 8;

/// `count` samples, oldest first, with `top_k` alternatives of each token.
pub fn pool(seed: u64, count: usize, top_k: u32) -> Arc<Vec<PoolSample>> {
    Arc::new(stream(seed, top_k).take(count).collect())
}

/// Samples without end, oldest first. None when a generated name were not valid, which a test rules out.
pub fn stream(seed: u64, top_k: u32) -> impl Iterator<Item = PoolSample> {
    let mut random = Random::new(seed);
    (0..).map_while(move |index| {
        let mut pooled = sample(&mut random, index)?;
        pooled.sample.trajectory.alternatives = alternatives(&pooled.sample.trajectory, top_k);
        Some(pooled)
    })
}

/// The token itself and the ids after it, each half a nat less likely than the one before.
fn alternatives(trajectory: &Trajectory, k: u32) -> Alternatives {
    let response = trajectory.tokens.iter().skip(trajectory.prompt_length);
    let ids = response.clone().flat_map(|token| (0..k).map(move |other| (token + other) % VOCABULARY as u32)).collect();
    let logprobs = response.flat_map(|_| (1..=k).map(|place| -0.5 * place as f32)).collect();
    Alternatives { k, ids, logprobs }
}

fn between(random: &mut Random, (least, most): (usize, usize)) -> usize {
    least + random.below(most - least + 1)
}

fn sample(random: &mut Random, index: usize) -> Option<PoolSample> {
    let (prompt_length, length) = (between(random, PROMPT_TOKENS), between(random, RESPONSE_TOKENS));
    let tokens = (0..prompt_length + length).map(|_| random.below(VOCABULARY) as u32).collect();
    let two_turns = length > 2 && random.below(ODD_ONE_IN) == 0;
    let middle = length / 2;
    let mask: Vec<u8> = (0..length).map(|token| u8::from(!(two_turns && token == middle))).collect();
    let logprobs = mask.iter().map(|m| if *m == 1 { -(random.below(3_000) as f32) / 1_000.0 } else { 0.0 }).collect();
    let span = |start: usize, end: usize| TurnSpan { start: start as u32, length: (end - start) as u32 };
    let turns = if two_turns { vec![span(0, middle), span(middle + 1, length)] } else { vec![span(0, length)] };
    let records = (0..turns.len()).map(|turn| RecordId::parse(format!("lab-record-{index}-{turn}")).ok());
    let score = (random.below(ODD_ONE_IN) != 0).then(|| random.below(5) as f64 / 4.0);
    let sample = Sample {
        report: RecordId::parse(format!("lab-report-{index}")).ok()?,
        records: records.collect::<Option<Vec<_>>>()?,
        score,
        metadata: json!({ "task": format!("task-{}", random.below(10)) }).as_object().cloned().unwrap_or_default(),
        trajectory: Trajectory { tokens, prompt_length, mask, logprobs, turns, alternatives: Alternatives::NONE },
        temperature: 1.0,
        release: ReleaseId::parse(HEAD).ok()?,
        release_sequence: 0,
        prompt_key: format!("prompt-{}", random.below(count_of_prompts(index))),
        sequence: i64::try_from(index).ok()?,
    };
    let lag = if random.below(ODD_ONE_IN) == 0 { 1 + random.below(4) as u32 } else { 0 };
    Some(PoolSample { sample, lag })
}

/// Prompts come back now and then, as they do in traffic.
fn count_of_prompts(index: usize) -> usize {
    1 + index / 2
}

/// What the records behind generated samples say.
#[derive(Debug)]
pub struct GeneratedRecords;

impl Records for GeneratedRecords {
    fn record(&self, id: &RecordId) -> Result<Option<RecordView>, String> {
        let RequestView { messages, session, tags } = request(id.as_str());
        let answer = format!("Answer of {id}.");
        Ok(Some(RecordView { messages, tags, session, answer }))
    }
}

/// A request with this name.
pub fn request(name: &str) -> RequestView {
    RequestView {
        messages: vec![Message { role: "user".to_owned(), content: format!("Question of {name}.") }],
        session: Some("lab-session".to_owned()),
        tags: vec![("task".to_owned(), "lab".to_owned())],
    }
}

/// Exchanges of one session, oldest first.
pub fn exchanges() -> Vec<Exchange> {
    (0..EXCHANGES).filter_map(exchange).collect()
}

fn exchange(index: usize) -> Option<Exchange> {
    let id = RecordId::parse(format!("lab-exchange-{index}")).ok()?;
    let RequestView { messages, session, tags } = request(id.as_str());
    Some(Exchange {
        release: ReleaseId::parse(HEAD).ok()?,
        at_ms: super::NOW_MS + i64::try_from(index).ok()?,
        session,
        tags,
        messages,
        answer: format!("Answer of {id}."),
        tools: false,
        prompt_tokens: 12,
        answer_tokens: 6,
        id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_names_one_pool_with_odd_samples_in_it() {
        let first = pool(1, 200, 3);
        assert_eq!(first, pool(1, 200, 3));
        assert_ne!(first, pool(2, 200, 3));
        assert_eq!((first.len(), exchanges().len()), (200, EXCHANGES));
        assert!(first.iter().any(|pooled| pooled.sample.score.is_none()));
        assert!(first.iter().any(|pooled| pooled.lag > 0));
        assert!(first.iter().any(|pooled| pooled.sample.trajectory.turns.len() == 2));
        for pooled in first.iter() {
            let trajectory = &pooled.sample.trajectory;
            assert!(trajectory.alternatives.k == 3 && trajectory.alternatives.fit(trajectory.mask.len()));
            assert_eq!(trajectory.mask.len(), trajectory.logprobs.len());
            assert_eq!(trajectory.tokens.len(), trajectory.prompt_length + trajectory.mask.len());
        }
    }
}
