//! Weights and harness of one scenario evolve together: two recipes, one for each surface, from the same reports. They take
//! turns, each release says what it was measured beside, either head goes back alone, and a restart goes on where it was.

use std::path::Path;
use std::sync::{Arc, Mutex};

use reef::config::Config;
use serde_json::{Value, json};

use super::evolve::{SCENARIO, SUMS, Script, configure, tasks, upstream};
use super::learn::{feed, quick};
use crate::http::harness::served;
use crate::support::{Caller, TestHost, component, config, poll, sao};

/// The recipe of the weights, that of the harness beside it, and the tasks and the model of its episodes.
fn both(config: &mut Config, place: (&str, &Path)) {
    configure(config, "harness_evolve", place);
    config.harness.recipe = config.recipe.replace(sao());
}

/// What both learn from: the weights from four answers, the harness from the two that a person disliked.
fn settings() -> Value {
    let harness = json!({ "max_score": 0.2, "batch_size": 2 });
    json!({ "recipe_config": quick(), "harness_config": harness, "gate": { "kind": "always" } })
}

/// A server with both, and what must outlive it.
async fn evolving() -> (TestHost, tempfile::TempDir, Arc<Mutex<Script>>, String) {
    let (url, script) = upstream().await;
    let folder = tempfile::tempdir().expect("a folder");
    tasks(folder.path(), &SUMS);
    let host = TestHost::start(|config| both(config, (&url, folder.path()))).await;
    (host, folder, script, url)
}

async fn steps_on(caller: &Caller, surface: &str) -> Vec<Value> {
    let path = caller.path(&format!("/steps?surface={surface}"));
    caller.get(&path).await.ok().body["steps"].as_array().cloned().unwrap_or_default()
}

/// The newest step of the surface that released something.
async fn released_on(caller: &Caller, surface: &str) -> Value {
    poll(&format!("a release of the {surface}"), || async {
        let steps = steps_on(caller, surface).await;
        let found = steps.iter().find(|step| step["kind"] == "released").cloned();
        found.ok_or_else(|| format!("{steps:?}"))
    })
    .await
}

/// Pending, reserved, consumed and retired samples of a surface.
async fn samples(caller: &Caller, surface: &str) -> [u64; 4] {
    let side = caller.status().await["surfaces"][surface].clone();
    ["pending", "reserved", "consumed", "retired"].map(|state| side[state].as_u64().unwrap_or(u64::MAX))
}

async fn roll_back(caller: &Caller, to: &Value) -> Value {
    caller.post(&caller.path("/rollback"), json!({ "release_id": to })).await.ok().body
}

/// The harness step that asks a model which does not answer.
async fn stalled_step(caller: &Caller) -> Value {
    poll("a harness step that runs", || async {
        let steps = steps_on(caller, "harness").await;
        steps.first().filter(|step| step["kind"] == "running").cloned().ok_or_else(|| format!("{steps:?}"))
    })
    .await
}

#[tokio::test]
async fn both_surfaces_learn_from_the_same_reports_and_either_goes_back_alone() {
    let (host, _folder, _script, _) = evolving().await;
    let caller = host.caller(SCENARIO);
    caller.create(settings()).await;
    let (base, empty) = (caller.status().await["head"]["release_id"].clone(), served(&caller).await);
    feed(&caller, 4).await;
    let (weights, harness) = (released_on(&caller, "weights").await, released_on(&caller, "harness").await);
    assert_eq!(weights["batch"].as_array().map(Vec::len), Some(4), "{weights}");
    assert_eq!(harness["batch"].as_array().map(Vec::len), Some(2), "the two that failed: {harness}");
    assert_eq!((&weights["surface"], &harness["surface"]), (&json!("weights"), &json!("harness")));
    assert_eq!((samples(&caller, "weights").await, samples(&caller, "harness").await), ([0, 0, 4, 0], [0, 0, 2, 2]));

    let (head, tree) = (caller.status().await["head"]["release_id"].clone(), served(&caller).await);
    assert_eq!((&head, &tree["release_id"]), (&weights["release"], &harness["release"]));
    assert_eq!(tree["evaluation"]["weights"], harness["beside"]["weights"], "a harness says which weights it had");
    let trained_beside = &weights["beside"]["harness"];
    assert!([&empty["release_id"], &harness["release"]].contains(&trained_beside), "weights say it too: {weights}");
    let page = caller.get(&caller.path(&format!("/steps/{}/page", weights["step"]))).await.ok().body;
    let told = format!("beside the harness of release {}", trained_beside.as_str().expect("an id"));
    assert!(page.as_str().expect("a page").contains(&told), "{page}");
    let recipes = caller.get(&caller.path("/recipe")).await.ok().body["surfaces"].clone();
    assert_eq!(
        (&recipes["weights"]["manifest"]["name"], &recipes["harness"]["manifest"]["name"]),
        (&json!("sao"), &json!("harness-evolve"))
    );

    let back = roll_back(&caller, &base).await;
    assert_eq!(served(&caller).await["release_id"], tree["release_id"], "the harness stays");
    let row = caller.status().await;
    assert_eq!(row["head"]["release_id"], back["release_id"]);
    assert_eq!(row["harness"]["measured_with"], harness["beside"]["weights"]);
    assert_eq!(row["harness"]["weights_moved_since"], true, "{row}");
    roll_back(&caller, &empty["release_id"]).await;
    assert_eq!(served(&caller).await["files"], json!({}));
    assert_eq!(caller.status().await["head"]["release_id"], back["release_id"], "the weights stay");
    host.stop().await;
}

