//! Request bodies: JSON objects, or components as they are; refused in the dialect's shape.
//! Bounded in bytes, in values and in the time they take; large ones share a bounded room, of which one token has at most
//! a half, and are parsed on a thread that serves nobody meanwhile.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use axum::body::BodyDataStream;
use axum::extract::{FromRef, FromRequest, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use futures::StreamExt;
use serde_json::{Map, Value};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::caller::dialect_response;
use super::error::ApiError;

/// Bytes of a body that is parsed where it is read; more would keep other requests waiting.
const SMALL_BYTES_MAX: usize = 256 * 1024;
/// Values in a body: a parsed value takes up to some hundred bytes, a byte of text only itself.
const VALUES_MAX: usize = 2_000_000;
/// Bodies of the largest size that are read and parsed at the same time.
const LARGE_BODIES_MAX: usize = 4;
/// Those of one token.
const OWN_LARGE_BODIES_MAX: usize = LARGE_BODIES_MAX / 2;
/// Time a large body waits for its share of the room.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(10);
/// Time between two pieces of a body.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Bytes a second that a body has to come in at least, after the time that a pause may take.
const BYTES_A_SECOND_MIN: usize = 16 * 1024;
/// Time for a whole body.
const READING_MAX: Duration = Duration::from_secs(600);
/// What is read of a refused body and thrown away: a client that is still sending sees no answer.
const DISCARD_BYTES_MAX: usize = 512 << 20;
/// Time for that.
const DISCARD_MAX: Duration = Duration::from_secs(30);
/// The room is counted in units of this many bytes.
const ROOM_UNIT_BYTES: usize = 1024;

/// What request bodies may take; part of the router's state.
#[derive(Debug, Clone)]
pub struct BodyLimit {
    /// Bytes of one body.
    pub bytes_max: usize,
    /// Time between two of its pieces.
    idle_max: Duration,
    /// Time that a large one waits for room.
    wait_max: Duration,
    /// What large bodies take together.
    room: Arc<Semaphore>,
    /// What those of one token may take, by the digest of the token; gone with the last of its bodies.
    own: Arc<Mutex<HashMap<u64, Weak<Semaphore>>>>,
    digests: RandomState,
}

/// The part of the room that a body takes.
#[derive(Debug)]
struct RoomShare {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// A body as it was sent.
#[derive(Debug)]
pub struct Whole(pub Vec<u8>);

/// A body that is a JSON object.
#[derive(Debug)]
pub struct JsonObject(pub Map<String, Value>);

impl BodyLimit {
    /// Bodies of up to `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        let room = Arc::new(Semaphore::new(room_of(bytes_max, LARGE_BODIES_MAX)));
        let (own, digests) = (Arc::default(), RandomState::new());
        Self { bytes_max, idle_max: IDLE_MAX, wait_max: ROOM_WAIT_MAX, room, own, digests }
    }

    /// A share of the room for a body of this many bytes, sent with this token.
    async fn share(&self, bytes: usize, token: u64) -> Result<RoomShare, ApiError> {
        let units = u32::try_from(units(bytes)).unwrap_or(u32::MAX);
        let acquired = timeout(self.wait_max, async {
            let own = self.own_room(token).acquire_many_owned(units).await?;
            Ok::<_, AcquireError>(RoomShare {
                _own: own,
                _all: Arc::clone(&self.room).acquire_many_owned(units).await?,
            })
        });
        match acquired.await {
            Ok(Ok(share)) => Ok(share),
            Ok(Err(_)) | Err(_) => Err(ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                "too many large bodies are being read; send the request again later",
            )),
        }
    }

    fn own_room(&self, token: u64) -> Arc<Semaphore> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|_, room| room.strong_count() > 0);
        let there = own.get(&token).and_then(Weak::upgrade);
        there.unwrap_or_else(|| {
            let room = Arc::new(Semaphore::new(room_of(self.bytes_max, OWN_LARGE_BODIES_MAX)));
            own.insert(token, Arc::downgrade(&room));
            room
        })
    }

    /// What tells the bodies of one token from those of others.
    fn token(&self, headers: &HeaderMap) -> u64 {
        let sent = ["authorization", "x-api-key"].map(|name| headers.get(name).map(HeaderValue::as_bytes));
        self.digests.hash_one(sent)
    }
}

fn room_of(bytes_max: usize, bodies: usize) -> usize {
    units(bytes_max).saturating_mul(bodies).min(Semaphore::MAX_PERMITS)
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(ROOM_UNIT_BYTES)
}

impl<S> FromRequest<S> for JsonObject
where
    S: Send + Sync,
    BodyLimit: FromRef<S>,
{
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let limit = BodyLimit::from_ref(state);
        let path = request.uri().path().to_owned();
        read(request, &limit).await.map(Self).map_err(|error| dialect_response(&path, error))
    }
}

impl<S> FromRequest<S> for Whole
where
    S: Send + Sync,
    BodyLimit: FromRef<S>,
{
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let limit = BodyLimit::from_ref(state);
        let path = request.uri().path().to_owned();
        let read = read_bytes(request, &limit).await;
        read.map(|(bytes, _)| Self(bytes)).map_err(|error| dialect_response(&path, error))
    }
}

