//! Heads move by compare-and-swap; exactly one of several wins.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, SystemTime};

use reef_core::ReleaseId;
use reef_release::{ReleaseError, ReleaseRepo};

use crate::fixture::{Fixture, adapter_files, manifest, name, noise, tenant};

const THREADS: u64 = 8;

/// All candidates try to become the head at the same moment, through two handles as two processes would; the winner.
fn race(fixture: &Fixture, scenario: &str, expected: Option<&ReleaseId>) -> ReleaseId {
    let parent = expected.map(|head| fixture.repo.release(head).expect("the head"));
    let write = |seed| fixture.repo.write(&manifest(scenario, parent.as_ref()), &adapter_files(&noise(seed, 100)));
    let candidates: Vec<ReleaseId> = (0..THREADS).map(|seed| write(seed).expect("written").release_id).collect();
    let handles = [fixture.repo.clone(), ReleaseRepo::open(&fixture.path()).expect("opened twice")];
    let start = Barrier::new(candidates.len());
    let wins = |index: usize, to: &ReleaseId| {
        start.wait();
        match handles[index % 2].advance(&tenant(), &name(scenario), expected, to) {
            Ok(()) => true,
            Err(ReleaseError::HeadMoved { expected: told, found, .. }) => {
                assert_eq!(told.as_ref(), expected);
                assert!(found.is_some_and(|found| candidates.contains(&found)));
                false
            }
            Err(other) => panic!("{other}"),
        }
    };
    let won: Vec<bool> = thread::scope(|scope| {
        let wins = &wins;
        let start = |(index, to)| scope.spawn(move || wins(index, to));
        let running: Vec<_> = candidates.iter().enumerate().map(start).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let winners: Vec<&ReleaseId> = candidates.iter().zip(won).filter(|(_, won)| *won).map(|(id, _)| id).collect();
    assert_eq!(winners.len(), 1, "{winners:?}");
    winners[0].clone()
}

#[test]
fn of_eight_threads_that_advance_one_head_exactly_one_wins() {
    let fixture = Fixture::new();
    let mut head = None;
    for _ in 0..10 {
        let winner = race(&fixture, "spell", head.as_ref());
        assert_eq!(fixture.repo.head(&tenant(), &name("spell")).expect("head"), Some(winner.clone()));
        head = Some(winner);
    }
    assert_eq!(fixture.repo.log(&tenant(), &name("spell"), 100).expect("log").len(), 10);
}

#[test]
fn threads_write_to_different_scenarios_at_once() {
    let fixture = Fixture::new();
    thread::scope(|scope| {
        for worker in 0..THREADS {
            let fixture = &fixture;
            scope.spawn(move || {
                let scenario = format!("scenario-{worker}");
                let mut head = fixture.release(&scenario, None, b"shared base");
                for step in 0..10 {
                    head = fixture.release(&scenario, Some(&head), &noise(worker * 100 + step, 1_000));
                }
            });
        }
    });
    for worker in 0..THREADS {
        let log = fixture.repo.log(&tenant(), &name(&format!("scenario-{worker}")), 100).expect("log");
        assert_eq!(log.len(), 11);
        fixture.repo.check(&log[0].release_id).expect("intact");
    }
    fixture.fsck_is_clean();
}

#[test]
fn a_moved_head_is_told_with_both_releases() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, b"0");
    let head = fixture.release("spell", Some(&base), b"1");
    let late = fixture.repo.write(&manifest("spell", Some(&base)), &adapter_files(b"late")).expect("written");
    let told = |expected| {
        fixture.repo.advance(&tenant(), &name("spell"), expected, &late.release_id).expect_err("moved").to_string()
    };
    let sentence = told(Some(&base.release_id));
    assert!(sentence.contains(head.release_id.as_str()) && sentence.contains(base.release_id.as_str()), "{sentence}");
    assert!(told(None).contains("expected no release"));
    let twice = fixture.repo.advance(&tenant(), &name("spell"), Some(&base.release_id), &head.release_id);
    assert!(matches!(twice, Err(ReleaseError::HeadMoved { .. })));
    let other = fixture
        .repo
        .advance(&tenant(), &name("other"), Some(&base.release_id), &late.release_id)
        .expect_err("other scenario");
    assert!(matches!(other, ReleaseError::OtherScenario { .. }), "{other}");
}

#[test]
fn a_head_can_not_be_created_twice_with_the_same_release() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, b"0");
    let again = fixture.repo.advance(&tenant(), &name("spell"), None, &base.release_id);
    assert!(matches!(again, Err(ReleaseError::HeadMoved { .. })));
}

#[test]
fn every_scenario_name_has_a_branch_that_git_accepts() {
    let fixture = Fixture::new();
    let scenarios = ["spell", "team:spell", "a.lock", "a.", "a:", "a.:", "a-b_c.d", "HEAD", "A", "a", &"x:".repeat(64)];
    let heads: BTreeSet<ReleaseId> =
        scenarios.iter().map(|scenario| fixture.release(scenario, None, b"0").release_id).collect();
    assert_eq!(heads.len(), scenarios.len());
    for scenario in scenarios {
        assert_eq!(fixture.repo.log(&tenant(), &name(scenario), 9).expect("log").len(), 1, "{scenario}");
    }
    assert_eq!(fixture.git(&["for-each-ref", "--format=%(refname)", "refs/heads"]).lines().count(), scenarios.len());
    fixture.fsck_is_clean();
}

