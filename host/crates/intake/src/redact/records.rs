//! Records and reports without secrets, and what becomes of their tokens.
//! Sampled ids and their log-probs spell the secret as well as the text does, and a model that trained on them would
//! learn to say it. A record with a redaction in its request or its answer therefore keeps no token trace, the token
//! columns of its answer are emptied, and its tag `redacted` says why no sample can be made of it.

use std::borrow::Cow;

use reef_core::{Inference, Report, Tag};
use serde_json::Value;

use super::{Counts, Redactor};

/// The tag of records that something was taken out of; its value says what.
pub const REDACTED_TAG: &str = "redacted";
/// Fields of an answer that spell it token by token.
const TOKEN_FIELDS: [&str; 6] =
    ["logprobs", "token_ids", "prompt_token_ids", "output_token_ids", "prompt_logprobs", "top_logprobs"];

/// What was taken out of a record, by where it stood.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The prompt, the tools and what else was sent.
    pub request: Counts,
    /// The answer.
    pub response: Counts,
    /// Tags and session.
    pub labels: Counts,
}

impl Found {
    /// Nothing was taken out.
    pub fn is_empty(&self) -> bool {
        self.request.is_empty() && self.response.is_empty() && self.labels.is_empty()
    }

    /// Everything together.
    pub fn all(&self) -> Counts {
        let mut all = self.request.clone();
        all.merge(&self.response);
        all.merge(&self.labels);
        all
    }

    /// The tokens of the exchange spell a secret.
    pub fn in_tokens(&self) -> bool {
        !self.request.is_empty() || !self.response.is_empty()
    }
}

impl Redactor {
    /// Takes the secrets out of a record. Where its tokens spell one they are dropped, and no sample can be made of it.
    pub fn redact_inference(&self, record: &mut Inference) -> Found {
        let mut found = Found {
            request: self.redact_json(&mut record.request),
            response: self.redact_json(&mut record.response),
            labels: Counts::default(),
        };
        let labels = record.tags.values_mut().chain(record.session.as_mut());
        labels.for_each(|label| self.label(label, &mut found.labels));
        if found.in_tokens() {
            record.tokens = None;
            empty_tokens(&mut record.response);
        }
        if let Some(tag) = Tag::parse(REDACTED_TAG).ok().filter(|_| !found.is_empty()) {
            record.tags.insert(tag, found.all().to_string());
        }
        found
    }

    /// Takes the secrets out of a report. The same report again becomes the same again.
    pub fn redact_report(&self, report: &mut Report) -> Counts {
        let mut counts = report.feedback.as_mut().map(|feedback| self.redact_json(feedback)).unwrap_or_default();
        let mut metadata = Value::Object(std::mem::take(&mut report.metadata));
        counts.merge(&self.redact_json(&mut metadata));
        if let Value::Object(metadata) = metadata {
            report.metadata = metadata;
        }
        counts
    }

    fn label(&self, label: &mut String, counts: &mut Counts) {
        let (redacted, found) = self.redact_label(label);
        if let Cow::Owned(redacted) = redacted {
            *label = redacted;
            counts.merge(&found);
        }
    }
}

/// Empties what spells the answer token by token.
fn empty_tokens(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(empty_tokens),
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| {
            if TOKEN_FIELDS.contains(&name.as_str()) {
                *value = Value::Null;
            } else {
                empty_tokens(value);
            }
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
