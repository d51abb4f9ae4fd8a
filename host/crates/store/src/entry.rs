//! One record of any kind, ready to be written: checked, compressed and cut into columns by its caller, so that
//! the writer only binds values. `append.rs` writes entries; `records.rs` reads them back.

use reef_core::{
    Alternatives, INSTRUCTION_FIELD, INSTRUCTION_TEXT_BYTES_MAX, Inference, Instruction, REQUIRES_MAX, RecordId,
    RecordStatus, ReleaseSpan, Report, Sampling, TokenTrace, sha256_hex,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::codec;
use crate::error::{Fault, invalid};
use crate::key::Key;
use crate::records::RecordKind;
use crate::sql::Value;

/// Tokens of one record.
const TOKENS_MAX: usize = 1 << 20;
/// Bytes of a path, a session, a trace parent or the value of a tag.
const TEXT_BYTES_MAX: usize = 4 << 10;
/// Tags of one record; each is a row of its own.
const TAGS_MAX: usize = 64;
/// References of one report.
const REFERENCES_MAX: usize = 256;
/// Bytes of the metadata as JSON; recipes read it with every pool.
const METADATA_BYTES_MAX: usize = 256 << 10;
/// Bytes of a text that is indexed as it is; Postgres takes about 2,700 in all columns of an index.
const INDEXED_BYTES_MAX: usize = 200;
/// Before the digest that stands for a text in an index.
const DIGEST_PREFIX: &str = "sha256:";
/// Alternatives of one token, as a recipe may ask for.
const ALTERNATIVES_MAX: u32 = 64;
/// Characters of a kind of side call that are kept.
const CALL_CHARS_MAX: usize = 64;

/// Columns of `records`, in the order of `Entry::columns`.
pub(crate) const COLUMNS: &str = "records (tenant, scenario, sequence, id, kind, created_at_ms, session, call, status, \
                                  capture, stored_bytes, trace, logprobs, output, prompt, body_bytes, body)";

/// What is written beside the token columns.
#[derive(Serialize, Deserialize)]
pub(crate) struct Trace {
    pub(crate) spans: Vec<ReleaseSpan>,
    pub(crate) sampling: Sampling,
    #[serde(default, skip_serializing_if = "Alternatives::is_none")]
    pub(crate) alternatives: Alternatives,
}

/// The record itself: compared when its id exists already.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    Inference(Box<Inference>),
    Report(Box<Report>),
    Instruction(Box<Instruction>),
}

/// A record ready to be written.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) content: Content,
    tokens: Option<Tokens>,
    body: codec::Body,
    /// Of a report.
    metadata: String,
}

/// Token columns, packed.
#[derive(Debug, Clone)]
struct Tokens {
    trace: String,
    logprobs: Vec<u8>,
    output: Vec<u8>,
    prompt: Vec<u8>,
}

impl Tokens {
    fn of(trace: &TokenTrace) -> Result<Self, Fault> {
        Ok(Self {
            trace: codec::to_text(&Trace {
                spans: trace.spans.clone(),
                sampling: trace.sampling,
                alternatives: trace.alternatives.clone(),
            })?,
            logprobs: codec::floats_to_bytes(&trace.logprobs),
            output: codec::ids_to_bytes(&trace.output),
            prompt: codec::ids_to_bytes(&trace.prompt),
        })
    }

    fn bytes(&self) -> usize {
        self.trace.len() + self.logprobs.len() + self.output.len() + self.prompt.len()
    }
}

/// Tag of an amendment: the report that it replaces. Not a name that a client can give.
pub(crate) const AMENDS_TAG: &str = "~amends";

/// What a row and its tags say beside the body and the tokens.
#[derive(Debug, Clone)]
pub(crate) struct RowFacts {
    pub(crate) created_at_ms: i64,
    pub(crate) session: Option<String>,
    pub(crate) call: Option<String>,
    /// Tag and value.
    pub(crate) tags: Vec<(String, String)>,
}

impl RowFacts {
    pub(crate) fn inference(record: &Inference) -> Self {
        Self {
            created_at_ms: record.created_at_ms,
            session: record.session.as_deref().map(indexed),
            call: record.side_call().map(shown),
            tags: record.tags.iter().map(|(tag, value)| (tag.to_string(), indexed(value))).collect(),
        }
    }

