//! A store in a folder of its own, and the records, reports, steps and releases that tests put in.

use std::collections::BTreeMap;
use std::path::PathBuf;

use reef_core::{
    ContentId, Inference, RecordId, RecordStatus, Release, ReleaseId, ReleaseManifest, ReleaseOrigin, ReleaseSpan,
    Report, Sampling, ScenarioName, Step, StepOutcome, Surface, TenantId, TokenTrace,
};
use reef_store::{ScenarioSettings, Store};
use serde_json::{Map, json};

pub struct Place {
    pub store: Store,
    pub t: TenantId,
    pub s: ScenarioName,
    folder: tempfile::TempDir,
}

impl Place {
    /// A new database with one scenario and no head.
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let store = Store::open(&folder.path().join("reef.db")).await.expect("open");
        let place = Self { store, t: tenant("acme"), s: scenario("spell"), folder };
        place.store.create_scenario(&place.t, &place.s, &ScenarioSettings::default(), 1).await.expect("scenario");
        place
    }

    /// With release 0 as the head.
    pub async fn with_base() -> Self {
        let place = Self::new().await;
        let base = release(0, None, ReleaseOrigin::Base);
        place.store.append_release(&place.t, &place.s, &base, None).await.expect("base");
        place
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("reef.db")
    }

    /// Opens the same file again; the old handle is dropped without closing.
    pub async fn reopen(&mut self) {
        self.store = Store::open(&self.path()).await.expect("reopen");
    }

    pub async fn infer(&self, id: &str) -> i64 {
        self.store.append_inference(&self.t, &self.s, inference(id)).await.expect("inference")
    }

    pub async fn report(&self, report: Report) -> bool {
        self.store.append_report(&self.t, &self.s, report).await.expect("report").duplicate
    }

    /// One record and one report on it.
    pub async fn sample(&self, name: &str) -> RecordId {
        self.infer(&format!("i-{name}")).await;
        let report = graded(&format!("r-{name}"), &[&format!("i-{name}")], 1.0);
        self.report(report).await;
        id(&format!("r-{name}"))
    }
}

pub fn tenant(text: &str) -> TenantId {
    TenantId::parse(text).expect("tenant")
}

pub fn scenario(text: &str) -> ScenarioName {
    ScenarioName::parse(text).expect("scenario")
}

pub fn id(text: &str) -> RecordId {
    RecordId::parse(text).expect("record id")
}

pub fn release_id(n: u32) -> ReleaseId {
    ReleaseId::parse(format!("{n:040x}")).expect("release id")
}

pub fn inference(name: &str) -> Inference {
    Inference {
        id: id(name),
        created_at_ms: 5,
        path: "/v1/chat/completions".to_owned(),
        status: RecordStatus::Complete,
        capture: true,
        session: Some("session-1".to_owned()),
        tags: BTreeMap::new(),
        traceparent: None,
        request: json!({ "messages": [{ "role": "user", "content": "say ü 🌊" }], "temperature": 0.7 }),
        response: json!({ "choices": [{ "text": "🌊" }] }),
        tokens: Some(trace(&[1, 2, 3], &[4, 5])),
    }
}

pub fn trace(prompt: &[u32], output: &[u32]) -> TokenTrace {
    TokenTrace {
        prompt: prompt.to_vec(),
        output: output.to_vec(),
        logprobs: output.iter().map(|token| -0.1 * *token as f32).collect(),
        spans: vec![ReleaseSpan { start: 0, release: release_id(0), sequence: 0 }],
        sampling: Sampling { temperature: 0.7, top_p: 0.95, top_k: 40, seed: u64::MAX },
    }
}

/// A record whose prompt and output are given.
pub fn turn(name: &str, prompt: &[u32], output: &[u32]) -> Inference {
    Inference { tokens: Some(trace(prompt, output)), ..inference(name) }
}

pub fn graded(name: &str, references: &[&str], score: f64) -> Report {
    Report {
        id: id(name),
        created_at_ms: 7,
        score: Some(score),
        feedback: None,
        references: references.iter().map(|text| id(text)).collect(),
        metadata: Map::new(),
        amends: None,
        traceparent: None,
    }
}

pub fn release(n: u32, parent: Option<u32>, origin: ReleaseOrigin) -> Release {
    Release {
        release_id: release_id(n),
        content_id: ContentId::parse(format!("{n:064x}")).expect("content id"),
        manifest: ReleaseManifest {
            tenant: tenant("acme"),
            scenario: scenario("spell"),
            surface: Surface::Weights,
            sequence: n,
            parent: parent.map(release_id),
            origin,
            base_model: "0".repeat(64),
            recipe: None,
            seed: Some(3),
            records: None,
            metrics: BTreeMap::from([("kl".to_owned(), 0.25)]),
            created_at_ms: 9,
        },
    }
}

pub fn step(n: u32, parent: u32, batch: &[RecordId]) -> Step {
    Step {
        step: n,
        parent: release_id(parent),
        batch: batch.to_vec(),
        recipe: "sao@0.1.0#sha256:00".to_owned(),
        seed: 11,
        now_ms: 13,
        metrics: BTreeMap::new(),
        calls: Vec::new(),
        traceparent: None,
        outcome: StepOutcome::Running,
    }
}

pub fn ended(step: &Step, outcome: StepOutcome) -> Step {
    Step { outcome, ..step.clone() }
}

pub fn why() -> String {
    "because".to_owned()
}
