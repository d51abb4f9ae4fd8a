//! Which samples make a step: the first `batch_size` usable ones in the order they arrived. There is no
//! group and no barrier; what can never be used is retired with a reason.

use reef_recipe::Retirement;
use reef_recipe::prelude::*;

/// Scores beyond this make returns that no critic can fit: one such report would fail every batch it is in.
const SCORE_ABS_MAX: f64 = 1e6;

/// Why a sample can never be used, if so.
fn objection(score: f64, references: u32, lag: u32, max_staleness: u32) -> Option<String> {
    if references != 1 {
        Some(format!("its report references {references} records; sao learns from exactly one"))
    } else if !score.is_finite() {
        Some("its report has no score".to_owned())
    } else if score.abs() > SCORE_ABS_MAX {
        Some("its score is beyond ±1,000,000".to_owned())
    } else if lag > max_staleness {
        Some(format!("sampled {lag} releases ago, max_staleness is {max_staleness}"))
    } else {
        None
    }
}

/// Takes the first `batch_size` usable samples, or waits for them.
pub(crate) fn select(pool: &Pool, max_staleness: u32, batch_size: u32) -> Result<Selection> {
    let (scores, references, lags) = (pool.scores()?, pool.reference_counts()?, pool.lags()?);
    let (mut usable, mut retired) = (Vec::new(), Vec::new());
    for (((&sample, score), references), lag) in pool.handles().iter().zip(scores).zip(references).zip(lags) {
        match objection(score, references, lag, max_staleness) {
            None => usable.push(sample),
            Some(reason) => retired.push(Retirement::new(sample, reason)),
        }
    }
    Ok(Pool::from(usable).first(batch_size).retire(retired))
}
