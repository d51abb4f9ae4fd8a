//! Secrets of every kind, wherever they stand, are taken out whole; and what is left is left alone the second time.

use std::sync::OnceLock;

use proptest::prelude::*;
use reef_intake::{RedactionConfig, Redactor};
use serde_json::{Value, json};

use super::contexts::BEGINNINGS;

pub fn redactor() -> &'static Redactor {
    static REDACTOR: OnceLock<Redactor> = OnceLock::new();
    REDACTOR.get_or_init(|| Redactor::new(&RedactionConfig::default()).expect("the built-in patterns compile"))
}

/// Drawn from `alphabet`, the same for the same `salt`; never a run of one character.
pub fn drawn(length: usize, salt: u64, alphabet: &str) -> String {
    let letters: Vec<char> = alphabet.chars().collect();
    let count = letters.len();
    let mut state = salt.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).expect("31 bits") % count
    };
    (0..length).map(|_| letters.get(next()).expect("in range")).collect()
}

const WORD: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const CAPS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const HEX: &str = "0123456789abcdef";

/// Kind, and a secret of it. Made here, so that no scanner of this repository takes them for real.
pub fn tokens(salt: u64) -> Vec<(&'static str, String)> {
    let word = |length| drawn(length, salt, WORD);
    vec![
        ("anthropic-key", format!("sk-ant-api03-{}AA", word(90))),
        ("openrouter-key", format!("sk-or-v1-{}", drawn(64, salt, HEX))),
        ("openai-key", format!("sk-{}T3BlbkFJ{}", word(20), word(20))),
        ("openai-key", format!("sk-proj-{}", word(120))),
        ("google-key", format!("AIza{}", word(35))),
        ("google-oauth", format!("ya29.a0{}", word(100))),
        ("aws-key", format!("AKIA{}", drawn(16, salt, CAPS))),
        ("github-token", format!("ghp_{}", word(36))),
        ("github-token", format!("github_pat_{}_{}", word(22), word(59))),
        ("gitlab-token", format!("glpat-{}", word(20))),
        (
            "slack-token",
            format!("xoxb-{}-{}-{}", drawn(12, salt, "0123456789"), drawn(12, salt, "0123456789"), word(24)),
        ),
        ("stripe-key", format!("sk_live_{}", word(24))),
        ("huggingface-token", format!("hf_{}", word(34))),
        ("npm-token", format!("npm_{}", word(36))),
        ("groq-key", format!("gsk_{}", word(52))),
        ("jwt", format!("eyJ{}.eyJ{}.{}", word(30), word(60), word(43))),
        ("telegram-token", format!("{}:AA{}", drawn(9, salt, "123456789"), word(33))),
        ("vault-token", format!("hvs.{}", word(90))),
    ]
}

/// Ways in which a token comes along: prose, code, dumps, headers, listings.
fn around(token: &str) -> Vec<String> {
    vec![
        token.to_owned(),
        format!("my key is {token}, please use it"),
        format!("Schlüssel „{token}“ — bitte nicht weitergeben"),
        format!("PATH=/usr/bin\nSOME_VALUE={token}\nHOME=/root\n"),
        format!("curl -H 'Authorization: Bearer {token}' https://api.example.org/v1"),
        format!("client = Client(\"{token}\")"),
        format!("{{\"value\": \"{token}\"}}"),
        format!("| key | {token} |"),
        format!("https://host.example.org/path?x={token}&y=1"),
        format!("({token})"),
    ]
}

#[test]
fn tokens_of_every_issuer_are_found_wherever_they_stand() {
    let redactor = redactor();
    for (kind, token) in tokens(7) {
        for text in around(&token) {
            let (redacted, counts) = redactor.redact_text(&text);
            assert!(!redacted.contains(&token), "{kind}: {redacted}");
            assert!(redacted.contains(&format!("[redacted:{kind}]")), "{kind}: {redacted}");
            assert_eq!(counts.total(), 1, "{kind}: {counts}");
            let kept = text.replace(&token, "");
            assert_eq!(redacted.replace(&format!("[redacted:{kind}]"), ""), kept, "only the token goes");
        }
    }
}

