//! What stands right before a secret hides none: escapes that are spelled out, colours, percent-encoding, glued names.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::secrets::{drawn, redactor, tokens};

const WORD: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const HEX: &str = "0123456789abcdef";

/// What ends in a letter or a digit, and begins a word anew.
pub const BEGINNINGS: [&str; 28] = [
    "\\n",
    "\\r",
    "\\t",
    "\\b",
    "\\f",
    "\\\"",
    "\\/",
    "\\u000a",
    "\\u000A",
    "\\u003d",
    "\\u201c",
    "\\\\n",
    "\\\\\\\\n",
    "\\\\u000a",
    "\\\\\\\"",
    "\\x0a",
    "\\0",
    "\x1b[32m",
    "\x1b[1;31m\x1b[K",
    "\\u001b[32m",
    "\\x1b[32m",
    "\\033[0;32m",
    "\\e[m",
    "%3D",
    "%0A",
    "%0d%0a",
    "%253D",
    "\n",
];
const ENDS: [&str; 9] = ["", "\\n", "\\\"", "\\\\n", "\x1b[0m", "\\u001b[0m", "%0A", "'", " end"];

/// A secret of every kind that an issuer gives a shape.
fn all(salt: u64) -> Vec<(&'static str, String)> {
    let word = |length| drawn(length, salt, WORD);
    let hex = |length| drawn(length, salt, HEX);
    let mut all = tokens(salt);
    all.extend([
        ("age-key", format!("AGE-SECRET-KEY-1{}", word(58).to_uppercase())),
        ("openai-key", format!("sk-svcacct-{}", word(80))),
        ("google-oauth", format!("GOCSPX-{}", word(28))),
        ("aws-key", format!("ASIA{}", word(16).to_uppercase())),
        ("github-token", format!("gho_{}", word(36))),
        ("slack-token", format!("xapp-1-{}", word(40))),
        ("stripe-key", format!("rk_test_{}", word(24))),
        ("stripe-key", format!("whsec_{}", word(32))),
        ("pypi-token", format!("pypi-AgE{}", word(80))),
        ("xai-key", format!("xai-{}", word(80))),
        ("perplexity-key", format!("pplx-{}", word(48))),
        ("replicate-token", format!("r8_{}", word(37))),
        ("sendgrid-key", format!("SG.{}.{}", word(22), word(43))),
        ("digitalocean-token", format!("dop_v1_{}", hex(64))),
        ("databricks-token", format!("dapi{}", hex(32))),
        ("docker-token", format!("dckr_pat_{}", word(27))),
        ("shopify-token", format!("shpat_{}", hex(32))),
    ]);
    all
}

/// The text with the mark in the place of the secret, and nothing else changed.
fn assert_gone(before: &str, kind: &str, secret: &str, after: &str) {
    let text = format!("{before}{secret}{after}");
    let (redacted, counts) = redactor().redact_text(&text);
    assert_eq!(redacted, format!("{before}[redacted:{kind}]{after}"));
    assert_eq!(counts.total(), 1, "{counts}");
}

#[test]
fn escapes_colours_and_percent_encoding_hide_no_token() {
    for (kind, token) in [all(31), all(32)].concat() {
        for before in BEGINNINGS {
            for after in ENDS {
                assert_gone(before, kind, &token, after);
                assert_gone(&format!("the log says '1 line{before}"), kind, &token, after);
            }
        }
    }
}

#[test]
fn names_glued_to_a_token_hide_it_not() {
    for (kind, token) in [all(33), all(34)].concat() {
        for before in ["x_", "token-", "MY_KEY_", "a-b-", "key__", "--"] {
            assert_gone(before, kind, &token, "\n");
        }
    }
    let anywhere = [
        "anthropic-key",
        "openrouter-key",
        "openai-key",
        "aws-key",
        "github-token",
        "slack-token",
        "stripe-key",
        "huggingface-token",
        "npm-token",
        "groq-key",
        "telegram-token",
        "pypi-token",
        "jwt",
        "age-key",
    ];
    for (kind, token) in all(35).into_iter().filter(|(kind, _)| anywhere.contains(kind)) {
        assert_gone("bot", kind, &token, " send");
    }
}

