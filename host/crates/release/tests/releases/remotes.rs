//! Push and pull with the real git: round trips, and what is refused on the way.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reef_core::{Release, ReleaseId};
use reef_release::{
    ProblemKind, PullOptions, PullReport, PushReport, ReleaseError, ReleaseKey, ReleaseRepo, Remote, RemoteError,
};

use crate::damage::overwrite;
use crate::fixture::{Fixture, adapter_files, git, manifest, name, noise, tenant};

/// No test waits for it to pass.
const TIME_MAX: Duration = Duration::from_secs(60 * 60);
const ADAPTER_BYTES: usize = 50_000;

/// A bare repository as `git init --bare` makes it, beside the fixture's.
fn bare(fixture: &Fixture) -> (PathBuf, Remote) {
    let path = fixture.folder.path().join("remote.git");
    git(fixture.folder.path(), &["init", "--quiet", "--bare", "remote.git"]);
    let remote = Remote::parse("origin", &format!("file://{}", path.display())).expect("an address");
    (path, remote)
}

fn chain(fixture: &Fixture, length: u64) -> Vec<Release> {
    let mut chain = vec![fixture.release("spell", None, &noise(0, ADAPTER_BYTES))];
    for step in 1..length {
        let next = fixture.release("spell", chain.last(), &noise(step, ADAPTER_BYTES));
        chain.push(next);
    }
    chain
}

fn push(repo: &ReleaseRepo, remote: &Remote) -> Result<PushReport, RemoteError> {
    repo.push((&tenant(), &name("spell")), remote, TIME_MAX)
}

fn pull(repo: &ReleaseRepo, remote: &Remote) -> Result<PullReport, RemoteError> {
    repo.pull((&tenant(), &name("spell")), remote, PullOptions { time_max: TIME_MAX, repair: false })
}

fn object(folder: &Path, adapter: u64) -> PathBuf {
    let sha256 = reef_core::sha256_hex(&noise(adapter, ADAPTER_BYTES));
    folder.join("lfs/objects").join(&sha256[..2]).join(&sha256[2..4]).join(sha256)
}

/// Nothing of the remote is visible: no reference but what was there.
fn nothing_visible(fixture: &Fixture) {
    let listed = fixture.git(&["for-each-ref", "refs/remotes", "refs/reef/quarantine"]);
    assert_eq!(listed, "");
}

#[test]
fn a_chain_goes_from_one_repository_over_a_remote_to_another_byte_for_byte() {
    let (from, to) = (Fixture::new(), Fixture::new());
    let chain = chain(&from, 4);
    let (path, remote) = bare(&from);
    let pushed = push(&from.repo, &remote).expect("pushed");
    assert_eq!((&pushed.head, pushed.objects, pushed.bytes), (&chain[3].release_id, 4, 4 * ADAPTER_BYTES as u64));
    assert_eq!(git(&path, &["rev-parse", "refs/heads/acme/spell"]).trim(), chain[3].release_id.as_str());
    assert_eq!(push(&from.repo, &remote).expect("again").objects, 0, "the remote has everything");

    let pulled = pull(&to.repo, &remote).expect("pulled");
    let newest_first: Vec<ReleaseId> = chain.iter().rev().map(|release| release.release_id.clone()).collect();
    assert_eq!((&pulled.head, &pulled.new, pulled.objects), (&chain[3].release_id, &newest_first, 4));
    for release in &chain {
        assert_eq!(to.repo.release(&release.release_id).expect("read"), *release);
        assert_eq!(
            to.repo.files(&release.release_id).expect("read"),
            from.repo.files(&release.release_id).expect("read")
        );
        let commit = ["cat-file", "commit", release.release_id.as_str()];
        assert_eq!(to.git(&commit), from.git(&commit));
    }
    assert_eq!(to.repo.head(&tenant(), &name("spell")).expect("head"), None, "no head moves");
    let shown = to.git(&["rev-parse", "refs/remotes/origin/acme/spell"]);
    assert_eq!(shown.trim(), chain[3].release_id.as_str());
    assert_eq!(to.git(&["for-each-ref", "refs/reef/quarantine"]), "");
    assert_eq!(pull(&to.repo, &remote).expect("again").new, []);

    // The head is the caller's to move, and the chain goes on from there.
    to.repo.advance(&tenant(), &name("spell"), None, &pulled.head).expect("advanced");
    let next = to.release("spell", Some(&chain[3]), b"learned elsewhere");
    push(&to.repo, &remote).expect("pushed");
    assert_eq!(pull(&from.repo, &remote).expect("pulled").new, std::slice::from_ref(&next.release_id));
    assert_eq!(from.repo.file(&next.release_id, "adapter.safetensors").expect("read"), b"learned elsewhere");
    assert_eq!(from.repo.head(&tenant(), &name("spell")).expect("head").as_ref(), Some(&chain[3].release_id));
    to.git(&["gc", "--quiet", "--prune=now"]);
    assert!(to.repo.verify(&tenant(), &name("spell"), Default::default()).expect("verified").is_whole());
    to.fsck_is_clean();
}

