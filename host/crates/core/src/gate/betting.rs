//! Testing the mean of bounded differences by betting: exact for every n and every distribution.
//! The gates and the sequential test call it where the null has a margin. A fictive player bets on each difference
//! being larger than the null allows; if the null is true the wealth grows to 1/α or more with a chance of at most α,
//! at whatever time one looks (Ville's inequality). Waudby-Smith and Ramdas, "Estimating means of bounded random
//! variables by betting", 2023: the capital process of eq. 19 with the constant bets that the paper calls diversified
//! Kelly. It needs no symmetry, which differences under a margin do not have: with a margin of 0.05 the sign-flip test
//! would call twenty ties proof, although a candidate that loses every twentieth task ties twenty times in 36 of 100.

use serde::{Deserialize, Serialize};

/// Bets, as shares of the largest that can never lose more than everything, and the part of the first wealth behind
/// each: large ones win fast where losses are rare, small ones find small differences among many tasks.
const BETS: [(f64, f64); 6] =
    [(1.0, 0.5), (0.5, 0.25), (0.25, 0.125), (0.125, 0.0625), (0.0625, 0.03125), (0.03125, 0.03125)];
/// Halvings when a bound is looked for: to 1e-12, far under any score.
const HALVINGS: u32 = 41;

/// The wealth of who bets that the mean of the differences, each in [-1, 1], is over a bound.
#[derive(Debug, Clone)]
pub(super) struct Capital {
    bound: f64,
    wealth: [f64; BETS.len()],
    peak: f64,
}

impl Capital {
    /// Bets against "the mean is at most `bound`".
    pub(super) fn new(bound: f64) -> Self {
        Self { bound, wealth: BETS.map(|(_, part)| part), peak: 1.0 }
    }

    /// Settles the bets on the next difference.
    pub(super) fn push(&mut self, difference: f64) {
        // A bound of -1 is one that no difference is under: there is nothing to bet on.
        let room = 1.0 + self.bound;
        if room <= 0.0 {
            return;
        }
        let gain = (difference - self.bound) / room;
        for (wealth, (bet, _)) in self.wealth.iter_mut().zip(BETS) {
            // The cap only ever takes wealth away, so it can make no false claim.
            *wealth = (*wealth * (1.0 + bet * gain).max(0.0)).min(f64::MAX / BETS.len() as f64);
        }
        self.peak = self.peak.max(self.now());
    }

    fn now(&self) -> f64 {
        self.wealth.iter().sum()
    }

    /// p of all differences so far, whatever their order; valid if n was fixed beforehand.
    pub(super) fn p(&self) -> f64 {
        (1.0 / self.now()).min(1.0)
    }

    /// p that stays valid when one looks after every difference and stops at will.
    pub(super) fn p_anytime(&self) -> f64 {
        (1.0 / self.peak).min(1.0)
    }
}

/// p of "the mean of the differences is at most `bound`", for a fixed number of differences in [-1, 1].
pub(super) fn p_at_most(bound: f64, differences: &[f64]) -> f64 {
    let mut capital = Capital::new(bound);
    differences.iter().for_each(|difference| capital.push(*difference));
    capital.p()
}

/// Where the mean difference lies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Smallest mean that the differences do not speak against.
    pub low: f64,
    /// Largest such mean.
    pub high: f64,
    /// How often such an interval holds the true mean, at least.
    pub level: f64,
}

/// The means that the betting test does not refuse, each side at `alpha`. It holds without any assumption on the
/// distribution but its range, so it is wider than one by a t-test or a bootstrap, which are wrong for few binary scores.
pub(super) fn interval(differences: &[f64], alpha: f64) -> Interval {
    let reversed: Vec<f64> = differences.iter().map(|difference| -difference).collect();
    Interval { low: low(differences, alpha), high: -low(&reversed, alpha), level: 1.0 - 2.0 * alpha }
}

/// The largest refused bound. The wealth falls as the bound rises, since each gain does, so halving finds it.
fn low(differences: &[f64], alpha: f64) -> f64 {
    let (mut refused, mut kept) = (-1.0, 1.0);
    for _ in 0..HALVINGS {
        let middle = (refused + kept) / 2.0;
        if p_at_most(middle, differences) <= alpha {
            refused = middle;
        } else {
            kept = middle;
        }
    }
    refused
}