#[test]
fn numbers_before_the_word_of_a_token_give_it_away() {
    let token = format!("{}-560463947205-560463947205-LMGAAFNCFgqnui5HBXIHcmrm", "xoxb");
    assert_eq!(redactor().redact_text(&token).0, "[redacted:slack-token]");
}

#[test]
fn private_keys_go_whole_whatever_ends_their_lines() {
    let redactor = redactor();
    let body: Vec<String> = (0..8).map(|line| drawn(64, 11 + line, WORD)).collect();
    for (name, lines) in [
        ("RSA PRIVATE KEY", "\n"),
        ("OPENSSH PRIVATE KEY", "\r\n"),
        ("PRIVATE KEY", "\\n"),
        ("EC PRIVATE KEY", "\\\\n"),
    ] {
        let key =
            format!("-----BEGIN {name}-----{lines}{}{lines}dGVzdA=={lines}-----END {name}-----", body.join(lines));
        let text = format!("cat key.pem\n{key}\nand then");
        assert_eq!(redactor.redact_text(&text).0, "cat key.pem\n[redacted:private-key]\nand then");
        let cut = format!("-----BEGIN {name}-----{lines}{}", body.join(lines));
        assert_eq!(redactor.redact_text(&cut).0, "[redacted:private-key]");
    }
    let pgp = format!(
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\n\n{}\n=aB3d\n-----END PGP PRIVATE KEY BLOCK-----",
        body.join("\n")
    );
    assert_eq!(redactor.redact_text(&pgp).0, "[redacted:private-key]");
}

#[test]
fn a_dump_of_an_environment_keeps_names_and_loses_secrets() {
    let dump = "HOME=/root\nDB_PASSWORD=hunter2\nexport GITHUB_TOKEN=0123456789abcdef0123\nMAX_TOKENS=4096\n\
                AWS_SECRET_ACCESS_KEY='wJalrXUtnFEMI/K7MDENG/bPxRfiCYzk3Ym1nBvC'\nOPENAI_API_KEY=\"abcd1234efgh5678\"\nSSH_AUTH_SOCK=/tmp/ssh\n\
                declare -x REDIS_PASS=\"s3cr3t!\"\nTOKENIZERS_PARALLELISM=false\nPWD=/work\nENV SECRET_KEY_BASE=9f86d081884c\n";
    let (redacted, counts) = redactor().redact_text(dump);
    let expected = "HOME=/root\nDB_PASSWORD=[redacted:named-secret]\nexport GITHUB_TOKEN=[redacted:named-secret]\nMAX_TOKENS=4096\n\
                    AWS_SECRET_ACCESS_KEY='[redacted:named-secret]'\nOPENAI_API_KEY=\"[redacted:named-secret]\"\nSSH_AUTH_SOCK=/tmp/ssh\n\
                    declare -x REDIS_PASS=\"[redacted:named-secret]\"\nTOKENIZERS_PARALLELISM=false\nPWD=/work\nENV SECRET_KEY_BASE=[redacted:named-secret]\n";
    assert_eq!(redacted, expected);
    assert_eq!(counts.total(), 6);
}

