//! How a report and the records it references become one sample, or why they cannot.
//! Pure: `samples.rs` reads the rows. Reasons read `kind: detail`, so that they can be counted by kind.

use reef_core::{
    Alternatives, AssemblyError, INSTRUCTION_FIELD, RecordId, ReleaseId, Sample, Surface, TokenTrace, Trajectory, Turn,
    assemble, sha256_hex,
};
use serde_json::{Map, Value};

use crate::codec::ids_to_bytes;

/// Tokens that may be replaced inside the last response before a turn counts as a fork (recipes.md §0).
const REALIGN_THRESHOLD: usize = 1024;

/// The report's side of a sample.
#[derive(Debug, Clone)]
pub(crate) struct Graded {
    pub(crate) report: RecordId,
    pub(crate) sequence: i64,
    pub(crate) score: Option<f64>,
    pub(crate) metadata: Map<String, Value>,
    /// Digest of what the report says.
    pub(crate) content: Option<String>,
}

/// One referenced record; without a status it was erased or dropped.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    pub(crate) record: RecordId,
    pub(crate) status: Option<String>,
    /// Kind of side call.
    pub(crate) call: Option<String>,
    pub(crate) capture: bool,
    pub(crate) tokens: Option<TokenTrace>,
    /// The report through which it was trained.
    pub(crate) consumed_by: Option<String>,
}

/// Why a report is no sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    /// The reason, as `kind: detail`.
    pub reason: String,
    /// Set where the turns do not form one trajectory.
    pub assembly: Option<AssemblyError>,
}

impl From<String> for Unusable {
    fn from(reason: String) -> Self {
        Self { reason, assembly: None }
    }
}

impl From<AssemblyError> for Unusable {
    fn from(error: AssemblyError) -> Self {
        Self { reason: format!("not one trajectory: {error}"), assembly: Some(error) }
    }
}

/// What a sample is made for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Forming<'a> {
    /// Training on tokens.
    Tokens,
    /// Reading texts; the release is the one that such samples are said to come from.
    Texts(&'a ReleaseId),
}

impl Forming<'_> {
    /// Whose samples have this form.
    pub(crate) fn surface(self) -> Surface {
        match self {
            Self::Tokens => Surface::Weights,
            Self::Texts(_) => Surface::Harness,
        }
    }

    /// Forms the sample; `exchanges` in the order in which they happened.
    pub(crate) fn form(self, graded: Graded, exchanges: &[Exchange]) -> Result<Sample, Unusable> {
        match self {
            Self::Tokens => form(graded, exchanges),
            Self::Texts(release) => form_text(graded, exchanges, release),
        }
    }
}

/// A sample without columns: what the records say is read by their ids.
fn form_text(graded: Graded, exchanges: &[Exchange], release: &ReleaseId) -> Result<Sample, Unusable> {
    for exchange in exchanges {
        if eligible(exchange)? == "failed" {
            return Err(format!("request failed: record {}", exchange.record).into());
        }
    }
    let mut records: Vec<RecordId> = exchanges.iter().map(|exchange| exchange.record.clone()).collect();
    if records.is_empty() && graded.metadata.contains_key(INSTRUCTION_FIELD) {
        // What a person asks for is about no exchange: its record says it itself.
        records.push(graded.report.clone());
    }
    if records.is_empty() {
        return Err("no record: it references none".to_owned().into());
    }
    let ids: Vec<&str> = records.iter().map(RecordId::as_str).collect();
    Ok(Sample {
        prompt_key: sha256_hex(ids.join("\n").as_bytes()),
        report: graded.report,
        records,
        score: graded.score,
        metadata: graded.metadata,
        trajectory: Trajectory {
            tokens: Vec::new(),
            prompt_length: 0,
            mask: Vec::new(),
            logprobs: Vec::new(),
            turns: Vec::new(),
            alternatives: Alternatives::NONE,
        },
        temperature: 1.0,
        release: release.clone(),
        release_sequence: 0,
        sequence: graded.sequence,
    })
}

fn form(graded: Graded, exchanges: &[Exchange]) -> Result<Sample, Unusable> {
    let traces = exchanges.iter().map(usable).collect::<Result<Vec<_>, _>>()?;
    let (release, release_sequence) = one_release(&traces)?;
    let temperature = one_temperature(&traces)?;
    let turns: Vec<Turn<'_>> = traces.iter().map(|trace| Turn::from(*trace)).collect();
    let trajectory = assemble(&turns, REALIGN_THRESHOLD)?;
    Ok(Sample {
        prompt_key: prompt_key(&trajectory),
        report: graded.report,
        records: exchanges.iter().map(|exchange| exchange.record.clone()).collect(),
        score: graded.score,
        metadata: graded.metadata,
        trajectory,
        temperature,
        release,
        release_sequence,
        sequence: graded.sequence,
    })
}

/// The record's status, of one that may be learned from.
fn eligible(exchange: &Exchange) -> Result<&str, String> {
    let id = &exchange.record;
    let Some(status) = exchange.status.as_deref() else {
        return Err(format!("record gone: record {id} was erased or dropped"));
    };
    if let Some(call) = &exchange.call {
        return Err(format!("side call: record {id} is a {call} call"));
    }
    if !exchange.capture {
        return Err(format!("capture off: record {id}"));
    }
    if let Some(report) = &exchange.consumed_by {
        return Err(format!("record trained already: record {id} through report {report}"));
    }
    Ok(status)
}

fn usable(exchange: &Exchange) -> Result<&TokenTrace, String> {
    let (id, status) = (&exchange.record, eligible(exchange)?);
    let sampled = exchange.tokens.as_ref().filter(|trace| !trace.output.is_empty());
    match (status, sampled) {
        ("failed", _) => Err(format!("request failed: record {id}")),
        (_, Some(trace)) if trace.logprobs.iter().any(|logprob| !logprob.is_finite()) => {
            Err(format!("log-prob not finite: record {id}"))
        }
        (_, Some(trace)) => Ok(trace),
        ("cancelled", None) => Err(format!("cancelled before a token: record {id}")),
        (_, None) => Err(format!("no captured tokens: record {id}")),
    }
}

fn one_release(traces: &[&TokenTrace]) -> Result<(ReleaseId, u32), String> {
    if traces.iter().any(|trace| trace.spans.first().is_none_or(|span| span.start > 0)) {
        return Err("no release recorded: its first tokens name no release".to_owned());
    }
    let mut spans = traces.iter().flat_map(|trace| &trace.spans);
    let first = spans.next().ok_or("no captured tokens: it references no record")?;
    match spans.find(|span| span.release != first.release) {
        Some(other) => Err(format!("more than one release: {} and {}", first.release, other.release)),
        None => Ok((first.release.clone(), first.sequence)),
    }
}

fn one_temperature(traces: &[&TokenTrace]) -> Result<f32, String> {
    let effective = |trace: &&TokenTrace| match trace.sampling.temperature {
        // Greedy answers record the log-probs of temperature 1.
        0.0 => 1.0,
        temperature => temperature,
    };
    let mut temperatures = traces.iter().map(effective);
    let first = temperatures.next().ok_or("no captured tokens: it references no record")?;
    match temperatures.find(|other| *other != first) {
        Some(other) => Err(format!("more than one temperature: {first} and {other}")),
        None => Ok(first),
    }
}

fn prompt_key(trajectory: &Trajectory) -> String {
    let prompt = trajectory.tokens.get(..trajectory.prompt_length).unwrap_or_default();
    sha256_hex(&ids_to_bytes(prompt))
}
