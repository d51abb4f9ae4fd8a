//! What is known about one family's lesson at any moment, ready to be shown.
//! The lesson fills it; progress, page and summary read it. It holds facts only: counts of answers and
//! what the server listed.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use reef_core::{ReleaseId, Step, StepOutcome};

use super::families::{Difficulty, Family, Graded};
use super::interval::{Gain, Share, paired_gain, share};
use super::scenario::{ListedRelease, metric};

/// Exact share of a batch from which on a family counts as learned.
const LEARNED_SHARE: f64 = 0.97;
/// Batches in a row that must reach it.
const LEARNED_BATCHES: usize = 2;

/// An answer to a held-out prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// What the model said.
    pub answer: String,
    /// It is the wanted answer.
    pub exact: bool,
}

/// One held-out prompt with its answers.
#[derive(Debug, Clone)]
pub struct Example {
    /// Prompt.
    pub prompt: String,
    /// Wanted answer.
    pub wanted: String,
    /// Answer of the base model.
    pub before: String,
    /// Answer of the last release, once measured.
    pub after: Option<String>,
}

/// A training answer that was scored.
#[derive(Debug, Clone)]
pub struct Scored {
    /// Id of the report, by which steps name it.
    pub report: String,
    /// Its grade.
    pub graded: Graded,
    /// The release that answered.
    pub release: String,
    /// Tokens of the answer.
    pub tokens: u64,
}

/// A step that ended, with what the client knows of its batch.
#[derive(Debug, Clone)]
pub struct StepView {
    /// As the server lists it.
    pub step: Step,
    /// Mean reward of its batch.
    pub reward: Option<f64>,
    /// Exact share of its batch.
    pub exact: Option<f64>,
    /// Mean number of releases between an answer and the step's parent.
    pub lag: Option<f64>,
}

impl StepView {
    /// Seconds from its beginning to its end; from a server that does not say, those spent in its calls.
    pub fn seconds(&self) -> f64 {
        metric(&self.step.metrics, &["step_seconds"]).unwrap_or_else(|| self.seconds_of_calls())
    }

    fn seconds_of_calls(&self) -> f64 {
        self.step.calls.iter().map(|call| (call.guest_us + call.host_us) as f64).sum::<f64>() / 1e6
    }

    /// Fuel of its calls.
    pub fn fuel(&self) -> u64 {
        self.step.calls.iter().map(|call| call.fuel).sum()
    }
}

/// One family's lesson.
#[derive(Debug, Clone)]
pub struct Course {
    /// Name of the family.
    pub family: String,
    /// How hard it is.
    pub difficulty: Difficulty,
    /// The scenario that learns it.
    pub scenario: String,
    /// System message.
    pub system: String,
    /// Steps at most.
    pub steps_max: u32,
    /// Exact answers to the held-out prompts, before.
    pub before: Option<Vec<bool>>,
    /// The same prompts, after.
    pub after: Option<Vec<bool>>,
    /// A few of those prompts.
    pub examples: Vec<Example>,
    /// Steps that ended, oldest first.
    pub steps: Vec<StepView>,
    /// Releases, oldest first.
    pub releases: Vec<ListedRelease>,
    /// Position of the head.
    pub head_sequence: u32,
    /// Tokens sampled for training.
    pub tokens: u64,
    /// Wall time so far.
    pub elapsed: Duration,
    batch_size: usize,
    scored: HashMap<String, Scored>,
    recent: VecDeque<Graded>,
}

impl Course {
    /// Before anything happened.
    pub fn new(family: &Family, seed: u64) -> Self {
        Self {
            family: family.name.to_owned(),
            difficulty: family.difficulty,
            scenario: format!("demo-{}-{seed}", family.name),
            system: family.system.to_owned(),
            steps_max: family.steps_max,
            before: None,
            after: None,
            examples: Vec::new(),
            steps: Vec::new(),
            releases: Vec::new(),
            head_sequence: 0,
            tokens: 0,
            elapsed: Duration::ZERO,
            batch_size: usize::try_from(family.batch_size).unwrap_or(usize::MAX).max(1),
            scored: HashMap::new(),
            recent: VecDeque::new(),
        }
    }

