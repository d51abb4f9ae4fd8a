//! What came of the demo: for people as a few lines, for programs as one line of JSON.
//! Every figure is computed from courses; none is written here.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::course::Course;
use super::families::Difficulty;

/// One family's result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FamilyResult {
    /// Exact share on the held-out prompts before, in [0, 1].
    pub held_out_before: f64,
    /// The same prompts after, in [0, 1].
    pub held_out_after: f64,
    /// 95 % interval of after minus before, in [-1, 1]: Newcombe's method 10 for paired shares, see `interval`.
    pub interval: [f64; 2],
    /// Held-out prompts.
    pub held_out_tasks: usize,
    /// Wall time in seconds, measuring included.
    pub seconds: f64,
    /// Steps that ended.
    pub steps: usize,
    /// Releases that served after the base.
    pub releases: usize,
    /// Tokens sampled for training.
    pub tokens: u64,
    /// Seed.
    pub seed: u64,
}

/// The whole demo: the easy family's result at the top, all families by name below.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DemoSummary {
    /// Family that the fields at the top belong to.
    pub family: String,
    /// Its result.
    #[serde(flatten)]
    pub headline: FamilyResult,
    /// Every family.
    pub families: BTreeMap<String, FamilyResult>,
}

impl FamilyResult {
    /// None until both measurements are there.
    pub fn of(course: &Course, seed: u64) -> Option<Self> {
        let (before, after, gain) = (course.share_before()?, course.share_after()?, course.gain()?);
        Some(Self {
            held_out_before: before.value,
            held_out_after: after.value,
            interval: gain.interval,
            held_out_tasks: course.before.as_ref().map_or(0, Vec::len),
            seconds: course.elapsed.as_secs_f64(),
            steps: course.steps.len(),
            releases: course.served_releases(),
            tokens: course.tokens,
            seed,
        })
    }
}

impl DemoSummary {
    /// The headline is the first easy family's, or the first's; none without a finished course.
    pub fn of(courses: &[Course], seed: u64) -> Option<Self> {
        let headline =
            courses.iter().find(|course| course.difficulty == Difficulty::Easy).or_else(|| courses.first())?;
        let families = courses
            .iter()
            .filter_map(|course| Some((course.family.clone(), FamilyResult::of(course, seed)?)))
            .collect();
        Some(Self { family: headline.family.clone(), headline: FamilyResult::of(headline, seed)?, families })
    }

    /// One line of JSON, without the line's end.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A few lines for people.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (name, result) in &self.families {
            let [low, high] = result.interval.map(|limit| 100.0 * limit);
            let (before, after) = (100.0 * result.held_out_before, 100.0 * result.held_out_after);
            let FamilyResult { held_out_tasks, steps, releases, tokens, seconds, .. } = result;
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{name}: {before:.1} % -> {after:.1} % exact on {held_out_tasks} held-out prompts, {:+.1} points (95 % interval {low:+.1} to {high:+.1}); \
                 {steps} steps, {releases} releases, {tokens} tokens, {seconds:.0} s",
                after - before
            );
        }
        text
    }
}