    pub(crate) fn report(report: &Report) -> Self {
        let amends = report.amends.iter().map(|old| (AMENDS_TAG.to_owned(), indexed(old.as_str())));
        Self { created_at_ms: report.created_at_ms, session: None, call: None, tags: amends.collect() }
    }

    pub(crate) fn instruction(instruction: &Instruction) -> Self {
        let session = instruction.session.as_deref().map(indexed);
        Self { created_at_ms: instruction.created_at_ms, session, call: None, tags: Vec::new() }
    }
}

/// A row of `record_tags`.
pub(crate) fn tag_row((tenant, scenario): (&str, &str), sequence: i64, (tag, value): (String, String)) -> Vec<Value> {
    vec![tenant.into(), scenario.into(), tag.into(), value.into(), sequence.into()]
}

impl Entry {
    pub(crate) async fn inference(key: Key, mut record: Inference) -> Result<Self, Fault> {
        check_inference(&record)?;
        let trace = record.tokens.take();
        let body = codec::pack(&record, &format!("record {}", record.id)).await?;
        let tokens = trace.as_ref().map(Tokens::of).transpose()?;
        record.tokens = trace;
        Ok(Self { key, content: Content::Inference(Box::new(record)), tokens, body, metadata: String::new() })
    }

    pub(crate) async fn report(key: Key, report: Report) -> Result<Self, Fault> {
        check_report(&report)?;
        let metadata = codec::to_text(&report.metadata)?;
        if metadata.len() > METADATA_BYTES_MAX {
            let size = metadata.len();
            return Err(invalid(format!("the metadata has {size} bytes; the limit is {METADATA_BYTES_MAX}")));
        }
        let body = codec::pack(&report, &format!("report {}", report.id)).await?;
        Ok(Self { key, content: Content::Report(Box::new(report)), tokens: None, body, metadata })
    }

    /// `read`: a recipe of the harness reads what is asked, so that it becomes a sample.
    pub(crate) async fn instruction(key: Key, instruction: Instruction, read: bool) -> Result<Self, Fault> {
        check_instruction(&instruction)?;
        let fields = Map::from_iter([(INSTRUCTION_FIELD.to_owned(), Json::from(instruction.text.as_str()))]);
        let metadata = if read { codec::to_text(&fields)? } else { String::new() };
        let body = codec::pack(&instruction, &format!("instruction {}", instruction.id)).await?;
        let content = Content::Instruction(Box::new(instruction));
        Ok(Self { key, content, tokens: None, body, metadata })
    }

    /// Bytes that wait for the writer. The unpacked record travels along, to be compared when its id exists already.
    pub(crate) fn size(&self) -> usize {
        let unpacked = usize::try_from(self.body.raw_bytes).unwrap_or(usize::MAX / 4);
        2 * (self.stored_bytes() + self.metadata.len()) + unpacked
    }