#[test]
fn the_first_branch_is_what_a_clone_checks_out() {
    let fixture = Fixture::new();
    fixture.release("spell", None, b"0");
    fixture.release("other", None, b"0");
    assert_eq!(fixture.git(&["symbolic-ref", "HEAD"]).trim(), "refs/heads/acme/spell");
}

#[test]
fn the_lock_of_a_dead_process_is_removed_and_a_fresh_one_respected() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, b"0");
    let lock = fixture.path().join("refs/heads/acme/spell.lock");
    let old = SystemTime::now() - Duration::from_secs(60);
    File::create(&lock).and_then(|file| file.set_modified(old)).expect("a lock that nobody holds");
    fixture.release("spell", Some(&base), b"1");
    assert!(!lock.exists());
    let blocked = fixture.repo.head(&tenant(), &name("spell")).expect("reading needs no lock");
    File::create(&lock)
        .and_then(|file| file.set_modified(SystemTime::now() + Duration::from_secs(600)))
        .expect("a lock in use");
    let next = fixture.repo.write(&manifest("spell", Some(&base)), &adapter_files(b"2")).expect("written");
    let refusal =
        fixture.repo.advance(&tenant(), &name("spell"), blocked.as_ref(), &next.release_id).expect_err("locked");
    assert!(matches!(refusal, ReleaseError::Locked { .. }), "{refusal}");
    assert!(refusal.to_string().contains("refs/heads/acme/spell.lock"), "{refusal}");
    assert!(lock.exists());
}

#[test]
fn eight_scenarios_that_grab_at_each_others_heads_keep_their_own() {
    let fixture = Fixture::new();
    let bases: Vec<_> = (0..THREADS).map(|own| fixture.release(&format!("s{own}"), None, &noise(own, 500))).collect();
    let start = Barrier::new(bases.len());
    thread::scope(|scope| {
        for (own, base) in bases.iter().enumerate() {
            let (fixture, bases, start) = (&fixture, &bases, &start);
            scope.spawn(move || {
                start.wait();
                let mut head = base.clone();
                for (other, theirs) in bases.iter().enumerate() {
                    head = fixture.release(&format!("s{own}"), Some(&head), &noise(head.manifest.sequence.into(), 500));
                    if other != own {
                        let grab = fixture.repo.advance(
                            &tenant(),
                            &name(&format!("s{other}")),
                            Some(&theirs.release_id),
                            &head.release_id,
                        );
                        assert!(matches!(grab, Err(ReleaseError::OtherScenario { .. })), "{grab:?}");
                    }
                }
            });
        }
    });
    for own in 0..THREADS {
        let log = fixture.repo.log(&tenant(), &name(&format!("s{own}")), 100).expect("log");
        assert_eq!(log.len() as u64, THREADS + 1);
        assert!(log.iter().all(|release| release.manifest.scenario == name(&format!("s{own}"))));
        assert_eq!(log.last(), bases.get(own as usize));
    }
}

#[test]
fn a_fork_begins_with_the_named_release_whatever_its_scenario_releases_meanwhile() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, b"base");
    let learned = fixture.release("spell", Some(&base), b"learned");
    let start = Barrier::new(THREADS as usize + 1);
    let forks: Vec<_> = thread::scope(|scope| {
        let (fixture, base, start) = (&fixture, &base, &start);
        let fork = |own: u64| {
            scope.spawn(move || {
                start.wait();
                fixture.fork(base, &format!("fork-{own}"))
            })
        };
        let running: Vec<_> = (0..THREADS).map(fork).collect();
        start.wait();
        let mut head = learned.clone();
        for step in 0..THREADS {
            head = fixture.release("spell", Some(&head), &noise(step, 100));
        }
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for fork in &forks {
        assert_eq!((&fork.content_id, fork.manifest.sequence), (&base.content_id, 0));
        assert_eq!(fork.manifest.parent.as_ref(), Some(&base.release_id));
        assert_eq!(fixture.repo.file(&fork.release_id, "adapter.safetensors").expect("file"), b"base");
        let own = &fork.manifest.scenario;
        assert_eq!(fixture.repo.head(&tenant(), own).expect("head").as_ref(), Some(&fork.release_id));
        let report = fixture.repo.verify(&tenant(), own, Default::default()).expect("verified");
        assert!(report.is_whole() && report.checked.releases == 1, "{report:?}");
    }
    let other = fixture.repo.fork(&learned.release_id, &name("fork-0"), 1_760_000_000_000).expect("written");
    let twice = fixture.repo.advance(&tenant(), &name("fork-0"), None, &other.release_id);
    assert!(matches!(twice, Err(ReleaseError::HeadMoved { .. })), "{twice:?}");
    let nowhere = fixture.repo.fork(&crate::fixture::release_id(&"0".repeat(40)), &name("new"), 0);
    assert!(matches!(nowhere, Err(ReleaseError::NotFound { .. })), "{nowhere:?}");
}
