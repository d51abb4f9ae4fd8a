//! One exchange from admission to durable record, whatever the client does meanwhile.
//! The chat handler spawns it; it reads the engine and writes the store. The terminal event leaves only
//! after the record is durable; a client that goes away frees the slot and its record is kept.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reef_core::{Inference, RecordId, RecordStatus, ReleaseSpan, TokenTrace};
use reef_engine::{Engine, Event, Finish, FinishReason};
use reef_store::Store;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

use super::answer::{Answer, Generated};
use super::request::ChatRequest;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::receipts::InFlight;
use crate::scenarios::{Scenario, Served};
use crate::telemetry;

/// Frames buffered for a slow reader; the engine's own channel holds the rest of the answer.
pub const STREAM_FRAMES_MAX: usize = 64;

/// A reader that takes nothing for this long is gone: its record must not wait for it.
const SLOW_READER_MAX: Duration = Duration::from_secs(60);

/// Where the answer goes.
#[derive(Debug)]
pub enum Sink {
    /// One object.
    Whole(oneshot::Sender<Result<Value, ApiError>>),
    /// Server-sent events.
    Stream(mpsc::Sender<Bytes>),
}

/// A request that the engine has accepted.
#[derive(Debug)]
pub struct Exchange {
    /// The engine, to decode ids.
    pub engine: Engine,
    /// Where records go.
    pub store: Store,
    /// The scenario.
    pub scenario: Arc<Scenario>,
    /// The snapshot that answers.
    pub served: Arc<Served>,
    /// Headers of the request.
    pub caller: Caller,
    /// The body as received.
    pub body: Value,
    /// The body as understood.
    pub request: ChatRequest,
    /// Rendered prompt.
    pub prompt: Vec<u32>,
    /// The receipt.
    pub receipt: RecordId,
    /// Arrival, milliseconds since the epoch.
    pub created_at_ms: i64,
    /// Keeps reports on this receipt waiting until the record is durable.
    pub in_flight: InFlight,
}

impl Exchange {
    /// Runs to the end. `events` comes from `Engine::generate`.
    pub async fn run(self, mut events: mpsc::Receiver<Event>, mut sink: Sink) {
        let answer = Answer::new(
            &self.request,
            self.receipt.as_str(),
            self.served.release.release_id.as_str(),
            self.created_at_ms,
        );
        let mut generated = Generated::default();
        let mut connected = sink.send(|| frame(&answer.opening(&self.prompt))).await;
        let ended = loop {
            if !connected {
                break Ended::ClientGone;
            }
            // What was generated is taken first: a client that left at the last token still has a whole record.
            let event = tokio::select! {
                biased;
                event = events.recv() => event,
                () = sink.closed() => break Ended::ClientGone,
            };
            match event {
                Some(Event::Token(token)) => {
                    generated.text.push_str(&token.text);
                    if let Some(chunk) = answer.delta(&self.engine, &token) {
                        connected = sink.send(|| frame(&chunk)).await;
                    }
                    generated.tokens.push(token);
                }
                Some(Event::Done(finish)) => break Ended::Finished(finish),
                Some(Event::Failed(reason)) => break Ended::Failed(reason),
                None => break Ended::Failed("the engine stopped".to_owned()),
            }
        };
        // Dropping the receiver frees the engine's slot within one step.
        drop(events);
        self.close(answer, generated, ended, sink).await;
    }

