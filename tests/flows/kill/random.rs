//! kill -9 at any moment while records are written and a recipe learns from them: no record that was acknowledged is
//! lost, no request is refused until the kill, and the learner goes on. `REEF_KILL_ROUNDS=1000` tries as many.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures::future::join_all;
use serde_json::{Value, json};

use super::ground::{add, keep, kept, number};
use crate::flows::learn::quick;
use crate::support::{Caller, Database, Home, TINY, poll, sao, tiny_model};

const ROUNDS: u64 = 4;
/// Rounds on one folder.
const PART: u64 = 100;
const WRITERS: usize = 8;
/// Acknowledgements of a round before its kill: at least so many, and a number that differs from round to round.
const ACKNOWLEDGED: usize = 5;
const SPREAD: usize = 61;
const SCENARIO: &str = "random";
const PAGE: usize = 1_000;

/// Sends what may not be answered any more; none = the server is gone.
async fn answered(caller: &Caller, path: &str, body: Value) -> Option<(Value, String)> {
    let answer = caller.request(reqwest::Method::POST, path).json(&body).send().await.ok()?;
    let status = answer.status();
    let receipt =
        answer.headers().get("x-reef-agent-record-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let body: Value = serde_json::from_str(&answer.text().await.ok()?).ok()?;
    assert!(status.is_success(), "serving is open until the kill: {status} {body}");
    Some((body, receipt.unwrap_or_default()))
}

/// Answers and reports until the server is gone; what it acknowledged.
async fn write(caller: Caller, writer: usize, count: Arc<AtomicUsize>) -> BTreeSet<String> {
    let mut acknowledged = BTreeSet::new();
    for n in 0.. {
        let text = format!("{writer}, {n}");
        let body = json!({ "model": TINY, "messages": [{ "role": "user", "content": text }], "temperature": 1.0,
            "seed": n, "max_tokens": 4 });
        let Some((_, receipt)) = answered(&caller, "/v1/chat/completions", body).await else { break };
        count.fetch_add(1, Ordering::Relaxed);
        acknowledged.insert(receipt.clone());
        let report = json!({ "score": f64::from(n % 2), "references": [receipt] });
        let Some((told, _)) = answered(&caller, "/reef/report", report).await else { break };
        count.fetch_add(1, Ordering::Relaxed);
        acknowledged.insert(told["agent_record_id"].as_str().expect("an id").to_owned());
    }
    acknowledged
}

/// Ids of all records.
async fn stored(caller: &Caller) -> BTreeSet<String> {
    let (mut ids, mut after) = (BTreeSet::new(), json!(0));
    while !after.is_null() {
        let path = caller.path(&format!("/records?limit={PAGE}&after_sequence={after}"));
        let page = caller.get(&path).await.ok().body;
        let rows = page["records"].as_array().expect("a page").iter();
        ids.extend(rows.filter_map(|row| row["record"]["id"].as_str().map(str::to_owned)));
        after = page["next_after_sequence"].clone();
    }
    ids
}

/// What so many kills of servers on one folder found.
struct Found {
    acknowledged: usize,
    lost: usize,
    releases: usize,
}

async fn killed_while_writing(database: Database, rounds: u64) -> Found {
    let scratch = tempfile::tempdir().expect("a folder");
    let model = tiny_model(scratch.path());
    let home = Home::new(database, |config| {
        config.model = model;
        config.recipe = Some(sao());
    });
    let server = home.start();
    let settings = json!({ "recipe_config": quick(), "gate": { "kind": "always" } });
    server.caller(SCENARIO).create(settings).await;
    assert!(server.terminate().success());
    let mut acknowledged = BTreeSet::new();
    for round in 0..rounds {
        let server = home.start();
        let count = Arc::new(AtomicUsize::new(0));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| tokio::spawn(write(server.caller(SCENARIO), writer, Arc::clone(&count))))
            .collect();
        let moment = ACKNOWLEDGED + 37 * usize::try_from(round).expect("small") % SPREAD;
        while count.load(Ordering::Relaxed) < moment {
            tokio::time::sleep(super::ground::LOOK_EVERY).await;
        }
        server.kill();
        for told in join_all(writers).await {
            acknowledged.extend(told.expect("it ends"));
        }
    }
    let server = home.start();
    let caller = server.caller(SCENARIO);
    let stored = stored(&caller).await;
    let lost: Vec<_> = acknowledged.difference(&stored).collect();
    assert!(lost.is_empty(), "{} acknowledged records are lost: {lost:?}", lost.len());
    assert!(acknowledged.len() >= ACKNOWLEDGED * usize::try_from(rounds).expect("small"));
    // A recipe learned meanwhile, or does now.
    let releases = poll("a release", || async {
        let releases = caller.releases().await;
        if releases.len() > 1 { Ok(releases) } else { Err(caller.status().await.to_string()) }
    })
    .await;
    for pair in releases.windows(2) {
        assert_eq!(pair[0]["parent"], pair[1]["release_id"], "the chain has no gap and no fork: {releases:?}");
    }
    server.kill();
    Found { acknowledged: acknowledged.len(), lost: lost.len(), releases: releases.len() }
}

/// In parts, each on a folder of its own, so that a run that was stopped goes on where it was.
async fn in_parts(database: Database) {
    if !database.is_tested() {
        return;
    }
    let (name, rounds) = (format!("{}-random", database.name()), number("REEF_KILL_ROUNDS").unwrap_or(ROUNDS));
    let mut found = kept(&name).unwrap_or_else(|| json!({ "database": database.name() }));
    while let Some(left) = rounds.checked_sub(found["kills"].as_u64().unwrap_or(0)).filter(|left| *left > 0) {
        let (began, kills) = (Instant::now(), left.min(PART));
        let part = killed_while_writing(database, kills).await;
        let figures = [("acknowledged", part.acknowledged), ("lost", part.lost), ("releases", part.releases)];
        for (figure, more) in figures {
            add(&mut found, figure, more as u64);
        }
        add(&mut found, "kills", kills);
        add(&mut found, "seconds", began.elapsed().as_secs());
        keep(&name, &found);
    }
}

#[tokio::test]
async fn no_acknowledged_record_is_lost_however_often_the_server_is_killed() {
    in_parts(Database::Sqlite).await;
}

#[tokio::test]
async fn no_record_that_postgres_acknowledged_is_lost_however_often_the_server_is_killed() {
    in_parts(Database::Postgres).await;
}
