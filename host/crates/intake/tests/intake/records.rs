//! Records and reports: nothing of a secret is left anywhere, and tokens that spell one are not kept.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use reef_core::{
    Alternatives, Inference, RecordId, RecordStatus, ReleaseId, ReleaseSpan, Report, Sampling, Tag, TokenTrace,
};
use reef_intake::{REDACTED_TAG, text_bytes};
use serde_json::{Value, json};

use super::secrets::{redactor, tokens};

fn record(request: Value, response: Value) -> Inference {
    Inference {
        id: RecordId::fresh(),
        created_at_ms: 1,
        path: "/v1/chat/completions".to_owned(),
        status: RecordStatus::Complete,
        capture: true,
        session: Some("s1".to_owned()),
        tags: BTreeMap::new(),
        traceparent: None,
        request,
        response,
        tokens: Some(TokenTrace {
            prompt: vec![1, 2],
            output: vec![3],
            logprobs: vec![-0.5],
            spans: vec![ReleaseSpan {
                start: 0,
                release: ReleaseId::parse("a".repeat(40)).expect("valid"),
                sequence: 0,
            }],
            sampling: Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, seed: 1 },
            alternatives: Alternatives::NONE,
        }),
    }
}

fn said(text: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": "hi" }, { "role": "tool", "tool_call_id": "c", "content": text }] })
}

/// An answer and its tokens, of four characters each.
fn answered(text: &str) -> Value {
    let letters: Vec<char> = text.chars().collect();
    let token = |piece: &[char]| json!({ "token": piece.iter().collect::<String>(), "logprob": -0.5, "bytes": [1] });
    let tokens: Vec<Value> = letters.chunks(4).map(token).collect();
    json!({ "choices": [{ "index": 0, "message": { "role": "assistant", "content": text }, "token_ids": [3],
        "logprobs": { "content": tokens } }], "prompt_token_ids": [1, 2], "complete": true })
}

#[test]
fn a_record_without_secrets_stays_as_it_is() {
    let mut clean = record(said("total 8\ndrwxr-xr-x 2 root root"), answered("two files"));
    let before = clean.clone();
    assert!(redactor().redact_inference(&mut clean).is_empty());
    assert_eq!(clean, before);
}

#[test]
fn a_secret_in_request_or_answer_takes_the_tokens_along() {
    let redactor = redactor();
    let (kind, key) = tokens(21).remove(0);
    let dump = format!("$ env\nHOME=/root\nANTHROPIC_API_KEY={key}\n");
    for (mut kept, in_request) in
        [(record(said(&dump), answered("done")), true), (record(said("hi"), answered(&format!("it is {key}"))), false)]
    {
        let found = redactor.redact_inference(&mut kept);
        assert_eq!((found.request.is_empty(), found.response.is_empty()), (!in_request, in_request));
        assert!(found.in_tokens() && kept.tokens.is_none());
        let choice = &kept.response["choices"][0];
        assert_eq!(
            (&choice["logprobs"], &choice["token_ids"], &kept.response["prompt_token_ids"]),
            (&Value::Null, &Value::Null, &Value::Null)
        );
        let tag = Tag::parse(REDACTED_TAG).expect("a valid tag");
        assert_eq!(kept.tags.get(&tag).map(String::as_str), Some(format!("{kind} 1").as_str()));
        assert!(!serde_json::to_string(&kept).expect("JSON").contains(&key));
        let once = kept.clone();
        assert!(redactor.redact_inference(&mut kept).is_empty());
        assert_eq!(kept, once);
    }
}

#[test]
fn labels_lose_their_secrets_and_keep_the_tokens() {
    let (_, key) = tokens(22).remove(0);
    let mut kept = record(said("hi"), answered("hello"));
    kept.session = Some(format!("run {key}"));
    kept.tags.insert(Tag::parse("client").expect("valid"), key.clone());
    let found = redactor().redact_inference(&mut kept);
    assert_eq!((found.labels.total(), found.in_tokens()), (2, false));
    let stored = redactor().redact_label(&format!("run {key}")).0.into_owned();
    assert_eq!(kept.session.as_deref(), Some(stored.as_str()), "a selector finds what was stored");
    assert!(kept.tokens.is_some());
    assert!(!serde_json::to_string(&kept).expect("JSON").contains(&key));
}

#[test]
fn redacted_labels_stay_apart_and_stay_as_they_are() {
    let redactor = redactor();
    let plain = ["run 7", "", "auto-0190", "[redacted:jwt]", "[redacted:github-token:0123456789ab]", "Grüße"];
    for label in plain {
        let (stored, counts) = redactor.redact_label(label);
        assert!(matches!(stored, Cow::Borrowed(same) if same == label) && counts.is_empty(), "{label}");
    }
    let stored = redactor.redact_label("Bearer 9f86d081884c7d659a2f").0;
    assert_eq!(stored, "[redacted:authorization:8214e2fb34ef]", "the kind and the SHA-256 of the whole label");
    let mut seen = BTreeSet::new();
    for (kind, key) in tokens(24).into_iter().chain([("named-secret", "DB_PASSWORD=hunter2".to_owned())]) {
        for label in [key.clone(), format!("run {key}"), format!("x\\n{key}")] {
            let (stored, counts) = redactor.redact_label(&label);
            assert!(stored.starts_with(&format!("[redacted:{kind}:")) && !counts.is_empty(), "{stored}");
            assert_eq!(stored.len(), format!("[redacted:{kind}:]").len() + 12);
            assert_eq!(redactor.redact_label(&label).0, stored);
            assert_eq!(redactor.redact_label(&stored).0, stored);
            assert_eq!(redactor.redact_text(&format!("of {stored}: x")).0, format!("of {stored}: x"));
            assert!(seen.insert(stored.into_owned()), "{label}");
        }
    }
}

#[test]
fn an_id_that_holds_a_secret_is_told_by_its_kind() {
    let redactor = redactor();
    for (kind, key) in tokens(25) {
        assert_eq!(redactor.secret_kind(&key), Some(kind));
        assert_eq!(redactor.secret_kind(&format!("rec_{key}")), Some(kind));
    }
    for id in ["r1", "550e8400-e29b-41d4-a716-446655440000", "call_9f86d081884c7d659a2f", "step-12_of-40", ""] {
        assert_eq!(redactor.secret_kind(id), None);
    }
}

#[test]
fn the_same_report_again_is_the_same_report() {
    let redactor = redactor();
    let (_, key) = tokens(23).remove(0);
    let body = json!({ "agent_record_id": "r1", "score": 1, "feedback": { "text": format!("leaked {key}") }, "metadata": { "log": key, "password": "hunter2", "n": 3 } });
    let read = || Report::from_body(body.as_object().expect("an object"), 7).expect("valid");
    let (mut one, mut two) = (read(), read());
    assert_eq!(redactor.redact_report(&mut one).total(), 3);
    redactor.redact_report(&mut two);
    assert!(one.same_content(&two));
    assert_eq!(one.metadata["n"], 3);
    let written = serde_json::to_string(&one).expect("JSON");
    assert!(!written.contains(&key) && !written.contains("hunter2"));
}

#[test]
fn the_bytes_of_a_value_are_those_of_its_texts() {
    assert_eq!(text_bytes(&json!({ "ab": ["cde", 1, null, { "f": "ü" }] })), 2 + 3 + 1 + 2);
}
