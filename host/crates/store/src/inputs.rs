//! What a step was made from and what it heard while it ran: enough to do it again.
//! The learner writes the inputs with the beginning of a step and the transcript with its end, each in the transaction
//! of `steps.rs`; a replay reads both. Steps of earlier versions have neither. Nothing here decides anything.

use std::collections::BTreeMap;

use reef_core::{AssemblyError, Gate, RecordId, ScenarioName, TenantId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Store;
use crate::bytes::Bytes;
use crate::codec::{self, Body};
use crate::error::{Fault, StoreError};
use crate::key::Key;
use crate::sql::{self, Connection};

/// State of a recipe as it is stored with a step.
pub type RecordedState = BTreeMap<String, Bytes>;

/// A sample as the selection saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolEntry {
    /// The report that made it a sample.
    pub report: RecordId,
    /// Releases between the sampling release and the head.
    pub lag: u32,
}

/// Everything that the calls of a step were given and that is not stored elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepInputs {
    /// The recipe's configuration: the scenario's values over the operator's.
    pub config: Map<String, Value>,
    /// The recipe's state before the step, with the host's own keys.
    pub state: RecordedState,
    /// The pool of the selection that formed the batch, in its order.
    pub pool: Vec<PoolEntry>,
    /// Samples that the selection of the batch retired, with its reasons.
    pub retired: Vec<(RecordId, String)>,
    /// Reports of that pool that could not become samples, and why.
    pub unusable: Vec<(RecordId, String)>,
    /// Those of them whose turns do not form one trajectory; the recipe hears of them.
    #[serde(default)]
    pub unassembled: Vec<(RecordId, AssemblyError)>,
    /// Largest lag of a usable sample.
    pub max_staleness: u32,
    /// Samples that a selection could have seen at most.
    pub pool_max: u32,
}

/// One model call of a step, by the recipe or by the host's gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelCall {
    /// Function of the interface `models`.
    pub function: String,
    /// The binding; empty for functions without one.
    pub binding: String,
    /// SHA-256 of the other arguments as JSON.
    pub request: String,
    /// What came back, or the refusal.
    pub answer: Result<Value, Value>,
}

/// Where a step ran. Another machine or build may round differently.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Version of Reef.
    pub reef: String,
    /// Version of the WASM runtime, which prices fuel.
    pub wasmtime: String,
    /// Processor and operating system.
    pub machine: String,
    /// SHA-256 of the base model.
    pub model: String,
    /// Tokens of the model's context.
    pub context: u64,
    /// Threads of a tensor operation.
    pub threads: u64,
    /// Processes that computed each batch together; 0 in what earlier versions recorded: one.
    pub workers: u64,
    /// Share of wall time that training had while requests ran.
    pub share: f64,
    /// Shape of a fresh adapter.
    pub lora: Value,
    /// Limits of sandboxed calls.
    pub sandbox: Value,
    /// SHA-256 of the verifiers' components, by name.
    pub verifiers: BTreeMap<String, String>,
    /// What the trainer compared with, by the name of its binding: `base`, or the id of a release.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub policies: BTreeMap<String, String>,
}

/// What a step heard and left behind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTranscript {
    /// Where it ran to its end.
    pub environment: Environment,
    /// The operator's gate as it was asked; none = it was not.
    pub gate: Option<Gate>,
    /// Held-out tasks, and the SHA-256 of them as JSON.
    pub held_out: (u32, String),
    /// Model calls in order.
    pub calls: Vec<ModelCall>,
    /// False: there was more to hear than is kept, so that the step cannot be replayed beyond `calls`.
    pub complete: bool,
    /// State that the step wrote; `None` deleted a key.
    pub state: BTreeMap<String, Option<Bytes>>,
}

/// What is recorded of a step beside the step itself.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedStep {
    /// What it was given.
    pub inputs: StepInputs,
    /// What it heard; none while it runs.
    pub transcript: Option<StepTranscript>,
}

type Row = (i64, Vec<u8>, Option<i64>, Option<Vec<u8>>);

impl Store {
    /// Inputs and transcript of a step; none for steps of versions that did not record them.
    pub async fn step_record(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        n: u32,
    ) -> Result<Option<RecordedStep>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT inputs_bytes, inputs, transcript_bytes, transcript FROM step_inputs \
                   WHERE tenant = $1 AND scenario = $2 AND step = $3";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(n);
        let row: Option<Row> = self.told(query.fetch_optional(&mut conn).await)?;
        match row {
            Some(row) => Ok(Some(self.told(read(row).await)?)),
            None => Ok(None),
        }
    }
}

async fn read((inputs_bytes, inputs, transcript_bytes, transcript): Row) -> Result<RecordedStep, Fault> {
    let inputs = codec::unpack(inputs, inputs_bytes, "inputs of a step").await?;
    let transcript = match (transcript_bytes, transcript) {
        (Some(raw), Some(bytes)) => Some(codec::unpack(bytes, raw, "transcript of a step").await?),
        _ => None,
    };
    Ok(RecordedStep { inputs, transcript })
}

/// Inputs or a transcript, ready to be written.
pub(crate) async fn packed<T: Serialize>(part: Option<&T>, what: &str) -> Result<Option<Body>, Fault> {
    match part {
        Some(part) => Ok(Some(codec::pack(part, what).await?)),
        None => Ok(None),
    }
}

/// Writes the inputs inside the transaction that begins the step.
pub(crate) async fn begin(conn: &mut Connection, key: &Key, step: u32, inputs: &Body) -> Result<(), Fault> {
    let sql = "INSERT INTO step_inputs (tenant, scenario, step, inputs_bytes, inputs) VALUES ($1, $2, $3, $4, $5)";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(step);
    query.bind(inputs.raw_bytes).bind(inputs.bytes.as_slice()).execute(conn).await?;
    Ok(())
}

/// Writes the transcript inside the transaction that ends the step. A step without inputs gets none.
pub(crate) async fn finish(conn: &mut Connection, key: &Key, step: u32, transcript: &Body) -> Result<(), Fault> {
    let sql = "UPDATE step_inputs SET transcript_bytes = $4, transcript = $5 \
               WHERE tenant = $1 AND scenario = $2 AND step = $3";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(step);
    query.bind(transcript.raw_bytes).bind(transcript.bytes.as_slice()).execute(conn).await?;
    Ok(())
}
