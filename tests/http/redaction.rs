//! What reaches the log: records and reports without secrets, sessions of requests that name none, calls beside the
//! conversation.

use serde_json::json;

use super::stored;
use crate::support::{MODEL, TestHost, shared};

/// In the shape of a token; nobody's.
fn token() -> String {
    ["ghp", "_16C7e42F292c6912E7710c838347Ae178B4a"].concat()
}

#[tokio::test]
async fn keys_in_tool_output_reports_and_tags_are_not_stored() {
    let host = TestHost::start(|_| {}).await;
    let (caller, token) = (host.caller("secrets"), token());
    let messages = json!([
        { "role": "user", "content": "list the environment" },
        { "role": "assistant", "content": null, "tool_calls": [{ "id": "c1", "type": "function", "function": { "name": "sh", "arguments": "{\"cmd\":\"env\"}" } }] },
        { "role": "tool", "tool_call_id": "c1", "content": format!("HOME=/root\nGITHUB_TOKEN={token}\nDB_PASSWORD=hunter2zz\n") },
    ]);
    let body = json!({ "model": MODEL, "messages": messages, "max_tokens": 4, "return_token_ids": true });
    let request = caller.request(reqwest::Method::POST, "/v1/chat/completions").json(&body);
    let answer = caller.send(request.header("x-reef-tag-client", &token)).await.ok();
    assert!(answer.body["choices"][0]["token_ids"].is_array(), "the client hears everything: {}", answer.body);
    let record = stored(&caller, &answer.receipt()).await;
    let output = "HOME=/root\nGITHUB_TOKEN=[redacted:github-token]\nDB_PASSWORD=[redacted:named-secret]\n";
    assert_eq!(record["request"]["messages"][2]["content"], output);
    assert_eq!(record["tags"]["redacted"], "github-token 2, named-secret 1");
    assert_eq!((&record["tokens"], &record["response"]["choices"][0]["token_ids"]), (&json!(null), &json!(null)));
    let report = json!({ "score": 1, "references": [answer.receipt()], "feedback": format!("it showed {token}") });
    caller.post("/reef/report", report).await.ok();
    let data = host.stop().await;
    for file in std::fs::read_dir(data.path()).expect("the data folder") {
        let path = file.expect("an entry").path();
        let bytes = if path.is_file() { std::fs::read(&path).expect("readable") } else { Vec::new() };
        for secret in [token.as_bytes(), b"hunter2zz"] {
            assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{} holds a secret", path.display());
        }
    }
}

#[tokio::test]
async fn a_conversation_that_names_no_session_keeps_one() {
    let caller = shared();
    let first = caller.chat("say a word", json!({})).await.ok();
    let other = caller.chat("say another word", json!({})).await.ok();
    let turns = json!([
        { "role": "user", "content": "say a word" },
        { "role": "assistant", "content": first.text() },
        { "role": "user", "content": "and one more" },
    ]);
    let second = caller.chat("", json!({ "messages": turns })).await.ok();
    let asked = &caller;
    let session = |receipt: String| async move { stored(asked, &receipt).await["session"].clone() };
    let (first, other) = (session(first.receipt()).await, session(other.receipt()).await);
    assert!(first.is_string() && other.is_string() && first != other, "{first} {other}");
    assert_eq!(session(second.receipt()).await, first);
}

#[tokio::test]
async fn a_call_beside_the_conversation_is_marked_and_not_captured() {
    let caller = shared();
    let title = json!([
        { "role": "system", "content": "You are a title generator. You output ONLY a thread title. Nothing else." },
        { "role": "user", "content": "fix the tests" },
    ]);
    let record = stored(&caller, &caller.chat("", json!({ "messages": title })).await.ok().receipt()).await;
    assert_eq!((&record["tags"]["kind"], &record["capture"]), (&json!("title"), &json!(false)));
    assert!(record["tags"]["kind-reason"].as_str().is_some_and(|reason| reason.contains("OpenCode")), "{record}");
    let record = stored(&caller, &caller.chat("hi", json!({})).await.ok().receipt()).await;
    assert_eq!((&record["tags"]["kind"], &record["capture"]), (&json!(null), &json!(true)));
}
