//! What a step hears from its harness: recorded while it runs, played back when it is replayed, in one list with what it
//! hears from its models. An episode is not played again in a replay: what it scored then is what the recipe heard.

use reef_sandbox::{
    EpisodeStatus, Harness, HarnessChange, HarnessEntry, HarnessEpisode, HarnessError, HarnessKind, HarnessTree,
};
use reef_store::ModelCall;
use serde::Serialize;
use serde_json::{Value, json};

use super::transcript::{Playback, Recorder, question};

/// An entry as it is kept: kind, id, fields.
type KeptEntry = (String, String, String);
/// An episode as it is kept. A score that is no number has no JSON and is kept as null.
type KeptEpisode = (String, Option<f64>, String, f64);

/// A harness that writes down what it is asked and what it answers.
pub struct Recording {
    inner: Box<dyn Harness>,
    recorder: Recorder,
}

impl Recording {
    /// Writes into `recorder`.
    pub fn new(inner: Box<dyn Harness>, recorder: Recorder) -> Self {
        Self { inner, recorder }
    }

    fn asked<T, K: Serialize>(
        &mut self,
        call: ModelCall,
        ask: impl FnOnce(&mut dyn Harness) -> Result<T, HarnessError>,
        keep: impl FnOnce(&T) -> K,
    ) -> Result<T, HarnessError> {
        self.recorder.keep(call, ask(self.inner.as_mut()), (keep, refusal_to_json))
    }
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording").field("recorder", &self.recorder).finish_non_exhaustive()
    }
}

impl Harness for Recording {
    fn entries(&mut self) -> Result<Vec<HarnessEntry>, HarnessError> {
        let keep = |entries: &Vec<HarnessEntry>| entries.iter().map(kept_entry).collect::<Vec<_>>();
        self.asked(entries_asked(), |harness| harness.entries(), keep)
    }

    fn check(&mut self, changes: &[HarnessChange]) -> Result<(), HarnessError> {
        self.asked(check_asked(changes), |harness| harness.check(changes), |()| ())
    }

    fn tasks(&mut self) -> Result<Vec<String>, HarnessError> {
        self.asked(tasks_asked(), |harness| harness.tasks(), Clone::clone)
    }

    fn run_episode(&mut self, on: HarnessTree, task: &str, seed: u32) -> Result<HarnessEpisode, HarnessError> {
        let call = episode_asked(&on, task, seed);
        self.asked(call, |harness| harness.run_episode(on, task, seed), kept_episode)
    }
}

impl Harness for Playback {
    fn entries(&mut self) -> Result<Vec<HarnessEntry>, HarnessError> {
        let kept: Vec<KeptEntry> = heard(self, &entries_asked())?;
        let entry = |(kind, id, config): KeptEntry| {
            let kind = HarnessKind::parse(&kind)?;
            Some(HarnessEntry { kind, id, config })
        };
        kept.into_iter()
            .map(entry)
            .collect::<Option<_>>()
            .ok_or_else(|| HarnessError::Other("an entry is damaged".into()))
    }

    fn check(&mut self, changes: &[HarnessChange]) -> Result<(), HarnessError> {
        heard(self, &check_asked(changes))
    }

    fn tasks(&mut self) -> Result<Vec<String>, HarnessError> {
        heard(self, &tasks_asked())
    }

    fn run_episode(&mut self, on: HarnessTree, task: &str, seed: u32) -> Result<HarnessEpisode, HarnessError> {
        let (status, score, trace, seconds): KeptEpisode = heard(self, &episode_asked(&on, task, seed))?;
        let status = STATUSES.into_iter().find(|(_, name)| *name == status).map(|(status, _)| status);
        let status = status.ok_or_else(|| HarnessError::Other("an outcome is damaged".to_owned()))?;
        Ok(HarnessEpisode { status, score: score.unwrap_or(f64::NAN), trace, seconds })
    }
}

fn heard<T: serde::de::DeserializeOwned>(playback: &Playback, asked: &ModelCall) -> Result<T, HarnessError> {
    match playback.hear(asked) {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(refusal)) => Err(refusal_from_json(&refusal)),
        Err(diverged) => Err(HarnessError::Other(diverged)),
    }
}

const STATUSES: [(EpisodeStatus, &str); 4] = [
    (EpisodeStatus::Scored, "scored"),
    (EpisodeStatus::AgentFailed, "agent-failed"),
    (EpisodeStatus::VerifierFailed, "verifier-failed"),
    (EpisodeStatus::InfrastructureFailed, "infrastructure-failed"),
];

fn kept_entry(entry: &HarnessEntry) -> KeptEntry {
    (entry.kind.as_str().to_owned(), entry.id.clone(), entry.config.clone())
}

fn kept_episode(episode: &HarnessEpisode) -> KeptEpisode {
    let name = STATUSES.into_iter().find(|(status, _)| *status == episode.status).map_or("", |(_, name)| name);
    let score = Some(episode.score).filter(|score| score.is_finite());
    (name.to_owned(), score, episode.trace.clone(), episode.seconds)
}