#[test]
fn a_short_beginning_of_its_own_needs_a_word_boundary() {
    let key = format!("sk-{}", drawn(32, 41, HEX));
    for before in ["", " ", "=", "\\n", "\x1b[32m", "%3D", "\\\""] {
        assert_gone(before, "openai-key", &key, "");
    }
    for word in ["task-", "locale-", "de", "x_"] {
        assert!(redactor().redact_text(&format!("{word}{key}.js")).1.is_empty(), "{word}");
    }
}

#[test]
fn headers_addresses_commands_and_variables_are_found_after_escapes() {
    let redactor = redactor();
    let found = [
        ("Authorization: Basic ", "authorization", "dXNlcjpodW50ZXIy"),
        ("\\\"Authorization\\\": \\\"Basic ", "authorization", "dXNlcjpodW50ZXIy"),
        ("Authorization%3A%20Basic%20", "authorization", "dXNlcjpodW50ZXIy"),
        ("HTTP_AUTHORIZATION: Basic ", "authorization", "dXNlcjpodW50ZXIy"),
        ("Bearer ", "authorization", "9f86d081884c7d659a2f"),
        ("postgres:\\/\\/app:", "url-password", "hunter2"),
        ("DB_PASSWORD=", "named-secret", "swordfish"),
        ("DB_PASSWORD=\\\"", "named-secret", "swordfish"),
        ("export GITHUB_TOKEN=", "named-secret", "0123456789abcdef0123"),
        ("DB_PASSWORD=\x1b[32m", "named-secret", "hunter2"),
        ("password: \\u001b[32m", "named-secret", "hunter2"),
        ("password: \\\"", "named-secret", "hunter2"),
        ("https://hooks.slack.com/services/", "slack-webhook", "T024BE7LD/B02A3FGH4/abcdEFGH1234abcdEFGH1234"),
        ("--password ", "command-password", "hunter2"),
    ];
    for (name, kind, secret) in found {
        for before in BEGINNINGS {
            if kind == "command-password" && !["\\n", "\\r", "\\t", "\\\\n", "\\\\\\\\n", "\n"].contains(&before) {
                continue;
            }
            for after in ["\\n", "\x1b[0m", "\\\"", "\n"] {
                let after = if kind == "url-password" { "@db.internal:5432\\n" } else { after };
                let after = if name.ends_with("\\\"") && kind == "named-secret" { "\\\"\\n" } else { after };
                let ends = kind != "command-password" || after != "\x1b[0m";
                if ends {
                    let text = format!("a{before}{name}{secret}{after}");
                    let expected = format!("a{before}{name}[redacted:{kind}]{after}");
                    assert_eq!(redactor.redact_text(&text).0, expected);
                }
            }
        }
    }
}

#[test]
fn private_keys_go_whole_whatever_stands_before_and_ends_their_lines() {
    let body: Vec<String> = (0..6).map(|line| drawn(64, 51 + line, WORD)).collect();
    for lines in ["\n", "\\n", "\\\\n", "\\\\\\\\n", "\\r\\n", "\\u000a", "%0A", "%0D%0A"] {
        let (space, slash, end) =
            if lines.starts_with('%') { ("%20", "%2F", "dGVzdA%3D%3D") } else { (" ", "\\/", "dGVzdA==") };
        let name = ["RSA", "PRIVATE", "KEY"].join(space);
        let body = body.join(&format!("{slash}{lines}"));
        let key = format!("-----BEGIN{space}{name}-----{lines}{body}{lines}{end}{lines}-----END{space}{name}-----");
        for before in BEGINNINGS {
            for after in ENDS {
                assert_gone(&format!("x{before}"), "private-key", &key, after);
            }
        }
    }
}

