//! Which release answers a request while a rollout runs, and the shadow that answers it a second time.
//! The unit of a request decides its arm, so that a session never meets two releases; both arms are marked by tags that
//! no client can set. A shadow answers after the client has its answer; it is recorded, never seen and never trained on.

use std::sync::Arc;

use reef_core::{Arm, RecordId, Rollout, RolloutPlan, Sticky, Tag};
use reef_dialects::{Ask, Envelope};
use reef_engine::Engine;
use reef_intake::KIND_TAG;
use reef_store::{ROLLOUT_TAG, ROLLOUT_UNIT_TAG, arm_tag};
use tokio::sync::OwnedSemaphorePermit;

use super::exchange::{Exchange, Origin};
use super::resolve::Resolved;
use super::sink::Sink;
use super::{Serving, terms};
use crate::clock::now_ms;
use crate::http::caller::Caller;
use crate::provider::embedded;
use crate::scenarios::{LiveRollout, Served};

/// Tag of a shadow's record: the receipt of the answer that was seen.
const SHADOW_OF_TAG: &str = "shadow-of";
/// The kind of call that a shadow is.
const SHADOW_KIND: &str = "shadow";

/// The place of a shadow, taken when its request came.
#[derive(Debug)]
pub struct Place {
    candidate: Arc<Served>,
    live: Arc<LiveRollout>,
    permit: OwnedSemaphorePermit,
}

/// A request that the candidate answers unseen.
#[derive(Debug)]
pub struct Shadow {
    exchange: Exchange,
    _permit: OwnedSemaphorePermit,
}

/// Chooses the release that answers, and marks the request; a place if it is to be shadowed. Requests that pin a
/// release, that an upstream answers or that are no part of a conversation take no part.
pub fn assign(resolved: &mut Resolved, caller: &mut Caller, receipt: &RecordId) -> Option<Place> {
    let live = resolved.scenario.rollout().filter(|_| resolved.upstream.is_none() && !resolved.pinned)?;
    let candidate = live.candidate.as_ref()?;
    let rollout = &live.rollout;
    match &rollout.plan {
        RolloutPlan::Pin => None,
        RolloutPlan::Canary(plan) => {
            let unit = match &plan.sticky {
                Sticky::Session => caller.session.clone(),
                Sticky::Tag(tag) => caller.tags.get(tag).cloned(),
            };
            let unit = unit.unwrap_or_else(|| receipt.to_string());
            let arm = rollout.arm(&unit);
            mark(caller, (rollout, arm), &unit);
            if arm == Arm::Candidate {
                resolved.served = Arc::clone(candidate);
            }
            None
        }
        RolloutPlan::Shadow { .. } => {
            let drawn = rollout.arm(receipt.as_str()) == Arm::Candidate;
            let permit = drawn.then(|| Arc::clone(&live.shadows).try_acquire_owned())?;
            let outcome = if permit.is_ok() { "begun" } else { "no_place" };
            metrics::counter!("reef_shadows_total", "outcome" => outcome).increment(1);
            let permit = permit.ok()?;
            mark(caller, (rollout, Arm::Incumbent), receipt.as_str());
            Some(Place { candidate: Arc::clone(candidate), live: Arc::clone(&live), permit })
        }
    }
}

fn mark(caller: &mut Caller, (rollout, arm): (&Rollout, Arm), unit: &str) {
    set(caller, ROLLOUT_TAG, arm_tag(rollout, arm));
    set(caller, ROLLOUT_UNIT_TAG, unit.to_owned());
}

fn set(caller: &mut Caller, name: &str, value: String) {
    if let Ok(tag) = Tag::parse(name) {
        caller.tags.insert(tag, value);
    }
}

impl Place {
    /// The shadow of an exchange that is about to be answered.
    pub fn shadow(self, serving: &Serving, seen: &Exchange) -> Shadow {
        let receipt = RecordId::fresh();
        let mut caller = seen.caller.clone();
        caller.capture = false;
        mark(&mut caller, (&self.live.rollout, Arm::Candidate), seen.receipt.as_str());
        set(&mut caller, SHADOW_OF_TAG, seen.receipt.to_string());
        set(&mut caller, KIND_TAG, SHADOW_KIND.to_owned());
        let exchange = Exchange {
            dialect: seen.dialect,
            ask: Arc::new(Ask { stream: false, ..(*seen.ask).clone() }),
            envelope: Envelope {
                receipt: receipt.as_str().to_owned(),
                release: self.candidate.release.release_id.as_str().to_owned(),
                ..seen.envelope.clone()
            },
            store: seen.store.clone(),
            recorded: true,
            top_k: seen.top_k,
            in_flight: serving.receipts.register(&seen.scenario.key, &receipt),
            scenario: Arc::clone(&seen.scenario),
            served: self.candidate,
            caller,
            body: seen.body.clone(),
            receipt,
            created_at_ms: now_ms(),
            origin: Origin::Upstream,
            ending: seen.ending.clone(),
            redactor: Arc::clone(&seen.redactor),
            sessions: seen.sessions.clone(),
            placed: None,
        };
        Shadow { exchange, _permit: self.permit }
    }
}

impl Shadow {
    /// Answers and records; nobody hears it.
    pub async fn run(mut self, engine: Engine) {
        let asked = embedded::ask(&engine, &self.exchange.ask, terms(&self.exchange)).await;
        let answer = match asked {
            Ok(answer) => answer,
            Err(error) => {
                metrics::counter!("reef_shadows_total", "outcome" => "refused").increment(1);
                tracing::warn!(%error, "rollout.shadow");
                return;
            }
        };
        self.exchange.origin = Origin::Embedded { prompt: answer.prompt, sampling: answer.sampling };
        let (sink, answered) = Sink::whole();
        // The receiver is kept to the end: an exchange whose receiver is gone counts as abandoned.
        let (_heard, ()) = tokio::join!(answered, self.exchange.run(answer.answering, sink));
    }
}
