//! Samples: one trajectory and its report, and how several turns become one trajectory.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Alternatives, RecordId, ReleaseId, TokenTrace};

/// A resolved unit of learning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The report that made it a sample.
    pub report: RecordId,
    /// Inference records it was assembled from, in order.
    pub records: Vec<RecordId>,
    /// Score of the report.
    pub score: Option<f64>,
    /// Metadata of the report.
    pub metadata: Map<String, Value>,
    /// The tokens.
    pub trajectory: Trajectory,
    /// Temperature that produced the log-probs; 0 is recorded as 1, see `Sampling`.
    pub temperature: f32,
    /// Release that sampled the tokens, and its position in the chain.
    pub release: ReleaseId,
    /// Position of `release` in the chain.
    pub release_sequence: u32,
    /// Equal prompts have equal keys: SHA-256 of the prompt ids.
    pub prompt_key: String,
    /// Sequence of the report record; orders the pool.
    pub sequence: i64,
}

/// Tokens of one trajectory. `tokens = prompt ‖ response`; the other columns cover the response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// All token ids.
    pub tokens: Vec<u32>,
    /// Tokens before the first sampled one.
    pub prompt_length: usize,
    /// 1 where the policy sampled, 0 on observations; length T.
    pub mask: Vec<u8>,
    /// Recorded log-probs, 0 on observations; length T.
    pub logprobs: Vec<f32>,
    /// Where each turn lies in the response, in the order of the records; empty where that is not known.
    #[serde(default)]
    pub turns: Vec<TurnSpan>,
    /// What else was likely at each token of the response; those of observations mean nothing.
    #[serde(default, skip_serializing_if = "Alternatives::is_none")]
    pub alternatives: Alternatives,
}

/// Sampled tokens of one turn, as a part of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnSpan {
    /// First token, counted from the start of the response.
    pub start: u32,
    /// Tokens; 0 for a turn that a later prompt changed, because its tokens are no longer what was sampled.
    pub length: u32,
}

/// One turn, borrowed from its record.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// Prompt ids.
    pub prompt: &'a [u32],
    /// Sampled ids.
    pub output: &'a [u32],
    /// Log-prob of each sampled id.
    pub logprobs: &'a [f32],
    /// Its alternatives, if they were recorded.
    pub alternatives: &'a Alternatives,
}

impl<'a> From<&'a TokenTrace> for Turn<'a> {
    fn from(trace: &'a TokenTrace) -> Self {
        Self {
            prompt: &trace.prompt,
            output: &trace.output,
            logprobs: &trace.logprobs,
            alternatives: &trace.alternatives,
        }
    }
}

/// Why turns do not form one trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AssemblyError {
    /// Nothing to assemble.
    #[error("no turns")]
    Empty,
    /// A turn has no sampled tokens, or not one log-prob per token.
    #[error("turn {0} has no tokens or not one log-prob per token")]
    NoTokens(usize),
    /// The prompt of a turn leaves the transcript before its last response.
    #[error("turn {0} forks from the transcript")]
    Fork(usize),
}

