//! The routes of one scenario as the demo uses them: typed calls in, small typed answers out.
//! The lesson calls it. Readers take what they need and ignore what a newer server adds.

use std::collections::BTreeMap;

use reef_core::{HeldOutTask, Message, Release, ReleaseId, Step};
use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::client::{Call, Client, Reply};
use super::error::DemoError;

/// One scenario on one server.
#[derive(Debug)]
pub struct Scenario<'a> {
    client: &'a Client,
    /// Its name.
    pub name: String,
}

/// How a question is asked.
#[derive(Debug, Clone)]
pub struct Asking {
    /// 0 = greedy.
    pub temperature: f32,
    /// Tokens of the answer at most.
    pub tokens_max: u32,
    /// Seed of the sampling.
    pub seed: u64,
    /// What the request is for.
    pub purpose: Purpose,
}

/// What a question is for.
#[derive(Debug, Clone)]
pub enum Purpose {
    /// To learn from, under a session of its own.
    Training {
        /// Session tag.
        session: String,
    },
    /// To measure one release; never becomes a training sample.
    Measuring {
        /// The release; without one, the head.
        release: Option<ReleaseId>,
    },
}

/// An answer of the model.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// The receipt.
    pub receipt: String,
    /// The release that answered.
    pub release: String,
    /// Tokens of the answer.
    pub tokens: u64,
}

/// What the server says about a scenario now; what it does not say is empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// The head.
    pub head: Option<ReleaseId>,
    /// Position of the head in the chain.
    pub head_sequence: u32,
    /// Number of the last step.
    pub step: u64,
    /// A step is running.
    pub running: bool,
    /// Samples that wait for a step.
    pub pending: u64,
    /// Last fault of the learner.
    pub last_error: Option<String>,
    /// Why no step runs.
    pub waiting: Option<String>,
}

/// A release as it is listed.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ListedRelease {
    /// The release.
    #[serde(flatten)]
    pub release: Release,
    /// `served`, `retained`, `held` or `rejected`, as the server says.
    #[serde(default)]
    pub status: Option<String>,
}

impl<'a> Scenario<'a> {
    /// The scenario of this name; nothing is sent.
    pub fn new(client: &'a Client, name: String) -> Self {
        Self { client, name }
    }

    /// Creates it with these settings (`recipe_config`, `gate`).
    pub async fn create(&self, mut settings: Map<String, Value>) -> Result<(), DemoError> {
        settings.insert("scenario".to_owned(), json!(self.name));
        self.client
            .send(&call(Method::POST, "/reef/scenarios".to_owned(), Some(Value::Object(settings))))
            .await
            .map(drop)
    }

    /// Stops the learner after the step that is running.
    pub async fn pause(&self) -> Result<(), DemoError> {
        self.client
            .send(&call(Method::POST, self.path("update"), Some(json!({ "training_mode": "manual" }))))
            .await
            .map(drop)
    }

    /// Uploads the tasks that the gate measures candidates on.
    pub async fn upload(&self, tasks: &[HeldOutTask]) -> Result<(), DemoError> {
        self.client.send(&call(Method::PUT, self.path("held-out"), Some(json!({ "tasks": tasks })))).await.map(drop)
    }

    /// Asks the model.
    pub async fn ask(&self, messages: &[Message], asking: &Asking) -> Result<Answer, DemoError> {
        let body = json!({
            "model": self.name,
            "messages": messages,
            "temperature": asking.temperature,
            "max_tokens": asking.tokens_max,
            "seed": asking.seed,
        });
        let mut request = call(Method::POST, "/v1/chat/completions".to_owned(), Some(body));
        request.headers.push(self.header());
        match &asking.purpose {
            Purpose::Training { session } => request.headers.push(("x-reef-tag-session", session.clone())),
            Purpose::Measuring { release } => {
                request.headers.push(("x-reef-capture", "off".to_owned()));
                request.headers.extend(release.iter().map(|id| ("x-reef-release-id", id.to_string())));
            }
        }
        let reply = self.client.send(&request).await?;
        let named = |header: &str| {
            reply
                .header(header)
                .map(str::to_owned)
                .ok_or_else(|| reply.surprise(format!("the header {header} is missing")))
        };
        let text = reply.body.pointer("/choices/0/message/content").and_then(Value::as_str);
        Ok(Answer {
            text: text.ok_or_else(|| reply.surprise("choices[0].message.content is not text"))?.to_owned(),
            receipt: named("x-reef-agent-record-id")?,
            release: named("x-reef-release-id")?,
            tokens: reply.body.pointer("/usage/completion_tokens").and_then(Value::as_u64).unwrap_or(0),
        })
    }

