//! What an operator sets survives a restart, and tenants never see each other's rows.

use reef_core::{Gate, Grader, HeldOutTask, Message, ScenarioName, Surface, TenantId};
use reef_store::{Commit, Counts, Created, Pool, ScenarioSettings, StoreError, TrainingMode};
use serde_json::json;

use crate::fixture::{Fixture, NOW_MS, id, ids, name, release_id, skipped, step, tenant};

fn settings() -> ScenarioSettings {
    ScenarioSettings {
        training_mode: TrainingMode::Manual,
        max_staleness: 9,
        recipe_config: json!({ "lr": 0.1 + 0.2, "text": "'; \"\u{0}" }).as_object().expect("object").clone(),
        harness_config: json!({ "batch_size": 2 }).as_object().expect("object").clone(),
        gate: Some(Gate::non_inferiority(1.0 / 3.0)),
    }
}

fn task(content: &str) -> HeldOutTask {
    let messages = vec![Message { role: "user".to_owned(), content: content.to_owned() }];
    HeldOutTask { messages, answer: format!("{content}!"), grader: Grader::Similarity }
}

#[tokio::test]
async fn settings_survive_a_restart() {
    let mut fixture = Fixture::new().await;
    fixture.store.update_scenario(&tenant(), &name(), &settings()).await.expect("updated");
    fixture.reopen().await;
    let scenario = fixture.store.scenario(&tenant(), &name()).await.expect("read").expect("there");
    assert_eq!((scenario.settings, scenario.created_at_ms), (settings(), NOW_MS));
    let again = fixture.store.create_scenario(&tenant(), &name(), &ScenarioSettings::default(), 1).await;
    assert_eq!(again, Ok(Created::Existing));
    let kept = fixture.store.scenarios(&tenant()).await.expect("scenarios");
    assert_eq!((kept.len(), &kept[0].settings), (1, &settings()), "an existing scenario is left as it is");
    let other = ScenarioName::parse("other").expect("valid");
    assert_eq!(
        fixture.store.update_scenario(&tenant(), &other, &settings()).await,
        Err(StoreError::UnknownScenario(other))
    );
}

#[tokio::test]
async fn held_out_tasks_survive_a_restart_in_their_order() {
    let mut fixture = Fixture::new().await;
    let tasks: Vec<_> = (0..12).map(|n| task(&format!("{n} \"quoted\" \u{0} \\u0000 [1,2] é"))).collect();
    fixture.store.set_held_out(&tenant(), &name(), &[task("old")]).await.expect("set");
    fixture.store.set_held_out(&tenant(), &name(), &tasks).await.expect("replaced");
    fixture.reopen().await;
    assert_eq!(fixture.store.held_out(&tenant(), &name()).await, Ok(tasks));
    let many = vec![task("x"); 10_001];
    assert!(matches!(fixture.store.set_held_out(&tenant(), &name(), &many).await, Err(StoreError::Invalid(_))));
    let other = ScenarioName::parse("other").expect("valid");
    assert_eq!(fixture.store.set_held_out(&tenant(), &other, &[]).await, Err(StoreError::UnknownScenario(other)));
}

#[tokio::test]
async fn recipe_state_survives_a_restart() {
    let mut fixture = Fixture::new().await;
    let first = step(1, &fixture.base, &[]);
    fixture.begin(&first).await.expect("begun");
    let value: Vec<u8> = (0..64 << 10).map(|n| n as u8).collect();
    let commit = Commit {
        state: vec![("critic".to_owned(), Some(value.clone()))],
        recipe: "sao".to_owned(),
        ..Commit::default()
    };
    fixture.finish(&skipped(&first), commit).await.expect("ended");
    fixture.reopen().await;
    let state = fixture.store.recipe_state(&tenant(), &name(), "sao").await.expect("state");
    assert_eq!(state.get("critic"), Some(&value));
}

#[tokio::test]
async fn tenants_never_see_each_others_rows() {
    let fixture = Fixture::new().await;
    let (store, rival) = (&fixture.store, TenantId::parse("rival").expect("valid"));
    fixture.graded(1).await;
    fixture.graded(2).await;
    store.set_held_out(&tenant(), &name(), &[task("secret")]).await.expect("set");
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    let commit = Commit { state: vec![("a".to_owned(), Some(vec![1]))], recipe: "sao".to_owned(), ..Commit::default() };
    fixture.finish(&skipped(&first), commit).await.expect("ended");
    // The same name, with and without a scenario of one's own behind it.
    for created in [false, true] {
        if created {
            store.create_scenario(&rival, &name(), &ScenarioSettings::default(), NOW_MS).await.expect("created");
        }
        assert_eq!(store.scenarios(&rival).await.expect("scenarios").len(), usize::from(created));
        assert_eq!(store.scenario(&rival, &name()).await.expect("scenario").is_some(), created);
        assert_eq!(store.record(&rival, &name(), &id("r-1")).await, Ok(None));
        assert_eq!(store.records(&rival, &name(), 0, 10, None).await, Ok(Vec::new()));
        assert_eq!(store.pool(&rival, &name(), 10).await, Ok(Pool::default()));
        assert_eq!(store.samples(&rival, &name(), &ids(&["g-2"])).await, Err(StoreError::UnknownReference(id("g-2"))));
        assert_eq!(store.counts(&rival, &name()).await, Ok(Counts::default()));
        assert_eq!(store.head(&rival, &name()).await, Ok(None));
        assert_eq!(store.release(&rival, &name(), &release_id(0)).await, Ok(None));
        assert_eq!(store.releases(&rival, &name()).await, Ok(Vec::new()));
        assert_eq!(store.step(&rival, &name(), 1).await, Ok(None));
        assert_eq!(store.steps(&rival, &name(), 10).await, Ok(Vec::new()));
        assert_eq!(store.held_out(&rival, &name()).await, Ok(Vec::new()));
        assert!(store.recipe_state(&rival, &name(), "sao").await.expect("state").is_empty());
        let stolen = vec![(id("g-2"), "mine now".to_owned())];
        assert_eq!(
            store.retire((&rival, &name()), Surface::Weights, &stolen, NOW_MS).await,
            Err(StoreError::UnknownReference(id("g-2")))
        );
        assert!(store.begin_step(&rival, &name(), &step(1, &fixture.base, &["g-2"]), None).await.is_err());
        assert!(store.reject_held(&rival, &name(), &release_id(0)).await.is_err());
    }
    store.set_held_out(&rival, &name(), &[]).await.expect("their own");
    assert_eq!(store.held_out(&tenant(), &name()).await.expect("tasks").len(), 1);
    assert_eq!(fixture.counts().await.pending, 1);
}
