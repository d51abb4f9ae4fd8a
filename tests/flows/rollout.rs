//! Releases beside the head: a pin that holds candidates, a shadow that nobody sees, canaries that scores decide.

use serde_json::{Value, json};

use super::learn::{ended, feed, host, quick};
use crate::support::{Answer, Caller, TestHost, poll, sao};

/// One short answer of a session.
async fn answer(caller: &Caller, session: &str) -> Answer {
    let body = json!({
        "model": crate::support::MODEL, "max_tokens": 2, "temperature": 0,
        "messages": [{ "role": "user", "content": "Say one word." }],
    });
    let request = caller.request(reqwest::Method::POST, "/v1/chat/completions").json(&body);
    caller.send(request.header("x-reef-tag-session", session)).await.ok()
}

async fn rollouts(caller: &Caller) -> Value {
    caller.get(&caller.path("/rollouts")).await.ok().body
}

async fn head(caller: &Caller) -> Value {
    caller.status().await["head"].clone()
}

/// Sessions are answered and scored, by the release that answered, until the canary has ended; all answers.
async fn judged(caller: &Caller, prefix: &str, score: impl Fn(&str) -> f64) -> Vec<(String, String)> {
    let mut answers = Vec::new();
    for number in 0..150 {
        let session = format!("{prefix}-{number}");
        let answer = answer(caller, &session).await;
        caller.report(&answer.receipt(), score(&answer.release())).await.ok();
        answers.push((session, answer.release()));
        if number % 10 == 9 {
            // The server looks every second.
            tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
            if rollouts(caller).await["running"].is_null() {
                return answers;
            }
        }
    }
    panic!("the canary did not end: {}", rollouts(caller).await);
}

/// A scenario whose only step found a candidate while the base was pinned.
async fn with_held_candidate(caller: &Caller) -> (String, String) {
    caller.create(json!({ "recipe_config": quick(), "gate": { "kind": "always" } })).await;
    let base = head(caller).await["release_id"].as_str().expect("an id").to_owned();
    let pin = caller.post(&caller.path("/pin"), json!({ "release_id": base })).await.ok().body;
    assert_eq!((&pin["number"], &pin["plan"]["kind"], &pin["release"]), (&json!(1), &json!("pin"), &json!(base)));
    feed(caller, 4).await;
    let step = ended(caller, 1).await.remove(0);
    assert!(
        step["kind"] == "held" && step["reason"].as_str().is_some_and(|told| told.contains("the head stays")),
        "{step}"
    );
    assert_eq!(head(caller).await["release_id"], json!(base), "a pinned head stays");
    let candidate = caller.releases().await[0].clone();
    assert_eq!((&candidate["status"], &candidate["decision"]["by"]["kind"]), (&json!("held"), &json!("host")));
    caller.post(&caller.path("/update"), json!({ "training_mode": "manual" })).await.ok();
    (base, candidate["release_id"].as_str().expect("an id").to_owned())
}

#[tokio::test]
async fn a_candidate_is_held_shadowed_rolled_back_and_promoted_over_a_restart() {
    let server = host().await;
    let caller = server.caller("rollouts");
    let (base, candidate) = with_held_candidate(&caller).await;

    let busy = caller.post(&caller.path("/shadow"), json!({ "release_id": candidate, "percent": 100 })).await;
    assert_eq!((busy.status.as_u16(), &busy.body["error"]["code"]), (409, &json!("conflict")), "a pin runs");
    let stopped = caller.send(caller.request(reqwest::Method::DELETE, &caller.path("/rollout"))).await.ok().body;
    assert_eq!(stopped["end"]["outcome"], "stopped");

    shadowed(&caller, (&base, &candidate)).await;

    let begun = json!({ "release_id": candidate, "percent": 50, "pairs_min": 6 });
    caller.post(&caller.path("/canary"), begun.clone()).await.ok();
    let answers = judged(&caller, "worse", |release| f64::from(u8::from(release == base))).await;
    assert!(answers.iter().any(|(_, release)| *release == candidate) && answers.iter().any(|(_, r)| *r == base));
    let last = rollouts(&caller).await["rollouts"][0].clone();
    assert_eq!(
        (&last["end"]["outcome"], &last["end"]["figures"]["candidate"]["mean"]),
        (&json!("rolled-back"), &json!(0.0)),
        "{last}"
    );
    assert_eq!(head(&caller).await["release_id"], json!(base));

    caller.post(&caller.path("/canary"), begun).await.ok();
    let met = answer(&caller, "faithful").await.release();
    let server = TestHost::start_in(server.stop().await, |config| config.recipe = Some(sao())).await;
    let caller = server.caller("rollouts");
    assert_eq!(answer(&caller, "faithful").await.release(), met, "a session meets one release, over a restart");
    judged(&caller, "better", |release| f64::from(u8::from(release == candidate))).await;
    let promoted = rollouts(&caller).await["rollouts"][0].clone();
    assert_eq!(promoted["end"]["outcome"], "promoted", "{promoted}");
    let releases = caller.releases().await;
    assert_eq!((&releases[0]["status"], &releases[0]["origin"]["kind"]), (&json!("served"), &json!("promotion")));
    assert_eq!(releases[0]["content_id"], releases[1]["content_id"], "it serves what the candidate was");
    assert_eq!(releases[0]["decision"]["by"]["kind"], "gate");
    assert_eq!(json!(answer(&caller, "faithful").await.release()), releases[0]["release_id"]);
    server.stop().await;
}

/// Everybody sees the head; the candidate's answers are records that nothing is trained on.
async fn shadowed(caller: &Caller, (base, candidate): (&str, &str)) {
    caller.post(&caller.path("/shadow"), json!({ "release_id": candidate, "percent": 100 })).await.ok();
    let seen = answer(caller, "seen").await;
    assert_eq!(seen.release(), base);
    let shadow = poll("the shadow's record", || async {
        let page =
            caller.get(&caller.path("/records?after_sequence=0&limit=1000&request_type=inference")).await.ok().body;
        let records = page["records"].as_array().cloned().unwrap_or_default();
        let shadow = records.into_iter().find(|record| record["record"]["tags"]["shadow-of"] == json!(seen.receipt()));
        shadow.ok_or_else(|| page.to_string())
    })
    .await;
    let record = &shadow["record"];
    assert_eq!((&record["capture"], &record["tags"]["kind"]), (&json!(false), &json!("shadow")), "{record}");
    let pending = caller.status().await["pending"].clone();
    caller.report(&seen.receipt(), 0.25).await.ok();
    caller.report(record["id"].as_str().expect("an id"), 0.75).await.ok();
    let figures = rollouts(caller).await["running"]["figures"].clone();
    assert_eq!((&figures["candidate"]["mean"], &figures["incumbent"]["mean"]), (&json!(0.75), &json!(0.25)));
    let grown = caller.status().await["pending"].as_u64().zip(pending.as_u64());
    assert!(grown.is_some_and(|(now, then)| now <= then + 2), "{grown:?}");
    let stopped = caller.send(caller.request(reqwest::Method::DELETE, &caller.path("/rollout"))).await.ok().body;
    assert_eq!(stopped["end"]["figures"]["pairs"], 1);
}
