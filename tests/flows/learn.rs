//! From feedback to a release that serves, with the real model and the real recipe.

use std::path::Path;
use std::process::Command;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Caller, Database, Home, MODEL, ServerProcess, TestHost, poll, sao};

/// A recipe configuration that trains at once on few samples.
pub fn quick() -> Value {
    json!({ "batch_size": 4, "critic_warmup_steps": 0, "policy_lr": 5e-3, "evaluate_tasks": 4, "keep_tolerance": 1.0 })
}

pub async fn host() -> TestHost {
    TestHost::start(|config| config.recipe = Some(sao())).await
}

/// Sampled answers with different scores; their receipts.
pub async fn feed(caller: &Caller, count: usize) -> Vec<String> {
    let mut receipts = Vec::new();
    for index in 0..count {
        let prompt = format!("Name thing number {index}.");
        let answer = caller.chat(&prompt, json!({ "temperature": 1.0, "seed": index, "max_tokens": 6 })).await.ok();
        caller.report(&answer.receipt(), if index % 2 == 0 { 1.0 } else { 0.1 }).await.ok();
        receipts.push(answer.receipt());
    }
    receipts
}

/// Waits until a step has ended; newest first.
pub async fn ended(caller: &Caller, count: usize) -> Vec<Value> {
    poll("the end of a step", || async {
        let steps = caller.steps().await;
        if steps.iter().filter(|step| step["kind"] != "running").count() >= count {
            Ok(steps)
        } else {
            Err(format!("{steps:?} {}", caller.status().await))
        }
    })
    .await
}

async fn greedy(caller: &Caller, prompt: &str) -> String {
    caller.chat(prompt, json!({ "temperature": 0, "max_tokens": 16, "logprobs": true })).await.ok().body["choices"][0]["logprobs"].to_string()
}

#[tokio::test]
async fn feedback_becomes_a_release_that_serves_survives_a_restart_and_can_be_rolled_back() {
    for database in Database::all() {
        let home = Home::new(database, |config| config.recipe = Some(sao()));
        let (step, receipts) = learns_survives_and_goes_back(&home).await;
        explains_itself(&home).await;
        leaves_and_is_erased(&home, &step, &receipts).await;
    }
}

/// The step that released, and the receipts of its batch.
async fn learns_survives_and_goes_back(home: &Home) -> (Value, Vec<String>) {
    let server = home.start();
    let caller = server.caller("learner");
    caller.create(json!({ "recipe_config": quick(), "gate": { "kind": "always" } })).await;
    let before = greedy(&caller, "Tell me a fact.").await;
    let base = caller.releases().await[0].clone();
    let receipts = feed(&caller, 4).await;

    let step = ended(&caller, 1).await.remove(0);
    assert_eq!(step["kind"], "released", "{step}");
    assert_eq!(step["metrics"]["policy/first_step_kl"], 0.0, "{step}");
    assert!(
        step["metrics"]["train_rollout_logprob_abs_diff"].as_f64().unwrap() < 1e-3,
        "trainer and engine agree: {step}"
    );
    // The host's own measurements, whatever the recipe publishes.
    let own = |name: &str| step["metrics"][format!("trainer/{name}")].as_f64();
    assert_eq!(
        (own("first_step_kl"), own("batches"), own("batches_skipped")),
        (Some(0.0), Some(1.0), Some(0.0)),
        "{step}"
    );
    assert!(own("engine_logprob_abs_diff").is_some_and(|apart| apart < 1e-3), "{step}");
    assert_eq!((own("tokens"), own("lag_0")), (own("effective_tokens"), Some(4.0)), "{step}");
    assert!(own("gradient_norm_max").is_some_and(|norm| norm > 0.0) && own("masked_share") == Some(0.0), "{step}");
    assert!(step["calls"].as_array().unwrap().iter().all(|call| call["fuel"].as_u64().unwrap() > 0));
    assert_eq!(step["batch"].as_array().unwrap().len(), receipts.len());
    let releases = caller.releases().await;
    assert_eq!(releases[0]["release_id"], step["release"]);
    assert_eq!(releases[0]["parent"], base["release_id"]);
    assert_ne!(releases[0]["content_id"], base["content_id"]);
    let counts = caller.status().await;
    assert_eq!((&counts["consumed"], &counts["pending"], &counts["reserved"]), (&json!(4), &json!(0), &json!(0)));

    let answer = caller.chat("hi", json!({})).await.ok();
    assert_eq!(json!(answer.release()), step["release"], "new answers come from the new release");
    let learned = greedy(&caller, "Tell me a fact.").await;
    assert_ne!(learned, before);
    clone_holds_the_adapter(home.data.path(), &releases[0]);
    fork_begins_with(&server, &releases[0], &learned).await;

    assert!(server.terminate().success());
    let server = home.start();
    let caller = server.caller("learner");
    assert_eq!(greedy(&caller, "Tell me a fact.").await, learned, "the restart serves the same adapter");
    assert_eq!(greedy(&server.caller("fork"), "Tell me a fact.").await, learned, "and so does the fork");
    assert_eq!(greedy(&server.caller("bystander"), "Tell me a fact.").await, before, "others begin with the base");

    let rolled = caller.post(&caller.path("/rollback"), json!({ "release_id": base["release_id"] })).await.ok().body;
    assert_eq!(rolled["content_id"], base["content_id"]);
    assert_ne!(rolled["release_id"], base["release_id"], "history is never rewritten");
    assert_eq!(rolled["sequence"], 2);
    assert_eq!(greedy(&caller, "Tell me a fact.").await, before);
    let pinned = caller
        .chat(
            "Tell me a fact.",
            json!({ "model": step["release"], "temperature": 0, "max_tokens": 16, "logprobs": true }),
        )
        .await
        .ok();
    assert_eq!(pinned.body["choices"][0]["logprobs"].to_string(), learned, "a pinned release answers as it did");
    assert!(server.terminate().success());
    (step, receipts)
}

