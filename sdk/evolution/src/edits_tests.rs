//! Answers of models, good, bad and hostile, as edits of a small tree.

use reef_recipe::testing::FakeHost;
use reef_recipe::{Entry, EntryKind, Failure, Mutation};

use super::{Edits, Kinds, field, shown};

fn entry(kind: EntryKind, id: &str, config: &str) -> Entry {
    Entry { id: id.into(), kind, config: config.into() }
}

fn tree() -> Vec<Entry> {
    vec![
        entry(EntryKind::Rules, "style", r#"{"text":"Be brief."}"#),
        entry(
            EntryKind::Skill,
            "csv",
            r#"{"description":"tables","files":{"read.py":"print(1)"},"text":"Use Python."}"#,
        ),
        entry(EntryKind::Hook, "check", r#"{"command":"make test","event":"Stop"}"#),
    ]
}

fn kinds() -> Kinds {
    Kinds(vec![EntryKind::Rules, EntryKind::Skill])
}

fn read(changes: &str) -> Result<Edits, String> {
    Edits::read(&format!("{{\"notes\": \"why\\nnot\", \"changes\": [{changes}]}}"), &tree(), &kinds())
}

#[test]
fn an_answer_is_found_in_a_fence_and_between_words() {
    let change = r#"{"op":"put","kind":"rules","id":"new","text":"Think."}"#;
    let wanted = Edits {
        changes: vec![Mutation::put(EntryKind::Rules, "new", r#"{"text":"Think."}"#)],
        notes: "why not".into(),
    };
    assert_eq!(read(change), Ok(wanted.clone()));
    for around in [("```json\n", "\n```"), ("Here it is: ", " I hope it helps."), ("", "")] {
        let answer = format!("{}{{\"notes\":\"why not\",\"changes\":[{change}]}}{}", around.0, around.1);
        assert_eq!(Edits::read(&answer, &tree(), &kinds()), Ok(wanted.clone()));
    }
}

#[test]
fn what_a_model_does_not_write_stays_as_it_was() {
    let edits = read(r#"{"op":"put","kind":"skill","id":"csv","text":"Use awk.","files":{"read.py":"rm -rf /"}}"#)
        .expect("reads");
    let [Mutation::Put(changed)] = edits.changes.as_slice() else { panic!("{edits:?}") };
    assert_eq!(changed.config, r#"{"description":"tables","files":{"read.py":"print(1)"},"text":"Use awk."}"#);
    let edits =
        read(r#"{"op":"put","kind":"skill","id":"n","description":"d","text":"t","command":"sh","url":"http://x"}"#);
    let Ok(Edits { changes, .. }) = &edits else { panic!("{edits:?}") };
    assert_eq!(changes[0], Mutation::put(EntryKind::Skill, "n", r#"{"description":"d","text":"t"}"#));
}

#[test]
fn kinds_that_do_more_than_say_something_are_refused() {
    for kind in ["hook", "mcp", "tool", "config", "code_extension", "prompt", "", "RULES"] {
        let refused = read(&format!(r#"{{"op":"put","kind":"{kind}","id":"x","text":"t","command":"sh"}}"#));
        assert_eq!(refused, Err(format!("the answer changes the kind '{kind}'; it may change rules, skill")));
    }
    let mut host = FakeHost::default().config("kinds", r#""rules, hook""#);
    let failure = host.call(Kinds::read).expect_err("a hook");
    assert_eq!(failure, Failure::InvalidConfig("kinds: 'hook' is not a kind that is only text".into()));
    let mut host = FakeHost::default().config("kinds", r#""rules, agent-command""#);
    assert_eq!(host.call(Kinds::read).map(|kinds| kinds.names()), Ok("rules, agent_command".into()));
}

#[test]
fn a_bad_answer_is_a_sentence() {
    let long = "x".repeat(40_000);
    let long = format!(r#"{{"op":"put","kind":"rules","id":"x","text":"{long}"}}"#);
    let one = r#"{"op":"remove","kind":"rules","id":"style"}"#;
    let many = [one; 17].join(",");
    let cases = [
        ("", "the answer changes nothing"),
        (
            r#"{"op":"put","kind":"rules","id":"style","text":"Be brief."}"#,
            "the answer changes nothing: every entry is as it was",
        ),
        (r#"{"op":"drop","kind":"rules","id":"style"}"#, "'drop' is no change; use put or remove"),
        (r#"{"op":"remove","kind":"rules","id":"other"}"#, "the answer removes rules/other, which is not there"),
        (
            r#"{"op":"put","kind":"rules","id":"../x","text":"t"}"#,
            "'../x' is no name of an entry; use letters, digits, '.', '_' and '-'",
        ),
        (r#"{"op":"put","kind":"rules","id":"style"}"#, "rules/style: neither text nor description is given"),
        (long.as_str(), "rules/x: text has 40000 bytes, at most 32768"),
        (many.as_str(), "the answer has 17 changes, at most 16 are tried"),
    ];
    for (changes, told) in cases {
        assert_eq!(read(changes), Err(told.to_owned()));
    }
    let refused = |answer: &str| Edits::read(answer, &tree(), &kinds()).expect_err(answer);
    assert_eq!(refused("I would rather not."), "the answer holds no JSON object");
    assert_eq!(refused("{}"), "the answer has no list 'changes'");
    assert_eq!(refused(r#"{"changes": 3}"#), "the answer has no list 'changes'");
    assert!(refused("{'changes': []}").starts_with("the answer is not JSON: "));
    assert!(refused(&"{".repeat(40_000).replace("{", "{\"a\":")).starts_with("the answer holds no JSON object"));
    assert!(
        refused(&format!("{}{}", "{\"a\":".repeat(9_000), "}".repeat(9_000))).starts_with("the answer is not JSON: ")
    );
    assert!(refused(&"x".repeat(300_000)).starts_with("the answer has 300000 bytes"));
}

#[test]
fn a_model_reads_the_entries_that_it_may_change() {
    let text = shown(&tree(), &kinds(), 500);
    assert!(text.contains("rules/style\n<entry>\nBe brief.\n</entry>"), "{text}");
    assert!(text.contains("skill/csv\n<entry>\ndescription: tables\nUse Python.\n</entry>"), "{text}");
    assert!(!text.contains("make test"), "{text}");
    assert_eq!(field(&tree()[1], "description"), "tables");
}
