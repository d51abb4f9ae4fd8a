//! Which of the samples that wait a recipe may choose from. What can never be trained on is set aside with the reason, so
//! that it neither waits for ever nor fails the steps that take it.

use reef_core::{RecordId, Sample};
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
        let lineage = surface::lineage(&self.workshop.store, &self.scenario, max_staleness).await?;
        let (mut usable, mut retired) = (Vec::new(), Vec::new());
        for sample in samples {
            let lag = lineage.iter().position(|release| *release == sample.release);
            // Recorded elsewhere or under other limits: it would fail every step that takes it.
            if let Err(why) = check_sample(&sample, self.workshop.engine.info()) {
                retired.push((sample.report, format!("not trainable: {why}")));
                continue;
            }
            match lag {
                _ if held_out.is_answered_in(&sample.trajectory) => {
                    retired.push((sample.report, "prompt of a held-out task".to_owned()))
                }
                None => retired.push((
                    sample.report,
                    format!("expired: sampled more than {max_staleness} releases ago or by another lineage"),
                )),
                Some(lag) => usable.push(PoolSample { sample, lag: u32::try_from(lag).unwrap_or(u32::MAX) }),
            }
        }
        Ok((usable, retired))
    }
}
