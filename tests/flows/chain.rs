//! A chain that is signed, and a chain whose head is damaged while no server runs.

use std::fs;
use std::path::Path;

use reef_core::{ReleaseId, ScenarioName, TenantId};
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
async fn a_head_that_cannot_move_leaves_the_pin_alone_and_the_cause_is_told() {
    let server = TestHost::start(|_| {}).await;
    let caller = server.caller("pinned");
    let (head, base) = two_releases(&caller).await;
    caller.post(&caller.path("/pin"), json!({ "release_id": head })).await.ok();
    let object = server.data.path().join("releases.git/objects").join(&base[..2]).join(&base[2..]);
    fs::remove_file(&object).expect("the commit is a loose object");
    let refused = caller.post(&caller.path("/rollback"), json!({ "release_id": base })).await;
    assert_eq!((refused.status.as_u16(), &refused.body["error"]["code"]), (500, &json!("release_damaged")));
    assert!(refused.body["error"]["message"].as_str().expect("a sentence").contains(&base), "{}", refused.body);
    assert_eq!(caller.status().await["rollout"]["plan"]["kind"], "pin");
    // What explains the head is told without what is gone.
    let shown = caller.get(&caller.path(&format!("/releases/{head}"))).await.ok().body;
    assert!(shown["explained"]["notes"][0].as_str().expect("a note").contains(&base), "{shown}");
    let page = caller.get(&caller.path(&format!("/releases/{head}/page"))).await.ok().body;
    assert!(page.as_str().expect("a page").contains(&base), "{page}");
    server.stop().await;
}

#[tokio::test]
async fn a_database_that_does_not_know_the_chain_does_not_begin_it_anew() {
    let server = TestHost::start(|_| {}).await;
    let (head, _) = two_releases(&server.caller("orphan")).await;
    let data = server.stop().await;
    for file in ["reef.db", "reef.db-wal", "reef.db-shm"] {
        drop(fs::remove_file(data.path().join(file)));
    }
    let server = TestHost::start_in(data, |_| {}).await;
    let refused = server.caller("orphan").chat("hi", json!({})).await;
    assert_eq!(refused.status.as_u16(), 409, "{}", refused.body);
    assert!(refused.body["error"]["message"].as_str().expect("a sentence").contains(&head), "{}", refused.body);
    assert!(server.caller("another").chat("hi", json!({})).await.status.is_success());
    server.stop().await;
}

#[tokio::test]
async fn a_deletion_that_was_cut_off_is_finished_at_the_next_start() {
    let server = TestHost::start(|_| {}).await;
    let caller = server.caller("leaving");
    let (head, _) = two_releases(&caller).await;
    let data = server.stop().await;
    let (tenant, name) = (TenantId::parse("default").expect("a name"), ScenarioName::parse("leaving").expect("a name"));
    let git = data.path().join("releases.git");
    reef_release::ReleaseRepo::open(&git).expect("opened").begin_forgetting(&tenant, &name).expect("noted");
    // Cut off before the database forgot it: it is there.
    let server = TestHost::start_in(data, |_| {}).await;
    assert_eq!(server.caller("leaving").releases().await[0]["release_id"], json!(head));
    let data = server.stop().await;
    // Cut off afterwards: it goes.
    reef_release::ReleaseRepo::open(&git).expect("opened").begin_forgetting(&tenant, &name).expect("noted");
    let store = reef_store::Store::open(&data.path().join("reef.db")).await.expect("opened");
    store.forget_scenario(&tenant, &name).await.expect("forgotten");
    store.close().await;
    let server = TestHost::start_in(data, |_| {}).await;
    let anew = server.caller("leaving");
    anew.create(json!({})).await;
    assert_eq!(anew.releases().await.len(), 1);
    let repo = reef_release::ReleaseRepo::open_to_read(&git).expect("opened");
    assert!(repo.release(&ReleaseId::parse(head).expect("an id")).is_ok(), "git's own collection takes commits");
    assert_eq!(repo.forgetting().expect("listed"), []);
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
