//! Looks at the scores of every canary that runs, and promotes or rolls back those that are decided.
//! Runs beside serving for as long as the server does, with or without a learner: a worse release must not wait for a
//! training step to end.

use std::sync::Arc;
use std::time::Duration;

use crate::scenarios::Scenarios;

/// Pause between two looks; the traffic of a pause is the most that a decided canary still gets.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// One look after another, until it is aborted.
pub async fn decide_canaries(scenarios: Arc<Scenarios>) {
    let mut next = tokio::time::interval(LOOK_EVERY);
    next.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        next.tick().await;
        for scenario in scenarios.all().await.into_iter().filter(|scenario| scenario.rollout().is_some()) {
            if let Err(error) = scenarios.decide_canary(&scenario).await {
                tracing::warn!(scenario = %scenario.key.1, %error, "rollout.decide");
            }
        }
    }
}
