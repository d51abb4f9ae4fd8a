//! Push and pull over HTTP, with git-lfs and a server of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reef_core::Release;
use reef_release::{ProblemKind, PullOptions, PullReport, ReleaseRepo, Remote, RemoteError};

use crate::fixture::{Fixture, git, name, noise, tenant, try_git};
use crate::server::Server;

/// No test waits for it to pass.
const TIME_MAX: Duration = Duration::from_secs(60 * 60);
const ADAPTER_BYTES: usize = 50_000;

/// A server with an empty bare repository; `None` where git-lfs is not installed.
fn server(fixture: &Fixture) -> Option<(Server, Remote, PathBuf)> {
    let root = fixture.folder.path();
    if !try_git(root, root, &["lfs", "version"]).status.success() {
        println!("git lfs is not installed: nothing goes over the network");
        return None;
    }
    git(root, &["init", "--quiet", "--bare", "remote.git"]);
    let server = Server::start(root);
    let remote = Remote::parse("origin", &server.url()).expect("an address");
    Some((server, remote, root.join("remote.git")))
}

fn chain(fixture: &Fixture, length: u64) -> Vec<Release> {
    let mut chain = vec![fixture.release("spell", None, &noise(0, ADAPTER_BYTES))];
    for step in 1..length {
        let next = fixture.release("spell", chain.last(), &noise(step, ADAPTER_BYTES));
        chain.push(next);
    }
    chain
}

fn pull(repo: &ReleaseRepo, remote: &Remote, repair: bool) -> Result<PullReport, RemoteError> {
    repo.pull((&tenant(), &name("spell")), remote, PullOptions { time_max: TIME_MAX, repair })
}

fn object(folder: &Path, adapter: u64) -> PathBuf {
    let sha256 = reef_core::sha256_hex(&noise(adapter, ADAPTER_BYTES));
    folder.join("lfs/objects").join(&sha256[..2]).join(&sha256[2..4]).join(sha256)
}

#[test]
fn a_chain_goes_over_the_network_and_comes_back_byte_for_byte() {
    let (from, to) = (Fixture::new(), Fixture::new());
    let Some((_server, remote, path)) = server(&from) else { return };
    let chain = chain(&from, 3);
    let pushed = from.repo.push((&tenant(), &name("spell")), &remote, TIME_MAX).expect("pushed");
    assert_eq!((pushed.head, pushed.objects), (chain[2].release_id.clone(), 3));
    for adapter in 0..3 {
        assert_eq!(fs::read(object(&path, adapter)).expect("uploaded"), noise(adapter, ADAPTER_BYTES));
    }
    let pulled = pull(&to.repo, &remote, false).expect("pulled");
    assert_eq!((pulled.new.len(), pulled.objects, pulled.bytes), (3, 3, 3 * ADAPTER_BYTES as u64));
    for release in &chain {
        assert_eq!(to.repo.release(&release.release_id).expect("read"), *release);
        assert_eq!(
            to.repo.files(&release.release_id).expect("read"),
            from.repo.files(&release.release_id).expect("read")
        );
    }
    assert_eq!(to.repo.head(&tenant(), &name("spell")).expect("head"), None);
    // A damaged object is fetched again.
    let mut flipped = noise(1, ADAPTER_BYTES);
    flipped[400] ^= 1;
    crate::damage::overwrite(&object(&to.path(), 1), &flipped);
    assert_eq!(pull(&to.repo, &remote, true).expect("pulled").objects, 1);
    to.repo.check(&chain[1].release_id).expect("repaired");
}

#[test]
fn what_a_server_has_lost_or_damaged_is_told() {
    let (from, to) = (Fixture::new(), Fixture::new());
    let Some((_server, remote, path)) = server(&from) else { return };
    let chain = chain(&from, 3);
    from.repo.push((&tenant(), &name("spell")), &remote, TIME_MAX).expect("pushed");
    fs::remove_file(object(&path, 0)).expect("removed");
    let pulled = pull(&to.repo, &remote, false).expect("pulled");
    assert_eq!(pulled.without_objects, std::slice::from_ref(&chain[0].release_id));
    to.repo.check(&chain[2].release_id).expect("whole");

    let fresh = Fixture::new();
    let mut flipped = noise(2, ADAPTER_BYTES);
    flipped[400] ^= 1;
    fs::write(object(&path, 2), flipped).expect("damaged");
    let refusal = pull(&fresh.repo, &remote, false).expect_err("refused");
    match &refusal {
        // git-lfs does not keep what has another hash.
        RemoteError::Unverified { problems, .. } => assert_eq!(problems[0].kind, ProblemKind::ObjectMissing),
        RemoteError::Git { .. } => {}
        other => panic!("{other}"),
    }
    assert_eq!(fresh.git(&["for-each-ref"]), "");
    let absent = Remote::parse("origin", &remote.url().replace("remote.git", "absent.git")).expect("an address");
    let refusal = pull(&fresh.repo, &absent, false).expect_err("refused").to_string();
    assert!(refusal.starts_with("git fetch failed: ") && refusal.contains("check the address"), "{refusal}");
}
