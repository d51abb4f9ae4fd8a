//! Rollouts: what a scenario does with a release beside its head, and when that ends.
//! A pin keeps the head, a canary answers a share of the traffic with a candidate, a shadow lets the candidate answer
//! unseen. While one runs the head stays; each is kept with its end and its figures. Arms are drawn by hashing, so that
//! the same session or tag value always meets the same release.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{ALPHA_MAX, ALPHA_MIN, Measurement, PAIRS_MAX, Progress, ReleaseId, Sequential, SequentialPlan, Tag};

/// What is done with the release.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum RolloutPlan {
    /// It is the head and stays it: candidates that pass their gate are held.
    Pin,
    /// It answers a share of the traffic until the scores decide.
    Canary(CanaryPlan),
    /// It answers a share of the requests a second time, unseen and never trained on.
    Shadow {
        /// Percent of the requests, over 0 and at most 100.
        percent: f64,
    },
}

/// Who meets the candidate, and what decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CanaryPlan {
    /// Percent of the units, over 0 and under 100.
    pub percent: f64,
    /// What makes a unit; a request that has none of it is a unit of its own.
    pub sticky: Sticky,
    /// Chance of promoting a candidate that is not better than the margin allows, at most; and of rolling back one that
    /// is.
    pub alpha: f64,
    /// Score points, in [0, 1), by which the candidate may be worse; 0 = it must be better.
    pub margin: f64,
    /// Pairs before which nothing is promoted.
    pub pairs_min: u32,
    /// Pairs after which it ends undecided.
    pub pairs_max: u32,
    /// The scores that count as 0 and as 1; what lies outside is cut off.
    pub scores: (f64, f64),
}

/// What makes requests one unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sticky {
    /// The session.
    Session,
    /// The value of a tag.
    Tag(Tag),
}

/// One of the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// The release of the rollout.
    Candidate,
    /// The head.
    Incumbent,
}

/// A rollout, running or ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// Order of the rollouts of a scenario, from 1.
    pub number: u32,
    /// The release.
    pub release: ReleaseId,
    /// What is done with it.
    pub plan: RolloutPlan,
    /// Milliseconds since the Unix epoch.
    pub started_at_ms: i64,
    /// How it ended; none = it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<RolloutEnd>,
}

/// How a rollout ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutEnd {
    /// Milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// What became of the release.
    pub outcome: RolloutOutcome,
    /// Why, in words.
    pub reason: String,
    /// What was measured by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figures: Option<RolloutFigures>,
}

/// What became of the release of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RolloutOutcome {
    /// A person ended it.
    Stopped,
    /// Its content is the head.
    Promoted,
    /// It was shown to be worse.
    RolledBack,
    /// Its pairs were used up.
    Undecided,
}

/// The scores of both arms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RolloutFigures {
    /// The candidate's.
    pub candidate: ArmFigures,
    /// The incumbent's.
    pub incumbent: ArmFigures,
    /// Pairs that were compared.
    pub pairs: u32,
    /// p of "the candidate is not better than the margin allows"; valid whenever one looks.
    pub p: f64,
}

/// The first score of a unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArmScore {
    /// When its report came, in the order of the scenario's records.
    pub at: i64,
    /// The score.
    pub score: f64,
}

/// The scores of one arm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ArmFigures {
    /// Units with a score.
    pub units: u32,
    /// Mean of their first scores, between 0 and 1.
    pub mean: Option<f64>,
}

/// What the scores say so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CanaryVerdict {
    /// Nothing yet.
    Continue,
    /// The candidate is better than the margin allows.
    Promote,
    /// It is shown to be worse.
    RollBack,
    /// The pairs are used up.
    Undecided,
}

impl RolloutPlan {
    /// Refuses what can decide nothing; names the field.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Pin => Ok(()),
            Self::Shadow { percent } => check_percent(*percent, *percent <= 100.0),
            Self::Canary(plan) => plan.check(),
        }
    }

    /// Does the release answer a part of the traffic, seen or not?
    pub fn answers(&self) -> bool {
        !matches!(self, Self::Pin)
    }
}

