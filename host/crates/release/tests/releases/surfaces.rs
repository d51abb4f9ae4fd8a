//! Two chains of one scenario: their heads never meet, and verification, retention and remotes know both.

use std::time::Duration;

use reef_core::{RecordId, Release, ReleaseOrigin, Surface};
use reef_release::{
    ExpectedRelease, ExpectedStatus, ProblemKind, PruneOptions, PullOptions, ReleaseError, Remote, VerifyOptions,
};

use crate::fixture::{Fixture, file, manifest, name, noise, tenant};

const TIME_MAX: Duration = Duration::from_secs(60);

/// A harness release with one rule.
fn harness(fixture: &Fixture, parent: Option<&Release>, text: &str) -> Release {
    let mut manifest = manifest("spell", parent);
    manifest.surface = Surface::Harness;
    fixture.repo.write(&manifest, &[file("rules/style/text.md", text.as_bytes())]).expect("written")
}

fn advance(fixture: &Fixture, from: Option<&Release>, to: &Release) {
    let expected = from.map(|from| &from.release_id);
    fixture.repo.advance(&tenant(), &name("spell"), expected, &to.release_id).expect("advanced");
}

/// Weights r0 and r1, and harness r0 and r1, as heads.
fn both(fixture: &Fixture) -> ([Release; 2], [Release; 2]) {
    let base = fixture.release("spell", None, &noise(0, 3_000));
    let empty = harness(fixture, None, "Be brief.\n");
    advance(fixture, None, &empty);
    let next = fixture.release("spell", Some(&base), &noise(1, 3_000));
    let changed = harness(fixture, Some(&empty), "Be brief and kind.\n");
    advance(fixture, Some(&empty), &changed);
    ([base, next], [empty, changed])
}

fn known(release: &Release, status: ExpectedStatus) -> ExpectedRelease {
    ExpectedRelease { release: release.clone(), status }
}

fn kinds(fixture: &Fixture, expected: &[ExpectedRelease]) -> Vec<ProblemKind> {
    let options = VerifyOptions { expected: Some(expected), ..VerifyOptions::default() };
    let report = fixture.repo.verify(&tenant(), &name("spell"), options).expect("verified");
    report.findings.into_iter().map(|finding| finding.kind).collect()
}

#[test]
fn each_surface_has_a_head_and_a_readable_history_of_its_own() {
    let fixture = Fixture::new();
    let ([_, weights], [empty, changed]) = both(&fixture);
    assert_eq!(fixture.repo.head(&tenant(), &name("spell")).expect("head"), Some(weights.release_id.clone()));
    let head = fixture.repo.harness_head(&tenant(), &name("spell")).expect("head");
    assert_eq!(head, Some(changed.release_id.clone()));
    let log = fixture.git(&["log", "--format=%s", "refs/heads/acme/spell@harness"]);
    assert_eq!(log.trim(), "harness r1 of acme/spell: step 1\nharness r0 of acme/spell: base");
    let diff = fixture.git(&["diff", empty.release_id.as_str(), changed.release_id.as_str(), "--", "rules"]);
    assert!(diff.contains("-Be brief.") && diff.contains("+Be brief and kind."), "{diff}");
    let stale = fixture.repo.advance(&tenant(), &name("spell"), Some(&weights.release_id), &empty.release_id);
    assert!(matches!(stale, Err(ReleaseError::HeadMoved { .. })), "a head is compared with that of its surface");
    let mut crossed = manifest("spell", Some(&weights));
    crossed.surface = Surface::Harness;
    let refusal = fixture.repo.write(&crossed, &[]).expect_err("of another surface").to_string();
    assert!(refusal.contains("its parent is a release of weights and it is one of harness"), "{refusal}");
    fixture.fsck_is_clean();
}

