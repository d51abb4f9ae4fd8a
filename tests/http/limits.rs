//! What a request may be in size: its body, its headers and its target, each refused in words that the client sees.

use std::io::{Read, Write};
use std::net::TcpStream;

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::support::{MODEL, TestHost, shared};

const CHAT: &str = "/v1/chat/completions";
/// Far more than the buffers of a socket hold: a server that closed early would cut off whoever is still sending.
const LARGE_BYTES: usize = 32 << 20;

#[tokio::test]
async fn a_client_that_sends_all_of_a_body_that_is_too_large_still_reads_why() {
    let host = TestHost::start(|config| config.http.body_bytes_max = 100_000).await;
    let url = host.caller("limits").url.clone();
    for announced in [true, false] {
        let address = url.trim_start_matches("http://").to_owned();
        let answer = tokio::task::spawn_blocking(move || send_large(&address, announced)).await.expect("joined");
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        assert!(answer.contains("body_too_large") && answer.contains("http.body_bytes_max"), "{answer}");
    }
    let _data = host.stop().await;
}

/// Sends first and reads then, as many clients do.
fn send_large(address: &str, announced: bool) -> String {
    let mut connection = TcpStream::connect(address).expect("connected");
    let length =
        if announced { format!("content-length: {LARGE_BYTES}") } else { "transfer-encoding: chunked".to_owned() };
    write!(
        connection,
        "POST {CHAT} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nx-reef-scenario: limits\r\n{length}\r\n\r\n"
    )
    .expect("the head is sent");
    let piece = vec![b' '; 1 << 20];
    for _ in 0..LARGE_BYTES / piece.len() {
        if announced {
            connection.write_all(&piece).expect("the body is taken");
        } else {
            write!(connection, "{:x}\r\n", piece.len()).expect("the body is taken");
            connection.write_all(&piece).expect("the body is taken");
            connection.write_all(b"\r\n").expect("the body is taken");
        }
    }
    if !announced {
        connection.write_all(b"0\r\n\r\n").expect("the end is taken");
    }
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("an answer");
    answer
}

#[tokio::test]
async fn headers_and_targets_that_are_too_large_are_refused_in_the_dialects_shape() {
    let caller = shared();
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "Hi." }], "max_tokens": 2 });
    let request = |path: &str| caller.request(Method::POST, path).json(&body);
    let answer = caller.send(request(CHAT).header("x-filler", "x".repeat(70_000))).await;
    assert_eq!(answer.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(answer.body["error"]["code"], json!("headers_too_large"));
    let long = format!("/v1/messages?x={}", "x".repeat(20_000));
    let answer = caller.send(request(&long)).await;
    assert_eq!((answer.status, &answer.body["type"]), (StatusCode::URI_TOO_LONG, &json!("error")));
    let fits = caller.send(request(CHAT).header("x-filler", "x".repeat(50_000))).await;
    assert_eq!(fits.status, StatusCode::OK);
}

/// What comes until the server closes a connection on which this was sent.
fn heard(address: &str, sent: &[u8]) -> Vec<u8> {
    let mut connection = TcpStream::connect(address).expect("connected");
    connection.write_all(sent).expect("sent");
    let mut answer = Vec::new();
    // A connection that is reset is closed too.
    let _ = connection.read_to_end(&mut answer);
    answer
}

#[tokio::test]
async fn a_connection_that_wants_nothing_is_closed() {
    let host = TestHost::start(|config| config.http.head_seconds_max = 1).await;
    let address = host.url.trim_start_matches("http://").to_owned();
    // The preface of HTTP/2 and empty settings: from then on such a client would only answer pings.
    let settled = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    let sent: [Vec<u8>; 5] = [Vec::new(), b"P".to_vec(), b"PRI * HTTP".to_vec(), b"GET /healthz HT".to_vec(), settled];
    for sent in sent {
        let (address, shown) = (address.clone(), String::from_utf8_lossy(&sent).into_owned());
        let closed = tokio::task::spawn_blocking(move || heard(&address, &sent));
        let closed = tokio::time::timeout(std::time::Duration::from_secs(120), closed).await;
        closed.unwrap_or_else(|_| panic!("still open after {shown:?}")).expect("joined");
    }
    let caller = host.caller("idle");
    assert_eq!(caller.get("/healthz").await.status, StatusCode::OK);
    host.stop().await;
}

#[tokio::test]
async fn what_names_the_workload_is_said_once() {
    let caller = shared();
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "Hi." }], "max_tokens": 2 });
    let answer = caller.send(caller.request(Method::POST, CHAT).header("x-reef-scenario", "another").json(&body)).await;
    assert_eq!((answer.status, &answer.body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("x-reef-scenario")));
}

#[tokio::test]
async fn what_no_retry_could_cure_is_a_400_that_names_the_field() {
    let caller = shared();
    let chat = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "Hi." }] });
    for (path, change, param, code) in [
        (CHAT, json!({ "logit_bias": { "999999": 1 } }), "logit_bias", "invalid_request"),
        (CHAT, json!({ "max_tokens": 1_000_000 }), "max_tokens", "context_length_exceeded"),
        ("/v1/completions", json!({ "messages": null, "prompt": [999_999] }), "prompt", "invalid_request"),
        (
            "/v1/completions",
            json!({ "messages": null, "prompt": "word ".repeat(2_000_000) }),
            "prompt",
            "context_length_exceeded",
        ),
    ] {
        let mut body = chat.clone();
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let answer = caller.post(path, body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{param}: {}", answer.body);
        assert_eq!((&answer.body["error"]["param"], &answer.body["error"]["code"]), (&json!(param), &json!(code)));
    }
}

#[tokio::test]
async fn a_completion_whose_length_nobody_named_is_short() {
    let answer =
        shared().post("/v1/completions", json!({ "model": MODEL, "prompt": "Once", "temperature": 0 })).await.ok();
    assert_eq!(answer.body["usage"]["completion_tokens"], 16, "{}", answer.body);
}

#[tokio::test]
async fn tokens_are_counted_also_where_they_do_not_fit() {
    let caller = shared();
    let count = |words: usize| {
        let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "word ".repeat(words) }] });
        let caller = &caller;
        async move { caller.post("/v1/messages/count_tokens", body).await.ok().body["input_tokens"].as_u64().unwrap() }
    };
    let (fits, not) = (count(100).await, count(20_000).await);
    assert!((100..200).contains(&fits) && (20_000..20_100).contains(&not), "{fits} {not}");
    // Of a text of megabytes the beginning is counted.
    let large = count(400_000).await;
    assert!((396_000..404_000).contains(&large), "{large}");
}
