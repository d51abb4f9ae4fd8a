//! Rollouts of scenarios in service: a pin, a canary or a shadow is begun, decided and ended here.
//! While one runs the head stays where it is, so that both arms are compared as they were; whoever moves the head by
//! hand ends it. Each beginning and end is durable before it takes effect, and a restart goes on where it was.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use reef_core::{
    Arm, ArmScore, CanaryPlan, CanaryVerdict, DecidedBy, Release, ReleaseId, ReleaseOrigin, Rollout, RolloutEnd,
    RolloutFigures, RolloutOutcome, RolloutPlan,
};
use reef_store::{ReleaseStatus, StoreError};
use tokio::sync::Semaphore;

use super::{Scenario, ScenarioError, Scenarios, Served, promoted};
use crate::clock::now_ms;

/// Shadow answers of one scenario at once; a request that finds no place is not shadowed.
const SHADOWS_MAX: usize = 4;

/// A rollout that runs.
#[derive(Debug)]
pub struct LiveRollout {
    /// What was begun.
    pub rollout: Rollout,
    /// The release that answers beside the head; none for a pin.
    pub candidate: Option<Arc<Served>>,
    /// Places of shadow answers.
    pub shadows: Arc<Semaphore>,
}

impl LiveRollout {
    fn new(rollout: Rollout, candidate: Option<Arc<Served>>) -> Self {
        Self { rollout, candidate, shadows: Arc::new(Semaphore::new(SHADOWS_MAX)) }
    }
}

/// How a rollout is about to end.
#[derive(Debug)]
pub(super) struct Ending {
    pub number: u32,
    pub end: RolloutEnd,
    release: ReleaseId,
}

impl Ending {
    fn of(rollout: &Rollout, outcome: RolloutOutcome, reason: String, figures: Option<RolloutFigures>) -> Self {
        let end = RolloutEnd { at_ms: now_ms(), outcome, reason, figures };
        Self { number: rollout.number, end, release: rollout.release.clone() }
    }
}

impl Scenario {
    /// The rollout that runs.
    pub fn rollout(&self) -> Option<Arc<LiveRollout>> {
        self.rollout.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Is the head to stay, whatever is found out about it?
    pub fn is_pinned(&self) -> bool {
        self.rollout().is_some_and(|live| live.rollout.plan == RolloutPlan::Pin)
    }

    /// What is durable by now.
    pub(super) fn end_rollout(&self, Ending { release, end, .. }: &Ending) {
        let (outcome, reason) = (end.outcome, &end.reason);
        tracing::info!(scenario = %self.key.1, release.id = %release, ?outcome, reason, "rollout.end");
        self.set_rollout(None);
    }

    pub(super) fn set_rollout(&self, live: Option<LiveRollout>) {
        *self.rollout.write().unwrap_or_else(PoisonError::into_inner) = live.map(Arc::new);
    }
}

impl Scenarios {
    /// Begins a rollout of a release.
    pub async fn begin_rollout(
        &self,
        scenario: &Scenario,
        release: &ReleaseId,
        plan: RolloutPlan,
    ) -> Result<Rollout, ScenarioError> {
        let _minting = scenario.minting.lock().await;
        self.begin_under_lock(scenario, release, plan).await
    }

    /// Pins the content of a release that was served: as it is the head, or by a rollback to it. Again is no change;
    /// another pin ends, and a canary or shadow must be stopped first.
    pub async fn pin(&self, scenario: &Scenario, to: &ReleaseId, by: DecidedBy) -> Result<Rollout, ScenarioError> {
        let _minting = scenario.minting.lock().await;
        let wanted = self.check_served(scenario, to).await?;
        let running = scenario.rollout();
        if let Some(Rollout { number, plan, release, .. }) = running.as_ref().map(|live| &live.rollout)
            && plan.answers()
        {
            let told = format!("rollout {number}, a {plan} of release {release}, runs; stop it first");
            return Err(StoreError::Conflict(told).into());
        }
        let mut head = scenario.served().release.clone();
        if head.content_id == wanted.content_id {
            if let Some(live) = running {
                return Ok(live.rollout.clone());
            }
        } else {
            let decision = promoted(by, format!("rolled back to {to}, to be pinned"));
            let ends = self.ending(scenario, "another release was pinned").await?;
            let origin = ReleaseOrigin::Rollback { to: to.clone() };
            head = self.mint_under_lock(scenario, to, (origin, decision), ends).await?;
        }
        self.begin_under_lock(scenario, &head.release_id, RolloutPlan::Pin).await
    }

