//! A process that is killed while it writes leaves only whole releases behind.

use std::process::{Command, Stdio};
use std::time::Duration;

use reef_core::ReleaseManifest;
use reef_release::ReleaseRepo;

use crate::fixture::{Fixture, adapter_files, manifest, name, noise, release_id, tenant};

const REPOSITORY: &str = "REEF_TEST_RELEASES";
const ROUNDS: u64 = 12;

/// The process that gets killed; as a test of its own it has nothing to do.
#[test]
fn writes_until_killed() {
    let Some(path) = std::env::var_os(REPOSITORY) else { return };
    let repo = ReleaseRepo::open(path.as_ref()).expect("opened");
    let seed = u64::from(std::process::id());
    for step in 0.. {
        let head = repo.log(&tenant(), &name("spell"), 1).expect("log").pop();
        let next: ReleaseManifest = manifest("spell", head.as_ref());
        let written = repo.write(&next, &adapter_files(&noise(seed * 1_000 + step, 200_000))).expect("written");
        repo.advance(&tenant(), &name("spell"), head.as_ref().map(|head| &head.release_id), &written.release_id)
            .expect("advanced");
    }
}

#[test]
fn a_killed_writer_leaves_whole_releases_and_a_head_that_moves_on() {
    let fixture = Fixture::new();
    let program = std::env::current_exe().expect("this program");
    for round in 0..ROUNDS {
        let mut writer = Command::new(&program)
            .args(["--exact", "crash::writes_until_killed"])
            .env(REPOSITORY, fixture.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        std::thread::sleep(Duration::from_millis(60 + 17 * round));
        writer.kill().expect("killed");
        writer.wait().expect("ended");
        let listed = fixture.git(&["for-each-ref", "--format=%(objectname)"]);
        for id in listed.lines() {
            fixture.repo.release(&release_id(id)).expect("whole");
            fixture.repo.files(&release_id(id)).expect("whole");
        }
    }
    let head = fixture.repo.log(&tenant(), &name("spell"), usize::MAX).expect("log");
    println!("killed {ROUNDS} writers, {} releases survive", head.len());
    let head = head.first().expect("the writers got somewhere");
    fixture.repo.check(&head.release_id).expect("intact");
    fixture.release("spell", Some(head), b"after the crash");
    fixture.fsck_is_clean();
}