fn entries_asked() -> ModelCall {
    question("harness-entries", "", Value::Null)
}

fn tasks_asked() -> ModelCall {
    question("harness-tasks", "", Value::Null)
}

fn check_asked(changes: &[HarnessChange]) -> ModelCall {
    question("harness-check", "", changes_to_json(changes))
}

fn episode_asked(on: &HarnessTree, task: &str, seed: u32) -> ModelCall {
    let tree = match on {
        HarnessTree::Incumbent => json!("incumbent"),
        HarnessTree::Candidate(candidate) => json!(candidate),
        HarnessTree::Changed(changes) => changes_to_json(changes),
    };
    question("run-episode", task, json!([tree, seed]))
}

fn changes_to_json(changes: &[HarnessChange]) -> Value {
    let change = |change: &HarnessChange| match change {
        HarnessChange::Put(entry) => json!(["put", entry.kind.as_str(), entry.id, entry.config]),
        HarnessChange::Remove(kind, id) => json!(["remove", kind.as_str(), id]),
    };
    changes.iter().map(change).collect()
}

fn refusal_to_json(error: &HarnessError) -> Value {
    match error {
        HarnessError::UnknownEntry { kind, id } => json!(["unknown-entry", id, kind.as_str()]),
        HarnessError::UnknownTask(told) => json!(["unknown-task", told]),
        HarnessError::Refused(told) => json!(["refused", told]),
        HarnessError::Budget(told) => json!(["budget", told]),
        HarnessError::Cancelled => json!(["cancelled", ""]),
        HarnessError::Other(told) => json!(["other", told]),
    }
}

fn refusal_from_json(value: &Value) -> HarnessError {
    let part = |at: usize| value.get(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    match (part(0).as_str(), HarnessKind::parse(&part(2))) {
        ("unknown-entry", Some(kind)) => HarnessError::UnknownEntry { kind, id: part(1) },
        ("unknown-task", _) => HarnessError::UnknownTask(part(1)),
        ("refused", _) => HarnessError::Refused(part(1)),
        ("budget", _) => HarnessError::Budget(part(1)),
        ("cancelled", _) => HarnessError::Cancelled,
        _ => HarnessError::Other(part(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl Harness for Fixed {
        fn entries(&mut self) -> Result<Vec<HarnessEntry>, HarnessError> {
            Ok(vec![HarnessEntry { kind: HarnessKind::AgentCommand, id: "a".into(), config: "{}".into() }])
        }
        fn check(&mut self, changes: &[HarnessChange]) -> Result<(), HarnessError> {
            match changes {
                [HarnessChange::Put(_)] => Ok(()),
                _ => Err(HarnessError::UnknownEntry { kind: HarnessKind::Skill, id: "x".into() }),
            }
        }
        fn tasks(&mut self) -> Result<Vec<String>, HarnessError> {
            Ok(vec!["sum".into()])
        }
        fn run_episode(&mut self, on: HarnessTree, _: &str, seed: u32) -> Result<HarnessEpisode, HarnessError> {
            let (status, score) = match on {
                HarnessTree::Incumbent => (EpisodeStatus::VerifierFailed, f64::NAN),
                _ => (EpisodeStatus::Scored, 1.0 / f64::from(seed)),
            };
            Ok(HarnessEpisode { status, score, trace: "did".into(), seconds: 0.25 })
        }
    }

    fn put() -> HarnessChange {
        HarnessChange::Put(HarnessEntry { kind: HarnessKind::Rules, id: "r".into(), config: "{}".into() })
    }

    /// The questions of a step, in order.
    fn ask(harness: &mut dyn Harness) -> Vec<String> {
        let told = |answer: &dyn std::fmt::Debug| format!("{answer:?}");
        vec![
            told(&harness.entries()),
            told(&harness.check(&[put()])),
            told(&harness.check(&[HarnessChange::Remove(HarnessKind::Skill, "x".into())])),
            told(&harness.tasks()),
            told(&harness.run_episode(HarnessTree::Candidate(0), "sum", 3)),
            told(&harness.run_episode(HarnessTree::Incumbent, "sum", 3)),
            told(&harness.run_episode(HarnessTree::Changed(vec![put()]), "sum", 7)),
        ]
    }

    #[test]
    fn the_same_questions_get_the_same_answers_and_another_ends_the_hearing() {
        let recorder = Recorder::default();
        let first = ask(&mut Recording::new(Box::new(Fixed), recorder.clone()));
        assert_eq!(first, ask(&mut Fixed), "recording changes nothing");
        let (calls, complete) = recorder.heard();
        assert!(complete);
        let mut playback = Playback::new(calls.clone());
        assert_eq!(ask(&mut playback), first);
        assert_eq!(playback.divergence(), None);
        let mut playback = Playback::new(calls);
        playback.entries().expect("the first question");
        let told = Harness::run_episode(&mut playback, HarnessTree::Incumbent, "other", 1).expect_err("not asked");
        assert!(told.to_string().contains("was harness-check"), "{told}");
    }
}
