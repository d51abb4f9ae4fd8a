//! One recipe as a registry serves it, to be bent by the tests.

use std::collections::BTreeMap;
use std::time::Duration;

use reef_registry::{
    Blob, MANIFEST_TYPE, Manifest, NAME_ANNOTATION, Reference, Registry, RegistryConfig, SIGNATURE_ANNOTATION,
    Signature,
};

use crate::evil::{Asked, Body, Evil, Reply};

/// The smallest component, padded with a custom section to a size that matters.
pub fn component() -> Vec<u8> {
    let mut bytes = b"\0asm\x0d\0\x01\0".to_vec();
    // Custom section: size 1 + 1 + 4000 (LEB128 of 4002), a name of one letter, then zeros.
    bytes.extend_from_slice(&[0, 0xa2, 0x1f, 1, b'x']);
    bytes.extend_from_slice(&[0; 4000]);
    bytes
}

/// What the registry holds.
#[derive(Debug, Clone)]
pub struct Site {
    pub manifest: Vec<u8>,
    pub config: Vec<u8>,
    pub component: Vec<u8>,
}

impl Site {
    pub fn honest(component: Vec<u8>, signature: Option<&Signature>) -> Self {
        let blob = Blob::of(&component);
        let config = format!(
            r#"{{"created":"1970-01-01T00:00:00Z","architecture":"wasm","os":"wasip2","layerDigests":["{}"],"component":{{"exports":[],"imports":[]}}}}"#,
            blob.digest
        )
        .into_bytes();
        let mut annotations = BTreeMap::from([(NAME_ANNOTATION.to_owned(), "sao".to_owned())]);
        annotations.extend(signature.map(|signature| (SIGNATURE_ANNOTATION.to_owned(), signature.to_string())));
        let manifest = Manifest { config: Blob::of(&config), component: blob, annotations };
        Self { manifest: manifest.write().expect("small"), config, component }
    }

    /// The same with a part of the manifest's text replaced.
    pub fn with_manifest(mut self, from: &str, to: &str) -> Self {
        let text = String::from_utf8(self.manifest).expect("text");
        assert!(text.contains(from), "{from} is in the manifest");
        self.manifest = text.replace(from, to).into_bytes();
        self
    }

    pub fn manifest_digest(&self) -> String {
        Blob::of(&self.manifest).digest.to_string()
    }

    /// Whether this asks for the component.
    pub fn is_component(&self, asked: &Asked) -> bool {
        asked.path.ends_with(&format!("/blobs/{}", Blob::of(&self.component).digest))
    }

    /// The honest answer.
    pub fn answer(&self, asked: &Asked) -> Reply {
        let blob = |bytes: &[u8]| Reply::ok("application/octet-stream", Body::Whole(bytes.to_vec()));
        if asked.path.contains("/manifests/") {
            return Reply::ok(MANIFEST_TYPE, Body::Whole(self.manifest.clone()))
                .with("docker-content-digest", self.manifest_digest());
        }
        if self.is_component(asked) {
            return blob(&self.component);
        }
        if asked.path.ends_with(&format!("/blobs/{}", Blob::of(&self.config).digest)) {
            return blob(&self.config);
        }
        Reply::status(404)
    }
}

/// An honest site.
pub fn site() -> Site {
    Site::honest(component(), None)
}

/// A server of this site.
pub async fn serve(site: Site) -> Evil {
    Evil::start(move |asked| site.answer(asked)).await
}

/// A server that answers for the component as it likes, and is honest otherwise.
pub async fn serve_component(reply: impl Fn(&Site) -> Reply + Send + Sync + 'static) -> Evil {
    let site = site();
    Evil::start(move |asked| if site.is_component(asked) { reply(&site) } else { site.answer(asked) }).await
}

/// Settings with short bounds.
pub fn config() -> RegistryConfig {
    RegistryConfig { timeout: Duration::from_secs(60), component_bytes_max: 1 << 20, ..RegistryConfig::default() }
}

pub fn client(config: RegistryConfig) -> Registry {
    Registry::new(config).expect("valid settings")
}

/// `team/sao:1.0.0` on this server.
pub fn reference(evil: &Evil) -> Reference {
    Reference::parse(&format!("{}/team/sao:1.0.0", evil.host), None).expect("valid")
}

/// Why a pull with the usual settings fails.
pub async fn refusal(evil: &Evil) -> String {
    let pulled = client(config()).pull(&reference(evil)).await;
    pulled.map(|pulled| pulled.digest).expect_err("the pull is refused").to_string()
}
