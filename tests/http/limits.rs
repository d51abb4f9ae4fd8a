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