#[test]
fn a_damaged_object_at_the_remote_is_refused_and_nothing_of_it_is_visible() {
    let (from, to) = (Fixture::new(), Fixture::new());
    let chain = chain(&from, 3);
    let (path, remote) = bare(&from);
    push(&from.repo, &remote).expect("pushed");
    let mut flipped = noise(1, ADAPTER_BYTES);
    flipped[400] ^= 1;
    overwrite(&object(&path, 1), &flipped);
    let refusal = pull(&to.repo, &remote).expect_err("refused");
    let RemoteError::Unverified { problems, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!(problems.len(), 1, "{problems:?}");
    let problem = &problems[0];
    assert_eq!((problem.kind, &problem.release_id), (ProblemKind::ObjectDamaged, &chain[1].release_id));
    assert!(
        refusal.to_string().contains("sha256 differs") && refusal.to_string().contains("adapter.safetensors"),
        "{refusal}"
    );
    nothing_visible(&to);
    assert!(!object(&to.path(), 1).exists(), "the damaged object is not here");

    // The remote is repaired by whoever has it whole.
    fs::remove_file(object(&path, 1)).expect("removed");
    assert_eq!(push(&from.repo, &remote).expect("pushed").objects, 1);
    assert_eq!(pull(&to.repo, &remote).expect("pulled").new.len(), 3);
}

#[test]
fn a_remote_without_old_objects_is_pulled_and_without_the_newest_it_is_refused() {
    let (from, to) = (Fixture::new(), Fixture::new());
    let chain = chain(&from, 3);
    let (path, remote) = bare(&from);
    push(&from.repo, &remote).expect("pushed");
    fs::remove_file(object(&path, 2)).expect("removed");
    let refusal = pull(&to.repo, &remote).expect_err("refused");
    let RemoteError::Unverified { problems, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!((problems[0].kind, problems.len()), (ProblemKind::ObjectMissing, 1));
    nothing_visible(&to);
    push(&from.repo, &remote).expect("repaired");
    fs::remove_file(object(&path, 0)).expect("removed");
    fs::remove_file(object(&to.path(), 0)).expect("the refused pull had brought it");
    assert_eq!(pull(&to.repo, &remote).expect("pulled").without_objects, [chain[0].release_id.clone()]);
    let told = to.repo.files(&chain[0].release_id).expect_err("absent");
    assert!(matches!(&told, ReleaseError::Corrupt(problem) if problem.kind == ProblemKind::ObjectPruned), "{told}");
    push(&from.repo, &remote).expect("repaired");
    assert_eq!(pull(&to.repo, &remote).expect("pulled").objects, 1);
    to.repo.check(&chain[0].release_id).expect("whole again");
}

#[test]
fn a_damaged_local_object_is_repaired_from_a_remote() {
    let fixture = Fixture::new();
    let chain = chain(&fixture, 2);
    let (_, remote) = bare(&fixture);
    push(&fixture.repo, &remote).expect("pushed");
    let mut flipped = noise(0, ADAPTER_BYTES);
    flipped[400] ^= 1;
    overwrite(&object(&fixture.path(), 0), &flipped);
    assert_eq!(pull(&fixture.repo, &remote).expect("pulled").objects, 0);
    fixture.repo.check(&chain[0].release_id).expect_err("damaged");
    let options = PullOptions { time_max: TIME_MAX, repair: true };
    assert_eq!(fixture.repo.pull((&tenant(), &name("spell")), &remote, options).expect("pulled").objects, 1);
    fixture.repo.check(&chain[0].release_id).expect("repaired");
}

#[test]
fn a_damage_that_the_remote_cannot_repair_is_told() {
    let fixture = Fixture::new();
    let chain = chain(&fixture, 3);
    let (path, remote) = bare(&fixture);
    push(&fixture.repo, &remote).expect("pushed");
    for (lost, n) in [(false, 0), (true, 1)] {
        fs::remove_file(object(&path, n)).expect("removed");
        let damaged = object(&fixture.path(), n);
        if lost { fs::remove_file(damaged).expect("removed") } else { overwrite(&damaged, b"short") }
    }
    let options = PullOptions { time_max: TIME_MAX, repair: true };
    let pulled = fixture.repo.pull((&tenant(), &name("spell")), &remote, options).expect("pulled");
    assert_eq!(pulled.damaged, [chain[0].release_id.clone()]);
    assert_eq!(pulled.without_objects, [chain[1].release_id.clone()]);
}

#[test]
fn a_damaged_local_object_is_never_pushed() {
    let fixture = Fixture::new();
    chain(&fixture, 2);
    let (path, remote) = bare(&fixture);
    let mut flipped = noise(1, ADAPTER_BYTES);
    flipped[400] ^= 1;
    overwrite(&object(&fixture.path(), 1), &flipped);
    let refusal = push(&fixture.repo, &remote).expect_err("refused");
    assert!(
        matches!(&refusal, RemoteError::Release(ReleaseError::Corrupt(problem)) if problem.kind == ProblemKind::ObjectDamaged),
        "{refusal}"
    );
    assert_eq!(git(&path, &["for-each-ref"]), "");
}

#[test]
fn history_at_the_remote_is_never_rewritten() {
    let (from, to) = (Fixture::new(), Fixture::new());
    chain(&from, 2);
    let (path, remote) = bare(&from);
    push(&from.repo, &remote).expect("pushed");
    let before = git(&path, &["for-each-ref"]);
    to.release("spell", None, b"another beginning");
    let refusal = push(&to.repo, &remote).expect_err("refused");
    assert!(matches!(refusal, RemoteError::Diverged { .. }), "{refusal}");
    assert_eq!(git(&path, &["for-each-ref"]), before);
}

#[test]
fn what_somebody_pushed_by_hand_is_refused() {
    let (from, to) = (Fixture::new(), Fixture::new());
    let base = from.release("spell", None, &noise(0, ADAPTER_BYTES));
    let (path, remote) = bare(&from);
    push(&from.repo, &remote).expect("pushed");
    let forged = from.recommit(&base, &[("adapter.json", &format!("{}:manifest.json", base.release_id))]);
    from.git(&["push", "--quiet", "--force", &path.display().to_string(), &format!("{forged}:refs/heads/acme/spell")]);
    let refusal = pull(&to.repo, &remote).expect_err("refused");
    let RemoteError::Unverified { problems, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!(problems[0].kind, ProblemKind::FileDamaged, "{problems:?}");
    nothing_visible(&to);
    // Under another name it is the chain of somebody else.
    from.git(&["push", "--quiet", &path.display().to_string(), &format!("{}:refs/heads/acme/other", base.release_id)]);
    let options = PullOptions { time_max: TIME_MAX, repair: false };
    let refusal = to.repo.pull((&tenant(), &name("other")), &remote, options).expect_err("refused");
    assert!(refusal.to_string().contains("the chain of scenario 'other' leads to it"), "{refusal}");
    nothing_visible(&to);
}

#[test]
fn a_chain_is_pulled_only_with_the_signatures_that_are_trusted() {
    let (from, to) = (Fixture::new(), Fixture::new());
    let key = |name: &str| ReleaseKey::create(&from.folder.path().join(name)).expect("a key");
    let (mine, other) = (key("mine"), key("other"));
    let (mine_public, other_public) = (mine.public(), other.public());
    let signing = from.repo.clone().signed_with(mine);
    let base = signing.write(&manifest("spell", None), &adapter_files(b"0")).expect("written");
    signing.advance(&tenant(), &name("spell"), None, &base.release_id).expect("advanced");
    let (_, remote) = bare(&from);
    push(&from.repo, &remote).expect("pushed");
    let refusal = pull(&to.repo.clone().trusting(vec![other_public]), &remote).expect_err("refused");
    let RemoteError::Unverified { problems, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!(problems[0].kind, ProblemKind::SignatureUntrusted);
    nothing_visible(&to);
    pull(&to.repo.trusting(vec![mine_public]), &remote).expect("trusted");
}

#[test]
fn what_is_not_there_is_told() {
    let fixture = Fixture::new();
    let (_, remote) = bare(&fixture);
    let nothing = push(&fixture.repo, &remote).expect_err("no chain");
    assert!(
        matches!(nothing, RemoteError::NoChain { .. }) && nothing.to_string().contains("no releases here"),
        "{nothing}"
    );
    let nothing = pull(&fixture.repo, &remote).expect_err("no chain");
    assert!(nothing.to_string().contains("acme/spell has no releases at file://"), "{nothing}");
    let absent = Remote::parse("origin", "file:///nowhere/releases.git").expect("an address");
    let told = pull(&fixture.repo, &absent).expect_err("no repository").to_string();
    assert!(told.contains("git init --bare /nowhere/releases.git"), "{told}");
}

#[test]
fn a_remote_that_never_answers_is_given_up_with_everything_that_was_started() {
    let fixture = Fixture::new();
    fixture.release("spell", None, b"0");
    // A port that takes connections and says nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/releases.git", listener.local_addr().expect("an address"));
    let remote = Remote::parse("silent", &url).expect("an address");
    let options = PullOptions { time_max: Duration::from_secs(3), repair: false };
    let told = fixture.repo.pull((&tenant(), &name("spell")), &remote, options).expect_err("given up");
    if matches!(told, RemoteError::LfsMissing) {
        println!("git lfs is not installed: only its absence is told: {told}");
        return;
    }
    assert!(matches!(told, RemoteError::TimedOut { .. }), "{told}");
    // The helper that spoke to the port is gone too: its connection ends.
    listener.set_nonblocking(true).expect("set");
    let Ok((stream, _)) = listener.accept() else {
        println!("this machine is too slow: the time had passed before git spoke to the port");
        return;
    };
    stream.set_nonblocking(false).expect("set");
    let mut request = Vec::new();
    std::io::Read::read_to_end(&mut &stream, &mut request).expect("the end of the connection");
}
