//! Verification finds every kind of damage, names it and goes on.

use std::fs;

use reef_core::{
    DecidedBy, Release, ReleaseDecision, ReleaseId, ReleaseManifest, ReleaseOrigin, ReleaseVerdict, Surface, sha256_hex,
};
use reef_release::{ExpectedRelease, ExpectedStatus, ProblemKind, Progress, Report, VerifyOptions};

use crate::damage::{object, overwrite};
use crate::fixture::{Fixture, adapter_files, file, manifest, name, noise, release_id, tenant};

fn verify(fixture: &Fixture, expected: Option<&[ExpectedRelease]>) -> Report {
    let options = VerifyOptions { expected, ..VerifyOptions::default() };
    fixture.repo.verify(&tenant(), &name("spell"), options).expect("verified")
}

fn kinds(report: &Report) -> Vec<(ProblemKind, ReleaseId)> {
    assert_eq!(report.checked.problems as usize, report.findings.len());
    report.findings.iter().map(|finding| (finding.kind, finding.release_id.clone())).collect()
}

/// Releases r0 to r4, oldest first.
fn chain(fixture: &Fixture) -> Vec<Release> {
    let mut chain = vec![fixture.release("spell", None, &noise(0, 3_000))];
    for step in 1..5 {
        let next = fixture.release("spell", chain.last(), &noise(step, 3_000));
        chain.push(next);
    }
    chain
}

fn known(release: &Release, status: ExpectedStatus) -> ExpectedRelease {
    ExpectedRelease { release: release.clone(), status }
}

/// The release under an id that the repository does not have.
fn absent(release: &Release) -> Release {
    Release { release_id: release_id(&"ab".repeat(20)), ..release.clone() }
}

/// As the database lists a chain, newest first.
fn database(chain: &[Release]) -> Vec<ExpectedRelease> {
    let status = |at| if at == 0 { ExpectedStatus::Served } else { ExpectedStatus::Retained };
    chain.iter().rev().enumerate().map(|(at, release)| known(release, status(at))).collect()
}

#[test]
fn a_whole_chain_has_no_findings_and_tells_its_progress() {
    let fixture = Fixture::new();
    let chain = chain(&fixture);
    let held = fixture.repo.write(&manifest("spell", chain.last()), &adapter_files(b"held")).expect("written");
    let mut expected = database(&chain);
    expected.push(known(&held, ExpectedStatus::Held));
    expected.push(known(&absent(&held), ExpectedStatus::Rejected));
    let mut told = Vec::new();
    let options =
        VerifyOptions { expected: Some(&expected), on_progress: Some(&mut |progress: Progress| told.push(progress)) };
    let report = fixture.repo.verify(&tenant(), &name("spell"), options).expect("verified");
    assert!(report.is_whole(), "{:?}", report.findings);
    assert_eq!((report.checked.releases, report.head.as_ref()), (6, Some(&chain[4].release_id)));
    assert_eq!(report.checked.bytes, 5 * 3_011 + 15);
    let counted: Vec<u64> = told.iter().map(|progress| progress.releases).collect();
    assert_eq!(counted, [1, 2, 3, 4, 5, 6, 6]);
    assert!(verify(&fixture, None).is_whole());
}

#[test]
fn several_damages_are_all_found_and_nothing_stops_at_the_first() {
    let fixture = Fixture::new();
    let chain = chain(&fixture);
    let mut flipped = noise(4, 3_000);
    flipped[17] ^= 1;
    overwrite(&fixture.object(&noise(4, 3_000)), &flipped);
    fs::remove_file(fixture.object(&noise(3, 3_000))).expect("removed");
    overwrite(&object(&fixture, &format!("{}:manifest.json", chain[2].release_id)), b"not an object");
    overwrite(&fixture.object(&noise(1, 3_000)), b"short");
    let report = verify(&fixture, Some(&database(&chain)));
    let expected = [
        (ProblemKind::ObjectDamaged, chain[4].release_id.clone()),
        (ProblemKind::ObjectMissing, chain[3].release_id.clone()),
        (ProblemKind::ManifestDamaged, chain[2].release_id.clone()),
        (ProblemKind::ObjectDamaged, chain[1].release_id.clone()),
    ];
    assert_eq!(kinds(&report), expected);
    assert_eq!(report.checked.releases, 5);
    let first = &report.findings[0];
    assert_eq!(first.file.as_deref(), Some("adapter.safetensors"));
    assert_eq!(first.object, Some(sha256_hex(&noise(4, 3_000))));
    assert!(first.release.starts_with("release r4 of acme/spell ("), "{first}");
    assert!(
        first.reason.contains("sha256 differs") && first.remedy.contains("pull the scenario with --repair"),
        "{first}"
    );
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!((&json["releases"], &json["findings"][1]["kind"]), (&5.into(), &"object_missing".into()));
}

