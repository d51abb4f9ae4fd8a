//! Damaged bytes never reach a caller, and the error names the file.

use std::fs;
use std::path::{Path, PathBuf};

use reef_core::Release;
use reef_release::ReleaseError;

use crate::fixture::{Fixture, adapter_files, file, manifest, noise};

pub fn overwrite(path: &Path, bytes: &[u8]) {
    // Git objects are read-only files.
    fs::remove_file(path).expect("there");
    fs::write(path, bytes).expect("overwritten");
}

fn corruption(fixture: &Fixture, release: &Release, path: &str) -> String {
    let file = fixture.repo.file(&release.release_id, path).expect_err("damaged");
    let files = fixture.repo.files(&release.release_id).expect_err("damaged");
    let verify = fixture.repo.check(&release.release_id).expect_err("damaged");
    for error in [&file, &files, &verify] {
        assert!(matches!(error, ReleaseError::Corrupt(_)), "{error}");
    }
    file.to_string()
}

#[test]
fn a_flipped_byte_in_an_lfs_object_is_found_and_named() {
    let fixture = Fixture::new();
    let adapter = noise(1, 5_000);
    let release = fixture.release("spell", None, &adapter);
    let mut damaged = adapter.clone();
    damaged[4_000] ^= 1;
    overwrite(&fixture.object(&adapter), &damaged);
    let told = corruption(&fixture, &release, "adapter.safetensors");
    assert!(told.starts_with("release r0 of acme/spell ("), "{told}");
    assert!(told.contains("file adapter.safetensors: sha256 differs") && told.contains("roll back"), "{told}");
    assert_eq!(fixture.repo.file(&release.release_id, "adapter.json").expect("undamaged"), b"{\"rank\":16}");
}

#[test]
fn a_truncated_and_a_missing_lfs_object_are_named() {
    let fixture = Fixture::new();
    let adapter = noise(1, 5_000);
    let release = fixture.release("spell", None, &adapter);
    overwrite(&fixture.object(&adapter), &adapter[..100]);
    assert!(corruption(&fixture, &release, "adapter.safetensors").contains("file adapter.safetensors: size differs"));
    fs::remove_file(fixture.object(&adapter)).expect("removed");
    assert!(corruption(&fixture, &release, "adapter.safetensors").contains("file adapter.safetensors: LFS object "));
}

#[test]
fn writing_the_same_bytes_again_repairs_a_damaged_object() {
    let fixture = Fixture::new();
    let adapter = noise(1, 5_000);
    let release = fixture.release("spell", None, &adapter);
    overwrite(&fixture.object(&adapter), b"half");
    overwrite(&blob(&fixture, &release, "adapter.json"), b"");
    fixture.repo.check(&release.release_id).expect_err("damaged");
    let again = fixture.repo.write(&manifest("spell", None), &adapter_files(&adapter)).expect("written");
    assert_eq!(again, release);
    fixture.repo.check(&release.release_id).expect("repaired");
    fixture.fsck_is_clean();
}

#[test]
fn an_object_that_the_disk_does_not_give_is_not_called_damaged() {
    let fixture = Fixture::new();
    let release = fixture.release("spell", None, b"weights");
    let object = fixture.object(b"weights");
    fs::remove_file(&object).expect("removed");
    // A link to itself cannot be opened, by no user.
    std::os::unix::fs::symlink(&object, &object).expect("link");
    let told = fixture.repo.file(&release.release_id, "adapter.safetensors").expect_err("unreadable");
    assert!(matches!(told, ReleaseError::Disk { .. }), "{told}");
}

fn blob(fixture: &Fixture, release: &Release, path: &str) -> PathBuf {
    object(fixture, &format!("{}:{path}", release.release_id))
}

pub fn object(fixture: &Fixture, revision: &str) -> PathBuf {
    let id = fixture.git(&["rev-parse", revision]);
    let (folder, name) = id.trim().split_at(2);
    fixture.path().join("objects").join(folder).join(name)
}

#[test]
fn damaged_git_objects_are_named() {
    for path in ["adapter.json", "adapter.safetensors", "skills/a.md"] {
        let fixture = Fixture::new();
        let files = [adapter_files(b"weights"), vec![file("skills/a.md", b"a skill")]].concat();
        let release = fixture.repo.write(&manifest("spell", None), &files).expect("written");
        let (damaged, other) = (blob(&fixture, &release, path), blob(&fixture, &release, "manifest.json"));
        overwrite(&damaged, b"not an object");
        assert!(corruption(&fixture, &release, path).contains(&format!("file {path}: git object ")));
        overwrite(&damaged, &fs::read(other).expect("another object"));
        assert!(corruption(&fixture, &release, path).contains(&format!("file {path}: git object ")));
        fs::remove_file(damaged).expect("removed");
        assert!(corruption(&fixture, &release, path).contains(&format!("file {path}: its git object is missing")));
    }
}

#[test]
fn a_commit_that_is_not_a_release_and_files_that_nobody_listed_are_refused() {
    let fixture = Fixture::new();
    let release = fixture.release("spell", None, b"0");
    let commit = |tree: &str| {
        let made = fixture.git(&["commit-tree", "-m", &format!("content-id: {}", release.content_id), tree]);
        crate::fixture::release_id(made.trim())
    };
    let foreign = commit("4b825dc642cb6eb9a060e54bf8d69288fbee4904");
    let told = fixture.repo.release(&foreign).expect_err("no manifest").to_string();
    assert!(told.contains("the commit has no manifest.json, it is not a release"), "{told}");
    let listing = fixture.git(&["ls-tree", release.release_id.as_str()]);
    let extra =
        listing.lines().find(|line| line.ends_with("adapter.json")).expect("listed").replace("adapter.json", "zzz.md");
    let padded = commit(&fixture.mktree(&format!("{listing}{extra}\n")));
    let told = fixture.repo.check(&padded).expect_err("extra file").to_string();
    assert!(told.contains("file zzz.md: it is not in the manifest"), "{told}");
}
