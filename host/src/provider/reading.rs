//! The body of an upstream's answer becomes steps, as fast as whoever hears them takes them.
//! `Upstream::ask` begins it; it ends with the answer, with the first error, or when nobody hears it any more, which
//! closes the connection. A stream begins with its first step: until then its error is that of the request. Sizes,
//! silences and the time in all are bounded, and so is what waits for a slow hearer.

use std::time::Duration;

use axum::body::Bytes;
use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use serde_json::Value;
use tokio::sync::mpsc::{self, Sender};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use reef_dialects::{Dialect, Event, Mender, OVERFLOW, SseEvent, SseReader, is_overflow, reported};

use super::failure::Secret;
use super::{HEARD_MAX, Heard, ProviderError};

/// Bytes of an answer that is one object.
pub const WHOLE_BYTES_MAX: usize = 64 << 20;
/// Bytes of one event of a stream, and of a stream. The last event of the responses dialect repeats the whole answer.
const EVENT_BYTES_MAX: usize = 16 << 20;
const STREAM_BYTES_MAX: usize = 256 << 20;
/// Bytes of a frame that may wait together with others; a longer one waits until all before it were heard.
const FRAME_BYTES_SHARED_MAX: usize = 64 << 10;
/// Time for the connection's end after the answer's: a connection that was read to its end is used again.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// Names of the events that end a stream.
const LAST_EVENTS: [&str; 4] = ["message_stop", "response.completed", "response.incomplete", "response.failed"];

/// How one answer is read.
#[derive(Debug)]
pub struct Reading {
    /// The provider's name.
    pub provider: String,
    /// Its key, which no error repeats.
    pub secret: Secret,
    /// What it speaks.
    pub dialect: Dialect,
    /// A stream was asked for.
    pub streamed: bool,
    /// Part of the ids that the upstream leaves out; no other answer has it.
    pub answer: String,
    /// The client speaks the same dialect.
    pub same: bool,
    /// The longest silence.
    pub idle_max: Duration,
    /// When the answer began, and how long it may take in all.
    pub began: Instant,
    pub answer_max: Duration,
}

/// What a body holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Object,
    Stream,
}

type Heards = Sender<Result<Heard, ProviderError>>;
/// Told once: that there is a first step, or why there is none.
type Begins = oneshot::Sender<Result<(), ProviderError>>;

/// Counts a request when it has come to its end, however it does.
#[derive(Debug)]
struct Outcome {
    provider: String,
    outcome: &'static str,
}

impl Drop for Outcome {
    fn drop(&mut self) {
        let provider = std::mem::take(&mut self.provider);
        metrics::counter!("reef_upstream_requests_total", "provider" => provider, "outcome" => self.outcome)
            .increment(1);
    }
}

impl Reading {
    /// The steps of the answer. One object is read here; a stream goes on in a task that ends when nobody hears it.
    pub async fn begin(
        self,
        mut response: Response,
    ) -> Result<mpsc::Receiver<Result<Heard, ProviderError>>, ProviderError> {
        let mut outcome = Outcome { provider: self.provider.clone(), outcome: "cancelled" };
        let (sender, heard) = mpsc::channel(HEARD_MAX);
        let read = match self.form(&response) {
            Ok(Form::Stream) => {
                let (begins, begun) = oneshot::channel();
                tokio::spawn(self.run(response, sender, begins, outcome));
                // Whoever drops the sender untold has told the end by the steps.
                return begun.await.unwrap_or(Ok(())).map(|()| heard);
            }
            Ok(Form::Object) => self.object(&mut response).await,
            Err(error) => Err(error),
        };
        outcome.outcome = if read.is_ok() { "answered" } else { "broken" };
        // An empty channel has room for one step.
        let _ = sender.try_send(Ok(read?));
        Ok(heard)
    }

    /// Reads a stream to its end.
    async fn run(self, mut response: Response, heard: Heards, begins: Begins, mut outcome: Outcome) {
        let mut begins = Some(begins);
        tokio::select! {
            () = heard.closed() => return,
            read = self.stream(&mut response, &heard, &mut begins) => match read {
                Ok(()) => outcome.outcome = "answered",
                Err(error) => {
                    // A receiver that is gone has no use for the error.
                    match begins {
                        Some(begins) => drop(begins.send(Err(error))),
                        None => drop(heard.send(Err(error)).await),
                    }
                    outcome.outcome = "broken";
                    return;
                }
            },
        }
        drop((heard, outcome));
        // What comes after the end concerns nobody.
        let _ = timeout(DRAIN_MAX, async { while let Ok(Some(_)) = response.chunk().await {} }).await;
    }