    async fn begin_under_lock(
        &self,
        scenario: &Scenario,
        release: &ReleaseId,
        plan: RolloutPlan,
    ) -> Result<Rollout, ScenarioError> {
        let (tenant, name) = &scenario.key;
        // What cannot be loaded must not become a row that no restart can go on with.
        let candidate = self.candidate(scenario, release, &plan).await?;
        let begun = self.store.begin_rollout(tenant, name, (release, &plan), now_ms()).await;
        let rollout = self.told(scenario, begun).await?;
        scenario.set_rollout(Some(LiveRollout::new(rollout.clone(), candidate)));
        tracing::info!(scenario = %name, release.id = %release, plan = %rollout.plan, "rollout.begin");
        Ok(rollout)
    }

    /// Ends the rollout that runs; `None` = none does.
    pub async fn stop_rollout(&self, scenario: &Scenario, reason: &str) -> Result<Option<Rollout>, ScenarioError> {
        let _minting = scenario.minting.lock().await;
        match self.ending(scenario, reason).await? {
            Some(ending) => Ok(Some(self.end(scenario, ending).await?)),
            None => Ok(None),
        }
    }

    /// How the rollout that runs is stopped, if one does.
    pub(super) async fn ending(&self, scenario: &Scenario, reason: &str) -> Result<Option<Ending>, ScenarioError> {
        let Some(live) = scenario.rollout() else { return Ok(None) };
        let figures = self.figures(scenario, &live.rollout).await?.map(|(_, figures)| figures);
        Ok(Some(Ending::of(&live.rollout, RolloutOutcome::Stopped, reason.to_owned(), figures)))
    }

    /// Promotes or rolls back the canary of a scenario as soon as its scores decide.
    pub async fn decide_canary(&self, scenario: &Scenario) -> Result<(), ScenarioError> {
        let Some(live) = scenario.rollout() else { return Ok(()) };
        let (RolloutPlan::Canary(_), Some(candidate)) = (&live.rollout.plan, &live.candidate) else { return Ok(()) };
        let Some((verdict, figures)) = self.figures(scenario, &live.rollout).await? else { return Ok(()) };
        let outcome = match verdict {
            CanaryVerdict::Continue => return Ok(()),
            CanaryVerdict::Promote => RolloutOutcome::Promoted,
            CanaryVerdict::RollBack => RolloutOutcome::RolledBack,
            CanaryVerdict::Undecided => RolloutOutcome::Undecided,
        };
        let _minting = scenario.minting.lock().await;
        let unchanged = scenario.rollout().is_some_and(|now| now.rollout.number == live.rollout.number);
        if !unchanged {
            return Ok(());
        }
        let reason = told(&live.rollout, &figures);
        let ending = Ending::of(&live.rollout, outcome, reason, Some(figures));
        // Another release with the same bytes may have become the head before.
        let there = scenario.served().release.content_id == candidate.release.content_id;
        if outcome == RolloutOutcome::Promoted && !there {
            return self.promote(scenario, ending).await;
        }
        self.end(scenario, ending).await.map(drop)
    }

    /// The scores of both arms of a rollout, and what they say. None for a pin.
    pub async fn figures(
        &self,
        scenario: &Scenario,
        rollout: &Rollout,
    ) -> Result<Option<(CanaryVerdict, RolloutFigures)>, ScenarioError> {
        let (tenant, name) = &scenario.key;
        if !rollout.plan.answers() {
            return Ok(None);
        }
        let candidate = self.store.arm_scores(tenant, name, (rollout, Arm::Candidate)).await?;
        let incumbent = self.store.arm_scores(tenant, name, (rollout, Arm::Incumbent)).await?;
        let scores = |arm: &[(String, ArmScore)]| arm.iter().map(|(_, score)| *score).collect::<Vec<ArmScore>>();
        Ok(Some(match &rollout.plan {
            RolloutPlan::Canary(plan) => plan.decide(&scores(&candidate), &scores(&incumbent)),
            // Both arms answered the same requests: they are compared one by one.
            RolloutPlan::Pin | RolloutPlan::Shadow { .. } => {
                let seen: HashMap<String, ArmScore> = incumbent.into_iter().collect();
                let both = candidate.iter().filter_map(|(unit, score)| Some((score.score, seen.get(unit)?.score)));
                let beside = |(pair, (new, old))| {
                    (ArmScore { at: 2 * pair, score: new }, ArmScore { at: 2 * pair + 1, score: old })
                };
                let (new, old): (Vec<ArmScore>, Vec<ArmScore>) = (0_i64..).zip(both).map(beside).unzip();
                CanaryPlan::of_sessions(50.0).decide(&new, &old)
            }
        }))
    }

