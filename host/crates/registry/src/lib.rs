//! Recipes as OCI artefacts: publish, pull and list them in registries, sign and verify them, pin them in a lock file,
//! and keep every one that was ever loaded on a local shelf. The command line and the host call it.
//! Everything from outside is untrusted: sizes are checked before a download and while it runs, every byte against a
//! digest, and credentials go only where the operator said. It does not know what is inside a recipe: the sandbox does.
#![deny(missing_docs)]

mod challenge;
mod component;
mod config;
mod digest;
mod error;
mod files;
mod keys;
mod lock;
mod manifest;
mod origin;
mod publish;
mod reference;
mod registry;
mod session;
mod shelf;
mod signing;
mod transport;

pub use config::{Access, Login, RegistryConfig};
pub use digest::Digest;
pub use error::RegistryError;
pub use keys::{KeyId, PrivateKey, PublicKey};
pub use lock::{Checked, Lock};
pub use manifest::{
    Blob, COMPONENT_TYPE, CONFIG_BYTES_MAX, CONFIG_TYPE, Interfaces, MANIFEST_BYTES_MAX, MANIFEST_TYPE, Manifest,
    NAME_ANNOTATION, SIGNATURE_ANNOTATION, VERSION_ANNOTATION, WORLD_ANNOTATION,
};
pub use publish::{Publication, Published};
pub use reference::Reference;
pub use registry::{Pulled, Registry};
pub use shelf::{Shelf, ShelfLimits, Shelved};
pub use signing::{Signature, Verified, sign, verify, verify_digest};