impl std::fmt::Display for RolloutPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pin => "pin",
            Self::Canary(_) => "canary",
            Self::Shadow { .. } => "shadow",
        })
    }
}

fn check_percent(percent: f64, fits: bool) -> Result<(), String> {
    if percent > 0.0 && fits {
        return Ok(());
    }
    Err(format!("percent is {percent}; use a number over 0 and under 100 (a shadow takes 100 too)"))
}

impl CanaryPlan {
    /// A canary of a share of the sessions, with the defaults.
    pub fn of_sessions(percent: f64) -> Self {
        Self {
            percent,
            sticky: Sticky::Session,
            alpha: 0.05,
            margin: 0.0,
            pairs_min: 20,
            pairs_max: 1000,
            scores: (0.0, 1.0),
        }
    }

    fn check(&self) -> Result<(), String> {
        check_percent(self.percent, self.percent < 100.0)?;
        if !(ALPHA_MIN..=ALPHA_MAX).contains(&self.alpha) {
            return Err(format!("alpha is {}; use a number from {ALPHA_MIN} to {ALPHA_MAX}", self.alpha));
        }
        if !(0.0..1.0).contains(&self.margin) {
            return Err(format!("margin is {}; use a number from 0 to under 1", self.margin));
        }
        if self.pairs_min > self.pairs_max || !(1..=PAIRS_MAX).contains(&self.pairs_max) {
            let (min, max) = (self.pairs_min, self.pairs_max);
            return Err(format!("pairs_min is {min} and pairs_max {max}; use at most {PAIRS_MAX}, in this order"));
        }
        let (low, high) = self.scores;
        if !(low.is_finite() && high.is_finite() && low < high) {
            return Err(format!("scores are [{low}, {high}]; use two numbers, the lower first"));
        }
        Ok(())
    }

    /// What the first scores of the units say, each arm in the order in which its reports came. Units were drawn at
    /// random, so that two which came beside each other are a fair comparison whatever the traffic does in the long run,
    /// and the bets may be looked at after each pair.
    pub fn decide(&self, candidate: &[ArmScore], incumbent: &[ArmScore]) -> (CanaryVerdict, RolloutFigures) {
        let scaled = |scores: &[ArmScore]| scores.iter().map(|one| self.scaled(one.score)).collect::<Vec<f64>>();
        let (new, old) = (scaled(candidate), scaled(incumbent));
        let figures = |pairs, p| RolloutFigures { candidate: arm(&new), incumbent: arm(&old), pairs, p };
        let plan = SequentialPlan {
            threshold: -self.margin,
            alpha: self.alpha,
            pairs_min: self.pairs_min,
            pairs_max: self.pairs_max,
        };
        // A plan that was checked always begins.
        let Ok(mut run) = Sequential::new(plan) else { return (CanaryVerdict::Undecided, figures(0, 1.0)) };
        let mut progress = Progress::Continue;
        for (new, old) in neighbours(candidate, incumbent) {
            let (new, old) = (self.scaled(new.score), self.scaled(old.score));
            progress = run.push(&Measurement::Scored(new), &Measurement::Scored(old));
        }
        let verdict = match progress {
            Progress::Continue => CanaryVerdict::Continue,
            Progress::Accept => CanaryVerdict::Promote,
            Progress::Reject if run.is_under() => CanaryVerdict::RollBack,
            Progress::Reject => CanaryVerdict::Undecided,
        };
        (verdict, figures(run.pairs().0, run.p()))
    }

    /// A score between 0 and 1.
    fn scaled(&self, score: f64) -> f64 {
        let (low, high) = self.scores;
        ((score - low) / (high - low)).clamp(0.0, 1.0)
    }
}

