//! The difference of two sets of files: per file and per line, as data for a page and as text for a terminal. Trees are
//! compared by their files, so that a difference reads like the one that git shows of two releases.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use similar::{ChangeTag, TextDiff};

use crate::tree::Tree;

/// Unchanged lines around a change.
const CONTEXT_LINES: usize = 3;
/// Lines of both sides up to which they are compared one by one; above it, the file counts as replaced. The time of the
/// comparison grows with the square of the lines.
const COMPARED_LINES_MAX: usize = 10_000;

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileChange {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// It has other lines.
    Changed,
}

/// What became of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LineChange {
    /// It is in both.
    Same,
    /// It is new.
    Added,
    /// It is gone.
    Removed,
}

/// A line without its line end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// What became of it.
    pub change: LineChange,
    /// Its text.
    pub text: String,
    /// It is the last line, and no line end follows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unended: bool,
}

/// Changed lines that are close to each other, with unchanged ones around.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hunk {
    /// First line before, from 1; 0 when there is none.
    pub old_start: usize,
    /// Lines before.
    pub old_lines: usize,
    /// First line after, from 1; 0 when there is none.
    pub new_start: usize,
    /// Lines after.
    pub new_lines: usize,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A file that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileDiff {
    /// Its path.
    pub path: String,
    /// What became of it.
    pub change: FileChange,
    /// Where, in order.
    pub hunks: Vec<Hunk>,
}

/// Files that differ, sorted by path.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Diff {
    /// The files.
    pub files: Vec<FileDiff>,
}

impl Diff {
    /// Compares two trees.
    pub fn of_trees(old: &Tree, new: &Tree) -> Self {
        let texts = |tree: &Tree| {
            let files = tree.to_files().into_iter();
            files.map(|file| (file.path, String::from_utf8_lossy(&file.bytes).into_owned())).collect()
        };
        Self::of_files(&texts(old), &texts(new))
    }

    /// Compares two sets of texts by path.
    pub fn of_files(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Self {
        let mut paths: Vec<&String> = old.keys().chain(new.keys().filter(|path| !old.contains_key(*path))).collect();
        paths.sort();
        let files = paths.into_iter().filter_map(|path| {
            let (before, after) = (old.get(path), new.get(path));
            let change = match (before, after) {
                (None, _) => FileChange::Added,
                (_, None) => FileChange::Removed,
                (before, after) if before == after => return None,
                _ => FileChange::Changed,
            };
            let hunks = hunks(before.map_or("", String::as_str), after.map_or("", String::as_str));
            Some(FileDiff { path: path.clone(), change, hunks })
        });
        Self { files: files.collect() }
    }

    /// Nothing differs.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// As a unified diff, which `patch` and `git apply` take.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for file in &self.files {
            let (old, new) = match file.change {
                FileChange::Added => ("/dev/null".to_owned(), format!("b/{}", file.path)),
                FileChange::Removed => (format!("a/{}", file.path), "/dev/null".to_owned()),
                FileChange::Changed => (format!("a/{}", file.path), format!("b/{}", file.path)),
            };
            // Writing to a String cannot fail.
            let _written = writeln!(text, "--- {old}\n+++ {new}");
            file.hunks.iter().for_each(|hunk| write_hunk(&mut text, hunk));
        }
        text
    }
}

fn write_hunk(text: &mut String, hunk: &Hunk) {
    let Hunk { old_start, old_lines, new_start, new_lines, .. } = hunk;
    let _written = writeln!(text, "@@ -{old_start},{old_lines} +{new_start},{new_lines} @@");
    for line in &hunk.lines {
        let sign = match line.change {
            LineChange::Same => ' ',
            LineChange::Added => '+',
            LineChange::Removed => '-',
        };
        let end = if line.unended { "\n\\ No newline at end of file" } else { "" };
        let _written = writeln!(text, "{sign}{}{end}", line.text);
    }
}