    async fn close(self, answer: Answer, mut generated: Generated, ended: Ended, sink: Sink) {
        let (status, rest) = match &ended {
            Ended::Finished(Finish { reason: FinishReason::Cancelled, .. }) | Ended::ClientGone => {
                generated.finish = Some(FinishReason::Cancelled);
                (RecordStatus::Cancelled, String::new())
            }
            Ended::Finished(finish) => {
                generated.finish = Some(finish.reason.clone());
                (RecordStatus::Complete, finish.text.clone())
            }
            Ended::Failed(_) => (RecordStatus::Failed, String::new()),
        };
        generated.text.push_str(&rest);
        let body = answer.whole(&self.engine, &self.prompt, &generated);
        let stored = self.store(&generated, status, &body).await;
        metrics::counter!("reef_requests_total", "status" => status_name(status)).increment(1);
        metrics::counter!("reef_output_tokens_total").increment(generated.tokens.len() as u64);
        let failure = match (ended, stored) {
            (Ended::Failed(reason), _) => Some(ApiError::internal("the answer could not be generated", reason)),
            (_, Err(error)) => Some(error),
            _ => None,
        };
        match (sink, failure) {
            (Sink::Whole(reply), None) => drop(reply.send(Ok(body))),
            (Sink::Whole(reply), Some(error)) => drop(reply.send(Err(error))),
            (stream, None) => stream.finish(answer.closing(&self.prompt, &generated, &rest)).await,
            (stream, Some(error)) => stream.finish(vec![error.openai_body()]).await,
        }
    }

    async fn store(&self, generated: &Generated, status: RecordStatus, body: &Value) -> Result<(), ApiError> {
        let span = tracing::info_span!("record", record.id = %self.receipt);
        let record = self.record(generated, status, body, telemetry::traceparent(&span));
        let (tenant, name) = &self.scenario.key;
        let stored = self.store.append_inference(tenant, name, record).instrument(span).await;
        self.in_flight.settle();
        if self.scenario.recipe().is_some_and(|now| now.recipe.exports().live) {
            self.scenario.wake.notify_one();
        }
        stored.map(drop).map_err(ApiError::from)
    }

    fn record(
        &self,
        generated: &Generated,
        status: RecordStatus,
        body: &Value,
        traceparent: Option<String>,
    ) -> Inference {
        let tokens = (!generated.tokens.is_empty()).then(|| TokenTrace {
            prompt: self.prompt.clone(),
            output: generated.tokens.iter().map(|token| token.id).collect(),
            logprobs: generated.tokens.iter().map(|token| token.logprob).collect(),
            spans: vec![ReleaseSpan {
                start: 0,
                release: self.served.release.release_id.clone(),
                sequence: self.served.release.manifest.sequence,
            }],
            sampling: self.request.sampling,
        });
        let mut response = body.clone();
        if let Some(fields) = response.as_object_mut() {
            fields.insert("complete".to_owned(), json!(status == RecordStatus::Complete));
        }
        Inference {
            id: self.receipt.clone(),
            created_at_ms: self.created_at_ms,
            path: super::PATH.to_owned(),
            status,
            capture: self.caller.capture,
            session: self.caller.session.clone(),
            tags: self.caller.tags.clone(),
            traceparent,
            request: self.body.clone(),
            response,
            tokens,
        }
    }
}

enum Ended {
    Finished(Finish),
    Failed(String),
    ClientGone,
}

const DONE: &[u8] = b"data: [DONE]\n\n";

fn frame(chunk: &Value) -> Bytes {
    Bytes::from(format!("data: {chunk}\n\n"))
}

fn status_name(status: RecordStatus) -> &'static str {
    match status {
        RecordStatus::Complete => "complete",
        RecordStatus::Cancelled => "cancelled",
        RecordStatus::Failed => "failed",
    }
}

impl Sink {
    /// Sends one frame to a stream. False when the client is gone, or has taken nothing for too long.
    async fn send(&self, frame: impl FnOnce() -> Bytes) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::Stream(frames) => {
                let sent = tokio::time::timeout(SLOW_READER_MAX, frames.send(frame())).await;
                matches!(sent, Ok(Ok(())))
            }
        }
    }

    /// Sends the last chunks and the end of a stream, as far as the client takes them.
    async fn finish(&self, chunks: Vec<Value>) {
        let last = chunks.iter().map(frame).chain([Bytes::from_static(DONE)]);
        for frame in last {
            if !self.send(|| frame).await {
                return;
            }
        }
    }

    async fn closed(&mut self) {
        match self {
            Self::Whole(reply) => reply.closed().await,
            Self::Stream(frames) => frames.closed().await,
        }
    }
}
