//! Scenarios, settings and held-out tasks.

use reef_core::{Gate, Grader, HeldOutTask, Message};
use reef_store::{Created, ScenarioSettings, Store, StoreError, TrainingMode};
use serde_json::json;

use crate::fixture::{Place, scenario, tenant};

fn settings() -> ScenarioSettings {
    ScenarioSettings {
        training_mode: TrainingMode::Manual,
        max_staleness: 9,
        recipe_config: json!({ "eps": 0.1 }).as_object().cloned().expect("object"),
        gate: Some(Gate::MinImprovement { delta: 0.05 }),
    }
}

#[tokio::test]
async fn settings_survive_a_restart() {
    let mut place = Place::new().await;
    place.store.update_scenario(&place.t, &place.s, &settings()).await.expect("update");
    place.reopen().await;
    let found = place.store.scenario(&place.t, &place.s).await.expect("read").expect("there");
    assert_eq!(found.settings, settings());
    assert_eq!((found.created_at_ms, found.name), (1, place.s.clone()));
}

#[tokio::test]
async fn creating_twice_keeps_the_first_settings() {
    let place = Place::new().await;
    let again = place.store.create_scenario(&place.t, &place.s, &settings(), 2).await.expect("again");
    assert_eq!(again, Created::Existing);
    let found = place.store.scenario(&place.t, &place.s).await.expect("read").expect("there");
    assert_eq!(found.settings, ScenarioSettings::default());
    assert_eq!(found.settings.max_staleness, 4);
}

#[tokio::test]
async fn tenants_see_only_their_own_scenarios() {
    let place = Place::new().await;
    let other = tenant("other");
    assert_eq!(place.store.create_scenario(&other, &place.s, &settings(), 2).await.expect("new"), Created::New);
    assert_eq!(place.store.scenarios(&place.t).await.expect("list").len(), 1);
    assert_eq!(place.store.all_scenarios().await.expect("all").len(), 2);
    assert_eq!(place.store.scenario(&place.t, &scenario("none")).await.expect("read"), None);
    let missing = place.store.update_scenario(&place.t, &scenario("none"), &settings()).await;
    assert_eq!(missing, Err(StoreError::UnknownScenario(scenario("none"))));
}

#[tokio::test]
async fn held_out_tasks_are_replaced_as_a_whole_and_keep_their_order() {
    let place = Place::new().await;
    let task = |n: u32| HeldOutTask {
        messages: vec![Message { role: "user".to_owned(), content: format!("\"{n}\", 'x'") }],
        answer: n.to_string(),
        grader: Grader::Exact,
    };
    let many: Vec<_> = (0..12).map(task).collect();
    place.store.set_held_out(&place.t, &place.s, &many).await.expect("set");
    assert_eq!(place.store.held_out(&place.t, &place.s).await.expect("read"), many);
    place.store.set_held_out(&place.t, &place.s, &[task(99)]).await.expect("replace");
    assert_eq!(place.store.held_out(&place.t, &place.s).await.expect("read"), [task(99)]);
    assert!(place.store.set_held_out(&place.t, &scenario("none"), &many).await.is_err());
}

#[tokio::test]
async fn a_closed_store_says_so_and_keeps_what_it_accepted() {
    let place = Place::new().await;
    place.infer("i-1").await;
    place.store.close().await;
    place.store.close().await;
    let refused = place.store.create_scenario(&place.t, &scenario("late"), &settings(), 2).await;
    assert_eq!(refused, Err(StoreError::Closed));
    assert_eq!(place.store.scenarios(&place.t).await, Err(StoreError::Closed));
    let again = Store::open(&place.path()).await.expect("reopen");
    assert_eq!(again.counts(&place.t, &place.s).await.expect("counts").inferences, 1);
}
