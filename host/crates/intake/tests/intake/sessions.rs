//! Sessions by name, and sessions by what is said: each conversation keeps its own, however many begin alike.

use std::collections::HashMap;

use proptest::prelude::*;
use reef_core::{ScenarioName, TenantId};
use reef_intake::{Answer, IndexLimits, Placed, SessionIndex, SessionSource, Transcript, named_session};
use serde_json::{Value, json};

fn owner(tenant: &str, scenario: &str) -> (TenantId, ScenarioName) {
    (TenantId::parse(tenant).expect("valid"), ScenarioName::parse(scenario).expect("valid"))
}

fn said(body: &Value) -> Transcript {
    Transcript::of(body.as_object().expect("an object")).expect("somebody says something")
}

fn chat(turns: &[(&str, &str)]) -> Value {
    let turns: Vec<Value> = turns.iter().map(|(role, text)| json!({ "role": role, "content": text })).collect();
    json!({ "messages": turns })
}

fn answer(text: &str) -> Answer {
    Answer::of(&json!({ "choices": [{ "message": { "role": "assistant", "content": text } }] })).expect("an answer")
}

struct Server {
    index: SessionIndex,
    owner: (TenantId, ScenarioName),
    receipts: u32,
}

impl Server {
    fn new() -> Self {
        Self { index: SessionIndex::new(IndexLimits::default()), owner: owner("t", "s"), receipts: 0 }
    }

    fn place(&mut self, body: &Value) -> Placed {
        self.receipts += 1;
        self.index.place((&self.owner.0, &self.owner.1), &said(body), &format!("r{}", self.receipts))
    }

    fn answered(&mut self, placed: &Placed, answer: Answer) {
        self.index.answered((&self.owner.0, &self.owner.1), placed, answer);
    }
}

#[test]
fn names_come_in_their_order() {
    let all =
        [("session_id", "b"), ("x-session-id", "c"), ("x-claude-code-session-id", "a"), ("x-session-affinity", "d")];
    let named = |tag: Option<&'static str>, from: usize, key: Option<&'static str>| {
        let headers: HashMap<_, _> =
            all.into_iter().filter(|(_, value)| *value >= ["a", "b", "c", "d", "e"][from]).collect();
        named_session(tag, |name| headers.get(name).copied(), key)
    };
    assert_eq!(named(Some("own"), 0, None), Some(("own", SessionSource::Tag)));
    assert_eq!(named(Some(" "), 0, None), Some(("a", SessionSource::Header)));
    assert_eq!(named(None, 1, None), Some(("b", SessionSource::Header)));
    assert_eq!(named(None, 2, None), Some(("c", SessionSource::Header)));
    assert_eq!(named(None, 3, None), Some(("d", SessionSource::Header)));
    let uuid = "019a0000-0000-7000-8000-00000000abcd";
    assert_eq!(named(None, 4, Some(uuid)), Some((uuid, SessionSource::CacheKey)));
    assert_eq!(named(None, 4, Some("my-app-v1")), None, "a whole application may use one cache key");
}

#[test]
fn a_request_goes_on_with_the_session_that_it_extends() {
    let mut server = Server::new();
    let first = server.place(&chat(&[("system", "be brief; it is 9:00"), ("user", "hi")]));
    assert_eq!((first.source, &*first.session), (SessionSource::New, "auto-r1"));
    server.answered(&first, answer("hello"));
    let second = server.place(&chat(&[
        ("system", "be brief; it is 9:01"),
        ("user", "hi"),
        ("assistant", " hello\n"),
        ("user", "bye"),
    ]));
    assert_eq!((second.source, &second.session), (SessionSource::Extends, &first.session));
    server.answered(&second, answer("see you"));
    let third = server.place(&chat(&[
        ("user", "hi"),
        ("assistant", "hello"),
        ("user", "bye"),
        ("assistant", "see you"),
        ("user", "?"),
    ]));
    assert_eq!(third.session, first.session);
    let other = server.place(&chat(&[("user", "hi"), ("assistant", "go away"), ("user", "bye")]));
    assert_eq!(other.source, SessionSource::New, "another answer was given there");
}

