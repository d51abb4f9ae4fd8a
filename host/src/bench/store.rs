//! How fast the store takes records and gives them back, on SQLite in a temporary folder or on a Postgres server.
//! Writing: imports of 1,000, single appends from 64 callers, and the latency of reports that come at 1,000 a second.
//! Reading, in a scenario of as many records as asked for: a page, the selection of a batch, an export, and letting go
//! of half of them, with the memory that the last two take.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use reef_core::{
    Alternatives, Inference, RecordId, RecordStatus, ReleaseId, ReleaseSpan, Report, Sampling, ScenarioName, TenantId,
    TokenTrace,
};
use reef_store::{RecordBody, Retention, ScenarioSettings, Store, StoreError};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use super::{median, rss_mb, share};
use crate::clock::now_ms;
use crate::error::StartError;
use crate::store_place::StoreSection;

/// Records of one import.
const IMPORTED: u32 = 1_000;
/// Imports of one run of the first figure.
const IMPORTS: u32 = 20;
/// Callers that append one record after another.
const CALLERS: u32 = 64;
/// Records of each.
const APPENDS: u32 = 200;
const REPORTS: u32 = 3_000;
const REPORT_EVERY: Duration = Duration::from_millis(1);
/// Reports that wait when a batch is selected.
const POOL: u32 = 1_024;
/// Imports that are under way together.
const IMPORTS_AT_ONCE: usize = 4;
/// Records of a page.
const PAGE: u32 = 100;

#[derive(Debug, Clone)]
struct Bench {
    store: Store,
    tenant: TenantId,
    scenario: ScenarioName,
    release: ReleaseId,
}

/// Runs every measurement; the large scenario has `records` records.
pub async fn figures(place: &StoreSection, runs: usize, records: u32) -> Result<Value, StartError> {
    let told = |error: std::io::Error| StartError::Other(format!("no temporary folder: {error}"));
    let folder = tempfile::tempdir().map_err(told)?;
    let store = place.open(folder.path()).await?;
    let bench = Bench::in_scenario(&store, "singles").await?;
    let mut imports = Vec::new();
    for run in 0..runs {
        imports.push(Bench::in_scenario(&store, &format!("imports-{run}")).await?.imports(IMPORTS).await?);
    }
    let mut singles = Vec::new();
    for run in 0..runs {
        singles.push(bench.singles(run).await?);
    }
    let (report_p50, report_p99) = bench.reports().await?;
    let large = Bench::in_scenario(&store, "large").await?.large(records).await?;
    store.close().await;
    Ok(json!({
        "database": if place.postgres_env.is_some() { "postgres" } else { "sqlite" },
        "record_bytes_about": 2048,
        "imported_records_per_second": median(imports),
        "single_records_per_second_64_callers": median(singles),
        "report_ms_at_1000_per_second": { "p50": report_p50, "p99": report_p99 },
        "large_scenario": large,
    }))
}

impl Bench {
    async fn in_scenario(store: &Store, name: &str) -> Result<Self, StartError> {
        let invalid = |error: reef_core::InvalidName| StartError::Other(error.to_string());
        // A name of its own in every run: a Postgres server may hold an earlier one.
        let name = format!("bench-{name}-{}", now_ms());
        let tenant = TenantId::parse("bench").map_err(invalid)?;
        let scenario = ScenarioName::parse(name).map_err(invalid)?;
        store.create_scenario(&tenant, &scenario, &ScenarioSettings::default(), 0).await?;
        let release = ReleaseId::parse("0".repeat(40)).map_err(invalid)?;
        Ok(Self { store: store.clone(), tenant, scenario, release })
    }

    /// About 2 KB: a prompt of 150 tokens, an answer of 50, and a body that compresses as text does.
    fn record(&self, id: RecordId, seed: u32) -> Inference {
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
        Inference {
            id,
            created_at_ms: i64::from(seed),
            path: "/v1/chat/completions".to_owned(),
            status: RecordStatus::Complete,
            capture: true,
            session: Some(format!("session-{}", seed % 100)),
            tags: BTreeMap::new(),
            traceparent: None,
            request: json!({ "messages": [{ "role": "user", "content": text }] }),
            response: json!({ "choices": [{ "message": { "content": "an answer" } }] }),
            tokens: Some(TokenTrace { prompt, output, logprobs, spans, sampling, alternatives: Alternatives::NONE }),
        }
    }

    /// The records of the n-th import.
    fn batch(&self, n: u32) -> Vec<RecordBody> {
        let record = |k| RecordBody::Inference(Box::new(self.record(RecordId::fresh(), n * IMPORTED + k)));
        (0..IMPORTED).map(record).collect()
    }

    /// The same of a scenario that learns: half of them answers, each with its report.
    fn graded(&self, n: u32) -> Vec<RecordBody> {
        let pair = |k| {
            let id = RecordId::fresh();
            let report = self.report(id.clone());
            [RecordBody::Inference(Box::new(self.record(id, n * IMPORTED + k))), RecordBody::Report(Box::new(report))]
        };
        (0..IMPORTED / 2).flat_map(pair).collect()
    }

    fn report(&self, of: RecordId) -> Report {
        Report {
            id: RecordId::fresh(),
            created_at_ms: 0,
            score: Some(1.0),
            feedback: None,
            references: vec![of],
            metadata: Map::new(),
            amends: None,
            traceparent: None,
        }
    }

