//! A chain that is signed, and a chain whose head is damaged while no server runs.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Caller, TestHost};

fn reef(arguments: &[&str], data: &Path) -> (bool, String) {
    let output = crate::support::reef().args(arguments).arg("--data").arg(data).output().expect("reef");
    (
        output.status.success(),
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)),
    )
}

/// A scenario whose head is a copy of its base, as a second release; both ids, the head first.
async fn two_releases(caller: &Caller) -> (String, String) {
    caller.create(json!({})).await;
    let base = caller.releases().await[0]["release_id"].as_str().expect("an id").to_owned();
    let head = caller.post(&caller.path("/rollback"), json!({ "release_id": base })).await.ok().body;
    (head["release_id"].as_str().expect("an id").to_owned(), base)
}

#[tokio::test]
async fn every_release_is_signed_where_a_key_is_configured_and_strangers_are_not_read() {
    let keys = tempfile::tempdir().expect("a folder");
    let key = |name: &str| {
        let path = keys.path().join(name);
        reef_release::ReleaseKey::create(&path).expect("a key");
        path
    };
    let (own, other) = (key("own.key"), key("other.key"));
    let signing = own.clone();
    let server = TestHost::start(move |config| config.releases.signing_key = Some(signing)).await;
    two_releases(&server.caller("signed")).await;
    let data = server.stop().await;
    let trust = |key: &Path| format!("{}.pub", key.display());
    let (whole, told) = reef(&["release", "verify", "signed", "--trust", &trust(&own)], data.path());
    assert!(whole, "{told}");
    let (whole, told) = reef(&["release", "verify", "signed", "--trust", &trust(&other)], data.path());
    assert!(!whole && told.contains("not trusted"), "{told}");

    // Another key signs from now on, and nobody says that the first one is to be trusted.
    let trusted = vec![Path::new(&trust(&other)).to_owned()];
    let (signing, named) = (other.clone(), trusted.clone());
    let server = TestHost::start_in(data, move |config| {
        (config.releases.signing_key, config.releases.trusted_keys) = (Some(signing), named);
    })
    .await;
    let caller = server.caller("signed");
    assert_eq!(caller.status().await, Value::Null, "releases of a stranger are not served");
    let fresh = server.caller("fresh");
    two_releases(&fresh).await;
    assert!(fresh.chat("hi", json!({})).await.status.is_success());
    server.stop().await;
}

#[tokio::test]
async fn a_head_that_is_damaged_gives_way_to_the_last_whole_release() {
    let server = TestHost::start(|_| {}).await;
    let (head, base) = two_releases(&server.caller("damaged")).await;
    let data = server.stop().await;
    let object = data.path().join("releases.git/objects").join(&head[..2]).join(&head[2..]);
    fs::remove_file(&object).expect("the commit is a loose object");

    let server = TestHost::start_in(data, |_| {}).await;
    let caller = server.caller("damaged");
    let releases = caller.releases().await;
    assert_eq!(
        (&releases[0]["status"], &releases[0]["origin"]),
        (&json!("served"), &json!({ "kind": "rollback", "to": base }))
    );
    assert_eq!((&releases[0]["parent"], &releases[1]["release_id"]), (&json!(head), &json!(head)), "the history stays");
    assert_eq!(releases[0]["decision"]["by"]["kind"], "host");
    let answer = caller.chat("hi", json!({})).await.ok();
    assert_eq!(json!(answer.release()), releases[0]["release_id"]);
    server.stop().await;
}