#[test]
fn a_retry_stays_in_its_session() {
    let mut server = Server::new();
    let first = server.place(&chat(&[("user", "hi")]));
    server.answered(&first, answer("hello"));
    let more = chat(&[("user", "hi"), ("assistant", "hello"), ("user", "bye")]);
    let sessions: Vec<_> = (0..3).map(|_| server.place(&more).session).collect();
    assert!(sessions.iter().all(|session| *session == first.session));
}

#[test]
fn a_request_whose_answer_is_not_known_is_still_extended_if_it_is_the_only_one() {
    let mut server = Server::new();
    let first = server.place(&chat(&[("user", "hi")]));
    let more = chat(&[("user", "hi"), ("assistant", "half an ans"), ("user", "go on")]);
    assert_eq!(server.place(&more).session, first.session);
    let mut server = Server::new();
    server.place(&chat(&[("user", "hi")]));
    server.place(&chat(&[("user", "hi")]));
    assert_eq!(server.place(&more).source, SessionSource::New, "it could be either");
}

#[test]
fn the_same_conversation_in_every_dialect_keeps_its_session() {
    let arguments = json!({ "cmd": "ls", "a": 1 });
    let chat = [
        json!({ "messages": [{ "role": "user", "content": "list" }] }),
        json!({ "choices": [{ "message": { "role": "assistant", "content": "Sure.", "reasoning_content": "hm", "tool_calls": [{ "id": "c1", "type": "function", "function": { "name": "sh", "arguments": "{\"cmd\": \"ls\", \"a\": 1}" } }] } }] }),
        json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "list" }] }, { "role": "assistant", "content": "Sure.", "tool_calls": [{ "id": "c1", "type": "function", "function": { "name": "sh", "arguments": "{\"a\":1,\"cmd\":\"ls\"}" } }] }, { "role": "tool", "tool_call_id": "c1", "content": "x" }] }),
    ];
    let messages = [
        json!({ "system": "s", "messages": [{ "role": "user", "content": [{ "type": "text", "text": "list", "cache_control": { "type": "ephemeral" } }] }] }),
        json!({ "type": "message", "role": "assistant", "content": [{ "type": "thinking", "thinking": "hm", "signature": "s" }, { "type": "text", "text": "Sure." }, { "type": "tool_use", "id": "c1", "name": "sh", "input": arguments }] }),
        json!({ "system": "s", "messages": [{ "role": "user", "content": "list" }, { "role": "assistant", "content": [{ "type": "text", "text": "Sure." }, { "type": "tool_use", "id": "c1", "name": "sh", "input": arguments, "cache_control": {} }] }, { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "c1", "content": "x" }] }] }),
    ];
    let responses = [
        json!({ "instructions": "s", "input": "list" }),
        json!({ "output": [{ "type": "reasoning", "id": "rs", "summary": [] }, { "type": "message", "role": "assistant", "id": "m", "content": [{ "type": "output_text", "text": "Sure." }] }, { "type": "function_call", "id": "f", "call_id": "c1", "name": "sh", "arguments": "{\"cmd\":\"ls\",\"a\":1}", "status": "completed" }] }),
        json!({ "instructions": "s", "input": [{ "role": "user", "content": "list" }, { "type": "reasoning", "id": "rs", "summary": [] }, { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "Sure." }] }, { "type": "function_call", "call_id": "c1", "name": "sh", "arguments": "{\"cmd\":\"ls\",\"a\":1}" }, { "type": "function_call_output", "call_id": "c1", "output": "x" }] }),
    ];
    let known = Answer::of(&chat[1]);
    assert_eq!((Answer::of(&messages[1]), Answer::of(&responses[1])), (known, known));
    for [asked, answered, more] in [chat, messages, responses] {
        let mut server = Server::new();
        let first = server.place(&asked);
        server.answered(&first, Answer::of(&answered).expect("an answer"));
        let other = server.place(&asked);
        server.answered(&other, answer("No."));
        let second = server.place(&more);
        assert_eq!((second.source, &second.session), (SessionSource::Extends, &first.session), "{more}");
    }
}