    /// Records a second.
    async fn imports(&self, batches: u32) -> Result<f64, StartError> {
        // Made beforehand, so that only the store is measured.
        let made: Vec<_> = (0..batches).map(|n| self.batch(n)).collect();
        let started = Instant::now();
        let mut calls = JoinSet::new();
        for batch in made {
            let bench = self.clone();
            calls.spawn(async move { bench.store.import(&bench.tenant, &bench.scenario, batch).await.map(drop) });
        }
        all(calls).await?;
        Ok(f64::from(batches * IMPORTED) / started.elapsed().as_secs_f64())
    }

    /// Records a second.
    async fn singles(&self, run: usize) -> Result<f64, StartError> {
        let started = Instant::now();
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (bench, first) = (self.clone(), u32::try_from(run).unwrap_or(0) * CALLERS + caller);
            callers.spawn(async move {
                for n in 0..APPENDS {
                    let record = bench.record(RecordId::fresh(), first * APPENDS + n);
                    bench.store.append_inference(&bench.tenant, &bench.scenario, record).await?;
                }
                Ok(())
            });
        }
        all(callers).await?;
        Ok(f64::from(CALLERS * APPENDS) / started.elapsed().as_secs_f64())
    }

    /// p50 and p99 in milliseconds.
    async fn reports(&self) -> Result<(f64, f64), StartError> {
        let page = self.store.records(&self.tenant, &self.scenario, 0, IMPORTED, None).await?;
        let ids: Vec<RecordId> = page.iter().map(|record| record.body.id().clone()).collect();
        let mut calls = JoinSet::new();
        let mut tick = tokio::time::interval(REPORT_EVERY);
        for id in ids.iter().cycle().take(REPORTS as usize) {
            tick.tick().await;
            let (bench, report) = (self.clone(), self.report(id.clone()));
            calls.spawn(async move {
                let started = Instant::now();
                bench.store.append_report(&bench.tenant, &bench.scenario, report).await?;
                Ok::<_, StoreError>(started.elapsed().as_secs_f64() * 1000.0)
            });
        }
        let mut times = Vec::new();
        for ended in calls.join_all().await {
            times.push(ended?);
        }
        Ok((share(&times, 0.5), share(&times, 0.99)))
    }

    async fn large(&self, records: u32) -> Result<Value, StartError> {
        self.fill(records).await?;
        let (tenant, name) = (&self.tenant, &self.scenario);
        let mut pages = Vec::new();
        for part in 0..20_u32 {
            let after = i64::from(records / 20 * part);
            let started = Instant::now();
            self.store.records(tenant, name, after, PAGE, None).await?;
            pages.push(started.elapsed().as_secs_f64() * 1000.0);
        }
        let mut selections = Vec::new();
        for _ in 0..5 {
            let started = Instant::now();
            self.store.pool(tenant, name, POOL).await?;
            selections.push(started.elapsed().as_secs_f64() * 1000.0);
        }
        let (before, started) = (rss_mb(), Instant::now());
        let exported = self.store.export(tenant, name, 0, &mut tokio::io::sink()).await?;
        let (export_seconds, export_mb) = (started.elapsed().as_secs_f64(), rss_mb() - before);
        let started = Instant::now();
        let expired = self.store.expire(tenant, name, i64::MAX, now_ms()).await?;
        let expired_per_second = expired as f64 / started.elapsed().as_secs_f64();
        let mut looks = Vec::new();
        for _ in 0..5 {
            let started = Instant::now();
            self.store.counts_on_each(tenant, name).await?;
            self.store.retirement_reasons(tenant, name).await?;
            looks.push(started.elapsed().as_secs_f64() * 1000.0);
        }
        let (before, started) = (rss_mb(), Instant::now());
        let keep = Retention { records_max: Some(i64::from(records / 2)), ..Retention::default() };
        let dropped = self.store.retain(tenant, name, &keep, now_ms()).await?;
        Ok(json!({
            "records": records,
            "page_of_100_ms": median(pages),
            "batch_selection_ms": median(selections),
            "exported_records_per_second": exported.records as f64 / export_seconds,
            "export_rss_grown_mb": export_mb,
            "expired_samples_per_second": expired_per_second,
            "figures_of_the_status_ms": median(looks),
            "dropped_records_per_second": dropped.records as f64 / started.elapsed().as_secs_f64(),
            "drop_rss_grown_mb": rss_mb() - before,
        }))
    }

    async fn fill(&self, records: u32) -> Result<(), StartError> {
        let bar = ProgressBar::new(u64::from(records)).with_message("records");
        let mut calls: JoinSet<Result<(), StoreError>> = JoinSet::new();
        for n in 0..records.div_ceil(IMPORTED) {
            while calls.len() >= IMPORTS_AT_ONCE {
                next(&mut calls).await?;
                bar.inc(u64::from(IMPORTED));
            }
            let (bench, batch) = (self.clone(), self.graded(n));
            calls.spawn(async move { bench.store.import(&bench.tenant, &bench.scenario, batch).await.map(drop) });
        }
        while next(&mut calls).await? {
            bar.inc(u64::from(IMPORTED));
        }
        bar.finish_and_clear();
        Ok(())
    }
}

async fn all(mut calls: JoinSet<Result<(), StoreError>>) -> Result<(), StartError> {
    while next(&mut calls).await? {}
    Ok(())
}

/// Waits for one of the calls; false = there was none.
async fn next(calls: &mut JoinSet<Result<(), StoreError>>) -> Result<bool, StartError> {
    let Some(ended) = calls.join_next().await else { return Ok(false) };
    ended.map_err(|died| StartError::Other(format!("a caller died: {died}")))??;
    Ok(true)
}