#[test]
fn a_missing_commit_ends_the_chain_of_git_and_the_database_leads_on() {
    let fixture = Fixture::new();
    let chain = chain(&fixture);
    fs::remove_file(object(&fixture, chain[2].release_id.as_str())).expect("removed");
    fs::remove_file(fixture.object(&noise(0, 3_000))).expect("removed");
    let alone = verify(&fixture, None);
    assert_eq!(kinds(&alone), [(ProblemKind::CommitMissing, chain[2].release_id.clone())]);
    assert!(alone.findings[0].reason.contains("it is the parent of release r3"), "{}", alone.findings[0]);
    let expected = [
        (ProblemKind::CommitMissing, chain[2].release_id.clone()),
        (ProblemKind::ObjectMissing, chain[0].release_id.clone()),
    ];
    assert_eq!(kinds(&verify(&fixture, Some(&database(&chain)))), expected);
}

#[test]
fn database_and_git_are_checked_against_each_other() {
    let fixture = Fixture::new();
    let chain = chain(&fixture);
    let whole = database(&chain);
    let found = |change: &dyn Fn(&mut Vec<ExpectedRelease>)| {
        let mut expected = whole.clone();
        change(&mut expected);
        kinds(&verify(&fixture, Some(&expected)))
    };
    let one = |kind, at: usize| vec![(kind, chain[at].release_id.clone())];
    assert_eq!(found(&|_| {}), []);
    let ahead = |expected: &mut Vec<ExpectedRelease>| {
        expected[0].status = ExpectedStatus::Retained;
        expected[1].status = ExpectedStatus::Served;
    };
    assert_eq!(found(&ahead), one(ProblemKind::HeadDiffers, 3));
    assert_eq!(found(&|expected| drop(expected.remove(2))), one(ProblemKind::NotInDatabase, 2));
    assert_eq!(found(&|expected| expected[1].release.manifest.sequence = 9), one(ProblemKind::DatabaseDiffers, 3));
    assert_eq!(found(&|expected| expected[1].release.manifest.parent = None), one(ProblemKind::DatabaseDiffers, 3));
    assert_eq!(found(&|expected| expected[4].status = ExpectedStatus::Held), one(ProblemKind::DatabaseDiffers, 0));
    let other = chain[0].content_id.clone();
    assert_eq!(
        found(&|expected| expected[2].release.content_id = other.clone()),
        one(ProblemKind::ContentIdDiffers, 2)
    );
    let lost = absent(&chain[1]);
    let told = found(&|expected| expected.push(known(&lost, ExpectedStatus::Retained)));
    assert_eq!(told, [(ProblemKind::CommitMissing, lost.release_id.clone())]);
    assert_eq!(found(&|expected| expected[0].status = ExpectedStatus::Retained), one(ProblemKind::HeadDiffers, 4));
    // The database lists the newest releases only.
    assert_eq!(found(&|expected| expected.truncate(2)), []);
}

#[test]
fn no_field_of_a_manifest_can_differ_unseen() {
    let fixture = Fixture::new();
    let chain = chain(&fixture);
    type Change = fn(&mut ReleaseManifest);
    let changes: [(&str, Change); 11] = [
        ("surface", |manifest| manifest.surface = Surface::Harness),
        ("sequence", |manifest| manifest.sequence = 9),
        ("parent", |manifest| manifest.parent = None),
        ("origin", |manifest| manifest.origin = ReleaseOrigin::Step { step: 77 }),
        ("base_model", |manifest| manifest.base_model = "f".repeat(64)),
        ("recipe", |manifest| manifest.recipe = Some("another".to_owned())),
        ("seed", |manifest| manifest.seed = Some(77)),
        ("records", |manifest| manifest.records = Some("e".repeat(64))),
        ("metrics", |manifest| manifest.metrics.extend([("made up".to_owned(), 1.0)])),
        ("decision", |manifest| {
            let (verdict, by) = (ReleaseVerdict::Held, DecidedBy::Gate);
            manifest.decision = Some(ReleaseDecision { verdict, by, reason: "made up".to_owned() });
        }),
        ("created_at_ms", |manifest| manifest.created_at_ms += 1),
    ];
    for (field, change) in changes {
        let mut expected = database(&chain);
        change(&mut expected[1].release.manifest);
        let report = verify(&fixture, Some(&expected));
        let [found] = report.findings.as_slice() else { panic!("{field}: {:?}", report.findings) };
        assert_eq!((found.kind, &found.release_id), (ProblemKind::DatabaseDiffers, &chain[3].release_id));
        assert!(found.reason.starts_with(&format!("the database says {field} ")), "{found}");
    }
}