/// The fewest pairs, all with the same difference, that show a mean over the bound at α; none = more than `most`.
pub(super) fn pairs_needed(difference: f64, bound: f64, alpha: f64, most: u32) -> Option<u32> {
    let mut capital = Capital::new(bound);
    (1..=most).find(|_| {
        capital.push(difference);
        capital.p() <= alpha
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By NumPy, with W and B the parts and bets: `1 / sum(w * np.prod([1 + b * (x - m) / (1 + m) for x in xs]) ...)`.
    #[test]
    fn p_equals_the_formula() {
        for (bound, differences, wealth) in [
            (0.0, &[1.0; 4][..], 9.746_082_812_547_684),
            (0.1, &[1.0, 0.0, 0.0, -1.0, 1.0, 1.0], 0.612_835_233_902_675_9),
            (-0.05, &[0.5, 0.25, -0.25, 0.75], 2.304_381_600_187_037),
        ] {
            let p = p_at_most(bound, differences);
            assert!((p - 1.0_f64.min(1.0 / wealth)).abs() < 1e-12, "{differences:?}: 1/{}", 1.0 / p);
        }
    }

    /// The chance that the test refuses a true null, summed over every number of wins and losses of n binary tasks
    /// whose mean difference is exactly the bound: never over α, however rare the losses.
    #[test]
    fn a_true_null_is_refused_at_most_at_alpha_with_binary_scores() {
        for (n, bound) in [(20_usize, -0.05_f64), (60, -0.05), (100, -0.05), (44, -0.1), (30, 0.0), (50, 0.1)] {
            for share in [0.0_f64, 0.02, 0.1, 0.4] {
                // Wins and losses with win - loss = bound.
                let (win, loss) = (share + bound.max(0.0), share + (-bound).max(0.0));
                for alpha in [0.05, 0.01] {
                    let size = chance_of_refusal(n, (win, loss), bound, alpha);
                    assert!(size <= alpha, "n {n}, bound {bound}, wins {win}, losses {loss}: {size} over {alpha}");
                }
            }
        }
    }

    fn chance_of_refusal(n: usize, (win, loss): (f64, f64), bound: f64, alpha: f64) -> f64 {
        let mut sum = 0.0;
        let mut factorials = vec![0.0];
        factorials.extend((1..=n).scan(0.0, |total, k| {
            *total += (k as f64).ln();
            Some(*total)
        }));
        let power = |share: f64, times: usize| if times == 0 { 0.0 } else { times as f64 * share.ln() };
        for wins in 0..=n {
            for losses in 0..=n - wins {
                let ties = n - wins - losses;
                let mut differences = vec![1.0; wins];
                differences.extend(vec![-1.0; losses]);
                differences.extend(vec![0.0; ties]);
                if p_at_most(bound, &differences) <= alpha {
                    let ways = factorials[n] - factorials[wins] - factorials[losses] - factorials[ties];
                    let chance = power(win, wins) + power(loss, losses) + power(1.0 - win - loss, ties);
                    sum += (ways + chance).exp();
                }
            }
        }
        sum
    }

    /// A candidate that loses every twentieth task ties n times with a chance of 0.95^n, so no valid test can do with
    /// fewer than 59 ties at a margin of 0.05 and α = 0.05.
    #[test]
    fn ties_alone_need_as_many_tasks_as_the_margin_demands() {
        assert_eq!(pairs_needed(0.0, -0.05, 0.05, 1_000), Some(70));
        assert_eq!(pairs_needed(0.0, -0.1, 0.05, 1_000), Some(34));
        assert_eq!(pairs_needed(0.0, -0.001, 0.05, 100), None);
        assert!(p_at_most(-0.05, &[0.0; 58]) > 0.05, "less than 59 would be a false claim");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_order_does_not_matter_and_a_higher_bound_is_harder(
            differences in proptest::collection::vec(-1.0_f64..=1.0, 0..40),
            low in -0.9_f64..0.9,
            more in 0.0_f64..0.5,
        ) {
            let reversed: Vec<f64> = differences.iter().rev().copied().collect();
            let p = p_at_most(low, &differences);
            prop_assert!((p - p_at_most(low, &reversed)).abs() <= 1e-9 * p);
            prop_assert!(p_at_most((low + more).min(1.0), &differences) >= p * (1.0 - 1e-9));
        }

        #[test]
        fn the_interval_holds_the_observed_mean_and_agrees_with_the_test(
            differences in proptest::collection::vec(-1.0_f64..=1.0, 1..60),
            bound in -0.9_f64..0.9,
        ) {
            let Interval { low, high, level } = interval(&differences, 0.05);
            let mean = differences.iter().sum::<f64>() / differences.len() as f64;
            prop_assert!(-1.0 <= low && low <= mean && mean <= high && high <= 1.0 && level == 0.9);
            let refused = p_at_most(bound, &differences) <= 0.05;
            prop_assert!(refused == (bound < low) || (bound - low).abs() < 1e-9);
        }
    }
}
