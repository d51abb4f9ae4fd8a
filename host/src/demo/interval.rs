//! How sure a measured share, or a gain between two measurements of the same prompts, is.
//! Pure arithmetic; the driver calls it on lists of right and wrong answers.

/// Two-sided 95 % point of the standard normal distribution.
const Z_95: f64 = 1.959_963_984_540_054;

/// A share of right answers and its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Right answers over all answers, in [0, 1].
    pub value: f64,
    /// Wilson's score interval, in [0, 1].
    pub interval: [f64; 2],
}

/// The change of a share between two measurements of the same prompts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gain {
    /// After minus before, in [-1, 1].
    pub value: f64,
    /// 95 % interval of `value`.
    pub interval: [f64; 2],
}

/// Share of `right` with Wilson's score interval (E. B. Wilson, 1927). Nothing measured: 0 with interval [0, 1].
pub fn share(right: &[bool]) -> Share {
    let hits = right.iter().filter(|right| **right).count() as f64;
    wilson(hits, right.len() as f64)
}

fn wilson(hits: f64, count: f64) -> Share {
    if count == 0.0 {
        return Share { value: 0.0, interval: [0.0, 1.0] };
    }
    let value = hits / count;
    let z2 = Z_95 * Z_95;
    let centre = value + z2 / (2.0 * count);
    let half = Z_95 * (value * (1.0 - value) / count + z2 / (4.0 * count * count)).sqrt();
    let scale = 1.0 + z2 / count;
    Share { value, interval: [((centre - half) / scale).max(0.0), ((centre + half) / scale).min(1.0)] }
}

/// Gain with its 95 % interval by Newcombe's method 10: the squared and added Wilson limits of the two
/// shares, corrected for their correlation (R. G. Newcombe, "Improved confidence intervals for the
/// difference between binomial proportions based on paired data", Statistics in Medicine 17, 1998).
///
/// `before` and `after` answer the same prompts in the same order; a surplus of either is left out.
pub fn paired_gain(before: &[bool], after: &[bool]) -> Gain {
    let mut both = 0.0;
    let mut only_after = 0.0;
    let mut only_before = 0.0;
    let mut neither = 0.0;
    for pair in after.iter().zip(before) {
        match pair {
            (true, true) => both += 1.0,
            (true, false) => only_after += 1.0,
            (false, true) => only_before += 1.0,
            (false, false) => neither += 1.0,
        }
    }
    newcombe_10([both, only_after, only_before, neither])
}

/// The paired table as [a, b, c, d]: both right, only the first, only the second, neither.
fn newcombe_10([a, b, c, d]: [f64; 4]) -> Gain {
    let count = a + b + c + d;
    if count == 0.0 {
        return Gain { value: 0.0, interval: [-1.0, 1.0] };
    }
    let first = wilson(a + b, count);
    let second = wilson(a + c, count);
    let phi = correlation([a, b, c, d]);
    let reach = |x: f64, y: f64| (x * x - 2.0 * phi * x * y + y * y).max(0.0).sqrt();
    let down = reach(first.value - first.interval[0], second.interval[1] - second.value);
    let up = reach(first.interval[1] - first.value, second.value - second.interval[0]);
    let value = first.value - second.value;
    Gain { value, interval: [value - down, value + up] }
}

/// Phi with the paper's continuity correction of the positive side.
fn correlation([a, b, c, d]: [f64; 4]) -> f64 {
    let margins = (a + b) * (c + d) * (a + c) * (b + d);
    if margins == 0.0 {
        return 0.0;
    }
    let half = (a + b + c + d) / 2.0;
    let product = a * d - b * c;
    let corrected = if product > half { product - half } else { product.min(0.0) };
    corrected / margins.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(gain: Gain, low: f64, high: f64) -> bool {
        (gain.interval[0] - low).abs() < 6e-5 && (gain.interval[1] - high).abs() < 6e-5
    }

    #[test]
    fn method_10_gives_the_published_limits() {
        // Newcombe 1998, and the airway data of Bentur 2009 as Fagerland, Lydersen and Laake report them.
        let gain = newcombe_10([36.0, 12.0, 2.0, 0.0]);
        assert!(close(gain, 0.0569, 0.3404), "{gain:?}");
        let gain = newcombe_10([1.0, 1.0, 7.0, 12.0]);
        assert!((gain.interval[0] + 0.507).abs() < 6e-4 && (gain.interval[1] + 0.026).abs() < 6e-4, "{gain:?}");
    }

    #[test]
    fn no_change_has_an_interval_around_zero() {
        let same = [true, false, true, true];
        let gain = paired_gain(&same, &same);
        assert_eq!(gain.value, 0.0);
        assert!(gain.interval[0] < 0.0 && gain.interval[1] > 0.0);
    }

    #[test]
    fn from_nothing_to_everything_is_a_gain_of_one_at_most() {
        let gain = paired_gain(&[false; 50], &[true; 50]);
        assert_eq!(gain.value, 1.0);
        assert!(gain.interval[0] > 0.88 && gain.interval[1] <= 1.0, "{gain:?}");
    }

    #[test]
    fn wilson_limits_are_those_of_the_formula() {
        let none = share(&[false; 10]);
        assert_eq!(none.interval[0], 0.0);
        assert!((none.interval[1] - 0.277_532_8).abs() < 1e-6, "{none:?}");
        assert_eq!(share(&[]).interval, [0.0, 1.0]);
    }
}