    /// The release of a rollout with its weights, where it answers.
    async fn candidate(
        &self,
        scenario: &Scenario,
        id: &ReleaseId,
        plan: &RolloutPlan,
    ) -> Result<Option<Arc<Served>>, ScenarioError> {
        if !plan.answers() {
            return Ok(None);
        }
        let (tenant, name) = &scenario.key;
        let listed = self.store.release(tenant, name, id).await?;
        let release = listed.ok_or_else(|| ScenarioError::UnknownRelease(id.clone()))?.release;
        Ok(Some(Arc::new(Served::new(release, self.weights.load(id).await?, None))))
    }

    /// Goes on with the rollout that ran when the server stopped; one whose release is gone ends.
    pub(super) async fn resume_rollout(&self, scenario: &Scenario) -> Result<(), ScenarioError> {
        let (tenant, name) = &scenario.key;
        let Some(rollout) = self.store.running_rollout(tenant, name).await? else { return Ok(()) };
        match self.candidate(scenario, &rollout.release, &rollout.plan).await {
            Ok(candidate) => scenario.set_rollout(Some(LiveRollout::new(rollout, candidate))),
            Err(error) => {
                tracing::error!(scenario = %name, release.id = %rollout.release, %error, "rollout.resume");
                let reason = format!("its release cannot be served any more: {error}");
                let end = RolloutEnd { at_ms: now_ms(), outcome: RolloutOutcome::Stopped, reason, figures: None };
                self.store.end_rollout(tenant, name, rollout.number, &end).await?;
            }
        }
        Ok(())
    }

    /// Refuses a release that was never served: a person decides on it first.
    async fn check_served(&self, scenario: &Scenario, id: &ReleaseId) -> Result<Release, ScenarioError> {
        let listed = self.store.release(&scenario.key.0, &scenario.key.1, id).await?;
        let listed = listed.ok_or_else(|| ScenarioError::UnknownRelease(id.clone()))?;
        match listed.status {
            ReleaseStatus::Served | ReleaseStatus::Retained => Ok(listed.release),
            ReleaseStatus::Held | ReleaseStatus::Rejected => {
                let told = format!("release {id} was never served; promote it first, if it waits");
                Err(StoreError::Conflict(told).into())
            }
        }
    }

    async fn promote(&self, scenario: &Scenario, ending: Ending) -> Result<(), ScenarioError> {
        let ((tenant, name), id) = (&scenario.key, &ending.release.clone());
        let listed = self.store.release(tenant, name, id).await?;
        let listed = listed.ok_or_else(|| ScenarioError::UnknownRelease(id.clone()))?;
        let origin = match (listed.status, &listed.release.manifest.origin) {
            (ReleaseStatus::Held, ReleaseOrigin::Step { step }) => ReleaseOrigin::Promotion { step: *step },
            _ => ReleaseOrigin::Rollback { to: id.clone() },
        };
        let decision = promoted(DecidedBy::Gate, ending.end.reason.clone());
        self.mint_under_lock(scenario, id, (origin, decision), Some(ending)).await?;
        Ok(())
    }

    async fn end(&self, scenario: &Scenario, ending: Ending) -> Result<Rollout, ScenarioError> {
        let (tenant, name) = &scenario.key;
        let ended = self.store.end_rollout(tenant, name, ending.number, &ending.end).await;
        let ended = self.told(scenario, ended).await?;
        scenario.end_rollout(&ending);
        scenario.wake();
        Ok(ended)
    }
}

/// The figures in words.
fn told(rollout: &Rollout, figures: &RolloutFigures) -> String {
    let mean = |arm: reef_core::ArmFigures| arm.mean.map_or_else(|| "no score".to_owned(), |mean| format!("{mean:.4}"));
    let RolloutFigures { candidate, incumbent, pairs, p } = *figures;
    format!(
        "{} {}: {pairs} pairs, candidate {} against {}, p {p:.2e}",
        rollout.plan,
        rollout.number,
        mean(candidate),
        mean(incumbent)
    )
}
