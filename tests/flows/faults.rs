//! A recipe that misbehaves is cut off, quarantined and visible, and serving goes on.

use serde_json::json;

use super::learn::feed;
use crate::support::{TestHost, faults, poll};

#[tokio::test]
async fn every_fault_is_visible_and_serving_goes_on() {
    let host = TestHost::start(|config| {
        config.recipe = Some(faults());
        config.sandbox.wall_propose_ms = 2_000;
        config.sandbox.fuel_propose = u64::MAX / 4;
    })
    .await;
    for (fault, place, told) in [
        ("spin", "propose", "out of time"),
        ("hog", "propose", "out of memory"),
        ("trap", "select", "trap"),
        ("lie", "select", "invalid output"),
        ("nan", "evaluate", "invalid output"),
    ] {
        let caller = host.caller(&format!("{fault}-{place}"));
        caller
            .create(json!({ "recipe_config": { "fault": fault, "where": place }, "gate": { "kind": "always" } }))
            .await;
        feed(&caller, 2).await;
        let status = poll("the fault", || async {
            let row = caller.status().await;
            if row["last_error"].is_string() { Ok(row) } else { Err(row.to_string()) }
        })
        .await;
        let shown = status["last_error"].as_str().unwrap().to_lowercase();
        assert!(shown.contains(told), "{fault} in {place}: {shown}");
        caller.chat("hi", json!({})).await.ok();
        assert_eq!(caller.status().await["head"]["sequence"], 0, "{fault}: nothing was released");
        let status = caller.status().await;
        let kept = status["pending"].as_i64().unwrap() + status["reserved"].as_i64().unwrap();
        assert_eq!(kept, 2, "{fault}: the samples went back to the pool: {status}");
    }
    host.stop().await;
}

#[tokio::test]
async fn a_recipe_that_keeps_failing_is_quarantined_and_its_steps_say_why() {
    let host = TestHost::start(|config| config.recipe = Some(faults())).await;
    let caller = host.caller("bad");
    caller.create(json!({ "recipe_config": { "fault": "trap", "where": "propose" } })).await;
    feed(&caller, 2).await;
    let status = poll("the quarantine", || async {
        let row = caller.status().await;
        if row["quarantined_until_ms"].is_number() { Ok(row) } else { Err(row.to_string()) }
    })
    .await;
    assert_eq!(status["pending"], 2);
    let steps = caller.steps().await;
    assert!(!steps.is_empty() && steps.iter().all(|step| step["kind"] == "failed"), "{steps:?}");
    let metrics = caller.get("/metrics").await.ok().body;
    assert!(metrics.as_str().unwrap().contains("reef_recipe_faults_total"));
    host.stop().await;
}

#[tokio::test]
async fn a_recipe_whose_steps_do_not_end_is_held_to_account() {
    let host = TestHost::start(|config| {
        config.recipe = Some(faults());
        config.training.step_seconds_max = 1;
        config.sandbox.wall_propose_ms = 600_000;
        config.sandbox.fuel_propose = u64::MAX / 4;
    })
    .await;
    let caller = host.caller("endless");
    caller.create(json!({ "recipe_config": { "fault": "spin", "where": "propose" } })).await;
    feed(&caller, 2).await;
    poll("the quarantine", || async {
        let row = caller.status().await;
        if row["quarantined_until_ms"].is_number() { Ok(()) } else { Err(row.to_string()) }
    })
    .await;
    let steps = caller.steps().await;
    assert_eq!(steps.len(), 3, "{steps:?}");
    assert!(steps.iter().all(|step| step.to_string().contains("training.step_seconds_max")), "{steps:?}");
    host.stop().await;
}

#[tokio::test]
async fn a_restart_does_not_forgive_a_recipe_and_new_settings_do() {
    let host = TestHost::start(|config| config.recipe = Some(faults())).await;
    let caller = host.caller("known");
    caller
        .create(json!({ "recipe_config": { "fault": "trap", "where": "propose" }, "gate": { "kind": "always" } }))
        .await;
    feed(&caller, 2).await;
    let quarantined = async |caller: &crate::support::Caller| {
        poll("the quarantine", || async {
            let row = caller.status().await;
            row["quarantined_until_ms"].as_i64().ok_or_else(|| row.to_string())
        })
        .await
    };
    let until = quarantined(&caller).await;
    let steps = caller.steps().await.len();
    let host = TestHost::start_in(host.stop().await, |config| config.recipe = Some(faults())).await;
    let caller = host.caller("known");
    assert_eq!(quarantined(&caller).await, until, "the pause is the one of before");
    assert_eq!(caller.steps().await.len(), steps, "nothing ran meanwhile");
    caller.post(&caller.path("/update"), json!({ "recipe_config": { "fault": "none" } })).await.ok();
    let last = poll("a step that works", || async {
        let steps = caller.steps().await;
        steps.first().filter(|step| step["kind"] == "released").cloned().ok_or_else(|| format!("{steps:?}"))
    })
    .await;
    assert_eq!(last["step"], steps + 1);
    let host = TestHost::start_in(host.stop().await, |config| config.recipe = Some(faults())).await;
    assert!(host.caller("known").status().await["quarantined_until_ms"].is_null(), "it was forgiven for good");
    host.stop().await;
}

#[tokio::test]
async fn a_minimal_recipe_in_the_same_guest_releases() {
    let host = TestHost::start(|config| config.recipe = Some(faults())).await;
    let caller = host.caller("good");
    caller.create(json!({ "recipe_config": { "fault": "none" }, "gate": { "kind": "always" } })).await;
    feed(&caller, 2).await;
    let steps = super::learn::ended(&caller, 1).await;
    assert_eq!(steps[0]["kind"], "released", "{}", steps[0]);
    host.stop().await;
}
