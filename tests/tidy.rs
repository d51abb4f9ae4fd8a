//! The house rules that a program can check.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::root;

/// Lines of one file.
const FILE_LINES_MAX: usize = 500;
/// Crates that never import each other; they meet in the binary.
const SIBLINGS: [&str; 8] = ["store", "sandbox", "engine", "release", "registry", "intake", "harness", "episodes"];
/// Where each foreign world may be named.
const WORLDS: [(&str, &str); 6] = [
    ("sqlx", "store"),
    ("wasmtime", "sandbox"),
    ("tch", "engine"),
    ("gix", "release"),
    ("axum", "reef"),
    ("clap", "reef"),
];

fn tracked() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    let listing = String::from_utf8(output.stdout).expect("names are UTF-8");
    listing.lines().map(|line| root().join(line)).filter(|path| path.is_file()).collect()
}

fn rust_files() -> Vec<(PathBuf, String)> {
    let rust = tracked().into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
    rust.map(|path| (path.clone(), fs::read_to_string(path).expect("readable"))).collect()
}

/// Dependencies of each package of the workspace, without dev-dependencies.
fn manifests() -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for path in tracked().into_iter().filter(|path| path.ends_with("Cargo.toml")) {
        let text = fs::read_to_string(&path).expect("readable");
        let (mut section, mut name, mut dependencies) = (String::new(), String::new(), Vec::new());
        for line in text.lines() {
            if line.starts_with('[') {
                section = line.to_owned();
            } else if let Some((key, value)) = line.split_once('=') {
                match section.as_str() {
                    "[package]" if key.trim() == "name" => name = value.trim().trim_matches('"').to_owned(),
                    "[dependencies]" => dependencies.push(key.trim().trim_end_matches(".workspace").to_owned()),
                    _ => {}
                }
            }
        }
        if !name.is_empty() {
            found.insert(name, dependencies);
        }
    }
    found
}

#[test]
fn siblings_never_import_each_other_and_each_world_has_one_crate() {
    let manifests = manifests();
    for sibling in SIBLINGS {
        for other in SIBLINGS {
            assert!(
                !manifests[&format!("reef-{sibling}")].contains(&format!("reef-{other}")),
                "{sibling} imports {other}"
            );
        }
    }
    for (world, home) in WORLDS {
        for (package, dependencies) in &manifests {
            let at_home = package == home || *package == format!("reef-{home}");
            assert!(
                at_home || !dependencies.iter().any(|d| d == world),
                "{package} depends on {world}, which belongs to {home}"
            );
        }
    }
}

#[test]
fn dependencies_stay_few() {
    let manifests = manifests();
    for (package, most) in [
        ("reef-core", 6),
        ("reef-store", 20),
        ("reef-sandbox", 20),
        ("reef-engine", 20),
        ("reef-release", 20),
        ("reef-registry", 20),
        ("reef-intake", 20),
        ("reef-harness", 10),
        ("reef-episodes", 10),
        ("reef", 35),
    ] {
        let count = manifests[package].len();
        assert!(count <= most, "{package} has {count} dependencies; at most {most}");
    }
}

#[test]
fn files_fit_the_readers_head_and_say_what_they_are() {
    for (path, text) in rust_files() {
        let lines = text.lines().count();
        assert!(lines <= FILE_LINES_MAX, "{}: {lines} lines; split it (at most {FILE_LINES_MAX})", path.display());
        assert!(text.starts_with("//!") || text.starts_with("#!["), "{}: it has no header comment", path.display());
    }
}

#[test]
fn nothing_is_left_unfinished_or_silenced() {
    let words = [
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["todo", "!("].concat(),
        ["unimplemented", "!("].concat(),
        ["#[al", "low("].concat(),
    ];
    for (path, text) in rust_files() {
        for (number, line) in text.lines().enumerate() {
            assert!(
                !words.iter().any(|word| line.contains(word.as_str())),
                "{}:{}: {line}",
                path.display(),
                number + 1
            );
        }
    }
}

#[test]
fn the_documents_name_files_that_exist() {
    for document in ["README.md", "host/ARCHITECTURE.md"] {
        let text = fs::read_to_string(root().join(document)).expect("the document exists");
        let folder = root().join(document).parent().map(Path::to_path_buf).expect("a folder");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let local = !link.contains("://") && !link.starts_with('#');
            assert!(!local || folder.join(link).exists(), "{document} links to {link}, which is not there");
        }
    }
}

#[test]
fn build_artefacts_stay_out_of_git() {
    for path in tracked() {
        // Components that every later host must load are kept as they were once built.
        if path.starts_with(root().join("tests/corpus")) {
            continue;
        }
        let size = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        assert!(size < 1_000_000, "{} has {size} bytes", path.display());
        let artefact =
            path.extension().is_some_and(|ending| ["wasm", "so", "gguf", "whl"].iter().any(|a| ending == *a));
        assert!(!artefact, "{} is a build artefact", path.display());
    }
}
