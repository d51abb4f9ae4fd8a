//! One exchange from admission to durable record, whatever the client does meanwhile.
//! The handler spawns it; it hears a provider and writes the store. The terminal event leaves only after the record is
//! durable; a client that goes away frees the provider and its record is kept.

use std::sync::Arc;

use axum::http::StatusCode;
use reef_core::{RecordId, RecordStatus, Sampling};
use reef_dialects::{Ask, Dialect, Envelope, Reply, Stop, Usage};
use reef_intake::{Placed, Redactor};
use reef_store::Store;
use serde_json::{Map, Value};
use tracing::Instrument;

use super::ending::Ending;
use super::place::Sessions;
use super::record;
use super::sink::Sink;
use super::voice::Voice;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::redaction::redact_record;
use crate::provider::{Answering, ProviderError};
use crate::receipts::InFlight;
use crate::scenarios::{Scenario, Served};
use crate::telemetry;

/// Who answers.
#[derive(Debug)]
pub enum Origin {
    /// The embedded engine, with this prompt and sampling.
    Embedded {
        /// Ids of the prompt.
        prompt: Vec<u32>,
        /// Of the first choice.
        sampling: Sampling,
    },
    /// An upstream.
    Upstream,
    /// An upstream of the client's own dialect, whose answer is passed on as it is.
    Relayed,
}

/// A request that is answered.
#[derive(Debug)]
pub struct Exchange {
    /// What the client speaks.
    pub dialect: Dialect,
    /// The body as understood.
    pub ask: Arc<Ask>,
    /// What is the same in every frame.
    pub envelope: Envelope,
    /// Where records go.
    pub store: Store,
    /// The scenario.
    pub scenario: Arc<Scenario>,
    /// The snapshot that answers.
    pub served: Arc<Served>,
    /// Headers of the request.
    pub caller: Caller,
    /// The body as received, or as the recipe changed it.
    pub body: Map<String, Value>,
    /// The receipt.
    pub receipt: RecordId,
    /// Arrival, milliseconds since the epoch.
    pub created_at_ms: i64,
    /// False: nothing of it is stored, and its receipt names nothing.
    pub recorded: bool,
    /// Alternatives of each token that are kept with the record.
    pub top_k: u32,
    /// Keeps reports on this receipt waiting until the record is durable.
    pub in_flight: InFlight,
    /// Who answers.
    pub origin: Origin,
    /// Tells that the server stops.
    pub ending: Ending,
    /// Takes secrets out of the record.
    pub redactor: Arc<Redactor>,
    /// Hears the answer, so that the next request is known by it.
    pub sessions: Sessions,
    /// The place of this request in a session that it does not name.
    pub placed: Option<Placed>,
}

enum Ended {
    Finished,
    Failed(ProviderError),
    ClientGone,
    Stopped,
}

/// What was heard, and how it is told.
struct Telling {
    voice: Voice,
    reply: Reply,
}

impl Exchange {
    /// The answer is passed on as it is, or it is written anew.
    pub fn relaying(mut self, relays: bool) -> Self {
        if relays {
            self.origin = Origin::Relayed;
        }
        self
    }

    /// Runs to the end.
    pub async fn run(self, answering: Answering, mut sink: Sink) {
        let mut telling = self.telling();
        let mut ending = self.ending.clone();
        let ended = follow((answering, self.dialect), &mut telling, (&mut sink, &mut ending)).await;
        self.close(telling, ended, sink).await;
    }

    /// Records that there was no answer; what the client is told.
    pub async fn failed(mut self, error: ProviderError) -> ApiError {
        let failure = self.failure(error);
        let body = failure.body(self.dialect);
        let stored = self.store(&Reply::default(), RecordStatus::Failed, body, Some(&failure)).await;
        stored.err().unwrap_or(failure)
    }

    /// Records that the server stopped before there was an answer; what the client is told.
    pub async fn stopped(self) -> ApiError {
        let failure = stopping();
        self.unanswered(Some(&failure)).await;
        failure
    }

    /// Records that the client went away before there was an answer.
    pub async fn abandoned(self) {
        self.unanswered(None).await;
    }

    async fn unanswered(mut self, failure: Option<&ApiError>) {
        let mut telling = self.telling();
        let body = self.whole(&mut telling);
        if let Err(error) = self.store(&telling.reply, RecordStatus::Cancelled, body, failure).await {
            tracing::error!(error = %error.message, "record");
        }
    }

    fn telling(&self) -> Telling {
        let relays = matches!(self.origin, Origin::Relayed);
        let voice = Voice::new(self.dialect, &self.ask, &self.envelope, relays);
        Telling { voice, reply: Reply::default() }
    }

    fn whole(&self, Telling { voice, reply }: &mut Telling) -> Value {
        voice.whole(self.dialect, (&self.ask, &self.envelope), reply)
    }