#[test]
fn a_proposal_and_its_acceptance_say_so_in_the_log() {
    let fixture = Fixture::new();
    let (_, [_, head]) = both(&fixture);
    let mut waits = manifest("spell", Some(&head));
    (waits.surface, waits.origin) =
        (Surface::Harness, ReleaseOrigin::Proposal { id: RecordId::parse("p-1").expect("an id") });
    let waits = fixture.repo.write(&waits, &[]).expect("written");
    let mut accepted = manifest("spell", Some(&head));
    (accepted.surface, accepted.origin) =
        (Surface::Harness, ReleaseOrigin::Acceptance { of: waits.release_id.clone() });
    let accepted = fixture.repo.write(&accepted, &[]).expect("written");
    assert_eq!(fixture.repo.release(&accepted.release_id).expect("read"), accepted);
    let subject = |release: &Release| fixture.git(&["show", "-s", "--format=%s", release.release_id.as_str()]);
    assert_eq!(subject(&waits).trim(), "harness r2 of acme/spell: proposal p-1");
    assert_eq!(subject(&accepted).trim(), format!("harness r2 of acme/spell: acceptance of {}", waits.release_id));
}

#[test]
fn verification_compares_either_chain_with_the_database() {
    let fixture = Fixture::new();
    let ([base, next], [empty, changed]) = both(&fixture);
    let waits = harness(&fixture, Some(&changed), "Be brief, kind and exact.\n");
    use ExpectedStatus::{Held, Retained, Served};
    let whole = vec![
        known(&base, Retained),
        known(&next, Served),
        known(&empty, Retained),
        known(&changed, Served),
        known(&waits, Held),
    ];
    assert_eq!(kinds(&fixture, &whole), []);
    // The database is ahead of the branch of the harness; that of the weights is not meant.
    let mut ahead = whole.clone();
    (ahead[3].status, ahead[4].status) = (Retained, Served);
    assert_eq!(kinds(&fixture, &ahead), [ProblemKind::HeadDiffers]);
    // A harness release that the database does not know is missed, whatever the weights are.
    let unknown = [whole[0].clone(), whole[1].clone(), whole[2].clone()];
    assert_eq!(kinds(&fixture, &unknown), [ProblemKind::HeadDiffers, ProblemKind::NotInDatabase]);
    let mut confused = whole.clone();
    confused[4].release.manifest.surface = Surface::Weights;
    assert_eq!(kinds(&fixture, &confused), [ProblemKind::DatabaseDiffers]);
    fixture.git(&["update-ref", "refs/heads/acme/spell@harness", next.release_id.as_str()]);
    assert!(kinds(&fixture, &whole).contains(&ProblemKind::OtherSurface));
}

#[test]
fn the_head_of_the_harness_survives_a_retention_that_keeps_nothing() {
    let fixture = Fixture::new();
    let ([_, weights], [empty, changed]) = both(&fixture);
    let rejected = harness(&fixture, Some(&changed), "Shout.\n");
    let options = PruneOptions { keep: &|_| false, grace: Duration::ZERO, dry_run: false, on_removal: None };
    let report = fixture.repo.prune((&tenant(), &name("spell")), options).expect("pruned");
    assert_eq!(report.candidates, [rejected.release_id]);
    fixture.git(&["gc", "--quiet", "--prune=now"]);
    for release in [&weights, &empty, &changed] {
        fixture.repo.check(&release.release_id).expect("whole");
    }
}

#[test]
fn both_chains_go_over_a_remote_and_neither_head_moves() {
    let (from, to) = (Fixture::new(), Fixture::new());
    let (_, [_, changed]) = both(&from);
    let path = from.folder.path().join("remote.git");
    crate::fixture::git(from.folder.path(), &["init", "--quiet", "--bare", path.to_str().expect("text")]);
    let remote = Remote::parse("origin", &format!("file://{}", path.display())).expect("an address");
    let pushed = from.repo.push((&tenant(), &name("spell")), &remote, TIME_MAX).expect("pushed");
    assert_eq!(pushed.harness_head.as_ref(), Some(&changed.release_id));
    let options = PullOptions { time_max: TIME_MAX, repair: false };
    let pulled = to.repo.pull((&tenant(), &name("spell")), &remote, options).expect("pulled");
    assert_eq!((pulled.harness_head.as_ref(), pulled.new.len()), (Some(&changed.release_id), 4));
    assert_eq!(to.repo.file(&changed.release_id, "rules/style/text.md").expect("read"), b"Be brief and kind.\n");
    assert_eq!(to.repo.harness_head(&tenant(), &name("spell")).expect("head"), None);
    let shown = to.git(&["rev-parse", "refs/remotes/origin/acme/spell@harness"]);
    assert_eq!(shown.trim(), changed.release_id.as_str());
    to.repo.advance(&tenant(), &name("spell"), None, &changed.release_id).expect("advanced");
}