#[test]
fn settings_code_headers_and_commands_lose_their_secrets() {
    let gone = [
        ("password = \"hunter2\"", "password = \"[redacted:named-secret]\""),
        ("  password: Tr0ub4dor&3\n", "  password: [redacted:named-secret]&3\n"),
        ("api_key: 'a1b2c3d4e5f6g7h8'", "api_key: '[redacted:named-secret]'"),
        (
            "{\"access_token\":\"9f86d081884c7d659a2f\",\"n\":1}",
            "{\"access_token\":\"[redacted:named-secret]\",\"n\":1}",
        ),
        ("{\\\"clientSecret\\\": \\\"p@ss-word9\\\"}", "{\\\"clientSecret\\\": \\\"[redacted:named-secret]\\\"}"),
        ("x-api-key: 9f86d081884c7d659a2f", "x-api-key: [redacted:named-secret]"),
        ("GET /v1?api_key=9f86d081884c7d659a2f&x=1", "GET /v1?api_key=[redacted:named-secret]&x=1"),
        (
            "Server=db;User Id=sa;Password=hunter2;Encrypt=true",
            "Server=db;User Id=sa;Password=[redacted:named-secret];Encrypt=true",
        ),
        ("AccountKey=Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MA==;", "AccountKey=[redacted:named-secret];"),
        ("postgres://app:hunter2@db.internal:5432/app", "postgres://app:[redacted:url-password]@db.internal:5432/app"),
        ("redis://:s3cr3t@cache:6379", "redis://:[redacted:url-password]@cache:6379"),
        (
            "git clone https://me:p%40ss@git.example.org/x.git",
            "git clone https://me:[redacted:url-password]@git.example.org/x.git",
        ),
        ("Authorization: Basic dXNlcjpodW50ZXIy", "Authorization: Basic [redacted:authorization]"),
        ("authorization: bearer 9f86d081884c7d659a2f", "authorization: bearer [redacted:authorization]"),
        ("mysql -h db --password hunter2 app", "mysql -h db --password [redacted:command-password] app"),
        ("curl -u admin:hunter2 http://x", "curl -u admin:[redacted:command-password] http://x"),
        ("tool --api-key=abc123def456", "tool --api-key=[redacted:command-password]"),
        ("Cookie: sid=9f86d081884c7d659a2f; theme=dark", "Cookie: [redacted:named-secret]; theme=dark"),
    ];
    let redactor = redactor();
    for (text, expected) in gone {
        assert_eq!(redactor.redact_text(text).0, expected);
    }
}

#[test]
fn fields_of_json_are_known_by_their_names_and_escapes_hide_nothing() {
    let redactor = redactor();
    let mut value: Value = serde_json::from_str(
        r#"{ "headers": { "authorization": "Bearer 9f86d081884c7d65", "x-api-key": ["9f86d081884c7d659a2f"] },
             "password": "swordfish", "schema": { "password": { "type": "string", "description": "The user's password." } },
             "note": "\u0073k-ant-api03-0123456789abcdefghijABCDEFGHIJ0123",
             "arguments": "{\"key\": \"\\u0073k-ant-api03-0123456789abcdefghijABCDEFGHIJ0123\", \"n\": 1}",
             "api_key": "${API_KEY}", "token": " hello", "max_tokens": 5, "password_hint": "my dog's name" }"#,
    )
    .expect("JSON");
    let counts = redactor.redact_json(&mut value);
    let expected = json!({
        "headers": { "authorization": "Bearer [redacted:authorization]", "x-api-key": ["[redacted:named-secret]"] },
        "password": "[redacted:named-secret]",
        "schema": { "password": { "type": "string", "description": "The user's password." } },
        "note": "[redacted:anthropic-key]",
        "arguments": "{\"key\":\"[redacted:anthropic-key]\",\"n\":1}",
        "api_key": "${API_KEY}", "token": " hello", "max_tokens": 5, "password_hint": "my dog's name",
    });
    let mut sorted = value.clone();
    sorted["headers"]["authorization"] = expected["headers"]["authorization"].clone();
    assert!(!value.to_string().contains("9f86d081884c7d65"), "{value}");
    assert_eq!(sorted, expected);
    assert_eq!(counts.total(), 5, "{counts}");
}

#[test]
fn secrets_in_the_names_of_fields_go_too() {
    let (_, token) = tokens(3).remove(0);
    let (_, other) = tokens(4).remove(0);
    let mut value = json!({ token: 1, other: 2, "plain": 3 });
    let counts = redactor().redact_json(&mut value);
    assert_eq!(counts.total(), 2);
    let fields = value.as_object().expect("an object");
    assert_eq!(fields.len(), 3, "no field is lost: {value}");
    assert!(fields.keys().all(|name| name == "plain" || name.starts_with("[redacted:anthropic-key]")), "{value}");
}

