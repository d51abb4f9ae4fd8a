//! Guests as small core modules in text form, wrapped into components with the real WIT.
//! Answers are laid out in the data segment by hand, following the canonical ABI of the world `weight-recipe`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reef_core::{RecordId, ReleaseId, Sample, Trajectory};
use reef_sandbox::{Call, Context, Grants, Outcome, PoolSample, Recipe, Sandbox, SandboxConfig, SandboxError};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

pub use crate::runner::*;

/// First byte of the data segment.
pub const DATA_AT: u32 = 4_096;

/// The world of recipes, and system interfaces that only some guests use.
const EXTENDED: &str = include_str!("system.wit");

/// Bytes of the data segment and their addresses.
#[derive(Default)]
pub struct Data(Vec<u8>);

impl Data {
    /// Address of bytes, aligned to 8.
    pub fn put(&mut self, bytes: &[u8]) -> u32 {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        let at = DATA_AT + self.0.len() as u32;
        self.0.extend_from_slice(bytes);
        at
    }

    /// All of them.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Address and length of a text.
    pub fn text(&mut self, text: &str) -> [u32; 2] {
        [self.put(text.as_bytes()), text.len() as u32]
    }

    /// Address of little-endian words.
    pub fn words(&mut self, words: &[u32]) -> u32 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(&bytes)
    }

    fn manifest(&mut self, name: &str, capabilities: &[&str]) -> u32 {
        let [name_at, name_length] = self.text(name);
        let [version_at, version_length] = self.text("1.0.0");
        let texts: Vec<u32> = capabilities.iter().flat_map(|capability| self.text(capability)).collect();
        let list_at = self.words(&texts);
        self.words(&[
            name_at,
            name_length,
            version_at,
            version_length,
            0,
            0,
            0,
            0,
            0,
            list_at,
            capabilities.len() as u32,
            0,
        ])
    }

    /// `ok(selection { choice: train(samples), retire })`; retirements share one reason.
    pub fn train(&mut self, samples: &[u32], retire: &[u32]) -> u32 {
        let [why_at, why_length] = self.text("stale");
        let retired: Vec<u32> = retire.iter().flat_map(|sample| [*sample, why_at, why_length]).collect();
        let (samples_at, retired_at) = (self.words(samples), self.words(&retired));
        self.words(&[0, 1, samples_at, samples.len() as u32, retired_at, retire.len() as u32])
    }

    /// `ok(skip(reason))`.
    pub fn skip(&mut self, reason: &str) -> u32 {
        let [at, length] = self.text(reason);
        self.words(&[0, 1, at, length])
    }

    /// `ok(verdict { promote, reason, measurements })`.
    pub fn verdict(&mut self, measurements: &[(&str, f64)]) -> u32 {
        let [reason_at, reason_length] = self.text("good");
        let rows: Vec<u32> = measurements
            .iter()
            .flat_map(|(name, value)| {
                let ([at, length], bits) = (self.text(name), value.to_bits());
                [at, length, bits as u32, (bits >> 32) as u32]
            })
            .collect();
        let rows_at = self.words(&rows);
        self.words(&[0, 0, reason_at, reason_length, rows_at, measurements.len() as u32])
    }
}

/// A guest; every part can be replaced. By default it trains on samples 0 and 1, skips, and promotes.
pub struct Guest {
    pub data: Data,
    pub name: &'static str,
    pub capabilities: Vec<&'static str>,
    pub imports: String,
    pub memory: &'static str,
    pub realloc: &'static str,
    pub fields: String,
    pub select: String,
    pub propose: String,
    pub evaluate: String,
}

/// Allocates upwards from 128 KiB and grows the memory.
pub const BUMP: &str = "(local $at i32)
  (local.set $at (i32.and (i32.add (global.get $bump) (i32.const 7)) (i32.const -8)))
  (global.set $bump (i32.add (local.get $at) (local.get 3)))
  (block $fits (loop $grow
    (br_if $fits (i32.le_u (global.get $bump) (i32.mul (memory.size) (i32.const 65536))))
    (if (i32.eq (memory.grow (i32.const 1)) (i32.const -1)) (then unreachable))
    (br $grow)))
  (local.get $at)";

impl Guest {
    pub fn good() -> Self {
        let mut data = Data::default();
        let (train, skip, verdict) = (data.train(&[0, 1], &[2]), data.skip("warm-up"), data.verdict(&[("score", 0.5)]));
        Self {
            data,
            name: "probe",
            capabilities: vec![],
            imports: String::new(),
            memory: "4",
            realloc: BUMP,
            fields: String::new(),
            select: format!("i32.const {train}"),
            propose: format!("i32.const {skip}"),
            evaluate: format!("i32.const {verdict}"),
        }
    }

    /// All three exports do the same.
    pub fn doing(body: &str) -> Self {
        Self { select: body.into(), propose: body.into(), evaluate: body.into(), ..Self::good() }
    }

    /// Adds an import of `reef:recipe` with its core signature, and asks for it.
    pub fn importing(mut self, interface: &'static str, function: &str, signature: &str) -> Self {
        self.imports +=
            &format!("(import \"reef:recipe/{interface}@0.1.0\" \"{function}\" (func ${function} {signature}))\n");
        self.capabilities.push(interface);
        self
    }

    /// Adds an import of a system interface, callable under a name, with its core signature.
    pub fn system(mut self, (interface, function): (&str, &str), name: &str, signature: &str) -> Self {
        self.imports += &format!("(import \"wasi:{interface}@0.2.0\" \"{function}\" (func ${name} {signature}))\n");
        self
    }

