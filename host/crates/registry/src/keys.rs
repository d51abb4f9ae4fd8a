//! Ed25519 keys that sign recipes, and their files. `reef recipe sign` writes and reads them, the configuration
//! lists the public ones. A private key is never shown, and its file is readable by its owner only.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::str::FromStr;

use ed25519_dalek::{SigningKey, VerifyingKey};
use reef_core::{framed, hex, unframed, unhex};

use crate::error::{disk, shown};
use crate::files::{PlainFile, damaged, sync_folder};
use crate::{Digest, RegistryError};

/// Bytes of a key file.
const KEY_FILE_BYTES_MAX: u64 = 1024;
/// Hex digits of a key's id.
const KEY_ID_DIGITS: usize = 16;
const PRIVATE: &str = "REEF RECIPE PRIVATE KEY";
const PUBLIC: &str = "REEF RECIPE PUBLIC KEY";

/// Names a public key: the first 16 hex digits of its SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(String);

impl KeyId {
    /// The 16 hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let hex = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (text.len() == KEY_ID_DIGITS && hex).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A key that verifies recipes.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(pub(crate) VerifyingKey);

impl PublicKey {
    /// Its name.
    pub fn id(&self) -> KeyId {
        KeyId(Digest::of(self.0.as_bytes()).hex().chars().take(KEY_ID_DIGITS).collect())
    }

    /// Reads a file of one key: 64 hex digits, framed or bare.
    pub fn read(path: &Path) -> Result<Self, RegistryError> {
        let text = PlainFile::open(path)?.read_text(KEY_FILE_BYTES_MAX)?;
        text.parse::<Self>().map_err(|error: RegistryError| damaged(path, &error.to_string()))
    }

    /// The key as a framed file.
    pub fn to_file_text(&self) -> String {
        framed(PUBLIC, &self.to_string())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.0.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, RegistryError> {
        let refuse = || {
            RegistryError::Config(format!(
                "'{}' is no public key; it is 64 hex digits, as `reef recipe sign --new-key` writes them",
                shown(text)
            ))
        };
        if text.contains(PRIVATE) {
            return Err(RegistryError::Config(
                "this is a private key where a public one belongs; use the file that ends in .pub".to_owned(),
            ));
        }
        let bytes = unframed(PUBLIC, text).and_then(unhex::<32>).ok_or_else(refuse)?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| refuse())?;
        // A key of small order accepts signatures that nobody made.
        if key.is_weak() { Err(refuse()) } else { Ok(Self(key)) }
    }
}

/// A key that signs recipes. Its memory is wiped when dropped.
pub struct PrivateKey(pub(crate) SigningKey);

impl PrivateKey {
    /// A fresh key from the system's randomness.
    pub fn generate() -> Result<Self, RegistryError> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| {
            RegistryError::Config(format!("the system gives no randomness ({error}); a key cannot be made here"))
        })?;
        Ok(Self(SigningKey::from_bytes(&seed)))
    }

    /// The key that verifies what this one signs.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Reads a file of one key; a file that others may read is refused.
    pub fn read(path: &Path) -> Result<Self, RegistryError> {
        let file = PlainFile::open(path)?;
        if file.metadata().mode() & 0o077 != 0 {
            return Err(damaged(
                path,
                &format!(
                    "others may read this private key; run `chmod 600 {}` and, if anybody may have read it, make a new key",
                    path.display()
                ),
            ));
        }
        let text = file.read_text(KEY_FILE_BYTES_MAX)?;
        let seed = unframed(PRIVATE, &text).and_then(unhex::<32>).ok_or_else(|| {
            damaged(path, "it holds no private key (64 hex digits); make one with `reef recipe sign --new-key`")
        })?;
        Ok(Self(SigningKey::from_bytes(&seed)))
    }

    /// Writes a new file that only its owner may read, and the public key next to it (`<path>.pub`).
    /// An existing file is never overwritten.
    pub fn write(&self, path: &Path) -> Result<(), RegistryError> {
        let mut public_path = path.as_os_str().to_owned();
        public_path.push(".pub");
        write_new(path, &framed(PRIVATE, &hex(self.0.as_bytes())), 0o600)?;
        write_new(Path::new(&public_path), &self.public().to_file_text(), 0o644)?;
        sync_folder(path)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey(of {})", self.public().id())
    }
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), RegistryError> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map_err(disk("create the key file", path))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(disk("write the key file", path))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_file_is_private_and_reads_what_it_writes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mine.key");
        let key = PrivateKey::generate().expect("a key");
        key.write(&path).expect("written");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(PrivateKey::read(&path).expect("read").public(), key.public());
        assert_eq!(PublicKey::read(&folder.path().join("mine.key.pub")).expect("read"), key.public());
        assert!(key.write(&path).is_err(), "a key is never overwritten");
        assert!(PublicKey::read(&path).expect_err("private").to_string().contains("private key"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("chmod");
        assert!(PrivateKey::read(&path).expect_err("open to all").to_string().contains("chmod 600"));
    }

    #[test]
    fn a_private_key_is_never_shown() {
        let key = PrivateKey::generate().expect("a key");
        assert!(!format!("{key:?}").contains(&hex(key.0.as_bytes())));
    }

    #[test]
    fn bare_digits_are_a_public_key_and_anything_else_is_refused() {
        let key = PrivateKey::generate().expect("a key").public();
        assert_eq!(key.to_string().parse::<PublicKey>().expect("valid"), key);
        let weak = hex(&[0; 32]);
        for bad in ["", "12", weak.as_str(), "-----BEGIN REEF RECIPE PUBLIC KEY-----"] {
            assert!(bad.parse::<PublicKey>().is_err(), "{bad}");
        }
    }
}
