//! What an edit may say that it requires.

use reef_evolution::edits::object;
use reef_recipe_reefine::requires::requires;

fn read(items: &str) -> Result<Vec<String>, String> {
    requires(&object(&format!("{{\"requires\": {items}}}"))?)
}

#[test]
fn needs_are_named_with_their_kind_and_why() {
    let items =
        r#"[{"kind":"env","name":"GITHUB_TOKEN","why":"to\nopen issues"},{"kind":"service","name":"postgres"}]"#;
    assert_eq!(read(items), Ok(vec!["env GITHUB_TOKEN (to open issues)".into(), "service postgres".into()]));
    assert_eq!(read("[]"), Ok(vec![]));
    assert_eq!(read("null"), Ok(vec![]));
}

#[test]
fn needs_that_make_no_sense_are_a_sentence() {
    let wrong = "an item of 'requires' needs a kind (permission, env, service) and a name";
    let kind = r#"[{"kind":"root","name":"x"}]"#;
    for bad in [kind, r#"[{"kind":"env","name":"a b; rm"}]"#, r#"[{"kind":"env"}]"#, r#"["GITHUB_TOKEN"]"#] {
        assert_eq!(read(bad), Err(wrong.to_owned()), "{bad}");
    }
    assert_eq!(read("3"), Err("'requires' is not a list".into()));
    let many = [r#"{"kind":"service","name":"x"}"#; 9].join(",");
    assert_eq!(read(&format!("[{many}]")), Err("the answer requires 9 things, at most 8".into()));
}
