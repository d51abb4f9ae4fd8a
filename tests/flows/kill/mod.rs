//! kill -9 at every point of a step where something becomes durable, on both databases and for both surfaces.
//! The points are not guessed: a preloaded library names them while a server is left alone, and then a server is killed
//! at each. Whatever the point, the step that a restart finishes has the same batch, number and seed, its release is the
//! one that was under way, the head has moved once, requests are answered at once, and no record is lost. Some points are
//! tried once, or with `REEF_KILL_REPEATS=100` all of them so many times; `scripts/kill-table.sh` keeps what it finds.

mod ground;
mod random;

use std::sync::Arc;
use std::time::Instant;

use futures::future::join_all;
use reef_core::{ScenarioName, Step, Surface, TenantId};
use serde_json::{Value, json};

use self::ground::{Ground, Life, SCENARIO, ask, left_alone, of};
use crate::support::{Caller, Database, Home, ServerProcess, poll};

/// Points that are tried where nobody asks for more, spread over all.
const POINTS: usize = 6;
/// Repetitions of one point that run side by side.
const AT_ONCE: usize = 3;

/// What a killed server has left behind.
struct Left {
    running: Option<Step>,
    head: String,
}

async fn left(home: &Home, surface: Surface) -> Left {
    let (tenant, name) = (TenantId::parse("default").expect("a name"), ScenarioName::parse(SCENARIO).expect("a name"));
    let store = home.open_read_only().await;
    let running = store.running_step(&tenant, &name).await.expect("read");
    let head = match surface {
        Surface::Harness => store.harness_head(&tenant, &name).await,
        _ => store.head(&tenant, &name).await,
    };
    store.close().await;
    Left { running, head: head.expect("read").expect("a head").release_id.to_string() }
}

/// A server that finishes what the killed one began; its step, and its releases of the surface, newest first.
async fn finished(ground: &Ground, home: &Home) -> (Value, Vec<Value>) {
    let server = home.start();
    let caller = server.caller(SCENARIO);
    // Before the step can have ended: serving does not wait for it.
    let answer = ask(&caller, "still there?").await.ok();
    learn(&caller).await;
    let step = ended(&caller).await;
    let releases = caller.releases().await;
    assert!(releases.iter().any(|release| release["release_id"] == json!(answer.release())), "served from the chain");
    for receipt in &ground.receipts {
        caller.get(&caller.path(&format!("/records/{receipt}"))).await.ok();
    }
    let counts = caller.status().await;
    let accepted = json!(ground.receipts.len() / 2);
    assert_eq!((&counts["consumed"], &counts["pending"], &counts["reserved"]), (&accepted, &json!(0), &json!(0)));
    assert_eq!(caller.steps().await.len(), 1, "one step, whatever happened");
    assert!(server.terminate().success());
    (step, of(ground.surface, releases))
}

/// Lets the learner begin; a server that is killed meanwhile does not answer.
async fn learn(caller: &Caller) {
    let request = caller.request(reqwest::Method::POST, &caller.path("/update"));
    drop(request.json(&json!({ "training_mode": "auto" })).send().await);
}

async fn ended(caller: &Caller) -> Value {
    poll("the end of the step", || async {
        let step = caller.steps().await.into_iter().next().unwrap_or_default();
        if step["kind"].is_string() && step["kind"] != "running" { Ok(step) } else { Err(step.to_string()) }
    })
    .await
}

/// One repetition; was the server killed at the point?
async fn repetition(ground: &Ground, expected: &[Value], at: &str) -> bool {
    let home = ground.home.copy();
    let mut life = Life::start(ground, &home, ("KILL_AT", at.as_ref()));
    life.arm();
    learn(&life.server.caller(SCENARIO)).await;
    let died = life.died(at).await;
    drop(life);
    let before = left(&home, ground.surface).await;
    let (step, releases) = finished(ground, &home).await;
    assert_eq!(step["kind"], "released", "{at}: {step}");
    if let Some(running) = before.running {
        let same = |field: &str, value: Value| assert_eq!(step[field], value, "{at}: {field}");
        same("step", json!(running.step));
        same("batch", json!(running.batch));
        same("seed", json!(running.seed));
        same("now_ms", json!(running.now_ms));
        same("parent", json!(running.parent));
    }
    assert_eq!(releases.len(), expected.len(), "{at}: the head moved once");
    assert_eq!(releases[0]["release_id"], step["release"], "{at}: to the release of the step");
    assert_eq!(releases[0]["content_id"], expected[0]["content_id"], "{at}: the same content");
    assert!(
        releases.iter().any(|release| release["release_id"] == json!(before.head)),
        "{at}: {} is gone",
        before.head
    );
    assert_eq!(ground::commits(&home), ground.commits + 1, "{at}: the release is the one that was under way");
    died
}

