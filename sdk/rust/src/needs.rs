//! What a recipe needs of a sample before it can use it. What can never meet the needs is retired with a reason,
//! so that nothing waits in the pool for ever or is lost without a word.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::{Pool, Result, Retirement};

/// Scores beyond this make returns and means that nothing can be fitted to: one such report would spoil every
/// batch it is in.
const SCORE_ABS_MAX: f64 = 1e6;

/// What a sample must have. Every recipe needs it fresh; the rest is asked for.
///
/// ```
/// use reef_recipe::prelude::*;
/// fn select(ctx: &Context, pool: &Pool) -> Result<Selection> {
///     let (usable, retired) = Needs::fresh(ctx.max_staleness).scored().sift(pool)?;
///     Ok(usable.first(32).retire(retired))
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    max_staleness: u32,
    one_record: bool,
    scored: bool,
}

impl Needs {
    /// Sampled at most `max_staleness` releases ago.
    pub const fn fresh(max_staleness: u32) -> Self {
        Self { max_staleness, one_record: false, scored: false }
    }

    /// A report of exactly one record.
    #[must_use]
    pub const fn one_record(mut self) -> Self {
        self.one_record = true;
        self
    }

    /// A report with a finite score of at most a million either way.
    #[must_use]
    pub const fn scored(mut self) -> Self {
        self.scored = true;
        self
    }

    /// Those that meet the needs, in order, and the retirement of the others.
    ///
    /// # Errors
    /// The host's refusal.
    pub fn sift(&self, pool: &Pool) -> Result<(Pool, Vec<Retirement>)> {
        let lags = pool.lags()?;
        let references = if self.one_record { pool.reference_counts()? } else { vec![1; pool.len()] };
        let scores = if self.scored { pool.scores()? } else { vec![0.0; pool.len()] };
        let (mut usable, mut retired) = (Vec::new(), Vec::new());
        for (((&sample, references), score), lag) in pool.handles().iter().zip(references).zip(scores).zip(lags) {
            match self.objection(references, score, lag) {
                None => usable.push(sample),
                Some(reason) => retired.push(Retirement::new(sample, reason)),
            }
        }
        Ok((usable.into(), retired))
    }

    fn objection(&self, references: u32, score: f64, lag: u32) -> Option<String> {
        if references != 1 {
            Some(format!("its report references {references} records; this recipe learns from exactly one"))
        } else if !score.is_finite() {
            Some("its report has no score".to_owned())
        } else if score.abs() > SCORE_ABS_MAX {
            Some("its score is beyond ±1,000,000".to_owned())
        } else if lag > self.max_staleness {
            Some(format!("sampled {lag} releases ago, max_staleness is {}", self.max_staleness))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeHost, FakeSample};

    fn sift(needs: Needs) -> (Vec<u32>, Vec<(u32, String)>) {
        let mut host = FakeHost::default()
            .sample(FakeSample::unscored())
            .sample(FakeSample::scored(1.0).references(2))
            .sample(FakeSample::scored(-1e7))
            .sample(FakeSample::scored(1.0).lag(3));
        let pool = host.pool();
        let (usable, retired) = host.call(|| needs.sift(&pool)).expect("sifts");
        (usable.handles().to_vec(), retired.into_iter().map(|gone| (gone.sample, gone.reason)).collect())
    }

    #[test]
    fn only_what_is_needed_is_asked_for() {
        assert_eq!(sift(Needs::fresh(3)), (vec![100, 101, 102, 103], vec![]));
        assert_eq!(sift(Needs::fresh(2)).1, [(103, "sampled 3 releases ago, max_staleness is 2".to_owned())]);
        let one = "its report references 2 records; this recipe learns from exactly one".to_owned();
        assert_eq!(sift(Needs::fresh(3).one_record()), (vec![100, 102, 103], vec![(101, one)]));
        let (usable, retired) = sift(Needs::fresh(3).scored());
        assert_eq!(usable, [101, 103]);
        assert_eq!(retired[0], (100, "its report has no score".to_owned()));
        assert_eq!(retired[1], (102, "its score is beyond ±1,000,000".to_owned()));
    }
}
