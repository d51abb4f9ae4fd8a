//! Files that cannot be used: a sentence with the path and the remedy.

use reef_store::{Store, StoreError};

use crate::fixture::Place;

#[tokio::test]
async fn a_file_that_is_no_database_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("reef.db");
    std::fs::write(&path, "not a database, and long enough to be read as a header ".repeat(40)).expect("write");
    let refused = Store::open(&path).await.expect_err("refused");
    assert!(matches!(refused, StoreError::Corrupt { .. }), "{refused:?}");
    let said = refused.to_string();
    assert!(said.contains("reef.db") && said.contains("backup"), "{said}");
}

#[tokio::test]
async fn a_missing_folder_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let refused = Store::open(&folder.path().join("none/reef.db")).await.expect_err("refused");
    assert!(matches!(refused, StoreError::Unavailable { .. }), "{refused:?}");
    assert!(refused.to_string().contains("none/reef.db"), "{refused}");
}

#[tokio::test]
async fn damage_inside_the_file_is_reported_when_it_is_met() {
    let place = Place::new().await;
    for n in 0..200 {
        place.infer(&format!("i-{n}")).await;
    }
    place.store.close().await;
    let mut bytes = std::fs::read(place.path()).expect("read");
    bytes.iter_mut().skip(4096 * 2).for_each(|byte| *byte = 0xa5);
    std::fs::write(place.path(), bytes).expect("write");
    let told = match Store::open(&place.path()).await {
        Err(error) => error,
        Ok(store) => store.records(&place.t, &place.s, 0, 1000, None).await.expect_err("damaged"),
    };
    assert!(matches!(told, StoreError::Corrupt { .. }), "{told:?}");
}
