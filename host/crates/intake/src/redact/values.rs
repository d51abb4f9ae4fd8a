//! Does a value look like a secret, or like something that stands in for one?
//! All tests are about characters alone, linear in a value of bounded length.

/// Runs of letters and digits of this length are no words any more.
const RUN_MIN: usize = 12;
/// Letters of both cases without a digit need more to look random.
const CASED_RUN_MIN: usize = 20;
/// Capitals and small letters change places this often at least.
const CASE_CHANGES_MIN: usize = 4;
/// Different characters of anything random.
const DISTINCT_MIN: usize = 6;

/// Words in the place of a value.
const WORDS: [&str; 57] = [
    "password",
    "passwd",
    "passphrase",
    "pass",
    "pwd",
    "secret",
    "token",
    "key",
    "apikey",
    "api_key",
    "api-key",
    "user",
    "username",
    "none",
    "null",
    "nil",
    "undefined",
    "true",
    "false",
    "yes",
    "no",
    "on",
    "off",
    "string",
    "str",
    "text",
    "number",
    "int",
    "bool",
    "boolean",
    "bytes",
    "any",
    "object",
    "required",
    "optional",
    "hidden",
    "invalid",
    "missing",
    "wrong",
    "weak",
    "strong",
    "changed",
    "expired",
    "masked",
    "empty",
    "unset",
    "default",
    "test",
    "todo",
    "tbd",
    "n/a",
    "bearer",
    "basic",
    "auto",
    "value",
    "mysecret",
    "mypassword",
];
/// Parts that only placeholders have; as good as never in something random.
const PARTS: [&str; 20] = [
    "[redacted",
    "example",
    "placeholder",
    "changeme",
    "change-me",
    "change_me",
    "replaceme",
    "replace-me",
    "replace_me",
    "xxxxx",
    "***",
    "...",
    "…",
    "your-",
    "your_",
    "yourkey",
    "yourtoken",
    "insert-",
    "insert_",
    "dummy",
];
/// Beginnings of references to a value that is kept elsewhere.
const REFERENCES: [&str; 18] = [
    "$",
    "%",
    "{",
    "<",
    "process.env",
    "os.environ",
    "os.getenv",
    "getenv",
    "env.",
    "env:",
    "env(",
    "secrets.",
    "vars.",
    "var.",
    "op://",
    "vault:",
    "arn:",
    "self.",
];

/// Stands in for a value: `${TOKEN}`, `YOUR_API_KEY`, `<token>`, `xxxxxxxx`, `password`.
pub(super) fn is_placeholder(value: &str) -> bool {
    let lower = value.trim().to_lowercase();
    // Rules of forms begin with a word: `required|min:8`.
    let word = lower.split('|').next().unwrap_or_default();
    lower.is_empty()
        || lower.starts_with("your")
        || WORDS.contains(&word)
        || PARTS.iter().any(|part| lower.contains(part))
        || lower.strip_prefix('!').is_some_and(|tag| tag.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        || REFERENCES.iter().any(|start| lower.starts_with(start))
        || !lower.chars().any(char::is_alphanumeric)
        || lower.chars().all(|c| lower.starts_with(c))
}

/// A placeholder in the shape of a token: `ghp_xxxxxxxx`, `AKIAIOSFODNN7EXAMPLE`, `sk-000000000000`.
pub(super) fn is_token_placeholder(token: &str) -> bool {
    // Of a token with a prefix, what follows it tells; without one, half of it tells as well.
    let body = token.get(token.len() / 3..).unwrap_or(token);
    let mut seen = [false; 128];
    let distinct = body.bytes().filter(|b| seen.get_mut(usize::from(*b)).is_some_and(|s| !std::mem::replace(s, true)));
    is_placeholder(token) || distinct.count() < DISTINCT_MIN
}

/// Looks as if drawn at random: a long run of letters and digits, or of letters of changing case.
pub(super) fn is_random(value: &str) -> bool {
    value.split(|c: char| !c.is_ascii_alphanumeric()).any(|run| {
        let digits = run.bytes().filter(u8::is_ascii_digit).count();
        let mixed = run.len() >= RUN_MIN && digits >= 2 && digits < run.len();
        mixed || (run.len() >= CASED_RUN_MIN && case_changes(run) >= CASE_CHANGES_MIN)
    }) || (value.len() >= 2 * CASED_RUN_MIN && case_changes(value) >= 2 * CASE_CHANGES_MIN)
}

fn case_changes(run: &str) -> usize {
    let cases = run.bytes().filter(u8::is_ascii_alphabetic).map(|b| b.is_ascii_uppercase());
    let next = cases.clone().skip(1);
    cases.zip(next).filter(|(a, b)| a != b).count()
}

/// Letters with digits, or with signs that names and paths have not: how people make passwords.
pub(super) fn is_mixed(value: &str) -> bool {
    let letter = value.bytes().any(|b| b.is_ascii_alphabetic());
    let digit = value.bytes().any(|b| b.is_ascii_digit());
    let sign = value.bytes().any(|b| b"!@#$%^&*?~+".contains(&b));
    letter && (digit || sign || is_random(value))
}

/// What a variable holds that is evidently no secret: a number, a path, an address, a list, a single word.
pub(super) fn is_plain(value: &str) -> bool {
    value.bytes().all(|b| b.is_ascii_digit() || b".,:-_".contains(&b))
        || value.starts_with(['/', '.', '~'])
        || value.contains("://")
        || value.contains(',')
        || (value.len() < RUN_MIN && value.bytes().all(|b| b.is_ascii_lowercase() || b"-_.".contains(&b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_stand_for_values_and_values_do_not() {
        let placeholders =
            "${TOKEN} $TOKEN YOUR_API_KEY your-key <token> {{ secrets.KEY }} %TOKEN% xxxxxxxx *** changeme ";
        for value in
            placeholders.split_whitespace().chain(["os.environ['K']", "process.env.KEY", "", "---", "password"])
        {
            assert!(is_placeholder(value), "{value}");
        }
        for value in ["hunter2", "correct-horse", "Tr0ub4dor&3", "s3cr3t", "9f86d081884c7d65"] {
            assert!(!is_placeholder(value), "{value}");
        }
        for token in ["ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "AKIAIOSFODNN7EXAMPLE", "sk-00000000000000000000"] {
            assert!(is_token_placeholder(token), "{token}");
        }
        assert!(!is_token_placeholder("ghp_16C7e42F292c6912E7710c838347Ae178B4a"));
    }

    #[test]
    fn random_is_what_no_word_looks_like() {
        for value in ["9f86d081884c7d65", "aGVsbG8gd29ybGQhIHRoaXMgaXM", "QmFzZVNlY3JldFdpdGhvdXREaWdpdHM"] {
            assert!(is_random(value), "{value}");
        }
        let plain =
            ["user_profile_2024", "createdAtDescending", "loading-spinner-container-v2", "settings.DB2_PASSWORD"];
        for value in plain {
            assert!(!is_random(value), "{value}");
        }
    }
}
