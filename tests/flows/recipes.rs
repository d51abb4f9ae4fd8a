//! The recipes that ship, each through the real sandbox, trainer and server: feedback comes in, a release goes out, and
//! where one step can show it, the model has moved the way the recipe wants.

use reef::provider::config::BindingSection;
use reqwest::Method;
use serde_json::{Value, json};

use super::learn::ended;
use crate::support::{Caller, TestHost, component};

const ASKED: &str = "What is the colour of the sky? Answer with one word.";

async fn host(recipe: &str) -> TestHost {
    let recipe = component(&format!("reef_recipe_{recipe}.wasm"));
    TestHost::start(|config| config.recipe = Some(recipe)).await
}

async fn scenario(host: &TestHost, config: Value) -> Caller {
    let caller = host.caller("shipped");
    caller.create(json!({ "recipe_config": config, "gate": { "kind": "always" } })).await;
    caller
}

/// A sampled answer; its receipt.
async fn sampled(caller: &Caller, seed: u32) -> String {
    caller.chat(ASKED, json!({ "temperature": 1.0, "seed": seed, "max_tokens": 6 })).await.ok().receipt()
}

async fn report(caller: &Caller, receipt: &str, body: Value) {
    let mut body = body;
    body["references"] = json!([receipt]);
    caller.post("/reef/report", body).await.ok();
}

fn metric(step: &Value, name: &str) -> f64 {
    step["metrics"][name].as_f64().unwrap_or_else(|| panic!("{name} is not in {step}"))
}

/// The newest step, which must have released.
async fn released(caller: &Caller, count: usize) -> Value {
    let step = ended(caller, count).await.remove(0);
    assert_eq!(step["kind"], "released", "{step}");
    assert!(metric(&step, "policy/gradient_norm") > 0.0, "{step}");
    step
}

/// Trains a scenario to say "purple"; the folder and the release that does.
async fn purple() -> (tempfile::TempDir, String) {
    let host = host("sft").await;
    let caller = scenario(&host, json!({ "batch_size": 2, "learning_rate": 1e-3, "evaluate_tasks": 0 })).await;
    let mut nll = Vec::new();
    for step in 1..=5 {
        for _ in 0..2 {
            let receipt = sampled(&caller, step).await;
            report(&caller, &receipt, json!({ "metadata": { "demonstration": "purple" } })).await;
        }
        nll.push(metric(&released(&caller, step as usize).await, "demonstration_nll"));
    }
    assert!(nll[4] < nll[0] / 2.0, "the demonstration becomes likelier: {nll:?}");
    let answer = caller.chat(ASKED, json!({ "temperature": 0, "max_tokens": 4 })).await.ok();
    assert!(answer.text().contains("purple"), "after five steps it says so: {}", answer.text());
    (host.stop().await, answer.release())
}

#[tokio::test]
async fn sft_takes_over_a_demonstration_and_opd_follows_that_release_as_its_teacher() {
    let (data, teacher) = purple().await;
    let recipe = component("reef_recipe_opd.wasm");
    let host = TestHost::start_in(data, |config| {
        config.recipe = Some(recipe);
        let binding = json!({ "provider": "embedded", "model": teacher });
        let binding: BindingSection = serde_json::from_value(binding).expect("a binding");
        config.bindings.insert("teacher".to_owned(), binding);
    })
    .await;
    let caller = host.caller("student");
    let config = json!({ "batch_size": 4, "learning_rate": 5e-3, "evaluate_tasks": 0 });
    caller.create(json!({ "recipe_config": config, "gate": { "kind": "always" } })).await;
    for seed in 0..4 {
        let receipt = sampled(&caller, seed).await;
        report(&caller, &receipt, json!({ "score": 0.0 })).await;
    }
    let step = released(&caller, 1).await;
    assert!(metric(&step, "policy/loss").abs() > 0.1, "teacher and student are far apart: {step}");
    assert!(metric(&step, "train_rollout_logprob_abs_diff") < 1e-3, "{step}");
    host.stop().await;
}

#[tokio::test]
async fn sdft_learns_from_its_own_average_that_reads_the_demonstration() {
    let host = host("sdft").await;
    let caller = scenario(&host, json!({ "batch_size": 2, "learning_rate": 1e-3, "evaluate_tasks": 0 })).await;
    for seed in 0..2 {
        let receipt = sampled(&caller, seed).await;
        report(&caller, &receipt, json!({ "metadata": { "demonstration": "purple" } })).await;
    }
    let step = released(&caller, 1).await;
    assert!(metric(&step, "policy/loss") > 0.0 && metric(&step, "context_tokens_mean") > 5.0, "{step}");
    host.stop().await;
}

