//! A comparison that may stop early: pairs come one by one, and it ends as soon as they decide it.
//! `Gate` runs it where `early_stop` is set; whoever measures asks after each lot of tasks whether to go on. Two
//! players bet, one on a mean difference over the threshold and one on a mean under it; since their claims hold at
//! whatever time one looks, looking after every pair costs nothing in α. Tasks belong in random order: a list that is
//! sorted by difficulty shows first what is not true of all of it.

use super::betting::Capital;
use super::measurement::{Measurement, too_many_failed};
use super::{ALPHA_MAX, ALPHA_MIN};

/// What a comparison is to show, and when it ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SequentialPlan {
    /// The mean difference that is to be exceeded, over -1 and under 1; a margin is negative.
    pub threshold: f64,
    /// Chance of accepting a candidate that does not exceed it, at most; and of rejecting early one that does.
    pub alpha: f64,
    /// Scored pairs before which nothing is accepted.
    pub pairs_min: u32,
    /// Pairs after which it ends without having been shown.
    pub pairs_max: u32,
}

impl SequentialPlan {
    /// Refuses a plan that can show nothing; names the field.
    pub fn check(&self) -> Result<(), String> {
        let Self { threshold, alpha, pairs_min, pairs_max } = *self;
        if !(threshold > -1.0 && threshold < 1.0) {
            return Err(format!("threshold is {threshold}; use a number over -1 and under 1"));
        }
        if !(ALPHA_MIN..=ALPHA_MAX).contains(&alpha) {
            return Err(format!("alpha is {alpha}; use a number from {ALPHA_MIN} to {ALPHA_MAX}"));
        }
        if pairs_max == 0 || pairs_min > pairs_max {
            return Err(format!("pairs_min is {pairs_min} and pairs_max is {pairs_max}; use 1 or more, in this order"));
        }
        Ok(())
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is shown yet.
    Continue,
    /// The candidate exceeds the threshold.
    Accept,
    /// The candidate is under the threshold, or the pairs are used up.
    Reject,
}

/// The comparison.
#[derive(Debug, Clone)]
pub struct Sequential {
    plan: SequentialPlan,
    over: Capital,
    under: Capital,
    scored: u32,
    failed: u32,
    progress: Progress,
}

impl Sequential {
    /// Begins, unless the plan can show nothing.
    pub fn new(plan: SequentialPlan) -> Result<Self, String> {
        plan.check()?;
        Ok(Self {
            plan,
            over: Capital::new(plan.threshold),
            under: Capital::new(-plan.threshold),
            scored: 0,
            failed: 0,
            progress: Progress::Continue,
        })
    }

    /// Takes the next pair. A failed one is counted and says nothing; after the end nothing changes any more.
    pub fn push(&mut self, candidate: &Measurement, incumbent: &Measurement) -> Progress {
        if self.progress != Progress::Continue {
            return self.progress;
        }
        match (candidate.score(), incumbent.score()) {
            (Some(new), Some(old)) => {
                self.scored += 1;
                self.over.push(new - old);
                self.under.push(old - new);
            }
            _ => self.failed += 1,
        }
        self.progress = self.look();
        self.progress
    }

    fn look(&self) -> Progress {
        let Self { plan, scored, failed, .. } = self;
        let seen = scored.saturating_add(*failed);
        // Pairs that fail may be the ones that it would lose.
        let trusted = !too_many_failed(*failed as usize, seen as usize);
        if self.p() <= plan.alpha && *scored >= plan.pairs_min && trusted {
            Progress::Accept
        } else if self.is_under() || seen >= plan.pairs_max {
            Progress::Reject
        } else {
            Progress::Continue
        }
    }

    /// Is it shown that the candidate is under the threshold?
    pub fn is_under(&self) -> bool {
        self.under.p_anytime() <= self.plan.alpha
    }

    /// p of "the candidate does not exceed the threshold"; valid whenever one looks.
    pub fn p(&self) -> f64 {
        self.over.p_anytime()
    }

