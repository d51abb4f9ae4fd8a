//! SHA-256 digests as OCI writes them. Every blob, manifest and file of the shelf is named by one.
//! No other algorithm is accepted.

use std::fmt;
use std::str::FromStr;

use reef_core::{hex, unhex};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::RegistryError;
use crate::error::shown;

const PREFIX: &str = "sha256:";
const HEX_DIGITS: usize = 64;

/// The SHA-256 of some bytes; written `sha256:` and 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// Hashes the bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The 64 hex digits without the prefix.
    pub fn hex(&self) -> String {
        hex(&self.0)
    }

    /// Reads 64 lower-case hex digits without the prefix.
    pub fn from_hex(text: &str) -> Option<Self> {
        unhex::<32>(text).map(Self)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, RegistryError> {
        text.strip_prefix(PREFIX).and_then(Self::from_hex).ok_or_else(|| RegistryError::Reference {
            shown: shown(text),
            rule: format!("a digest is written {PREFIX} and {HEX_DIGITS} digits of 0-9 and a-f"),
        })
    }
}

impl TryFrom<String> for Digest {
    type Error = RegistryError;

    fn try_from(text: String) -> Result<Self, RegistryError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_what_it_writes_and_nothing_else() {
        let digest = Digest::of(b"");
        assert_eq!(digest.to_string().parse::<Digest>().expect("valid"), digest);
        assert!(digest.to_string().starts_with("sha256:e3b0c442"));
        let upper = digest.to_string().to_uppercase();
        for bad in ["", "sha256:", "sha512:00", "sha256:zz", upper.as_str(), &digest.hex(), &format!("{digest}0")] {
            let refusal = bad.parse::<Digest>().expect_err(bad).to_string();
            assert!(refusal.contains("64 digits"), "{refusal}");
        }
        assert!("sha256:é".parse::<Digest>().is_err());
    }
}