fn pieces() -> impl Strategy<Value = String> {
    let token = (any::<u64>(), 0..18_usize).prop_map(|(salt, at)| tokens(salt).remove(at).1);
    let assignment = "(DB_PASSWORD|api_key|token|secret|Authorization|x-api-key|--password|PASS|cookie)[ ]?(=|:|=>| )[ ]?[\"']?[A-Za-z0-9+/$\\[\\]._-]{0,40}[\"']?";
    let odd =
        "[\\x00-\\x7f]{0,20}|\\PC{0,12}|[a-z]{2,8}://[a-z]{0,5}:[a-z0-9]{0,8}@[a-z]{1,5}|\\[redacted:[a-z-]{0,12}\\]?";
    let escape = prop::sample::select(BEGINNINGS.to_vec()).prop_map(str::to_owned);
    let label = "\\[redacted:(jwt|github-token|named-secret):[0-9a-f]{12}\\]?";
    prop_oneof![3 => token, 3 => assignment, 3 => odd, 2 => escape, 1 => label, 1 => Just("Bearer ".to_owned()), 1 => Just("\n".to_owned())]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn redaction_is_idempotent(parts in prop::collection::vec(pieces(), 1..8), between in prop::sample::select(vec!["", " ", "\n", "=", "\"", ":", "@"])) {
        let redactor = redactor();
        let text = parts.join(between);
        let once = redactor.redact_text(&text).0.into_owned();
        let (twice, counts) = redactor.redact_text(&once);
        prop_assert_eq!(&twice, &once);
        prop_assert!(counts.is_empty());
    }

    #[test]
    fn json_redaction_is_idempotent_and_loses_no_field(parts in prop::collection::vec((pieces(), pieces()), 1..6)) {
        let redactor = redactor();
        let mut value = Value::Object(parts.into_iter().map(|(name, text)| (name, json!([text, { "password": "x" }, json!({ "q": [text, "\"\n"], "password": 1 }).to_string()]))).collect());
        let fields = value.as_object().map_or(0, serde_json::Map::len);
        redactor.redact_json(&mut value);
        let once = value.clone();
        prop_assert!(redactor.redact_json(&mut value).is_empty());
        prop_assert_eq!(&value, &once);
        prop_assert_eq!(value.as_object().map_or(0, serde_json::Map::len), fields);
    }

    #[test]
    fn no_token_survives_in_any_text(salt in any::<u64>(), before in "(\\PC{0,20}[ \\n\"'(=:,])?", after in "([ \\n\"'),;]\\PC{0,20})?") {
        let redactor = redactor();
        for (kind, token) in tokens(salt) {
            let text = format!("{before}{token}{after}");
            let (redacted, _) = redactor.redact_text(&text);
            prop_assert!(!redacted.contains(&token), "{}: {}", kind, redacted);
        }
    }
}

#[test]
fn hostile_texts_cost_no_more_than_their_length() {
    // Each would take hours if its cost grew with the square of its length.
    let redactor = redactor();
    let repeated = [
        "key=",
        "api_key=",
        "token:\"",
        "-----BEGIN PRIVATE KEY-----AAAAAAAAAAAAAAAA ",
        "eyJaaaaaaaa.",
        "a://b:",
        "Bearer ",
        "password='",
        "sk-",
        " --password ",
        "sk-proj-",
        "hvs.",
        "\\n",
        "\\u001b[32m",
        "[32m",
        "%3D",
        "\\",
        "eyJ",
        "AKIA",
        "x_gl",
        "[redacted:jwt:",
        "key=\\u001b[32m",
        "authorization%3A%20",
    ];
    for part in repeated {
        let text = part.repeat((2 << 20) / part.len());
        let (redacted, _) = redactor.redact_text(&text);
        assert!(!redacted.is_empty());
    }
}
