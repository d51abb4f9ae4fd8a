//! A step done again, and another recipe over the same experience: with the real model, the real trainer and a folder
//! that stays as it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use reef::config::Config;
use reef::jobs::backtest::{self, Backtest, backtest};
use reef::jobs::replay_step::{Replayed, Wanted, replay_step};
use reef::store_place::StoreSection;
use reef_core::{ScenarioName, TenantId, sha256_hex};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::learn::{ended, feed, quick};
use crate::support::{Caller, TestHost, component, config, faults, model, reef, sao};

const SCENARIO: &str = "again";

fn names() -> (TenantId, ScenarioName) {
    (TenantId::parse("default").unwrap(), ScenarioName::parse(SCENARIO).unwrap())
}

fn wanted(data: &Path, step: u32) -> Wanted {
    let (tenant, scenario) = names();
    Wanted {
        data: data.to_owned(),
        store: StoreSection::default(),
        tenant,
        scenario,
        step,
        model: model(),
        threads: None,
        compile_in_process: true,
    }
}

/// Two steps of `sao`, measured on held-out tasks.
async fn learned() -> (TestHost, Caller, Vec<Value>) {
    let host = super::learn::host().await;
    let caller = host.caller(SCENARIO);
    caller.create(json!({ "recipe_config": quick(), "gate": { "kind": "non-inferiority", "margin": 1.0 } })).await;
    let task = |n: u32| json!({ "messages": [{ "role": "user", "content": format!("Say {n}.") }], "answer": n.to_string(), "grader": "similarity" });
    let tasks = json!({ "tasks": (0..3).map(task).collect::<Vec<_>>() });
    caller.send(caller.request(Method::PUT, &caller.path("/held-out")).json(&tasks)).await.ok();
    feed(&caller, 4).await;
    ended(&caller, 1).await;
    feed(&caller, 4).await;
    let mut steps = ended(&caller, 2).await;
    steps.reverse();
    assert!(steps.iter().all(|step| step["kind"] == "released"), "{steps:?}");
    (host, caller, steps)
}

fn assert_same(replayed: &Replayed, names: &[&str]) {
    assert!(replayed.same, "{replayed:#?}");
    let compared: Vec<&str> = replayed.items.iter().map(|item| item.name.as_str()).collect();
    assert_eq!(compared, names, "{replayed:#?}");
    assert_eq!(replayed.notes, Vec::<String>::new());
}

fn differing(replayed: &Replayed) -> Vec<&str> {
    replayed.items.iter().filter(|item| !item.same).map(|item| item.name.as_str()).collect()
}

/// Every file below a folder with the digest of its bytes.
fn fingerprint(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).expect("listed") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                found.insert(path.clone(), "folder".to_owned());
                folders.push(path);
            } else {
                found.insert(path.clone(), sha256_hex(&std::fs::read(&path).expect("read")));
            }
        }
    }
    found
}

/// Changes one score in the database of a server that is stopped.
fn tamper(data: &Path, report: &str) {
    let script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); \
                  n = c.execute('UPDATE samples SET score = 0.5 WHERE report = ?', (sys.argv[2],)).rowcount; \
                  c.commit(); c.close(); sys.exit(0 if n == 1 else 1)";
    let status = Command::new("python3").args(["-c", script]).arg(data.join("reef.db")).arg(report).status();
    assert!(status.expect("python3 runs").success(), "one score was changed");
}

fn run_replay(data: &Path, extra: &[&str]) -> std::process::Output {
    let mut command = reef();
    command.args(["replay", "--scenario", SCENARIO, "1", "--data"]).arg(data).arg("--model").arg(model()).args(extra);
    command.output().expect("reef runs")
}

/// The same on the server itself.
async fn over_http(caller: &Caller) {
    let replayed = caller.post(&caller.path("/replay"), json!({ "step": 1 })).await.ok().body;
    assert_eq!((&replayed["step"], &replayed["same"]), (&json!(1), &json!(true)), "{replayed}");
    for (body, status) in [(json!({ "step": 99 }), 404), (json!({ "step": 1, "threads": 0 }), 400), (json!({}), 400)] {
        assert_eq!(caller.post(&caller.path("/replay"), body.clone()).await.status.as_u16(), status, "{body}");
    }
}

