//! Identifiers that are valid by construction. Parsing is the only way to make one.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A name that breaks its rule; the message says which rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} '{shown}' is not valid: {rule}")]
pub struct InvalidName {
    kind: &'static str,
    shown: String,
    rule: &'static str,
}

/// Characters of the offending name that an error repeats.
const SHOWN_CHARS_MAX: usize = 64;

fn invalid(kind: &'static str, rule: &'static str, text: &str) -> InvalidName {
    let shown = text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_default).collect();
    InvalidName { kind, shown, rule }
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $kind:literal, $rule:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(String);

        impl $type {
            /// Checks the rule and takes the text.
            pub fn parse(text: impl Into<String>) -> Result<Self, InvalidName> {
                let text = text.into();
                let valid: fn(&str) -> bool = $valid;
                if valid(&text) { Ok(Self(text)) } else { Err(invalid($kind, $rule, &text)) }
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $type {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                Self::parse(text)
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.0
            }
        }
    };
}

fn starts_alphanumeric(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn only(text: &str, extra: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || extra.contains(c))
}

fn hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

name!(
    /// Who owns data; part of every key.
    TenantId, "tenant", "use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit",
    |t| t.len() <= 64 && starts_alphanumeric(t) && only(t, "_-") && !t.chars().any(|c| c.is_ascii_uppercase())
);
name!(
    /// One thing that learns.
    ScenarioName, "scenario", "use 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':' and '-', starting with a letter or digit, without '..'",
    |t| t.len() <= 128 && starts_alphanumeric(t) && only(t, "._:-") && !t.contains("..")
);
name!(
    /// Id of a record; of an inference record it is the receipt.
    RecordId, "record id", "use 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':' and '-'",
    |t| !t.is_empty() && t.len() <= 128 && only(t, "._:-")
);
name!(
    /// A release: the git commit that holds it, 40 hex digits.
    ReleaseId, "release id", "it is the 40 hex digits of a commit",
    |t| hex(t, 40)
);
name!(
    /// Hash of what a release contains: 64 hex digits (SHA-256 of the manifest of file hashes).
    ContentId, "content id", "it is 64 hex digits",
    |t| hex(t, 64)
);
name!(
    /// Name of an opaque tag (`x-reef-tag-<name>`).
    Tag, "tag", "use 1 to 64 of a-z, 0-9, '_' and '-'",
    |t| !t.is_empty() && t.len() <= 64 && only(t, "_-") && !t.chars().any(|c| c.is_ascii_uppercase())
);

impl RecordId {
    /// A fresh id; ids made later sort later.
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().simple().to_string())
    }
}

/// SHA-256 as 64 lower-case hex digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    crate::hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_refused_with_the_rule() {
        for bad in ["", "..", "a/b", "a\0b", "a'b", "x;drop table", "-a", "a..b", "ü"] {
            let refusal = ScenarioName::parse(bad).expect_err(bad).to_string();
            assert!(refusal.contains("scenario") && refusal.contains("use 1 to 128"), "{refusal}");
        }
        assert!(ScenarioName::parse("team:spell-v1.2").is_ok());
        assert!(TenantId::parse("Acme").is_err());
        assert!(ReleaseId::parse("a".repeat(39)).is_err());
    }

    #[test]
    fn names_validate_when_deserialised() {
        assert!(serde_json::from_str::<RecordId>("\"a b\"").is_err());
        assert_eq!(serde_json::from_str::<RecordId>("\"r-1\"").expect("valid").as_str(), "r-1");
    }

    #[test]
    fn sha256_of_the_empty_string() {
        assert!(sha256_hex(b"").starts_with("e3b0c44298fc1c14"));
    }
}