#[test]
fn texts_written_into_texts_of_json_hide_nothing() {
    let redactor = redactor();
    for (kind, token) in all(36) {
        let mut text = format!("first line\n{token}\t\"{token}\"\u{1b}[32m{token}\u{1b}[0m end\r\n");
        let mut expected = text.replace(&token, &format!("[redacted:{kind}]"));
        for _ in 0..5 {
            let mut value = json!({ "arguments": text });
            assert_eq!(redactor.redact_json(&mut value).total(), 3, "{value}");
            assert_eq!(value["arguments"], expected);
            (text, expected) = (json!({ "c": [text] }).to_string(), json!({ "c": [expected] }).to_string());
        }
        for repr in
            [format!("'a\\n{token}'"), format!("b'a\\r\\n{token}\\n'"), format!("[\"\\x1b[1m{token}\\x1b[0m\"]")]
        {
            let expected = repr.replace(&token, &format!("[redacted:{kind}]"));
            assert_eq!(redactor.redact_text(&repr).0, expected);
        }
    }
}

#[test]
fn json_in_a_text_is_read_if_it_has_any_escape_and_also_if_it_is_one_text() {
    let redactor = redactor();
    let inner = json!({ "path": "a\\b", "password": "swordfish" }).to_string();
    let bare = json!({ "q": "\"", "password": "swordfish" }).to_string();
    for text in [inner.clone(), bare, json!(inner).to_string(), format!(" {}", json!([inner]))] {
        let mut value = json!({ "arguments": text });
        assert_eq!(redactor.redact_json(&mut value).total(), 1, "{value}");
        assert!(!value.to_string().contains("swordfish"), "{value}");
        let once = value.clone();
        assert!(redactor.redact_json(&mut value).is_empty());
        assert_eq!(value, once);
    }
    let spelled: String = tokens(37).remove(0).1.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect();
    let mut value = json!([format!("\"{spelled}\"")]);
    redactor.redact_json(&mut value);
    assert_eq!(value, json!(["\"[redacted:anthropic-key]\""]));
    // Without a secret it stays as it was written.
    for text in ["{\"a\" : \"\\u00e9\\n\",  \"n\": 1.50}", "\"a\\tb\" ", "\"he said\\n\" and left"] {
        let mut value = json!([text]);
        assert!(redactor.redact_json(&mut value).is_empty());
        assert_eq!(value, json!([text]));
    }
}

#[test]
fn numbers_under_the_name_of_a_secret_go_and_counts_stay() {
    let mut value: Value = serde_json::from_str(
        r#"{ "password": 12345678, "db": { "PASSWORD_2": [-98765432, 18446744073709551615] }, "client_secret": 123456789012345678901234567890,
             "max_tokens": 4096, "password_length": 1024, "password_resets": 5012, "client_secret_expires_at": 1699999999, "tests_pass": 1201,
             "secret": 0.95817, "secrets": 1234, "token": 50256, "token_ids": [50256, 1001], "password_hash": 987654321, "api_key": 12 }"#,
    )
    .expect("JSON");
    let before = value.clone();
    assert_eq!(redactor().redact_json(&mut value).total(), 4);
    let mark = json!("[redacted:named-secret]");
    assert_eq!(value["password"], mark);
    assert_eq!(value["db"], json!({ "PASSWORD_2": [mark, mark] }));
    assert_eq!(value["client_secret"], mark);
    let same = |name: &&String| value[name.as_str()] == before[name.as_str()];
    assert_eq!(before.as_object().expect("an object").keys().filter(same).count(), 11);
    assert!(redactor().redact_json(&mut value).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn only_the_secret_goes_wherever_it_stands(salt in any::<u64>(), before in "[a-z .\\n]{0,12}", at in 0..BEGINNINGS.len(), end in 0..ENDS.len()) {
        for (kind, token) in all(salt) {
            let before = format!("{before}{}", BEGINNINGS[at]);
            let text = format!("{before}{token}{}", ENDS[end]);
            prop_assert_eq!(redactor().redact_text(&text).0, format!("{before}[redacted:{kind}]{}", ENDS[end]));
        }
    }
}