    /// The content type decides; where there is none, what was asked for.
    fn form(&self, response: &Response) -> Result<Form, ProviderError> {
        let asked = if self.streamed { Form::Stream } else { Form::Object };
        let Some(kind) = response.headers().get(CONTENT_TYPE) else { return Ok(asked) };
        let kind = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match kind.as_str() {
            "text/event-stream" => Ok(Form::Stream),
            "application/json" => Ok(Form::Object),
            "" | "text/plain" | "application/octet-stream" => Ok(asked),
            other if other.ends_with("+json") => Ok(Form::Object),
            other => {
                Err(self.broken(&format!("it has the content type '{other}', which is neither JSON nor a stream")))
            }
        }
    }

    async fn object(&self, response: &mut Response) -> Result<Heard, ProviderError> {
        let bytes = self.whole(response, WHOLE_BYTES_MAX).await?;
        let text = String::from_utf8(bytes).map_err(|_| self.broken("it is not UTF-8"))?;
        let text = self.secret.redacted(text);
        let text = Mender::new(self.dialect, &self.answer).whole(text);
        let body: Value = serde_json::from_str(&text).map_err(|_| self.broken("it is not JSON"))?;
        let events = self.dialect.read_whole(&body, &self.answer);
        let events = events.map_err(|sentence| self.reported(&sentence, &text))?;
        // Where a stream was asked for, the object's frames are written from its events.
        let raw = (self.same && !self.streamed).then_some(SseEvent { event: None, data: text });
        Ok(Heard { events, raw })
    }

