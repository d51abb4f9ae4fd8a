//! `/reef/harness…` and `/reef/train`: every route, what it refuses, and by which field.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Caller, shared};

/// A rule that says this.
pub fn rule(id: &str, text: &str) -> Value {
    json!([{ "op": "put", "kind": "rules", "id": id, "config": { "text": text } }])
}

/// The harness that clients install now.
pub async fn served(caller: &Caller) -> Value {
    caller.get("/reef/harness").await.ok().body
}

/// Proposes a change of the served harness and gives the answer.
pub async fn propose(caller: &Caller, mutations: Value) -> Value {
    let body = json!({ "mutations": mutations, "reason": "short answers scored better", "session": "s-1" });
    caller.post("/reef/harness/proposals", body).await.ok().body
}

/// Proposes a rule and promotes it; the release that is served then.
pub async fn adopt(caller: &Caller, id: &str, text: &str) -> String {
    let proposal = propose(caller, rule(id, text)).await;
    assert_eq!(proposal["admitted"], true, "{proposal}");
    let body = json!({ "release_id": proposal["release_id"] });
    let promoted = caller.post(&caller.path("/promote"), body).await.ok().body;
    promoted["release_id"].as_str().expect("an id").to_owned()
}

async fn scenario() -> Caller {
    let caller = shared();
    caller.create(json!({})).await;
    caller
}

