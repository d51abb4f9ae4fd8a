//! The chain and its head.

use reef_core::ReleaseOrigin;
use reef_store::{ReleaseStatus, ScenarioSettings, StoreError};

use crate::fixture::{Place, release, release_id, tenant};

fn back(n: u32, parent: u32) -> reef_core::Release {
    release(n, Some(parent), ReleaseOrigin::Rollback { to: release_id(0) })
}

#[tokio::test]
async fn the_head_moves_only_from_where_the_caller_believes_it_to_be() {
    let mut place = Place::new().await;
    assert_eq!(place.store.head(&place.t, &place.s).await.expect("head"), None);
    let base = release(0, None, ReleaseOrigin::Base);
    place.store.append_release(&place.t, &place.s, &base, None).await.expect("base");
    place.store.append_release(&place.t, &place.s, &base, None).await.expect("the same again");
    place.store.append_release(&place.t, &place.s, &back(1, 0), Some(&release_id(0))).await.expect("next");
    for (release, expected) in [(back(2, 0), Some(release_id(0))), (release(3, None, ReleaseOrigin::Base), None)] {
        let refused = place.store.append_release(&place.t, &place.s, &release, expected.as_ref()).await;
        assert!(matches!(refused, Err(StoreError::HeadMoved { .. })), "{refused:?}");
    }
    let reused = place.store.append_release(&place.t, &place.s, &base, None).await;
    assert!(matches!(reused, Err(StoreError::Conflict(_))), "an earlier release is never the head again");
    let orphan = place.store.append_release(&place.t, &place.s, &back(4, 0), Some(&release_id(1))).await;
    assert!(matches!(orphan, Err(StoreError::Invalid(_))), "{orphan:?}");
    place.reopen().await;
    let listed = place.store.releases(&place.t, &place.s).await.expect("list");
    let told: Vec<_> = listed.iter().map(|l| (l.release.release_id.clone(), l.status)).collect();
    assert_eq!(told, [(release_id(1), ReleaseStatus::Served), (release_id(0), ReleaseStatus::Retained)]);
    assert_eq!(listed.last().expect("base").release, base);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_concurrent_releases_on_one_head_exactly_one_wins() {
    let place = Place::with_base().await;
    let mut tries = tokio::task::JoinSet::new();
    for n in 1..=32 {
        let (store, t, s) = (place.store.clone(), place.t.clone(), place.s.clone());
        tries.spawn(async move { store.append_release(&t, &s, &back(n, 0), Some(&release_id(0))).await.is_ok() });
    }
    assert_eq!(tries.join_all().await.into_iter().filter(|won| *won).count(), 1);
    assert_eq!(place.store.releases(&place.t, &place.s).await.expect("list").len(), 2);
}

#[tokio::test]
async fn a_release_of_another_tenant_is_refused_and_unseen() {
    let place = Place::with_base().await;
    let other = tenant("other");
    place.store.create_scenario(&other, &place.s, &ScenarioSettings::default(), 1).await.expect("scenario");
    let foreign = place.store.append_release(&other, &place.s, &release(0, None, ReleaseOrigin::Base), None).await;
    assert!(matches!(foreign, Err(StoreError::Invalid(_))));
    assert_eq!(place.store.release(&other, &place.s, &release_id(0)).await.expect("read"), None);
    assert_eq!(place.store.head(&other, &place.s).await.expect("head"), None);
}