    /// Bytes of its row, without its indices.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.body.bytes.len() + self.tokens.as_ref().map_or(0, Tokens::bytes)
    }

    pub(crate) fn id(&self) -> &RecordId {
        match &self.content {
            Content::Inference(record) => &record.id,
            Content::Report(report) => &report.id,
            Content::Instruction(instruction) => &instruction.id,
        }
    }

    pub(crate) fn kind(&self) -> RecordKind {
        match &self.content {
            Content::Inference(_) => RecordKind::Inference,
            Content::Report(_) => RecordKind::Report,
            Content::Instruction(_) => RecordKind::Instruction,
        }
    }

    pub(crate) fn references(&self) -> &[RecordId] {
        match &self.content {
            Content::Inference(_) | Content::Instruction(_) => &[],
            Content::Report(report) => &report.references,
        }
    }

    /// The earlier report that this one replaces.
    pub(crate) fn amends(&self) -> Option<&RecordId> {
        match &self.content {
            Content::Inference(_) | Content::Instruction(_) => None,
            Content::Report(report) => report.amends.as_ref(),
        }
    }

    pub(crate) fn created_at_ms(&self) -> i64 {
        match &self.content {
            Content::Inference(record) => record.created_at_ms,
            Content::Report(report) => report.created_at_ms,
            Content::Instruction(instruction) => instruction.created_at_ms,
        }
    }

    /// Is a second delivery of this entry no change?
    pub(crate) fn same(&self, other: &Content) -> bool {
        match (&self.content, other) {
            (Content::Inference(new), Content::Inference(old)) => new == old,
            (Content::Report(new), Content::Report(old)) => old.same_content(new),
            (Content::Instruction(new), Content::Instruction(old)) => old.same_content(new),
            _ => false,
        }
    }

    /// The row of `records`.
    pub(crate) fn columns(&self, sequence: i64) -> Vec<Value> {
        let inference = match &self.content {
            Content::Inference(record) => Some(record),
            Content::Report(_) | Content::Instruction(_) => None,
        };
        let (tokens, facts) = (self.tokens.as_ref(), self.facts());
        vec![
            self.key.tenant().into(),
            self.key.scenario().into(),
            sequence.into(),
            self.id().as_str().into(),
            self.kind().as_str().into(),
            facts.created_at_ms.into(),
            facts.session.into(),
            facts.call.into(),
            inference.map(|record| status_str(record.status)).into(),
            Value::Int(inference.map(|record| record.capture.into())),
            i64::try_from(self.stored_bytes()).unwrap_or(i64::MAX).into(),
            tokens.map(|tokens| tokens.trace.clone()).into(),
            tokens.map(|tokens| tokens.logprobs.clone()).into(),
            tokens.map(|tokens| tokens.output.clone()).into(),
            tokens.map(|tokens| tokens.prompt.clone()).into(),
            self.body.raw_bytes.into(),
            self.body.bytes.as_slice().into(),
        ]
    }

    fn facts(&self) -> RowFacts {
        match &self.content {
            Content::Inference(record) => RowFacts::inference(record),
            Content::Report(report) => RowFacts::report(report),
            Content::Instruction(instruction) => RowFacts::instruction(instruction),
        }
    }

    /// The rows of `record_tags`.
    pub(crate) fn tag_rows(&self, sequence: i64) -> impl Iterator<Item = Vec<Value>> {
        let place = (self.key.tenant(), self.key.scenario());
        self.facts().tags.into_iter().map(move |tag| tag_row(place, sequence, tag))
    }

    /// Score, metadata and digest of a sample.
    pub(crate) fn sample(&self) -> Option<(Option<f64>, &str, String)> {
        match &self.content {
            Content::Report(report) if !report.references.is_empty() => {
                Some((report.score, self.metadata.as_str(), digest(report)))
            }
            // Who asks twice for the same wants it twice.
            Content::Instruction(asked) if !self.metadata.is_empty() => {
                Some((None, self.metadata.as_str(), sha256_hex(asked.id.as_str().as_bytes())))
            }
            _ => None,
        }
    }
}

/// Equal for reports that say the same about the same records, under whatever ids.
fn digest(report: &Report) -> String {
    let mut references: Vec<&str> = report.references.iter().map(RecordId::as_str).collect();
    references.sort_unstable();
    let said = (references, report.score.map(f64::to_bits), &report.feedback, &report.metadata);
    // Every part was written as JSON before, so that this cannot fail.
    sha256_hex(&serde_json::to_vec(&said).unwrap_or_default())
}

/// A text as it stands in an index: itself, or its digest where a database could not index it.
pub(crate) fn indexed(text: &str) -> String {
    if text.len() <= INDEXED_BYTES_MAX && !text.contains('\0') && !text.starts_with(DIGEST_PREFIX) {
        return text.to_owned();
    }
    format!("{DIGEST_PREFIX}{}", sha256_hex(text.as_bytes()))
}

/// A text as it stands in a column without an index: itself, or its digest where Postgres could not hold it.
pub(crate) fn storable(text: &str) -> String {
    if text.contains('\0') { indexed(text) } else { text.to_owned() }
}

