//! The gate in front of changes of the interface. A released folder under `wit/recipe` never changes again: its digest
//! stands in `wit/recipe/frozen.txt`. A later version of the same track (0.2.1 after 0.2.0) must be compatible with
//! every earlier one; what is not needs a new track, with an adapter of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use wit_component::semver_check;
use wit_parser::{PackageId, Resolve};

const WORLDS_0_1: [&str; 1] = ["weight-recipe"];
const WORLDS: [&str; 5] = ["recipe", "with-migration", "with-live", "with-requests", "verifier"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../wit/recipe")
}

/// Every file of a version, in the order of names.
fn files(version: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(version).expect("a folder").map(|entry| entry.expect("an entry").path());
    let text = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&path).expect("text"))
    };
    entries.map(text).collect()
}

fn digest(version: &Path) -> String {
    let whole: Vec<String> =
        files(version).into_iter().map(|(name, text)| format!("{name}\n{}\n{text}", text.len())).collect();
    reef_core::sha256_hex(whole.concat().as_bytes())
}

/// Released versions and their digests.
fn frozen() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(folder().join("frozen.txt")).expect("the list of released versions");
    let pair =
        |line: &str| line.split_once(' ').map(|(version, digest)| (version.to_owned(), digest.trim().to_owned()));
    text.lines().filter(|line| !line.starts_with('#')).filter_map(pair).collect()
}

fn versions() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).expect("the interface").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<String> = entries
        .filter(|path| path.is_dir())
        .map(|path| path.file_name().expect("a name").to_string_lossy().into_owned())
        .collect();
    found.sort();
    found
}

/// Major and minor number: versions of one track replace each other.
fn track(version: &str) -> &str {
    version.rsplit_once('.').expect("three numbers").0
}

fn package(resolve: &mut Resolve, files: &BTreeMap<String, String>, version: &str) -> PackageId {
    // Two versions of a package live in one resolve under versions of their own.
    let place = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let text = text.replacen("package reef:recipe@", &format!("package reef:recipe@{version}-was."), 1);
        std::fs::write(place.path().join(name), text).expect("written");
    }
    resolve.push_dir(place.path()).expect("valid WIT").0
}

fn compatible(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>, worlds: &[&str]) -> Result<(), String> {
    for world in worlds {
        let mut resolve = Resolve::default();
        let (old, new) = (package(&mut resolve, old, "1.0.0"), package(&mut resolve, new, "2.0.0"));
        let select = |package| resolve.select_world(&[package], Some(world)).expect("the world exists");
        let (old, new) = (select(old), select(new));
        semver_check(resolve.clone(), old, new).map_err(|error| format!("{world}: {error:#}"))?;
    }
    Ok(())
}

fn worlds(track: &str) -> &'static [&'static str] {
    if track == "0.1" { &WORLDS_0_1 } else { &WORLDS }
}

#[test]
fn released_versions_never_change() {
    let frozen = frozen();
    assert!(frozen.contains_key("0.1.0") && frozen.contains_key("0.2.0"), "{frozen:?}");
    for (version, wanted) in &frozen {
        let found = digest(&folder().join(version));
        assert_eq!(found, *wanted, "wit/recipe/{version} was released and differs now; make a new version instead");
    }
}

#[test]
fn later_versions_of_a_track_are_compatible_with_earlier_ones() {
    let versions = versions();
    assert!(versions.len() >= 2, "{versions:?}");
    for pair in versions.windows(2) {
        let [old, new] = pair else { continue };
        if track(old) == track(new) {
            let (old, new) = (files(&folder().join(old)), files(&folder().join(new)));
            compatible(&old, &new, worlds(track(&versions[0]))).expect("compatible");
        }
    }
}

/// The gate itself: what it lets through, and what it does not.
#[test]
fn new_functions_on_imports_pass_and_changed_ones_do_not() {
    let old = files(&folder().join("0.2.0"));
    let changed = |file: &str, from: &str, to: &str| {
        let mut new = old.clone();
        let text = new.get_mut(file).expect("the file");
        assert!(text.contains(from), "{file} contains {from}");
        *text = text.replacen(from, to, 1);
        compatible(&old, &new, &WORLDS)
    };
    assert_eq!(compatible(&old, &old, &WORLDS), Ok(()));
    let added = changed("state.wit", "  delete: func", "  clear: func() -> result<_, state-error>;\n  delete: func");
    assert_eq!(added, Ok(()), "a new function on an imported interface");
    for (file, from, to) in [
        ("state.wit", "get: func(key: string)", "get: func(key: string, again: bool)"),
        ("state.wit", "  keys: func() -> result<list<string>, state-error>;", ""),
        ("types.wit", "    needs-score: bool,", "    needs-score: bool,\n    more: bool,"),
        ("types.wit", "enum decision { promote, hold, reject }", "enum decision { promote, hold, reject, wait }"),
        ("strategy.wit", "describe: func() -> manifest;", "describe: func() -> manifest;\n  again: func();"),
    ] {
        assert!(changed(file, from, to).is_err(), "{file}: '{from}' to '{to}'");
    }
}

/// Guests in every language: no 64-bit integers, no resources, nothing at world level.
#[test]
fn the_interface_keeps_to_what_every_language_can_do() {
    for version in versions() {
        for (name, text) in files(&folder().join(&version)) {
            let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
            let code = code.join("\n");
            for word in ["u64", "s64", "borrow<", "resource ", "stream<", "future<"] {
                assert!(!code.contains(word), "wit/recipe/{version}/{name} uses {word}");
            }
            let documented = text.contains("///");
            assert!(documented, "wit/recipe/{version}/{name} has no documentation");
        }
    }
}
