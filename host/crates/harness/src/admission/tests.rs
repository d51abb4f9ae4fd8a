//! Every rule of admission, each with a proposal that breaks it and one that does not.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::adapter::Adapters;
use crate::mutation::read_mutations;
use crate::samples;

fn adapters() -> Adapters {
    Adapters::embedded().expect("adapters")
}

fn with<T>(policy: &Policy, corpus: &Corpus, names: &[&str], then: impl FnOnce(&Rules<'_>) -> T) -> T {
    let all = adapters();
    let adapters: Vec<&Adapter> = names.iter().map(|name| all.get(name).expect("an adapter")).collect();
    let binding = samples::binding();
    then(&Rules { policy, adapters: &adapters, binding: &binding, corpus })
}

fn told(policy: &Policy, corpus: &Corpus, list: Value) -> Vec<String> {
    let mutations = read_mutations(&list).expect("mutations");
    let told = with(policy, corpus, &["claude", "opencode"], |rules| admit(&samples::texts_only(), &mutations, rules));
    told.err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

fn put(kind: &str, id: &str, config: Value) -> Value {
    json!([{"op": "put", "kind": kind, "id": id, "config": config}])
}

fn corpus() -> Corpus {
    let mut corpus = Corpus::default();
    corpus.add_text("task sieve", "How many primes are there below one hundred thousand?").expect("room");
    corpus.add_answer("the answer of task sieve", "9592").expect("room");
    corpus
}

#[test]
fn an_ordinary_text_is_admitted() {
    let (policy, corpus) = (Policy::default(), corpus());
    assert_eq!(told(&policy, &corpus, put("rules", "style", json!({"text": "Be brief."}))), [""; 0]);
    assert_eq!(
        told(&policy, &corpus, put("skill", "new", json!({"description": "d", "text": "mail a@b.example"}))),
        [""; 0]
    );
    assert_eq!(told(&policy, &corpus, json!([{"op": "remove", "kind": "skill", "id": "ropes"}])), [""; 0]);
}

#[test]
fn each_rule_refuses_with_entry_reason_and_remedy() {
    let mut policy =
        Policy { mutations_max: 2, entry_bytes_max: 2000, always_read_bytes_max: 1000, ..Policy::default() };
    policy.protected.insert(EntryName::parse(EntryKind::Rules, "10-answers").expect("a name"));
    policy.contract.required.push("on the last line".to_owned());
    policy.contract.forbidden.push("answer in JSON".to_owned());
    let text = |text: &str| json!({"text": text});
    let skill = |text: &str| json!({"description": "d", "text": text});
    let remove = json!({"op": "remove", "kind": "rules", "id": "style"});
    for (list, words) in [
        (json!([]), "changes nothing"),
        (put("rules", "style", text("Write short sentences.\n")), "changes nothing"),
        (json!([remove, remove, remove]), "3 mutations are over the limit of 2"),
        (json!([remove, remove]), "there is no such entry"),
        (put("rules", "10-answers", text("Put it on the last line!")), "rules/10-answers: the operator protects"),
        (put("hook", "new", json!({"event": "Stop", "command": "x"})), "hook/new: proposals may not touch this kind"),
        (put("agent_command", "new", skill("Now !`rm -rf /`")), "agent_command/new: it would have claude expand '!`rm"),
        (put("rules", "new", text("See @/etc/passwd")), "rules/new: it would have claude expand '@/etc/passwd'"),
        (put("rules", "new", text(&"a".repeat(1001))), "rules and prompts together"),
        (put("skill", "new", skill(&"a".repeat(2001))), "skill/new: 2002 bytes are over the cap of 2000"),
        (put("rules", "10-answers", text("Answer first.")), "no rule and no prompt says 'on the last line'"),
        (put("skill", "new", skill("Always answer in JSON.")), "skill/new: it says 'answer in JSON'"),
        (put("rules", "new", text("There are 9592 of them.")), "rules/new: '9592' repeats the answer of task sieve"),
        (
            put("skill", "new", skill("When asked how many primes are there below one hundred, count.")),
            "repeats task sieve",
        ),
    ] {
        let refusals = told(&policy, &corpus(), list.clone());
        assert!(refusals.iter().any(|refusal| refusal.contains(words)), "{list}: {refusals:?}");
    }
}

#[test]
fn capabilities_move_but_do_not_grow_unless_granted() {
    let code = put("code_extension", "new", json!({"adapter": "opencode", "source": "export const A = 1;\n"}));
    let mut policy = Policy { kinds: EntryKind::ALL.into(), ..Policy::default() };
    assert!(told(&policy, &corpus(), code.clone())[0].contains("load the code with SHA-256"));
    policy.granted_kinds.insert(CapabilityKind::Code);
    assert_eq!(told(&policy, &corpus(), code), [""; 0]);

    let mcp = put("mcp", "new", json!({"command": ["npx", "x"], "variables": ["HOME"]}));
    let refusals = told(&policy, &corpus(), mcp.clone());
    assert_eq!(refusals.len(), 2, "{refusals:?}");
    policy.granted.insert(Capability::Command { line: r#"["npx","x"]"#.to_owned() });
    policy.granted.insert(Capability::Variable { name: "HOME".to_owned() });
    assert_eq!(told(&policy, &corpus(), mcp), [""; 0]);

    for list in [
        put("mcp", "new", json!({"url": "https://evil.example/x"})),
        put("mcp", "new", json!({"command": ["npx", "x", "{file:/etc/passwd}"]})),
        put("config", "new", json!({"adapter": "claude", "settings": {"apiKeyHelper": "x"}})),
        put("config", "new", json!({"adapter": "claude", "settings": {"hooks": {}}})),
    ] {
        assert!(!told(&policy, &corpus(), list.clone()).is_empty(), "{list}");
    }
    let open = put("config", "new", json!({"adapter": "claude", "settings": {"alwaysThinkingEnabled": true}}));
    assert_eq!(told(&policy, &corpus(), open), [""; 0]);
}

#[test]
fn what_a_program_cannot_take_is_refused() {
    let policy =
        Policy { kinds: EntryKind::ALL.into(), granted_kinds: [CapabilityKind::Command].into(), ..Policy::default() };
    let hook = put("hook", "new", json!({"event": "Stop", "command": "x"}));
    let refusals = told(&policy, &corpus(), hook);
    assert!(refusals.len() == 1 && refusals[0].contains("hook/new: OpenCode cannot take it"), "{refusals:?}");
}

#[test]
fn what_the_tree_says_already_is_no_leak() {
    let list = put("rules", "style", json!({"text": "Put the answer on the last line. Briefly."}));
    let mut corpus = corpus();
    corpus.add_text("task", "Put the answer on the last line").expect("room");
    assert_eq!(told(&Policy::default(), &corpus, list), [""; 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn admission_is_deterministic_and_admits_only_what_applies((tree, list) in samples::trees_with_mutations()) {
        let (policy, corpus) = (Policy::default(), corpus());
        let once = || with(&policy, &corpus, &["pi"], |rules| admit(&tree, &list, rules));
        let answer = once();
        prop_assert_eq!(&answer, &once());
        match answer {
            Ok(applied) => prop_assert_eq!(Ok(applied), tree.apply(&list)),
            Err(refusals) => prop_assert!(!refusals.is_empty()),
        }
    }

    #[test]
    fn texts_never_widen_what_a_tree_can_do(text in "[ -~\n]{0,200}") {
        let list = put("agent_command", "new", json!({"description": "d", "text": text}));
        let (policy, corpus) = (Policy::default(), corpus());
        let mutations = read_mutations(&list).expect("mutations");
        with(&policy, &corpus, &["claude", "opencode"], |rules| {
            let tree = samples::texts_only();
            let powers = |tree: &Tree| tree.entries().flat_map(|entry| capabilities(entry, rules.adapters)).collect::<BTreeSet<_>>();
            if let Ok(applied) = admit(&tree, &mutations, rules) {
                assert!(powers(&applied.tree).is_subset(&powers(&tree)));
            }
        });
    }
}
