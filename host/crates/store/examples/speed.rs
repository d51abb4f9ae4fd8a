//! How fast the store takes records: `cargo run --release -p reef-store --example speed [postgres URL | folder]`.
//! Three figures: imports of 1,000, single appends from 64 callers, and the latency of reports at 1,000 a second.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use reef_core::{
    Alternatives, Inference, RecordId, RecordStatus, ReleaseId, ReleaseSpan, Report, Sampling, ScenarioName, TenantId,
    TokenTrace,
};
use reef_store::{RecordBody, ScenarioSettings, Store};
use serde_json::{Map, json};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const IMPORTS: u32 = 40;
const IMPORTED: u32 = 1_000;
const CALLERS: u32 = 64;
const APPENDS: u32 = 400;
const REPORTS: u32 = 3_000;
const REPORT_EVERY: Duration = Duration::from_millis(1);

#[derive(Clone)]
struct Bench {
    store: Store,
    tenant: TenantId,
    scenario: ScenarioName,
    release: ReleaseId,
}

impl Bench {
    /// About 2 KB: a prompt of 150 tokens, an answer of 50, and a body that compresses as text does.
    fn record(&self, name: &str, seed: u32) -> Outcome<Inference> {
        let mut state = seed.wrapping_mul(2_654_435_761).max(1);
        let mut word = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state % 49_000
        };
        let (prompt, output): (Vec<u32>, Vec<u32>) =
            ((0..150).map(|_| word()).collect(), (0..50).map(|_| word()).collect());
        let text: String = (0..100).map(|_| format!("{:x} ", word())).collect();
        let sampling = Sampling { temperature: 0.7, top_p: 1.0, top_k: 0, seed: 7 };
        let spans = vec![ReleaseSpan { start: 0, release: self.release.clone(), sequence: 0 }];
        let logprobs = output.iter().map(|token| -1.0 / (1 + token) as f32).collect();
        Ok(Inference {
            id: RecordId::parse(name)?,
            created_at_ms: 1_767_225_600_000,
            path: "/v1/chat/completions".to_owned(),
            status: RecordStatus::Complete,
            capture: true,
            session: Some(format!("session-{}", seed % 100)),
            tags: BTreeMap::new(),
            traceparent: None,
            request: json!({ "messages": [{ "role": "user", "content": text }] }),
            response: json!({ "choices": [{ "message": { "content": "an answer" } }] }),
            tokens: Some(TokenTrace { prompt, output, logprobs, spans, sampling, alternatives: Alternatives::NONE }),
        })
    }

    fn report(&self, n: u32) -> Outcome<Report> {
        Ok(Report {
            id: RecordId::parse(format!("g-{n}"))?,
            created_at_ms: 1_767_225_600_000,
            score: Some(1.0),
            feedback: None,
            references: vec![RecordId::parse(format!("i-0-{}", n % IMPORTED))?],
            metadata: Map::new(),
            amends: None,
            traceparent: None,
        })
    }

    async fn imports(&self) -> Outcome<()> {
        let batch = |n: u32| -> Outcome<Vec<RecordBody>> {
            let record = |k| Ok(RecordBody::Inference(Box::new(self.record(&format!("i-{n}-{k}"), n * IMPORTED + k)?)));
            (0..IMPORTED).map(record).collect()
        };
        let batches = (0..IMPORTS).map(batch).collect::<Outcome<Vec<_>>>()?;
        let started = Instant::now();
        let mut calls = tokio::task::JoinSet::new();
        for batch in batches {
            let bench = self.clone();
            calls.spawn(async move { bench.store.import(&bench.tenant, &bench.scenario, batch).await });
        }
        for done in calls.join_all().await {
            done?;
        }
        tell("imports of 1,000", IMPORTS * IMPORTED, started.elapsed());
        Ok(())
    }

    async fn singles(&self) -> Outcome<()> {
        let before = self.store.write_stats();
        let started = Instant::now();
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..CALLERS {
            let bench = self.clone();
            callers.spawn(async move {
                for n in 0..APPENDS {
                    let record = bench.record(&format!("s-{caller}-{n}"), caller * APPENDS + n)?;
                    bench.store.append_inference(&bench.tenant, &bench.scenario, record).await?;
                }
                Outcome::Ok(())
            });
        }
        for done in callers.join_all().await {
            done?;
        }
        tell("single appends, 64 callers", CALLERS * APPENDS, started.elapsed());
        let after = self.store.write_stats();
        println!("  in {} transactions", after.transactions - before.transactions);
        Ok(())
    }

    async fn reports(&self) -> Outcome<()> {
        let mut calls = tokio::task::JoinSet::new();
        let mut tick = tokio::time::interval(REPORT_EVERY);
        for n in 0..REPORTS {
            tick.tick().await;
            let (bench, report) = (self.clone(), self.report(n)?);
            calls.spawn(async move {
                let started = Instant::now();
                bench.store.append_report(&bench.tenant, &bench.scenario, report).await?;
                Outcome::Ok(started.elapsed())
            });
        }
        let mut times = calls.join_all().await.into_iter().collect::<Outcome<Vec<_>>>()?;
        times.sort();
        let at = |share: f64| times.get((share * times.len() as f64) as usize).copied().unwrap_or_default();
        println!("reports at 1,000/s: p50 {:?}, p99 {:?}, worst {:?}", at(0.5), at(0.99), at(0.9999));
        Ok(())
    }
}

fn tell(what: &str, records: u32, took: Duration) {
    println!("{what}: {:.0} records/s ({records} in {took:?})", f64::from(records) / took.as_secs_f64());
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let place = std::env::args().nth(1);
    let store = match place.as_deref() {
        Some(url) if url.starts_with("postgres") => Store::connect(url).await?,
        Some(folder) => Store::open(&Path::new(folder).join("speed.db")).await?,
        None => Store::open(&folder.path().join("reef.db")).await?,
    };
    let tenant = TenantId::parse("acme")?;
    let scenario = ScenarioName::parse("speed")?;
    store.create_scenario(&tenant, &scenario, &ScenarioSettings::default(), 0).await?;
    let bench = Bench { store, tenant, scenario, release: ReleaseId::parse("0".repeat(40))? };
    bench.imports().await?;
    bench.singles().await?;
    bench.reports().await?;
    bench.store.close().await;
    Ok(())
}
