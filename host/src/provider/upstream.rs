//! One upstream: a pooled HTTP client, a key, and the models that clients may ask there.
//! Inference handlers and recipes' bindings call it. It is asked again only while nothing of an answer has come; it
//! follows no redirect, and gets nothing of a client's headers but what names the request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use reef_core::RecordId;
use reef_dialects::{Ask, Dialect, Reply};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, Url};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep, timeout};

use super::config::ProviderSection;
use super::failure::{Failure, Secret};
use super::reading::{Reading, WHOLE_BYTES_MAX};
use super::retry::{Tries, asked_pause, is_passing};
use super::{Answering, Passed, ProviderError};
use crate::clock::now_ms;
use crate::error::StartError;
use crate::tls;

/// Bytes of an answer that is not a success.
const FAILURE_BYTES_MAX: usize = 64 << 10;
/// Time to read it, in all: the client waits for its error.
const FAILURE_TIME_MAX: Duration = Duration::from_secs(5);
/// Connections that wait for the next request, and for how long.
const POOLED_MAX: usize = 64;
const POOLED_TIME_MAX: Duration = Duration::from_secs(90);
/// Characters of an answer's name: 64 bits of hexadecimal digits.
const ANSWER_NAME_CHARS: usize = 16;
/// Anthropic's API demands the version of its contract.
const ANTHROPIC_VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

/// An upstream.
#[derive(Debug)]
pub struct Upstream {
    name: String,
    dialect: Dialect,
    http: reqwest::Client,
    /// Address up to `/chat/completions`.
    base: String,
    /// Key and configured headers.
    headers: HeaderMap,
    secret: Secret,
    models: BTreeMap<String, String>,
    first_byte_max: Duration,
    idle_max: Duration,
    answer_max: Duration,
    retries_max: u32,
    requests: AtomicU64,
}

/// A try that gave no answer.
struct Failed {
    error: ProviderError,
    /// The same request may be sent again, after a pause if the upstream names one.
    again: Option<Option<Duration>>,
}

impl Upstream {
    /// Reads the key from its variable.
    pub fn new(name: &str, section: &ProviderSection) -> Result<Self, StartError> {
        let refuse = |problem: String| StartError::Config(format!("providers.{name}.{problem}"));
        let url = address(&section.url).map_err(refuse)?;
        let secret = section.key_env.as_deref().map(key).transpose().map_err(refuse)?;
        let mut headers = configured(&section.headers).map_err(refuse)?;
        if let Some(key) = &secret {
            sign(&mut headers, section.dialect, key).map_err(refuse)?;
        }
        if section.dialect == Dialect::Messages {
            let (version, dated) = ANTHROPIC_VERSION;
            headers.entry(version).or_insert(HeaderValue::from_static(dated));
        }
        let mut client = tls::http_client()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(section.connect_seconds_max))
            .tcp_nodelay(true)
            .pool_max_idle_per_host(POOLED_MAX)
            .pool_idle_timeout(POOLED_TIME_MAX)
            .user_agent(concat!("reef/", env!("CARGO_PKG_VERSION")));
        // A proxy of the environment is for other machines.
        if is_loopback(&url) {
            client = client.no_proxy();
        } else if url.scheme() == "http" && secret.is_some() {
            tracing::warn!(provider = name, "the provider's key is sent without TLS; use an https address");
        }
        let http = client.build().map_err(|error| refuse(format!("url cannot be used: {error}")))?;
        Ok(Self {
            name: name.to_owned(),
            dialect: section.dialect,
            http,
            base: base(&url),
            headers,
            secret: Secret::new(secret.unwrap_or_default()),
            models: section.models.clone(),
            first_byte_max: Duration::from_secs(section.first_byte_seconds_max),
            idle_max: Duration::from_secs(section.idle_seconds_max),
            answer_max: Duration::from_secs(section.answer_seconds_max),
            retries_max: section.retries_max,
            requests: AtomicU64::new(0),
        })
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it speaks.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Can what a client of this dialect asks be said in the upstream's words?
    pub fn check(&self, ask: &Ask, client: Dialect) -> Result<(), ProviderError> {
        if client == self.dialect { Ok(()) } else { self.written(ask).map(drop) }
    }

    /// Asks for an answer and waits for its head. `body` is what the client sent: an upstream of the `client`'s dialect
    /// gets it with another model's name, every other the `ask` in its own words. Steps carry `raw` only where the two
    /// dialects are one and the answer has the form that was asked for.
    pub async fn ask(
        &self,
        ask: &Ask,
        body: &Map<String, Value>,
        client: Dialect,
        passed: &Passed,
    ) -> Result<Answering, ProviderError> {
        let same = client == self.dialect;
        let body = if same { self.renamed(ask, body)? } else { self.written(ask)? };
        self.begin(ask, body, same, passed).await
    }

