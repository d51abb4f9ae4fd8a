//! A tree as files and back, byte for byte: a folder `KIND/ID` per entry, each long text as a file of its own so that
//! git shows readable differences, and the other fields in `entry.json`. Releases are stored so; agent programs get
//! other files (`render`).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::document;
use crate::entry::Entry;
use crate::error::{Problem, TreeError, shown};
use crate::name::{EntryKind, EntryName, check_file_path};
use crate::text;
use crate::tree::{ENTRIES_MAX, Tree};

/// Files of one tree: `entry.json`, a text and the files of a skill.
const FILES_MAX: usize = ENTRIES_MAX * 34;
/// The short fields of an entry.
const FIELDS: &str = "entry.json";
/// Folder of the files of a skill.
const SKILL_FILES: &str = "files/";

/// A file of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeFile {
    /// Relative path, `/` between names.
    pub path: String,
    /// Content.
    pub bytes: Vec<u8>,
}

/// The long text of a kind: the field and the name of its file.
fn long_text(kind: EntryKind) -> Option<(&'static str, &'static str)> {
    match kind {
        EntryKind::Rules | EntryKind::Prompt | EntryKind::AgentCommand | EntryKind::Subagent => {
            Some(("text", "text.md"))
        }
        EntryKind::Skill => Some(("text", "SKILL.md")),
        EntryKind::CodeExtension | EntryKind::Tool => Some(("source", "source")),
        EntryKind::Config | EntryKind::Hook | EntryKind::Mcp => None,
    }
}

impl Tree {
    /// Its files, sorted by path.
    pub fn to_files(&self) -> Vec<TreeFile> {
        let mut files: Vec<TreeFile> = self.entries().flat_map(entry_files).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files
    }

    /// Reads such files. Nothing may be left over: a file that belongs to no entry is refused.
    pub fn from_files<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Self, TreeError> {
        let mut entries: BTreeMap<EntryName, Map<String, Value>> = BTreeMap::new();
        for (count, (path, bytes)) in files.into_iter().enumerate() {
            if count >= FILES_MAX {
                let problem = Problem::TooMany { what: "files", count: count + 1, most: FILES_MAX };
                return Err(TreeError::new("tree", problem));
            }
            let refused = |problem| TreeError::new(shown(path), problem);
            let (name, file) = locate(path).map_err(refused)?;
            let text = text::decode(bytes).map_err(refused)?;
            let fields = entries.entry(name.clone()).or_default();
            read_file(&name, file, text, fields).map_err(refused)?;
        }
        let parsed = entries.into_iter().map(|(name, fields)| Entry::parse(name, &Value::Object(fields)));
        Self::new(parsed.collect::<Result<Vec<_>, _>>()?)
    }
}

fn entry_files(entry: &Entry) -> Vec<TreeFile> {
    let name = entry.name();
    let file = |end: &str, text: String| TreeFile { path: format!("{name}/{end}"), bytes: text.into_bytes() };
    let Value::Object(mut fields) = entry.config() else { return Vec::new() };
    let mut files = Vec::new();
    if let Some((field, end)) = long_text(name.kind())
        && let Some(Value::String(text)) = fields.remove(field)
    {
        files.push(file(end, text));
    }
    if name.kind() == EntryKind::Skill
        && let Some(Value::Object(own)) = fields.remove("files")
    {
        let texts = own.into_iter().filter_map(|(path, text)| Some((path, text.as_str()?.to_owned())));
        files.extend(texts.map(|(path, text)| file(&format!("{SKILL_FILES}{path}"), text)));
    }
    if !fields.is_empty() {
        files.push(file(FIELDS, document::json(&Value::Object(fields))));
    }
    files
}

/// The entry that a path belongs to, and the rest of the path.
fn locate(path: &str) -> Result<(EntryName, &str), Problem> {
    let mut parts = path.splitn(3, '/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(kind), Some(id), Some(file)) => Ok((EntryName::parse(kind.parse()?, id)?, file)),
        _ => Err(Problem::StrayFile),
    }
}

