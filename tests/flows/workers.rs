//! Steps by several processes, and servers that end in the middle of one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::learn::{ended, feed, quick};
use crate::support::{Caller, ServerProcess, model, poll, reef, sao};

/// A configuration file of a server with so many workers.
fn configuration(folder: &Path, workers: usize) -> PathBuf {
    let path = folder.join("reef.yaml");
    fs::write(&path, format!("listen: 127.0.0.1:0\ntraining: {{ workers: {workers} }}\n")).unwrap();
    path
}

fn start(folder: &Path, workers: usize) -> ServerProcess {
    let (config, recipe) = (configuration(folder, workers), sao());
    let arguments = ["--config", config.to_str().unwrap(), "--recipe", recipe.to_str().unwrap()];
    ServerProcess::start(&folder.join("data"), &arguments)
}

async fn running(caller: &Caller) -> Value {
    poll("a running step", || async {
        match caller.steps().await.first() {
            Some(step) if step["kind"] == "running" => Ok(step.clone()),
            _ => Err(caller.status().await.to_string()),
        }
    })
    .await
}

/// Ids of the processes that train with a server.
fn workers_of(server: &ServerProcess) -> Vec<u32> {
    let children = Command::new("ps").args(["-o", "pid=,args=", "--ppid", &server.id().to_string()]).output().unwrap();
    let children = String::from_utf8(children.stdout).unwrap();
    let workers = children.lines().filter(|line| line.ends_with(" train-worker"));
    workers.map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect()
}

#[tokio::test]
async fn a_step_of_two_processes_is_released_replayed_and_outlives_a_worker() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), 2);
    let caller = server.caller("shared");
    caller.create(json!({ "recipe_config": quick(), "gate": { "kind": "always" } })).await;
    feed(&caller, 4).await;
    let first = ended(&caller, 1).await.remove(0);
    assert_eq!(first["kind"], "released", "{first}");
    assert_eq!(first["metrics"]["trainer/first_step_kl"], 0.0, "{first}");
    assert!(first["metrics"]["trainer/tokens"].as_f64().unwrap() > 0.0, "{first}");
    let [worker] = workers_of(&server)[..] else { panic!("one process beside the server: {:?}", workers_of(&server)) };

    assert!(Command::new("kill").args(["-KILL", &worker.to_string()]).status().unwrap().success());
    feed(&caller, 4).await;
    // Serving goes on whatever becomes of the step, and the step is made in the end: with another worker.
    let answer = caller.chat("Say something.", json!({ "max_tokens": 2 })).await;
    assert_eq!(answer.status, StatusCode::OK);
    let second = poll("a second release", || async {
        let steps = caller.steps().await;
        let released: Vec<&Value> = steps.iter().filter(|step| step["kind"] == "released").collect();
        if released.len() == 2 { Ok(released[0].clone()) } else { Err(format!("{steps:?} {}", caller.status().await)) }
    })
    .await;
    assert_ne!(workers_of(&server), [worker]);
    assert!(server.terminate().success());

    for step in [&first, &second] {
        let number = step["step"].to_string();
        let replayed = reef()
            .args(["replay", "--scenario", "shared", &number, "--data"])
            .arg(folder.path().join("data"))
            .arg("--model")
            .arg(model())
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&replayed.stdout);
        assert!(replayed.status.success(), "{told}{}", String::from_utf8_lossy(&replayed.stderr));
    }
}

#[tokio::test]
async fn a_server_that_ends_in_the_middle_of_a_step_ends_with_code_0() {
    for (round, workers) in [1, 1, 1, 2].into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let server = start(folder.path(), workers);
        let caller = server.caller("cut-off");
        // Most of the step is the critic's and the policy's passes over long answers.
        let config = [quick(), json!({ "critic_steps_per_actor": 64, "batch_size": 8 })];
        let config: serde_json::Map<String, Value> =
            config.iter().flat_map(|part| part.as_object().unwrap().clone()).collect();
        caller.create(json!({ "recipe_config": config, "gate": { "kind": "always" } })).await;
        for index in 0..8 {
            let answer = caller.chat("Tell me a long story.", json!({ "seed": index, "max_tokens": 60 })).await.ok();
            caller.report(&answer.receipt(), if index % 2 == 0 { 1.0 } else { 0.1 }).await.ok();
        }
        let begun = running(&caller).await;
        tokio::time::sleep(Duration::from_millis(150 * round as u64)).await;
        let children = workers_of(&server);
        let status = server.terminate();
        assert!(status.success(), "round {round}: {status}");
        for worker in children {
            assert!(!Path::new(&format!("/proc/{worker}")).exists(), "round {round}: a worker outlives its server");
        }
        if round == 0 {
            // The step was not counted as a failure of its recipe: it is formed again, as it was.
            let server = start(folder.path(), workers);
            let caller = server.caller("cut-off");
            let step = ended(&caller, 1).await.pop().unwrap();
            assert_eq!((&step["kind"], &step["batch"]), (&json!("released"), &begun["batch"]), "{step}");
        }
    }
}