/// Pairs of scores that came beside each other: each takes the latest of the other arm that came before it and is in no
/// pair. Of an arm that gets more traffic, those between two pairs are left out.
fn neighbours<'s>(candidate: &'s [ArmScore], incumbent: &'s [ArmScore]) -> Vec<(&'s ArmScore, &'s ArmScore)> {
    let of = |arm: Arm| move |score: &'s ArmScore| (score.at, arm, score);
    let mut came: Vec<(i64, Arm, &ArmScore)> =
        candidate.iter().map(of(Arm::Candidate)).chain(incumbent.iter().map(of(Arm::Incumbent))).collect();
    came.sort_by_key(|(at, ..)| *at);
    let mut pairs = Vec::new();
    let mut waits: Option<(Arm, &ArmScore)> = None;
    for (_, arm, score) in came {
        waits = match waits {
            Some((Arm::Incumbent, old)) if arm == Arm::Candidate => {
                pairs.push((score, old));
                None
            }
            Some((Arm::Candidate, new)) if arm == Arm::Incumbent => {
                pairs.push((new, score));
                None
            }
            _ => Some((arm, score)),
        };
    }
    pairs
}

fn arm(scores: &[f64]) -> ArmFigures {
    let units = u32::try_from(scores.len()).unwrap_or(u32::MAX);
    ArmFigures { units, mean: (units > 0).then(|| scores.iter().sum::<f64>() / f64::from(units)) }
}

impl Rollout {
    /// The arm of a unit: the same for the same unit of the same rollout, and independent of other rollouts.
    pub fn arm(&self, unit: &str) -> Arm {
        let percent = match &self.plan {
            RolloutPlan::Pin => return Arm::Incumbent,
            RolloutPlan::Canary(plan) => plan.percent,
            RolloutPlan::Shadow { percent } => *percent,
        };
        if draw(&format!("{} {} {unit}", self.number, self.release)) * 100.0 < percent {
            Arm::Candidate
        } else {
            Arm::Incumbent
        }
    }
}