    /// The whole answer to what no client asked.
    pub async fn answer(&self, ask: &Ask) -> Result<Reply, ProviderError> {
        let body = self.written(ask)?;
        let mut answering = self.begin(ask, body, false, &Passed::default()).await?;
        let mut reply = Reply::default();
        while let Some(step) = answering.heard.recv().await {
            step?.events.iter().for_each(|event| reply.push(event));
        }
        Ok(reply)
    }

    async fn begin(&self, ask: &Ask, body: Bytes, same: bool, passed: &Passed) -> Result<Answering, ProviderError> {
        let response = self.post(self.dialect.path(), body, passed).await?;
        Ok(Answering { heard: self.reading(ask.stream, same).begin(response).await? })
    }

    /// Posts `body`, which names a model by the clients' name, to a path such as `/v1/embeddings`.
    pub async fn relay_json(
        &self,
        path: &str,
        body: &Map<String, Value>,
        passed: &Passed,
    ) -> Result<Value, ProviderError> {
        let model = body.get("model").and_then(Value::as_str).unwrap_or_default();
        let body = Renamed { body, model: self.model(model)?, usage: false }.bytes()?;
        let mut response = self.post(path, body, passed).await?;
        let reading = self.reading(false, true);
        let bytes = reading.whole(&mut response, WHOLE_BYTES_MAX).await.inspect_err(|error| self.count(error))?;
        let text = String::from_utf8(bytes).ok().map(|text| self.secret.redacted(text));
        let read = text.and_then(|text| serde_json::from_str(&text).ok());
        let read = read.ok_or_else(|| self.secret.broken(&self.name, "it is not JSON"));
        match &read {
            Ok(_) => self.count_outcome("answered"),
            Err(error) => self.count(error),
        }
        read
    }

    fn reading(&self, streamed: bool, same: bool) -> Reading {
        Reading {
            provider: self.name.clone(),
            secret: self.secret.clone(),
            dialect: self.dialect,
            answer: answer_name(),
            streamed,
            same,
            idle_max: self.idle_max,
            began: Instant::now(),
            answer_max: self.answer_max,
        }
    }

    fn model(&self, name: &str) -> Result<&str, ProviderError> {
        self.models.get(name).map(String::as_str).ok_or_else(|| ProviderError::Refused {
            status: 404,
            code: "model_not_found".to_owned(),
            message: format!("the model '{}' does not exist", self.secret.shown(name, 64)),
            param: Some("model".to_owned()),
            retry_after_s: None,
        })
    }

    fn written(&self, ask: &Ask) -> Result<Bytes, ProviderError> {
        Ok(Bytes::from(self.dialect.write(ask, self.model(&ask.model)?, false)?.to_string()))
    }

    fn renamed(&self, ask: &Ask, body: &Map<String, Value>) -> Result<Bytes, ProviderError> {
        // The record wants usage whether the client does or not.
        let usage = ask.stream && matches!(self.dialect, Dialect::Chat | Dialect::Completions);
        Renamed { body, model: self.model(&ask.model)?, usage }.bytes()
    }

    /// Sends until there is an answer, or no try is left.
    async fn post(&self, path: &str, body: Bytes, passed: &Passed) -> Result<Response, ProviderError> {
        let mut tries = Tries::new(self.retries_max, self.requests.fetch_add(1, Ordering::Relaxed));
        loop {
            let failed = match self.once(path, body.clone(), passed).await {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            match failed.again.and_then(|asked| tries.next_pause(asked)) {
                Some(pause) => {
                    self.count_outcome("retried");
                    sleep(pause).await;
                }
                None => {
                    self.count(&failed.error);
                    return Err(failed.error);
                }
            }
        }
    }

    async fn once(&self, path: &str, body: Bytes, passed: &Passed) -> Result<Response, Failed> {
        let url = format!("{}{}", self.base, path.strip_prefix("/v1").unwrap_or(path));
        let mut headers = self.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in [("traceparent", &passed.traceparent), ("x-request-id", &passed.request_id)] {
            if let Some(value) = value.as_deref().and_then(|value| HeaderValue::from_str(value).ok()) {
                headers.insert(name, value);
            }
        }
        if self.dialect == Dialect::Messages {
            // The client's version of the contract is the one that its body keeps to.
            if passed.anthropic.iter().any(|(name, _)| name == ANTHROPIC_VERSION.0) {
                headers.remove(ANTHROPIC_VERSION.0);
            }
            for (name, value) in &passed.anthropic {
                headers.append(name, value.clone());
            }
        }
        let sent = self.http.post(url).headers(headers).body(body).send();
        let response = match timeout(self.first_byte_max, sent).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.unreached(error)),
            Err(_) => {
                let seconds = self.first_byte_max.as_secs();
                let told = format!("provider '{}' gave no answer within {seconds} s; try again", self.name);
                return Err(Failed { error: ProviderError::Unavailable(told), again: None });
            }
        };
        if response.status().is_success() { Ok(response) } else { Err(self.failed(response).await) }
    }

    /// A connection that was made has carried the request: only one that was not may be made again.
    fn unreached(&self, error: reqwest::Error) -> Failed {
        let again = error.is_connect().then_some(None);
        let what = if error.is_connect() { "cannot be reached" } else { "closed the connection without an answer" };
        let told = self.secret.shown(&causes(&error.without_url()), 300);
        let error = ProviderError::Unavailable(format!("provider '{}' {what}: {told}; try again", self.name));
        Failed { error, again }
    }

    async fn failed(&self, mut response: Response) -> Failed {
        let (status, asked) = (response.status(), asked_pause(response.headers(), now_ms() / 1000));
        // A body that does not end says no more than its status.
        let reading = Reading { answer_max: FAILURE_TIME_MAX, ..self.reading(false, false) };
        let body = reading.whole(&mut response, FAILURE_BYTES_MAX).await.unwrap_or_default();
        let retry_after_s = asked.map(|asked| u32::try_from(asked.as_secs()).unwrap_or(u32::MAX));
        let failure = Failure { provider: &self.name, secret: &self.secret, status, retry_after_s, body: &body };
        Failed { error: failure.error(), again: is_passing(status).then_some(asked) }
    }

    fn count(&self, error: &ProviderError) {
        let outcome = match error {
            ProviderError::Refused { .. } => "refused",
            ProviderError::Unavailable(_) => "unavailable",
            ProviderError::Broken(_) => "broken",
        };
        self.count_outcome(outcome);
    }

    fn count_outcome(&self, outcome: &'static str) {
        let provider = self.name.clone();
        metrics::counter!("reef_upstream_requests_total", "provider" => provider, "outcome" => outcome).increment(1);
    }
}

