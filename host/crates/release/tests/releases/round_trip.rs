//! What is written comes back; identity depends on content alone.

use std::fs;

use reef_core::{DecidedBy, ReleaseDecision, ReleaseEvaluation, ReleaseOrigin, ReleaseVerdict, sha256_hex};
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
    fixture.repo.check(&written.release_id).expect("intact");
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
    let found = walk(&fixture.path().join("lfs/objects"));
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
fn a_manifest_tells_why_a_release_exists_and_who_let_it_through() {
    let fixture = Fixture::new();
    let base = fixture.release("spell", None, b"0");
    let mut full = manifest("spell", Some(&base));
    full.records = Some(sha256_hex(b"record-1\nrecord-2"));
    full.evaluation = Some(ReleaseEvaluation {
        tasks: sha256_hex(b"tasks"),
        compared: 12,
        candidate: Some(0.75),
        incumbent: Some(0.1 + 0.2),
        weights: Some(base.release_id.clone()),
    });
    full.decision = Some(ReleaseDecision {
        verdict: ReleaseVerdict::Held,
        by: DecidedBy::Person { name: Some("ada".to_owned()) },
        reason: "too good to be true".to_owned(),
    });
    let written = fixture.repo.write(&full, &adapter_files(b"1")).expect("written");
    assert_eq!(fixture.repo.release(&written.release_id).expect("read").manifest, full);
    let text = fixture.git(&["show", &format!("{}:manifest.json", written.release_id)]);
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for (field, value) in [
        ("/parent", base.release_id.as_str()),
        ("/scenario", "spell"),
        ("/surface", "weights"),
        ("/recipe", "sao@0.1.0"),
        ("/origin/kind", "step"),
        ("/base_model", &full.base_model),
        ("/records", &sha256_hex(b"record-1\nrecord-2")),
        ("/decision/verdict", "held"),
        ("/decision/by/kind", "person"),
        ("/decision/by/name", "ada"),
    ] {
        assert_eq!(json.pointer(field).and_then(|found| found.as_str()), Some(value), "{field}");
    }
    assert_eq!(
        (&json["seed"], &json["origin"]["step"], &json["evaluation"]["compared"]),
        (&7.into(), &1.into(), &12.into())
    );
    full.evaluation = full.evaluation.map(|measured| ReleaseEvaluation { candidate: Some(f64::NAN), ..measured });
    let refusal = fixture.repo.write(&full, &[]).expect_err("refused").to_string();
    assert!(refusal.contains("a score of the evaluation is not a finite number"), "{refusal}");
}

#[test]
fn a_manifest_of_an_earlier_version_reads_and_keeps_its_id() {
    let fixture = Fixture::new();
    let written = fixture.release("spell", None, b"weights");
    let text = fixture.git(&["show", &format!("{}:manifest.json", written.release_id)]);
    // The commit of these bytes as the version before evaluation and decision wrote it.
    assert!(!text.contains("evaluation") && !text.contains("decision"), "{text}");
    assert_eq!(written.release_id.as_str(), "30657f5ed35fd736bf7cae3de309b68cbe5c22ad");
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
    let mut early = manifest("s", None);
    early.parent = Some(fixture.repo.write(&manifest("s", None), &[]).expect("a base").release_id);
    assert!(refusal(early.clone(), &[]).contains("its sequence is 0 and its parent's is 0"));
    (early.scenario, early.sequence) = (name("other"), 1);
    assert!(refusal(early, &[]).contains("its parent belongs to scenario 's'"));
    let mut orphan = manifest("s", None);
    orphan.parent = Some(release_id(&"ab".repeat(20)));
    assert!(refusal(orphan, &[]).starts_with("release abababab"));
    assert_eq!(fixture.git(&["for-each-ref"]).lines().count(), 1, "only the base");
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