fn shown(call: &str) -> String {
    call.chars().take(CALL_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

pub(crate) fn status_str(status: RecordStatus) -> &'static str {
    match status {
        RecordStatus::Complete => "complete",
        RecordStatus::Cancelled => "cancelled",
        RecordStatus::Failed => "failed",
    }
}

fn check_inference(record: &Inference) -> Result<(), Fault> {
    let id = &record.id;
    let texts = [Some(&record.path), record.session.as_ref(), record.traceparent.as_ref()];
    if texts.into_iter().flatten().chain(record.tags.values()).any(|text| text.len() > TEXT_BYTES_MAX) {
        let refusal = format!("record {id}: a path, session, traceparent or tag is over {TEXT_BYTES_MAX} bytes");
        return Err(invalid(refusal));
    }
    if record.tags.len() > TAGS_MAX {
        return Err(invalid(format!("record {id}: {} tags; the limit is {TAGS_MAX}", record.tags.len())));
    }
    let Some(tokens) = &record.tokens else { return Ok(()) };
    let (sampled, logprobs) = (tokens.output.len(), tokens.logprobs.len());
    if sampled != logprobs {
        return Err(invalid(format!("record {id}: {sampled} tokens, {logprobs} log-probs")));
    }
    let alternatives = &tokens.alternatives;
    if alternatives.k > ALTERNATIVES_MAX || !alternatives.fit(sampled) {
        let refusal = format!("record {id}: its alternatives are not one to {ALTERNATIVES_MAX} for each token");
        return Err(invalid(refusal));
    }
    if !alternatives.logprobs.iter().all(|logprob| logprob.is_finite()) {
        return Err(invalid(format!("record {id}: the log-prob of an alternative is not finite")));
    }
    if tokens.prompt.len().saturating_add(sampled) > TOKENS_MAX {
        return Err(invalid(format!("record {id}: more than {TOKENS_MAX} tokens")));
    }
    let (temperature, top_p) = (tokens.sampling.temperature, tokens.sampling.top_p);
    if !(temperature.is_finite() && temperature >= 0.0 && top_p > 0.0 && top_p <= 1.0) {
        let refusal =
            format!("record {id}: temperature {temperature} and top_p {top_p} are nothing that was sampled with");
        return Err(invalid(refusal));
    }
    Ok(())
}

fn check_report(report: &Report) -> Result<(), Fault> {
    let id = &report.id;
    if report.score.is_some_and(|score| !score.is_finite()) {
        return Err(invalid(format!("report {id}: the score is not finite")));
    }
    if report.references.len() > REFERENCES_MAX {
        return Err(invalid(format!("report {id}: more than {REFERENCES_MAX} references")));
    }
    let mut sorted: Vec<_> = report.references.iter().collect();
    sorted.sort();
    sorted.dedup();
    if sorted.len() < report.references.len() {
        return Err(invalid(format!("report {id}: a reference is named twice")));
    }
    if report.amends.as_ref() == Some(id) {
        return Err(invalid(format!("report {id}: it cannot amend itself")));
    }
    Ok(())
}

fn check_instruction(instruction: &Instruction) -> Result<(), Fault> {
    let (id, text, requires) = (&instruction.id, instruction.text.len(), instruction.requires.len());
    if text > INSTRUCTION_TEXT_BYTES_MAX || requires > REQUIRES_MAX {
        return Err(invalid(format!(
            "instruction {id}: {text} bytes and {requires} requirements; the limits are {INSTRUCTION_TEXT_BYTES_MAX} and {REQUIRES_MAX}"
        )));
    }
    if instruction.session.as_ref().is_some_and(|session| session.len() > TEXT_BYTES_MAX) {
        return Err(invalid(format!("instruction {id}: its session is over {TEXT_BYTES_MAX} bytes")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_in_an_index_stay_apart_and_short() {
        let long = "x".repeat(300);
        assert_eq!(indexed("s-1"), "s-1");
        let texts = ["a\0b", "ab", long.as_str(), "sha256:ab"];
        let all: std::collections::BTreeSet<String> = texts.iter().map(|text| indexed(text)).collect();
        assert_eq!(all.len(), texts.len());
        assert!(all.iter().all(|text| text.len() <= INDEXED_BYTES_MAX && !text.contains('\0')));
        let digest = indexed(&long);
        assert_ne!(indexed(&digest), digest, "a text that looks like a digest is digested itself");
    }
}
