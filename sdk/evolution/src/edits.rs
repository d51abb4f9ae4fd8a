//! A model's answer as changes of the tree. A model writes `text` and `description` of entries of the kinds that the
//! operator lists, and removes such entries; everything else that an entry holds stays as it was. Pure.

use reef_recipe::prelude::*;
use reef_recipe::{Entry, EntryKind, EntryName, Mutation};
use serde_json::{Map, Value};

/// Configuration key: kinds of entries that may change.
pub const KINDS: Key<&'static str> = Key::text(
    "kinds",
    "rules,skill",
    "kinds of entries that may change: some of rules, prompt, skill, agent_command, subagent",
);

/// What a model is told of the form of its answer.
pub const FORM: &str = r#"Answer with one JSON object and nothing else:
{"notes": "one sentence: what you change and why",
 "changes": [{"op": "put", "kind": "rules", "id": "short-name", "text": "..."},
             {"op": "put", "kind": "skill", "id": "short-name", "description": "when to use it", "text": "..."},
             {"op": "remove", "kind": "rules", "id": "short-name"}]}
'put' adds an entry, or replaces the fields that you give of the entry of that name. Say what holds in general: never
copy a task, an answer or a secret."#;

/// Kinds that are nothing but text. The others run code, reach addresses or change settings, and no model writes them.
const TEXT_KINDS: [EntryKind; 5] =
    [EntryKind::Rules, EntryKind::Prompt, EntryKind::Skill, EntryKind::AgentCommand, EntryKind::Subagent];

/// Changes of one answer.
const CHANGES_MAX: usize = 16;
/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// Bytes of one text.
const TEXT_BYTES_MAX: usize = 32 * 1024;
/// Characters of a note.
const NOTES_CHARS_MAX: usize = 500;

/// Kinds of entries that a model may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kinds(Vec<EntryKind>);

impl Kinds {
    /// Reads [`KINDS`].
    ///
    /// # Errors
    /// `invalid-config` naming a kind that is not only text.
    pub fn read() -> Result<Self> {
        let listed = KINDS.get()?;
        let kinds = listed.split(',').map(|name| {
            text_kind(name).ok_or_else(|| {
                Failure::config(KINDS.name, &format!("'{}' is not a kind that is only text", name.trim()))
            })
        });
        kinds.collect::<Result<_>>().map(Self)
    }

    /// Is it one of them?
    pub fn holds(&self, kind: EntryKind) -> bool {
        self.0.contains(&kind)
    }

    /// The entries of these kinds, in order.
    pub fn of<'a>(&self, entries: &'a [Entry]) -> impl Iterator<Item = &'a Entry> {
        let kinds = self.0.clone();
        entries.iter().filter(move |entry| kinds.contains(&entry.kind))
    }

    /// Their names, for people and models.
    pub fn names(&self) -> String {
        self.0.iter().map(|&kind| kind_name(kind)).collect::<Vec<_>>().join(", ")
    }
}

/// The kind of a name, if it is only text; `-` and `_` are the same in it.
pub fn text_kind(name: &str) -> Option<EntryKind> {
    let name = name.trim().replace('-', "_");
    TEXT_KINDS.into_iter().find(|&kind| kind_name(kind) == name)
}

/// The name of a kind, as in the files of a tree.
pub fn kind_name(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Config => "config",
        EntryKind::Rules => "rules",
        EntryKind::AgentCommand => "agent_command",
        EntryKind::Skill => "skill",
        EntryKind::CodeExtension => "code_extension",
        EntryKind::Tool => "tool",
        EntryKind::Hook => "hook",
        EntryKind::Subagent => "subagent",
        EntryKind::Mcp => "mcp",
        EntryKind::Prompt => "prompt",
    }
}

/// `kind/id`.
pub fn label(entry: &Entry) -> String {
    format!("{}/{}", kind_name(entry.kind), entry.id)
}