    /// The bytes of an answer that is not a stream.
    pub async fn whole(&self, response: &mut Response, bytes_max: usize) -> Result<Vec<u8>, ProviderError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk(response).await? {
            if bytes.len() + chunk.len() > bytes_max {
                return Err(self.broken(&format!("it is longer than {bytes_max} bytes")));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    async fn stream(
        &self,
        response: &mut Response,
        heard: &Heards,
        begins: &mut Option<Begins>,
    ) -> Result<(), ProviderError> {
        let (mut frames, mut reader) = (SseReader::new(EVENT_BYTES_MAX), self.dialect.reader(&self.answer));
        let mut mender = Mender::new(self.dialect, &self.answer);
        let (mut bytes, mut ended) = (0, false);
        while !ended {
            let chunk = self.chunk(response).await?;
            let read = match &chunk {
                Some(chunk) => frames.push(chunk).map_err(|error| self.broken(&error.to_string()))?,
                None => std::mem::replace(&mut frames, SseReader::new(EVENT_BYTES_MAX)).finish(),
            };
            bytes += chunk.as_ref().map_or(0, Bytes::len);
            if bytes > STREAM_BYTES_MAX {
                return Err(self.broken(&format!("it is longer than {STREAM_BYTES_MAX} bytes")));
            }
            ended = chunk.is_none();
            for mut frame in read {
                frame.data = self.secret.redacted(frame.data);
                ended |= is_last(&frame);
                for frame in mender.push(frame) {
                    let events = reader.push(&frame).map_err(|sentence| self.reported(&sentence, &frame.data))?;
                    let bytes = frame.data.len();
                    let raw = (self.same && self.streamed).then_some(frame);
                    if !events.is_empty() || raw.is_some() {
                        begin(begins);
                    }
                    send(heard, Heard { events, raw }, bytes).await;
                }
            }
        }
        let events: Vec<Event> = reader.finish().map_err(|sentence| self.broken(&sentence))?;
        begin(begins);
        send(heard, Heard { events, raw: None }, 0).await;
        Ok(())
    }

    async fn chunk(&self, response: &mut Response) -> Result<Option<Bytes>, ProviderError> {
        let end = self.began + self.answer_max;
        match timeout_at(end.min(Instant::now() + self.idle_max), response.chunk()).await {
            Ok(Ok(chunk)) => Ok(chunk),
            Ok(Err(_)) => Err(self.broken("the connection broke off")),
            Err(_) if Instant::now() >= end => {
                Err(self.broken(&format!("it took more than {} s", self.answer_max.as_secs())))
            }
            Err(_) => Err(self.broken(&format!("it stopped for more than {} s", self.idle_max.as_secs()))),
        }
    }

    /// An error of which `data` may say what kind it is.
    fn reported(&self, sentence: &str, data: &str) -> ProviderError {
        let broken = self.broken(sentence);
        let (status, code) = if is_overflow(sentence) { (400, OVERFLOW) } else { reported(data).unwrap_or((502, "")) };
        match status {
            502 => broken,
            503 => ProviderError::Unavailable(broken.to_string()),
            status => ProviderError::Refused {
                status,
                code: code.to_owned(),
                message: broken.to_string(),
                param: None,
                retry_after_s: None,
            },
        }
    }

    fn broken(&self, sentence: &str) -> ProviderError {
        self.secret.broken(&self.provider, sentence)
    }
}

/// Tells once that the answer has begun.
fn begin(begins: &mut Option<Begins>) {
    if let Some(begins) = begins.take() {
        // Whoever asked may have gone; `run` notices.
        let _ = begins.send(Ok(()));
    }
}

/// `bytes`: what the upstream sent for it.
async fn send(heard: &Heards, step: Heard, bytes: usize) {
    if step.events.is_empty() && step.raw.is_none() {
        return;
    }
    let places = if bytes > FRAME_BYTES_SHARED_MAX { HEARD_MAX } else { 1 };
    // `run` notices that nobody hears it.
    if let Ok(mut places) = heard.reserve_many(places).await
        && let Some(place) = places.next()
    {
        place.send(Ok(step));
    }
}

fn is_last(frame: &SseEvent) -> bool {
    frame.data.trim() == "[DONE]" || frame.event.as_deref().is_some_and(|name| LAST_EVENTS.contains(&name))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use reef_dialects::{Ask, Input, Piece};
    use serde_json::{Map, json};

    use super::super::upstream_tests::{Server, answer};
    use super::super::{Answering, Passed};
    use super::*;

    /// What comes of a stream with this body, asked for by a client of chat completions.
    async fn streamed(body: &str) -> Result<Answering, ProviderError> {
        let server = Server::start(vec![answer("200 OK", "text/event-stream", "", body)]).await;
        let ask = Ask { stream: true, ..Ask::new("m", Input::Turns(Vec::new())) };
        let sent = Map::from_iter([("model".to_owned(), json!("m"))]);
        server.upstream(|_| {}).ask(&ask, &sent, Dialect::Chat, &Passed::default()).await
    }

    #[tokio::test]
    async fn a_stream_that_begins_with_an_error_or_says_nothing_is_no_answer() {
        for (body, status) in [
            ("data: {\"error\":{\"message\":\"dead\"}}\n\n", 502),
            ("data: {\"error\":{\"message\":\"slow\",\"code\":\"rate_limit_exceeded\"}}\n\n", 429),
            ("data: {\"error\":{\"message\":\"full\",\"type\":\"overloaded_error\"}}\n\n", 503),
            ("", 502),
            ("<html>hello</html>", 502),
        ] {
            let told = streamed(body).await.expect_err("no answer");
            assert_eq!(told.status(), status, "{body}: {told}");
        }
    }

    #[tokio::test]
    async fn calls_without_ids_and_halves_of_characters_are_mended_for_record_and_client_alike() {
        let call = json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [{ "id": "", "function": { "name": "f", "arguments": "{}" } }] } }] });
        let half = r#"{"choices":[{"index":0,"delta":{"content":"a\ud83d"}}]}"#;
        let end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "tool_calls" }] });
        let body = format!("data: {half}\n\ndata: {call}\n\ndata: {end}\n\ndata: [DONE]\n\n");
        let mut ids = Vec::new();
        for _ in 0..2 {
            let mut heard = streamed(&body).await.expect("an answer").heard;
            while let Some(step) = heard.recv().await {
                let Heard { events, raw } = step.expect("a step");
                for event in events {
                    let Event::Delta { pieces, .. } = event else { continue };
                    let starts = pieces.into_iter().filter_map(|piece| match piece {
                        Piece::CallStart { id, .. } => Some(id),
                        _ => None,
                    });
                    for id in starts {
                        let raw = &raw.as_ref().expect("a frame").data;
                        assert!(raw.contains(&format!("\"id\":\"{id}\"")) && raw.contains("\"index\":0"), "{raw}");
                        ids.push(id);
                    }
                }
            }
        }
        assert!(ids.len() == 2 && ids[0] != ids[1], "{ids:?}");
    }

    #[tokio::test]
    async fn long_frames_wait_one_at_a_time_and_short_ones_together() {
        let step = || Heard { events: vec![Event::Started { prompt: None }], raw: None };
        let (sender, mut heard) = mpsc::channel(HEARD_MAX);
        for _ in 0..3 {
            assert!(send(&sender, step(), 9).now_or_never().is_some());
        }
        let mut long = Box::pin(send(&sender, step(), EVENT_BYTES_MAX));
        for _ in 0..3 {
            assert!(long.as_mut().now_or_never().is_none());
            heard.recv().await.expect("a step").expect("a frame");
        }
        assert!(long.now_or_never().is_some());
        assert!(send(&sender, step(), EVENT_BYTES_MAX).now_or_never().is_none());
        assert!(send(&sender, step(), 9).now_or_never().is_some());
    }
}