/// Merges turns into one trajectory (recipes.md §0).
///
/// The prompt of turn k is compared with the transcript so far: (a) the transcript is its prefix → the
/// delta is appended with mask 0; (b) they part within the last response and at most
/// `realign_threshold` tokens are replaced → replaced with mask 0; (c) else a fork.
pub fn assemble(turns: &[Turn<'_>], realign_threshold: usize) -> Result<Trajectory, AssemblyError> {
    let first = turns.first().ok_or(AssemblyError::Empty)?;
    let prompt_length = first.prompt.len();
    let mut merged = Trajectory {
        tokens: first.prompt.to_vec(),
        prompt_length,
        mask: vec![],
        logprobs: vec![],
        turns: vec![],
        alternatives: Alternatives { k: common_alternatives(turns), ..Alternatives::NONE },
    };
    let mut last_response_start = prompt_length;
    for (index, turn) in turns.iter().enumerate() {
        if turn.output.is_empty() || turn.output.len() != turn.logprobs.len() {
            return Err(AssemblyError::NoTokens(index));
        }
        let shared = merged.tokens.iter().zip(turn.prompt).take_while(|(a, b)| a == b).count();
        if shared < merged.tokens.len() {
            let replaced = merged.tokens.len() - shared;
            if index == 0 || shared < last_response_start || replaced > realign_threshold {
                return Err(AssemblyError::Fork(index));
            }
            // The whole last response stops being trainable: its tail is no longer what was sampled.
            merged.tokens.truncate(shared);
            merged.mask.truncate(shared - prompt_length);
            merged.logprobs.truncate(shared - prompt_length);
            merged.alternatives.truncate(shared - prompt_length);
            for kept in last_response_start - prompt_length..merged.mask.len() {
                if let (Some(mask), Some(logprob)) = (merged.mask.get_mut(kept), merged.logprobs.get_mut(kept)) {
                    *mask = 0;
                    *logprob = 0.0;
                }
            }
            if let Some(changed) = merged.turns.last_mut() {
                changed.length = 0;
            }
        }
        let delta = turn.prompt.get(shared..).unwrap_or_default();
        append(&mut merged, delta, None);
        last_response_start = merged.tokens.len();
        merged.turns.push(span(merged.mask.len(), turn.output.len()));
        append(&mut merged, turn.output, Some(turn));
    }
    Ok(merged)
}

fn span(start: usize, length: usize) -> TurnSpan {
    let tokens = |count| u32::try_from(count).unwrap_or(u32::MAX);
    TurnSpan { start: tokens(start), length: tokens(length) }
}

/// Adds what a turn sampled, or observations.
fn append(merged: &mut Trajectory, tokens: &[u32], turn: Option<&Turn<'_>>) {
    merged.tokens.extend_from_slice(tokens);
    merged.mask.extend(std::iter::repeat_n(u8::from(turn.is_some()), tokens.len()));
    match turn {
        Some(turn) => merged.logprobs.extend_from_slice(turn.logprobs),
        None => merged.logprobs.extend(std::iter::repeat_n(0.0, tokens.len())),
    }
    merged.alternatives.extend(tokens.len(), turn.map(|turn| turn.alternatives));
}

/// As many alternatives as every turn has.
fn common_alternatives(turns: &[Turn<'_>]) -> u32 {
    let recorded = |turn: &Turn<'_>| if turn.alternatives.fit(turn.output.len()) { turn.alternatives.k } else { 0 };
    turns.iter().map(recorded).min().unwrap_or(0)
}

/// Releases between sampling and now. `None`: sampled by a later release than the head.
pub fn lag(head_sequence: u32, sampled_sequence: u32) -> Option<u32> {
    head_sequence.checked_sub(sampled_sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(second_prompt: &[u32]) -> Result<Trajectory, AssemblyError> {
        let first =
            Turn { prompt: &[1, 2, 3], output: &[4, 5], logprobs: &[-0.1, -0.2], alternatives: &Alternatives::NONE };
        let second = Turn { prompt: second_prompt, output: &[7], logprobs: &[-0.3], alternatives: &Alternatives::NONE };
        assemble(&[first, second], 1024)
    }

    #[test]
    fn a_prefix_appends_its_delta_with_mask_zero() {
        let merged = two(&[1, 2, 3, 4, 5, 6]).expect("merged");
        assert_eq!(merged.tokens, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(merged.mask, [1, 1, 0, 1]);
        assert_eq!(merged.logprobs, [-0.1, -0.2, 0.0, -0.3]);
        assert_eq!(merged.turns, [TurnSpan { start: 0, length: 2 }, TurnSpan { start: 3, length: 1 }]);
    }

    #[test]
    fn a_change_inside_the_last_response_masks_it() {
        let merged = two(&[1, 2, 3, 4, 9, 6]).expect("realigned");
        assert_eq!(merged.tokens, [1, 2, 3, 4, 9, 6, 7]);
        assert_eq!(merged.mask, [0, 0, 0, 1]);
        assert_eq!(merged.turns, [TurnSpan { start: 0, length: 0 }, TurnSpan { start: 3, length: 1 }]);
    }

    #[test]
    fn a_change_before_the_last_response_forks() {
        assert_eq!(two(&[1, 2, 8, 4, 5, 6]), Err(AssemblyError::Fork(1)));
        assert_eq!(two(&[1, 2]), Err(AssemblyError::Fork(1)));
    }

    #[test]
    fn alternatives_follow_the_tokens_and_are_as_many_as_every_turn_has() {
        let alternatives = |k: u32, places: u32| {
            let logprobs = (0..k * places).map(|number| -(number as f32)).collect();
            Alternatives { k, ids: (10..10 + k * places).collect(), logprobs }
        };
        let (of_first, of_second) = (alternatives(3, 2), alternatives(2, 1));
        let first = Turn { prompt: &[1, 2, 3], output: &[4, 5], logprobs: &[-0.1, -0.2], alternatives: &of_first };
        let second = |prompt| Turn { prompt, output: &[7], logprobs: &[-0.3], alternatives: &of_second };
        let merged = assemble(&[first, second(&[1, 2, 3, 4, 5, 6])], 1024).expect("merged").alternatives;
        assert_eq!((merged.k, merged.ids), (2, vec![10, 11, 13, 14, 0, 0, 10, 11]));
        assert_eq!(merged.logprobs, [-0.0, -1.0, -3.0, -4.0, 0.0, 0.0, -0.0, -1.0]);
        // A place that was replaced takes its alternatives with it.
        let merged = assemble(&[first, second(&[1, 2, 3, 4, 9, 6])], 1024).expect("realigned").alternatives;
        assert_eq!(merged.ids, [10, 11, 0, 0, 0, 0, 10, 11]);
        // A turn without them leaves none.
        let bare = Turn { alternatives: &Alternatives::NONE, ..second(&[1, 2, 3, 4, 5, 6]) };
        assert_eq!(assemble(&[first, bare], 1024).expect("merged").alternatives, Alternatives::NONE);
    }

    #[test]
    fn a_turn_without_tokens_is_named() {
        let empty = Turn { prompt: &[1], output: &[], logprobs: &[], alternatives: &Alternatives::NONE };
        assert_eq!(assemble(&[empty], 0), Err(AssemblyError::NoTokens(0)));
        assert_eq!(assemble(&[], 0), Err(AssemblyError::Empty));
    }

    #[test]
    fn lag_counts_releases_and_refuses_the_future() {
        assert_eq!(lag(5, 3), Some(2));
        assert_eq!(lag(3, 5), None);
    }
}
