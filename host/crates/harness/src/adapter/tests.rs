//! The embedded adapters are right, and wrong ones are refused with what is wrong.

use super::*;

const MINIMAL: &str = r#"
name = "x"
title = "X"
binary = "x"
versions = ">=1"
[audit]
version = "1.0.0"
date = "2026-11-30"
method = "none"
[install]
kind = "npm"
package = "x"
version = "1.2.0"
[run]
endpoint = "/v1/messages"
headless = ["{{prompt}}"]
environment = { X = "{{url}} {{home}} {{token}} {{session}}" }
[session]
headers = []
[[file]]
path = "a.json"
format = "json"
template = "a.json"
[[place]]
kind = "rules"
form = "joined"
path = "RULES.md"
[cannot]
agent_command = "-"
skill = "-"
code_extension = "-"
tool = "-"
hook = "-"
subagent = "-"
mcp = "-"
prompt = "-"
"#;

fn parse(definition: &str, template: &str) -> Result<Adapter, AdapterError> {
    Adapter::parse("x", &[("adapter.toml", definition), ("a.json", template)])
}

#[test]
fn every_embedded_adapter_is_right_and_binds_address_key_and_model() {
    let adapters = Adapters::embedded().expect("they are right");
    let names: Vec<&str> = adapters.iter().map(|adapter| adapter.name.as_str()).collect();
    assert_eq!(names, ["aider", "claude", "codex", "dsh", "goose", "hermes", "native", "opencode", "openhands", "pi"]);
    for adapter in adapters.iter() {
        let data = EMBEDDED.iter().find(|(folder, _)| *folder == adapter.name).expect("its folder").1;
        let all: String = data.iter().map(|(_, text)| *text).collect();
        for name in ["{{url}}", "{{model}}", "{{home}}", "{{prompt}}"] {
            assert!(all.contains(name), "{} binds no {name}", adapter.name);
        }
        assert!(all.contains("{{token}}") || all.contains("REEF_TOKEN"), "{} binds no key", adapter.name);
        assert!(adapter.places.iter().any(|place| place.kind == EntryKind::Rules), "{}", adapter.name);
        let unaudited = adapter.audit.method == AuditMethod::None && adapter.audit.not_audited.is_empty();
        assert!(!unaudited, "{} has to say what is not audited", adapter.name);
    }
}

#[test]
fn mistakes_in_the_data_are_told() {
    let right = r#"{"u": "{{url}}"}"#;
    assert!(parse(MINIMAL, right).is_ok());
    for (from, to, words) in [
        ("name = \"x\"", "name = \"y\"", "its name is 'y'"),
        ("version = \"1.2.0\"", "version = \"0.2.0\"", "not within"),
        ("mcp = \"-\"\n", "", "kind mcp needs a place"),
        ("headless = [\"{{prompt}}\"]", "headless = [\"go\"]", "does not hold"),
        ("{{session}}", "{{sesion}}", "'{{sesion}}', which is not known"),
        ("{ X =", "{ \"X Y\" =", "not the name of a variable"),
        ("path = \"RULES.md\"", "path = \"../RULES.md\"", "not a plain path"),
        ("form = \"joined\"", "form = \"folded\"", "unknown variant"),
        ("template = \"a.json\"", "template = \"b.json\"", "there is no b.json"),
        ("binary = \"x\"", "binary = \"x\"\nfoo = 1", "unknown field"),
    ] {
        let told = parse(&MINIMAL.replace(from, to), right).expect_err(to).to_string();
        assert!(told.contains(words) && told.contains("harness-adapters/x"), "{told}");
    }
    for template in ["{", r#"{"u": "{{token}}"}"#, r#"{"u": "{{nothing}}"}"#, r#"{"u": "{{"}"#] {
        assert!(parse(MINIMAL, template).is_err(), "{template}");
    }
}
