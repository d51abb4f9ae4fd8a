//! A tiny server for tests of the demo: it speaks the routes that the demo uses and learns by counting.
//! Its model answers exactly once enough releases were made; scripts make it fail in the ways that count.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use reef_core::{
    CallReport, ContentId, RecordId, Release, ReleaseId, ReleaseManifest, ReleaseOrigin, ScenarioName, Step,
    StepOutcome, Surface, TenantId, sha256_hex,
};
use serde_json::{Value, json};

/// How the server behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// A release for every full batch.
    Learns,
    /// As `Learns`, and every other request is answered 429 first.
    Busy,
    /// Always 503.
    AlwaysBusy,
    /// Takes reports and never makes a step.
    Idles,
    /// Every step fails.
    Fails,
    /// Chat is answered 500.
    Breaks,
    /// Chat answers lack the receipt.
    NoReceipt,
}

/// What happened, for assertions.
#[derive(Debug)]
pub struct World {
    script: Script,
    batch: usize,
    requests: usize,
    scenario: String,
    releases: Vec<Release>,
    steps: Vec<Step>,
    pending: Vec<RecordId>,
    answers: HashMap<String, String>,
    /// Chat requests that may become samples.
    pub captured: usize,
    /// Chat requests with `x-reef-capture: off`.
    pub measured: usize,
    /// Sessions of captured requests.
    pub sessions: HashSet<String>,
    /// Prompts of captured requests, of measured ones, and of the uploaded tasks.
    pub prompts: [HashSet<String>; 3],
    /// Body of the creation.
    pub settings: Value,
    /// Training mode was set to manual.
    pub paused: bool,
    /// Authorization headers seen.
    pub tokens: HashSet<String>,
}

type Shared = Arc<Mutex<World>>;

fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the server; returns its address and its memory.
pub async fn serve(script: Script, batch: usize) -> (String, Shared) {
    let world = World {
        script,
        batch,
        requests: 0,
        scenario: String::new(),
        releases: Vec::new(),
        steps: Vec::new(),
        pending: Vec::new(),
        answers: HashMap::new(),
        captured: 0,
        measured: 0,
        sessions: HashSet::new(),
        prompts: Default::default(),
        settings: Value::Null,
        paused: false,
        tokens: HashSet::new(),
    };
    let shared = Arc::new(Mutex::new(world));
    let app = axum::Router::new().fallback(handle).with_state(Arc::clone(&shared));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    (format!("http://{address}"), shared)
}

async fn handle(State(shared): State<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, 1 << 20).await.expect("body");
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let mut world = lock(&shared);
    world.requests += 1;
    world.tokens.insert(text(&parts.headers, "authorization"));
    if world.script == Script::AlwaysBusy || (world.script == Script::Busy && world.requests % 2 == 1) {
        let status =
            if world.script == Script::Busy { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::SERVICE_UNAVAILABLE };
        return (status, [("retry-after", "0")], Json(json!({ "error": { "code": "overloaded", "message": "busy" } })))
            .into_response();
    }
    world.answer(&parts.method, parts.uri.path(), &parts.headers, &body)
}