/// A client's body with another model's name; what is null is left out. A body can be large: nothing of it is copied
/// but into the bytes that are sent.
struct Renamed<'a> {
    body: &'a Map<String, Value>,
    model: &'a str,
    /// The last frame of the stream is to tell the usage.
    usage: bool,
}

impl Renamed<'_> {
    fn bytes(&self) -> Result<Bytes, ProviderError> {
        serde_json::to_vec(self).map(Bytes::from).map_err(|error| ProviderError::Broken(error.to_string()))
    }
}

impl Serialize for Renamed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const OPTIONS: &str = "stream_options";
        let mut fields = serializer.serialize_map(None)?;
        fields.serialize_entry("model", self.model)?;
        for (name, value) in self.body.iter().filter(|(name, value)| !value.is_null() && *name != "model") {
            if !(self.usage && name == OPTIONS) {
                fields.serialize_entry(name, value)?;
            }
        }
        if self.usage {
            let mut options = self.body.get(OPTIONS).and_then(Value::as_object).cloned().unwrap_or_default();
            options.insert("include_usage".to_owned(), Value::Bool(true));
            fields.serialize_entry(OPTIONS, &options)?;
        }
        fields.end()
    }
}

/// The random end of an id: names of calls have to be short.
fn answer_name() -> String {
    let id = RecordId::fresh();
    let id = id.as_str();
    id.get(id.len().saturating_sub(ANSWER_NAME_CHARS)..).unwrap_or(id).to_owned()
}

fn address(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("url '{text}' is not an address: {error}; use https://host"))?;
    // A key in an address would reach logs.
    let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() || !plain || url.fragment().is_some() {
        return Err("url must be an http or https address without user, query and fragment".to_owned());
    }
    Ok(url)
}

/// `/v1` stands for a path that is not given.
fn base(url: &Url) -> String {
    let bare = url.as_str().trim_end_matches('/');
    if url.path().trim_matches('/').is_empty() { format!("{bare}/v1") } else { bare.to_owned() }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn key(variable: &str) -> Result<String, String> {
    let key = std::env::var(variable).map(|key| key.trim().to_owned()).unwrap_or_default();
    if key.is_empty() {
        return Err(format!("key_env names the variable {variable}, which is not set; set it or remove key_env"));
    }
    Ok(key)
}

fn sign(headers: &mut HeaderMap, dialect: Dialect, key: &str) -> Result<(), String> {
    let (name, value) = match dialect {
        Dialect::Messages => (HeaderName::from_static("x-api-key"), key.to_owned()),
        _ => (AUTHORIZATION, format!("Bearer {key}")),
    };
    let mut value = HeaderValue::from_str(&value)
        .map_err(|_| "key_env names a variable whose value is no key: it has line ends")?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(())
}

fn configured(headers: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let wrong = || format!("headers.{name} is not a header; use a name of letters and '-' and a value of one line");
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        map.insert(key, HeaderValue::from_str(value).map_err(|_| wrong())?);
    }
    Ok(map)
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        told = format!("{told}: {inner}");
        cause = inner.source();
    }
    told
}