    /// Does this before it selects as usual.
    pub fn selecting_after(mut self, body: &str) -> Self {
        self.select = format!("{body} {}", self.select);
        self
    }

    pub fn bytes(mut self) -> Vec<u8> {
        let manifest = self.data.manifest(self.name, &self.capabilities);
        let data: String = self.data.0.iter().map(|byte| format!("\\{byte:02x}")).collect();
        let (context, strategy) = ("(param i32 i32 i32 i32 i32 f64 i32 i32 i32 i32)", "reef:recipe/strategy@0.1.0");
        let text = format!(
            "(module {imports}
               (memory (export \"memory\") {memory})
               (global $bump (mut i32) (i32.const 131072))
               (data (i32.const {DATA_AT}) \"{data}\")
               {fields}
               (func (export \"cabi_realloc\") (param i32 i32 i32 i32) (result i32) {realloc})
               (func (export \"{strategy}#describe\") (result i32) i32.const {manifest})
               (func (export \"{strategy}#select-samples\") {context} (param i32 i32) (result i32) {select})
               (func (export \"{strategy}#propose-update\") {context} (param i32 i32) (result i32) {propose})
               (func (export \"{strategy}#evaluate\") {context} (param i32) (result i32) {evaluate}))",
            imports = self.imports,
            memory = self.memory,
            fields = self.fields,
            realloc = self.realloc,
            select = self.select,
            propose = self.propose,
            evaluate = self.evaluate,
        );
        component(&wat::parse_str(&text).expect("the guest's text is valid"))
    }
}

fn component(module: &[u8]) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../wit/recipe/0.1.0");
    let (package, _) = resolve.push_dir(&folder).expect("the WIT is readable");
    let extended = resolve.push_str("system.wit", EXTENDED).expect("valid WIT");
    let world = resolve.select_world(&[package, extended], Some("test:guests/extended")).expect("the world exists");
    let mut module = module.to_vec();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("metadata");
    ComponentEncoder::default().module(&module).expect("module").validate(true).encode().expect("component")
}

/// Small budgets, so that every case is over soon.
pub fn small() -> SandboxConfig {
    SandboxConfig {
        memory_bytes_max: 4 << 20,
        fuel_select: 20_000_000,
        fuel_propose: 20_000_000,
        fuel_evaluate: 20_000_000,
        cancel_grace_ms: 300,
        ..SandboxConfig::default()
    }
}

/// A sandbox of the kind that the case runs on.
pub fn sandbox(config: SandboxConfig) -> Sandbox {
    let pooling = pooling();
    let sandbox = Sandbox::new(SandboxConfig { pooling, ..config }).expect("the sandbox starts");
    assert_eq!(sandbox.gauges().pooling, pooling, "this machine has room for a pool");
    sandbox
}

pub async fn load(sandbox: &Sandbox, guest: Guest) -> Result<Recipe, SandboxError> {
    sandbox.load(guest.bytes(), &Grants::all()).await
}

pub fn sample(index: u32) -> PoolSample {
    let trajectory = Trajectory {
        tokens: vec![1, 2, 10 + index],
        prompt_length: 2,
        mask: vec![1],
        logprobs: vec![-0.5],
        turns: vec![],
        alternatives: reef_core::Alternatives::default(),
    };
    let sample = Sample {
        report: RecordId::parse(format!("report-{index}")).expect("id"),
        records: vec![RecordId::parse(format!("record-{index}")).expect("id")],
        score: Some(f64::from(index)),
        metadata: serde_json::Map::new(),
        trajectory,
        temperature: 1.0,
        release: ReleaseId::parse("a".repeat(40)).expect("id"),
        release_sequence: 0,
        prompt_key: "k".into(),
        sequence: i64::from(index),
    };
    PoolSample { sample, lag: 0 }
}

/// A call of `tenant` over three samples.
pub fn call_of(tenant: &str) -> Call {
    let context = Context {
        tenant: tenant.into(),
        scenario: "spell".into(),
        step: 1,
        now_ms: 1_700_000_000_000,
        seed: 7,
        head: "a".repeat(40),
        max_staleness: 4,
    };
    Call { samples: Arc::new((0..3).map(sample).collect()), batch: vec![0, 1, 2], ..Call::new(context) }
}

pub fn call() -> Call {
    call_of("default")
}

/// Times that a limit may be exceeded, because tests run beside each other and beside compilers.
const LOAD: u64 = 8;

/// Awaits and asserts the time limit of a case, which is that of a machine that does nothing else.
pub async fn within<T>(limit_ms: u64, work: impl Future<Output = T>) -> T {
    let limit = Duration::from_millis(limit_ms * LOAD);
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| panic!("no end within {limit:?}"))
}

/// A good guest still gets its answer from the same sandbox.
pub async fn still_works(sandbox: &Sandbox) {
    let recipe = load(sandbox, Guest::good()).await.expect("loads");
    let outcome = recipe.select_samples(call()).await;
    assert!(outcome.result.is_ok(), "{:?}", outcome.result);
}

pub fn kind<T: std::fmt::Debug>(outcome: &Outcome<T>) -> reef_sandbox::FaultKind {
    let fault = outcome.result.as_ref().expect_err("a fault");
    assert_eq!(outcome.report.fault.as_deref(), Some(fault.to_string().as_str()));
    assert!(outcome.state.is_empty(), "nothing of a failed call is kept");
    fault.kind
}
