//! One process writes at a time, and readers beside it see what is committed.

use reef_store::{Store, StoreError};

use crate::fixture::{Fixture, inference, name, report, tenant};
use crate::place::Place;

#[tokio::test]
async fn a_second_writer_is_refused_and_told_who_holds_the_lease() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    let refused = fixture.place.open().await.map(drop).expect_err("held");
    let StoreError::InUse { holder, .. } = &refused else { panic!("{refused:?}") };
    assert!(holder.contains(&format!("reef process {}", std::process::id())), "{refused}");
    assert!(refused.to_string().contains("stop that process first"), "{refused}");
    fixture.graded(2).await;
    fixture.store.close().await;
    let next = fixture.place.open().await.expect("the lease is free again");
    assert_eq!(next.counts(&tenant(), &name()).await.expect("counts").reports, 2);
    next.close().await;
}

#[tokio::test]
async fn stores_in_different_schemas_are_different_stores() {
    let (one, other) = (Fixture::new().await, Fixture::new().await);
    one.graded(1).await;
    assert_eq!(one.counts().await.reports, 1);
    assert_eq!(other.counts().await.reports, 0);
}

#[tokio::test]
async fn a_reader_beside_the_writer_sees_what_is_committed_and_writes_nothing() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    let reader = Store::connect_read_only(&fixture.place.address()).await.expect("opened");
    assert_eq!(reader.pool(&tenant(), &name(), 8).await.expect("pool").samples.len(), 1);
    let refused = reader.append_report(&tenant(), &name(), report("g-9", &[])).await;
    assert!(matches!(refused, Err(StoreError::ReadOnly { .. })), "{refused:?}");
    fixture.graded(2).await;
    assert_eq!(reader.counts(&tenant(), &name()).await.expect("counts").reports, 2);
    reader.close().await;
    let empty = Place::new().await;
    let told = Store::connect_read_only(&empty.address()).await.expect_err("no tables").to_string();
    assert!(told.contains("version none"), "{told}");
}

#[tokio::test]
async fn a_session_that_the_server_ends_is_opened_again_with_its_lease() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    drop(fixture.place.after_crash().await);
    let lost = fixture.store.append_inference(&tenant(), &name(), inference("r-2", &[1], &[2])).await;
    assert!(matches!(lost, Err(StoreError::Unavailable { .. })), "{lost:?}");
    fixture.graded(3).await;
    assert!(matches!(fixture.place.open().await, Err(StoreError::InUse { .. })), "the lease was taken again");
    assert_eq!(fixture.counts().await.reports, 2);
}

#[tokio::test]
async fn a_text_that_postgres_cannot_store_is_refused_and_harms_no_neighbour() {
    let fixture = Fixture::new().await;
    let writes = vec![("a\u{0}b".to_owned(), Some(vec![1]))];
    let (tenant, name) = (tenant(), name());
    let (refused, stored) = tokio::join!(
        fixture.store.write_recipe_state(&tenant, &name, "sao", writes),
        fixture.store.append_inference(&tenant, &name, inference("r-1", &[1], &[2])),
    );
    assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
    assert_eq!(stored, Ok(1));
}
