//! Names that say that their value is a secret: variables, fields, headers.
//! A name is read as words (`AWS_SECRET_KEY`, `clientSecret`, `x-api-key`), so that `secretary`, `max_tokens` and
//! `public_key` are not taken for what they contain.

/// How sure a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Secrecy {
    /// It says nothing.
    None,
    /// `SOMETHING_KEY`: often a secret where an environment is listed, rarely elsewhere.
    Guess,
    /// A token or a key: a secret if the value looks like one.
    Likely,
    /// A password: a secret unless it is evidently none.
    Sure,
}

/// Bytes of a name that are looked at, from its end.
pub(super) const NAME_BYTES_MAX: usize = 96;
/// Words of a name.
const WORDS_MAX: usize = 16;

/// Ends of names that speak about a secret instead of holding one.
const ABOUT: [&str; 46] = [
    "algorithm",
    "arn",
    "attempts",
    "budget",
    "count",
    "endpoint",
    "enabled",
    "error",
    "exists",
    "expires",
    "expiry",
    "field",
    "file",
    "format",
    "hash",
    "header",
    "hint",
    "host",
    "label",
    "length",
    "limit",
    "manager",
    "max",
    "method",
    "min",
    "mode",
    "name",
    "path",
    "placeholder",
    "policy",
    "prefix",
    "prompt",
    "provider",
    "regex",
    "required",
    "rule",
    "status",
    "suffix",
    "ttl",
    "type",
    "uri",
    "url",
    "usage",
    "version",
    "index",
    "sock",
];
/// Words that make a key or a token something that may be seen.
const OPEN: [&str; 24] = [
    "public",
    "pub",
    "gpg",
    "pgp",
    "cache",
    "sort",
    "primary",
    "foreign",
    "partition",
    "idempotency",
    "row",
    "group",
    "order",
    "object",
    "i18n",
    "translation",
    "dedupe",
    "routing",
    "lookup",
    "host",
    "hot",
    "page",
    "pagination",
    "next",
];
/// What makes a key a secret, right before it.
const KEYS: [&str; 24] = [
    "api",
    "access",
    "secret",
    "private",
    "account",
    "master",
    "encryption",
    "encrypt",
    "decryption",
    "signing",
    "signature",
    "auth",
    "service",
    "shared",
    "license",
    "deploy",
    "client",
    "webhook",
    "hmac",
    "aes",
    "jwt",
    "session",
    "subscription",
    "admin",
];

/// What a name says of its value.
pub(super) fn secrecy(name: &str) -> Secrecy {
    let words = words(name);
    let word = |index: usize| words.get(index).map_or("", String::as_str);
    let Some(last) = words.last().map(String::as_str) else { return Secrecy::None };
    // Numbers at the end count variants: PASSWORD_2.
    let last = if last.bytes().all(|b| b.is_ascii_digit()) { word(words.len().saturating_sub(2)) } else { last };
    if ABOUT.contains(&last) || words.iter().any(|word| OPEN.contains(&word.as_str())) {
        return Secrecy::None;
    }
    let sure = |word: &String| {
        ["password", "passwd", "passphrase", "secret", "secrets", "passwort"].iter().any(|end| word.ends_with(end))
            || (word == "pwd" && words.len() > 1 && word_before(&words, "pwd") != Some("old"))
    };
    if words.iter().any(sure) || (words.len() > 1 && last == "pass") || (words.len() == 1 && name == "Pwd") {
        return Secrecy::Sure;
    }
    let pairs = words.windows(2).any(|pair| matches!(pair, [a, b] if b == "key" && KEYS.contains(&a.as_str())));
    let joined = ["apikey", "accesskey", "accountkey", "privatekey", "secretkey", "signingkey", "masterkey"];
    let token = last == "token" || last.ends_with("token");
    let credential = ["authorization", "credential", "credentials", "auth", "cookie"].contains(&last);
    if pairs || token || credential || joined.iter().any(|key| last.ends_with(key)) {
        return Secrecy::Likely;
    }
    if words.len() > 1 && last == "key" { Secrecy::Guess } else { Secrecy::None }
}

/// Is even a number a secret under this name? Its last word has to say so, because `password_resets` counts, and
/// `secrets` and `tests_pass` do as well.
pub(super) fn is_secret_of_numbers(name: &str) -> bool {
    let words = words(name);
    let last = words.iter().rev().find(|word| !word.bytes().all(|b| b.is_ascii_digit()));
    let ends = ["password", "passwd", "passphrase", "secret", "passwort", "pwd"];
    secrecy(name) == Secrecy::Sure && last.is_some_and(|last| ends.iter().any(|end| last.ends_with(end)))
}

fn word_before<'a>(words: &'a [String], word: &str) -> Option<&'a str> {
    let at = words.iter().position(|other| other == word)?;
    words.get(at.checked_sub(1)?).map(String::as_str)
}

/// Lower-case words of a name: at signs, and where a capital follows a small letter.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        let begins = c.is_ascii_uppercase() && (before.is_ascii_lowercase() || before.is_ascii_digit());
        let ends = !c.is_ascii_alphanumeric();
        if (begins || ends) && words.len() < WORDS_MAX {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| !ends) {
            word.push(c.to_ascii_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_secret_under_names_that_end_in_a_secret() {
        for name in ["password", "DB_PASSWORD", "clientSecret", "PASSWORD_2", "user.passwd", "Passphrase"] {
            assert!(is_secret_of_numbers(name), "{name}");
        }
        for name in
            ["password_resets", "client_secret_expires_at", "secrets", "tests_pass", "password_length", "token", "n"]
        {
            assert!(!is_secret_of_numbers(name), "{name}");
        }
    }

    #[test]
    fn names_are_read_by_their_words() {
        let said = [
            (
                Secrecy::Sure,
                "DB_PASSWORD PGPASSWORD MYSQL_PWD clientSecret SECRET_KEY_BASE smtp_pass password passwd user.password Pwd",
            ),
            (
                Secrecy::Sure,
                "AWS_SECRET_ACCESS_KEY DJANGO_SECRET django.secret-key PASSWORD_2 sshPassphrase JWT_SECRET",
            ),
            (
                Secrecy::Likely,
                "OPENAI_API_KEY x-api-key apiKey GITHUB_TOKEN access_token authToken AccountKey SharedAccessKey",
            ),
            (Secrecy::Likely, "authorization NPM_AUTH set-cookie GOOGLE_CREDENTIALS encryption_key"),
            (Secrecy::Guess, "OPENAI_KEY stripe.key"),
            (
                Secrecy::None,
                "max_tokens secretary PWD OLD_PWD bypass TOKEN_COUNT PASSWORD_FILE token_type keyboard monkey key",
            ),
            (
                Secrecy::None,
                "public_key GPG_KEY primary_key sortKey next_page_token SECRET_NAME passwordPolicy SSH_AUTH_SOCK",
            ),
            (Secrecy::None, "tokenizer author authority passes compass XAUTHORITY cookies token_ids _ . 7"),
        ];
        for (secrecy_said, names) in said {
            for name in names.split(' ') {
                assert_eq!(secrecy(name), secrecy_said, "{name}");
            }
        }
    }
}
