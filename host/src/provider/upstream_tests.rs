//! Upstreams as they are met: slow, silent, broken, refusing, huge, talkative. A socket plays each of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reef_dialects::{Ask, Dialect, Event, Input, Part, Reply, Role, Stop, Turn};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::config::ProviderSection;
use super::{Passed, ProviderError, Upstream};

/// What the socket does.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Send(Vec<u8>),
    Wait(u64),
    Close,
}

pub(crate) struct Server {
    url: String,
    seen: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
}

impl Server {
    /// Answers requests in order; the last answer goes on.
    pub(crate) async fn start(answers: Vec<Vec<Act>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (seen, connections, open) = <(Arc<Mutex<Vec<String>>>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
        let server = Self { url, seen: seen.clone(), connections: connections.clone(), open: open.clone() };
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                open.fetch_add(1, Ordering::SeqCst);
                let (seen, answers, open) = (seen.clone(), answers.clone(), open.clone());
                tokio::spawn(async move {
                    talk(socket, &seen, &answers).await;
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        server
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("lock").clone()
    }

    pub(crate) fn upstream(&self, change: impl FnOnce(&mut ProviderSection)) -> Upstream {
        let mut section: ProviderSection =
            serde_json::from_value(json!({ "url": self.url, "models": { "m": "their-m" } })).expect("a section");
        change(&mut section);
        Upstream::new("p", &section).expect("an upstream")
    }
}

async fn talk(mut socket: TcpStream, seen: &Mutex<Vec<String>>, answers: &Mutex<VecDeque<Vec<Act>>>) {
    while let Some(request) = request(&mut socket).await {
        seen.lock().expect("lock").push(request);
        let acts = {
            let mut answers = answers.lock().expect("lock");
            if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() }
        };
        for act in acts.unwrap_or_default() {
            match act {
                Act::Send(bytes) => {
                    if socket.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Act::Wait(ms) => {
                    // A client that leaves ends the wait.
                    let mut byte = [0];
                    let wait = Duration::from_millis(ms);
                    if let Ok(Ok(0) | Err(_)) = tokio::time::timeout(wait, socket.peek(&mut byte)).await {
                        return;
                    }
                }
                Act::Close => return,
            }
        }
    }
}

async fn request(socket: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(text);
            }
        }
        match socket.read(&mut chunk).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
        }
    }
}

pub(crate) fn answer(status: &str, kind: &str, more: &str, body: &str) -> Vec<Act> {
    let length = body.len();
    vec![Act::Send(
        format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n{more}\r\n{body}")
            .into_bytes(),
    )]
}

pub(crate) fn json_answer(body: &Value) -> Vec<Act> {
    answer("200 OK", "application/json", "", &body.to_string())
}

/// A stream of unknown length, sent in pieces.
fn stream(pieces: &[&[u8]]) -> Vec<Act> {
    let head =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut acts = vec![Act::Send(head.to_vec())];
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        acts.push(Act::Send([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()));
    }
    acts
}

const END: &[u8] = b"0\r\n\r\n";

fn ended(mut acts: Vec<Act>) -> Vec<Act> {
    acts.push(Act::Send(END.to_vec()));
    acts
}

fn ask(stream: bool) -> Ask {
    let turn = Turn { role: Role::User, parts: vec![Part::Text("hi".to_owned())] };
    Ask { stream, ..Ask::new("m", Input::Turns(vec![turn])) }
}

fn body() -> Map<String, Value> {
    let body =
        json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }], "odd": { "x": 1 }, "seed": null });
    body.as_object().expect("object").clone()
}

pub(crate) fn chat(text: &str) -> Value {
    json!({
        "id": "c1", "object": "chat.completion", "created": 1, "model": "their-m", "odd": true,
        "choices": [{ "index": 0, "message": { "role": "assistant", "content": text }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5 },
    })
}

const CHUNKS: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\u{2028}é\"}}]}\n\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"😀b\"}}]}\n\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n\
    data: [DONE]\n\n";

/// The reply, what came raw, and the error that ended it.
async fn heard(
    upstream: &Upstream,
    ask: &Ask,
    client: Dialect,
) -> Result<(Reply, Vec<String>, Option<ProviderError>), ProviderError> {
    let mut answering = upstream.ask(ask, &body(), client, &Passed::default()).await?;
    let (mut reply, mut raw) = (Reply::default(), Vec::new());
    while let Some(step) = answering.heard.recv().await {
        match step {
            Ok(step) => {
                step.events.iter().for_each(|event: &Event| reply.push(event));
                raw.extend(step.raw.map(|frame| frame.data));
            }
            Err(error) => return Ok((reply, raw, Some(error))),
        }
    }
    Ok((reply, raw, None))
}

fn text(reply: &Reply) -> String {
    let parts = reply.choices.iter().flat_map(|choice| &choice.parts);
    parts.filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None }).collect()
}