async fn read(request: Request, limit: &BodyLimit) -> Result<Map<String, Value>, ApiError> {
    let (bytes, share) = read_bytes(request, limit).await?;
    if bytes.len() <= SMALL_BYTES_MAX {
        return parse(&bytes);
    }
    let parsing = tokio::task::spawn_blocking(move || {
        // The room is free again when the text is gone.
        let _share = share;
        let parsed = parse(&bytes);
        drop(bytes);
        parsed
    });
    parsing.await.unwrap_or_else(|error| Err(ApiError::internal("the body could not be parsed", error)))
}

/// A body's bytes, and its share of the room if it is large.
type Read = (Vec<u8>, Option<RoomShare>);

async fn read_bytes(request: Request, limit: &BodyLimit) -> Result<Read, ApiError> {
    let (head, body) = request.into_parts();
    let mut pieces = body.into_data_stream();
    let read = match acceptable(&head.headers, limit) {
        Ok(announced) => {
            let (began, token) = (Instant::now(), limit.token(&head.headers));
            match timeout(READING_MAX, receive(&mut pieces, (announced, token), limit, began)).await {
                Ok(read) => read,
                Err(_) => return Err(too_slow(READING_MAX)),
            }
        }
        Err(refused) => Err(refused),
    };
    // Who waits for leave to send a body, or has stopped, sends nothing more.
    let sends = !head.headers.contains_key("expect");
    if sends && matches!(&read, Err(refused) if refused.status != StatusCode::REQUEST_TIMEOUT) {
        // The answer is the same whether the body comes to an end or not.
        let _ = timeout(DISCARD_MAX, discard(&mut pieces)).await;
    }
    read
}

/// The length that was announced, of a body that may be read.
fn acceptable(headers: &HeaderMap, limit: &BodyLimit) -> Result<Option<usize>, ApiError> {
    if headers.get("content-encoding").is_some_and(|encoding| encoding != "identity") {
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_encoding",
            "bodies are read as they are; send this one without content-encoding",
        ));
    }
    let announced = headers.get("content-length").and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<usize>().ok());
    match announced {
        Some(length) if length > limit.bytes_max => Err(too_large(limit.bytes_max)),
        announced => Ok(announced),
    }
}

async fn receive(
    pieces: &mut BodyDataStream,
    (announced, token): (Option<usize>, u64),
    limit: &BodyLimit,
    mut began: Instant,
) -> Result<Read, ApiError> {
    let (mut bytes, mut share) = (Vec::new(), None);
    while let Some(piece) = timeout(limit.idle_max, pieces.next()).await.map_err(|_| too_slow(limit.idle_max))? {
        let piece = piece.map_err(|error| ApiError::invalid("body", format!("the body could not be read: {error}")))?;
        let length = bytes.len() + piece.len();
        if length > limit.bytes_max {
            return Err(too_large(limit.bytes_max));
        }
        if length > SMALL_BYTES_MAX && share.is_none() {
            let waited = Instant::now();
            share = Some(limit.share(announced.unwrap_or(limit.bytes_max), token).await?);
            began += waited.elapsed();
        }
        bytes.extend_from_slice(&piece);
        // Who sends a byte now and then holds a share that others wait for.
        if began.elapsed() > limit.idle_max + Duration::from_secs((bytes.len() / BYTES_A_SECOND_MIN) as u64) {
            return Err(too_slow(limit.idle_max));
        }
    }
    Ok((bytes, share))
}

async fn discard(pieces: &mut BodyDataStream) {
    let mut seen = 0;
    while let Some(Ok(piece)) = pieces.next().await {
        seen += piece.len();
        if seen > DISCARD_BYTES_MAX {
            return;
        }
    }
}

fn too_large(bytes_max: usize) -> ApiError {
    let told = format!("the body is larger than {bytes_max} bytes (http.body_bytes_max)");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", told)
}

fn too_slow(patience: Duration) -> ApiError {
    let told = format!("the body did not come within {} seconds; send it again", patience.as_secs());
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", told)
}

fn parse(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    // Every value but the first takes a byte that `values_max` counts.
    if bytes.len() > VALUES_MAX && values_max(bytes) > VALUES_MAX {
        let told = format!("the body holds more than {VALUES_MAX} JSON values; send less in one request");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", told));
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(ApiError::invalid("body", "the body must be a JSON object")),
        Err(error) => Err(ApiError::invalid("body", format!("the body is not JSON: {error}"))),
    }
}

