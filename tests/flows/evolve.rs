//! A harness that evolves on the server: a report becomes a change that episodes try, a release on the second chain or a
//! candidate that waits, and nothing of it is learned from. The recipe is the component that ships, the model a script.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use reef::config::{Config, Scope, TokenEntry};
use reef::episodes::ReleaseMode;
use reef::jobs::replay_step::{Wanted, replay_step};
use reef::provider::config::{BindingSection, ProviderSection};
use reef::store_place::StoreSection;
use reef_core::{ScenarioName, TenantId, sha256_hex};
use reqwest::Method;
use serde_json::{Value, json};

use super::learn::ended;
use crate::http::harness::{adopt, served};
use crate::support::{Caller, TestHost, component, model, poll, reef};

pub const SCENARIO: &str = "evolving";
/// What agents must be told to put the bare answer last.
const CHANGE: &str =
    r#"{"notes":"the form","changes":[{"op":"put","kind":"rules","id":"form","text":"End with the bare result."}]}"#;

/// What the model is made to do, changed while it serves.
#[derive(Clone)]
pub struct Script {
    /// The answer of the proposer.
    pub changes: String,
    /// Agents get no answer.
    pub down: bool,
    /// Nobody gets an answer for as long as this is set.
    pub stalled: bool,
}

/// An upstream whose agent ends its answer as wanted iff a rule says so. It does its work with the tool `exec`.
pub async fn upstream() -> (String, Arc<Mutex<Script>>) {
    let script = Arc::new(Mutex::new(Script { changes: CHANGE.to_owned(), down: false, stalled: false }));
    let held = Arc::clone(&script);
    let app = Router::new().fallback(move |body: String| {
        let held = Arc::clone(&held);
        async move {
            let script = loop {
                let script = held.lock().expect("held").clone();
                if !script.stalled {
                    break script;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            answer(&script, &serde_json::from_str(&body).unwrap_or_default())
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, script)
}

fn answer(script: &Script, body: &Value) -> Response {
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    let text = |at: usize| messages.get(at).and_then(|message| message["content"].as_str()).unwrap_or_default();
    let message = if body.get("tools").is_none() {
        json!({ "role": "assistant", "content": beside(script, text(0), text(1)) })
    } else if script.down {
        return (StatusCode::INTERNAL_SERVER_ERROR, json!({ "error": { "message": "out" } }).to_string())
            .into_response();
    } else if messages.len() == 2 {
        let arguments = json!({ "command": "expr $(cat a) + $(cat b)" }).to_string();
        // What pi calls its shell.
        let name = if body["tools"].to_string().contains("\"bash\"") { "bash" } else { "exec" };
        json!({ "role": "assistant", "content": null, "tool_calls":
            [{ "index": 0, "id": "call-1", "type": "function", "function": { "name": name, "arguments": arguments } }] })
    } else if text(0).contains("bare result") {
        json!({ "role": "assistant", "content": text(3).trim() })
    } else {
        json!({ "role": "assistant", "content": format!("It is {}.", text(3).trim()) })
    };
    let finish = if message.get("tool_calls").is_some() { "tool_calls" } else { "stop" };
    if body["stream"] == true {
        let chunk = |choices: Value| {
            format!("data: {}\n\n", json!({ "id": "u", "object": "chat.completion.chunk", "choices": choices }))
        };
        let said = chunk(json!([{ "index": 0, "delta": message }]));
        let end = chunk(json!([{ "index": 0, "delta": {}, "finish_reason": finish }]));
        let kind = [("content-type", "text/event-stream")];
        return (kind, format!("{said}{end}data: [DONE]\n\n")).into_response();
    }
    let choices = json!([{ "index": 0, "message": message, "finish_reason": finish }]);
    let usage = json!({ "prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18 });
    axum::Json(json!({ "id": "u", "choices": choices, "usage": usage })).into_response()
}

/// What the model says to a recipe: reviews and grades kindly, and wants the script's changes.
fn beside(script: &Script, instruction: &str, material: &str) -> String {
    if instruction.contains("You review an edit") {
        r#"{"approve": true, "reason": "it does"}"#.to_owned()
    } else if instruction.starts_with("Summarise a session") {
        "It added two numbers and spoke too much.".to_owned()
    } else if instruction.contains("task_completion") {
        r#"{"task_completion":0.8,"response_quality":0.6,"efficiency":1,"tool_usage":0.5}"#.to_owned()
    } else {
        let serving = material.split(" (serves now)").next().and_then(|text| text.rsplit([' ', '\n']).next());
        script.changes.replace("SERVING", serving.unwrap_or_default())
    }
}

/// Three sums.
pub const SUMS: [(&str, u32, u32); 3] = [("one", 1, 2), ("two", 20, 22), ("three", 5, 5)];

/// Sums, each with a verifier that reads the last line.
pub fn tasks(folder: &Path, sums: &[(&str, u32, u32)]) {
    for (name, a, b) in sums {
        let root = folder.join(name);
        fs::create_dir_all(root.join("files")).expect("made");
        fs::write(root.join("files/a"), format!("{a}\n")).expect("written");
        fs::write(root.join("files/b"), format!("{b}\n")).expect("written");
        fs::write(root.join("instruction.md"), "Add the numbers that stand in the two files a and b of this folder.\n")
            .expect("written");
        fs::write(root.join("verify.sh"), format!("[ \"$(tail -n 1 \"$REEF_OUTPUT\")\" = {} ]\n", a + b))
            .expect("written");
        fs::write(
            root.join("task.toml"),
            "verifier.program = [\"sh\", \"{task}/verify.sh\"]\nlimits = { seconds = 60 }\n",
        )
        .expect("written");
    }
}

/// The recipe, the tasks and the model at this address.
pub fn configure(config: &mut Config, recipe: &str, (url, tasks): (&str, &Path)) {
    config.recipe = Some(component(&format!("reef_recipe_{recipe}.wasm")));
    let provider = json!({ "url": url, "models": { "far": "far-1" }, "retries_max": 0 });
    let provider: ProviderSection = serde_json::from_value(provider).expect("a provider");
    config.providers.insert("far".to_owned(), provider);
    for name in ["proposer", "reflection", "editor", "evolver"] {
        let binding = BindingSection { provider: "far".to_owned(), model: "far".to_owned() };
        config.bindings.insert(name.to_owned(), binding);
    }
    config.harness.model = Some("far".to_owned());
    config.harness.tasks.insert(SCENARIO.to_owned(), tasks.to_owned());
    config.harness.episodes.isolation = reef_episodes::Isolation::Preferred;
}

/// A server with the recipe, the tasks and the model; and a folder that must outlive it.
pub async fn evolving_with(
    recipe: &str,
    change: impl FnOnce(&mut Config),
) -> (TestHost, tempfile::TempDir, Arc<Mutex<Script>>) {
    let (url, script) = upstream().await;
    let folder = tempfile::tempdir().expect("a folder");
    tasks(folder.path(), &SUMS);
    let path = folder.path().to_owned();
    let host = TestHost::start(move |config| {
        configure(config, recipe, (&url, &path));
        change(config);
    })
    .await;
    (host, folder, script)
}

async fn evolving(change: impl FnOnce(&mut Config)) -> (TestHost, tempfile::TempDir, Arc<Mutex<Script>>) {
    evolving_with("harness_evolve", change).await
}

/// A failing answer of the served model, reported.
async fn fail(caller: &Caller) {
    report(caller, json!({ "feedback": "no bare result" })).await;
}

#[tokio::test]
async fn what_a_person_says_of_an_answer_reaches_the_recipe() {
    let (host, _folder, _script) = evolving(|_| {}).await;
    let caller = host.caller(SCENARIO);
    caller.create(json!({ "training_mode": "manual" })).await;
    let body = json!({ "model": "far", "messages": [{ "role": "user", "content": "Add 1 and 2." }] });
    let receipt = caller.post("/v1/chat/completions", body).await.ok().receipt();
    let report = json!({ "score": 0.0, "references": [receipt], "feedback": "no bare result" });
    let id = caller.post("/reef/report", report).await.ok().body["agent_record_id"].clone();
    let stored = caller.get(&caller.path(&format!("/records/{}", id.as_str().expect("an id")))).await.ok().body;
    assert!(stored.to_string().contains(r#""metadata":{"feedback":"no bare result"}"#), "{stored}");
    host.stop().await;
}

/// The same with what the recipe reads.
pub async fn report(caller: &Caller, metadata: Value) {
    let body = json!({ "model": "far", "messages": [{ "role": "user", "content": "Add 1 and 2." }] });
    let receipt = caller.post("/v1/chat/completions", body).await.ok().receipt();
    let report = json!({ "score": 0.0, "references": [receipt], "metadata": metadata });
    caller.post("/reef/report", report).await.ok();
}

async fn records(caller: &Caller) -> usize {
    caller.get(&caller.path("/records?limit=1000")).await.ok().body["records"].as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn a_report_becomes_a_harness_release_that_replays_and_leaves_no_record() {
    let (host, _folder, _script) = evolving(|_| {}).await;
    let caller = host.caller(SCENARIO);
    caller.create(json!({})).await;
    let (empty, weights) = (served(&caller).await, caller.status().await["head"]["release_id"].clone());
    assert_eq!(empty["files"], json!({}));
    fail(&caller).await;
    let before = records(&caller).await;
    let step = ended(&caller, 1).await.remove(0);
    assert_eq!(step["kind"], "released", "{step}");
    assert!(step["reason"].as_str().expect("a reason").contains("6 wins, 0 losses"), "{step}");
    let metric = |name: &str| step["metrics"][name].as_f64().unwrap_or(f64::NAN);
    // Two repeats on both sides of three tasks; the gate's are among them.
    assert_eq!((metric("episodes/played"), metric("episodes/reused")), (12.0, 6.0), "{step}");
    assert_eq!(metric("episodes/infrastructure_failed"), 0.0);
    assert_eq!((&step["parent"], &step["gate"]["pass"]), (&empty["release_id"], &json!(true)), "{step}");

    let now = served(&caller).await;
    assert_eq!(now["files"], json!({ "rules/form/text.md": "End with the bare result." }));
    assert_eq!((&now["parent_release_id"], &now["release_id"]), (&empty["release_id"], &step["release"]));
    let evaluation = &now["evaluation"];
    assert_eq!(
        (&evaluation["compared"], &evaluation["candidate"], &evaluation["incumbent"]),
        (&json!(3), &json!(1.0), &json!(0.0))
    );
    assert_eq!(evaluation["weights"], weights, "it says with which weights it was measured");
    assert_eq!(caller.status().await["head"]["release_id"], weights, "the weights stay");
    assert_eq!(records(&caller).await, before, "episodes and the proposer leave no record");
    let page = caller.get(&format!("/reef/harness/releases/{}/page", now["sequence"])).await.ok().body;
    assert!(page.as_str().expect("a page").contains("bare result"));

    let data = host.stop().await;
    let wanted = Wanted {
        store: StoreSection::default(),
        data: data.path().to_owned(),
        tenant: TenantId::parse("default").expect("a name"),
        scenario: ScenarioName::parse(SCENARIO).expect("a name"),
        step: 1,
        model: model(),
        threads: None,
        compile_in_process: true,
    };
    let replayed = replay_step(&wanted).await.expect("replays");
    assert!(replayed.same, "{replayed:#?}");
    let compared: Vec<&str> = replayed.items.iter().map(|item| item.name.as_str()).collect();
    assert!(compared.contains(&"candidate") && compared.contains(&"calls of models and harness"), "{compared:?}");
}

#[tokio::test]
async fn a_step_that_was_cut_off_is_formed_again_after_a_restart() {
    let (url, script) = upstream().await;
    let folder = tempfile::tempdir().expect("a folder");
    tasks(folder.path(), &SUMS);
    let host = TestHost::start(|config| configure(config, "harness_evolve", (&url, folder.path()))).await;
    let caller = host.caller(SCENARIO);
    caller.create(json!({})).await;
    let empty = served(&caller).await["release_id"].clone();
    let receipt = {
        let body = json!({ "model": "far", "messages": [{ "role": "user", "content": "Add 1 and 2." }] });
        caller.post("/v1/chat/completions", body).await.ok().receipt()
    };
    script.lock().expect("held").stalled = true;
    caller.report(&receipt, 0.0).await.ok();
    let running = poll("a step that runs", || async {
        let steps = caller.steps().await;
        steps.first().filter(|step| step["kind"] == "running").cloned().ok_or_else(|| format!("{steps:?}"))
    })
    .await;
    let data = host.stop().await;
    script.lock().expect("held").stalled = false;
    let host = TestHost::start_in(data, |config| configure(config, "harness_evolve", (&url, folder.path()))).await;
    let caller = host.caller(SCENARIO);
    let step = ended(&caller, 1).await.remove(0);
    assert_eq!((&step["kind"], &step["step"]), (&json!("released"), &json!(1)), "{step}");
    for same in ["batch", "seed", "parent", "now_ms"] {
        assert_eq!(step[same], running[same], "{same}");
    }
    assert_eq!((&step["parent"], caller.steps().await.len()), (&empty, 1));
    host.stop().await;
}

#[tokio::test]
async fn under_review_a_candidate_waits_and_a_person_releases_it() {
    let (host, _folder, _script) = evolving(|config| config.harness.release = ReleaseMode::Review).await;
    let caller = host.caller(SCENARIO);
    caller.create(json!({})).await;
    let empty = served(&caller).await;
    fail(&caller).await;
    let step = ended(&caller, 1).await.remove(0);
    assert_eq!(step["kind"], "held", "{step}");
    assert_eq!(served(&caller).await["release_id"], empty["release_id"], "the head stays");
    let listed = caller.get("/reef/harness/releases").await.ok().body;
    let held =
        listed["releases"].as_array().expect("releases").iter().find(|release| release["status"] == "held").cloned();
    let held = held.expect("it waits");
    caller.post(&caller.path("/promote"), json!({ "release_id": held["release_id"] })).await.ok();
    assert_eq!(served(&caller).await["files"]["rules/form/text.md"], "End with the bare result.");
    host.stop().await;
}

#[tokio::test]
async fn a_person_who_was_faster_keeps_an_older_candidate_from_the_chain() {
    let (host, _folder, _script) = evolving(|config| config.harness.release = ReleaseMode::Review).await;
    let caller = host.caller(SCENARIO);
    caller.create(json!({})).await;
    fail(&caller).await;
    ended(&caller, 1).await;
    let listed = caller.get("/reef/harness/releases").await.ok().body;
    let held =
        listed["releases"].as_array().expect("releases").iter().find(|release| release["status"] == "held").cloned();
    adopt(&caller, "style", "Be brief.\n").await;
    let id = held.expect("it waits")["release_id"].clone();
    let late = caller.post(&caller.path("/promote"), json!({ "release_id": id })).await;
    assert_eq!(late.status, StatusCode::CONFLICT.as_u16(), "{}", late.body);
    assert_eq!(served(&caller).await["files"], json!({ "rules/style/text.md": "Be brief.\n" }));
    host.stop().await;
}

#[tokio::test]
async fn a_machine_that_fails_decides_nothing() {
    let (host, folder, script) = evolving(|_| {}).await;
    let caller = host.caller(SCENARIO);
    caller.create(json!({})).await;
    let empty = served(&caller).await["release_id"].clone();
    for name in ["two", "three"] {
        fs::remove_dir_all(folder.path().join(name)).expect("removed");
    }
    script.lock().expect("held").down = true;
    fail(&caller).await;
    // The batch is tried again: the newest step may be running.
    let steps = ended(&caller, 1).await;
    let first = steps.iter().rfind(|step| step["kind"] != "running").expect("an ended step");
    assert_eq!(first["kind"], "failed", "{steps:?}");
    assert_eq!(served(&caller).await["release_id"], empty);
    host.stop().await;
}

#[tokio::test]
async fn a_change_that_copies_a_task_is_not_admitted() {
    let (host, _folder, script) = evolving(|_| {}).await;
    let caller = host.caller(SCENARIO);
    caller.create(json!({})).await;
    let empty = served(&caller).await["release_id"].clone();
    let copied = "Add the numbers that stand in the two files a and b of this folder. End with the bare result.";
    let changes = json!({ "notes": "n", "changes": [{ "op": "put", "kind": "rules", "id": "form", "text": copied }] });
    script.lock().expect("held").changes = changes.to_string();
    fail(&caller).await;
    let step = ended(&caller, 1).await.remove(0);
    assert_eq!(step["kind"], "skipped", "{step}");
    assert!(step["reason"].as_str().expect("a reason").contains("repeats the task"), "{step}");
    assert_eq!(served(&caller).await["release_id"], empty);
    host.stop().await;
}

#[tokio::test]
async fn the_unrecorded_routes_open_for_those_who_may_evaluate_only() {
    let token = |secret: &str, scopes: &[Scope]| TokenEntry {
        sha256: Some(sha256_hex(secret.as_bytes())),
        env: None,
        name: None,
        tenant: TenantId::parse("acme").expect("a name"),
        scopes: scopes.to_vec(),
        default_scenario: None,
        scenarios: None,
    };
    let (host, _folder, _script) = evolving(|config| {
        config.auth.tokens = vec![
            token("all", &[Scope::Infer, Scope::Read, Scope::Admin, Scope::Report]),
            token("tries", &[Scope::Evaluate]),
        ];
    })
    .await;
    let (owner, tries) = (host.caller(SCENARIO).with_token("all"), host.caller(SCENARIO).with_token("tries"));
    owner.create(json!({})).await;
    let body = json!({ "model": "far", "messages": [{ "role": "user", "content": "hi" }] });
    let path = owner.path("/evaluation/v1/chat/completions");
    assert_eq!(owner.post(&path, body.clone()).await.status.as_u16(), 403, "it may not evaluate");
    assert_eq!(host.caller(SCENARIO).with_token("episode-x").post(&path, body.clone()).await.status.as_u16(), 401);
    let answer = tries.post(&path, body.clone()).await.ok();
    assert!(answer.receipt().is_empty() && !answer.release().is_empty());
    let elsewhere = "/reef/scenarios/absent/evaluation/v1/chat/completions";
    assert_eq!(tries.post(elsewhere, body.clone()).await.status.as_u16(), 404, "no scenario comes of an address");
    assert_eq!(tries.post("/v1/chat/completions", body).await.status.as_u16(), 403, "the recorded route stays shut");
    assert_eq!(records(&owner).await, 0);
    let models = tries.send(tries.request(Method::GET, &owner.path("/evaluation/v1/models"))).await.ok().body;
    assert!(models["data"][0]["id"].is_string(), "{models}");
    host.stop().await;
}

#[tokio::test]
async fn the_demo_shows_a_harness_that_evolves() {
    let mut command = reef();
    command.args(["demo-harness", "--json", "--recipe"]).arg(component("reef_recipe_harness_evolve.wasm"));
    command.arg("--model").arg(model()).env_remove("REEF_UPSTREAM_URL");
    let output = tokio::task::spawn_blocking(move || command.output().expect("reef runs")).await.expect("it ends");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {told}"));
    assert!(output.status.success(), "{told}");
    assert_eq!(
        (&summary["passed_before"], &summary["passed_after"], &summary["tasks"]),
        (&json!(0), &json!(3), &json!(3))
    );
    assert_eq!((&summary["model"], &summary["episodes"]), (&json!("scripted"), &json!(12.0)));
    println!("from report to release: {} s, {}", summary["report_to_release_seconds"], summary["isolation"]);
}

/// A tree with the rule, as a list of mutations on disk.
fn tree(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("tree.json");
    let rule =
        json!([{ "op": "create", "kind": "rules", "id": "form", "config": { "text": "End with the bare result.\n" } }]);
    fs::write(&path, rule.to_string()).expect("written");
    path
}

async fn run_by_hand(host: &TestHost, arguments: &[&std::ffi::OsStr]) -> Value {
    let mut command = reef();
    command.args(["harness", "run", "--json", "--without-isolation", "--model", "far", "--scenario", SCENARIO]);
    command.args(["--url", &host.url]).args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output().expect("reef runs")).await.expect("it ends");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {told}"))
}

#[tokio::test]
async fn episodes_run_by_hand_on_the_served_harness_and_on_one_from_disk() {
    let (host, folder, _script) = evolving(|_| {}).await;
    let caller = host.caller(SCENARIO);
    caller.create(json!({})).await;
    let tasks = folder.path().as_os_str();
    let served = run_by_hand(&host, &[tasks]).await;
    assert_eq!((&served["mean"], &served["scored"]), (&json!(0.0), &json!(3)), "{served}");
    let tree = tree(folder.path());
    let own =
        run_by_hand(&host, &[tasks, "--repeats".as_ref(), "2".as_ref(), "--harness".as_ref(), tree.as_os_str()]).await;
    assert_eq!((&own["mean"], &own["scored"]), (&json!(1.0), &json!(6)), "{own}");
    assert_eq!(records(&caller).await, 0);
    host.stop().await;
}

#[tokio::test]
async fn pi_plays_an_episode_where_it_reaches_nothing_but_the_gateway() {
    let (host, folder, _script) = evolving(|_| {}).await;
    host.caller(SCENARIO).create(json!({})).await;
    let pi = crate::support::root().join(".deps/clients-node/node_modules/.bin/pi");
    assert!(pi.exists(), "{} is missing; run scripts/setup.sh --tests", pi.display());
    let (task, tree) = (folder.path().join("two"), tree(folder.path()));
    let program: [&std::ffi::OsStr; 4] = ["--adapter".as_ref(), "pi".as_ref(), "--program".as_ref(), pi.as_os_str()];
    let arguments = [&[task.as_os_str(), "--harness".as_ref(), tree.as_os_str()][..], &program].concat();
    let played = run_by_hand(&host, &arguments).await;
    assert_eq!((&played["mean"], &played["scored"]), (&json!(1.0), &json!(1)), "{played}");
    host.stop().await;
}