    async fn close(mut self, mut telling: Telling, ended: Ended, sink: Sink) {
        let cancelled = telling.reply.choices.iter().any(|choice| choice.stop == Some(Stop::Cancelled));
        let status = match &ended {
            Ended::Failed(_) => RecordStatus::Failed,
            Ended::ClientGone | Ended::Stopped => RecordStatus::Cancelled,
            Ended::Finished if cancelled => RecordStatus::Cancelled,
            Ended::Finished => RecordStatus::Complete,
        };
        if status != RecordStatus::Complete {
            self.cut(&mut telling.reply, status);
        }
        let body = self.whole(&mut telling);
        let failure = match ended {
            Ended::Failed(error) => Some(self.failure(error)),
            Ended::Stopped => Some(stopping()),
            Ended::Finished | Ended::ClientGone => None,
        };
        let stored = self.store(&telling.reply, status, body.clone(), failure.as_ref()).await;
        metrics::counter!("reef_output_tokens_total").increment(telling.reply.usage.map_or(0, |usage| usage.output));
        let voice = &mut telling.voice;
        match (sink, failure.or(stored.err())) {
            (Sink::Whole(reply), None) => drop(reply.send(Ok(body))),
            (Sink::Whole(reply), Some(error)) => drop(reply.send(Err(error))),
            (stream, None) => drop(stream.send(voice.close()).await),
            (stream, Some(error)) => drop(stream.send(voice.fail(&error, self.dialect)).await),
        }
    }

    /// What an answer that was cut says of itself: its choices did not end, and nobody counted its tokens.
    fn cut(&self, reply: &mut Reply, status: RecordStatus) {
        if status == RecordStatus::Cancelled {
            for choice in &mut reply.choices {
                choice.stop.get_or_insert(Stop::Cancelled);
            }
        }
        if let Origin::Embedded { prompt, .. } = &self.origin
            && reply.usage.is_none()
        {
            let output = reply.choices.iter().map(|choice| choice.tokens.len() as u64).sum();
            reply.usage = Some(Usage { input: prompt.len() as u64, output, ..Usage::default() });
        }
    }

    /// The engine's own failures are nobody's business but the operator's.
    fn failure(&self, error: ProviderError) -> ApiError {
        match (&self.origin, error) {
            (_, refused @ ProviderError::Refused { .. }) => refused.into(),
            (Origin::Embedded { .. }, error) => ApiError::internal("the answer could not be generated", error),
            (_, error) => error.into(),
        }
    }

    /// The request's body goes into the record.
    async fn store(
        &mut self,
        reply: &Reply,
        status: RecordStatus,
        body: Value,
        failure: Option<&ApiError>,
    ) -> Result<(), ApiError> {
        if !self.recorded {
            self.in_flight.settle();
            return Ok(());
        }
        let span = tracing::info_span!("record", record.id = %self.receipt);
        let response = record::stored(self, body, status, failure);
        let record = record::record(self, reply, status, response, telemetry::traceparent(&span));
        if let Some(placed) = &self.placed {
            self.sessions.answered(&self.scenario.key, placed, &record.response);
        }
        let (tenant, name) = &self.scenario.key;
        // Its name may be another scenario's by now.
        if self.scenario.is_retired() {
            self.in_flight.settle();
            return Err(ApiError::not_found(format!("scenario '{name}' was deleted while it answered")));
        }
        let stored = match redact_record(&self.redactor, record).await {
            Ok(record) => {
                self.store.append_inference(tenant, name, record).instrument(span).await.map_err(ApiError::from)
            }
            Err(error) => Err(error),
        };
        self.in_flight.settle();
        metrics::counter!("reef_requests_total", "status" => status_name(status)).increment(1);
        if self.scenario.recipes().any(|(_, now)| now.recipe.exports().live) {
            self.scenario.wake();
        }
        stored.map(drop)
    }
}

/// What the clients of exchanges hear that are cut off.
fn stopping() -> ApiError {
    let told = "the server stops; send the request again when it is back";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_stopping", told)
}

/// Hears the answer to its end, or until the client is gone or the server stops. To return is to let the provider go.
async fn follow(
    (mut answering, dialect): (Answering, Dialect),
    telling: &mut Telling,
    (sink, ending): (&mut Sink, &mut Ending),
) -> Ended {
    let stream = sink.is_stream();
    loop {
        // What was said is taken first: a client that left at the last token still has a whole record.
        let heard = tokio::select! {
            biased;
            heard = answering.heard.recv() => heard,
            () = sink.closed() => return Ended::ClientGone,
            () = ending.come() => return Ended::Stopped,
        };
        match heard {
            Some(Ok(heard)) => {
                if let Err(error) = telling.voice.check(&heard, dialect) {
                    return Ended::Failed(error);
                }
                heard.events.iter().for_each(|event| telling.reply.push(event));
                let text = telling.voice.push(heard, stream);
                // A slow reader does not hold up the end either.
                let sent = tokio::select! {
                    biased;
                    sent = sink.send(text) => sent,
                    () = ending.come() => return Ended::Stopped,
                };
                if !sent {
                    return Ended::ClientGone;
                }
            }
            Some(Err(error)) => return Ended::Failed(error),
            None => return finished(&telling.reply),
        }
    }
}

/// An answer of which a choice has no end was cut.
fn finished(reply: &Reply) -> Ended {
    if !reply.choices.is_empty() && reply.choices.iter().all(|choice| choice.stop.is_some()) {
        return Ended::Finished;
    }
    Ended::Failed(ProviderError::Broken("the answer ended before it was complete".to_owned()))
}

fn status_name(status: RecordStatus) -> &'static str {
    match status {
        RecordStatus::Complete => "complete",
        RecordStatus::Cancelled => "cancelled",
        RecordStatus::Failed => "failed",
    }
}
