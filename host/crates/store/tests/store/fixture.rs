//! One store in a place of its own with one scenario, and the values that the tests put into it.

use std::collections::BTreeMap;

use reef_core::{
    Alternatives, ContentId, Inference, RecordId, RecordStatus, Release, ReleaseId, ReleaseManifest, ReleaseOrigin,
    ReleaseSpan, Report, Sampling, ScenarioName, Step, StepOutcome, Surface, TenantId, TokenTrace,
};
use reef_store::{Appended, Commit, Counts, Pool, ScenarioSettings, Store, StoreError};
use serde_json::{Map, json};

use crate::place::Place;

/// A moment; no test reads a clock.
pub const NOW_MS: i64 = 1_767_225_600_000;

pub fn tenant() -> TenantId {
    TenantId::parse("acme").expect("valid")
}

pub fn name() -> ScenarioName {
    ScenarioName::parse("spell").expect("valid")
}

pub fn id(text: &str) -> RecordId {
    RecordId::parse(text).expect("valid")
}

pub fn ids(texts: &[&str]) -> Vec<RecordId> {
    texts.iter().map(|text| id(text)).collect()
}

pub fn release_id(n: u32) -> ReleaseId {
    ReleaseId::parse(format!("{n:040x}")).expect("valid")
}

/// An answer that was sampled by release 0.
pub fn inference(receipt: &str, prompt: &[u32], output: &[u32]) -> Inference {
    let sampling = Sampling { temperature: 0.7, top_p: 1.0, top_k: 0, seed: u64::MAX };
    let spans = vec![ReleaseSpan { start: 0, release: release_id(0), sequence: 0 }];
    let logprobs = (1..=output.len()).map(|n| -0.1 * n as f32).collect();
    Inference {
        id: id(receipt),
        created_at_ms: NOW_MS,
        path: "/v1/chat/completions".to_owned(),
        status: RecordStatus::Complete,
        capture: true,
        session: None,
        tags: BTreeMap::new(),
        traceparent: None,
        request: json!({ "messages": [{ "role": "user", "content": "Spell 'café'; DROP TABLE records" }], "top_p": 0.1 }),
        response: json!({ "choices": [{ "message": { "content": "c-a-f-é" } }] }),
        tokens: Some(TokenTrace {
            prompt: prompt.to_vec(),
            output: output.to_vec(),
            logprobs,
            spans,
            sampling,
            alternatives: Alternatives::NONE,
        }),
    }
}

/// The same with its trace changed.
pub fn traced(receipt: &str, change: impl FnOnce(&mut TokenTrace)) -> Inference {
    let mut record = inference(receipt, &[1, 2, 3], &[4, 5]);
    change(record.tokens.as_mut().expect("a trace"));
    record
}

/// A report with a score of 1.
pub fn report(text: &str, references: &[&str]) -> Report {
    Report {
        id: id(text),
        created_at_ms: NOW_MS,
        score: Some(1.0),
        feedback: None,
        references: ids(references),
        metadata: Map::new(),
        amends: None,
        traceparent: None,
    }
}

/// A release that follows `parent`.
pub fn release(n: u32, parent: Option<&Release>, origin: ReleaseOrigin) -> Release {
    Release {
        release_id: release_id(n),
        content_id: ContentId::parse(format!("{n:064x}")).expect("valid"),
        manifest: ReleaseManifest {
            tenant: tenant(),
            scenario: name(),
            surface: Surface::Weights,
            sequence: parent.map_or(0, |parent| parent.manifest.sequence + 1),
            parent: parent.map(|parent| parent.release_id.clone()),
            origin,
            base_model: "0".repeat(64),
            recipe: None,
            seed: None,
            records: None,
            metrics: BTreeMap::from([("held_out".to_owned(), 0.1)]),
            evaluation: None,
            decision: None,
            created_at_ms: NOW_MS,
        },
    }
}

/// A step that begins on `parent`.
pub fn step(number: u32, parent: &Release, batch: &[&str]) -> Step {
    Step {
        step: number,
        surface: None,
        parent: parent.release_id.clone(),
        beside: BTreeMap::new(),
        batch: ids(batch),
        recipe: "sao@0.1.0#sha256:00".to_owned(),
        seed: 7,
        now_ms: NOW_MS,
        metrics: BTreeMap::from([("loss".to_owned(), f64::NAN), ("score".to_owned(), 0.1 + 0.2)]),
        calls: Vec::new(),
        traceparent: None,
        candidate: None,
        gate: None,
        outcome: StepOutcome::Running,
    }
}