#[tokio::test]
async fn a_stream_reads_the_same_however_it_is_written_and_cut() {
    let crlf = CHUNKS.replace('\n', "\r\n");
    let cr = CHUNKS.replace('\n', "\r");
    let commented = format!("\u{feff}: hello\n\nevent: ping\n\n{}", CHUNKS.replace("\n\n", "\n: ping\n\n: more\n\n"));
    let lines = CHUNKS.replace("\"choices\"", "\ndata: \"choices\"");
    for written in [CHUNKS, &crlf, &cr, &commented, &lines] {
        for size in [1, 2, 7, 4096] {
            let pieces: Vec<&[u8]> = written.as_bytes().chunks(size).collect();
            let server = Server::start(vec![ended(stream(&pieces))]).await;
            let (reply, raw, error) =
                heard(&server.upstream(|_| {}), &ask(true), Dialect::Chat).await.expect("an answer");
            assert_eq!((text(&reply).as_str(), error), ("a\u{2028}é😀b", None), "{written:?} by {size}");
            assert_eq!(reply.usage.map(|usage| (usage.input, usage.output)), Some((3, 2)));
            assert_eq!(reply.choices[0].stop, Some(Stop::End));
            assert_eq!((raw.len(), raw.last().map(String::as_str)), (5, Some("[DONE]")));
        }
    }
}

#[tokio::test]
async fn one_connection_serves_request_after_request() {
    let server = Server::start(vec![ended(stream(&[CHUNKS.as_bytes()])), json_answer(&chat("whole"))]).await;
    let upstream = server.upstream(|_| {});
    heard(&upstream, &ask(true), Dialect::Chat).await.expect("an answer");
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (reply, raw, error) = heard(&upstream, &ask(false), Dialect::Chat).await.expect("an answer");
        assert_eq!((text(&reply).as_str(), error), ("whole", None));
        assert_eq!(serde_json::from_str::<Value>(&raw[0]).expect("JSON")["odd"], json!(true));
    }
    assert_eq!((server.seen().len(), server.connections.load(Ordering::SeqCst)), (4, 1));
}