fn text(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

impl World {
    fn answer(&mut self, method: &Method, path: &str, headers: &HeaderMap, body: &Value) -> Response {
        let noun = path.strip_prefix("/reef/scenarios/").and_then(|rest| rest.split_once('/'));
        match (method.as_str(), path, noun.map(|(_, noun)| noun)) {
            ("POST", "/reef/scenarios", _) => self.create(body),
            ("POST", "/v1/chat/completions", _) => self.chat(headers, body),
            ("POST", "/reef/report", _) => self.report(body),
            ("GET", "/reef/status", _) => Json(self.status()).into_response(),
            ("PUT", _, Some("held-out")) => {
                for task in body["tasks"].as_array().expect("tasks") {
                    let task: reef_core::HeldOutTask = serde_json::from_value(task.clone()).expect("a held-out task");
                    self.prompts[2].extend(task.messages.last().map(|message| message.content.clone()));
                }
                Json(json!({})).into_response()
            }
            ("POST", _, Some("update")) => {
                self.paused = body["training_mode"] == "manual";
                Json(json!({})).into_response()
            }
            ("GET", _, Some("steps")) => {
                Json(json!({ "steps": self.steps.iter().rev().collect::<Vec<_>>() })).into_response()
            }
            ("GET", _, Some("releases")) => {
                let listed = |release: &Release| {
                    let mut value = json!(release);
                    value["status"] =
                        json!(if release == self.releases.last().expect("head") { "served" } else { "retained" });
                    value
                };
                Json(json!({ "releases": self.releases.iter().rev().map(listed).collect::<Vec<_>>() })).into_response()
            }
            _ => (StatusCode::NOT_FOUND, Json(json!({ "error": { "message": "no such route" } }))).into_response(),
        }
    }

    fn create(&mut self, body: &Value) -> Response {
        self.settings = body.clone();
        self.scenario = body["scenario"].as_str().expect("name").to_owned();
        let new = self.releases.is_empty();
        if new {
            self.releases.push(release(&self.scenario, 0));
        }
        let status = if new { StatusCode::CREATED } else { StatusCode::OK };
        (status, Json(json!({ "scenario": self.scenario }))).into_response()
    }

    fn chat(&mut self, headers: &HeaderMap, body: &Value) -> Response {
        if self.script == Script::Breaks {
            return (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({ "error": { "message": "the engine failed" } })))
                .into_response();
        }
        assert_eq!(text(headers, "x-reef-scenario"), self.scenario);
        let prompt = body["messages"]
            .as_array()
            .and_then(|messages| messages.last())
            .and_then(|m| m["content"].as_str())
            .expect("prompt")
            .to_owned();
        let word = prompt.rsplit(": ").next().unwrap_or_default().to_owned();
        if text(headers, "x-reef-capture") == "off" {
            assert_eq!(body["temperature"], 0.0);
            self.measured += 1;
            self.prompts[1].insert(prompt);
        } else {
            assert_eq!(body["temperature"], 1.0);
            self.captured += 1;
            self.sessions.insert(text(headers, "x-reef-tag-session"));
            self.prompts[0].insert(prompt);
        }
        let head = self.releases.last().expect("head").release_id.to_string();
        let receipt = format!("r-{}", self.requests);
        self.answers.insert(receipt.clone(), head.clone());
        let content = if self.releases.len() > 2 { word } else { format!("The word is {word}") };
        let reply = Json(
            json!({ "choices": [{ "message": { "role": "assistant", "content": content } }], "usage": { "completion_tokens": 4 } }),
        );
        if self.script == Script::NoReceipt {
            return reply.into_response();
        }
        ([("x-reef-agent-record-id", receipt), ("x-reef-release-id", head)], reply).into_response()
    }

    fn report(&mut self, body: &Value) -> Response {
        let receipt = body["references"][0].as_str().expect("a receipt");
        assert!(
            self.answers.contains_key(receipt)
                && body["score"].as_f64().is_some_and(|score| (0.0..=1.0).contains(&score))
        );
        let id = RecordId::parse(format!("report-{receipt}")).expect("id");
        self.pending.push(id.clone());
        if self.pending.len() >= self.batch && !self.paused && self.script != Script::Idles {
            self.step();
        }
        Json(json!({ "agent_record_id": id, "scenario": self.scenario, "request_type": "report" })).into_response()
    }

    fn step(&mut self) {
        let number = u32::try_from(self.steps.len()).expect("few") + 1;
        let parent = self.releases.last().expect("head").release_id.clone();
        let outcome = if self.script == Script::Fails {
            StepOutcome::Failed { reason: "the recipe trapped".to_owned() }
        } else {
            let next = release(&self.scenario, number);
            self.releases.push(next.clone());
            StepOutcome::Released { release: next.release_id, reason: "better <on> held-out tasks".to_owned() }
        };
        self.steps.push(step(number, parent, self.pending.drain(..).collect(), outcome));
    }

    fn status(&self) -> Value {
        let head = self
            .releases
            .last()
            .map(|release| json!({ "release_id": release.release_id, "sequence": release.manifest.sequence }));
        let error = (self.script == Script::Fails).then_some("the recipe trapped");
        json!({ "scenarios": [
            { "tenant": "default", "scenario": "another", "step": 99 },
            { "tenant": "default", "scenario": self.scenario, "head": head, "step": self.steps.len(), "pending": self.pending.len(),
              "running": false, "last_error": error, "waiting": "for samples" },
        ] })
    }
}

/// A release of this position.
pub fn release(scenario: &str, sequence: u32) -> Release {
    let id = |sequence: u32| ReleaseId::parse(sha256_hex(&sequence.to_be_bytes())[..40].to_owned()).expect("id");
    Release {
        release_id: id(sequence),
        content_id: ContentId::parse(sha256_hex(b"content")).expect("id"),
        manifest: ReleaseManifest {
            tenant: TenantId::parse("default").expect("tenant"),
            scenario: ScenarioName::parse(scenario).expect("name"),
            surface: Surface::Weights,
            sequence,
            parent: sequence.checked_sub(1).map(id),
            origin: if sequence == 0 { ReleaseOrigin::Base } else { ReleaseOrigin::Step { step: sequence } },
            base_model: sha256_hex(b"model"),
            recipe: None,
            seed: None,
            records: None,
            metrics: BTreeMap::new(),
            evaluation: None,
            decision: None,
            created_at_ms: 0,
        },
    }
}

/// A step with figures.
pub fn step(number: u32, parent: ReleaseId, batch: Vec<RecordId>, outcome: StepOutcome) -> Step {
    let call = CallReport {
        function: "propose-update".to_owned(),
        fuel: 1_500_000,
        guest_us: 250_000,
        host_us: 2_000_000,
        ..CallReport::default()
    };
    let metrics = [
        ("policy/tokens", 128.0),
        ("pg_clipfrac", 0.0625),
        ("train_rollout_logprob_abs_diff", 2.5e-5),
        ("held_out_served", 0.41),
        ("held_out_candidate", 0.57),
    ];
    Step {
        step: number,
        surface: Some(Surface::Weights),
        parent,
        beside: BTreeMap::new(),
        batch,
        recipe: "sao@0.1.0".to_owned(),
        seed: 1,
        now_ms: 0,
        metrics: metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        calls: vec![call],
        traceparent: None,
        candidate: None,
        gate: None,
        outcome,
    }
}
