//! The optional exports of a recipe, through the whole server: it judges recorded exchanges, and changes requests
//! where the operator lets it. The guest `faults` does as the tags of a request say.

use reef_sandbox::{Capability, Grants};
use reqwest::Method;
use serde_json::json;

use crate::support::{Answer, Caller, MODEL, TestHost, faults, poll};

async fn say(caller: &Caller, tags: &[(&str, &str)]) -> Answer {
    let body = json!({ "model": MODEL, "max_tokens": 4, "messages": [{ "role": "user", "content": "Hello." }] });
    let mut request = caller.request(Method::POST, "/v1/chat/completions").json(&body);
    for (tag, value) in tags {
        request = request.header(format!("x-reef-tag-{tag}"), *value);
    }
    caller.send(request).await
}

#[tokio::test]
async fn recorded_exchanges_are_judged_and_the_judgements_are_reports() {
    let host = TestHost::start(|config| config.recipe = Some(faults())).await;
    let caller = host.caller("live");
    caller.create(json!({ "recipe_config": { "fault": "none" }, "gate": { "kind": "always" } })).await;
    for _ in 0..2 {
        say(&caller, &[("judge", "yes")]).await.ok();
    }
    say(&caller, &[]).await.ok();
    let status = poll("the judgements", || async {
        let status = caller.status().await;
        if status["reports"] == 2 { Ok(status) } else { Err(status.to_string()) }
    })
    .await;
    assert_eq!(status["inferences"], 3, "{status}");
    super::learn::ended(&caller, 1).await;
    let status = caller.status().await;
    assert_eq!((&status["reports"], &status["consumed"]), (&json!(2), &json!(2)), "each is judged once: {status}");
    host.stop().await;
}

#[tokio::test]
async fn a_request_is_changed_only_where_the_operator_grants_it() {
    let prompt_tokens = async |grants: Option<Grants>| {
        let host = TestHost::start(|config| {
            config.recipe = Some(faults());
            config.recipes.grants = grants;
        })
        .await;
        let caller = host.caller("requests");
        caller.create(json!({ "recipe_config": { "fault": "none" } })).await;
        // The recipe is in its place after the learner's first turn.
        poll("the recipe", || async {
            let status = caller.status().await;
            if status["recipe"].is_string() { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        let plain = say(&caller, &[]).await.ok().body["usage"]["prompt_tokens"].as_u64().unwrap();
        let asked = say(&caller, &[("say", "and a good day to you")]).await.ok();
        let changed = asked.body["usage"]["prompt_tokens"].as_u64().unwrap();
        let record = caller.get(&caller.path(&format!("/records/{}", asked.receipt()))).await.ok().body;
        let record = record["record"]["request"]["messages"].to_string();
        let spinning = say(&caller, &[("fault", "spin")]).await.ok();
        let after = spinning.body["usage"]["prompt_tokens"].as_u64().unwrap();
        if changed > plain {
            // Repeated faults, and the recipe is not asked any more for a while.
            poll("the quarantine", || async {
                say(&caller, &[("fault", "spin")]).await.ok();
                let metrics = caller.get("/metrics").await.ok().body;
                let metrics = metrics.as_str().unwrap_or_default();
                let found = metrics.lines().find(|line| line.contains("outcome=\"quarantined\""));
                found.map(drop).ok_or_else(|| "the recipe is still asked".to_owned())
            })
            .await;
            let ignored = say(&caller, &[("say", "and a good day to you")]).await.ok();
            assert_eq!(ignored.body["usage"]["prompt_tokens"].as_u64(), Some(plain));
        }
        host.stop().await;
        (plain, changed, after, record)
    };
    let mut grants = Grants::all();
    grants.0.insert(Capability::Requests);
    let (plain, changed, after, record) = prompt_tokens(Some(grants)).await;
    assert!(changed > plain, "{changed} tokens instead of {plain}");
    assert!(record.contains("and a good day to you"), "the record keeps what was sent to the model: {record}");
    assert_eq!(after, plain, "a recipe that spins leaves the request as it was");
    let (plain, changed, _, record) = prompt_tokens(None).await;
    assert_eq!(changed, plain);
    assert!(!record.contains("good day"), "{record}");
}