#[test]
fn what_somebody_else_pushed_is_found() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, b"0");
    let text = fixture.git(&["show", &format!("{}:manifest.json", base.release_id)]);
    let blob = |text: &str| {
        let path = fixture.folder.path().join("blob");
        fs::write(&path, text).expect("written");
        fixture.git(&["hash-object", "-w", &path.display().to_string()]).trim().to_owned()
    };
    let head = |commit: &str| fixture.git(&["update-ref", "refs/heads/acme/spell", commit]);
    let mut cases = vec![
        (
            ProblemKind::SequenceOrder,
            fixture.recommit(&base, &[("manifest.json", &blob(&text.replace("\"sequence\": 0", "\"sequence\": 3")))]),
        ),
        (ProblemKind::ManifestDamaged, fixture.recommit(&base, &[("manifest.json", &blob("{}"))])),
        (
            ProblemKind::OtherScenario,
            fixture.recommit(&base, &[("manifest.json", &blob(&text.replace("\"spell\"", "\"other\"")))]),
        ),
        (ProblemKind::FileUnlisted, fixture.recommit(&base, &[("extra.md", &blob("extra"))])),
        (
            ProblemKind::PointerDiffers,
            fixture.recommit(&base, &[("adapter.safetensors", &blob("a pointer elsewhere"))]),
        ),
        (ProblemKind::FileDamaged, fixture.recommit(&base, &[("adapter.json", &blob("{\"rank\":61}"))])),
        (ProblemKind::FileDamaged, fixture.recommit(&base, &[(".gitattributes", &blob(""))])),
    ];
    let parents = fixture.git(&[
        "commit-tree",
        "-p",
        base.release_id.as_str(),
        "-m",
        "x",
        &format!("{}^{{tree}}", base.release_id),
    ]);
    cases.push((ProblemKind::ParentDiffers, parents.trim().to_owned()));
    let content = fixture.git(&["commit-tree", "-m", "content-id: 12", &format!("{}^{{tree}}", base.release_id)]);
    cases.push((ProblemKind::ContentIdDiffers, content.trim().to_owned()));
    for (kind, commit) in cases {
        head(&commit);
        let report = verify(&fixture, None);
        assert_eq!(report.findings.first().map(|finding| finding.kind), Some(kind), "{report:?}");
        assert!(report.findings.iter().all(|finding| !finding.remedy.is_empty() && !finding.reason.is_empty()));
    }
}

#[test]
fn trees_that_name_each_other_a_billion_times_are_refused() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, b"0");
    let mut tree = fixture.git(&["hash-object", "-t", "tree", "-w", "/dev/null"]).trim().to_owned();
    for _ in 0..40 {
        tree = fixture.mktree(&format!("040000 tree {tree}\ta\n040000 tree {tree}\tb\n"));
    }
    let listing = fixture.git(&["ls-tree", base.release_id.as_str()]);
    let root = fixture.mktree(&format!("{listing}040000 tree {tree}\tz\n"));
    let commit = fixture.git(&["commit-tree", "-m", &format!("content-id: {}", base.content_id), &root]);
    let told = fixture.repo.check(&release_id(commit.trim())).expect_err("refused").to_string();
    assert!(told.contains("more than 100000 files and folders"), "{told}");
}

#[test]
fn the_newest_older_release_that_is_intact_is_found() {
    let fixture = Fixture::new();
    let chain = chain(&fixture);
    let last_good = |broken: usize, known: &[ReleaseId]| {
        let of = (&tenant(), &name("spell"));
        fixture.repo.last_good(of, &chain[broken].release_id, known).expect("asked")
    };
    let id = |at: usize| Some(chain[at].release_id.clone());
    assert_eq!(last_good(4, &[]), id(3));
    overwrite(&fixture.object(&noise(3, 3_000)), b"damaged");
    assert_eq!(last_good(4, &[]), id(2));
    overwrite(&object(&fixture, &format!("{}:manifest.json", chain[2].release_id)), b"not an object");
    assert_eq!(last_good(4, &[]), id(1));
    let older: Vec<ReleaseId> = chain.iter().rev().skip(1).map(|release| release.release_id.clone()).collect();
    fs::remove_file(object(&fixture, chain[2].release_id.as_str())).expect("removed");
    assert_eq!(last_good(4, &[]), None, "git has lost the way");
    assert_eq!(last_good(4, &older), id(1), "the database knows it");
    assert_eq!(last_good(0, &[]), None);
}

#[test]
fn the_newest_intact_release_is_never_one_of_another_scenario() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, b"0");
    let fork = fixture.fork(&base, "fork");
    let step = fixture.release("fork", Some(&fork), b"1");
    let of = (&tenant(), &name("fork"));
    assert_eq!(fixture.repo.last_good(of, &step.release_id, &[]).expect("asked"), Some(fork.release_id.clone()));
    assert_eq!(fixture.repo.last_good(of, &fork.release_id, &[]).expect("asked"), None);
}

#[test]
fn a_rollback_and_empty_files_verify() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, b"");
    let step = fixture.release("spell", Some(&base), b"1");
    let mut back = manifest("spell", Some(&step));
    back.origin = ReleaseOrigin::Rollback { to: base.release_id.clone() };
    let files = [adapter_files(b""), vec![file("skills/a.md", b"")]].concat();
    let back = fixture.repo.write(&back, &files).expect("written");
    fixture.repo.advance(&tenant(), &name("spell"), Some(&step.release_id), &back.release_id).expect("advanced");
    assert!(verify(&fixture, None).is_whole());
}
