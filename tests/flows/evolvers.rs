//! The other recipes of the harness, each as the component that ships, from a report to a release on the server.

use serde_json::{Value, json};

use super::evolve::{SCENARIO, evolving_with, report};
use super::learn::ended;
use crate::http::harness::{adopt, served};
use crate::support::poll;

/// Runs a recipe on these reports and with this answer of its model, to the step that must release; the step and the
/// files that are served then.
async fn evolved(recipe: &str, config: Value, changes: &str, reports: &[Value]) -> (Value, Value) {
    let (host, _folder, script) = evolving_with(recipe, |_| {}).await;
    script.lock().expect("held").changes = changes.to_owned();
    let caller = host.caller(SCENARIO);
    caller.create(json!({ "recipe_config": config })).await;
    adopt(&caller, "style", "Be brief.\n").await;
    for metadata in reports {
        report(&caller, metadata.clone()).await;
    }
    let step = ended(&caller, 1).await.remove(0);
    assert_eq!(step["kind"], "released", "{step}");
    assert!(step["metrics"]["episodes/played"].as_f64().is_some_and(|played| played > 0.0), "{step}");
    let files = served(&caller).await["files"].clone();
    host.stop().await;
    (step, files)
}

#[tokio::test]
async fn gepa_writes_a_text_anew_and_releases_what_validates() {
    let answer = "The rules do not say how.\n```\nBe brief. End with the bare result.\n```";
    let reports = vec![json!({ "feedback": "say how" }); 3];
    let (step, files) = evolved("gepa", json!({}), answer, &reports).await;
    assert!(step["reason"].as_str().expect("a reason").starts_with("validation 0.0000 → 1.0000"), "{step}");
    assert_eq!(files["rules/style/text.md"], "Be brief. End with the bare result.");
}

#[tokio::test]
async fn reefine_does_what_a_person_asks_and_keeps_the_agent_healthy() {
    let change =
        r#"{"notes":"n","changes":[{"op":"put","kind":"rules","id":"form","text":"End with the bare result."}]}"#;
    let reports = [json!({ "instruction": "Print nothing after the result." })];
    let (step, files) = evolved("reefine", json!({}), change, &reports).await;
    assert_eq!(step["metrics"]["health_lowest"], 1.0, "{step}");
    assert_eq!(files["rules/form/text.md"], "End with the bare result.");
}

#[tokio::test]
async fn meta_harness_grows_its_population_on_the_server() {
    let change = r#"{"parent_id":"SERVING","hypothesis":"h","changes":[{"op":"put","kind":"rules","id":"form","text":"End with the bare result."}]}"#;
    let (step, files) = evolved("meta_harness", json!({}), change, &[json!({})]).await;
    assert!(step["reason"].as_str().expect("a reason").contains("6 wins"), "{step}");
    assert_eq!(files["rules/form/text.md"], "End with the bare result.");
}

#[tokio::test]
async fn skillclaw_learns_a_skill_from_sessions() {
    let decision =
        r#"{"action":"create_skill","skill":"form","description":"End with the bare result.","text":"Say it last."}"#;
    let (step, files) = evolved("skillclaw", json!({ "batch_size": 1 }), decision, &[json!({})]).await;
    assert_eq!(step["metrics"]["skills_changed"], 1.0, "{step}");
    assert_eq!(files["skill/form/SKILL.md"], "Say it last.");
}

/// What a person asks for in words, in a scenario where nothing else is learned from.
#[tokio::test]
async fn what_a_person_asks_for_becomes_a_release_that_answers_it() {
    let (host, _folder, script) = evolving_with("reefine", |_| {}).await;
    let change =
        r#"{"notes":"n","changes":[{"op":"put","kind":"rules","id":"form","text":"End with the bare result."}]}"#;
    script.lock().expect("held").changes = change.to_owned();
    let caller = host.caller(SCENARIO);
    caller.create(json!({ "training_mode": "manual" })).await;
    adopt(&caller, "style", "Be brief.\n").await;
    // A report is nobody's request: in this mode no step comes of it.
    report(&caller, json!({ "instruction": "Print everything twice." })).await;
    let needs = json!([{ "kind": "env", "name": "SUM_KEY", "reason": "to add" }]);
    let asked = json!({ "text": "Print nothing after the result.", "session": "s-1", "requires": needs });
    let asked = caller.post("/reef/train", asked).await.ok().body;
    let id = asked["agent_record_id"].as_str().expect("an id").to_owned();
    let step = ended(&caller, 1).await.remove(0);
    assert_eq!((&step["kind"], &step["batch"]), (&json!("released"), &json!([id])), "{step}");
    let progress = caller.get(&format!("/reef/harness/requests/{id}/progress")).await.ok().body;
    let harness = served(&caller).await;
    assert_eq!(
        (&progress["state"], &progress["release_id"]),
        (&json!("released"), &harness["release_id"]),
        "{progress}"
    );
    assert_eq!(harness["files"]["rules/form/text.md"], "End with the bare result.");
    assert_eq!(harness["requires"][0]["name"], "SUM_KEY", "{harness}");
    let long = json!({ "text": "x".repeat(5_000) });
    let long = caller.post("/reef/train", long).await.ok().body["agent_record_id"].as_str().expect("an id").to_owned();
    let aside = || {
        let (caller, path) = (&caller, format!("/reef/harness/requests/{long}/progress"));
        async move {
            let progress = caller.get(&path).await.ok().body;
            if progress["state"] == "rejected" { Ok(progress) } else { Err(progress.to_string()) }
        }
    };
    let progress = poll("the recipe's word on it", aside).await;
    assert!(progress["reason"].as_str().expect("a reason").contains("4000"), "{progress}");
    host.stop().await;
}
