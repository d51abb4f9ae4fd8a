//! Detached signatures of recipes: who vouches that these bytes are the recipe of this name.
//! Signed is a text with a domain of its own (`reef recipe v1`), the name, the media type and the SHA-256, so that a
//! signature counts for nothing else and for no other name. It does not cover the version: the lock file pins that.

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::Signer;
use reef_core::{hex, unhex};

use crate::error::shown;
use crate::keys::{KeyId, PrivateKey, PublicKey};
use crate::manifest::COMPONENT_TYPE;
use crate::{Digest, RegistryError};

/// First line of what is signed.
const DOMAIN: &str = "reef recipe v1";
/// First word of a written signature.
const ALGORITHM: &str = "ed25519";

/// A signature over one component under one name; written `ed25519 <key id> <128 hex digits>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    key: KeyId,
    bytes: [u8; 64],
}

/// A signature that a trusted key made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The key.
    pub key: KeyId,
}

impl Signature {
    /// The key that it claims to be made with.
    pub fn key(&self) -> &KeyId {
        &self.key
    }
}

/// Signs a component as the recipe `name`, the last part of its repository's path.
pub fn sign(name: &str, component: &[u8], key: &PrivateKey) -> Signature {
    let bytes = key.0.sign(signed_text(name, &Digest::of(component)).as_bytes()).to_bytes();
    Signature { key: key.public().id(), bytes }
}

/// Verifies that one of `trusted` signed the component as the recipe `name`.
pub fn verify(
    name: &str,
    component: &[u8],
    signature: &Signature,
    trusted: &[PublicKey],
) -> Result<Verified, RegistryError> {
    verify_digest(name, &Digest::of(component), signature, trusted)
}

/// Like [`verify`], by the component's digest.
pub fn verify_digest(
    name: &str,
    component: &Digest,
    signature: &Signature,
    trusted: &[PublicKey],
) -> Result<Verified, RegistryError> {
    let refuse = |problem: String| RegistryError::Signature { name: shown(name), problem };
    let Some(key) = trusted.iter().find(|key| key.id() == signature.key) else {
        return Err(refuse(format!(
            "it is signed with the key {}, which is not trusted; if you trust its owner, add the public key to the trusted keys",
            signature.key
        )));
    };
    let made = ed25519_dalek::Signature::from_bytes(&signature.bytes);
    key.0.verify_strict(signed_text(name, component).as_bytes(), &made).map_err(|_| {
        refuse(format!(
            "the signature with the key {} is not one of these bytes under this name; do not use them, ask who publishes them",
            signature.key
        ))
    })?;
    Ok(Verified { key: signature.key.clone() })
}

fn signed_text(name: &str, component: &Digest) -> String {
    format!("{DOMAIN}\nname:{name}\nmedia-type:{COMPONENT_TYPE}\n{component}\n")
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ALGORITHM} {} {}", self.key, hex(&self.bytes))
    }
}

impl FromStr for Signature {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, RegistryError> {
        let mut words = text.trim().split(' ');
        let read = match (words.next(), words.next(), words.next(), words.next()) {
            (Some(ALGORITHM), Some(key), Some(bytes), None) => KeyId::parse(key).zip(unhex::<64>(bytes)),
            _ => None,
        };
        read.map(|(key, bytes)| Self { key, bytes }).ok_or_else(|| {
            RegistryError::Config(format!(
                "'{}' is no signature of a recipe; it is '{ALGORITHM}', a key id and 128 hex digits: sign again with `reef recipe sign`",
                shown(text)
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_counts_for_its_bytes_its_name_and_its_key_only() {
        let (mine, other) = (PrivateKey::generate().expect("a key"), PrivateKey::generate().expect("a key"));
        let signature = sign("sao", b"code", &mine);
        let read: Signature = signature.to_string().parse().expect("reads what it writes");
        assert_eq!(
            verify("sao", b"code", &read, &[other.public(), mine.public()]).expect("trusted").key,
            mine.public().id()
        );
        for (name, code, key, part) in [
            ("sao", &b"code"[..], &other, "not trusted"),
            ("sdar", b"code", &mine, "under this name"),
            ("sao", b"evil", &mine, "not one of these bytes"),
        ] {
            let refusal = verify(name, code, &signature, &[key.public()]).expect_err(part).to_string();
            assert!(refusal.contains(part), "{refusal}");
        }
    }

    #[test]
    fn a_stranger_cannot_borrow_the_id_of_a_trusted_key() {
        let (mine, stranger) = (PrivateKey::generate().expect("a key"), PrivateKey::generate().expect("a key"));
        let forged = Signature { key: mine.public().id(), ..sign("sao", b"code", &stranger) };
        assert!(verify("sao", b"code", &forged, &[mine.public()]).is_err());
    }

    #[test]
    fn a_name_cannot_smuggle_a_line_into_what_is_signed() {
        let digest = Digest::of(b"code");
        let smuggled = signed_text(&format!("sao\nmedia-type:{COMPONENT_TYPE}\n{digest}"), &digest);
        assert_ne!(smuggled, signed_text("sao", &digest));
    }

    #[test]
    fn broken_signatures_do_not_parse() {
        let good = sign("sao", b"code", &PrivateKey::generate().expect("a key")).to_string();
        for bad in ["", "ed25519", "rsa 1 2", &good[..good.len() - 1], &format!("{good} x"), &good.to_uppercase()] {
            assert!(bad.parse::<Signature>().is_err(), "{bad}");
        }
    }
}
