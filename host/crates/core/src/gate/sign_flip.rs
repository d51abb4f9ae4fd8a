//! The paired sign-flip test: is the mean of the differences larger than chance makes it?
//! The gates call it where the null says that the two sides are alike: then each difference could as well have had the
//! other sign, and p is the share of sign patterns whose sum is at least the observed one (Fisher, The Design of
//! Experiments, 1935, § 21). It needs no large n, no normal distribution, and ties and binary scores are no trouble. It
//! says nothing about a null with a margin, under which differences have no symmetry: see `betting`.

/// Largest denominator of a grid on which sums are counted exactly.
const GRID_MAX: i32 = 1_000;
/// Additions that the exact count may take; one second or less.
const COUNT_WORK_MAX: usize = 100_000_000;
/// Differences off any grid are enumerated up to this many: 2^20 sums of 8 bytes.
const ENUMERATED_MAX: usize = 20;
/// Random sign patterns beyond that; p is never under 1 / (`DRAWS` + 1).
const DRAWS: u32 = 19_999;
/// Sums that differ by less are equal: differences of decimal scores are not exact in binary.
const TIE: f64 = 1e-9;

/// One-sided p of the differences: small if their sum is larger than chance makes it. Also whether p is exact; the
/// Monte Carlo estimate is (k + 1) / (m + 1), which is itself valid (Phipson and Smyth 2010), from a fixed seed.
pub(super) fn sign_flip(differences: &[f64]) -> (f64, bool) {
    // A zero has no sign to flip.
    let moved: Vec<f64> = differences.iter().copied().filter(|difference| difference.abs() > TIE).collect();
    if moved.is_empty() {
        return (1.0, true);
    }
    let counted = on_grid(&moved).and_then(|steps| count(&steps));
    if let Some(p) = counted {
        return (p, true);
    }
    if moved.len() <= ENUMERATED_MAX { (enumerate(&moved), true) } else { (draw(&moved), false) }
}

/// The differences as whole steps of the coarsest grid that they all lie on.
fn on_grid(differences: &[f64]) -> Option<Vec<i32>> {
    (1..=GRID_MAX).find_map(|denominator| {
        let step = |difference: &f64| {
            let scaled = difference * f64::from(denominator);
            // In range: a difference is in [-1, 1].
            ((scaled - scaled.round()).abs() < TIE).then_some(scaled.round() as i32)
        };
        differences.iter().map(step).collect()
    })
}

/// Exact p by dynamic programming over the distribution of the sum of those steps that get a plus.
fn count(steps: &[i32]) -> Option<f64> {
    let sizes: Vec<usize> = steps.iter().filter_map(|step| usize::try_from(step.unsigned_abs()).ok()).collect();
    let work = sizes.iter().sum::<usize>().checked_mul(sizes.len())?;
    if work > COUNT_WORK_MAX {
        return None;
    }
    let observed: usize = steps.iter().filter_map(|step| usize::try_from(*step).ok()).sum();
    let mut chance = vec![1.0_f64];
    for size in sizes {
        let mut next = vec![0.0; chance.len() + size];
        for (cell, before) in next.iter_mut().zip(&chance) {
            *cell += before / 2.0;
        }
        for (cell, before) in next.iter_mut().skip(size).zip(&chance) {
            *cell += before / 2.0;
        }
        chance = next;
    }
    // The smallest terms first keep the sum accurate.
    let p: f64 = chance.iter().skip(observed).rev().sum();
    Some(p.clamp(f64::MIN_POSITIVE, 1.0))
}

/// Exact p over every sign pattern.
fn enumerate(differences: &[f64]) -> f64 {
    let observed: f64 = differences.iter().sum();
    let mut sums = vec![0.0_f64];
    for difference in differences {
        sums = sums.iter().flat_map(|sum| [sum + difference, sum - difference]).collect();
    }
    let reached = sums.iter().filter(|sum| **sum >= observed - TIE).count();
    reached as f64 / sums.len() as f64
}

/// p over random sign patterns.
fn draw(differences: &[f64]) -> f64 {
    let observed: f64 = differences.iter().sum();
    let mut random = SplitMix::new(0);
    let mut reached = 0_u32;
    for _ in 0..DRAWS {
        let mut sum = 0.0;
        for word in differences.chunks(64) {
            let mut signs = random.draw();
            for difference in word {
                sum += if signs & 1 == 0 { *difference } else { -difference };
                signs >>= 1;
            }
        }
        reached += u32::from(sum >= observed - TIE);
    }
    f64::from(reached + 1) / f64::from(DRAWS + 1)
}

/// SplitMix64 (Steele, Lea and Flood 2014): the same stream in every version, so that a stored p can be found again.
#[derive(Debug)]
pub(super) struct SplitMix(u64);