pub fn ended(step: &Step, outcome: StepOutcome) -> Step {
    Step { outcome, ..step.clone() }
}

pub fn failed(step: &Step) -> Step {
    ended(step, StepOutcome::Failed { reason: "out of fuel".to_owned() })
}

pub fn skipped(step: &Step) -> Step {
    ended(step, StepOutcome::Skipped { reason: "all advantages are 0".to_owned() })
}

pub fn released(step: &Step, release: &Release) -> (Step, Commit) {
    let outcome = StepOutcome::Released { release: release.release_id.clone(), reason: "better".to_owned() };
    (ended(step, outcome), Commit { release: Some(release.clone()), ..Commit::default() })
}

pub fn held(step: &Step, candidate: &Release) -> (Step, Commit) {
    let outcome = StepOutcome::Held { reason: "a person decides".to_owned() };
    (ended(step, outcome), Commit { held: Some(candidate.clone()), ..Commit::default() })
}

pub fn reasons(pool: &Pool) -> Vec<(&str, &str)> {
    pool.unusable.iter().map(|(report, reason)| (report.as_str(), reason.reason.as_str())).collect()
}

pub fn usable(pool: &Pool) -> Vec<&str> {
    pool.samples.iter().map(|sample| sample.report.as_str()).collect()
}

/// A store with the scenario and its base release.
pub struct Fixture {
    pub store: Store,
    pub base: Release,
    pub place: Place,
}

impl Fixture {
    pub async fn new() -> Self {
        Self::at(Place::new().await).await
    }

    pub async fn at(place: Place) -> Self {
        let store = place.open().await.expect("opened");
        let base = release(0, None, ReleaseOrigin::Base);
        store.create_scenario(&tenant(), &name(), &ScenarioSettings::default(), NOW_MS).await.expect("created");
        store.append_release(&tenant(), &name(), &base, None).await.expect("base");
        Self { store, base, place }
    }

    /// Closes the store and opens it again, as a restart does.
    pub async fn reopen(&mut self) {
        self.store.close().await;
        self.store = self.place.open().await.expect("opened again");
    }

    /// Goes on with what a crash leaves behind.
    pub async fn crash(&mut self) {
        let left = self.place.after_crash().await;
        self.store.close().await;
        self.place = left;
        self.store = self.place.open().await.expect("opened after the crash");
    }

    pub async fn answer(&self, record: Inference) -> i64 {
        self.store.append_inference(&tenant(), &name(), record).await.expect("appended")
    }

    pub async fn report(&self, report: Report) -> Result<Appended, StoreError> {
        self.store.append_report(&tenant(), &name(), report).await
    }

    /// An answer `r-<n>` to a prompt of its own, and its report `g-<n>`.
    pub async fn graded(&self, n: u32) {
        self.answer(inference(&format!("r-{n}"), &[1, n], &[2, 3])).await;
        self.report(report(&format!("g-{n}"), &[&format!("r-{n}")])).await.expect("graded");
    }

    pub async fn pool(&self) -> Pool {
        self.store.pool(&tenant(), &name(), 1_000).await.expect("pool")
    }

    pub async fn counts(&self) -> Counts {
        self.store.counts(&tenant(), &name()).await.expect("counts")
    }

    pub async fn begin(&self, step: &Step) -> Result<(), StoreError> {
        self.store.begin_step(&tenant(), &name(), step, None).await
    }

    pub async fn finish(&self, step: &Step, commit: Commit) -> Result<(), StoreError> {
        self.store.finish_step(&tenant(), &name(), step, commit).await
    }

    pub async fn running(&self) -> Option<Step> {
        self.store.running_step(&tenant(), &name()).await.expect("running step")
    }

    pub async fn head(&self) -> ReleaseId {
        self.store.head(&tenant(), &name()).await.expect("head").expect("a head").release_id
    }

    pub async fn retire(&self, items: &[(&str, &str)]) -> Result<(), StoreError> {
        let items: Vec<_> = items.iter().map(|(report, reason)| (id(report), (*reason).to_owned())).collect();
        self.store.retire((&tenant(), &name()), Surface::Weights, &items, NOW_MS).await
    }
}