/// A field of an entry that is a text; empty where it has none.
pub fn field(entry: &Entry, name: &str) -> String {
    fields(entry).get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The entry with another text in a field; the others stay.
#[must_use]
pub fn with_field(entry: &Entry, name: &str, text: &str) -> Entry {
    let mut fields = fields(entry);
    fields.insert(name.to_owned(), Value::from(text));
    Entry { config: Value::Object(fields).to_string(), ..entry.clone() }
}

fn fields(entry: &Entry) -> Map<String, Value> {
    match serde_json::from_str(&entry.config) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// The entries of these kinds as a model reads them, each with at most `chars` characters of its text.
pub fn shown(entries: &[Entry], kinds: &Kinds, chars: usize) -> String {
    let shown: Vec<String> = kinds
        .of(entries)
        .map(|entry| {
            let description = field(entry, "description");
            let head = if description.is_empty() { String::new() } else { format!("description: {description}\n") };
            let text = crate::untrusted::quoted("entry", &format!("{head}{}", field(entry, "text")), chars);
            format!("{}\n{text}", label(entry))
        })
        .collect();
    if shown.is_empty() { "(no entry of these kinds yet)".to_owned() } else { shown.join("\n") }
}

/// What a model wants to change, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Edits {
    /// At least one.
    pub changes: Vec<Mutation>,
    /// Its own words, one line; may be empty.
    pub notes: String,
}

impl Edits {
    /// Reads an answer in the form of [`FORM`] against the tree that serves.
    ///
    /// # Errors
    /// One sentence: what is wrong with the answer.
    pub fn read(answer: &str, incumbent: &[Entry], kinds: &Kinds) -> Result<Self, String> {
        Self::of(&object(answer)?, incumbent, kinds)
    }

    /// The same of an answer that is an object already.
    ///
    /// # Errors
    /// As [`Edits::read`].
    pub fn of(object: &Map<String, Value>, incumbent: &[Entry], kinds: &Kinds) -> Result<Self, String> {
        let changes = object.get("changes").and_then(Value::as_array);
        let changes = changes.ok_or_else(|| "the answer has no list 'changes'".to_owned())?;
        if changes.is_empty() {
            return Err("the answer changes nothing".to_owned());
        }
        if changes.len() > CHANGES_MAX {
            return Err(format!("the answer has {} changes, at most {CHANGES_MAX} are tried", changes.len()));
        }
        let changes: Vec<Mutation> =
            changes.iter().map(|item| change(item, incumbent, kinds)).collect::<Result<_, _>>()?;
        let same = |change: &Mutation| matches!(change, Mutation::Put(entry) if incumbent.contains(entry));
        if changes.iter().all(same) {
            return Err("the answer changes nothing: every entry is as it was".to_owned());
        }
        Ok(Self { changes, notes: line(object, "notes") })
    }
}

/// A text of an object on one line, shortened; empty where there is none.
pub fn line(object: &Map<String, Value>, name: &str) -> String {
    let text = object.get(name).and_then(Value::as_str).unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    crate::untrusted::shortened(&words.join(" "), NOTES_CHARS_MAX).replace('\n', " ")
}

/// The JSON object of an answer: all of it, what a fence holds, or what stands between its outer braces.
///
/// # Errors
/// One sentence: what is wrong with the answer.
pub fn object(answer: &str) -> Result<Map<String, Value>, String> {
    if answer.len() > ANSWER_BYTES_MAX {
        return Err(format!("the answer has {} bytes, at most {ANSWER_BYTES_MAX} are read", answer.len()));
    }
    let (Some(start), Some(end)) = (answer.find('{'), answer.rfind('}')) else {
        return Err("the answer holds no JSON object".to_owned());
    };
    match serde_json::from_str(answer.get(start..=end).unwrap_or_default()) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err("the answer holds no JSON object".to_owned()),
        Err(error) => Err(format!("the answer is not JSON: {error}")),
    }
}

fn change(item: &Value, incumbent: &[Entry], kinds: &Kinds) -> Result<Mutation, String> {
    let text = |name: &str| item.get(name).and_then(Value::as_str);
    let (named, id) = (text("kind").unwrap_or_default(), text("id").unwrap_or_default());
    let kind = text_kind(named).filter(|&kind| kinds.holds(kind)).ok_or_else(|| {
        let named = crate::untrusted::shortened(named, 32);
        format!("the answer changes the kind '{named}'; it may change {}", kinds.names())
    })?;
    if !is_id(id) {
        let id = crate::untrusted::shortened(id, 64);
        return Err(format!("'{id}' is no name of an entry; use letters, digits, '.', '_' and '-'"));
    }
    let old = incumbent.iter().find(|entry| entry.kind == kind && entry.id == id);
    match text("op").unwrap_or_default() {
        "put" => put(item, old, (kind, id)).map(Mutation::Put),
        "remove" if old.is_some() => Ok(Mutation::Remove(EntryName { kind, id: id.to_owned() })),
        "remove" => Err(format!("the answer removes {named}/{id}, which is not there")),
        op => Err(format!("'{}' is no change; use put or remove", crate::untrusted::shortened(op, 32))),
    }
}

fn put(item: &Value, old: Option<&Entry>, (kind, id): (EntryKind, &str)) -> Result<Entry, String> {
    let mut entry = old.cloned().unwrap_or_else(|| Entry { id: id.to_owned(), kind, config: "{}".to_owned() });
    let mut given = false;
    for name in ["description", "text"] {
        if let Some(text) = item.get(name).and_then(Value::as_str) {
            if text.len() > TEXT_BYTES_MAX {
                let bytes = text.len();
                return Err(format!("{}: {name} has {bytes} bytes, at most {TEXT_BYTES_MAX}", label(&entry)));
            }
            entry = with_field(&entry, name, text);
            given = true;
        }
    }
    if given { Ok(entry) } else { Err(format!("{}: neither text nor description is given", label(&entry))) }
}

fn is_id(id: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    id.len() <= 64 && id.starts_with(|c: char| c.is_ascii_alphanumeric()) && id.chars().all(inside)
}

#[cfg(test)]
#[path = "edits_tests.rs"]
mod tests;
