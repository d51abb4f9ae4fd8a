//! Whole sessions with the packages that the providers publish: answers, streams, tools, formats, errors.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use super::scripted::{self, BUSY, TOKEN};
use super::{finish, node, node_modules, python};
use crate::support::{MODEL, TestHost, root};

/// Runs a session and checks that its receipts lead to complete records of these paths.
async fn session(mut command: Command, script: &str, paths: &[&str]) {
    let (host, _) = scripted::host().await;
    command.env("REEF_URL", &host.url).env("REEF_TOKEN", TOKEN).env("REEF_SCENARIO", "session");
    command.env("REEF_MODEL", MODEL).env("REEF_BUSY_MODEL", BUSY);
    let told = finish(command, script).await;
    let seen: serde_json::Value = serde_json::from_str(&told).expect("one JSON object");
    let recorded = recorded(&host, seen["receipts"].as_array().expect("receipts")).await;
    assert_eq!(recorded, paths.iter().map(|path| (*path).to_owned()).collect());
    host.stop().await;
}

async fn recorded(host: &TestHost, receipts: &[serde_json::Value]) -> BTreeSet<String> {
    let caller = host.caller("session").with_token(TOKEN);
    let mut paths = BTreeSet::new();
    for receipt in receipts {
        let receipt = receipt.as_str().expect("every answer has a receipt");
        let record = caller.get(&caller.path(&format!("/records/{receipt}"))).await.ok().body["record"].take();
        assert_eq!(record["status"], "complete", "{record}");
        paths.insert(record["path"].as_str().expect("a path").to_owned());
    }
    paths
}

/// Node looks for packages beside the script, so a copy of it is put beside them.
async fn node_session(script: &str, package: &str, paths: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["check.mjs", script] {
        fs::copy(root().join("tests/clients").join(name), folder.path().join(name)).unwrap();
    }
    std::os::unix::fs::symlink(node_modules(package), folder.path().join("node_modules")).unwrap();
    let mut command = node();
    command.arg(folder.path().join(script));
    session(command, script, paths).await;
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

#[tokio::test]
async fn the_anthropic_package_works_unchanged() {
    session(python("anthropic_sdk.py", "anthropic"), "anthropic_sdk.py", &[MESSAGES]).await;
}

#[tokio::test]
async fn the_openai_package_works_unchanged() {
    session(python("openai_sdk.py", "openai"), "openai_sdk.py", &[CHAT, COMPLETIONS, RESPONSES]).await;
}

#[tokio::test]
async fn the_openai_package_for_node_works_unchanged() {
    node_session("openai_sdk.mjs", "openai", &[CHAT, RESPONSES]).await;
}

#[tokio::test]
async fn the_ai_sdk_works_unchanged() {
    node_session("ai_sdk.mjs", "ai", &[CHAT]).await;
}
