//! The ordinary git client, with and without Git LFS, on a repository of releases.

use std::fs;
use std::path::Path;

use crate::fixture::{Fixture, adapter_files, git, manifest, name, noise, tenant, try_git};

/// Two releases of one scenario; the adapter of the second.
fn published(fixture: &Fixture) -> Vec<u8> {
    let adapter = noise(2, 300_000);
    let base = fixture.release("spell", None, &noise(1, 300_000));
    fixture.release("spell", Some(&base), &adapter);
    adapter
}

#[test]
fn an_ordinary_clone_lists_the_history_and_holds_the_pointers() {
    let fixture = Fixture::new();
    let adapter = published(&fixture);
    git(fixture.folder.path(), &["clone", "--quiet", "releases.git", "clone"]);
    let clone = fixture.folder.path().join("clone");
    let log = git(&clone, &["log", "--format=%an <%ae> %s"]);
    let expected = "Reef <reef@localhost> r1 of acme/spell: step 1\nReef <reef@localhost> r0 of acme/spell: base\n";
    assert_eq!(log, expected);
    let pointer = fs::read_to_string(clone.join("adapter.safetensors")).expect("checked out");
    let sha256 = reef_core::sha256_hex(&adapter);
    assert_eq!(pointer, format!("version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize 300000\n"));
    assert_eq!(fs::read(fixture.object(&adapter)).expect("object"), adapter);
    assert_eq!(fs::read(clone.join("adapter.json")).expect("plain"), b"{\"rank\":16}");
    let diff = git(&clone, &["diff", "--stat", "HEAD~1", "HEAD"]);
    assert!(diff.contains("manifest.json") && !diff.contains("adapter.json"), "{diff}");
    fixture.fsck_is_clean();
}

#[test]
fn a_clone_with_the_lfs_client_holds_the_weights() {
    let fixture = Fixture::new();
    let adapter = published(&fixture);
    let home = fixture.folder.path();
    if !try_git(home, home, &["lfs", "version"]).status.success() {
        println!("git lfs is not installed: only pointers and the layout of objects are checked, by the other test");
        return;
    }
    let source = fixture.path();
    let run = |folder: &Path, arguments: &[&str]| {
        let output = try_git(folder, home, arguments);
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    for (clone, remote) in
        [("by-path", source.display().to_string()), ("by-url", format!("file://{}", source.display()))]
    {
        run(home, &["clone", "--quiet", &remote, clone]);
        let clone = home.join(clone);
        run(&clone, &["lfs", "install", "--local"]);
        run(&clone, &["lfs", "pull"]);
        assert_eq!(fs::read(clone.join("adapter.safetensors")).expect("pulled"), adapter);
        run(&clone, &["lfs", "fsck"]);
        run(&clone, &["checkout", "--quiet", "HEAD~1"]);
        assert_eq!(fs::read(clone.join("adapter.safetensors")).expect("older"), noise(1, 300_000));
        let changed = try_git(&clone, home, &["status", "--porcelain"]).stdout;
        assert!(changed.is_empty(), "{}", String::from_utf8_lossy(&changed));
    }
    run(home, &["lfs", "install"]);
    run(home, &["clone", "--quiet", &source.display().to_string(), "in-one-step"]);
    assert_eq!(fs::read(home.join("in-one-step/adapter.safetensors")).expect("cloned"), adapter);
}

#[test]
fn garbage_collection_keeps_candidates_and_heads() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, b"0");
    let candidate = fixture.repo.write(&manifest("spell", Some(&base)), &adapter_files(b"candidate")).expect("written");
    fixture.git(&["gc", "--quiet", "--prune=now"]);
    assert!(!fixture.path().join("refs/heads/acme/spell").exists(), "git packed the references");
    fixture.repo.check(&candidate.release_id).expect("kept");
    assert_eq!(fixture.repo.head(&tenant(), &name("spell")).expect("head"), Some(base.release_id.clone()));
    let again = fixture.repo.write(&manifest("spell", Some(&base)), &adapter_files(b"candidate")).expect("again");
    assert_eq!(again, candidate);
    fixture.repo.advance(&tenant(), &name("spell"), None, &candidate.release_id).expect_err("a packed head is a head");
    let expected = Some(&base.release_id);
    fixture.repo.advance(&tenant(), &name("spell"), expected, &candidate.release_id).expect("from a packed head");
    fixture.release("other", None, b"0");
    fixture.fsck_is_clean();
}