    /// Pairs that were scored, and pairs that failed.
    pub fn pairs(&self) -> (u32, u32) {
        (self.scored, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sign_flip::SplitMix;
    use super::*;

    const PLAN: SequentialPlan = SequentialPlan { threshold: 0.0, alpha: 0.05, pairs_min: 5, pairs_max: 400 };

    /// Number in [0, 1).
    fn uniform(random: &mut SplitMix) -> f64 {
        (random.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Runs to the end: what it said, and after how many pairs.
    fn run(plan: SequentialPlan, mut pair: impl FnMut() -> (f64, f64)) -> (Progress, u32) {
        let mut sequential = Sequential::new(plan).expect("a plan");
        loop {
            let (new, old) = pair();
            let progress = sequential.push(&Measurement::of(new), &Measurement::of(old));
            if progress != Progress::Continue {
                return (progress, sequential.pairs().0);
            }
        }
    }

    /// Share of accepted candidates and mean number of pairs over seeded runs.
    fn simulate(plan: SequentialPlan, runs: u32, mut pair: impl FnMut(&mut SplitMix) -> (f64, f64)) -> (f64, f64) {
        let (mut accepted, mut pairs) = (0, 0);
        for seed in 0..runs {
            let mut random = SplitMix::new(u64::from(seed));
            let (progress, used) = run(plan, || pair(&mut random));
            accepted += u32::from(progress == Progress::Accept);
            pairs += used;
        }
        (f64::from(accepted) / f64::from(runs), f64::from(pairs) / f64::from(runs))
    }

    /// A binary pair: the candidate wins and loses with these chances.
    fn binary(random: &mut SplitMix, win: f64, loss: f64) -> (f64, f64) {
        match uniform(random) {
            chance if chance < win => (1.0, 0.0),
            chance if chance < win + loss => (0.0, 1.0),
            _ => (1.0, 1.0),
        }
    }

    /// Looking after each of 400 pairs, true nulls of several shapes are refused in at most α of 4,000 runs each.
    #[test]
    fn a_true_null_is_accepted_at_most_at_alpha_although_one_looks_after_every_pair() {
        const RUNS: u32 = 4_000;
        for (win, loss) in [(0.5, 0.5), (0.2, 0.2), (0.02, 0.02), (0.1, 0.2)] {
            let (accepted, _) = simulate(PLAN, RUNS, |random| binary(random, win, loss));
            assert!(accepted <= PLAN.alpha, "wins {win}, losses {loss}: {accepted}");
        }
        // Exactly as much worse as the margin allows no more, by rare losses: the hardest null of all.
        let margin = SequentialPlan { threshold: -0.05, ..PLAN };
        let (accepted, _) = simulate(margin, RUNS, |random| binary(random, 0.0, 0.05));
        assert!(accepted <= PLAN.alpha, "rare losses: {accepted}");
        // Scores in between, skewed: small gains often, a large loss seldom.
        let (accepted, _) = simulate(PLAN, RUNS, |random| {
            let old = uniform(random) * 0.1;
            if uniform(random) < 0.9 { (old + 0.1, old) } else { (0.0, 0.9) }
        });
        assert!(accepted <= PLAN.alpha, "skewed: {accepted}");
    }

    #[test]
    fn a_better_candidate_is_accepted_and_a_worse_one_rejected_long_before_the_end() {
        let (accepted, pairs) = simulate(PLAN, 1_000, |random| binary(random, 0.4, 0.1));
        assert!(accepted > 0.95 && pairs < 80.0, "{accepted} after {pairs} pairs");
        let (accepted, pairs) = simulate(PLAN, 1_000, |random| binary(random, 0.1, 0.4));
        assert!(accepted == 0.0 && pairs < 80.0, "{accepted} after {pairs} pairs");
        let margin = SequentialPlan { threshold: -0.1, ..PLAN };
        let (accepted, pairs) = simulate(margin, 1_000, |random| binary(random, 0.05, 0.05));
        assert!(accepted > 0.9 && pairs < 200.0, "as good as the incumbent: {accepted} after {pairs} pairs");
    }

    #[test]
    fn the_end_is_final_and_nothing_is_accepted_before_the_least_number_of_pairs() {
        let (win, loss) = ((Measurement::Scored(1.0), Measurement::Scored(0.0)), Measurement::Scored(0.0));
        let mut sequential = Sequential::new(SequentialPlan { pairs_min: 20, ..PLAN }).expect("a plan");
        for _ in 0..19 {
            assert_eq!(sequential.push(&win.0, &win.1), Progress::Continue);
        }
        assert_eq!(sequential.push(&win.0, &win.1), Progress::Accept);
        for _ in 0..200 {
            assert_eq!(sequential.push(&loss, &win.0), Progress::Accept);
        }
        assert_eq!(sequential.pairs(), (20, 0));
        let tied = run(PLAN, || (0.5, 0.5));
        assert_eq!(tied, (Progress::Reject, 400), "ties show nothing");
    }

    #[test]
    fn failed_pairs_are_no_zeros_and_too_many_of_them_delay_the_acceptance() {
        let failed = Measurement::Failed("the engine stopped".to_owned());
        let one = Measurement::Scored(1.0);
        let mut sequential = Sequential::new(PLAN).expect("a plan");
        for _ in 0..10 {
            assert_eq!(sequential.push(&failed, &one), Progress::Continue);
        }
        assert_eq!((sequential.p(), sequential.pairs()), (1.0, (0, 10)));
        let mut pushed = 0;
        while sequential.push(&one, &Measurement::Scored(0.0)) == Progress::Continue {
            pushed += 1;
        }
        assert_eq!((pushed, sequential.push(&one, &one)), (89, Progress::Accept), "10 of 100 are a tenth");
        let mut sequential = Sequential::new(SequentialPlan { pairs_max: 10, ..PLAN }).expect("a plan");
        let ended = (0..10).map(|_| sequential.push(&failed, &failed)).last();
        assert_eq!(ended, Some(Progress::Reject), "it ends even if nothing is ever scored");
    }

    #[test]
    fn a_plan_that_can_show_nothing_is_refused_with_its_field() {
        for (plan, field) in [
            (SequentialPlan { threshold: -1.0, ..PLAN }, "threshold"),
            (SequentialPlan { threshold: f64::NAN, ..PLAN }, "threshold"),
            (SequentialPlan { alpha: 0.0, ..PLAN }, "alpha"),
            (SequentialPlan { alpha: f64::NAN, ..PLAN }, "alpha"),
            (SequentialPlan { pairs_max: 0, pairs_min: 0, ..PLAN }, "pairs_max"),
            (SequentialPlan { pairs_min: 401, ..PLAN }, "pairs_min"),
        ] {
            let problem = Sequential::new(plan).expect_err("refused");
            assert!(problem.contains(field), "{problem}");
        }
    }
}