fn read_file(name: &EntryName, file: &str, text: &str, fields: &mut Map<String, Value>) -> Result<(), Problem> {
    let told = |told: String| Problem::Fields { told };
    let long = long_text(name.kind());
    if file == FIELDS {
        let own: Map<String, Value> = serde_json::from_str(text)
            .map_err(|error| told(format!("it is not a JSON object: {error}; correct it")))?;
        if let Some(key) = own.keys().find(|key| is_in_a_file(name.kind(), key)) {
            return Err(told(format!("the field '{key}' belongs into a file of its own; move it there")));
        }
        fields.extend(own);
        return Ok(());
    }
    if let Some((field, end)) = long
        && file == end
    {
        fields.insert(field.to_owned(), Value::String(text.to_owned()));
        return Ok(());
    }
    match file.strip_prefix(SKILL_FILES) {
        Some(path) if name.kind() == EntryKind::Skill => {
            check_file_path(path)?;
            let own = fields.entry("files").or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(own) = own {
                own.insert(path.to_owned(), Value::String(text.to_owned()));
            }
            Ok(())
        }
        _ => Err(Problem::StrayFile),
    }
}

fn is_in_a_file(kind: EntryKind, field: &str) -> bool {
    long_text(kind).is_some_and(|(own, _)| own == field) || (kind == EntryKind::Skill && field == "files")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples;

    fn read(files: &[TreeFile]) -> Result<Tree, TreeError> {
        Tree::from_files(files.iter().map(|file| (file.path.as_str(), file.bytes.as_slice())))
    }

    fn refusal(path: &str, bytes: &[u8]) -> String {
        Tree::from_files([(path, bytes)]).expect_err(path).to_string()
    }

    proptest! {
        #[test]
        fn a_tree_survives_its_files_byte_for_byte(tree in samples::trees()) {
            let files = tree.to_files();
            let again = read(&files).expect("its own files are a tree");
            prop_assert_eq!(&again, &tree);
            prop_assert_eq!(again.to_files(), files);
        }

        #[test]
        fn any_bytes_at_any_path_are_answered(path in ".{0,40}", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _answered = Tree::from_files([(path.as_str(), bytes.as_slice())]);
            let _answered = Tree::from_files([("skill/a/entry.json", bytes.as_slice())]);
        }
    }

    #[test]
    fn each_long_text_is_a_file() {
        let paths: Vec<String> = samples::every_kind().to_files().into_iter().map(|file| file.path).collect();
        for path in [
            "rules/style/text.md",
            "skill/ropes/SKILL.md",
            "skill/ropes/files/references/knots.md",
            "skill/ropes/entry.json",
        ] {
            assert!(paths.contains(&path.to_owned()), "{path}: {paths:?}");
        }
        assert!(!paths.contains(&"rules/style/entry.json".to_owned()), "no field, no file");
    }

    #[test]
    fn hostile_files_are_refused_with_their_name() {
        for (path, bytes, words) in [
            ("rules/../text.md", &b"a"[..], "the name '..' is not valid"),
            ("../../etc/passwd", b"a", "a kind is one of"),
            ("rules/a\0b/text.md", b"a", "\\u{0}"),
            ("rules/one", b"a", "belongs to no entry"),
            ("rules/one/other.md", b"a", "belongs to no entry"),
            ("skill/Ropes/SKILL.md", b"a", "a skill is named"),
            ("rules/one/text.md", b"\xff", "not UTF-8"),
            ("rules/one/text.md", b"\xef\xbb\xbfa", "byte order mark"),
            ("rules/one/text.md", b"a\r\n", "use LF"),
            ("hook/one/entry.json", b"{", "not a JSON object"),
            ("rules/one/entry.json", b"{\"text\":\"a\"}", "file of its own"),
            ("skill/a/files/../../x", b"a", "the name '../../x' is not valid"),
        ] {
            let told = refusal(path, bytes);
            assert!(told.contains(words), "{path}: {told}");
        }
        let id = "a".repeat(65);
        assert!(refusal(&format!("skill/{id}/SKILL.md"), b"a").contains("1 to 64"));
        let big = vec![b'a'; 10 << 20];
        assert!(refusal("skill/a/SKILL.md", &big).contains("over the limit"));
    }

    #[test]
    fn entries_that_differ_in_case_only_are_refused() {
        let told = Tree::from_files([("rules/One/text.md", &b"a"[..]), ("rules/one/text.md", b"b")]);
        assert!(told.expect_err("refused").to_string().contains("has that name already"));
    }
}
