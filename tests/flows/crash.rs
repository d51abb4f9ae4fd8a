//! kill -9 at awkward moments: nothing acknowledged is lost, and a step is formed again as it was.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::learn::{ended, feed, quick};
use crate::support::{Caller, ServerProcess, poll, sao};

fn start(data: &std::path::Path) -> ServerProcess {
    ServerProcess::start(data, &["--recipe", sao().to_str().unwrap()])
}

async fn running(caller: &Caller) -> Value {
    poll("a running step", || async {
        match caller.steps().await.first() {
            Some(step) => Ok(step.clone()),
            None => Err(caller.status().await.to_string()),
        }
    })
    .await
}

#[tokio::test]
async fn a_killed_step_is_formed_again_with_the_same_batch_seed_and_number() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path());
    let caller = server.caller("crash");
    caller.create(json!({ "recipe_config": quick(), "gate": { "kind": "always" } })).await;
    let receipts = feed(&caller, 4).await;
    let begun = running(&caller).await;
    server.kill();

    let server = start(data.path());
    let caller = server.caller("crash");
    for receipt in &receipts {
        assert_eq!(caller.get(&caller.path(&format!("/records/{receipt}"))).await.status, StatusCode::OK);
    }
    let step = ended(&caller, 1).await.pop().unwrap();
    for field in ["step", "batch", "seed", "now_ms", "parent", "recipe"] {
        assert_eq!(step[field], begun[field], "{field}");
    }
    assert_eq!(step["kind"], "released", "{step}");
    assert_eq!(caller.status().await["consumed"], 4);
    assert!(server.terminate().success(), "a polite stop ends with exit code 0");
}

#[tokio::test]
async fn every_acknowledged_receipt_survives_kill_nine() {
    let data = tempfile::tempdir().unwrap();
    let mut receipts = Vec::new();
    for round in 0..3 {
        let server = start(data.path());
        let caller = server.caller("durable");
        let asks = (0..6).map(|n| {
            let caller = caller.clone();
            async move {
                caller.chat(&format!("Round {round}, number {n}"), json!({ "max_tokens": 2 })).await.ok().receipt()
            }
        });
        receipts.extend(futures::future::join_all(asks).await);
        server.kill();
    }
    let server = start(data.path());
    let caller = server.caller("durable");
    for receipt in &receipts {
        assert_eq!(caller.get(&caller.path(&format!("/records/{receipt}"))).await.status, StatusCode::OK, "{receipt}");
    }
    assert_eq!(caller.status().await["inferences"], json!(receipts.len()));
}
