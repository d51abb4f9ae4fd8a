//! The recipe of a running scenario is exchanged, rolled back and falls back, and nothing is lost over it.

use reef_sandbox::{Call, Context, Grants, Sandbox, SandboxConfig};
use reqwest::Method;
use serde_json::{Value, json};

use super::learn::{ended, feed};
use crate::support::{Answer, Caller, TestHost, component, faults, poll, sao};

/// Calls that are in flight while the recipe is exchanged.
const CALLS: usize = 1_000;

async fn put(caller: &Caller, component: Vec<u8>) -> Answer {
    caller.send(caller.request(Method::PUT, &caller.path("/recipe")).body(component)).await
}

async fn recipe(caller: &Caller) -> Value {
    caller.get(&caller.path("/recipe")).await.ok().body
}

/// The same component under another digest.
fn again(mut component: Vec<u8>, mark: u8) -> Vec<u8> {
    component.extend([0, 6, 4, b'm', b'a', b'r', b'k', mark]);
    component
}

fn faults_bytes() -> Vec<u8> {
    std::fs::read(faults()).unwrap()
}

async fn start() -> (TestHost, Caller) {
    let host = TestHost::start(|config| config.recipe = Some(faults())).await;
    let caller = host.caller("exchanged");
    caller.create(json!({ "gate": { "kind": "always" }, "recipe_config": { "fault": "none" } })).await;
    (host, caller)
}

#[tokio::test]
async fn a_new_component_is_tried_on_recorded_selections_and_then_learns() {
    let (host, caller) = start().await;
    feed(&caller, 2).await;
    ended(&caller, 1).await;
    let before = recipe(&caller).await["recipe"]["label"].clone();

    let exchanged = put(&caller, again(faults_bytes(), 1)).await.ok().body;
    assert_eq!((&exchanged["before"], exchanged["position"].as_u64()), (&before, Some(1)), "{exchanged}");
    assert_eq!(exchanged["migrated"], true, "the guest migrates: {exchanged}");
    assert_eq!(exchanged["shadow"][0]["same"], true, "the same code decides the same: {exchanged}");
    let now = recipe(&caller).await;
    assert_ne!(now["recipe"]["label"], before);
    let unchanged = put(&caller, again(faults_bytes(), 1)).await.ok().body;
    assert_eq!(unchanged["position"], 1, "the same component again is no second use: {unchanged}");

    feed(&caller, 2).await;
    let steps = ended(&caller, 2).await;
    assert_eq!(steps[0]["recipe"], now["recipe"]["label"], "the next step is the new recipe's");

    let host = TestHost::start_in(host.stop().await, |config| config.recipe = Some(faults())).await;
    let caller = host.caller("exchanged");
    let settled = poll("the learner's first turn", || async {
        let shown = recipe(&caller).await;
        if shown["recipe"].is_object() { Ok(shown) } else { Err(shown.to_string()) }
    })
    .await;
    assert_eq!(settled["recipe"]["label"], now["recipe"]["label"], "a restart keeps the exchanged recipe");

    let back = caller.post(&caller.path("/recipe/rollback"), json!({})).await.ok().body;
    assert_eq!(back["reason"], "rollback", "{back}");
    assert_eq!(recipe(&caller).await["recipe"]["label"], before);
    let nothing = caller.post(&caller.path("/recipe/rollback"), json!({})).await;
    assert_eq!(nothing.status, 409, "{}", nothing.body);
    host.stop().await;
}

#[tokio::test]
async fn what_is_no_recipe_or_fails_where_it_is_tried_leaves_the_old_one_in_use() {
    let (host, caller) = start().await;
    feed(&caller, 2).await;
    ended(&caller, 1).await;
    let before = recipe(&caller).await["recipe"].clone();
    let text = put(&caller, b"hello".to_vec()).await;
    assert_eq!((text.status.as_u16(), &text.body["error"]["code"]), (422, &json!("recipe_refused")), "{}", text.body);
    let cut = put(&caller, faults_bytes()[..5_000].to_vec()).await;
    assert_eq!(cut.status, 422, "{}", cut.body);
    // sao knows none of the keys of this scenario's configuration.
    let foreign = put(&caller, std::fs::read(sao()).unwrap()).await;
    assert_eq!((foreign.status.as_u16(), &foreign.body["error"]["param"]), (400, &json!("recipe_config")));
    caller.post(&caller.path("/update"), json!({ "recipe_config": { "fault": "trap", "where": "select" } })).await.ok();
    let trapping = put(&caller, again(faults_bytes(), 2)).await;
    assert_eq!((trapping.status.as_u16(), &trapping.body["error"]["code"]), (422, &json!("recipe_failed")));
    assert_eq!(recipe(&caller).await["recipe"], before);
    let kept = std::fs::read_dir(host.data.path().join("recipes")).expect("the folder").count();
    assert_eq!(kept, 1, "what was refused is not kept");
    host.stop().await;
}

#[tokio::test]
async fn a_new_recipe_that_is_quarantined_makes_way_for_the_one_before() {
    let (host, caller) = start().await;
    feed(&caller, 2).await;
    ended(&caller, 1).await;
    let before = recipe(&caller).await["recipe"]["label"].clone();
    put(&caller, again(faults_bytes(), 3)).await.ok();
    let fails = json!({ "recipe_config": { "fault": "trap", "where": "propose" } });
    caller.post(&caller.path("/update"), fails).await.ok();
    feed(&caller, 2).await;
    let shown = poll("the fallback", || async {
        let shown = recipe(&caller).await;
        if shown["uses"][0]["reason"] == "fallback" { Ok(shown) } else { Err(caller.status().await.to_string()) }
    })
    .await;
    assert_eq!(shown["recipe"]["label"], before);
    assert!(shown["uses"][0]["note"].as_str().unwrap().contains("quarantined"), "{shown}");
    caller.chat("hi", json!({})).await.ok();
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_calls_in_flight_survive_an_exchange() {
    let limits = SandboxConfig { calls_tenant_max: 16, calls_waiting_max: CALLS as u32, ..Default::default() };
    let sandbox = Sandbox::new(limits).unwrap();
    let bytes = std::fs::read(component("reef_guest_faults.wasm")).unwrap();
    let old = sandbox.load(bytes.clone(), &Grants::all()).await.unwrap();
    let in_use = std::sync::Arc::new(std::sync::Mutex::new(old.clone()));
    let mut calls = Vec::new();
    for call in 0..CALLS {
        let recipe = in_use.lock().unwrap().clone();
        calls.push(tokio::spawn(async move {
            let context = Context {
                tenant: format!("t{}", call % 8),
                scenario: "s".into(),
                step: 1,
                now_ms: 0,
                seed: 0,
                head: String::new(),
                max_staleness: 4,
            };
            (recipe.digest().to_owned(), recipe.select_samples(Call::new(context)).await.result)
        }));
        if call == CALLS / 2 {
            let new = sandbox.load(again(bytes.clone(), 4), &Grants::all()).await.unwrap();
            *in_use.lock().unwrap() = new;
        }
    }
    drop(old);
    let mut digests = std::collections::BTreeMap::new();
    for call in calls {
        let (digest, result) = call.await.unwrap();
        assert!(result.is_ok(), "{result:?}");
        *digests.entry(digest).or_insert(0) += 1;
    }
    assert_eq!(digests.values().sum::<usize>(), CALLS);
    assert_eq!(digests.len(), 2, "both recipes answered");
    assert_eq!((sandbox.gauges().calls_running, sandbox.gauges().calls_waiting), (0, 0));
}