#[tokio::test]
async fn groups_of_answers_train_sao_grpo_dis_and_sdpo() {
    for recipe in ["sao_grpo_dis", "sdpo"] {
        let host = host(recipe).await;
        let config = json!({ "groups_per_step": 1, "rollouts_per_group": 4, "evaluate_tasks": 0 });
        let caller = scenario(&host, config).await;
        for seed in 0..4 {
            let receipt = sampled(&caller, seed).await;
            report(&caller, &receipt, json!({ "score": f64::from(seed % 2) })).await;
        }
        let step = released(&caller, 1).await;
        assert!((metric(&step, "reward_mean") - 0.5).abs() < 1e-9, "{recipe}: {step}");
        assert_eq!(step["batch"].as_array().map(Vec::len), Some(4), "{recipe}");
        host.stop().await;
    }
}

#[tokio::test]
async fn ttt_discover_trains_a_whole_grid_in_one_step() {
    let host = host("ttt_discover").await;
    let caller = scenario(&host, json!({})).await;
    for (number, score) in [0.0, 1.0, 2.0, 0.0, 0.0, 1.0].into_iter().enumerate() {
        let receipt = sampled(&caller, u32::try_from(number).expect("small")).await;
        let place = json!({
            "step": 0, "group": number / 3, "rollout": number % 3, "groups_per_step": 2, "rollouts_per_group": 3,
        });
        report(&caller, &receipt, json!({ "score": score, "metadata": place })).await;
    }
    let step = released(&caller, 1).await;
    assert_eq!(step["batch"].as_array().map(Vec::len), Some(6));
    host.stop().await;
}

/// A judge of the chat dialect: it dislikes what was sent back, and says how it should have been.
async fn judge() -> String {
    let app = axum::Router::new().fallback(|body: String| async move {
        let refused = body.contains("Not like that");
        let vote = match (body.contains("[HINT_START]"), refused) {
            (true, true) => "[HINT_START]Answer in one word, without a sentence.[HINT_END] \\boxed{1}",
            (true, false) => "\\boxed{-1}",
            (false, true) => "It was unwelcome: \\boxed{-1}",
            (false, false) => "\\boxed{1}",
        };
        axum::Json(json!({
            "id": "vote", "object": "chat.completion", "created": 0, "model": "judge",
            "choices": [{ "index": 0, "message": { "role": "assistant", "content": vote }, "finish_reason": "stop" }],
            "usage": { "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5 },
        }))
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

#[tokio::test]
async fn openclaw_rl_asks_its_judge_in_the_step_and_learns_from_the_next_turn_alone() {
    let (recipe, url) = (component("reef_recipe_openclaw_rl.wasm"), judge().await);
    let host = TestHost::start(|config| {
        config.recipe = Some(recipe);
        let provider = json!({ "url": url, "models": { "judge": "judge" } });
        config.providers.insert("judge".to_owned(), serde_json::from_value(provider).expect("a provider"));
        let binding = json!({ "provider": "judge", "model": "judge" });
        config.bindings.insert("judge".to_owned(), serde_json::from_value(binding).expect("a binding"));
    })
    .await;
    let caller = scenario(&host, json!({ "batch_size": 2, "evaluate_tasks": 0 })).await;
    let tools = json!([{ "type": "function", "function": { "name": "note", "parameters": { "type": "object" } } }]);
    for (session, said) in [("a", "Thanks, that is it."), ("b", "Not like that: one word.")] {
        let mut messages = json!([{ "role": "user", "content": ASKED }]);
        for (seed, tokens) in [(1, 6), (2, 1)] {
            let body = json!({ "model": "shipped", "messages": messages, "tools": tools, "temperature": 1.0, "seed": seed, "max_tokens": tokens });
            let asked = caller.request(Method::POST, "/v1/chat/completions").header("x-reef-tag-session", session);
            let answer = caller.send(asked.json(&body)).await.ok();
            let turns = messages.as_array_mut().expect("messages");
            turns.push(json!({ "role": "assistant", "content": answer.text() }));
            turns.push(json!({ "role": "user", "content": said }));
        }
    }
    let step = released(&caller, 1).await;
    for (name, wanted) in
        [("turns_learned_from", 2.0), ("turns_hinted", 1.0), ("scored_good", 1.0), ("scored_bad", 1.0)]
    {
        assert_eq!(metric(&step, name), wanted, "{name}: {step}");
    }
    assert_eq!(metric(&step, "judge_requests_failed"), 0.0, "{step}");
    host.stop().await;
}

#[tokio::test]
async fn record_only_records_and_never_learns() {
    let host = host("record_only").await;
    let caller = scenario(&host, json!({})).await;
    let receipt = sampled(&caller, 1).await;
    report(&caller, &receipt, json!({ "score": 1.0 })).await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert!(caller.steps().await.is_empty() && caller.releases().await.len() == 1);
    let status = caller.status().await;
    assert_eq!((&status["inferences"], &status["reports"]), (&json!(1), &json!(1)));
    host.stop().await;
}
