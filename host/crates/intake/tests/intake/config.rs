//! The operator's own patterns and kept kinds; every mistake is named with its remedy.

use reef_intake::{ConfigError, OperatorPattern, RedactionConfig, Redactor};

use super::secrets::tokens;

fn with(patterns: &[(&str, &str)], keep: &[&str]) -> RedactionConfig {
    let pattern =
        |(name, regex): &(&str, &str)| OperatorPattern { name: (*name).to_owned(), regex: (*regex).to_owned() };
    RedactionConfig {
        enabled: true,
        patterns: patterns.iter().map(pattern).collect(),
        keep: keep.iter().map(|kind| (*kind).to_owned()).collect(),
    }
}

fn refusal(config: &RedactionConfig) -> ConfigError {
    Redactor::new(config).expect_err("refused")
}

#[test]
fn the_operators_patterns_take_their_first_group_or_the_whole_match() {
    let redactor = Redactor::new(&with(&[("badge", "BADGE-[0-9]{6}"), ("customer", r"(?i)customer no\. (\d+)")], &[]))
        .expect("valid");
    let (redacted, counts) = redactor.redact_text("Customer no. 4711 has BADGE-123456; straße, ключ");
    assert_eq!(redacted, "Customer no. [redacted:customer] has [redacted:badge]; straße, ключ");
    assert_eq!(counts.to_string(), "badge 1, customer 1");
}

#[test]
fn kept_kinds_stay_and_the_switch_turns_all_off() {
    let (_, jwt) = tokens(9).into_iter().find(|(kind, _)| *kind == "jwt").expect("made");
    let text = format!("{jwt} DB_PASSWORD=hunter2");
    let kept = Redactor::new(&with(&[], &["jwt"])).expect("valid");
    assert_eq!(kept.redact_text(&text).0, format!("{jwt} DB_PASSWORD=[redacted:named-secret]"));
    let off = Redactor::new(&RedactionConfig { enabled: false, ..RedactionConfig::default() }).expect("valid");
    assert_eq!(off.redact_text(&text).0, text);
    let mut value = serde_json::json!({ "password": "hunter2" });
    assert!(off.redact_json(&mut value).is_empty());
    assert_eq!(value["password"], "hunter2");
    let names = Redactor::new(&with(&[], &["named-secret"])).expect("valid");
    assert!(names.redact_json(&mut value).is_empty());
}

#[test]
fn mistakes_are_named_with_their_remedy() {
    let told = [
        (with(&[("Bad Name", "x")], &[]), "redaction.patterns[0].name 'Bad Name' is not valid; use 1 to 40"),
        (with(&[("a", "x"), ("a", "y")], &[]), "redaction.patterns[1].name 'a' is taken"),
        (with(&[("jwt", "x")], &[]), "'jwt' is taken"),
        (with(&[("a", "(")], &[]), "redaction.patterns 'a': the regex cannot be used: "),
        (with(&[("a", "x*")], &[]), "also matches an empty text"),
        (with(&[("a", r"(?:\w{1,500}){1,500}")], &[]), "it needs more than"),
        (with(&[("a", r"(a)\1")], &[]), "the regex cannot be used"),
        (with(&[], &["jwts"]), "redaction.keep names 'jwts', which is no built-in kind; use one of private-key"),
    ];
    for (config, told) in told {
        let refusal = refusal(&config).to_string();
        assert!(refusal.contains(told), "{refusal}");
    }
    let many: Vec<(String, String)> = (0..65).map(|n| (format!("p{n}"), "x".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, regex)| (name.as_str(), regex.as_str())).collect();
    assert_eq!(refusal(&with(&many, &[])), ConfigError::TooMany(65));
    let long = "x".repeat(5000);
    assert!(refusal(&with(&[("a", &long)], &[])).to_string().contains("it has 5000 bytes; use at most 4096"));
}
