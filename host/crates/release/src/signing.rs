//! Ed25519 signatures of releases: who vouches that a release is what it says. The repository signs what it writes and
//! checks what it reads; the configuration names the key files. Signed is a text with a domain of its own
//! (`reef release v1`) and the SHA-256 of `manifest.json`, which holds the scenario, the parent and the hash of every
//! file. A private key is never shown, and its file is readable by its owner only.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use reef_core::{framed, hex, sha256_hex, unframed, unhex};

use crate::disk::sync;

/// First line of what is signed.
const DOMAIN: &str = "reef release v1";
/// First word of a written signature.
const ALGORITHM: &str = "ed25519";
/// Bytes of a key file.
const KEY_FILE_BYTES_MAX: u64 = 1024;
/// Bytes of `release.sig`.
pub const SIGNATURE_BYTES_MAX: u64 = 1024;
/// Hex digits of a key's id.
const KEY_ID_DIGITS: usize = 16;
const PRIVATE: &str = "REEF RELEASE PRIVATE KEY";
const PUBLIC: &str = "REEF RELEASE PUBLIC KEY";

/// A key file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("release key {}: {problem}", path.display())]
pub struct KeyError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong and what to do.
    pub problem: String,
}

/// Names a public key: the first 16 hex digits of its SHA-256.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseKeyId(String);

impl fmt::Display for ReleaseKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A key that verifies releases.
#[derive(Clone, PartialEq, Eq)]
pub struct ReleasePublicKey(VerifyingKey);

impl ReleasePublicKey {
    /// Its name.
    pub fn id(&self) -> ReleaseKeyId {
        ReleaseKeyId(sha256_hex(self.0.as_bytes()).chars().take(KEY_ID_DIGITS).collect())
    }

    /// Reads a file of one key: 64 hex digits, framed or bare.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let (_, text) = open(path)?;
        text.parse().map_err(|problem| KeyError { path: path.to_owned(), problem })
    }
}

impl FromStr for ReleasePublicKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || "it is no public key, which is 64 hex digits; use the file that ends in .pub".to_owned();
        let bytes = unframed(PUBLIC, text).and_then(unhex::<32>).ok_or_else(refuse)?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| refuse())?;
        // A key of small order accepts signatures that nobody made.
        if key.is_weak() { Err(refuse()) } else { Ok(Self(key)) }
    }
}

impl fmt::Display for ReleasePublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.0.as_bytes()))
    }
}

impl fmt::Debug for ReleasePublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReleasePublicKey({self})")
    }
}

/// A key that signs releases. Its memory is wiped when dropped.
pub struct ReleaseKey(SigningKey);

impl ReleaseKey {
    /// A fresh key from the system's randomness, written to a new file that only its owner may read, with the public
    /// key next to it (`<path>.pub`). An existing file is never overwritten.
    pub fn create(path: &Path) -> Result<Self, KeyError> {
        let failed = |problem: String| KeyError { path: path.to_owned(), problem };
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)
            .map_err(|error| failed(format!("the system gives no randomness ({error}); make the key elsewhere")))?;
        let key = Self(SigningKey::from_bytes(&seed));
        let mut public = path.as_os_str().to_owned();
        public.push(".pub");
        write_new(path, &framed(PRIVATE, &hex(&seed)), 0o600)?;
        write_new(Path::new(&public), &framed(PUBLIC, &key.public().to_string()), 0o644)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        sync(folder).map_err(|error| failed(error.to_string()))?;
        Ok(key)
    }

    /// Reads a file of one key; a file that others may read is refused.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let failed = |problem: String| KeyError { path: path.to_owned(), problem };
        let (mode, text) = open(path)?;
        if mode & 0o077 != 0 {
            return Err(failed(format!(
                "others may read this private key; run `chmod 600 {}` and, if anybody may have read it, make a new key",
                path.display()
            )));
        }
        let seed = unframed(PRIVATE, &text).and_then(unhex::<32>);
        let seed = seed.ok_or_else(|| failed("it holds no private key, which is 64 hex digits".to_owned()))?;
        Ok(Self(SigningKey::from_bytes(&seed)))
    }

    /// The key that verifies what this one signs.
    pub fn public(&self) -> ReleasePublicKey {
        ReleasePublicKey(self.0.verifying_key())
    }

    /// The text of `release.sig` for a manifest. The same key and manifest give the same text.
    pub(crate) fn sign(&self, manifest: &[u8]) -> String {
        let made = self.0.sign(signed_text(manifest).as_bytes()).to_bytes();
        format!("{ALGORITHM} {} {}\n", self.public().id(), hex(&made))
    }
}