#[tokio::test]
async fn the_surfaces_take_turns_and_a_restart_goes_on_with_the_turn_that_was_cut_off() {
    let (host, folder, script, url) = evolving().await;
    let caller = host.caller(SCENARIO);
    caller.create(settings()).await;
    served(&caller).await;
    script.lock().expect("held").stalled = true;
    let first = caller.chat("Name a thing.", json!({ "temperature": 1.0, "max_tokens": 4 })).await.ok().receipt();
    let second = caller.chat("Name one more.", json!({ "temperature": 1.0, "max_tokens": 4 })).await.ok().receipt();
    caller.report(&first, 0.0).await.ok();
    caller.report(&second, 0.0).await.ok();
    let running = stalled_step(&caller).await;
    feed(&caller, 4).await;
    assert_eq!(samples(&caller, "weights").await, [6, 0, 0, 0], "what the harness holds waits for the weights too");
    assert_eq!(caller.steps().await.len(), 1, "their turn comes when the step of the harness has ended");
    let data = host.stop().await;
    script.lock().expect("held").stalled = false;
    let host = TestHost::start_in(data, |config| both(config, (&url, folder.path()))).await;
    let caller = host.caller(SCENARIO);
    let weights = released_on(&caller, "weights").await;
    let again = steps_on(&caller, "harness").await.pop().expect("the first step of the harness");
    assert_eq!(again["kind"], "released", "{again}");
    for same in ["step", "batch", "seed", "parent", "beside", "now_ms"] {
        assert_eq!(again[same], running[same], "{same}");
    }
    assert_eq!(weights["beside"]["harness"], again["release"], "the weights were trained beside what it released");
    host.stop().await;
}

#[tokio::test]
async fn weights_that_move_while_a_harness_is_measured_have_it_measured_again() {
    let (host, _folder, script, _) = evolving().await;
    let caller = host.caller(SCENARIO);
    caller.create(settings()).await;
    let base = caller.status().await["head"]["release_id"].clone();
    served(&caller).await;
    script.lock().expect("held").stalled = true;
    for prompt in ["Name a thing.", "Name one more."] {
        let receipt = caller.chat(prompt, json!({ "temperature": 1.0, "max_tokens": 4 })).await.ok().receipt();
        caller.report(&receipt, 0.0).await.ok();
    }
    let running = stalled_step(&caller).await;
    assert_eq!(running["beside"]["weights"], base);
    let moved = roll_back(&caller, &base).await["release_id"].clone();
    script.lock().expect("held").stalled = false;
    let released = released_on(&caller, "harness").await;
    let first = steps_on(&caller, "harness").await.pop().expect("the first step of the harness");
    assert_eq!(first["kind"], "failed", "{first}");
    assert!(first["reason"].as_str().expect("a reason").starts_with("the weights moved"), "{first}");
    assert_eq!((&released["batch"], &released["beside"]["weights"]), (&first["batch"], &moved), "{released}");
    assert_eq!(served(&caller).await["evaluation"]["weights"], moved);
    host.stop().await;
}

#[tokio::test]
async fn a_recipe_of_the_other_surface_comes_beside_the_one_in_use_and_finds_what_was_reported() {
    let host = TestHost::start(|config| config.recipe = Some(sao())).await;
    let caller = host.caller("grown");
    caller.create(json!({ "training_mode": "manual" })).await;
    feed(&caller, 2).await;
    let bytes = std::fs::read(component("reef_recipe_harness_evolve.wasm")).expect("read");
    let put = caller.request(reqwest::Method::PUT, &caller.path("/recipe")).body(bytes.clone());
    let used = caller.send(put).await.ok().body;
    assert_eq!(
        (&used["surface"], &used["name"], &used["before"]),
        (&json!("harness"), &json!("harness-evolve"), &Value::Null)
    );
    assert_eq!((samples(&caller, "weights").await, samples(&caller, "harness").await), ([2, 0, 0, 0], [2, 0, 0, 0]));
    feed(&caller, 1).await;
    assert_eq!((samples(&caller, "weights").await[0], samples(&caller, "harness").await[0]), (3, 3));
    let row = caller.status().await;
    assert!(row["recipe"].as_str().expect("a label").starts_with("sao@"), "{row}");
    let refused = caller.post(&caller.path("/update"), json!({ "harness_config": { "batchsize": 1 } })).await;
    assert!(refused.body.to_string().contains("harness-evolve has no configuration key"), "{}", refused.body);
    let back = caller.post(&caller.path("/recipe/rollback?surface=harness"), json!({})).await;
    assert_eq!(back.status, 409, "{}", back.body);
    let host = TestHost::start_in(host.stop().await, |config| config.recipe = Some(sao())).await;
    let caller = host.caller("grown");
    poll("both recipes after the restart", || async {
        let surfaces = caller.get(&caller.path("/recipe")).await.ok().body["surfaces"].clone();
        let both = surfaces["harness"].is_object() && surfaces["weights"].is_object();
        if both { Ok(()) } else { Err(surfaces.to_string()) }
    })
    .await;
    assert_eq!((samples(&caller, "weights").await[0], samples(&caller, "harness").await[0]), (3, 3));
    host.stop().await;
}

#[tokio::test]
async fn a_recipe_that_is_named_for_the_wrong_surface_keeps_the_server_from_starting() {
    let harness = component("reef_recipe_harness_evolve.wasm");
    for (main, beside, told) in
        [(None, sao(), "evolves weights"), (Some(harness.clone()), harness, "both name one that evolves harnesses")]
    {
        let data = tempfile::tempdir().expect("a folder");
        let mut config = config(data.path());
        config.recipe = main;
        config.harness.recipe = Some(beside);
        let refused = reef::host::start(config).await.expect_err("refused").to_string();
        assert!(refused.contains(told), "{refused}");
    }
}