    /// Takes in a scored answer.
    pub fn score(&mut self, scored: Scored) {
        self.tokens += scored.tokens;
        self.recent.push_back(scored.graded);
        if self.recent.len() > self.batch_size * LEARNED_BATCHES {
            self.recent.pop_front();
        }
        self.scored.insert(scored.report.clone(), scored);
    }

    /// Takes in what the server lists. True if a step has ended since.
    pub fn learn_history(&mut self, steps: Vec<Step>, releases: Vec<ListedRelease>) -> bool {
        let known = self.steps.len();
        self.releases = releases;
        let ended =
            steps.into_iter().filter(|step| !matches!(step.outcome, StepOutcome::Running | StepOutcome::Failed { .. }));
        self.steps = ended.map(|step| self.view(step)).collect();
        self.steps.len() > known
    }

    fn view(&self, step: Step) -> StepView {
        let batch: Vec<&Scored> = step.batch.iter().filter_map(|id| self.scored.get(id.as_str())).collect();
        let mean = |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
        let parent = self.sequence(step.parent.as_str());
        let lag = |scored: &&Scored| Some(f64::from(parent?.checked_sub(self.sequence(&scored.release)?)?));
        StepView {
            reward: mean(batch.iter().map(|scored| scored.graded.reward).collect()),
            exact: mean(batch.iter().map(|scored| f64::from(u8::from(scored.graded.exact))).collect()),
            lag: mean(batch.iter().filter_map(lag).collect()),
            step,
        }
    }

    fn sequence(&self, release: &str) -> Option<u32> {
        self.releases
            .iter()
            .find(|listed| listed.release.release_id.as_str() == release)
            .map(|listed| listed.release.manifest.sequence)
    }

    /// The release of this id, if it is listed.
    pub fn release(&self, id: &ReleaseId) -> Option<&ListedRelease> {
        self.releases.iter().find(|listed| listed.release.release_id == *id)
    }

    /// Releases that served after the base; candidates that wait or were refused do not count.
    pub fn served_releases(&self) -> usize {
        let served = |listed: &&ListedRelease| !matches!(listed.status.as_deref(), Some("held" | "rejected"));
        self.releases.iter().filter(served).filter(|listed| listed.release.manifest.sequence > 0).count()
    }

    /// Answers that ended steps have consumed.
    pub fn consumed(&self) -> usize {
        self.steps.iter().map(|view| view.step.batch.len()).sum()
    }

    /// Mean reward and exact share of the latest batch of answers; none before the first answer.
    pub fn moving(&self) -> Option<(f64, f64)> {
        let latest = self.recent.iter().rev().take(self.batch_size);
        let count = latest.clone().count();
        let sum = latest.fold((0.0, 0.0), |(reward, exact), graded| {
            (reward + graded.reward, exact + f64::from(u8::from(graded.exact)))
        });
        (count > 0).then(|| (sum.0 / count as f64, sum.1 / count as f64))
    }

    /// Every one of the latest batches of training answers was exact enough, and something was trained.
    pub fn learned(&self) -> bool {
        let window = self.batch_size * LEARNED_BATCHES;
        let answers: Vec<bool> = self.recent.iter().map(|graded| graded.exact).collect();
        !self.steps.is_empty()
            && answers.len() >= window
            && answers.chunks(self.batch_size).all(|batch| share(batch).value >= LEARNED_SHARE)
    }

    /// Held-out share before.
    pub fn share_before(&self) -> Option<Share> {
        self.before.as_deref().map(share)
    }

    /// Held-out share after.
    pub fn share_after(&self) -> Option<Share> {
        self.after.as_deref().map(share)
    }

    /// What was gained on held-out prompts.
    pub fn gain(&self) -> Option<Gain> {
        Some(paired_gain(self.before.as_deref()?, self.after.as_deref()?))
    }
}
