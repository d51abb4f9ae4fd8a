//! Episodes of candidate and incumbent in pairs: each task as often as asked, on equal seeds. A pair in which the
//! machine or the verifier failed is left out and counted; it is never a 0. The sign test says what chance alone does.

use reef_recipe::harness::{self, Episode, EpisodeStatus, Tree};
use reef_recipe::prelude::*;

/// Configuration key: episodes of one task on each side.
pub const EPISODE_REPEATS: Key<u32> =
    Key::count("episode_repeats", 2, "episodes of each task, each on its own seed").within(1.0, 100.0);
/// Configuration key: by how much wins must exceed losses.
pub const MIN_WIN_MARGIN: Key<u32> =
    Key::count("min_win_margin", 0, "pairs won minus pairs lost must be more than this").within(0.0, 1_000.0);
/// Configuration key: what the sign test may say of a gain.
pub const SIGNIFICANCE: Key<f64> =
    Key::number("significance", 0.1, "a gain whose sign test gives a larger p is held for a person; 1 = never")
        .within(0.0, 1.0);

/// Episodes of one decision; the host answers 1,000 calls of a capability.
const EPISODES_MAX: usize = 900;

/// The score of an episode: 0 where the agent failed; `None` where nobody knows.
pub fn score(episode: &Episode) -> Option<f64> {
    match episode.status {
        EpisodeStatus::Scored => episode.score.is_finite().then_some(episode.score),
        EpisodeStatus::AgentFailed => Some(0.0),
        EpisodeStatus::VerifierFailed | EpisodeStatus::InfrastructureFailed => None,
    }
}

/// How often chance alone wins as often: P(X ≥ `wins`) for X ~ Binomial(`wins` + `losses`, ½); 1 of nothing.
pub fn sign_test(wins: usize, losses: usize) -> f64 {
    let n = wins + losses;
    // From k = n downwards: C(n, n) = 1, C(n, k − 1) = C(n, k)·k/(n − k + 1).
    let (mut term, mut sum) = (maths::pow(0.5, n as f64), 0.0);
    for k in (wins..=n).rev() {
        sum += term;
        term *= k as f64 / (n - k + 1) as f64;
    }
    sum.min(1.0)
}

/// Tasks that one decision tries.
fn tasks_max(repeats: u32) -> usize {
    (EPISODES_MAX / (2 * repeats.max(1) as usize)).max(1)
}

/// What became of the episodes of one decision.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trials {
    candidate: Vec<f64>,
    incumbent: Vec<f64>,
    /// Pairs without a score on both sides.
    pub unscored: usize,
    /// Tasks that the candidate failed at least once: a score below 1.
    pub failing_candidate: Vec<String>,
    /// The same of the incumbent.
    pub failing_incumbent: Vec<String>,
}

impl Trials {
    /// Episodes that [`Trials::run`] takes, both sides together.
    pub fn episodes(tasks: &[String], repeats: u32) -> u32 {
        (tasks.len().min(tasks_max(repeats)) as u32).saturating_mul(2 * repeats.max(1))
    }

    /// Runs every task `repeats` times on both trees; an episode of a task and its partner have the same seed.
    ///
    /// # Errors
    /// The host's refusal.
    pub fn run(candidate: &Tree, tasks: &[String], repeats: u32, seed: u32) -> Result<Self> {
        let most = tasks_max(repeats);
        if tasks.len() > most {
            log::warn!("{} tasks, of which the first {most} are tried: {EPISODES_MAX} episodes a step", tasks.len());
        }
        let mut trials = Self::default();
        for task in tasks.iter().take(most) {
            for repeat in 0..repeats.max(1) {
                let seed = seed.wrapping_add(repeat);
                let new = score(&harness::run_episode(candidate, task, seed)?);
                let old = score(&harness::run_episode(&Tree::Incumbent, task, seed)?);
                trials.add(task, new, old);
            }
        }
        Ok(trials)
    }

    /// Adds a pair.
    pub fn add(&mut self, task: &str, candidate: Option<f64>, incumbent: Option<f64>) {
        let (Some(new), Some(old)) = (candidate, incumbent) else {
            self.unscored += 1;
            return;
        };
        self.candidate.push(new);
        self.incumbent.push(old);
        for (score, failing) in [(new, &mut self.failing_candidate), (old, &mut self.failing_incumbent)] {
            if score < 1.0 && !failing.iter().any(|known| known == task) {
                failing.push(task.to_owned());
            }
        }
    }

    /// Scored pairs.
    pub fn pairs(&self) -> usize {
        self.candidate.len()
    }

    /// The scored pairs for a comparison; `None` without any.
    pub fn paired(&self) -> Option<Paired> {
        Paired::new(self.candidate.clone(), self.incumbent.clone()).ok()
    }