    /// Reports a score on a receipt and returns the report's id.
    pub async fn report(&self, receipt: &str, score: f64) -> Result<String, DemoError> {
        let mut request =
            call(Method::POST, "/reef/report".to_owned(), Some(json!({ "score": score, "references": [receipt] })));
        request.headers.push(self.header());
        let reply = self.client.send(&request).await?;
        let id = reply.body.get("agent_record_id").and_then(Value::as_str);
        id.map(str::to_owned).ok_or_else(|| reply.surprise("agent_record_id is not text"))
    }

    /// The scenario's row of the server's status.
    pub async fn status(&self) -> Result<Status, DemoError> {
        let reply = self.client.send(&call(Method::GET, "/reef/status".to_owned(), None)).await?;
        let rows = reply.body.get("scenarios").and_then(Value::as_array);
        let row = rows
            .and_then(|rows| rows.iter().find(|row| row.get("scenario").and_then(Value::as_str) == Some(&self.name)));
        row.map(Status::read).ok_or_else(|| reply.surprise(format!("scenario '{}' is not in the status", self.name)))
    }

    /// Steps, oldest first.
    pub async fn steps(&self) -> Result<Vec<Step>, DemoError> {
        let mut steps: Vec<Step> = self.list("steps").await?;
        steps.sort_by_key(|step| step.step);
        Ok(steps)
    }

    /// Releases, oldest first.
    pub async fn releases(&self) -> Result<Vec<ListedRelease>, DemoError> {
        let mut releases: Vec<ListedRelease> = self.list("releases").await?;
        releases.sort_by_key(|listed| listed.release.manifest.sequence);
        Ok(releases)
    }

    async fn list<T: DeserializeOwned>(&self, noun: &str) -> Result<Vec<T>, DemoError> {
        let mut reply: Reply = self.client.send(&call(Method::GET, self.path(noun), None)).await?;
        let rows = reply.body.get_mut(noun).map(Value::take).unwrap_or_default();
        serde_json::from_value(rows).map_err(|error| reply.surprise(format!("'{noun}' cannot be read: {error}")))
    }

    fn path(&self, noun: &str) -> String {
        format!("/reef/scenarios/{}/{noun}", self.name)
    }

    fn header(&self) -> (&'static str, String) {
        ("x-reef-scenario", self.name.clone())
    }
}

fn call(method: Method, path: String, body: Option<Value>) -> Call {
    Call { method, path, headers: Vec::new(), body }
}

impl Status {
    fn read(row: &Value) -> Self {
        let number = |pointer: &str| row.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        let text = |key: &str| row.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
        Self {
            head: row.pointer("/head/release_id").and_then(Value::as_str).and_then(|id| ReleaseId::parse(id).ok()),
            head_sequence: u32::try_from(number("/head/sequence")).unwrap_or(u32::MAX),
            step: number("/step"),
            running: row.get("running").and_then(Value::as_bool).unwrap_or(false),
            pending: number("/pending"),
            last_error: text("last_error"),
            waiting: text("waiting"),
        }
    }

    /// The learner in its own words.
    pub fn learner(&self) -> String {
        let said = self.last_error.clone().or_else(|| self.waiting.clone());
        said.unwrap_or_else(|| if self.running { "a step is running".to_owned() } else { "nothing".to_owned() })
    }
}

/// First metric of these names; a recipe may put a path before its name (`train/loss`).
pub fn metric(metrics: &BTreeMap<String, f64>, names: &[&str]) -> Option<f64> {
    let is =
        |key: &str, name: &str| key == name || key.strip_suffix(name).is_some_and(|path| path.ends_with(['/', '.']));
    names.iter().find_map(|name| metrics.iter().find(|(key, _)| is(key, name)).map(|(_, value)| *value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_without_most_fields_is_read() {
        assert_eq!(Status::read(&json!({ "scenario": "s", "new_field": [1] })), Status::default());
        let status = Status::read(
            &json!({ "head": { "sequence": 3 }, "last_error": null, "waiting": "for samples", "pending": "many" }),
        );
        assert_eq!((status.head_sequence, status.pending, status.learner().as_str()), (3, 0, "for samples"));
    }

    #[test]
    fn a_metric_is_found_under_its_name_or_a_path_to_it() {
        let metrics = BTreeMap::from([("train/masked_share".to_owned(), 0.5), ("unmasked_share".to_owned(), 1.0)]);
        assert_eq!(metric(&metrics, &["clip_fraction", "masked_share"]), Some(0.5));
        assert_eq!(metric(&metrics, &["loss"]), None);
    }
}