#[tokio::test]
async fn the_upstream_gets_the_clients_body_or_the_same_in_its_own_words() {
    let server = Server::start(vec![json_answer(&chat("a"))]).await;
    let upstream = server.upstream(|section| {
        section.headers = BTreeMap::from([("x-org".to_owned(), "o".to_owned())]);
    });
    let beta = ["anthropic-version", "anthropic-beta"]
        .map(|name| (name.parse().expect("a name"), "b-1".parse().expect("a value")));
    let anthropic = super::anthropic_headers(&beta.into_iter().collect());
    let passed = Passed { traceparent: Some("00-1-2-01".to_owned()), request_id: Some("r\n".to_owned()), anthropic };
    upstream.ask(&ask(false), &body(), Dialect::Chat, &passed).await.expect("an answer");
    upstream.ask(&ask(false), &body(), Dialect::Messages, &passed).await.expect("an answer");
    let seen = server.seen();
    let sent =
        |at: usize| serde_json::from_str::<Value>(seen[at].split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    assert_eq!(
        sent(0),
        json!({ "model": "their-m", "messages": [{ "role": "user", "content": "hi" }], "odd": { "x": 1 } })
    );
    assert_eq!(sent(1), json!({ "model": "their-m", "messages": [{ "role": "user", "content": "hi" }] }));
    assert!(seen[0].starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{}", seen[0]);
    assert!(seen[0].contains("traceparent: 00-1-2-01\r\n") && seen[0].contains("x-org: o\r\n"), "{}", seen[0]);
    assert!(!seen[0].contains("x-request-id") && !seen[0].contains("authorization"), "{}", seen[0]);
    assert!(!seen[0].contains("anthropic"), "{}", seen[0]);
    let there = server.upstream(|section| section.dialect = Dialect::Messages);
    there.ask(&ask(false), &body(), Dialect::Messages, &passed).await.expect_err("it answers as chat does");
    let told = server.seen()[2].clone();
    assert!(told.contains("anthropic-beta: b-1\r\n") && told.contains("anthropic-version: b-1\r\n"), "{told}");
    assert!(!told.contains("2023-06-01"), "{told}");
}

#[tokio::test]
async fn a_busy_upstream_is_asked_again_within_bounds() {
    let busy = answer(
        "429 Too Many Requests",
        "application/json",
        "retry-after: 1\r\n",
        r#"{"error":{"message":"slow","code":"rate"}}"#,
    );
    let server = Server::start(vec![busy.clone(), json_answer(&chat("a"))]).await;
    let began = Instant::now();
    let (reply, ..) = heard(&server.upstream(|_| {}), &ask(false), Dialect::Chat).await.expect("an answer");
    assert!(text(&reply) == "a" && began.elapsed() >= Duration::from_secs(1));

    let server = Server::start(vec![busy]).await;
    let refused = heard(&server.upstream(|section| section.retries_max = 0), &ask(false), Dialect::Chat).await;
    let expected = ProviderError::Refused {
        status: 429,
        code: "rate".to_owned(),
        message: "slow".to_owned(),
        param: None,
        retry_after_s: Some(1),
    };
    assert_eq!((refused.expect_err("refused"), server.seen().len()), (expected, 1));

    let patient = answer("503 Service Unavailable", "text/html", "retry-after: 3600\r\n", "<html>later</html>");
    let server = Server::start(vec![patient]).await;
    let refused = heard(&server.upstream(|_| {}), &ask(false), Dialect::Chat).await.expect_err("unavailable");
    assert!(matches!(&refused, ProviderError::Unavailable(told) if !told.contains("html")), "{refused}");
    assert_eq!(server.seen().len(), 1, "an hour is not waited");
}

#[tokio::test]
async fn what_was_perhaps_answered_is_never_asked_again() {
    let failing = answer("500 Internal Server Error", "application/json", "", r#"{"error":{"message":"boom"}}"#);
    for acts in [failing, vec![Act::Close], vec![Act::Send(b"HTTP/1.1 200 OK\r\ncont".to_vec()), Act::Close]] {
        let server = Server::start(vec![acts]).await;
        let told = heard(&server.upstream(|_| {}), &ask(true), Dialect::Chat).await.expect_err("no answer");
        assert!(matches!(told, ProviderError::Unavailable(_)), "{told:?}");
        assert_eq!(server.seen().len(), 1, "{told}");
    }
}

#[tokio::test]
async fn nobody_at_the_address_is_told_after_the_last_try() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = Server::start(Vec::new()).await;
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let upstream = server.upstream(|section| (section.url, section.retries_max) = (url, 1));
    let began = Instant::now();
    let told = heard(&upstream, &ask(false), Dialect::Chat).await.expect_err("nobody");
    assert!(matches!(&told, ProviderError::Unavailable(told) if told.contains("cannot be reached")), "{told}");
    assert!(began.elapsed() >= Duration::from_millis(125), "one pause");
}

#[tokio::test]
async fn an_answer_that_breaks_off_stalls_or_lies_is_an_error_and_keeps_what_came() {
    let begun = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n".as_bytes();
    let then = |acts: Vec<Act>| [stream(&[begun]), acts].concat();
    let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let huge = [b"data: ".to_vec(), vec![b'x'; (16 << 20) + 1]].concat();
    let cases = [
        (then(vec![Act::Close]), "broke off"),
        (ended(then(vec![])), "in the middle"),
        (then(vec![Act::Wait(5_000)]), "stopped for more than 1 s"),
        (ended(then(vec![Act::Send(chunk(b"data: {oops\n\n"))])), "not JSON"),
        (ended(then(vec![Act::Send(chunk(b"data: {\"error\":{\"message\":\"dead\"}}\n\n"))])), "dead"),
        (ended(then(vec![Act::Send(chunk(&huge))])), "longer than 16777216 bytes"),
    ];
    for (acts, reason) in cases {
        let server = Server::start(vec![acts]).await;
        let upstream = server.upstream(|section| section.idle_seconds_max = 1);
        let (reply, _, error) = heard(&upstream, &ask(true), Dialect::Chat).await.expect("a head");
        let error = error.expect(reason);
        assert!(matches!(&error, ProviderError::Broken(told) if told.contains(reason)), "{reason}: {error}");
        assert_eq!(text(&reply), "a", "{reason}");
    }
}

#[tokio::test]
async fn pages_redirects_and_silence_are_told_as_what_they_are() {
    let page = answer("200 OK", "text/html; charset=utf-8", "", "<html>hello</html>");
    let server = Server::start(vec![page]).await;
    let told = heard(&server.upstream(|_| {}), &ask(false), Dialect::Chat).await.expect_err("a page");
    assert!(told.to_string().contains("content type 'text/html'"), "{told}");

    let moved = answer("302 Found", "text/html", "location: http://127.0.0.1:1/\r\n", "");
    let server = Server::start(vec![moved]).await;
    let told = heard(&server.upstream(|_| {}), &ask(false), Dialect::Chat).await.expect_err("an error");
    assert!(matches!(&told, ProviderError::Broken(told) if told.contains("redirects")), "{told}");

    let server = Server::start(vec![vec![Act::Wait(5_000)]]).await;
    let upstream = server.upstream(|section| section.first_byte_seconds_max = 1);
    let told = heard(&upstream, &ask(false), Dialect::Chat).await.expect_err("an error");
    assert!(told.to_string().contains("no answer within 1 s"), "{told}");
    assert_eq!(server.seen().len(), 1);

    let long = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", 65 << 20);
    let server =
        Server::start(vec![[vec![Act::Send(long.into_bytes())], vec![Act::Send(vec![b' '; 1 << 20]); 65]].concat()])
            .await;
    let told = heard(&server.upstream(|_| {}), &ask(false), Dialect::Chat).await.expect_err("too long");
    assert!(told.to_string().contains("longer than 67108864 bytes"), "{told}");
}

#[tokio::test]
async fn an_object_where_a_stream_was_asked_for_is_an_answer_without_frames() {
    let server = Server::start(vec![json_answer(&chat("whole"))]).await;
    let (reply, raw, error) = heard(&server.upstream(|_| {}), &ask(true), Dialect::Chat).await.expect("an answer");
    assert_eq!((text(&reply).as_str(), raw, error), ("whole", Vec::new(), None));
}

#[tokio::test]
async fn an_event_may_repeat_a_long_answer() {
    let chunks = CHUNKS.replace("😀", &"x".repeat(2 << 20));
    let server = Server::start(vec![ended(stream(&[chunks.as_bytes()]))]).await;
    let (reply, _, error) = heard(&server.upstream(|_| {}), &ask(true), Dialect::Chat).await.expect("an answer");
    assert!(error.is_none() && text(&reply).len() > 2 << 20, "{error:?}");
}

#[tokio::test]
async fn what_drips_without_end_is_given_up() {
    let dripping = |head: &str, rest: &str| {
        let head = Act::Send(format!("HTTP/1.1 {head}\r\ncontent-type: application/json\r\n").into_bytes());
        let length = Act::Send(format!("content-length: {}\r\n\r\n", rest.len() + 12).into_bytes());
        let drips = (0..12).flat_map(|_| [Act::Wait(600), Act::Send(b" ".to_vec())]);
        [head, length].into_iter().chain(drips).chain([Act::Send(rest.as_bytes().to_vec())]).collect::<Vec<_>>()
    };
    let server = Server::start(vec![dripping("400 Bad Request", r#"{"error":"late"}"#)]).await;
    let told = heard(&server.upstream(|_| {}), &ask(false), Dialect::Chat).await.expect_err("refused");
    assert_eq!(told.to_string(), "Bad Request");
    let server = Server::start(vec![dripping("200 OK", &chat("late").to_string())]).await;
    let upstream = server.upstream(|section| section.answer_seconds_max = 1);
    let told = heard(&upstream, &ask(false), Dialect::Chat).await.expect_err("given up");
    assert!(told.to_string().contains("took more than 1 s"), "{told}");
}

#[tokio::test]
async fn nobody_listens_and_the_connection_ends() {
    let begun = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n".as_bytes();
    let server = Server::start(vec![[stream(&[begun]), vec![Act::Wait(60_000)]].concat()]).await;
    let upstream = server.upstream(|_| {});
    let mut answering = upstream.ask(&ask(true), &body(), Dialect::Chat, &Passed::default()).await.expect("a head");
    answering.heard.recv().await.expect("a step").expect("a delta");
    drop(answering);
    for _ in 0..100 {
        if server.open.load(Ordering::SeqCst) == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the connection is still open");
}

#[tokio::test]
async fn a_key_is_sent_and_never_told() {
    // The one variable that is set wherever tests run, and whose value no other text holds.
    let key = std::env::var("PATH").expect("a PATH");
    let echo = json!({ "error": { "message": format!("bad key {key}"), "code": key } }).to_string();
    for status in ["400 Bad Request", "401 Unauthorized", "500 Internal Server Error"] {
        let server = Server::start(vec![answer(status, "application/json", "", &echo)]).await;
        let upstream = server.upstream(|section| section.key_env = Some("PATH".to_owned()));
        let told = heard(&upstream, &ask(false), Dialect::Chat).await.expect_err("refused");
        assert!(!format!("{told:?} {upstream:?}").contains(&key), "{told:?}");
        assert!(server.seen()[0].contains(&format!("authorization: Bearer {key}\r\n")));
    }
    let chunks = CHUNKS.replace("😀", &key);
    for (acts, streamed) in [(json_answer(&chat(&key)), false), (ended(stream(&[chunks.as_bytes()])), true)] {
        let server = Server::start(vec![acts]).await;
        let upstream = server.upstream(|section| section.key_env = Some("PATH".to_owned()));
        let (reply, raw, _) = heard(&upstream, &ask(streamed), Dialect::Chat).await.expect("an answer");
        assert!(
            !raw.is_empty() && text(&reply).contains("[redacted]") && !format!("{reply:?} {raw:?}").contains(&key),
            "{reply:?}"
        );
    }
    let server = Server::start(vec![json_answer(&json!({ "data": key }))]).await;
    let upstream = server.upstream(|section| section.key_env = Some("PATH".to_owned()));
    let embedded = upstream.relay_json("/v1/embeddings", &body(), &Passed::default()).await;
    assert_eq!(embedded, Ok(json!({ "data": "[redacted]" })));
    let server = Server::start(vec![json_answer(&json!({ "error": { "message": key } }))]).await;
    let upstream = server.upstream(|section| {
        section.key_env = Some("PATH".to_owned());
        section.dialect = Dialect::Messages;
    });
    let told = heard(&upstream, &ask(false), Dialect::Chat).await.expect_err("no answer");
    assert!(!told.to_string().contains(&key), "{told}");
    assert!(
        server.seen()[0].contains(&format!("x-api-key: {key}\r\n")) && server.seen()[0].contains("anthropic-version: ")
    );
}

#[tokio::test]
async fn only_listed_models_are_asked() {
    let server = Server::start(vec![json_answer(&json!({ "data": [] }))]).await;
    let upstream = server.upstream(|_| {});
    let mut other = ask(false);
    other.model = "their-m".to_owned();
    let told = upstream.ask(&other, &body(), Dialect::Chat, &Passed::default()).await.expect_err("unknown");
    assert_eq!((told.status(), told.code(), server.seen().len()), (404, "model_not_found", 0));
    let embedded = upstream.relay_json("/v1/embeddings", &body(), &Passed::default()).await;
    assert_eq!(embedded, Ok(json!({ "data": [] })));
    assert!(server.seen()[0].starts_with("POST /v1/embeddings "));
}

type Change = fn(&mut ProviderSection);

#[test]
fn what_cannot_work_is_found_at_the_start() {
    let section = |change: Change| {
        let mut section: ProviderSection =
            serde_json::from_value(json!({ "url": "https://api.example.com", "models": { "m": "m" } }))
                .expect("a section");
        change(&mut section);
        Upstream::new("p", &section).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(section(|_| {}), Ok(()));
    let cases: [(Change, &str); 6] = [
        (|section| section.url = "api.example.com".to_owned(), "providers.p.url"),
        (|section| section.url = "ftp://api.example.com".to_owned(), "http or https"),
        (|section| section.url = "https://user:key@api.example.com".to_owned(), "without user"),
        (|section| section.url = "https://api.example.com/?key=k".to_owned(), "without user"),
        (|section| section.key_env = Some("REEF_NO_SUCH_VARIABLE".to_owned()), "REEF_NO_SUCH_VARIABLE"),
        (|section| drop(section.headers.insert("a b".to_owned(), "c".to_owned())), "headers.a b"),
    ];
    for (change, reason) in cases {
        let told = section(change).expect_err(reason);
        assert!(told.contains(reason), "{told}");
    }
}

#[tokio::test]
async fn an_address_may_hold_the_beginning_of_the_path() {
    for (more, path) in
        [("", "/v1/chat/completions"), ("/", "/v1/chat/completions"), ("/api/v1/", "/api/v1/chat/completions")]
    {
        let server = Server::start(vec![json_answer(&chat("a"))]).await;
        let upstream = server.upstream(|section| section.url.push_str(more));
        heard(&upstream, &ask(false), Dialect::Chat).await.expect("an answer");
        assert!(server.seen()[0].starts_with(&format!("POST {path} ")), "{}", server.seen()[0]);
    }
}