    /// Adds the numbers of the comparison to a verdict.
    #[must_use]
    pub fn measured(&self, verdict: Verdict) -> Verdict {
        let (new, old) = (maths::mean(&self.candidate), maths::mean(&self.incumbent));
        let (wins, losses) = self.wins_and_losses();
        verdict
            .measure("episodes_candidate", new)
            .measure("episodes_incumbent", old)
            .measure("wins", wins as f64)
            .measure("losses", losses as f64)
            .measure("pairs", self.pairs() as f64)
            .measure("pairs_unscored", self.unscored as f64)
            .measure("sign_test_p", sign_test(wins, losses))
    }

    /// Pairs that the candidate won, and that it lost.
    pub fn wins_and_losses(&self) -> (usize, usize) {
        self.paired().map_or((0, 0), |pair| (pair.wins(), pair.losses()))
    }

    /// A gain that chance does not explain is promoted, one that it explains is held, the rest is rejected.
    ///
    /// # Errors
    /// `other` when no pair has scores: nothing was learned, and the step is tried again.
    pub fn verdict(&self, gain: bool, significance: f64) -> Result<Verdict> {
        let told = self.told();
        if self.pairs() == 0 {
            return Err(Failure::other(format!("no pair of episodes gave a score ({} tried)", self.unscored)));
        }
        let (wins, losses) = self.wins_and_losses();
        let verdict = if !gain {
            Verdict::reject(told)
        } else if sign_test(wins, losses) > significance {
            Verdict::hold(format!("{told}: chance alone does as well so often that this may be noise"))
        } else {
            Verdict::promote(told)
        };
        Ok(self.measured(verdict))
    }

    /// What is said of the comparison.
    pub fn told(&self) -> String {
        let (wins, losses) = self.wins_and_losses();
        let ties = self.pairs() - wins - losses;
        let unscored = if self.unscored == 0 { String::new() } else { format!(", {} without a score", self.unscored) };
        let p = sign_test(wins, losses);
        format!("{wins} wins, {losses} losses, {ties} ties on {} pairs{unscored}; sign test p = {p:.3}", self.pairs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reef_recipe::testing::FakeHost;

    #[test]
    fn the_sign_test_of_small_counts() {
        let close = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-12, "{found} is not {wanted}");
        close(sign_test(0, 0), 1.0);
        close(sign_test(1, 0), 0.5);
        close(sign_test(3, 0), 0.125);
        close(sign_test(4, 0), 0.0625);
        close(sign_test(5, 1), 7.0 / 64.0);
        close(sign_test(0, 3), 1.0);
        close(sign_test(2, 2), 11.0 / 16.0);
        // The two tails of an even split overlap in the middle term.
        close(sign_test(50, 50) * 2.0 - 0.079_589_237_387_178_77, 1.0);
    }

    #[test]
    fn an_agent_that_fails_scores_zero_and_a_machine_that_fails_scores_nothing() {
        let episode = |status, score| Episode { status, score, trace: String::new(), seconds: 0.0 };
        assert_eq!(score(&episode(EpisodeStatus::Scored, 0.5)), Some(0.5));
        assert_eq!(score(&episode(EpisodeStatus::Scored, f64::NAN)), None);
        assert_eq!(score(&episode(EpisodeStatus::AgentFailed, f64::NAN)), Some(0.0));
        assert_eq!(score(&episode(EpisodeStatus::VerifierFailed, 0.0)), None);
        assert_eq!(score(&episode(EpisodeStatus::InfrastructureFailed, 0.0)), None);
    }

    #[test]
    fn pairs_are_run_on_equal_seeds_and_counted() {
        let play = |entries: &[reef_recipe::Entry], task: &str, seed: u32| match (task, seed) {
            ("broken", 7) => Episode {
                status: EpisodeStatus::InfrastructureFailed,
                score: f64::NAN,
                trace: String::new(),
                seconds: 1.0,
            },
            ("hard", _) => Episode::scored(if entries.is_empty() { 0.0 } else { 1.0 }),
            _ => Episode::scored(1.0),
        };
        let mut host = FakeHost::default().tasks(&["broken", "easy", "hard"]).plays(play);
        let new = Tree::Changed(vec![reef_recipe::Mutation::put(reef_recipe::EntryKind::Rules, "r", "{}")]);
        let tasks = ["broken", "easy", "hard"].map(str::to_owned);
        let trials = host.call(|| Trials::run(&new, &tasks, 2, 7)).expect("runs");
        assert_eq!((trials.pairs(), trials.unscored, trials.wins_and_losses()), (5, 1, (2, 0)));
        assert_eq!(trials.told(), "2 wins, 0 losses, 3 ties on 5 pairs, 1 without a score; sign test p = 0.250");
        assert_eq!((trials.failing_candidate, trials.failing_incumbent), (vec![], vec!["hard".to_owned()]));
        assert_eq!(host.calls.len(), 12);
    }
}
