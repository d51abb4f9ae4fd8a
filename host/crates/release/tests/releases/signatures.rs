//! Signed releases: what is trusted reads, everything else is refused with its remedy.

use std::path::Path;

use reef_core::Release;
use reef_release::{ProblemKind, ReleaseError, ReleaseKey, ReleasePublicKey, ReleaseRepo};

use crate::fixture::{Fixture, adapter_files, manifest, name, release_id, tenant};

fn key(fixture: &Fixture, file: &str) -> ReleaseKey {
    ReleaseKey::create(&fixture.folder.path().join(file)).expect("a key")
}

fn signing(path: &Path, key: &Path) -> ReleaseRepo {
    ReleaseRepo::open(path).expect("opened").signed_with(ReleaseKey::read(key).expect("read"))
}

fn trusting(fixture: &Fixture, keys: &[ReleasePublicKey]) -> ReleaseRepo {
    ReleaseRepo::open_to_read(&fixture.path()).expect("opened").trusting(keys.to_vec())
}

fn refusal(repo: &ReleaseRepo, release: &Release) -> (ProblemKind, String) {
    let id = &release.release_id;
    let errors = [
        repo.release(id).map(drop).expect_err("refused"),
        repo.file(id, "adapter.json").map(drop).expect_err("refused"),
        repo.files(id).map(drop).expect_err("refused"),
        repo.check(id).expect_err("refused"),
        repo.advance(&tenant(), &name("spell"), None, id).expect_err("refused"),
    ];
    let told: Vec<_> = errors
        .into_iter()
        .map(|error| match error {
            ReleaseError::Corrupt(problem) => (problem.kind, problem.to_string()),
            other => panic!("{other}"),
        })
        .collect();
    assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
    told[0].clone()
}

#[test]
fn a_signed_release_reads_with_its_key_and_is_the_same_when_written_again() {
    let fixture = Fixture::new();
    let mine = key(&fixture, "mine.key");
    let repo = signing(&fixture.path(), &fixture.folder.path().join("mine.key"));
    let release = repo.write(&manifest("spell", None), &adapter_files(b"weights")).expect("written");
    assert_eq!(repo.write(&manifest("spell", None), &adapter_files(b"weights")).expect("again"), release);
    let reading = trusting(&fixture, &[mine.public()]);
    assert_eq!(reading.release(&release.release_id).expect("trusted"), release);
    assert_eq!(reading.file(&release.release_id, "adapter.safetensors").expect("trusted"), b"weights");
    reading.check(&release.release_id).expect("whole");
    fixture.repo.check(&release.release_id).expect("whole for whoever trusts no keys");
    let text = fixture.git(&["show", &format!("{}:release.sig", release.release_id)]);
    assert!(text.starts_with(&format!("ed25519 {} ", mine.public().id())), "{text}");
    fixture.fsck_is_clean();
}

#[test]
fn missing_untrusted_and_wrong_signatures_are_told_apart() {
    let fixture = Fixture::new();
    let (mine, other) = (key(&fixture, "mine.key"), key(&fixture, "other.key"));
    let unsigned = fixture.repo.write(&manifest("spell", None), &adapter_files(b"weights")).expect("written");
    let repo = signing(&fixture.path(), &fixture.folder.path().join("mine.key"));
    let signed = repo.write(&manifest("spell", None), &adapter_files(b"weights")).expect("written");
    assert_eq!(signed.content_id, unsigned.content_id);
    assert_ne!(signed.release_id, unsigned.release_id);

    let (kind, told) = refusal(&trusting(&fixture, &[mine.public()]), &unsigned);
    assert_eq!(kind, ProblemKind::SignatureMissing);
    assert!(told.starts_with("release r0 of acme/spell (") && told.contains("take the trusted keys out"), "{told}");
    let (kind, told) = refusal(&trusting(&fixture, &[other.public()]), &signed);
    assert_eq!(kind, ProblemKind::SignatureUntrusted);
    assert!(told.contains(&mine.public().id().to_string()) && told.contains("add its public key"), "{told}");

    // The signature of another release in its place: same commit otherwise.
    let elsewhere = repo.write(&manifest("elsewhere", None), &adapter_files(b"other")).expect("written");
    let forged = fixture.recommit(&signed, &[("release.sig", &format!("{}:release.sig", elsewhere.release_id))]);
    let forged = Release { release_id: release_id(&forged), ..signed.clone() };
    let (kind, told) = refusal(&trusting(&fixture, &[mine.public()]), &forged);
    assert_eq!(kind, ProblemKind::SignatureWrong);
    assert!(told.contains("not one of this manifest") && told.contains("do not serve it"), "{told}");
}

#[test]
fn a_chain_may_begin_to_be_signed_midway_and_verification_names_the_unsigned_part() {
    let fixture = Fixture::new();
    let mine = key(&fixture, "mine.key");
    let base = fixture.release("spell", None, b"0");
    let repo = signing(&fixture.path(), &fixture.folder.path().join("mine.key")).trusting(vec![mine.public()]);
    let next = repo.write(&manifest("spell", Some(&base)), &adapter_files(b"1")).expect("written");
    repo.advance(&tenant(), &name("spell"), Some(&base.release_id), &next.release_id).expect("advanced");
    let report = repo.verify(&tenant(), &name("spell"), Default::default()).expect("verified");
    let found: Vec<_> = report.findings.iter().map(|finding| (finding.kind, finding.release_id.clone())).collect();
    assert_eq!(found, [(ProblemKind::SignatureMissing, base.release_id.clone())]);
    assert_eq!(repo.last_good((&tenant(), &name("spell")), &next.release_id, &[]).expect("asked"), None);
}
