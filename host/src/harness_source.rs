//! A harness on this machine's disk: a folder with a tree's files, as a release's branch has them, or a JSON file. The
//! `reef harness` commands read it; it asks no server. What is not a plain file is refused, and everything is bounded.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use reef_harness::{TREE_BYTES_MAX, Tree, read_mutations};
use serde_json::Value;

use crate::error::StartError;
use crate::scenarios::HarnessContent;

/// Files of a folder; a tree holds fewer.
const FILES_MAX: usize = 20_000;
/// Folders within each other; a tree needs seven.
const DEPTH_MAX: usize = 8;
/// Bytes of a JSON file: a whole tree with every character escaped.
const JSON_BYTES_MAX: u64 = 8 * TREE_BYTES_MAX as u64;
/// What lies beside the tree in a checkout of a release.
const NOT_OF_THE_TREE: [&str; 4] = [".git", ".gitattributes", "manifest.json", "release.sig"];

/// Reads a folder, the answer of `GET /reef/harness`, or a list of mutations of the empty tree.
pub fn read(path: &Path) -> Result<HarnessContent, StartError> {
    let refused = |problem: String| StartError::Config(format!("{}: {problem}", path.display()));
    let found = fs::metadata(path).map_err(|error| refused(format!("{error}; name a folder or a JSON file")))?;
    if found.is_dir() {
        let mut files = Vec::new();
        walk(path, "", &mut files).map_err(&refused)?;
        return HarnessContent::from_files(&files).map_err(&refused);
    }
    if !found.is_file() || found.len() > JSON_BYTES_MAX {
        return Err(refused(format!("it is no plain file of at most {JSON_BYTES_MAX} bytes; name another")));
    }
    let bytes = fs::read(path).map_err(|error| refused(error.to_string()))?;
    from_json(&bytes).map_err(refused)
}

/// The tree in an answer of `GET /reef/harness`.
pub fn from_answer(answer: &Value) -> Result<HarnessContent, StartError> {
    from_value(answer).map_err(|problem| StartError::Other(format!("the server's harness cannot be read: {problem}")))
}

fn from_json(bytes: &[u8]) -> Result<HarnessContent, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| format!("it is not JSON: {error}; correct it"))?;
    from_value(&value)
}

fn from_value(value: &Value) -> Result<HarnessContent, String> {
    if value.is_array() {
        let mutations = read_mutations(value).map_err(|error| error.to_string())?;
        let applied = Tree::default().apply(&mutations).map_err(|error| error.to_string())?;
        return Ok(HarnessContent { tree: applied.tree, requires: Vec::new() });
    }
    let part = |name: &str| value.get(name).cloned().unwrap_or_default();
    let files: BTreeMap<String, String> = serde_json::from_value(part("files"))
        .map_err(|_| "it is neither an answer of GET /reef/harness nor a list of mutations; name another".to_owned())?;
    let tree = Tree::from_files(files.iter().map(|(path, text)| (path.as_str(), text.as_bytes())));
    let requires = match part("requires") {
        Value::Null => Vec::new(),
        requires => serde_json::from_value(requires).map_err(|error| format!("requires: {error}"))?,
    };
    Ok(HarnessContent { tree: tree.map_err(|error| error.to_string())?, requires })
}

/// The files under a folder, by their path in the tree.
fn walk(folder: &Path, prefix: &str, files: &mut Vec<(String, Vec<u8>)>) -> Result<(), String> {
    if prefix.matches('/').count() > DEPTH_MAX {
        return Err(format!("{prefix}: more than {DEPTH_MAX} folders within each other; a tree has fewer"));
    }
    let told = |error: std::io::Error| format!("{prefix}: {error}");
    for entry in fs::read_dir(folder).map_err(told)? {
        let entry = entry.map_err(told)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if prefix.is_empty() && NOT_OF_THE_TREE.contains(&name.as_str()) {
            continue;
        }
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().map_err(told)?;
        if kind.is_dir() {
            walk(&entry.path(), &format!("{path}/"), files)?;
        } else if !kind.is_file() {
            return Err(format!("{path}: it is a link or a device; put a plain file in its place"));
        } else if files.len() >= FILES_MAX || entry.metadata().map_err(told)?.len() > TREE_BYTES_MAX as u64 {
            return Err(format!("{path}: more than {FILES_MAX} files, or one of more than {TREE_BYTES_MAX} bytes"));
        } else {
            files.push((path, fs::read(entry.path()).map_err(told)?));
        }
    }
    Ok(())
}

/// Writes files into a folder that is absent or empty; nobody else may read them.
pub fn write<'a>(folder: &Path, files: impl Iterator<Item = (&'a str, &'a str)>) -> Result<(), StartError> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let refused =
        |path: PathBuf| move |error: std::io::Error| StartError::Config(format!("{}: {error}", path.display()));
    fs::create_dir_all(folder).map_err(refused(folder.to_owned()))?;
    if fs::read_dir(folder).map_err(refused(folder.to_owned()))?.next().is_some() {
        let told = format!("{} is not empty; name a new folder with --out", folder.display());
        return Err(StartError::Config(told));
    }
    for (path, text) in files {
        let place = folder.join(path);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).map_err(refused(place.clone()))?;
        }
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&place);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(refused(place))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(path: &Path) -> String {
        read(path).expect_err("refused").to_string()
    }

    #[test]
    fn a_checkout_an_answer_and_mutations_are_the_same_tree() {
        let folder = tempfile::tempdir().expect("a folder");
        let rules = folder.path().join("rules/style");
        fs::create_dir_all(&rules).expect("made");
        fs::write(rules.join("text.md"), "Be brief.\n").expect("written");
        fs::write(folder.path().join("manifest.json"), "{}").expect("written");
        let read_folder = read(folder.path()).expect("a tree");
        assert_eq!(read_folder.tree.entries().count(), 1);
        for (name, text) in [
            ("answer.json", r#"{"files":{"rules/style/text.md":"Be brief.\n"},"requires":[]}"#),
            ("mutations.json", r#"[{"op":"create","kind":"rules","id":"style","config":{"text":"Be brief.\n"}}]"#),
        ] {
            let file = tempfile::tempdir().expect("a folder");
            let path = file.path().join(name);
            fs::write(&path, text).expect("written");
            assert_eq!(read(&path).expect(name), read_folder);
        }
    }

    #[test]
    fn what_is_no_tree_is_told_with_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        assert!(told(&path("absent")).contains("absent"));
        fs::write(path("bad.json"), "{").expect("written");
        assert!(told(&path("bad.json")).contains("not JSON"));
        fs::write(path("other.json"), "{}").expect("written");
        assert!(told(&path("other.json")).contains("GET /reef/harness"));
        fs::remove_file(path("bad.json")).expect("removed");
        assert!(told(folder.path()).contains("other.json"), "a stray file");
        fs::remove_file(path("other.json")).expect("removed");
        std::os::unix::fs::symlink("/etc", path("rules")).expect("linked");
        assert!(told(folder.path()).contains("rules: it is a link"));
    }

    #[test]
    fn nothing_that_is_there_is_written_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().join("a/out");
        write(&out, [("b/c", "text")].into_iter()).expect("written");
        assert_eq!(fs::read_to_string(out.join("b/c")).expect("read"), "text");
        assert!(write(&out, std::iter::empty()).expect_err("refused").to_string().contains("not empty"));
    }
}
