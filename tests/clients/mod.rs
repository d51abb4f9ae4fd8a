//! Published clients from their registries, unchanged, against a running server.

use std::process::Command;

use serde_json::json;

use crate::support::{Caller, MODEL, poll, root, shared};

/// Runs a script with the clients that `scripts/setup.sh --tests` installs.
async fn run(script: &str, caller: &Caller) -> serde_json::Value {
    let clients = root().join(".deps/clients");
    assert!(clients.exists(), "{} is missing; run scripts/setup.sh --tests", clients.display());
    let mut command = Command::new("python3");
    command.arg(root().join("tests/clients").join(script)).args([&caller.url, &caller.scenario, MODEL]);
    command.env("PYTHONPATH", clients).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().expect("python3 runs");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[tokio::test]
async fn the_published_reef_client_works_unchanged() {
    let caller = shared();
    let seen = run("reef_client_session.py", &caller).await;
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
    let seen = run("reef_client_sidecar.py", &caller).await;
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
    let seen = run("openai_session.py", &caller).await;
    assert_eq!(seen["text"], seen["streamed"]);
    assert_eq!(seen["finish_reason"], "length");
    assert!(seen["models"].as_array().unwrap().contains(&json!(MODEL)));
    assert_eq!(seen["not_found"], "NotFoundError");
    assert_eq!(seen["too_long"], "context_length_exceeded");
    assert_eq!(seen["usage"]["completion_tokens"], 8);
}
