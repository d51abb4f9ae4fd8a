//! The table of attacks in README.md against the sources: every row has tests, and every test exists and says what
//! it expects.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Rows of the table.
const ROWS: u32 = 35;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks")
}

/// Number and tests of each row.
fn rows() -> Vec<(u32, Vec<String>)> {
    let text = std::fs::read_to_string(folder().join("README.md")).expect("the table");
    let row = |line: &str| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let number = cells.next()?.parse().ok()?;
        let tests = cells.nth(1)?.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        Some((number, tests))
    };
    text.lines().filter_map(row).collect()
}

/// The file of `module::test`, `fuzz::module::test` or `registry::module::test`.
fn source(path: &[&str]) -> PathBuf {
    match path {
        ["fuzz", module] => folder().join(format!("../fuzz/{module}.rs")),
        ["registry", module] => folder().join(format!("../../../registry/tests/registry/{module}.rs")),
        [module] => folder().join(format!("{module}.rs")),
        _ => panic!("{path:?} is no module of tests"),
    }
}

#[test]
fn every_row_has_tests() {
    let rows = rows();
    let numbers: Vec<u32> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=ROWS).collect::<Vec<_>>());
    for (number, tests) in rows {
        assert!(!tests.is_empty(), "row {number} names no test");
    }
}

#[test]
fn every_test_of_the_table_exists_and_says_what_it_expects() {
    let named: BTreeSet<String> = rows().into_iter().flat_map(|(_, tests)| tests).collect();
    for name in named {
        let parts: Vec<&str> = name.split("::").collect();
        let (test, path) = parts.split_last().expect("a name");
        let file = source(path);
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let lines: Vec<&str> = text.lines().collect();
        let at = lines
            .iter()
            .position(|line| line.contains(&format!("fn {test}()")))
            .unwrap_or_else(|| panic!("{} has no test {test}", file.display()));
        let header = lines[..at].iter().rev().take_while(|line| line.starts_with("///") || line.starts_with("#["));
        let header: String = header.copied().collect();
        assert!(header.contains("test"), "{name} is no test");
        // Another crate has headers of its own kind.
        assert!(path[0] == "registry" || header.contains('→'), "the header of {name} does not say what is expected");
    }
}