/// At least as many as the values in this text: what opens a list or an object, or separates two values.
fn values_max(json: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (1, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::{Body, Bytes};
    use futures::stream;

    use super::*;

    fn asked(body: impl Into<Body>) -> Request {
        Request::new(body.into())
    }

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (json, values) in
            [("{}", 2), (r#"{"a":[1,2],"b":{}}"#, 6), (r#"{"a":"[,\"{,\\"}"#, 2), (r#"[{},{},{}]"#, 7)]
        {
            assert_eq!(values_max(json.as_bytes()), values, "{json}");
        }
    }

    #[tokio::test]
    async fn a_body_of_too_many_values_is_refused_before_it_is_parsed() {
        let many = format!("{{\"a\":[{}0]}}", "0,".repeat(VALUES_MAX));
        let refused = read(asked(many), &BodyLimit::new(1 << 26)).await.expect_err("refused");
        assert_eq!((refused.status.as_u16(), refused.code.as_ref()), (413, "body_too_large"));
        assert!(refused.message.contains("2000000"), "{}", refused.message);
        let long = format!("{{\"a\":\"{}\"}}", ",".repeat(VALUES_MAX + 1));
        assert_eq!(read(asked(long), &BodyLimit::new(1 << 26)).await.expect("one text").len(), 1);
    }

    #[tokio::test]
    async fn a_refused_body_is_read_to_its_end_so_that_the_answer_is_seen() {
        let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let seen = Arc::clone(&sent);
        let piece = move |_| {
            seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok::<_, Infallible>(Bytes::from_static(&[b' '; 1000]))
        };
        let mut request = asked(Body::from_stream(stream::iter((0..100).map(piece))));
        request.headers_mut().insert("content-length", 100_000.into());
        let refused = read(request, &BodyLimit::new(5000)).await.expect_err("refused");
        assert_eq!(refused.status.as_u16(), 413);
        assert_eq!(sent.load(std::sync::atomic::Ordering::Relaxed), 100);
    }

    #[tokio::test]
    async fn silence_in_the_middle_of_a_body_ends_it() {
        let begun = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{\"a\":"))]).chain(stream::pending());
        let limit = BodyLimit { idle_max: Duration::ZERO, ..BodyLimit::new(1 << 20) };
        let refused = read(asked(Body::from_stream(begun)), &limit).await.expect_err("refused");
        assert_eq!((refused.status.as_u16(), refused.code.as_ref()), (408, "body_timeout"));
    }

    #[tokio::test]
    async fn large_bodies_wait_for_room_and_small_ones_do_not() {
        let limit = BodyLimit { wait_max: Duration::ZERO, ..BodyLimit::new(1 << 20) };
        let large = || asked(format!("{{\"a\":\"{}\"}}", "x".repeat(SMALL_BYTES_MAX)));
        let half = (1 << 20) * OWN_LARGE_BODIES_MAX;
        let taken = [limit.share(half, 1).await.expect("a half"), limit.share(half, 2).await.expect("the other half")];
        let refused = read(large(), &limit).await.expect_err("refused");
        assert_eq!((refused.status.as_u16(), refused.code.as_ref()), (503, "overloaded"));
        assert_eq!(read(asked("{}"), &limit).await.expect("small").len(), 0);
        drop(taken);
        assert_eq!(read(large(), &limit).await.expect("room").len(), 1);
        assert_eq!(limit.room.available_permits(), units(1 << 20) * LARGE_BODIES_MAX);
    }

    #[tokio::test]
    async fn the_large_bodies_of_one_token_leave_room_for_those_of_others() {
        let limit = BodyLimit { wait_max: Duration::ZERO, ..BodyLimit::new(1 << 20) };
        let large = |token: &'static str| {
            let mut request = asked(format!("{{\"a\":\"{}\"}}", "x".repeat(SMALL_BYTES_MAX)));
            request.headers_mut().insert("authorization", HeaderValue::from_static(token));
            request
        };
        let busy = limit.token(large("Bearer busy").headers());
        let taken = limit.share((1 << 20) * OWN_LARGE_BODIES_MAX, busy).await.expect("its half");
        assert_eq!(read(large("Bearer busy"), &limit).await.expect_err("refused").status.as_u16(), 503);
        assert_eq!(read(large("Bearer other"), &limit).await.expect("room").len(), 1);
        drop(taken);
        assert_eq!(read(large("Bearer busy"), &limit).await.expect("room").len(), 1);
        assert!(limit.own.lock().expect("whole").values().all(|room| room.strong_count() == 0), "nothing is kept");
    }

    #[tokio::test]
    async fn a_byte_now_and_then_does_not_keep_a_body_open() {
        let drip = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Some((Ok::<_, Infallible>(Bytes::from_static(b" ")), ()))
        });
        let limit = BodyLimit { idle_max: Duration::from_millis(500), ..BodyLimit::new(1 << 20) };
        let refused = read(asked(Body::from_stream(drip)), &limit).await.expect_err("refused");
        assert_eq!((refused.status.as_u16(), refused.code.as_ref()), (408, "body_timeout"));
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_even_if_it_does_not_say_its_length() {
        let pieces = stream::iter((0..3).map(|_| Ok::<_, Infallible>(Bytes::from_static(b"{}       "))));
        let refused = read(asked(Body::from_stream(pieces)), &BodyLimit::new(20)).await.expect_err("refused");
        assert_eq!((refused.status.as_u16(), refused.code.as_ref()), (413, "body_too_large"));
    }
}
