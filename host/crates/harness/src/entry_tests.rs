//! Entries from outside: what is refused, and with which words.

use serde_json::json;

use super::*;
use crate::text::TEXT_BYTES_MAX;

fn refusal(kind: EntryKind, config: &Value) -> String {
    let name = EntryName::parse(kind, "one").expect("a name");
    Entry::parse(name, config).expect_err("refused").to_string()
}

#[test]
fn a_refusal_names_the_entry_the_reason_and_the_remedy() {
    let cases = [
        (
            EntryKind::Skill,
            json!({"description": "d", "text": "\u{feff}a"}),
            ["skill/one: text", "byte order mark", "without one"],
        ),
        (EntryKind::Skill, json!({"description": "d", "text": "a\r\nb"}), ["skill/one: text", "U+000D", "use LF"]),
        (
            EntryKind::Skill,
            json!({"description": "d", "text": "a".repeat(TEXT_BYTES_MAX + 1)}),
            ["skill/one: text", "over the limit", "split"],
        ),
        (EntryKind::Skill, json!({"description": "a\nb", "text": ""}), ["skill/one: description", "U+000A", "remove"]),
        (EntryKind::Skill, json!({"description": " ", "text": ""}), ["skill/one: description", "empty", "say when"]),
        (
            EntryKind::Skill,
            json!({"description": "d".repeat(1025), "text": ""}),
            ["skill/one: description", "1025 characters", "remove"],
        ),
        (EntryKind::Rules, json!({"text": 1}), ["rules/one", "do not fit", "correct"]),
        (EntryKind::Rules, json!({"text": "a", "txt": "b"}), ["rules/one", "unknown field `txt`", "correct"]),
        (
            EntryKind::Rules,
            json!({"text": "\n--- \nmcp_tools: x"}),
            ["rules/one: text", "starts with '---'", "start with a line"],
        ),
        (EntryKind::Rules, json!([]), ["rules/one", "not a JSON object", "send one"]),
        (
            EntryKind::Rules,
            json!({"text": "key sk-abcdefghijklmnopqrst123"}),
            ["rules/one: text", "key", "environment variable"],
        ),
        (EntryKind::Hook, json!({"event": "a b", "command": "x"}), ["hook/one: event", "not the name", "name one"]),
        (EntryKind::Mcp, json!({}), ["mcp/one: command", "either", "url"]),
        (EntryKind::Mcp, json!({"url": "http://u:p@h/"}), ["mcp/one: url", "not an address", "http"]),
        (
            EntryKind::Config,
            json!({"adapter": "pi", "settings": {"a": {"b": null}}}),
            ["config/one: a", "null", "leave it out"],
        ),
    ];
    for (kind, config, words) in cases {
        let told = refusal(kind, &config);
        assert!(words.iter().all(|word| told.contains(word)), "{told}");
    }
}

#[test]
fn a_skill_of_ten_megabytes_and_deep_json_are_refused() {
    let name = || EntryName::parse(EntryKind::Skill, "one").expect("a name");
    let big = json!({"description": "d", "text": "a".repeat(10 << 20)});
    assert!(matches!(Entry::parse(name(), &big).expect_err("big").problem, Problem::TooLong { .. }));
    let deep = "{\"a\":".repeat(1000);
    let told = Entry::parse_text(name(), &deep).expect_err("deep").to_string();
    assert!(told.contains("recursion limit"), "{told}");
}

#[test]
fn a_thousand_braces_in_a_text_are_only_text() {
    let name = EntryName::parse(EntryKind::Rules, "one").expect("a name");
    let braces = "{{url}}".repeat(500);
    let entry = Entry::parse(name, &json!({"text": braces})).expect("taken");
    assert_eq!(entry.config(), json!({"text": braces}));
}

#[test]
fn files_of_a_skill_share_no_name() {
    for files in
        [json!({"A.md": "", "a.md": ""}), json!({"skill.MD": ""}), json!({"a": "", "a/b": ""}), json!({"../a": ""})]
    {
        let config = json!({"description": "d", "text": "", "files": files});
        assert!(refusal(EntryKind::Skill, &config).contains("name"), "{config}");
    }
}
