//! What is written comes back; identity depends on content alone.

use std::fs;

use reef_core::{ReleaseOrigin, sha256_hex};
use reef_release::ReleaseError;

use crate::fixture::{Fixture, adapter_files, file, manifest, name, noise, release_id, tenant};

#[test]
fn files_and_manifest_come_back_as_written() {
    let fixture = Fixture::new();
    let files = vec![
        file("adapter.safetensors", &noise(1, 100_000)),
        file("skills/spell/SKILL.md", "Spell – carefully.\r\n".as_bytes()),
        file("skills/empty.txt", b""),
        file("empty.safetensors", b""),
        file("skills.md", b"sorts between a folder and its files"),
    ];
    let written = fixture.repo.write(&manifest("spell", None), &files).expect("written");
    assert_eq!(written.manifest, manifest("spell", None));
    assert_eq!(fixture.repo.release(&written.release_id).expect("listed"), written);
    let mut expected: Vec<_> = files.iter().map(|file| (file.path.clone(), file.bytes.clone())).collect();
    expected.sort();
    assert_eq!(fixture.repo.files(&written.release_id).expect("files"), expected);
    for (path, bytes) in expected {
        assert_eq!(fixture.repo.file(&written.release_id, &path).expect("file"), bytes, "{path}");
    }
    fixture.repo.verify(&written.release_id).expect("intact");
    fixture.repo.advance(&tenant(), &name("spell"), None, &written.release_id).expect("advanced");
    fixture.fsck_is_clean();
}

#[test]
fn writing_again_gives_the_same_release_whatever_the_order_of_the_files() {
    let (first, second) = (Fixture::new(), Fixture::new());
    let mut files = adapter_files(b"weights");
    let written = first.repo.write(&manifest("spell", None), &files).expect("written");
    assert_eq!(first.repo.write(&manifest("spell", None), &files).expect("again"), written);
    files.reverse();
    assert_eq!(second.repo.write(&manifest("spell", None), &files).expect("elsewhere"), written);
}

#[test]
fn a_rollback_has_the_content_id_of_its_target_and_its_own_release_id() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, b"one");
    let step = fixture.release("spell", Some(&base), b"two");
    let mut rollback = manifest("spell", Some(&step));
    rollback.origin = ReleaseOrigin::Rollback { to: base.release_id.clone() };
    let back = fixture.repo.write(&rollback, &adapter_files(b"one")).expect("written");
    assert_eq!(back.content_id, base.content_id);
    assert_ne!(back.content_id, step.content_id);
    assert_ne!(back.release_id, base.release_id);
}

#[test]
fn the_content_id_is_the_hash_of_the_canonical_list_of_files() {
    let fixture = Fixture::new();
    let written = fixture.repo.write(&manifest("spell", None), &adapter_files(b"weights")).expect("written");
    let entry = |path: &str, bytes: &[u8]| {
        format!(r#"{{"path":"{path}","sha256":"{}","size":{}}}"#, sha256_hex(bytes), bytes.len())
    };
    let list = format!("[{},{}]", entry("adapter.json", b"{\"rank\":16}"), entry("adapter.safetensors", b"weights"));
    assert_eq!(written.content_id.as_str(), sha256_hex(list.as_bytes()));
}

#[test]
fn equal_weights_are_stored_once() {
    let fixture = Fixture::new();
    let adapter = noise(3, 10_000);
    let base = fixture.release("spell", None, &adapter);
    let made = fs::metadata(fixture.object(&adapter)).expect("object").modified().expect("time");
    fixture.release("spell", Some(&base), &adapter);
    fixture.release("other", None, &adapter);
    assert_eq!(fs::metadata(fixture.object(&adapter)).expect("object").modified().expect("time"), made);
    let found = walk(&fixture.path().join("lfs"));
    assert_eq!(found, [fixture.object(&adapter)]);
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).expect("folder").map(|entry| entry.expect("entry").path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[test]
fn the_log_lists_the_chain_newest_first_up_to_the_limit() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, b"0");
    let one = fixture.release("spell", Some(&base), b"1");
    let two = fixture.release("spell", Some(&one), b"2");
    let log = |limit| fixture.repo.log(&tenant(), &name("spell"), limit).expect("log");
    assert_eq!(log(10), [two.clone(), one.clone(), base]);
    assert_eq!(log(2), [two, one]);
    assert_eq!(log(0), []);
    assert_eq!(fixture.repo.log(&tenant(), &name("unknown"), 10).expect("log"), []);
}

#[test]
fn the_log_of_a_fork_ends_where_the_other_scenario_begins() {
    let fixture = Fixture::new();
    let origin = fixture.release("spell", None, b"0");
    let mut fork = manifest("fork", None);
    fork.parent = Some(origin.release_id.clone());
    let base = fixture.repo.write(&fork, &adapter_files(b"0")).expect("written");
    fixture.repo.advance(&tenant(), &name("fork"), None, &base.release_id).expect("advanced");
    assert_eq!(fixture.repo.log(&tenant(), &name("fork"), 10).expect("log"), [base]);
}

#[test]
fn bad_input_is_refused_with_a_sentence_and_leaves_nothing() {
    let fixture = Fixture::new();
    let refusal = |manifest, files: &[_]| fixture.repo.write(&manifest, files).expect_err("refused").to_string();
    let twice = [file("a.md", b"1"), file("a.md", b"2")];
    assert_eq!(
        refusal(manifest("s", None), &twice),
        "release file 'a.md': each path occurs once, in order; rename the file"
    );
    let nested = [file("a", b"1"), file("a/b", b"2")];
    assert!(refusal(manifest("s", None), &nested).contains("one of its folders is also a file"));
    let escaping = [file("../a", b"1")];
    assert!(refusal(manifest("s", None), &escaping).contains("without empty names"));
    let mut bad = manifest("s", None);
    bad.metrics.insert("loss".to_owned(), f64::NAN);
    assert!(refusal(bad, &[]).contains("metric 'loss' is not a finite number"));
    let mut early = manifest("s", None);
    early.created_at_ms = -1;
    assert!(refusal(early, &[]).contains("created_at_ms"));
    let mut orphan = manifest("s", None);
    orphan.parent = Some(release_id(&"ab".repeat(20)));
    assert!(refusal(orphan, &[]).starts_with("release abababab"));
    assert_eq!(fixture.git(&["for-each-ref"]), "");
}

#[test]
fn what_is_not_there_is_said_by_name() {
    let fixture = Fixture::new();
    let written = fixture.release("spell", None, b"weights");
    let absent = fixture.repo.file(&written.release_id, "skills/none.md").expect_err("absent").to_string();
    assert!(
        absent.starts_with("release r0 of acme/spell (") && absent.contains("there is no file skills/none.md"),
        "{absent}"
    );
    let own = fixture.repo.file(&written.release_id, "manifest.json").expect_err("not a payload file");
    assert!(matches!(own, ReleaseError::NoFile { .. }));
    let unknown = fixture.repo.release(&release_id(&"0".repeat(40))).expect_err("unknown");
    assert!(matches!(unknown, ReleaseError::NotFound { .. }));
}
