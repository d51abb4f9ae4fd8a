//! Retention removes what nobody needs, and nothing else, wherever it is cut off.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use reef_core::{Release, ReleaseId};
use reef_release::{ProblemKind, PruneOptions, PruneReport, ReleaseError};

use crate::fixture::{Fixture, adapter_files, manifest, name, noise, tenant};

const ADAPTER_BYTES: usize = 4_000;

/// Releases r0 to r5, oldest first; r4 has the adapter of r1.
fn chain(fixture: &Fixture) -> Vec<Release> {
    let mut chain: Vec<Release> = Vec::new();
    for adapter in [0, 1, 2, 3, 1, 5] {
        let next = fixture.release("spell", chain.last(), &noise(adapter, ADAPTER_BYTES));
        chain.push(next);
    }
    chain
}

fn object(fixture: &Fixture, adapter: u64) -> PathBuf {
    fixture.object(&noise(adapter, ADAPTER_BYTES))
}

fn prune(fixture: &Fixture, keep: &[&Release], grace: Duration, dry_run: bool) -> PruneReport {
    let kept: BTreeSet<&ReleaseId> = keep.iter().map(|release| &release.release_id).collect();
    let options = PruneOptions { keep: &|id| kept.contains(id), grace, dry_run, on_removal: None };
    fixture.repo.prune((&tenant(), &name("spell")), options).expect("pruned")
}

fn ids(releases: &[&Release]) -> BTreeSet<ReleaseId> {
    releases.iter().map(|release| release.release_id.clone()).collect()
}

fn set(ids: &[ReleaseId]) -> BTreeSet<ReleaseId> {
    ids.iter().cloned().collect()
}

#[test]
fn objects_that_no_kept_release_names_go_and_their_bytes_are_counted() {
    let fixture = Fixture::new();
    let chain = chain(&fixture);
    let rejected = fixture
        .repo
        .write(&manifest("spell", chain.last()), &adapter_files(&noise(9, ADAPTER_BYTES)))
        .expect("written");
    let held = fixture
        .repo
        .write(&manifest("spell", chain.last()), &adapter_files(&noise(8, ADAPTER_BYTES)))
        .expect("written");
    let other = fixture.release("other", None, &noise(2, ADAPTER_BYTES));
    let keep = [&chain[3], &chain[4], &held];

    let told = prune(&fixture, &keep, Duration::ZERO, true);
    assert!(object(&fixture, 0).exists() && told.dry_run);
    let done = prune(&fixture, &keep, Duration::ZERO, false);
    assert_eq!(PruneReport { dry_run: false, ..told }, done, "a dry run tells what is done");
    assert_eq!((done.objects, done.bytes_freed), (2, 2 * ADAPTER_BYTES as u64));
    assert_eq!(set(&done.marked), ids(&[&chain[0], &chain[1], &chain[2], &rejected]));
    assert_eq!(
        set(&done.pruned),
        ids(&[&chain[0], &rejected]),
        "r1 shares its adapter with r4, r2 with another scenario"
    );
    assert_eq!(done.candidates, std::slice::from_ref(&rejected.release_id));

    for (adapter, there) in [(0, false), (1, true), (2, true), (3, true), (5, true), (8, true), (9, false)] {
        assert_eq!(object(&fixture, adapter).exists(), there, "{adapter}");
    }
    for release in [&chain[1], &chain[2], &chain[3], &chain[4], &chain[5], &held, &other] {
        fixture.repo.check(&release.release_id).expect("whole");
    }
    assert!(!fixture.git(&["for-each-ref"]).contains(rejected.release_id.as_str()));
    let refused = fixture.repo.files(&chain[0].release_id).expect_err("pruned");
    let ReleaseError::Corrupt(problem) = refused else { panic!("{refused}") };
    assert_eq!(problem.kind, ProblemKind::ObjectPruned);
    assert!(problem.to_string().contains("removed by retention") && problem.remedy.contains("pull"), "{problem}");
    let report = fixture.repo.verify(&tenant(), &name("spell"), Default::default()).expect("verified");
    assert!(report.is_whole() && report.pruned == 1, "{report:?}");
    let again = prune(&fixture, &keep, Duration::ZERO, false);
    assert_eq!(again, PruneReport::default(), "nothing is left to do");
    fixture.fsck_is_clean();
}

