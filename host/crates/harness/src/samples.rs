//! Trees and mutations that the tests of this crate start from.

use proptest::prelude::*;
use reef_core::ScenarioName;
use serde_json::{Value, json};

use crate::entry::Entry;
use crate::mutation::{Mutation, read_mutations};
use crate::name::{EntryKind, EntryName};
use crate::render::Binding;
use crate::tree::Tree;

pub const SKILL_TEXT: &str = "# Ropes\n\nUse a bowline. {{url}} $REEF_TOKEN `echo 'x'`\n";

pub fn entry(kind: EntryKind, id: &str, config: &Value) -> Entry {
    Entry::parse(EntryName::parse(kind, id).expect("a name"), config).expect("an entry")
}

/// One entry of each kind that every adapter either takes or says why not.
pub fn every_kind() -> Tree {
    let entries = [
        entry(EntryKind::Rules, "style", &json!({"text": "Write short sentences.\n"})),
        entry(EntryKind::Rules, "10-answers", &json!({"text": "Put the answer on the last line."})),
        entry(EntryKind::Prompt, "role", &json!({"text": "You sail ships."})),
        entry(
            EntryKind::Skill,
            "ropes",
            &json!({"description": "Knots: how to tie ropes", "text": SKILL_TEXT, "files": {"references/knots.md": "bowline"}}),
        ),
        entry(
            EntryKind::AgentCommand,
            "greet",
            &json!({"description": "Greets \"someone\"", "text": "Greet politely."}),
        ),
        entry(EntryKind::Subagent, "helper", &json!({"description": "Helps: with ropes", "text": "You help."})),
        entry(
            EntryKind::Mcp,
            "files",
            &json!({"command": ["files-server", "--root", "it's"], "variables": ["FILES_TOKEN"]}),
        ),
        entry(EntryKind::Mcp, "search", &json!({"url": "https://search.example/mcp"})),
        entry(
            EntryKind::Hook,
            "format",
            &json!({"event": "PostToolUse", "matcher": "Edit|Write", "command": "format-it \"$FILE\"", "timeout_s": 30}),
        ),
    ];
    Tree::new(entries).expect("a tree")
}

/// The part of it that every proposal may touch.
pub fn texts_only() -> Tree {
    let kinds = [EntryKind::Rules, EntryKind::Prompt, EntryKind::Skill, EntryKind::AgentCommand];
    let all = every_kind();
    Tree::new(all.entries().filter(|entry| kinds.contains(&entry.name().kind())).cloned()).expect("a tree")
}

pub fn binding() -> Binding {
    Binding {
        url: "http://127.0.0.1:8700".to_owned(),
        model: "smollm2-135m".to_owned(),
        scenario: ScenarioName::parse("coding").expect("a name"),
        release: "0123456789abcdef0123456789abcdef01234567".to_owned(),
        context_tokens: 32_000,
        output_tokens: 4_096,
        version: None,
    }
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof!["[ -~]{0,30}", "[\\PC\n\t]{0,40}"]
        .prop_filter("a text", |text| crate::text::check(text).is_ok() && !text.trim_start().starts_with("---"))
}

fn lines() -> impl Strategy<Value = String> {
    "[ -~]{0,20}[a-z\"':#{}]".prop_filter("a line", |text| crate::text::check_line(text).is_ok())
}

fn configs() -> impl Strategy<Value = (EntryKind, Value)> {
    prop_oneof![
        texts().prop_map(|text| (EntryKind::Rules, json!({"text": text}))),
        texts().prop_map(|text| (EntryKind::Prompt, json!({"text": text}))),
        (lines(), texts()).prop_map(|(description, text)| (
            EntryKind::AgentCommand,
            json!({"description": description, "text": text})
        )),
        (lines(), texts(), prop::collection::btree_map("[a-c]{1,3}", texts(), 0..3)).prop_map(
            |(description, text, files)| {
                let mut config = json!({"description": description, "text": text});
                if !files.is_empty() {
                    config["files"] = json!(files);
                }
                (EntryKind::Skill, config)
            }
        ),
        texts().prop_map(|source| (EntryKind::CodeExtension, json!({"adapter": "pi", "source": source}))),
        (lines(), any::<i32>()).prop_map(|(theme, number)| (
            EntryKind::Config,
            json!({"adapter": "pi", "settings": {"theme": theme, "deep": {"number": number, "list": [true]}}})
        )),
        lines().prop_map(|word| (EntryKind::Mcp, json!({"command": ["server", word]}))),
    ]
}

/// Any trees.
pub fn trees() -> impl Strategy<Value = Tree> {
    prop::collection::btree_map("[a-e]{1,2}", configs(), 0..8).prop_map(|entries| {
        Tree::new(entries.iter().map(|(id, (kind, config))| entry(*kind, id, config))).expect("a tree")
    })
}

/// Mutations that often, not always, fit the trees.
pub fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let one = ("[a-e]{1,2}", configs(), 0..4_u8).prop_map(|(id, (kind, config), op)| {
        let op = ["create", "update", "put", "remove"][usize::from(op)];
        let mut mutation = json!({"op": op, "kind": kind, "id": id});
        if op != "remove" {
            mutation["config"] = config;
        }
        mutation
    });
    prop::collection::vec(one, 0..6).prop_map(|list| read_mutations(&Value::Array(list)).expect("mutations"))
}

/// A tree and mutations for it; half of them touch entries that are there.
pub fn trees_with_mutations() -> impl Strategy<Value = (Tree, Vec<Mutation>)> {
    (trees(), mutations(), any::<bool>()).prop_map(|(tree, list, first)| {
        let own = tree.entries().take(usize::from(first)).map(|entry| Mutation::Remove(entry.name().clone()));
        let list = own.chain(list).collect();
        (tree, list)
    })
}