/// A number in [0, 1) that the text decides.
fn draw(text: &str) -> f64 {
    let digest = Sha256::digest(text.as_bytes());
    let bits = digest.iter().take(6).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    // 48 bits fit a double exactly.
    bits as f64 / (1_u64 << 48) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout(plan: RolloutPlan) -> Rollout {
        let release = ReleaseId::parse("a".repeat(40)).expect("an id");
        Rollout { number: 3, release, plan, started_at_ms: 0, end: None }
    }

    #[test]
    fn a_unit_keeps_its_arm_and_the_share_is_kept() {
        let canary = rollout(RolloutPlan::Canary(CanaryPlan::of_sessions(10.0)));
        let arms: Vec<Arm> = (0..20_000).map(|unit| canary.arm(&format!("session-{unit}"))).collect();
        let candidates = arms.iter().filter(|arm| **arm == Arm::Candidate).count();
        // Six standard deviations.
        assert!((1_745..=2_255).contains(&candidates), "{candidates}");
        assert!((0..20_000).all(|unit| canary.arm(&format!("session-{unit}")) == arms[unit]));
        let next = Rollout { number: 4, ..canary };
        let same = (0..20_000).filter(|unit| next.arm(&format!("session-{unit}")) == arms[*unit]).count();
        assert!(same < 17_000, "another rollout draws anew: {same}");
        assert_eq!(rollout(RolloutPlan::Pin).arm("x"), Arm::Incumbent);
        assert_eq!(rollout(RolloutPlan::Shadow { percent: 100.0 }).arm("x"), Arm::Candidate);
    }

    /// Scores of two arms that take turns, as far as they go.
    fn in_turns(new: &[f64], old: &[f64]) -> [Vec<ArmScore>; 2] {
        let of = |scores: &[f64], first: i64| {
            let at = (0..).map(|turn| 2 * turn + first);
            at.zip(scores).map(|(at, score)| ArmScore { at, score: *score }).collect()
        };
        [of(new, 0), of(old, 1)]
    }

    fn decide(plan: &CanaryPlan, new: &[f64], old: &[f64]) -> (CanaryVerdict, RolloutFigures) {
        let [new, old] = in_turns(new, old);
        plan.decide(&new, &old)
    }

    #[test]
    fn scores_decide_or_do_not() {
        let plan = CanaryPlan::of_sessions(50.0);
        let (verdict, figures) = decide(&plan, &[1.0; 30], &[0.0; 40]);
        assert_eq!((verdict, figures.candidate.units, figures.incumbent.units), (CanaryVerdict::Promote, 30, 40));
        assert!(figures.p <= 0.05 && figures.candidate.mean == Some(1.0) && figures.pairs >= plan.pairs_min);
        assert_eq!(decide(&plan, &[1.0; 10], &[0.0; 10]).0, CanaryVerdict::Continue, "fewer than pairs_min");
        assert_eq!(decide(&plan, &[0.0; 30], &[1.0; 30]).0, CanaryVerdict::RollBack);
        assert_eq!(decide(&plan, &[], &[1.0; 30]).0, CanaryVerdict::Continue);
        let short = CanaryPlan { pairs_max: 25, ..plan.clone() };
        assert_eq!(decide(&short, &[1.0; 25], &[1.0; 25]).0, CanaryVerdict::Undecided);
        let wide = CanaryPlan { scores: (-1.0, 1.0), margin: 0.2, pairs_max: 10_000, ..plan };
        let (verdict, figures) = decide(&wide, &[3.0; 200], &[1.0; 200]);
        assert_eq!((verdict, figures.candidate.mean), (CanaryVerdict::Promote, Some(1.0)), "not worse is enough");
    }

    #[test]
    fn chance_rarely_decides_between_equals() {
        // Two arms with the same coin, looked at after each pair: at most α of the runs may promote.
        let plan = CanaryPlan { pairs_max: 300, ..CanaryPlan::of_sessions(50.0) };
        let coin = |run: u32, arm: &str, at: u32| f64::from(u8::from(draw(&format!("{run} {arm} {at}")) < 0.5));
        let promoted = (0..400).filter(|run| {
            let side = |arm: &str| (0..300).map(|at| coin(*run, arm, at)).collect::<Vec<f64>>();
            decide(&plan, &side("new"), &side("old")).0 == CanaryVerdict::Promote
        });
        // 20 are allowed on average; 4.6 standard deviations above.
        assert!(promoted.count() <= 40);
    }

    #[test]
    fn traffic_that_changes_does_not_decide_for_a_small_share() {
        // Both arms alike, more and more of their answers right; a tenth of 3,000 units gets the candidate.
        let plan = CanaryPlan::of_sessions(10.0);
        let promoted = (0..400).filter(|run| {
            let (mut new, mut old) = (Vec::new(), Vec::new());
            for at in 0..3_000_i64 {
                let right = draw(&format!("{run} right {at}")) < 0.4 + 0.4 * at as f64 / 3_000.0;
                let arm = if draw(&format!("{run} arm {at}")) < 0.1 { &mut new } else { &mut old };
                arm.push(ArmScore { at, score: f64::from(u8::from(right)) });
            }
            plan.decide(&new, &old).0 == CanaryVerdict::Promote
        });
        let promoted = promoted.count();
        // As above: 20 are allowed on average.
        assert!(promoted <= 40, "{promoted}");
    }

    #[test]
    fn plans_that_decide_nothing_are_refused_with_the_field() {
        let plan = CanaryPlan::of_sessions;
        for (bad, field) in [
            (plan(0.0), "percent"),
            (plan(100.0), "percent"),
            (plan(f64::NAN), "percent"),
            (CanaryPlan { alpha: 0.0, ..plan(5.0) }, "alpha"),
            (CanaryPlan { margin: 1.0, ..plan(5.0) }, "margin"),
            (CanaryPlan { pairs_min: 30, pairs_max: 20, ..plan(5.0) }, "pairs_min"),
            (CanaryPlan { scores: (1.0, 1.0), ..plan(5.0) }, "scores"),
        ] {
            let told = RolloutPlan::Canary(bad).check().expect_err(field);
            assert!(told.starts_with(field), "{told}");
        }
        assert!(RolloutPlan::Shadow { percent: 100.0 }.check().is_ok());
        assert!(RolloutPlan::Canary(plan(99.9)).check().is_ok() && RolloutPlan::Pin.check().is_ok());
    }
}