async fn refused(caller: &Caller, path: &str, body: Value) -> (StatusCode, String) {
    let answer = caller.post(path, body).await;
    (answer.status, answer.body["error"]["param"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn the_first_read_makes_the_empty_harness_and_every_later_one_reads_it() {
    let caller = scenario().await;
    assert_eq!(caller.releases().await.len(), 1, "nobody has asked for a harness yet");
    let answers = futures::future::join_all((0..4).map(|_| served(&caller))).await;
    let first = &answers[0];
    assert!(answers.iter().all(|answer| answer == first), "one release for all");
    assert_eq!((&first["files"], &first["requires"], &first["evaluation"]), (&json!({}), &json!([]), &Value::Null));
    assert_eq!((&first["parent_release_id"], &first["sequence"]), (&Value::Null, &json!(0)));
    assert_eq!(first["artifact_version"], first["release_id"], "the published client's word for it");
    let head = caller.send(caller.request(Method::HEAD, "/reef/harness")).await;
    assert_eq!((head.status, json!(head.release())), (StatusCode::OK, first["release_id"].clone()));
    let both = caller.releases().await;
    let of = |surface: &str| both.iter().filter(|row| row["surface"] == surface).collect::<Vec<_>>();
    assert_eq!((of("weights").len(), of("harness").len()), (1, 1));
    assert_eq!((&of("weights")[0]["status"], &of("harness")[0]["status"]), (&json!("served"), &json!("served")));
    assert_eq!(caller.status().await["harness"]["release_id"], first["release_id"]);
}

#[tokio::test]
async fn a_scenario_or_release_that_is_not_there_is_404() {
    let ghost = shared();
    for path in [
        "/reef/harness",
        "/reef/harness/releases",
        "/reef/harness/versions",
        "/reef/harness/releases/0/page",
        "/reef/harness/install?adapter=pi",
        "/reef/harness/requests/r-1/progress",
    ] {
        let answer = ghost.get(path).await;
        assert_eq!(
            (answer.status, &answer.body["error"]["code"]),
            (StatusCode::NOT_FOUND, &json!("not_found")),
            "{path}"
        );
    }
    assert_eq!(refused(&ghost, "/reef/train", json!({ "text": "x" })).await.0, StatusCode::NOT_FOUND);
    assert_eq!(ghost.get(&ghost.path("")).await.status, StatusCode::NOT_FOUND, "reading creates nothing");

    let caller = scenario().await;
    let weights = caller.releases().await[0]["release_id"].as_str().expect("an id").to_owned();
    for id in ["0".repeat(40), weights] {
        for path in ["/reef/harness?", "/reef/harness?version=x&", "/reef/harness/install?adapter=pi&"] {
            let answer = caller.get(&format!("{path}release_id={id}")).await;
            assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}{id}: {}", answer.body);
        }
        let page = caller.get(&format!("/reef/harness/releases/{id}/page")).await;
        assert_eq!(page.status, StatusCode::NOT_FOUND);
    }
    assert_eq!(caller.get("/reef/harness?release_id=short").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(caller.get("/reef/harness/releases/7/page").await.status, StatusCode::NOT_FOUND);
    assert_eq!(caller.get("/reef/harness/releases/abc/page").await.body["error"]["param"], "step");
    assert_eq!(caller.get("/reef/harness/requests/r-1/progress").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_proposal_waits_is_promoted_and_the_chain_tells_both() {
    let caller = scenario().await;
    let empty = served(&caller).await;
    let proposal = propose(&caller, rule("style", "Be brief.\n")).await;
    assert_eq!(proposal["admitted"], true, "{proposal}");
    assert_eq!(served(&caller).await, empty, "what waits is not served");
    let again = propose(&caller, rule("style", "Be brief.\n")).await;
    assert_eq!(again, proposal, "the same content is the same proposal");

    let waiting = caller.get(&format!("/reef/harness?release_id={}", proposal["release_id"].as_str().unwrap())).await;
    let waiting = waiting.ok().body;
    assert_eq!((&waiting["status"], &waiting["parent_release_id"]), (&json!("held"), &empty["release_id"]));
    assert_eq!(waiting["files"], json!({ "rules/style/text.md": "Be brief.\n" }));
    let id = proposal["proposal_id"].as_str().expect("an id");
    let progress = |id: &str| format!("/reef/harness/requests/{id}/progress");
    assert_eq!(caller.get(&progress(id)).await.ok().body["state"], "held");
    let early = format!("/reef/harness/install?adapter=pi&release_id={}", proposal["release_id"].as_str().unwrap());
    assert_eq!(caller.get(&early).await.status, StatusCode::CONFLICT, "nobody accepted it yet");

    let promoted =
        caller.post(&caller.path("/promote"), json!({ "release_id": proposal["release_id"] })).await.ok().body;
    assert_eq!(promoted["origin"], json!({ "kind": "acceptance", "of": proposal["release_id"] }));
    let now = served(&caller).await;
    assert_eq!((&now["release_id"], &now["content_id"]), (&promoted["release_id"], &waiting["content_id"]));
    let done = caller.get(&progress(id)).await.ok().body;
    assert_eq!((&done["state"], &done["release_id"]), (&json!("released"), &promoted["release_id"]));
    let releases = caller.get("/reef/harness/releases").await.ok().body["releases"].take();
    let told: Vec<(&str, &str)> = (releases.as_array().unwrap().iter())
        .map(|row| (row["origin"]["kind"].as_str().unwrap(), row["status"].as_str().unwrap()))
        .collect();
    assert_eq!(told, [("base", "retained"), ("proposal", "retained"), ("acceptance", "served")], "oldest first");
    let versions = caller.get("/reef/harness/versions").await.ok().body["versions"].take();
    assert_eq!(versions[2]["artifact_version"], promoted["release_id"]);
    let twice = caller.post(&caller.path("/promote"), json!({ "release_id": proposal["release_id"] })).await;
    assert_eq!(twice.status, StatusCode::CONFLICT);
    assert_eq!(caller.get("/reef/harness/releases/1/page").await.ok().status, StatusCode::OK);
}

#[tokio::test]
async fn of_two_proposals_to_one_release_the_second_must_be_proposed_again() {
    let caller = scenario().await;
    let first = propose(&caller, rule("a", "Be brief.\n")).await;
    let second = propose(&caller, rule("b", "Be kind.\n")).await;
    caller.post(&caller.path("/promote"), json!({ "release_id": first["release_id"] })).await.ok();
    let late = caller.post(&caller.path("/promote"), json!({ "release_id": second["release_id"] })).await;
    assert_eq!(late.status, StatusCode::CONFLICT);
    assert!(late.body["error"]["message"].as_str().unwrap().contains("propose its change again"), "{}", late.body);
    let base = caller.get("/reef/harness/releases").await.ok().body["releases"][0]["release_id"].clone();
    let stale = json!({ "mutations": rule("c", "Be exact.\n"), "reason": "x", "release_id": base });
    assert_eq!(caller.post("/reef/harness/proposals", stale).await.status, StatusCode::CONFLICT);
    let again = propose(&caller, rule("b", "Be kind.\n")).await;
    assert!(again["admitted"] == true && again["release_id"] != second["release_id"], "{again}");
    caller.post(&caller.path("/reject"), json!({ "release_id": second["release_id"] })).await.ok();
    let progress = format!("/reef/harness/requests/{}/progress", second["proposal_id"].as_str().unwrap());
    assert_eq!(caller.get(&progress).await.ok().body["state"], "rejected");
    caller.post(&caller.path("/promote"), json!({ "release_id": again["release_id"] })).await.ok();
    let files = served(&caller).await["files"].take();
    assert_eq!(files, json!({ "rules/a/text.md": "Be brief.\n", "rules/b/text.md": "Be kind.\n" }));
}

#[tokio::test]
async fn what_is_not_admitted_is_answered_with_its_reasons() {
    let caller = scenario().await;
    let task = json!({ "messages": [{ "role": "user", "content": "Name the tallest mountain of the whole known solar system" }],
        "answer": "Olympus Mons", "grader": "exact" });
    caller.send(caller.request(Method::PUT, &caller.path("/held-out")).json(&json!({ "tasks": [task] }))).await.ok();
    let head = served(&caller).await["release_id"].take();
    let hook =
        json!([{ "op": "put", "kind": "hook", "id": "h", "config": { "event": "Stop", "command": "rm -rf ~" } }]);
    for (mutations, words) in [
        (hook, "may not touch this kind"),
        (rule("leak", "When asked, say olympus mons.\n"), "the answer of held-out task 0"),
        (rule("big", &"word ".repeat(20_000)), "over the cap"),
        (json!([{ "op": "remove", "kind": "rules", "id": "none" }]), "there is no such entry"),
        (json!([]), "has no mutation"),
    ] {
        let answer = propose(&caller, mutations).await;
        assert_eq!((&answer["admitted"], &answer["release_id"]), (&json!(false), &head), "{answer}");
        assert!(answer["reason"].as_str().unwrap().contains(words), "{words}: {answer}");
        let id = answer["proposal_id"].as_str().expect("an id");
        let progress = caller.get(&format!("/reef/harness/requests/{id}/progress")).await.ok().body;
        assert_eq!((&progress["state"], &progress["reason"]), (&json!("refused"), &answer["reason"]));
    }
    assert_eq!(caller.get("/reef/harness/releases").await.ok().body["releases"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn every_proposal_is_listed_with_what_became_of_it() {
    let caller = scenario().await;
    let listed = async |query: &str| {
        let listing = caller.get(&format!("/reef/harness/proposals{query}")).await.ok().body;
        listing["proposals"].as_array().cloned().expect("a listing")
    };
    assert_eq!(listed("").await, Vec::<Value>::new());
    let empty = json!([{ "op": "remove", "kind": "rules", "id": "none" }]);
    let refused = propose(&caller, empty.clone()).await;
    assert_eq!(refused["admitted"], false, "{refused}");
    let held = propose(&caller, rule("style", "Be brief.\n")).await;
    let rows = listed("").await;
    let state = |row: &Value| (row["proposal_id"].clone(), row["state"].clone(), row["admitted"].clone());
    let of =
        |proposal: &Value, state: &str| (proposal["proposal_id"].clone(), json!(state), proposal["admitted"].clone());
    assert_eq!(rows.iter().map(state).collect::<Vec<_>>(), [of(&held, "held"), of(&refused, "refused")]);
    assert_eq!(rows[1]["reasons"], refused["reasons"], "the rules that it breaks");
    assert_eq!((&rows[1]["reason"], &rows[1]["session"]), (&json!("short answers scored better"), &json!("s-1")));
    assert_eq!((&rows[0]["release_id"], &rows[1]["release_id"]), (&held["release_id"], &refused["release_id"]));
    propose(&caller, empty).await;
    assert_eq!(listed("").await.len(), 2, "the same again is the same");
    assert_eq!(listed("?limit=1").await.len(), 1);
    caller.post(&caller.path("/promote"), json!({ "release_id": held["release_id"] })).await.ok();
    assert!(listed("").await.iter().any(|row| state(row) == of(&held, "released")));
    caller.post(&caller.path("/erase"), json!({ "session": "s-1" })).await.ok();
    let rows = listed("").await;
    assert_eq!((rows.len(), &rows[0]["session"], &rows[0]["reason"]), (1, &Value::Null, &json!("erased")));
}

#[tokio::test]
async fn bad_bodies_are_refused_by_field() {
    let caller = scenario().await;
    let good = || json!({ "mutations": rule("a", "b\n"), "reason": "because" });
    let with = |field: &str, value: Value| {
        let mut body = good();
        body[field] = value;
        body
    };
    for (body, field) in [
        (with("mutations", json!({})), "mutations"),
        (with("mutations", Value::Null), "mutations"),
        (with("mutations", json!([{ "op": "explode" }])), "mutations"),
        (with("mutations", json!([{ "op": "remove", "kind": "rules", "id": "../x" }])), "mutations"),
        (with("mutations", json!(vec![rule("a", "b")[0].clone(); 257])), "mutations"),
        (with("reason", Value::Null), "reason"),
        (with("reason", json!(" ")), "reason"),
        (with("reason", json!("x".repeat(4_097))), "reason"),
        (with("session", json!(7)), "session"),
        (with("session", json!("s".repeat(513))), "session"),
        (with("release_id", json!("short")), "release_id"),
        (with("request", json!("no such")), "request"),
        (with("request", json!("no-such")), "request"),
        (with("resaon", json!("x")), "resaon"),
    ] {
        let told = refused(&caller, "/reef/harness/proposals", body.clone()).await;
        assert_eq!(
            told,
            (StatusCode::BAD_REQUEST, field.to_owned()),
            "{}",
            &body.to_string()[..80.min(body.to_string().len())]
        );
    }
    let unknown = with("release_id", json!("0".repeat(40)));
    assert_eq!(refused(&caller, "/reef/harness/proposals", unknown).await.0, StatusCode::NOT_FOUND);
    for (body, field) in [
        (json!({}), "text"),
        (json!({ "text": "x", "release_id": 7 }), "release_id"),
        (json!({ "text": "x", "requires": [{ "kind": "env", "name": "A B" }] }), "requires[0]"),
        (json!({ "text": "x", "requires": [{ "kind": "moon", "name": "A" }] }), "requires[0]"),
        (json!({ "text": "x".repeat(70_000) }), "text"),
    ] {
        assert_eq!(refused(&caller, "/reef/train", body).await, (StatusCode::BAD_REQUEST, field.to_owned()));
    }
    for (query, field) in [("", "adapter"), ("adapter=none", "adapter"), ("adapter=pi&version=x", "version")] {
        let answer = caller.get(&format!("/reef/harness/install?{query}")).await;
        assert_eq!(
            (answer.status, &answer.body["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!(field)),
            "{query}"
        );
    }
    let old = caller.get("/reef/harness/install?adapter=pi&version=0.1.0").await;
    assert_eq!((old.status, &old.body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("version")));
}

#[tokio::test]
async fn an_instruction_is_kept_and_its_progress_follows_the_proposal_that_answers_it() {
    let caller = scenario().await;
    let head = served(&caller).await["release_id"].take();
    let needs = json!([{ "kind": "env", "name": "SEARCH_KEY", "reason": "for the search" }]);
    // In the shape of a token; nobody's.
    let secret = ["ghp", "_16C7e42F292c6912E7710c838347Ae178B4a"].concat();
    let body = json!({ "text": format!("answer in one line, my key is {secret}"), "session": "s-9",
        "release_id": head, "requires": needs, "agent_record_id": "ask-1" });
    let filed = caller.post("/reef/train", body.clone()).await.ok().body;
    assert_eq!(
        filed,
        json!({ "agent_record_id": "ask-1", "scenario": caller.scenario, "request_type": "instruction" })
    );
    assert_eq!(caller.post("/reef/train", body).await.ok().body, filed, "filed once");
    let other = json!({ "text": "something else", "agent_record_id": "ask-1" });
    assert_eq!(caller.post("/reef/train", other).await.status, StatusCode::CONFLICT);
    let kept = caller.get(&caller.path("/records?request_type=instruction")).await.ok().body["records"].take();
    assert_eq!((kept.as_array().unwrap().len(), &kept[0]["record"]["id"]), (1, &json!("ask-1")));
    assert!(!kept.to_string().contains(&secret), "a secret is not stored: {kept}");

    let progress = || async { caller.get("/reef/harness/requests/ask-1/progress").await.ok().body };
    assert_eq!(progress().await["state"], "waiting");
    let answer =
        json!({ "mutations": rule("line", "Answer in one line.\n"), "reason": "asked for", "request": "ask-1" });
    let proposal = caller.post("/reef/harness/proposals", answer).await.ok().body;
    assert_eq!(progress().await["state"], "held");
    caller.post(&caller.path("/promote"), json!({ "release_id": proposal["release_id"] })).await.ok();
    let done = progress().await;
    let now = served(&caller).await;
    assert_eq!((&done["state"], &done["release_id"]), (&json!("released"), &now["release_id"]));
    assert_eq!(now["requires"], needs, "the release needs what was asked for with it");
    let script = caller.get("/reef/harness/install?adapter=pi").await.ok();
    assert!(script.body.as_str().unwrap().contains("SEARCH_KEY"));
}

#[tokio::test]
async fn a_page_holds_no_script_and_shows_what_changed() {
    let caller = scenario().await;
    adopt(&caller, "style", "Be brief.\n").await;
    let hostile = "<script>alert(1)</script>";
    let body = json!({ "mutations": rule("style", &format!("{hostile}\nBe exact.\n")), "reason": hostile, "session": hostile });
    let proposal = caller.post("/reef/harness/proposals", body).await.ok().body;
    assert_eq!(proposal["admitted"], true, "{proposal}");
    let path = format!("/reef/harness/releases/{}/page", proposal["release_id"].as_str().unwrap());
    let page = caller.get(&path).await.ok();
    assert!(page.header("content-security-policy").contains("default-src 'none'"));
    let html = page.body.as_str().expect("HTML");
    assert!(!html.contains("<script") && html.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{html}");
    for part in [
        "<h2>Why</h2>",
        "<h2>What changed</h2>",
        "<h2>Verdict</h2>",
        "<h2>Setup</h2>",
        "<h2>Chain, newest first</h2>",
        "<del>-Be brief.</del>",
        "<ins>+Be exact.</ins>",
        "rules/style/text.md",
        "<strong>held</strong>",
        "reef/harness/install?adapter=NAME",
    ] {
        assert!(html.contains(part), "{part} in {html}");
    }
    for word in ["src=", "http://", "https://", "<link"] {
        assert!(!html.contains(word), "the page loads nothing: {word}");
    }
}

#[tokio::test]
async fn the_script_names_the_address_that_the_client_used_and_no_token() {
    let caller = scenario().await;
    let ask = |headers: &[(&str, &str)]| {
        let mut request = caller.request(Method::GET, "/reef/harness/install?adapter=claude");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        caller.send(request.bearer_auth("a-token-of-the-client"))
    };
    let own = ask(&[]).await.ok();
    assert!(own.header("content-type").starts_with("text/x-shellscript"));
    let script = own.body.as_str().expect("a script");
    assert!(script.starts_with("#!/bin/sh\n") && script.contains(&format!("'{}'", caller.url)), "{script}");
    assert!(!script.contains("a-token-of-the-client") && script.contains("REEF_TOKEN"));
    let proxied = ask(&[("x-forwarded-proto", "https"), ("x-forwarded-host", "reef.example.org")]).await.ok();
    assert!(proxied.body.as_str().unwrap().contains("'https://reef.example.org'"));
    for (name, value, param) in [
        ("x-forwarded-proto", "javascript", "x-forwarded-proto"),
        ("x-forwarded-host", "a';touch pwned;'", "url"),
        ("x-forwarded-host", "a b", "url"),
    ] {
        let answer = ask(&[(name, value)]).await;
        assert_eq!(
            (answer.status, &answer.body["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!(param)),
            "{value}"
        );
    }
}

#[tokio::test]
async fn every_adapter_is_listed_and_installs() {
    let caller = scenario().await;
    adopt(&caller, "style", "Be brief.\n").await;
    let listed = caller.get("/reef/harness/adapters").await.ok().body["adapters"].take();
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"pi") && names.contains(&"claude") && names.contains(&"codex"), "{names:?}");
    for name in names {
        let script = caller.get(&format!("/reef/harness/install?adapter={name}")).await.ok();
        assert!(script.body.as_str().is_some_and(|script| script.contains("Be brief.")), "{name}");
    }
    let pi = listed.as_array().unwrap().iter().find(|row| row["name"] == "pi").unwrap();
    assert!(pi["takes"].as_array().unwrap().contains(&json!("skill")) && pi["cannot"]["hook"].is_string(), "{pi}");
}

#[tokio::test]
async fn a_harness_release_serves_no_weights() {
    let caller = scenario().await;
    let harness = adopt(&caller, "style", "Be brief.\n").await;
    let pinned = caller.request(Method::POST, "/v1/chat/completions").header("x-reef-release-id", &harness).json(
        &json!({ "model": crate::support::MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 1 }),
    );
    assert_eq!(caller.send(pinned).await.status, StatusCode::NOT_FOUND);
    assert_eq!(caller.chat("hi", json!({ "model": harness, "max_tokens": 1 })).await.status, StatusCode::NOT_FOUND);
    for (action, status) in [("/pin", StatusCode::NOT_FOUND), ("/canary", StatusCode::CONFLICT)] {
        let body = json!({ "release_id": harness, "percent": 10 });
        let body = if action == "/pin" { json!({ "release_id": harness }) } else { body };
        let answer = caller.post(&caller.path(action), body).await;
        assert_eq!(answer.status, status, "{action}: {}", answer.body);
    }
    let shown = caller.get(&caller.path(&format!("/releases/{harness}"))).await.ok().body;
    assert_eq!(shown["page"], format!("/reef/harness/releases/{harness}/page"));
    assert_eq!(shown["release"]["surface"], "harness");
}

#[tokio::test]
async fn a_report_may_name_a_session() {
    let caller = scenario().await;
    for _ in 0..2 {
        let request = caller.request(Method::POST, "/v1/chat/completions").header("x-reef-tag-session", "talk-1");
        let body = json!({ "model": crate::support::MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 1 });
        caller.send(request.json(&body)).await.ok();
    }
    let report = caller.post("/reef/report", json!({ "score": 1, "session": "talk-1" })).await.ok().body;
    let kept = caller.get(&caller.path(&format!("/records/{}", report["agent_record_id"].as_str().unwrap()))).await;
    assert_eq!(kept.ok().body["record"]["references"].as_array().unwrap().len(), 2);
    let none = caller.post("/reef/report", json!({ "score": 1, "session": "talk-2" })).await;
    assert_eq!(none.status, StatusCode::NOT_FOUND);
    let both = json!({ "score": 1, "session": "talk-1", "references": ["r-1"] });
    assert_eq!(refused(&caller, "/reef/report", both).await, (StatusCode::BAD_REQUEST, "session".to_owned()));
}
