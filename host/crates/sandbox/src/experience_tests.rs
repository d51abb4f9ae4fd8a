//! Columns of samples and of what was derived from them.

use std::sync::Arc;

use reef_core::RecordId;

use super::*;
use crate::call::testing;

#[test]
fn columns_follow_the_order_of_the_handles() {
    let mut state = testing::state(4, vec![0, 2, 3]);
    assert_eq!(state.scores(&[3, 0]).expect("scores"), [3.0, 0.0]);
    assert_eq!(state.response_lengths(&[2]).expect("lengths"), [3]);
    assert_eq!(state.action_counts(&[2, 0]).expect("counts"), [2, 1]);
    assert_eq!(state.releases(&[2]).expect("releases"), ["a".repeat(40)]);
    assert_eq!(state.tokens(2).expect("tokens"), [10, 11, 12]);
    assert_eq!(state.prompt_tokens(2).expect("tokens"), [1, 2]);
    assert_eq!(state.mask(2).expect("mask"), [1, 0, 1]);
    assert_eq!(state.mean_logprobs(&[2]).expect("means"), [-0.5]);
    assert_eq!(state.report_field(2, "task").expect("field"), Some("\"t2\"".into()));
}

#[test]
fn forged_handles_and_oversized_requests_are_errors() {
    let mut state = testing::state(4, vec![0, 2]);
    assert_eq!(state.scores(&[0, 1]), Err(ExperienceError::UnknownSample(1)));
    assert_eq!(state.mask(u32::MAX), Err(ExperienceError::UnknownSample(u32::MAX)));
    assert!(matches!(state.scores(&[0, 0, 0]), Err(ExperienceError::Budget(_))));
}

#[test]
fn calls_beyond_the_budget_are_errors_and_a_flood_ends_the_call() {
    let mut state = testing::state(1, vec![0]);
    state.host_calls_max = 2;
    assert!(state.lags(&[0]).is_ok() && state.lags(&[0]).is_ok());
    assert!(matches!(state.lags(&[0]), Err(ExperienceError::Budget(_))));
    assert!(state.lags(&[0]).is_err() && state.cut_off.is_none());
    assert!(state.lags(&[0]).is_err());
    assert_eq!(state.cut_off.expect("cut off").kind, crate::FaultKind::HostLimit(Capability::Experience));
}

#[test]
fn nothing_answers_in_a_sealed_call() {
    let mut state = testing::state(1, vec![0]);
    state.sealed = Some("migrate");
    assert_eq!(state.lags(&[0]), Err(ExperienceError::Other("no capability answers during migrate".into())));
}

#[test]
fn derived_samples_have_tokens_and_no_records() {
    let mut state = testing::state(2, vec![1]);
    state.training.derive_for_test(7, 1, Some(vec![5]), Some(vec![8, 9, 9]));
    state.training.derive_for_test(8, 1, Some(vec![5]), None);
    assert_eq!(state.prompt_lengths(&[7, 1]).expect("lengths"), [1, 2]);
    assert_eq!(state.response_lengths(&[7, 8, 1]).expect("lengths"), [3, 2, 2]);
    assert_eq!((state.tokens(7), state.mask(7)), (Ok(vec![8, 9, 9]), Ok(vec![1, 1, 1])));
    assert_eq!((state.logprobs(7), state.logprobs(8)), (Ok(vec![0.0; 3]), Ok(vec![-0.5, 0.0])));
    // A new prompt keeps what was recorded of the response, a new response has nothing recorded.
    let alternatives = Alternatives { k: 1, ids: vec![8, 9], logprobs: vec![-0.5, -1.0] };
    let mut samples = (*state.samples).clone();
    samples[1].sample.trajectory.alternatives = alternatives.clone();
    state.samples = Arc::new(samples);
    assert_eq!((state.top_k(1), state.top_k(8)), (Ok(alternatives.clone()), Ok(alternatives)));
    assert!(matches!(state.top_k(7), Err(ExperienceError::Absent(_))));
    assert!(matches!(state.scores(&[7]), Err(ExperienceError::Absent(_))));
    assert!(matches!(state.turns(7), Err(ExperienceError::Absent(_))));
    assert_eq!(state.scores(&[9]), Err(ExperienceError::UnknownSample(9)));
}

#[test]
fn turns_need_a_span_for_every_record() {
    let mut state = testing::state(1, vec![0]);
    assert!(matches!(state.turns(0), Err(ExperienceError::Absent(_))));
    assert!(matches!(state.top_k(0), Err(ExperienceError::Absent(_))));
    let mut samples = (*state.samples).clone();
    samples[0].sample.trajectory.turns = vec![reef_core::TurnSpan { start: 0, length: 1 }];
    state.samples = Arc::new(samples);
    let turn = TurnView { id: "record-0".into(), release: "a".repeat(40), start: 0, length: 1 };
    assert_eq!(state.turns(0), Ok(vec![turn]));
}

struct Kept;

impl Records for Kept {
    fn record(&self, id: &RecordId) -> Result<Option<RecordView>, String> {
        match id.as_str() {
            "record-0" => Ok(None),
            "record-1" => Err("the disk is gone".into()),
            _ => Ok(Some(RecordView {
                messages: vec![Message { role: "user".into(), content: id.to_string() }],
                tags: vec![("team".into(), "a".into())],
                session: Some("s".into()),
                answer: "blue".into(),
            })),
        }
    }
}

#[tokio::test]
async fn records_are_read_by_the_ids_of_the_sample() {
    let mut state = testing::state(3, vec![0, 1, 2]);
    assert!(matches!(state.messages(2).await, Err(ExperienceError::Other(_))), "no records in this call");
    state.records = Some(Arc::new(Kept));
    assert_eq!(state.messages(2).await.expect("kept")[0].content, "record-2");
    assert_eq!(state.tags(2).await.expect("kept"), [("team".to_owned(), "a".to_owned())]);
    assert_eq!(state.session(2).await.expect("kept").as_deref(), Some("s"));
    assert!(matches!(state.session(0).await, Err(ExperienceError::Absent(_))));
    assert_eq!(state.session(1).await, Err(ExperienceError::Other("the disk is gone".into())));
    assert!(matches!(state.response_text(2).await, Err(ExperienceError::Other(_))), "no tokenizer in this call");
}

#[tokio::test]
async fn a_sample_without_tokens_is_read_from_its_last_record() {
    let mut state = testing::state(3, vec![2]);
    let mut samples = state.samples.to_vec();
    let trajectory = &mut samples[2].sample.trajectory;
    (trajectory.tokens, trajectory.prompt_length) = (Vec::new(), 0);
    (trajectory.mask, trajectory.logprobs) = (Vec::new(), Vec::new());
    samples[2].sample.records = vec![RecordId::parse("first").expect("an id"), RecordId::parse("last").expect("an id")];
    state.samples = Arc::new(samples);
    state.records = Some(Arc::new(Kept));
    assert_eq!(state.response_text(2).await.as_deref(), Ok("blue"));
    assert_eq!(state.messages(2).await.expect("kept")[0].content, "last", "it holds the whole conversation");
}
