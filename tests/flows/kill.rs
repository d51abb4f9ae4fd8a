//! kill -9 before every call that makes something durable, from the start of a server to the release of its step.
//! The points are not guessed: a preloaded library counts the syncs, renames and links of a run that is left alone, and
//! then the server is killed before the first of them, before the second, and so on. Whatever the point, the step that a
//! restart finishes has the same batch, number and seed, its release the same content, and the head has moved once.
//! All points take a while: `KILL_ALL_POINTS=1` tries each; otherwise it is a few, spread over all.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use reef_core::{ScenarioName, Step, TenantId};
use reef_store::Store;
use serde_json::{Value, json};

use super::learn::{ended, feed, quick};
use crate::support::{ServerProcess, TestHost, model, poll, reef, root, sao};

/// Points that are tried, spread over all.
const POINTS: u64 = 3;
/// How long a server may take to come to its point.
const ALIVE_MAX: Duration = Duration::from_secs(90);
const SCENARIO: &str = "killed";

/// A folder with four graded answers, made by a server that does not learn.
async fn graded() -> tempfile::TempDir {
    let server = TestHost::start(|_| {}).await;
    let caller = server.caller(SCENARIO);
    caller.create(json!({ "recipe_config": quick(), "gate": { "kind": "always" } })).await;
    feed(&caller, 4).await;
    server.stop().await
}

fn shim(folder: &Path) -> PathBuf {
    let library = folder.join("kill_at.so");
    let source = root().join("tests/flows/kill_at.c");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl").status();
    assert!(built.expect("a C compiler").success());
    library
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}

/// Runs a server that learns until it kills itself; none if it never came to the point.
fn killed(data: &Path, library: &Path, at: u64) -> Option<ExitStatus> {
    let mut command = reef();
    command.arg("serve").arg("--data").arg(data).arg("--model").arg(model()).arg("--recipe").arg(sao());
    command.args(["--listen", "127.0.0.1:0"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.env("LD_PRELOAD", library).env("KILL_AT", at.to_string()).spawn().expect("reef starts");
    let began = Instant::now();
    while began.elapsed() < ALIVE_MAX {
        if let Some(status) = child.try_wait().expect("a status") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().expect("killed");
    child.wait().expect("gone");
    None
}

/// The step that was under way and the head, as the dead server left them.
async fn left(data: &Path) -> (Option<Step>, String) {
    let (tenant, name) = (TenantId::parse("default").expect("a name"), ScenarioName::parse(SCENARIO).expect("a name"));
    let store = Store::open_read_only(&data.join("reef.db")).await.expect("the store");
    let running = store.running_step(&tenant, &name).await.expect("read");
    let head = store.head(&tenant, &name).await.expect("read").expect("a head");
    store.close().await;
    (running, head.release_id.to_string())
}

/// Lets a server finish; its step and its releases, newest first.
async fn finished(data: &Path) -> (Value, Vec<Value>) {
    let server = ServerProcess::start(data, &["--recipe", sao().to_str().expect("a path")]);
    let caller = server.caller(SCENARIO);
    let step = ended(&caller, 1).await.remove(0);
    let releases = poll("the release that serves", || async {
        let (releases, answer) = (caller.releases().await, caller.chat("hi", json!({ "max_tokens": 2 })).await.ok());
        let serves = json!(answer.release()) == releases[0]["release_id"];
        if serves { Ok(releases) } else { Err(answer.release()) }
    })
    .await;
    let counts = caller.status().await;
    assert_eq!((&counts["consumed"], &counts["pending"], &counts["reserved"]), (&json!(4), &json!(0), &json!(0)));
    assert_eq!(caller.steps().await.len(), 1, "one step, whatever happened");
    assert!(server.terminate().success());
    (step, releases)
}

#[tokio::test]
async fn whatever_was_durable_when_it_was_killed_the_same_step_gives_the_same_release() {
    let (scratch, prepared) = (tempfile::tempdir().expect("a folder"), graded().await);
    let library = shim(scratch.path());
    let counted = scratch.path().join("count");
    let alone = scratch.path().join("alone");
    copy(prepared.path(), &alone);
    // Counts are read when nothing more is written, so this run is a server's whole life until its release serves.
    let expected = {
        let environment = [("LD_PRELOAD", library.as_path()), ("KILL_COUNT", counted.as_path())];
        let server = ServerProcess::start_with(&alone, &["--recipe", sao().to_str().expect("a path")], &environment);
        let caller = server.caller(SCENARIO);
        let step = ended(&caller, 1).await.remove(0);
        assert_eq!(step["kind"], "released", "{step}");
        let head = caller.releases().await.remove(0);
        server.kill();
        head
    };
    let points: u64 = fs::read_to_string(&counted).expect("a count").trim().parse().expect("a number");
    assert!(points > POINTS, "a step makes more than {points} things durable");
    let all = std::env::var_os("KILL_ALL_POINTS").is_some();
    let stride = if all { 1 } else { points / POINTS };
    for at in (1..=points).rev().step_by(usize::try_from(stride).expect("small")) {
        let data = scratch.path().join(format!("at-{at}"));
        copy(prepared.path(), &data);
        let died = killed(&data, &library, at);
        let (running, head) = left(&data).await;
        let (step, releases) = finished(&data).await;
        println!("point {at} of {points}: killed {}, step running {}", died.is_some(), running.is_some());
        assert_eq!(step["kind"], "released", "point {at}: {step}");
        if let Some(running) = running {
            let same = |field: &str, value: Value| assert_eq!(step[field], value, "point {at}: {field}");
            same("step", json!(running.step));
            same("batch", json!(running.batch));
            same("seed", json!(running.seed));
            same("now_ms", json!(running.now_ms));
        }
        assert_eq!(releases.len(), 2, "point {at}: the head moved once");
        assert_eq!(releases[0]["content_id"], expected["content_id"], "point {at}: the same weights");
        assert!(releases.iter().any(|release| release["release_id"] == json!(head)), "point {at}: {head} is gone");
        fs::remove_dir_all(&data).expect("removed");
    }
}
