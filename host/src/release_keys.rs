//! The section `releases` of the configuration: the key that signs releases and the keys that are trusted.
//! The server opens its repository through it; key files stay where the operator has them.

use std::path::{Path, PathBuf};

use reef_release::{KeyError, ReleaseError, ReleaseKey, ReleasePublicKey, ReleaseRepo};
use serde::{Deserialize, Serialize};

/// Who signs releases, and whose signatures count.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReleaseSection {
    /// File of the private key that signs every release; none = releases are not signed. `reef release key FILE` makes
    /// one.
    pub signing_key: Option<PathBuf>,
    /// Files of public keys. If there are any, only releases that one of them or the signing key signed are read.
    pub trusted_keys: Vec<PathBuf>,
}

/// Why the repository cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A key file.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The repository.
    #[error(transparent)]
    Repo(#[from] ReleaseError),
}

impl ReleaseSection {
    /// A server that trusts keys and signs with none could not read what it writes.
    pub fn check(&self) -> Result<(), String> {
        if self.signing_key.is_none() && !self.trusted_keys.is_empty() {
            return Err("releases.trusted_keys needs releases.signing_key: a server does not read its own releases \
                        unless it signs them; make a key with `reef release key FILE`"
                .to_owned());
        }
        Ok(())
    }

    /// Opens the repository, signing and trusting as the section says; blocks.
    pub fn open(&self, path: &Path) -> Result<ReleaseRepo, OpenError> {
        let repo = ReleaseRepo::open(path)?;
        let Some(signing) = &self.signing_key else { return Ok(repo) };
        let key = ReleaseKey::read(signing)?;
        let mut trusted = Vec::with_capacity(self.trusted_keys.len() + 1);
        for path in &self.trusted_keys {
            trusted.push(ReleasePublicKey::read(path)?);
        }
        if !trusted.is_empty() {
            trusted.push(key.public());
        }
        Ok(repo.signed_with(key).trusting(trusted))
    }
}