#[test]
fn a_head_is_kept_even_if_nobody_asks_for_it() {
    let fixture = Fixture::new();
    let chain = chain(&fixture);
    let done = prune(&fixture, &[], Duration::ZERO, false);
    assert_eq!(done.objects, 4);
    fixture.repo.check(&chain[5].release_id).expect("whole");
    assert_eq!(fixture.repo.log(&tenant(), &name("spell"), 9).expect("log").len(), 6, "manifests stay");
}

#[test]
fn nothing_goes_before_the_grace_period_has_passed() {
    let fixture = Fixture::new();
    let chain = chain(&fixture);
    let hour = Duration::from_secs(60 * 60);
    let first = prune(&fixture, &[&chain[4]], hour, false);
    assert_eq!((first.marked.len(), first.objects, first.bytes_waiting), (4, 0, 3 * ADAPTER_BYTES as u64));
    for release in &chain {
        fixture.repo.check(&release.release_id).expect("whole");
    }
    // Two hours later: the marks and the objects are older than the grace period.
    let long_ago = SystemTime::now() - 2 * hour;
    let ms = long_ago.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis();
    for entry in fs::read_dir(fixture.path().join("lfs/pruned")).expect("marks") {
        fs::write(entry.expect("mark").path(), format!("{ms}\n")).expect("older");
    }
    let early = prune(&fixture, &[&chain[4]], hour, false);
    assert_eq!(early.objects, 0, "objects that were written a moment ago stay");
    for adapter in [0, 1, 2, 3, 5] {
        fs::File::open(object(&fixture, adapter)).and_then(|file| file.set_modified(long_ago)).expect("older");
    }
    // Somebody needs r2 again.
    let late = prune(&fixture, &[&chain[4], &chain[2]], hour, false);
    assert_eq!((late.marked.len(), late.objects), (0, 2));
    fixture.repo.check(&chain[2].release_id).expect("whole");
    assert!(!fixture.path().join("lfs/pruned").join(chain[2].release_id.as_str()).exists(), "its mark is gone");
}

#[test]
fn a_release_that_does_not_read_stops_everything() {
    let fixture = Fixture::new();
    let chain = chain(&fixture);
    crate::damage::overwrite(
        &crate::damage::object(&fixture, &format!("{}:manifest.json", chain[2].release_id)),
        b"not an object",
    );
    let options = PruneOptions { keep: &|_| false, grace: Duration::ZERO, dry_run: false, on_removal: None };
    let refusal = fixture.repo.prune((&tenant(), &name("spell")), options).expect_err("refused");
    assert!(matches!(refusal, ReleaseError::Corrupt(_)), "{refusal}");
    assert!([0, 1, 2, 3, 5].into_iter().all(|adapter| object(&fixture, adapter).exists()));
}

#[test]
fn cut_off_before_any_removal_everything_kept_is_whole_and_the_next_run_ends_the_work() {
    for cut in 0..5 {
        let fixture = Fixture::new();
        let chain = chain(&fixture);
        let rejected = fixture
            .repo
            .write(&manifest("spell", chain.last()), &adapter_files(&noise(9, ADAPTER_BYTES)))
            .expect("written");
        let mut removals = 0;
        let mut crash = |_: &std::path::Path| {
            assert!(removals != cut, "cut off");
            removals += 1;
        };
        let keep = |id: &ReleaseId| *id == chain[4].release_id;
        let options = PruneOptions { keep: &keep, grace: Duration::ZERO, dry_run: false, on_removal: Some(&mut crash) };
        let ended = catch_unwind(AssertUnwindSafe(|| fixture.repo.prune((&tenant(), &name("spell")), options)));
        assert_eq!(ended.is_err(), cut < 4, "{cut}");
        let report = fixture.repo.verify(&tenant(), &name("spell"), Default::default()).expect("verified");
        assert!(report.is_whole(), "cut {cut}: {:?}", report.findings);
        for release in [&chain[4], &chain[5]] {
            fixture.repo.check(&release.release_id).expect("whole");
        }
        prune(&fixture, &[&chain[4]], Duration::ZERO, false);
        assert!([0, 2, 3, 9].into_iter().all(|adapter| !object(&fixture, adapter).exists()), "{cut}");
        assert!([1, 5].into_iter().all(|adapter| object(&fixture, adapter).exists()), "{cut}");
        fixture.repo.release(&rejected.release_id).expect("git collects the commit some day");
        fixture.fsck_is_clean();
    }
}

