//! Which folders become a repository, and what a disk that refuses looks like.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use reef_release::{ReleaseError, ReleaseRepo};
use tempfile::TempDir;

use crate::fixture::{Fixture, adapter_files, git, manifest, noise};

#[test]
fn an_absent_and_an_empty_folder_become_repositories_that_open_again() {
    let folder = TempDir::new().expect("folder");
    let absent = folder.path().join("deep/releases.git");
    ReleaseRepo::open(&absent).expect("made");
    ReleaseRepo::open(&absent).expect("opened");
    assert_eq!(git(&absent, &["rev-parse", "--is-bare-repository"]).trim(), "true");
    let empty = TempDir::new().expect("empty");
    ReleaseRepo::open(empty.path()).expect("made in an empty folder");
    let left: Vec<_> = fs::read_dir(folder.path().join("deep")).expect("list").collect();
    assert_eq!(left.len(), 1, "nothing is left beside it: {left:?}");
}

#[test]
fn a_folder_that_is_something_else_is_refused() {
    let folder = TempDir::new().expect("folder");
    let refusal = |path: &Path| ReleaseRepo::open(path).expect_err("refused").to_string();
    let file = folder.path().join("file");
    fs::write(&file, "text").expect("file");
    assert!(refusal(&file).contains("it is a file; name a folder that is absent"), "{}", refusal(&file));
    assert!(refusal(folder.path()).contains("it is not a git repository"), "{}", refusal(folder.path()));
    let project = folder.path().join("project");
    fs::create_dir(&project).expect("folder");
    git(&project, &["init"]);
    assert!(refusal(&project).contains("git repository"), "{}", refusal(&project));
    assert!(refusal(&project.join(".git")).contains("working tree"), "{}", refusal(&project.join(".git")));
    assert_eq!(fs::read(&file).expect("still there"), b"text");
}

#[test]
fn two_threads_may_make_the_same_repository() {
    for _ in 0..20 {
        let folder = TempDir::new().expect("folder");
        let path = folder.path().join("releases.git");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| ReleaseRepo::open(&path).expect("made or opened"));
            }
        });
    }
}

#[test]
fn a_read_only_disk_is_a_sentence_and_nothing_is_lost() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, b"0");
    let frozen = ["objects", "lfs/tmp", "lfs/objects", "refs/reef/releases"].map(|folder| fixture.path().join(folder));
    for folder in &frozen {
        fs::set_permissions(folder, Permissions::from_mode(0o555)).expect("read-only");
    }
    let next = manifest("spell", Some(&base));
    if File::create(frozen[0].join("probe")).is_ok() {
        println!("this user may write to read-only folders: only the missing folder is tried");
    } else {
        for files in [adapter_files(&noise(1, 100)), Vec::new()] {
            let refusal = fixture.repo.write(&next, &files).expect_err("read-only");
            assert!(matches!(refusal, ReleaseError::Disk { .. }), "{refusal:?}");
            assert!(
                refusal.to_string().ends_with("make it readable and writable for the user that runs reef"),
                "{refusal}"
            );
        }
    }
    for folder in &frozen {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("writable");
    }
    fs::remove_dir(&frozen[1]).expect("gone");
    let refusal = fixture.repo.write(&next, &adapter_files(&noise(1, 100))).expect_err("no folder").to_string();
    assert!(
        refusal.starts_with("release repository: cannot create a file in ") && refusal.contains("lfs/tmp"),
        "{refusal}"
    );
    assert!(
        ReleaseRepo::open(Path::new("/proc/reef/releases.git"))
            .expect_err("no such disk")
            .to_string()
            .contains("/proc/reef")
    );
    fixture.repo.check(&base.release_id).expect("intact");
}

#[test]
fn temporary_files_of_a_killed_process_are_removed_when_they_are_old() {
    let fixture = Fixture::new();
    let (old, fresh) = (fixture.path().join("lfs/tmp/.tmpold"), fixture.path().join("lfs/tmp/.tmpnew"));
    let long_ago = SystemTime::now() - Duration::from_secs(2 * 60 * 60);
    File::create(&old).and_then(|file| file.set_modified(long_ago)).expect("old");
    File::create(&fresh).expect("fresh");
    ReleaseRepo::open(&fixture.path()).expect("opened");
    assert!(!old.exists() && fresh.exists());
}
