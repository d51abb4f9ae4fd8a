//! Changes are refused before a tree sees them, and wrong answers of the host before the guest does.

use super::*;
use crate::call::testing;

struct Probe;

impl Harness for Probe {
    fn entries(&mut self) -> Result<Vec<HarnessEntry>, HarnessError> {
        Ok(vec![HarnessEntry { kind: HarnessKind::Rules, id: "style".into(), config: "{}".into() }])
    }
    fn check(&mut self, changes: &[HarnessChange]) -> Result<(), HarnessError> {
        match changes {
            [HarnessChange::Remove(..)] => Ok(()),
            _ => Err(HarnessError::Refused("too much".into())),
        }
    }
    fn tasks(&mut self) -> Result<Vec<String>, HarnessError> {
        Ok(vec!["sum".into()])
    }
    fn run_episode(&mut self, _: HarnessTree, task: &str, seed: u32) -> Result<HarnessEpisode, HarnessError> {
        let (status, score) = match seed {
            0 => (EpisodeStatus::Scored, 0.5),
            1 => (EpisodeStatus::InfrastructureFailed, f64::NAN),
            2 => (EpisodeStatus::Scored, f64::NAN),
            _ => (EpisodeStatus::InfrastructureFailed, 0.0),
        };
        if task != "sum" {
            return Err(HarnessError::UnknownTask(task.to_owned()));
        }
        Ok(HarnessEpisode { status, score, trace: String::new(), seconds: 0.1 })
    }
}

fn state() -> CallState {
    let mut state = testing::state(0, vec![]);
    state.harness = HarnessHost { worker: Some(Box::new(Probe)) };
    state
}

fn put(id: &str, bytes: usize) -> HarnessChange {
    HarnessChange::Put(HarnessEntry { kind: HarnessKind::Skill, id: id.into(), config: "x".repeat(bytes) })
}

#[tokio::test]
async fn the_tree_is_asked_only_for_changes_that_could_be_some() {
    let mut state = state();
    assert_eq!(state.harness_entries().await.expect("entries").len(), 1);
    assert_eq!(state.harness_check(vec![HarnessChange::Remove(HarnessKind::Rules, "a".into())]).await, Ok(()));
    assert_eq!(state.harness_check(vec![put("a", 2)]).await, Err(HarnessError::Refused("too much".into())));
    for (changes, words) in [
        (vec![], "0 changes"),
        (vec![put("a", 1); 257], "257 changes"),
        (vec![put("a", 1), put("../a", 1)], "change 1: '../a'"),
        (vec![put("", 1)], "change 0"),
        (vec![put("a", CONFIG_BYTES_MAX + 1)], "bytes"),
    ] {
        let told = state.harness_check(changes.clone()).await.expect_err("refused");
        assert!(matches!(&told, HarnessError::Refused(told) if told.contains(words)), "{told}");
        // An episode on a tree without a change is one on the incumbent.
        if !changes.is_empty() {
            let on = HarnessTree::Changed(changes);
            assert!(matches!(state.run_episode(on, "sum".into(), 0).await, Err(HarnessError::Refused(_))));
        }
    }
}

#[tokio::test]
async fn an_outcome_without_a_score_is_never_a_zero() {
    for (seed, good) in [(0, true), (1, true), (2, false), (3, false)] {
        let mut state = state();
        let played = state.run_episode(HarnessTree::Incumbent, "sum".into(), seed).await;
        assert_eq!(played.is_ok(), good, "{seed}");
        assert_eq!(state.cut_off.is_none(), good, "an impossible outcome ends the call");
    }
    let mut state = state();
    let unknown = state.run_episode(HarnessTree::Candidate(0), "x".repeat(500), 0).await;
    assert!(matches!(unknown, Err(HarnessError::UnknownTask(name)) if name.len() < 100));
}

#[tokio::test]
async fn a_call_without_a_harness_and_one_too_many_are_typed_errors() {
    let mut state = testing::state(0, vec![]);
    assert!(matches!(state.harness_tasks().await, Err(HarnessError::Other(_))));
    let mut state = self::state();
    state.host_calls_max = 1;
    assert!(state.harness_tasks().await.is_ok());
    assert!(matches!(state.harness_tasks().await, Err(HarnessError::Budget(_))));
}
