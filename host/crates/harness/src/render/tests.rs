//! Renders for each adapter: golden files, version gates, quoting, and what is left out.
//!
//! After a change of an adapter or of the renderer, look at the difference and write the golden files again:
//! `REEF_HARNESS_GOLDEN=write cargo test -p reef-harness golden`.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::adapter::Adapters;
use crate::name::EntryKind;
use crate::samples;

fn adapters() -> Adapters {
    Adapters::embedded().expect("adapters")
}

fn rendered(tree: &Tree, adapter: &str, binding: &Binding) -> Rendering {
    render(tree, adapters().get(adapter).expect("an adapter"), binding).expect("renders")
}

fn text(rendering: &Rendering, path: &str) -> String {
    let file = rendering.files.iter().find(|file| file.path == path);
    file.unwrap_or_else(|| panic!("no {path} in {:?}", rendering.files)).text.clone()
}

fn golden(rendering: &Rendering) -> String {
    let mut all = String::new();
    for file in &rendering.files {
        let kept = if file.client_writes { ", the program changes it" } else { "" };
        all += &format!("==> {} ({:o}{kept})\n{}", file.path, file.mode, file.text);
    }
    for left in &rendering.left_out {
        all += &format!("==> left out: {}: {}\n", left.entry, left.reason);
    }
    all
}

#[test]
fn golden_renders_of_every_adapter() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden");
    let write = std::env::var("REEF_HARNESS_GOLDEN").is_ok_and(|value| value == "write");
    for adapter in adapters().iter() {
        let got = golden(&render(&samples::every_kind(), adapter, &samples::binding()).expect("renders"));
        let path = folder.join(format!("{}.txt", adapter.name));
        if write {
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(&path, &got).expect("written");
        }
        let expected = fs::read_to_string(&path).expect("a golden file; see the head of this file");
        assert_eq!(got, expected, "{}; see the head of this file", path.display());
    }
}

#[test]
fn pi_reads_the_key_by_version() {
    let at = |version: &str| Binding { version: Some(version.parse().expect("a version")), ..samples::binding() };
    let key = |version| {
        let models: Value =
            serde_json::from_str(&text(&rendered(&samples::every_kind(), "pi", &at(version)), "agent/models.json"))
                .expect("JSON");
        models["providers"]["reef"]["apiKey"].clone()
    };
    assert_eq!(
        [key("0.58.0"), key("0.83.9"), key("0.84.0"), key("1.6.0")],
        ["REEF_TOKEN", "REEF_TOKEN", "$REEF_TOKEN", "$REEF_TOKEN"]
    );
    let mcp = |version| {
        rendered(&samples::every_kind(), "pi", &at(version))
            .left_out
            .iter()
            .any(|left| left.entry.kind() == EntryKind::Mcp)
    };
    assert!(mcp("0.84.2") && !mcp("1.6.0"), "MCP servers come with 1.0");
    for version in ["0.57.9", "2.0.0"] {
        let error = render(&Tree::default(), adapters().get("pi").expect("pi"), &at(version)).expect_err(version);
        assert!(error.to_string().contains("install 0.84.2"), "{error}");
    }
}

#[test]
fn nothing_rendered_holds_the_key_and_everything_is_in_the_home() {
    for adapter in adapters().iter() {
        let rendering = render(&samples::every_kind(), adapter, &samples::binding()).expect("renders");
        for file in rendering.files() {
            assert!(crate::adapter::check_path(&file.path).is_ok(), "{}", file.path);
            assert!(!file.text.contains("{{url}}/v1") && !file.text.contains("{{model}}"), "{}", file.path);
            assert_eq!(file.sha256, sha256_hex(file.text.as_bytes()));
        }
    }
}

