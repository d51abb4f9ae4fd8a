//! An upstream that answers every chat completion at once, so that what remains is the gateway in front of it.
//! A stream has `chunks` chunks, one every `interval_ms`; each carries the time it was sent, in nanoseconds of the
//! system clock, as its text, which every gateway passes on.
//!
//!   mock PORT CHUNKS INTERVAL_MS

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Channel, Full};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval};

/// Chunks that may wait for a slow reader before the stream stops sending.
const CHUNKS_WAITING_MAX: usize = 64;
const ANSWER: &str =
    "The tide comes in twice a day, and twice a day it goes out again, whether or not somebody watches it.";

#[derive(Clone, Copy)]
struct Pace {
    chunks: usize,
    interval: Duration,
}

type Body = BoxBody<Bytes, Infallible>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), String> {
    let mut words = std::env::args().skip(1);
    let mut number = |name: &str| -> Result<u64, String> {
        let word = words.next().ok_or_else(|| format!("{name} is missing: mock PORT CHUNKS INTERVAL_MS"))?;
        word.parse().map_err(|_| format!("{name} must be a whole number, and '{word}' is none"))
    };
    let port = u16::try_from(number("PORT")?).map_err(|_| "PORT must be under 65536".to_owned())?;
    let pace =
        Pace { chunks: number("CHUNKS")? as usize, interval: Duration::from_millis(number("INTERVAL_MS")?.max(1)) };
    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("port {port} cannot be opened: {error}"))?;
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        let _ = socket.set_nodelay(true);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, pace));
            // A client that goes away ends its own connection only.
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

async fn answer(request: Request<Incoming>, pace: Pace) -> Result<Response<Body>, hyper::Error> {
    if request.method() == Method::GET {
        return Ok(whole(
            json!({ "object": "list", "data": [{ "id": "mock", "object": "model", "owned_by": "mock" }] }),
        ));
    }
    let body = request.into_body().collect().await?.to_bytes();
    let asked: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    if asked.get("stream").and_then(Value::as_bool) == Some(true) {
        return Ok(stream(pace));
    }
    Ok(whole(json!({
        "id": "chatcmpl-mock", "object": "chat.completion", "created": seconds(), "model": "mock",
        "choices": [{ "index": 0, "message": { "role": "assistant", "content": ANSWER }, "logprobs": null, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 400, "completion_tokens": 24, "total_tokens": 424 },
    })))
}

fn whole(body: Value) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())).boxed());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn stream(pace: Pace) -> Response<Body> {
    let (mut sender, body) = Channel::<Bytes, Infallible>::new(CHUNKS_WAITING_MAX);
    tokio::spawn(async move {
        let mut ticks = interval(pace.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for _ in 0..pace.chunks {
            ticks.tick().await;
            let delta = json!({ "role": "assistant", "content": nanoseconds().to_string() });
            if sender.send(Frame::data(event(delta, Value::Null))).await.is_err() {
                return;
            }
        }
        let last = event(json!({}), json!("stop"));
        if sender.send(Frame::data(last)).await.is_ok() {
            let _ = sender.send(Frame::data(Bytes::from_static(b"data: [DONE]\n\n"))).await;
        }
    });
    let mut response = Response::new(body.boxed());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

fn event(delta: Value, finish: Value) -> Bytes {
    let chunk = json!({
        "id": "chatcmpl-mock", "object": "chat.completion.chunk", "created": seconds(), "model": "mock",
        "choices": [{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }],
    });
    Bytes::from(format!("data: {chunk}\n\n"))
}

fn seconds() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

fn nanoseconds() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos())
}
