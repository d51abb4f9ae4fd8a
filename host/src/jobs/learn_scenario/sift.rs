//! Which of the samples that wait a recipe may choose from. What can never be trained on is set aside with the reason, so
//! that it neither waits for ever nor fails the steps that take it. Answers of a candidate that a rollout tries wait for
//! its end: nobody knows yet whether they are of the lineage.

use reef_core::{RecordId, ReleaseId, Sample};
use reef_engine::train::check_sample;
use reef_sandbox::PoolSample;

use super::{HeldOut, Learner, StepError, surface};

impl Learner {
    /// Drops what can never be trained on: too old, of another lineage, or a held-out prompt.
    pub(super) async fn sift(
        &self,
        samples: Vec<Sample>,
        held_out: &HeldOut,
    ) -> Result<(Vec<PoolSample>, Vec<(RecordId, String)>), StepError> {
        if surface::is_harness(&self.workshop.recipe) {
            return Ok((surface::fresh(samples), Vec::new()));
        }
        let max_staleness = self.scenario.settings().max_staleness;
        // Before the lineage: a rollout that ends between the two has moved the head by then.
        let tried = self.scenario.rollout().map(|live| live.rollout.release.clone());
        let lineage = surface::lineage(&self.workshop.store, &self.scenario, max_staleness).await?;
        let (mut usable, mut retired) = (Vec::new(), Vec::new());
        for sample in samples {
            // Recorded elsewhere or under other limits: it would fail every step that takes it.
            if let Err(why) = check_sample(&sample, self.workshop.engine.info()) {
                retired.push((sample.report, format!("not trainable: {why}")));
                continue;
            }
            if held_out.is_answered_in(&sample.trajectory) {
                retired.push((sample.report, "prompt of a held-out task".to_owned()));
                continue;
            }
            match age(&sample.release, &lineage, tried.as_ref()) {
                Age::Lag(lag) => usable.push(PoolSample { sample, lag }),
                Age::Undecided => {}
                Age::Expired => retired.push((
                    sample.report,
                    format!("expired: sampled more than {max_staleness} releases ago or by another lineage"),
                )),
            }
        }
        Ok((usable, retired))
    }
}

/// How old a sample is.
#[derive(Debug, PartialEq, Eq)]
enum Age {
    /// Releases since it was sampled.
    Lag(u32),
    /// The end of the rollout says it.
    Undecided,
    /// Too old, or of another lineage.
    Expired,
}

fn age(release: &ReleaseId, lineage: &[ReleaseId], tried: Option<&ReleaseId>) -> Age {
    match lineage.iter().position(|known| known == release) {
        Some(lag) => Age::Lag(u32::try_from(lag).unwrap_or(u32::MAX)),
        None if tried == Some(release) => Age::Undecided,
        None => Age::Expired,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_a_candidate_wait_while_it_is_tried() {
        let id = |n: u32| ReleaseId::parse(format!("{n:040x}")).expect("valid");
        let lineage = [id(2), id(1)];
        assert_eq!(age(&id(3), &lineage, Some(&id(3))), Age::Undecided);
        assert_eq!(age(&id(3), &lineage, None), Age::Expired, "its rollout has ended and it was not promoted");
        assert_eq!(age(&id(4), &lineage, Some(&id(3))), Age::Expired);
        assert_eq!(age(&id(3), &[id(5), id(3)], None), Age::Lag(1), "it was promoted");
        assert_eq!(age(&id(1), &lineage, Some(&id(1))), Age::Lag(1), "an older release that is tried again is usable");
    }
}
