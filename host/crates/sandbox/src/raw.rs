//! What a guest answers, before anything of it is checked: the same words for every generation of the interface.
//! Generations build these values, `output.rs`, `manifest.rs` and `hooks.rs` turn them into ones that hold only
//! what is allowed.

use reef_core::Message;

use crate::traffic::Bytes;
use crate::{Decision, HarnessChange, ReportField, Surface, ValueKind};

pub(crate) struct ConfigKey {
    pub(crate) name: String,
    pub(crate) kind: ValueKind,
    pub(crate) default_json: String,
    pub(crate) minimum: Option<f64>,
    pub(crate) maximum: Option<f64>,
    pub(crate) doc: String,
}

pub(crate) struct Manifest {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) surface: Surface,
    pub(crate) needs_score: bool,
    pub(crate) report_fields: Vec<ReportField>,
    pub(crate) config: Vec<ConfigKey>,
    pub(crate) capabilities: Vec<String>,
    pub(crate) top_k: u32,
    pub(crate) re_evaluate_every: u32,
}

pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) slots: Vec<u32>,
}

pub(crate) enum Choice {
    Wait(String),
    Train(Vec<u32>),
    TrainGroups(Vec<Group>),
}

pub(crate) struct Selection {
    pub(crate) choice: Choice,
    /// Samples and reasons.
    pub(crate) retire: Vec<(u32, String)>,
}

pub(crate) enum Proposal {
    Weights(u32),
    Mutations(Vec<HarnessChange>),
    /// With the number of rules.
    Router(usize),
    Skip(String),
}

pub(crate) struct Verdict {
    pub(crate) decision: Decision,
    pub(crate) reason: String,
    pub(crate) measurements: Vec<(String, f64)>,
}

pub(crate) struct Judgement {
    pub(crate) receipt: String,
    pub(crate) score: f64,
    pub(crate) metadata_json: String,
}

pub(crate) enum Failure {
    InvalidConfig(String),
    Capability(String),
    Other(String),
}

pub(crate) type Answer<T> = Result<T, Failure>;

/// Keys and values of a state bucket.
pub(crate) type Entries = Vec<(String, Vec<u8>)>;

/// The messages to answer instead of those of a request.
pub(crate) type Replacement = Option<Vec<Message>>;

impl Bytes for Manifest {
    fn bytes(&self) -> u64 {
        const NUMBERS_BYTES: u64 = 10;
        let fields = self.report_fields.iter().map(|field| (&field.name, &field.doc).bytes());
        let keys = self.config.iter().map(|key| {
            let texts = (&key.name, &key.default_json, &key.doc).bytes();
            texts.saturating_add((key.minimum, key.maximum).bytes())
        });
        let texts = (&self.name, &self.version, &self.capabilities).bytes();
        fields.chain(keys).fold(texts.saturating_add(NUMBERS_BYTES), u64::saturating_add)
    }
}

impl Bytes for Selection {
    fn bytes(&self) -> u64 {
        let choice = match &self.choice {
            Choice::Wait(why) => why.bytes(),
            Choice::Train(samples) => samples.bytes(),
            Choice::TrainGroups(groups) => groups.bytes(),
        };
        choice.saturating_add(self.retire.bytes())
    }
}

impl Bytes for Group {
    fn bytes(&self) -> u64 {
        (&self.name, &self.slots).bytes()
    }
}

impl Bytes for Proposal {
    fn bytes(&self) -> u64 {
        match self {
            Self::Weights(candidate) => candidate.bytes(),
            Self::Skip(why) => why.bytes(),
            Self::Mutations(changes) => changes.bytes(),
            // Refused as a whole; their size does not matter.
            Self::Router(_) => 0,
        }
    }
}

impl Bytes for Verdict {
    fn bytes(&self) -> u64 {
        (&self.reason, &self.measurements).bytes()
    }
}

impl Bytes for Judgement {
    fn bytes(&self) -> u64 {
        (&self.receipt, self.score, &self.metadata_json).bytes()
    }
}

impl<T: Bytes> Bytes for Answer<T> {
    fn bytes(&self) -> u64 {
        match self {
            Ok(value) => value.bytes(),
            Err(Failure::InvalidConfig(told) | Failure::Capability(told) | Failure::Other(told)) => told.bytes(),
        }
    }
}
