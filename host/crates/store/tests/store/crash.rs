//! Killing the process: what was acknowledged is there, what was not is whole or absent.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use reef_core::StepOutcome;
use reef_store::{Commit, Store};

use crate::fixture::{Place, ended, graded, id, inference, scenario, step, tenant, why};

/// Path of the database for the child process.
const CHILD_PATH: &str = "REEF_STORE_CRASH_PATH";
/// Acknowledgements after which the child is killed.
const KILL_AFTER: [usize; 3] = [1, 200, 1500];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs only as the child process of the test below"]
async fn child_that_writes_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD_PATH) else { return };
    let store = Store::open(&PathBuf::from(path)).await.expect("open");
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..16 {
        let store = store.clone();
        tasks.spawn(async move {
            let (t, s) = (tenant("acme"), scenario("spell"));
            for k in 0..100_000 {
                let name = format!("{n}-{k}");
                store.append_inference(&t, &s, inference(&format!("i-{name}"))).await.expect("append");
                let report = graded(&format!("r-{name}"), &[&format!("i-{name}")], 1.0);
                store.append_report(&t, &s, report).await.expect("report");
                writeln!(std::io::stdout(), "\nacknowledged {name}").expect("say");
            }
        });
    }
    tasks.join_all().await;
}

#[tokio::test]
async fn no_acknowledged_record_is_lost_when_the_process_is_killed() {
    for kill_after in KILL_AFTER {
        let mut place = Place::new().await;
        place.store.close().await;
        let mut child = Command::new(std::env::current_exe().expect("test binary"))
            .args(["--exact", "crash::child_that_writes_until_it_is_killed", "--ignored", "--nocapture"])
            .env(CHILD_PATH, place.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("child");
        let lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let named = lines.map_while(Result::ok).filter_map(|l| l.strip_prefix("acknowledged ").map(str::to_owned));
        let acknowledged: Vec<_> = named.take(kill_after).collect();
        child.kill().expect("kill");
        child.wait().expect("dead");
        assert_eq!(acknowledged.len(), kill_after);
        place.reopen().await;
        for name in &acknowledged {
            for id in [id(&format!("i-{name}")), id(&format!("r-{name}"))] {
                let found = place.store.record(&place.t, &place.s, &id).await.expect("read");
                assert!(found.is_some(), "{id} was acknowledged");
            }
        }
        let counts = place.store.counts(&place.t, &place.s).await.expect("counts");
        assert!(counts.reports <= counts.inferences && counts.reports == counts.pending, "{counts:?}");
        let pool = place.store.pool(&place.t, &place.s, 10_000).await.expect("pool");
        assert_eq!(pool.samples.len() as i64, counts.pending);
    }
}

#[tokio::test]
async fn a_step_that_was_running_at_the_crash_can_end_after_it() {
    let mut place = Place::with_base().await;
    let begun = step(1, 0, &[place.sample("a").await]);
    place.store.begin_step(&place.t, &place.s, &begun).await.expect("begin");
    place.reopen().await;
    let running = place.store.running_step(&place.t, &place.s).await.expect("read").expect("running");
    let skipped = ended(&running, StepOutcome::Skipped { reason: why() });
    place.store.finish_step(&place.t, &place.s, &skipped, Commit::default()).await.expect("finish");
    place.reopen().await;
    assert_eq!(place.store.counts(&place.t, &place.s).await.expect("counts").consumed, 1);
}