#[test]
fn a_tree_sets_what_is_open_and_never_what_reef_binds() {
    let config =
        |settings| samples::entry(EntryKind::Config, "own", &json!({"adapter": "codex", "settings": settings}));
    let one = |settings| Tree::new([config(settings)]).expect("a tree");
    let open = rendered(&one(json!({"model_verbosity": "low"})), "codex", &samples::binding());
    assert!(text(&open, "config.toml").contains("model_verbosity = \"low\""));
    for settings in [
        json!({"model_provider": "openai"}),
        json!({"sandbox_mode": "danger-full-access"}),
        json!({"model_verbosity": "low", "notify": ["x"]}),
    ] {
        let left = rendered(&one(settings), "codex", &samples::binding());
        assert!(left.left_out[0].reason.contains("it may set"), "{left:?}");
        assert!(!text(&left, "config.toml").contains("model_verbosity"));
    }
    let pi = rendered(&one(json!({"notify": ["x"]})), "pi", &samples::binding());
    assert!(pi.left_out.is_empty(), "settings of codex are not pi's business");
}

#[test]
fn two_entries_never_become_one_file() {
    let code = |kind, id| samples::entry(kind, id, &json!({"adapter": "pi", "source": ""}));
    let tree = Tree::new([code(EntryKind::Tool, "a"), code(EntryKind::CodeExtension, "tool-a")]).expect("a tree");
    let error = render(&tree, adapters().get("pi").expect("pi"), &samples::binding()).expect_err("a collision");
    assert!(error.to_string().contains("agent/extensions/tool-a.ts; rename one"), "{error}");
}

#[test]
fn wrong_bindings_are_refused() {
    let with = |url: &str, model: &str| Binding { url: url.to_owned(), model: model.to_owned(), ..samples::binding() };
    let good = "http://h";
    for (url, model) in [
        ("ftp://h", "m"),
        ("http://h/", "m"),
        ("http://h?a", "m"),
        ("http://h\nx", "m"),
        ("http://h/'", "m"),
        ("", "m"),
        (good, ""),
        (good, "a b"),
        (good, "a\nb"),
        (good, "{file:/etc/passwd}"),
        (good, "a\u{0}"),
    ] {
        let opencode = adapters();
        assert!(
            render(&Tree::default(), opencode.get("opencode").expect("there"), &with(url, model)).is_err(),
            "{url} {model}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn renders_are_deterministic_and_their_documents_hold_the_bound_values(tree in samples::trees(), model in "[!-~äß字]{1,40}") {
        let binding = Binding { model: model.clone(), ..samples::binding() };
        for adapter in adapters().iter() {
            let Ok(rendering) = render(&tree, adapter, &binding) else {
                prop_assert!(adapter.files.iter().any(|file| file.interpolates.iter().any(|sign| model.contains(sign.as_str()))));
                continue;
            };
            prop_assert_eq!(&rendering, &render(&tree, adapter, &binding).expect("again"));
            for (path, format, pointer) in [
                ("agent/settings.json", Format::Json, "/defaultModel"),
                ("config.toml", Format::Toml, "/model"),
                ("config.yaml", Format::Yaml, "/model/default"),
            ] {
                for file in rendering.files.iter().filter(|file| file.path == path) {
                    let document = format.read(&file.text).expect("a document");
                    prop_assert_eq!(document.pointer(pointer), Some(&json!(model)), "{}", file.text);
                }
            }
        }
    }

    #[test]
    fn front_matter_holds_any_description(description in "[ -~äß字]{0,60}[!-~]") {
        prop_assume!(crate::text::check_line(&description).is_ok());
        let tree = Tree::new([samples::entry(EntryKind::Skill, "one", &json!({"description": description, "text": "body"}))]).expect("a tree");
        let skill = text(&rendered(&tree, "claude", &samples::binding()), "skills/one/SKILL.md");
        let head = skill.strip_prefix("---\n").and_then(|rest| rest.split_once("---\nbody\n")).expect("front matter").0;
        prop_assert_eq!(Format::Yaml.read(head).expect("YAML"), json!({"name": "one", "description": description}));
    }
}