/// The chain agrees with the database in every field, and the step gives the same release again.
async fn explains_itself(home: &Home) {
    let verified = home.command(&["release", "verify", "learner", "--json"]).output().expect("it runs");
    let told: Value = serde_json::from_slice(&verified.stdout).expect("JSON");
    assert!(verified.status.success(), "{told}");
    assert_eq!((&told["releases"], &told["findings"]), (&json!(3), &json!([])));
    let replayed = home.command(&["replay", "1", "--scenario", "learner", "--json"]).output().expect("it runs");
    let told: Value = serde_json::from_slice(&replayed.stdout).expect("JSON");
    assert_eq!(told["same"], true, "{told}");
    let server = home.start();
    let caller = server.caller("learner");
    let told = caller.post(&caller.path("/replay"), json!({ "step": 1 })).await.ok().body;
    assert_eq!(told["same"], true, "{told}");
    assert!(server.terminate().success());
}

/// All records leave as lines, and an erased one is in no later line, nor its report; what it trained is named.
async fn leaves_and_is_erased(home: &Home, step: &Value, receipts: &[String]) {
    let server = home.start();
    let caller = server.caller("learner");
    let export = async || {
        let lines = caller.get(&caller.path("/export")).await.ok().body;
        lines.as_str().expect("lines").lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let before = export().await;
    let erased = caller.post(&caller.path("/erase"), json!({ "record": receipts[0] })).await.ok().body;
    assert_eq!((&erased["records"], &erased["waiting"]), (&json!(2), &json!(0)), "{erased}");
    assert_eq!(erased["trained_releases"], json!([step["release"]]));
    let after = export().await;
    assert_eq!(before.len(), after.len() + 2);
    assert!(before.iter().any(|line| line.contains(&receipts[0])));
    assert!(!after.iter().any(|line| line.contains(&receipts[0])));
    assert!(server.terminate().success());
    let server = home.start();
    let gone = server.caller("learner");
    assert_eq!(gone.get(&gone.path(&format!("/records/{}", receipts[0]))).await.status, StatusCode::NOT_FOUND);
    assert!(server.terminate().success());
}

/// A new scenario whose first request names the release has its weights as its own first release.
async fn fork_begins_with(server: &ServerProcess, release: &Value, learned: &str) {
    let fork = server.caller("fork");
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "Tell me a fact." }], "temperature": 0,
        "max_tokens": 16, "logprobs": true });
    for _ in 0..2 {
        let id = release["release_id"].as_str().expect("an id");
        let request = fork.request(reqwest::Method::POST, "/v1/chat/completions").header("x-reef-release-id", id);
        let answer = fork.send(request.json(&body)).await.ok();
        assert_eq!(answer.body["choices"][0]["logprobs"].to_string(), learned);
        let own = fork.releases().await;
        assert_eq!((own.len(), &own[0]["release_id"]), (1, &json!(answer.release())));
        assert_eq!((&own[0]["content_id"], &own[0]["sequence"]), (&release["content_id"], &json!(0)));
        assert_eq!((&own[0]["parent"], &own[0]["origin"]["kind"]), (&release["release_id"], &json!("base")));
    }
}