async fn every_point(database: Database, surface: Surface) {
    if !database.is_tested() {
        return;
    }
    let ground = Ground::new(database, surface).await;
    let (points, expected) = left_alone(&ground).await;
    for class in ["object", "ref", if database == Database::Postgres { "commit" } else { "log" }] {
        assert!(points.iter().any(|point| point.starts_with(class)), "{class} is among {points:?}");
    }
    let repeats = ground::number("REEF_KILL_REPEATS");
    let stride = if repeats.is_some() { 1 } else { (points.len() / POINTS).max(1) };
    let name = format!("{}-{}", database.name(), ground::shown(surface));
    let wanted = repeats.unwrap_or(1);
    // An earlier run may have been stopped, or have repeated less.
    let mut found = ground::kept(&name).unwrap_or_else(|| {
        json!({ "database": database.name(), "surface": ground::shown(surface), "points": points.len(),
            "killed": 0, "seconds": 0, "at": {} })
    });
    let (ground, expected) = (Arc::new(ground), Arc::new(expected));
    for at in points.iter().step_by(stride) {
        let done = found["at"][at]["repetitions"].as_u64().unwrap_or(0);
        let began = Instant::now();
        let killed = repetitions((&ground, &expected), at, done..wanted).await;
        let row = &mut found["at"][at];
        ground::add(row, "repetitions", wanted.saturating_sub(done));
        ground::add(row, "killed", killed);
        ground::add(&mut found, "killed", killed);
        ground::add(&mut found, "seconds", began.elapsed().as_secs());
        ground::keep(&name, &found);
    }
}

/// Repetitions of one point, some of them side by side; how many of the servers were killed there.
async fn repetitions(
    (ground, expected): (&Arc<Ground>, &Arc<Vec<Value>>),
    at: &str,
    numbers: std::ops::Range<u64>,
) -> u64 {
    let some = |first: usize| {
        let (ground, expected, at) = (Arc::clone(ground), Arc::clone(expected), at.to_owned());
        let own = numbers.clone().skip(first).step_by(AT_ONCE);
        tokio::spawn(async move {
            let mut killed = 0;
            for _ in own {
                let died = repetition(&ground, &expected, &at).await;
                // The log is folded by a clock, so that those points may not come.
                assert!(died || at.starts_with("fold"), "{at} never came");
                killed += u64::from(died);
            }
            killed
        })
    };
    let running: Vec<_> = (0..AT_ONCE).map(some).collect();
    join_all(running).await.into_iter().map(|killed| killed.expect("as the ones before")).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_was_durable_when_it_was_killed_the_same_step_gives_the_same_release() {
    every_point(Database::Sqlite, Surface::Weights).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_was_durable_in_postgres_the_same_step_gives_the_same_release() {
    every_point(Database::Postgres, Surface::Weights).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_harness_step_that_was_killed_at_any_point_gives_the_same_release() {
    every_point(Database::Sqlite, Surface::Harness).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_harness_step_that_was_killed_on_postgres_gives_the_same_release() {
    every_point(Database::Postgres, Surface::Harness).await;
}

impl Life {
    /// Waits for the end of the server; false = its work is done and it lives, so that the point will not come.
    async fn died(&mut self, at: &str) -> bool {
        let began = Instant::now();
        while began.elapsed() < ground::ALIVE_MAX {
            if self.server.ended().is_some() {
                return true;
            }
            if at.starts_with("fold") && self.is_done().await {
                return false;
            }
            tokio::time::sleep(ground::LOOK_EVERY).await;
        }
        false
    }

    /// Has the step ended, as far as the server still answers?
    async fn is_done(&self) -> bool {
        let caller: Caller = ServerProcess::caller(&self.server, SCENARIO);
        let asked = caller.request(reqwest::Method::GET, &caller.path("/steps")).send().await;
        let Ok(answer) = asked else { return false };
        let Ok(text) = answer.text().await else { return false };
        text.contains("\"kind\":\"released\"")
    }
}