#[test]
fn a_pruned_candidate_that_is_written_again_is_whole_again() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, b"0");
    let files = adapter_files(&noise(9, ADAPTER_BYTES));
    let candidate = fixture.repo.write(&manifest("spell", Some(&base)), &files).expect("written");
    assert_eq!(prune(&fixture, &[], Duration::ZERO, false).candidates, std::slice::from_ref(&candidate.release_id));
    assert_eq!(fixture.repo.write(&manifest("spell", Some(&base)), &files).expect("again"), candidate);
    fixture.repo.check(&candidate.release_id).expect("whole");
    assert!(fixture.git(&["for-each-ref"]).contains(candidate.release_id.as_str()));
}

#[test]
fn writers_and_a_sweep_at_once_lose_nothing() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, &noise(0, ADAPTER_BYTES));
    // The same few adapters over and over: what the sweep is about to remove is what a writer finds already there.
    std::thread::scope(|scope| {
        let (fixture, base) = (&fixture, &base);
        for writer in 0..3 {
            scope.spawn(move || {
                let mut head = fixture.release(&format!("w{writer}"), None, b"0");
                for step in 0..25 {
                    head = fixture.release(&format!("w{writer}"), Some(&head), &noise(step % 4, ADAPTER_BYTES));
                    fixture.repo.check(&head.release_id).expect("whole");
                }
            });
        }
        scope.spawn(move || {
            for step in 0..25 {
                let files = adapter_files(&noise(step % 4, ADAPTER_BYTES));
                fixture.repo.write(&manifest("spell", Some(base)), &files).expect("a candidate");
                prune(fixture, &[], Duration::ZERO, false);
            }
        });
    });
    for writer in 0..3 {
        let report =
            fixture.repo.verify(&tenant(), &name(&format!("w{writer}")), Default::default()).expect("verified");
        assert!(report.is_whole() && report.checked.releases == 26, "{report:?}");
    }
}

#[test]
fn a_forgotten_scenario_is_gone_but_for_what_others_began_with() {
    let fixture = Fixture::new();
    let chain = chain(&fixture);
    let fork = fixture.fork(&chain[2], "fork");
    let other = fixture.release("other", None, &noise(3, ADAPTER_BYTES));
    let done = fixture.repo.forget(&tenant(), &name("spell")).expect("forgotten");
    assert_eq!(fixture.repo.head(&tenant(), &name("spell")).expect("read"), None);
    assert_eq!(set(&done.candidates), ids(&[&chain[3], &chain[4], &chain[5]]), "the fork descends from r2");
    for (adapter, there) in [(0, false), (1, false), (2, true), (3, true), (5, false)] {
        assert_eq!(object(&fixture, adapter).exists(), there, "{adapter}");
    }
    for release in [&fork, &other] {
        fixture.repo.check(&release.release_id).expect("whole");
    }
    let again = fixture.repo.forget(&tenant(), &name("spell")).expect("again");
    assert_eq!((again.objects, again.candidates.len()), (0, 0));
    let anew = fixture.release("spell", None, &noise(7, ADAPTER_BYTES));
    assert_eq!(fixture.repo.head(&tenant(), &name("spell")).expect("read"), Some(anew.release_id));
    fixture.fsck_is_clean();
}