impl SplitMix {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The golden numbers, each by SciPy 1.17.1:
    /// `permutation_test((d,), np.sum, permutation_type='samples', alternative='greater', n_resamples=np.inf).pvalue`
    #[test]
    fn p_equals_the_reference_implementation() {
        let maize =
            [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48].map(|eighth| f64::from(eighth) / 100.0);
        for (differences, p) in [
            (&[1.0, 1.0, 1.0, -1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0][..], 0.03515625),
            (&[0.5, 0.25, -0.25, 0.75, 0.5, 0.0, 1.0, -0.5, 0.25, 0.5], 0.048828125),
            (&[0.31, -0.07, 0.123, 0.2718, 0.0331, -0.011, 0.45], 0.046875),
            // Counted by hand, and SciPy's for tenfold differences: in decimals it takes the observed 0 for 5e-17.
            (&[0.1, 0.2, 0.3, -0.1, -0.2, -0.3], 37.0 / 64.0),
            // Darwin's maize: 863 of the 2^15 patterns, which Fisher counted by hand in 1935.
            (&maize, 863.0 / 32_768.0),
        ] {
            let (ours, exact) = sign_flip(differences);
            assert!(exact && (ours - p).abs() < 1e-12, "{differences:?}: {ours} is not {p}");
        }
    }

    /// `scipy.stats.binomtest(34, 50, alternative='greater').pvalue`: with binary scores the test is McNemar's exact one.
    #[test]
    fn binary_scores_make_it_the_exact_binomial_test() {
        let differences: Vec<f64> = (0..80)
            .map(|at| match at {
                0..34 => 1.0,
                34..50 => -1.0,
                _ => 0.0,
            })
            .collect();
        let (p, exact) = sign_flip(&differences);
        assert!(exact && (p - 0.007_673_338_916_315_053).abs() < 1e-14, "{p}");
    }

    #[test]
    fn no_difference_is_no_evidence_and_all_wins_are_two_to_the_minus_n() {
        assert_eq!(sign_flip(&[]), (1.0, true));
        assert_eq!(sign_flip(&[0.0; 30]), (1.0, true));
        assert_eq!(sign_flip(&[1.0; 5]), (1.0 / 32.0, true));
        let (p, exact) = sign_flip(&[1.0; 5_000]);
        assert!(exact && p > 0.0 && p < 1e-300, "it underflows to a number that is still over 0");
    }

    #[test]
    fn too_many_for_the_grid_are_drawn_and_agree_with_the_count() {
        let mut random = SplitMix::new(7);
        let differences: Vec<f64> = (0..60).map(|_| (random.draw() % 2_001) as f64 / 1_000.0 - 0.9).collect();
        let counted = count(&on_grid(&differences).expect("thousandths")).expect("small");
        let drawn = draw(&differences);
        // Five standard errors of the estimate.
        assert!((drawn - counted).abs() < 5.0 * (counted * (1.0 - counted) / f64::from(DRAWS)).sqrt() + 1e-4);
        let off: Vec<f64> = differences.iter().enumerate().map(|(at, d)| d + (at as f64).sqrt() * 1e-4).collect();
        assert_eq!(on_grid(&off), None);
        assert_eq!(sign_flip(&off), sign_flip(&off), "the same input draws the same patterns");
        assert!(!sign_flip(&off).1 && draw(&[0.9; 70]) == 1.0 / f64::from(DRAWS + 1), "never 0");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn counting_and_enumerating_give_the_same_p(steps in proptest::collection::vec(-7_i32..=7, 1..12)) {
            let differences: Vec<f64> = steps.iter().map(|step| f64::from(*step) / 7.0).collect();
            let counted = count(&steps).expect("small");
            prop_assert!((counted - enumerate(&differences)).abs() < 1e-12);
            prop_assert!((counted - sign_flip(&differences).0).abs() < 1e-12);
        }

        /// Both directions together hold every pattern, and those that equal the observed sum twice.
        #[test]
        fn the_two_directions_cover_every_pattern(differences in proptest::collection::vec(-1.0_f64..=1.0, 1..12)) {
            let reversed: Vec<f64> = differences.iter().map(|difference| -difference).collect();
            let (p, q) = (sign_flip(&differences).0, sign_flip(&reversed).0);
            prop_assert!(p > 0.0 && p <= 1.0 && q > 0.0 && q <= 1.0 && p + q >= 1.0 - 1e-12);
        }

        #[test]
        fn a_higher_score_never_weakens_the_evidence(
            mut steps in proptest::collection::vec(-5_i32..=4, 2..14),
            at in 0_usize..14,
        ) {
            let before = sign_flip(&steps.iter().map(|step| f64::from(*step) / 5.0).collect::<Vec<_>>()).0;
            let at = at % steps.len();
            steps[at] += 1;
            let after = sign_flip(&steps.iter().map(|step| f64::from(*step) / 5.0).collect::<Vec<_>>()).0;
            // Turning a loss into a smaller loss only shrinks the patterns that beat it.
            prop_assert!(after <= before + 1e-12, "{before} then {after}");
        }
    }
}
