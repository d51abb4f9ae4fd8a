//! Floating-point functions that `core` lacks, and the statistics that recipes share. Everything here is
//! pure and gives the same bits on every machine.

pub use libm::{exp, expm1, log as ln, log1p as ln_1p, pow, sqrt};

/// Arithmetic mean; 0 of nothing.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Population variance; 0 of nothing.
pub fn variance(values: &[f64]) -> f64 {
    let centre = mean(values);
    values.iter().map(|value| (value - centre) * (value - centre)).sum::<f64>() / values.len().max(1) as f64
}

/// The largest value; 0 of nothing. NaN is ignored.
pub fn max(values: &[f64]) -> f64 {
    values.iter().copied().reduce(f64::max).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_a_small_list() {
        assert_eq!((mean(&[1.0, 2.0, 6.0]), max(&[1.0, 6.0, 2.0])), (3.0, 6.0));
        assert!((variance(&[1.0, 2.0, 6.0]) - 14.0 / 3.0).abs() < 1e-12);
        assert_eq!((mean(&[]), variance(&[]), max(&[])), (0.0, 0.0, 0.0));
    }
}