#[tokio::test]
async fn a_step_done_again_is_the_same_and_a_changed_byte_shows() {
    let (host, caller, steps) = learned().await;
    let compared = [
        "selection",
        "retired",
        "seed",
        "candidate",
        "model calls",
        "decision",
        "state",
        "select-samples",
        "propose-update",
        "evaluate",
        "metrics",
    ];
    let data = host.data.path().to_owned();
    assert_same(&replay_step(&wanted(&data, 1)).await.expect("beside the server"), &compared);
    over_http(&caller).await;
    let data = host.stop().await;
    let before = fingerprint(data.path());
    let replayed = replay_step(&wanted(data.path(), 2)).await.expect("without a server");
    assert_same(&replayed, &compared);
    let candidate = replayed.items.iter().find(|item| item.name == "candidate").expect("compared");
    assert_eq!(json!(candidate.is), steps[1]["candidate"]);

    let output = run_replay(data.path(), &[]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}{}", String::from_utf8_lossy(&output.stderr));
    assert!(shown.contains("candidate") && !shown.contains("DIFFERS"), "{shown}");
    assert_eq!(fingerprint(data.path()), before, "a replay writes nothing");

    let one = Wanted { threads: Some(1), ..wanted(data.path(), 1) };
    let replayed = replay_step(&one).await.expect("with one thread");
    let fuel = ["selection", "seed", "select-samples", "evaluate"];
    assert!(fuel.iter().all(|name| !differing(&replayed).contains(name)), "{replayed:#?}");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(threads == 1 || replayed.notes.iter().any(|note| note.contains("threads was")), "{replayed:#?}");

    tamper(data.path(), steps[0]["batch"][0].as_str().expect("a report"));
    let replayed = replay_step(&wanted(data.path(), 1)).await.expect("replayed");
    let names = differing(&replayed);
    assert!(names.contains(&"candidate") && names.contains(&"metrics"), "{replayed:#?}");
    assert!(!names.contains(&"selection") && !names.contains(&"seed"), "{replayed:#?}");
    let output = run_replay(data.path(), &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    let told: Value = serde_json::from_slice(&output.stdout).expect("json");
    assert_eq!(told["same"], false, "{told}");
}

#[tokio::test]
async fn a_step_that_failed_or_never_was_is_told() {
    let host = TestHost::start(|config| config.recipe = Some(faults())).await;
    let caller = host.caller(SCENARIO);
    caller.create(json!({ "recipe_config": { "fault": "trap", "where": "propose" } })).await;
    feed(&caller, 2).await;
    let steps = ended(&caller, 1).await;
    let data = host.stop().await;
    let failed = steps.last().expect("a step");
    assert_eq!(failed["kind"], "failed", "{failed}");
    let replayed = replay_step(&wanted(data.path(), 1)).await.expect("replayed");
    assert!(replayed.same, "{replayed:#?}");
    assert!(replayed.items.iter().any(|item| item.name == "decision" && item.is.starts_with("failed: ")));
    let refusal = replay_step(&wanted(data.path(), 99)).await.expect_err("no such step").to_string();
    assert!(refusal.contains("step 99") && refusal.contains("does not exist"), "{refusal}");
    let component = std::fs::read_dir(data.path().join("recipes")).expect("kept").next().expect("one").expect("entry");
    std::fs::write(component.path(), "damaged").expect("written");
    let refusal = replay_step(&wanted(data.path(), 1)).await.expect_err("no such component").to_string();
    assert!(refusal.contains("damaged"), "{refusal}");
}

#[tokio::test]
async fn a_recipe_that_reads_texts_and_asks_a_verifier_is_replayed_the_same() {
    let host = TestHost::start(|config| {
        config.recipe = Some(component("examples/verified.wasm"));
        config.recipes.verifiers = BTreeMap::from([("exact-match".to_owned(), component("examples/exact_match.wasm"))]);
    })
    .await;
    let caller = host.caller(SCENARIO);
    caller.create(json!({ "training_mode": "manual", "gate": { "kind": "always" } })).await;
    let mut receipts = Vec::new();
    for index in 0..4 {
        let answer = caller.chat(&format!("Say \"{index}\"."), json!({ "seed": index, "max_tokens": 6 })).await.ok();
        receipts.push(answer.receipt());
    }
    let plain = caller.chat("Say it without quotes.", json!({ "max_tokens": 4 })).await.ok().receipt();
    // Two first turns do not follow each other: the recipe hears of it, and nobody trains on it.
    let other = caller.chat("Say.", json!({ "max_tokens": 4 })).await.ok().receipt();
    caller.post("/reef/report", json!({ "references": [plain, other], "score": 1.0 })).await.ok();
    for receipt in &receipts {
        caller.report(receipt, 1.0).await.ok();
    }
    caller.post(&caller.path("/update"), json!({ "training_mode": "auto" })).await.ok();
    let step = ended(&caller, 1).await.pop().expect("a step");
    assert_eq!(step["kind"], "released", "{step}");
    assert_eq!(step["metrics"]["verified/unusable"], 1.0, "{step}");
    assert!(step["metrics"]["verified/tokens"].as_f64().expect("counted") >= 4.0, "{step}");
    assert!(step["metrics"]["verified/score"].is_number(), "{step}");
    let data = host.stop().await;
    let replayed = replay_step(&wanted(data.path(), 1)).await.expect("replayed");
    assert!(replayed.same && replayed.notes.is_empty(), "{replayed:#?}");

    let mut again = over(data.path(), component("examples/verified.wasm"), json!({}), false);
    again.config.recipes.verifiers.insert("exact-match".to_owned(), component("examples/exact_match.wasm"));
    let again = run(again).await;
    assert_eq!(batches(&again.imagined), batches(&again.recorded), "{again:#?}");
    let verifier = sha256_hex(&std::fs::read(component("examples/exact_match.wasm")).expect("read"));
    std::fs::remove_file(data.path().join(format!("recipes/{verifier}.wasm"))).expect("removed");
    let refusal = replay_step(&wanted(data.path(), 1)).await.expect_err("its verifier is gone").to_string();
    assert!(refusal.contains(&verifier), "{refusal}");
}

fn over(data: &Path, recipe: PathBuf, values: Value, train: bool) -> backtest::Wanted {
    let (tenant, scenario) = names();
    let config = Config { model: model(), ..config(data) };
    let values: Map<String, Value> = values.as_object().expect("an object").clone();
    backtest::Wanted { config, tenant, scenario, recipe, values, steps_max: backtest::STEPS_MAX, train }
}

fn batches(column: &backtest::Column) -> Vec<Vec<String>> {
    column.steps.iter().map(|step| step.batch.iter().map(ToString::to_string).collect()).collect()
}

async fn run(wanted: backtest::Wanted) -> Backtest {
    let seen = std::sync::atomic::AtomicU64::new(0);
    let note = |reports| seen.store(reports, std::sync::atomic::Ordering::Relaxed);
    let result = backtest(&wanted, &note).await.expect("walked");
    assert_eq!(seen.into_inner(), result.reports, "the progress hears of every report");
    result
}

#[tokio::test]
async fn a_backtest_of_the_recipe_in_use_reproduces_its_steps_and_touches_nothing() {
    let (host, caller, steps) = learned().await;
    caller.chat("Say 1.", json!({})).await.ok();
    let fenced = caller.chat("Say 1.", json!({ "temperature": 1.0 })).await.ok().receipt();
    caller.report(&fenced, 1.0).await.ok();
    let data = host.stop().await;
    let before = fingerprint(data.path());

    let same = run(over(data.path(), sao(), json!({}), true)).await;
    assert_eq!(same.reports, 9);
    assert_eq!(batches(&same.imagined), batches(&same.recorded), "{same:#?}");
    let real: Vec<Option<u32>> = same.imagined.steps.iter().map(|step| step.same_as).collect();
    assert_eq!(real, [Some(1), Some(2)]);
    for (imagined, step) in same.imagined.steps.iter().zip(&steps) {
        assert_eq!(imagined.outcome, format!("proposed {}", step["candidate"].as_str().expect("a candidate")));
        assert_eq!(json!(imagined.metrics["reward_mean"]), step["metrics"]["reward_mean"]);
        assert_eq!(json!(imagined.head), step["parent"]);
    }
    let means: Vec<_> = same.imagined.steps.iter().map(|step| step.score_mean).collect();
    assert_eq!(means, same.recorded.steps.iter().map(|step| step.score_mean).collect::<Vec<_>>());
    assert_eq!(same.imagined.refused, BTreeMap::from([("prompt of a held-out task".to_owned(), 1)]));
    assert!(same.imagined.last_wait.is_some() && same.imagined.faults.is_empty(), "{same:#?}");

    let other = run(over(data.path(), faults(), json!({ "batch_size": 3 }), false)).await;
    assert_eq!(batches(&other.imagined).iter().map(Vec::len).collect::<Vec<_>>(), [3, 3], "{other:#?}");
    assert!(other.imagined.steps.iter().all(|step| step.same_as.is_none() && step.outcome == "selected"));
    assert!(other.notes.iter().any(|note| note.contains("critic_warmup_steps")), "{:?}", other.notes);
    let broken = run(over(data.path(), faults(), json!({ "fault": "trap", "where": "select" }), false)).await;
    assert!(broken.imagined.steps.is_empty() && broken.imagined.faults.values().sum::<u64>() >= 3, "{broken:#?}");

    let output = reef()
        .args(["recipe", "backtest", "--scenario", SCENARIO, "--steps", "1", "--set", "batch_size=2", "--data"])
        .arg(data.path())
        .arg("--model")
        .arg(model())
        .arg(faults())
        .output()
        .expect("reef runs");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}{}", String::from_utf8_lossy(&output.stderr));
    assert!(shown.contains("this recipe: faults@") && shown.contains("really happened: sao@"), "{shown}");
    assert_eq!(fingerprint(data.path()), before, "a backtest writes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_shown_with_why_it_won_and_what_it_cost() {
    let host = super::learn::host().await;
    let caller = host.caller("shown");
    caller.create(json!({ "recipe_config": quick(), "gate": { "kind": "always" } })).await;
    feed(&caller, 4).await;
    let step = ended(&caller, 1).await.remove(0);
    let id = step["release"].as_str().expect("released").to_owned();
    let found = caller.get(&caller.path(&format!("/releases/{id}"))).await.ok().body;
    assert_eq!((&found["release"]["release_id"], &found["step"]["step"]), (&json!(id), &json!(1)));
    assert_eq!(found["step"]["candidate"], found["release"]["content_id"], "the candidate is what was released");
    let run = |arguments: &[&str]| {
        let output = reef().args(arguments).args(["--url", &host.url]).output().expect("reef runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let shown = run(&["release", "show", "shown", &id]);
    for part in [
        "released: ",
        "select-samples",
        "propose-update",
        "evaluate",
        "reef replay --tenant default --scenario shown 1",
    ] {
        assert!(shown.contains(part), "'{part}' in\n{shown}");
    }
    let machine: Value = serde_json::from_str(&run(&["release", "show", "shown", &id, "--json"])).expect("json");
    assert_eq!(machine["step"]["calls"].as_array().map(Vec::len), Some(3));
    assert!(run(&["step", "show", "shown", "1"]).contains("propose-update"));
    let client = reef::tls::http_client().build().expect("a client");
    for path in [found["page"].as_str().expect("a page").to_owned(), caller.path("/steps/1/page")] {
        let answer = client.get(format!("{}{path}", host.url)).send().await.expect("answered");
        let policy = answer.headers()["content-security-policy"].to_str().expect("text").to_owned();
        let page = answer.text().await.expect("text");
        let report = step["batch"][0].as_str().expect("a report");
        for part in ["<h1>shown · step 1</h1>", "Released", report, &id, "q_proj", "propose-update", "reef replay"] {
            assert!(page.contains(part), "'{part}' in\n{page}");
        }
        assert!(policy.contains("default-src 'none'") && !page.contains("<script"), "{policy}");
    }
    host.stop().await;
}
