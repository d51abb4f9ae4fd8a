//! A process that is killed while it writes has lost nothing that it acknowledged.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use reef_core::RecordId;
use reef_store::{ScenarioSettings, Store};
use tokio::task::JoinSet;

use crate::fixture::{NOW_MS, id, inference, name, report, tenant};
use crate::place::{self, Place};

const DATABASE: &str = "REEF_TEST_STORE";
const ROUNDS: usize = 100;
const WRITERS: u32 = 16;
/// Acknowledgements after which the first round is killed; later rounds at other moments.
const ACKNOWLEDGED: usize = 5;
/// Acknowledgements between the moments of the first and the last round.
const SPREAD: usize = 61;
/// A child that is not killed stops by itself.
const APPENDS_MAX: u32 = 5_000;

/// Tells the parent in one write, so that a line is whole or missing.
fn acknowledge(record: &RecordId) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("ack {record}\n").as_bytes()).expect("told");
    out.flush().expect("told");
}

/// The process that gets killed; as a test of its own it has nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_until_killed() {
    let Ok(address) = std::env::var(DATABASE) else { return };
    let store = place::open(&address).await.expect("opened");
    store.create_scenario(&tenant(), &name(), &ScenarioSettings::default(), NOW_MS).await.expect("created");
    let process = std::process::id();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        writers.spawn(async move {
            for n in 0..APPENDS_MAX {
                let (receipt, grade) = (format!("r-{process}-{writer}-{n}"), format!("g-{process}-{writer}-{n}"));
                store
                    .append_inference(&tenant(), &name(), inference(&receipt, &[1; 64], &[n]))
                    .await
                    .expect("appended");
                acknowledge(&id(&receipt));
                store.append_report(&tenant(), &name(), report(&grade, &[&receipt])).await.expect("graded");
                acknowledge(&id(&grade));
            }
        });
    }
    writers.join_all().await;
}

/// Kills a writer after so many acknowledgements; returns all that it gave.
fn killed_writer(address: &str, after: usize) -> BTreeSet<String> {
    let mut writer = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "crash::writes_until_killed", "--nocapture"])
        .env(DATABASE, address)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut said = BufReader::new(writer.stdout.take().expect("its words"));
    let (mut acknowledged, mut line) = (BTreeSet::new(), String::new());
    while said.read_line(&mut line).expect("read") > 0 {
        // A last line without its end was never told.
        if let Some(record) = line.strip_suffix('\n').and_then(|line| line.strip_prefix("ack ")) {
            acknowledged.insert(record.to_owned());
        }
        line.clear();
        if acknowledged.len() == after {
            writer.kill().expect("killed");
        }
    }
    writer.wait().expect("ended");
    acknowledged
}

async fn there(store: &Store, acknowledged: &BTreeSet<String>, round: usize) {
    for record in acknowledged {
        let found = store.record(&tenant(), &name(), &id(record)).await.expect("read");
        assert!(found.is_some(), "round {round}: record {record} was acknowledged");
    }
}

#[tokio::test]
async fn a_killed_process_has_lost_nothing_that_it_acknowledged() {
    let place = Place::new().await;
    let mut acknowledged = BTreeSet::new();
    for round in 0..ROUNDS {
        let told = killed_writer(&place.address(), ACKNOWLEDGED + 37 * round % SPREAD);
        let store = place.open().await.expect("opened after the kill");
        there(&store, &told, round).await;
        acknowledged.extend(told);
        let counts = store.counts(&tenant(), &name()).await.expect("counts");
        let stored = usize::try_from(counts.inferences + counts.reports).expect("a count");
        assert!(stored >= acknowledged.len());
        assert_eq!(counts.pending, counts.reports, "a report and its sample are written together");
        store.close().await;
    }
    let store = place.open().await.expect("opened again");
    there(&store, &acknowledged, ROUNDS).await;
    let pool = store.pool(&tenant(), &name(), 16_384).await.expect("pool");
    let counts = store.counts(&tenant(), &name()).await.expect("counts");
    assert_eq!((pool.samples.len() as i64, pool.unusable.len()), (counts.pending, 0), "every sample is whole");
    store.close().await;
    println!("killed {ROUNDS} writers; {} acknowledged records survive", acknowledged.len());
    assert!(acknowledged.len() >= ROUNDS * ACKNOWLEDGED);
}