/// What anybody can do with ordinary tools: clone, fetch the weights, look at the history.
fn clone_holds_the_adapter(data: &Path, head: &Value) {
    let copy = data.join("clone");
    let remote = format!("file://{}", data.join("releases.git").display());
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().expect("git runs");
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let at = copy.to_str().unwrap();
    git(&[
        "-c",
        "filter.lfs.smudge=git-lfs smudge -- %f",
        "-c",
        "filter.lfs.process=git-lfs filter-process",
        "-c",
        "filter.lfs.required=true",
        "clone",
        "-q",
        "-b",
        "default/learner",
        &remote,
        at,
    ]);
    assert_eq!(git(&["-C", at, "rev-parse", "HEAD"]).trim(), head["release_id"].as_str().unwrap());
    let bytes = std::fs::read(copy.join("adapter_model.safetensors")).expect("the adapter is in the clone");
    assert!(bytes.len() > 1_000_000, "the weights, not a pointer: {} bytes", bytes.len());
}

#[tokio::test]
async fn a_refused_candidate_leaves_serving_untouched_and_is_recorded_with_its_reason() {
    let host = host().await;
    let caller = host.caller("strict");
    caller.create(json!({ "recipe_config": quick(), "gate": { "kind": "min-improvement", "delta": 1.0 } })).await;
    let task = |n: u32| json!({ "messages": [{ "role": "user", "content": format!("Say {n}.") }], "answer": n.to_string(), "grader": "similarity" });
    let tasks = json!({ "tasks": (0..4).map(task).collect::<Vec<_>>() });
    caller.send(caller.request(Method::PUT, &caller.path("/held-out")).json(&tasks)).await.ok();
    feed(&caller, 4).await;
    let step = ended(&caller, 1).await.remove(0);
    assert_eq!(step["kind"], "rejected", "{step}");
    assert!(step["reason"].as_str().unwrap().contains("min-improvement 1"), "{step}");
    assert!(step["metrics"]["held_out_served"].is_number(), "{step}");
    assert_eq!((&step["gate"]["pass"], &step["gate"]["evidence"]["tasks"]), (&json!(false), &json!(4)), "{step}");
    let status = caller.status().await;
    assert_eq!(status["head"]["sequence"], 0);
    assert_eq!(status["consumed"], 4);
    assert_eq!(caller.releases().await.len(), 1);
    host.stop().await;
}

#[tokio::test]
async fn a_held_out_prompt_never_meets_the_trainer() {
    let host = host().await;
    let caller = host.caller("careful");
    caller.create(json!({ "recipe_config": quick() })).await;
    let task =
        json!({ "messages": [{ "role": "user", "content": "The secret task." }], "answer": "x", "grader": "exact" });
    caller.send(caller.request(Method::PUT, &caller.path("/held-out")).json(&json!({ "tasks": [task] }))).await.ok();
    let receipt = caller.chat("The secret task.", json!({ "temperature": 1 })).await.ok().receipt();
    caller.report(&receipt, 1.0).await.ok();
    let status = poll("the retirement", || async {
        let row = caller.status().await;
        if row["retired"] == 1 { Ok(row) } else { Err(row.to_string()) }
    })
    .await;
    assert!(status["retired_reasons"].to_string().contains("held-out"), "{status}");
    host.stop().await;
}

#[tokio::test]
async fn training_in_manual_mode_waits_and_one_scenario_never_leaks_into_another() {
    let host = host().await;
    let learner = host.caller("one");
    learner.create(json!({ "recipe_config": quick(), "gate": { "kind": "always" }, "training_mode": "manual" })).await;
    feed(&learner, 4).await;
    assert_eq!(learner.status().await["waiting"], "training_mode is manual");
    assert!(learner.steps().await.is_empty());
    learner.post(&learner.path("/update"), json!({ "training_mode": "auto" })).await.ok();
    ended(&learner, 1).await;
    // A scenario made after the first one has learned starts from the base model all the same.
    let fresh = host.caller("two");
    let answer = fresh.chat("hi", json!({})).await.ok();
    let base = fresh.releases().await.remove(0);
    assert_eq!(json!(answer.release()), base["release_id"]);
    let first_base = learner.releases().await.pop().unwrap();
    assert_eq!(base["content_id"], first_base["content_id"]);
    host.stop().await;
}
