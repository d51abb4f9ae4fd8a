//! The exchange of a recipe: code, state and history move together, and never under a running step.

use reef_core::Surface;
use reef_store::{RecipeState, RecipeUse, STATE_WRITER_KEY, StoreError, UseReason};

use crate::fixture::{Fixture, NOW_MS, name, skipped, step, tenant};

fn using(digest: char, version: &str, reason: UseReason) -> RecipeUse {
    RecipeUse {
        position: 0,
        surface: Surface::Weights,
        digest: digest.to_string().repeat(64),
        name: "sao".to_owned(),
        version: version.to_owned(),
        reason,
        note: String::new(),
        at_ms: NOW_MS,
    }
}

fn state(pairs: &[(&str, &[u8])]) -> RecipeState {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), value.to_vec())).collect()
}

async fn stored(fixture: &Fixture) -> RecipeState {
    fixture.store.recipe_state(&tenant(), &name(), "sao").await.expect("state")
}

async fn exchange(fixture: &Fixture, next: RecipeUse, new: Option<RecipeState>) -> Result<u32, StoreError> {
    fixture.store.exchange_recipe(&tenant(), &name(), next, ("sao", new)).await
}

#[tokio::test]
async fn an_exchange_keeps_what_it_replaces_and_leaves_the_host_s_keys_alone() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.store.recipe_use(&tenant(), &name(), Surface::Weights).await.expect("read"), None);
    let first = state(&[("a", b"1"), ("b", b"2")]);
    assert_eq!(
        exchange(&fixture, using('1', "0.1.0", UseReason::Start), Some(first.clone())).await.expect("in use"),
        1
    );
    fixture.graded(1).await;
    let running = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&running).await.expect("begun");
    let critic = vec![("reef.critic".to_owned(), Some(vec![9]))];
    fixture
        .finish(&skipped(&running), reef_store::Commit { state: critic, recipe: "sao".into(), ..Default::default() })
        .await
        .expect("ended");
    assert_eq!(
        exchange(&fixture, using('2', "0.2.0", UseReason::Upload), Some(state(&[("c", b"3")]))).await.expect("in use"),
        2
    );
    let written = |version: &str, digest: &str| format!("sao@{version}#sha256:{}", digest.repeat(64)).into_bytes();
    let second = written("0.2.0", "2");
    assert_eq!(stored(&fixture).await, state(&[("c", b"3"), ("reef.critic", &[9]), (STATE_WRITER_KEY, &second)]));
    let kept = fixture.store.replaced_state(&tenant(), &name(), 2).await.expect("read").expect("there");
    assert_eq!(kept, ("sao".to_owned(), first.clone()));
    assert_eq!(
        exchange(&fixture, using('1', "0.1.0", UseReason::Rollback), Some(first.clone())).await.expect("back"),
        3
    );
    let back = written("0.1.0", "1");
    let restored = state(&[("a", b"1"), ("b", b"2"), ("reef.critic", &[9]), (STATE_WRITER_KEY, &back)]);
    assert_eq!(stored(&fixture).await, restored);
    let uses = fixture.store.recipe_uses(&tenant(), &name(), 10).await.expect("history");
    let told: Vec<_> = uses.iter().map(|row| (row.position, row.version.as_str(), row.reason)).collect();
    assert_eq!(
        told,
        [(3, "0.1.0", UseReason::Rollback), (2, "0.2.0", UseReason::Upload), (1, "0.1.0", UseReason::Start)]
    );
}

#[tokio::test]
async fn no_recipe_is_exchanged_under_a_running_step() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    fixture.begin(&step(1, &fixture.base, &["g-1"])).await.expect("begun");
    let refusal = exchange(&fixture, using('1', "0.1.0", UseReason::Upload), None).await.expect_err("refused");
    assert!(refusal.to_string().contains("step 1 is running"), "{refusal}");
    assert_eq!(fixture.store.recipe_use(&tenant(), &name(), Surface::Weights).await.expect("read"), None);
}

#[tokio::test]
async fn an_exchange_that_breaks_a_rule_changes_nothing() {
    let fixture = Fixture::new().await;
    let cases = [
        (RecipeUse { digest: "short".into(), ..using('1', "0.1.0", UseReason::Upload) }, None, "64 hex digits"),
        (using('1', "0.1.0", UseReason::Upload), Some(state(&[("reef.critic", b"x")])), "belong to the host"),
        (using('1', "0.1.0", UseReason::Upload), Some(state(&[("", b"x")])), "1 to 256 bytes"),
    ];
    for (next, new, told) in cases {
        let refusal = exchange(&fixture, next, new).await.expect_err(told).to_string();
        assert!(refusal.contains(told), "{refusal}");
    }
    assert!(stored(&fixture).await.is_empty());
    let nowhere = reef_core::ScenarioName::parse("nowhere").expect("valid");
    let refusal =
        fixture.store.exchange_recipe(&tenant(), &nowhere, using('1', "0.1.0", UseReason::Upload), ("sao", None)).await;
    assert!(matches!(refusal, Err(StoreError::UnknownScenario(_))), "{refusal:?}");
}