#[test]
fn tenants_and_scenarios_have_their_own_sessions_and_the_index_stays_within_its_bounds() {
    let limits = IndexLimits { scenarios_max: 2, requests_max: 10, bytes_max: 4096 };
    let mut index = SessionIndex::new(limits);
    let (a, b) = (owner("a", "s"), owner("b", "s"));
    let asked = said(&chat(&[("user", "hi")]));
    let more = said(&chat(&[("user", "hi"), ("assistant", "hello"), ("user", "bye")]));
    let first = index.place((&a.0, &a.1), &asked, "r1");
    index.answered((&a.0, &a.1), &first, answer("hello"));
    assert_eq!(index.place((&b.0, &b.1), &more, "r2").source, SessionSource::New);
    assert_eq!(index.place((&a.0, &a.1), &more, "r3").session, first.session);
    for n in 0..500 {
        let scenario = owner("a", &format!("s{}", n % 5));
        index.place((&scenario.0, &scenario.1), &said(&chat(&[("user", &n.to_string())])), &"x".repeat(n));
        index.place((&scenario.0, &scenario.1), &asked, "same");
        let (requests, bytes) = index.size();
        assert!(requests <= 2 * (10 + 32) && bytes <= 2 * (4096 + 1024), "{requests} requests, {bytes} bytes");
    }
    assert_eq!(index.place((&a.0, &a.1), &more, "r9").source, SessionSource::New, "forgotten");
}

#[test]
fn bodies_of_any_shape_are_read() {
    for body in [
        json!({}),
        json!({ "messages": [] }),
        json!({ "messages": [{ "role": "system", "content": "s" }] }),
        json!({ "input": 5 }),
    ] {
        assert_eq!(Transcript::of(body.as_object().expect("an object")), None, "{body}");
    }
    for body in [
        json!({ "messages": [1, null, "x", { "role": 5 }] }),
        json!({ "prompt": "x" }),
        json!({ "input": [{ "content": { "a": 1 } }] }),
    ] {
        assert!(Transcript::of(body.as_object().expect("an object")).is_some(), "{body}");
    }
    for response in [
        json!(null),
        json!({ "choices": [] }),
        json!({ "error": "x" }),
        json!({ "choices": [{ "message": { "content": "" } }] }),
    ] {
        assert_eq!(Answer::of(&response), None, "{response}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Conversations that all begin alike, told apart by what they were answered; their requests in any order.
    #[test]
    fn concurrent_conversations_with_equal_starts_never_mix(order in prop::collection::vec(0..5_usize, 1..40)) {
        let mut server = Server::new();
        let mut talks = vec![(Vec::<(String, String)>::new(), None); 5];
        for who in order {
            let (turns, session) = &mut talks[who];
            turns.push(("user".to_owned(), "go on".to_owned()));
            let body: Vec<(&str, &str)> = turns.iter().map(|(role, text)| (role.as_str(), text.as_str())).collect();
            let placed = server.place(&chat(&body));
            let text = format!("answer of {who}");
            server.answered(&placed, answer(&text));
            turns.push(("assistant".to_owned(), text));
            let session: &mut String = session.get_or_insert_with(|| placed.session.to_string());
            prop_assert_eq!(&*placed.session, session.as_str());
        }
        let mut names: Vec<_> = talks.iter().filter_map(|(_, session)| session.clone()).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        prop_assert_eq!(names.len(), all, "each has its own");
    }

    /// Nothing tells these apart; still each continuation takes another session, so that there are as many as there were.
    #[test]
    fn conversations_that_say_the_same_keep_as_many_sessions(count in 1..8_usize, turns in 1..5_usize) {
        let mut server = Server::new();
        let mut body = Vec::new();
        let mut sessions = Vec::new();
        for _ in 0..turns {
            body.push(("user", "same"));
            let placed: Vec<Placed> = (0..count).map(|_| server.place(&chat(&body))).collect();
            placed.iter().for_each(|placed| server.answered(placed, answer("alike")));
            let mut now: Vec<String> = placed.iter().map(|placed| placed.session.to_string()).collect();
            now.sort();
            if sessions.is_empty() { sessions.clone_from(&now); }
            prop_assert_eq!(&now, &sessions);
            body.push(("assistant", "alike"));
        }
    }
}
