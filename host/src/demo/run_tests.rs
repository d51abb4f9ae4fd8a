//! Whole runs of the demo against a scripted server.

use std::path::PathBuf;

use serde_json::Value;

use super::scripted::{Script, serve};
use super::*;

const BATCH: u32 = 8;

fn small() -> Family {
    let family = families::all().into_iter().next().expect("a family");
    Family { batch_size: BATCH, steps_max: 5, minutes_max: 0.5, test_tasks: 20, gate_tasks: 6, ..family }
}

fn options(base_url: String, name: &str, families: Vec<Family>) -> DemoOptions {
    let page = std::env::temp_dir().join(format!("reef-demo-{}-{name}", std::process::id())).join("page.html");
    DemoOptions { base_url, token: Some("s3cret".to_owned()), seed: 3, families, minutes_max: 10, page, quiet: true }
}

fn read_and_remove(page: &PathBuf) -> String {
    let text = std::fs::read_to_string(page).expect("the page");
    std::fs::remove_dir_all(page.parent().expect("folder")).expect("removed");
    text
}

#[tokio::test]
async fn a_run_measures_teaches_and_measures_again() {
    let (url, world) = serve(Script::Learns, BATCH as usize).await;
    let options = options(url, "learns", vec![small()]);
    let page = options.page.clone();
    let summary = run(options).await.expect("a summary");
    assert_eq!((summary.headline.held_out_before, summary.headline.held_out_after), (0.0, 1.0));
    assert!(summary.headline.interval[0] > 0.7 && summary.headline.tokens >= 4 * 8);
    let world = world.lock().expect("world");
    assert_eq!(world.measured, 40);
    assert!(world.paused && world.sessions.len() == world.captured);
    assert_eq!(world.settings["recipe_config"]["batch_size"], 8);
    assert_eq!(world.settings["gate"]["kind"], "non-inferiority");
    let [train, test, gate] = &world.prompts;
    assert!(train.is_disjoint(test) && train.is_disjoint(gate) && test.is_disjoint(gate) && gate.len() == 6);
    assert_eq!(world.tokens.iter().collect::<Vec<_>>(), ["Bearer s3cret"]);
    let page = read_and_remove(&page);
    assert!(page.contains("0 % → 100 %") && page.contains("better &lt;on&gt; held-out tasks"));
}

#[tokio::test]
async fn the_json_line_has_the_promised_fields_for_each_family() {
    let (url, _) = serve(Script::Learns, BATCH as usize).await;
    let options = options(url, "json", vec![small()]);
    let page = options.page.clone();
    let summary = run(options).await.expect("a summary");
    read_and_remove(&page);
    let line: Value = serde_json::from_str(&summary.to_json()).expect("json");
    assert!(!summary.to_json().contains('\n'));
    for result in [&line, &line["families"]["repeat"]] {
        for field in ["held_out_before", "held_out_after", "seconds", "steps", "releases", "seed"] {
            assert!(result[field].is_number(), "{field} in {line}");
        }
        assert!(
            result["interval"]
                .as_array()
                .is_some_and(|limits| limits.len() == 2 && limits[0].as_f64() < limits[1].as_f64())
        );
    }
    assert_eq!(line["steps"], line["families"]["repeat"]["steps"]);
    assert!(summary.to_text().contains("repeat: 0.0 % -> 100.0 % exact on 20 held-out prompts"));
}

#[tokio::test]
async fn a_busy_server_is_asked_again() {
    let (url, _) = serve(Script::Busy, BATCH as usize).await;
    let options = options(url, "busy", vec![small()]);
    let page = options.page.clone();
    assert_eq!(run(options).await.expect("a summary").headline.held_out_after, 1.0);
    read_and_remove(&page);
}

async fn failure(script: Script, name: &str, minutes_max: f64) -> (DemoError, usize) {
    let (url, world) = serve(script, BATCH as usize).await;
    let options = options(url, name, vec![Family { minutes_max, ..small() }]);
    let folder = options.page.parent().expect("folder").to_owned();
    let error = run(options).await.expect_err("fails");
    let _ = std::fs::remove_dir_all(folder);
    let captured = world.lock().expect("world").captured;
    (error, captured)
}

#[tokio::test]
async fn an_idle_learner_is_never_more_than_a_batch_behind_and_named_at_the_end() {
    let (error, captured) = failure(Script::Idles, "idles", 0.02).await;
    assert!(matches!(error, DemoError::NoStep { .. }), "{error}");
    assert!(error.to_string().contains("for samples"), "{error}");
    assert_eq!(captured, 2 * BATCH as usize);
}

#[tokio::test]
async fn a_learner_that_keeps_failing_ends_the_run_with_its_reason() {
    let (error, _) = failure(Script::Fails, "fails", 0.5).await;
    assert!(matches!(error, DemoError::Learner { .. }) || matches!(error, DemoError::NoStep { .. }), "{error}");
    assert!(error.to_string().contains("the recipe trapped"), "{error}");
}

#[tokio::test]
async fn an_error_status_is_told_with_its_body_and_a_remedy() {
    let (error, _) = failure(Script::Breaks, "breaks", 0.5).await;
    let told = error.to_string();
    assert!(
        told.contains("POST /v1/chat/completions was answered 500")
            && told.contains("the engine failed")
            && told.contains("log has the cause"),
        "{told}"
    );
}

#[tokio::test]
async fn a_server_that_stays_busy_is_given_up() {
    let (error, _) = failure(Script::AlwaysBusy, "always-busy", 0.5).await;
    assert!(matches!(error, DemoError::Busy { tries: 9, .. }), "{error}");
}

#[tokio::test]
async fn an_answer_without_receipt_is_refused_by_name() {
    let (error, _) = failure(Script::NoReceipt, "no-receipt", 0.5).await;
    assert!(error.to_string().contains("x-reef-agent-record-id is missing"), "{error}");
}

#[tokio::test]
async fn a_scenario_that_has_learned_before_is_refused() {
    let (url, _) = serve(Script::Learns, BATCH as usize).await;
    let first = options(url.clone(), "used", vec![small()]);
    let page = first.page.clone();
    run(first).await.expect("a summary");
    let error = run(options(url, "used", vec![small()])).await.expect_err("refused");
    read_and_remove(&page);
    assert!(matches!(error, DemoError::ScenarioUsed { sequence: 1.., .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_with_its_address() {
    let error = run(options("http://127.0.0.1:9".to_owned(), "absent", vec![small()])).await.expect_err("fails");
    let told = error.to_string();
    assert!(told.contains("http://127.0.0.1:9") && told.contains("check that it is running"), "{told}");
}

#[tokio::test]
async fn the_run_can_be_awaited_on_any_thread() {
    fn sendable<T: Send>(future: T) -> T {
        future
    }
    let error =
        sendable(run(options("http://127.0.0.1:9".to_owned(), "none", Vec::new()))).await.expect_err("no family");
    assert!(matches!(error, DemoError::Options(_)), "{error}");
}