impl fmt::Debug for ReleaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReleaseKey(of {})", self.public().id())
    }
}

/// Why a signature does not count.
#[derive(Debug, PartialEq, Eq)]
pub enum Distrust {
    /// Made with this key, which nobody trusts.
    Untrusted(String),
    /// Not a signature of this manifest.
    Wrong(String),
}

/// Checks that one of `trusted` signed the manifest.
pub fn check(signature: &[u8], manifest: &[u8], trusted: &[ReleasePublicKey]) -> Result<(), Distrust> {
    let broken = || Distrust::Wrong("release.sig is no signature".to_owned());
    let text = std::str::from_utf8(signature).map_err(|_| broken())?;
    let mut words = text.trim_end().split(' ');
    let (Some(ALGORITHM), Some(id), Some(bytes), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(broken());
    };
    let bytes = unhex::<64>(bytes).ok_or_else(broken)?;
    if id.len() != KEY_ID_DIGITS || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(broken());
    }
    let key = trusted.iter().find(|key| key.id().0 == id);
    let key =
        key.ok_or_else(|| Distrust::Untrusted(format!("it is signed with the key {id}, which is not trusted")))?;
    let made = ed25519_dalek::Signature::from_bytes(&bytes);
    key.0
        .verify_strict(signed_text(manifest).as_bytes(), &made)
        .map_err(|_| Distrust::Wrong(format!("the signature with the key {id} is not one of this manifest")))
}

fn signed_text(manifest: &[u8]) -> String {
    format!("{DOMAIN}\nsha256:{}\n", sha256_hex(manifest))
}

/// Mode and text of a small plain file.
fn open(path: &Path) -> Result<(u32, String), KeyError> {
    let failed = |problem: String| KeyError { path: path.to_owned(), problem };
    let unreadable = |error: std::io::Error| failed(format!("it cannot be read: {error}; check the path"));
    // Asked before it is opened: a pipe in its place would be waited for.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(failed("it is not a plain file; name a file of one key".to_owned()));
    }
    let file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.mode();
    let mut text = String::new();
    file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    Ok((mode, text))
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), KeyError> {
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.map_err(|error| KeyError {
        path: path.to_owned(),
        problem: format!("it cannot be written: {error}; name a new file in a folder that you may write to"),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn key(folder: &Path, name: &str) -> ReleaseKey {
        ReleaseKey::create(&folder.join(name)).expect("a key")
    }

    #[test]
    fn a_key_file_is_private_and_reads_what_it_writes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mine.key");
        let key = ReleaseKey::create(&path).expect("a key");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(ReleaseKey::read(&path).expect("read").public(), key.public());
        assert_eq!(ReleasePublicKey::read(&folder.path().join("mine.key.pub")).expect("read"), key.public());
        assert!(ReleaseKey::create(&path).is_err(), "a key is never overwritten");
        assert!(ReleasePublicKey::read(&path).expect_err("private").to_string().contains(".pub"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("chmod");
        assert!(ReleaseKey::read(&path).expect_err("open to all").to_string().contains("chmod 600"));
        assert!(!format!("{key:?}").contains(&hex(key.0.as_bytes())));
    }

    #[test]
    fn a_signature_counts_for_its_manifest_and_its_key_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mine, other) = (key(folder.path(), "mine"), key(folder.path(), "other"));
        let signature = mine.sign(b"manifest");
        assert_eq!(signature, mine.sign(b"manifest"));
        let trusted = [other.public(), mine.public()];
        assert_eq!(check(signature.as_bytes(), b"manifest", &trusted), Ok(()));
        assert!(matches!(check(signature.as_bytes(), b"other", &trusted), Err(Distrust::Wrong(_))));
        assert!(matches!(check(signature.as_bytes(), b"manifest", &[other.public()]), Err(Distrust::Untrusted(_))));
        let borrowed = other.sign(b"manifest").replace(&other.public().id().0, &mine.public().id().0);
        assert!(matches!(check(borrowed.as_bytes(), b"manifest", &trusted), Err(Distrust::Wrong(_))));
    }

    #[test]
    fn broken_signatures_and_keys_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let mine = key(folder.path(), "mine");
        let good = mine.sign(b"m");
        for bad in ["", "ed25519", "rsa 1 2", good.get(..40).expect("part"), &format!("{good} x"), &good.to_uppercase()]
        {
            assert!(check(bad.as_bytes(), b"m", &[mine.public()]).is_err(), "{bad}");
        }
        for bad in ["", "12", hex(&[0; 32]).as_str(), "-----BEGIN REEF RELEASE PUBLIC KEY-----"] {
            assert!(bad.parse::<ReleasePublicKey>().is_err(), "{bad}");
        }
    }
}