fn hunks(old: &str, new: &str) -> Vec<Hunk> {
    if old.lines().count() + new.lines().count() > COMPARED_LINES_MAX {
        return vec![replaced(old, new)];
    }
    let diff = TextDiff::from_lines(old, new);
    let groups = diff.grouped_ops(CONTEXT_LINES).into_iter().filter(|group| !group.is_empty());
    groups
        .map(|group| {
            let changes = group.iter().flat_map(|op| diff.iter_changes(op));
            let lines = changes.map(|change| line(change.tag(), change.value())).collect();
            let starts = group.first().map_or((0, 0), |op| (op.old_range().start, op.new_range().start));
            hunk(starts, lines)
        })
        .collect()
}

fn replaced(old: &str, new: &str) -> Hunk {
    let removed = old.split_inclusive('\n').map(|text| line(ChangeTag::Delete, text));
    let added = new.split_inclusive('\n').map(|text| line(ChangeTag::Insert, text));
    hunk((0, 0), removed.chain(added).collect())
}

fn line(tag: ChangeTag, text: &str) -> Line {
    let change = match tag {
        ChangeTag::Equal => LineChange::Same,
        ChangeTag::Insert => LineChange::Added,
        ChangeTag::Delete => LineChange::Removed,
    };
    let ended = text.strip_suffix('\n');
    Line { change, text: ended.unwrap_or(text).to_owned(), unended: ended.is_none() }
}

fn hunk((old_start, new_start): (usize, usize), lines: Vec<Line>) -> Hunk {
    let old_lines = lines.iter().filter(|line| line.change != LineChange::Added).count();
    let new_lines = lines.iter().filter(|line| line.change != LineChange::Removed).count();
    // A side without lines is named by the line before, as in a unified diff.
    let start = |at: usize, count: usize| if count == 0 { at } else { at + 1 };
    Hunk { old_start: start(old_start, old_lines), old_lines, new_start: start(new_start, new_lines), new_lines, lines }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn set(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn the_text_is_a_unified_diff() {
        let old = set(&[("a", "one\ntwo\n"), ("gone", "x"), ("same", "s")]);
        let new = set(&[("a", "one\n2\n"), ("new", "y\n"), ("same", "s")]);
        let diff = Diff::of_files(&old, &new);
        let expected = "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n\
                        --- a/gone\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n\\ No newline at end of file\n\
                        --- /dev/null\n+++ b/new\n@@ -0,0 +1,1 @@\n+y\n";
        assert_eq!(diff.to_text(), expected);
        assert!(Diff::of_files(&old, &old).is_empty());
    }

    #[test]
    fn a_page_gets_the_same_as_data() {
        let diff = Diff::of_files(&set(&[("a", "one\n")]), &set(&[("a", "two\n")]));
        let json = serde_json::to_value(&diff).expect("JSON");
        let lines = serde_json::json!([{"change": "removed", "text": "one"}, {"change": "added", "text": "two"}]);
        assert_eq!(json["files"][0]["hunks"][0]["lines"], lines);
        assert_eq!(json["files"][0]["change"], "changed");
    }

    #[test]
    fn files_of_many_lines_are_replaced_whole_and_quickly() {
        let lines = |from: usize| (from..from + 100_000).map(|n| format!("{n}\n")).collect::<String>();
        let diff = Diff::of_files(&set(&[("a", &lines(0))]), &set(&[("a", &lines(50_000))]));
        assert_eq!(diff.files[0].hunks.len(), 1);
        assert_eq!(diff.files[0].hunks[0].old_lines, 100_000);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn git_applies_the_text(old in "([ab]\n){0,12}[ab]{0,1}", new in "([ab]\n){0,12}[ab]{0,1}") {
            prop_assume!(!old.is_empty() && !new.is_empty());
            let folder = tempfile::tempdir().expect("a folder");
            std::fs::write(folder.path().join("a"), &old).expect("written");
            std::fs::write(folder.path().join("patch"), Diff::of_files(&set(&[("a", &old)]), &set(&[("a", &new)])).to_text()).expect("written");
            if old != new {
                let done = Command::new("git").args(["apply", "patch"]).current_dir(folder.path()).output().expect("git runs");
                prop_assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            }
            prop_assert_eq!(std::fs::read_to_string(folder.path().join("a")).expect("read"), new);
        }
    }
}
