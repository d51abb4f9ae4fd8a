//! The manifest of a recipe: an OCI image manifest (1.1) with a WASM config and exactly one layer, the component.
//! Publishing writes it, pulling reads it; every size and type that it declares is checked here, before any blob is
//! asked for. Signatures travel in an annotation and are not judged here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::shown;
use crate::{Digest, Reference, RegistryError};

/// Media type of the manifest.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of the config.
pub const CONFIG_TYPE: &str = "application/vnd.wasm.config.v0+json";
/// Media type of the component.
pub const COMPONENT_TYPE: &str = "application/wasm";
/// Bytes of a manifest; ours have about 1 kB.
pub const MANIFEST_BYTES_MAX: u64 = 64 * 1024;
/// Bytes of a config; it lists imports and exports.
pub const CONFIG_BYTES_MAX: u64 = 64 * 1024;
/// Annotation with the recipe's name.
pub const NAME_ANNOTATION: &str = "org.opencontainers.image.title";
/// Annotation with the recipe's version.
pub const VERSION_ANNOTATION: &str = "org.opencontainers.image.version";
/// Annotation with the WIT world that the component targets.
pub const WORLD_ANNOTATION: &str = "dev.reef.recipe.world";
/// Annotation with the signature.
pub const SIGNATURE_ANNOTATION: &str = "dev.reef.recipe.signature";
/// Time of creation in every config: a fixed one, so that the same component always gives the same manifest.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// A blob as a manifest declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blob {
    /// SHA-256 of its bytes.
    pub digest: Digest,
    /// Bytes.
    pub size: u64,
}

impl Blob {
    /// Describes the bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self { digest: Digest::of(bytes), size: bytes.len() as u64 }
    }
}

/// A manifest that passed every check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The WASM config.
    pub config: Blob,
    /// The component.
    pub component: Blob,
    /// Everything else that the publisher says; nothing in it is verified.
    pub annotations: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawManifest {
    schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    media_type: Option<String>,
    config: RawBlob,
    layers: Vec<RawBlob>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawBlob {
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    urls: Option<Vec<String>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawConfig {
    created: String,
    architecture: String,
    os: String,
    layer_digests: Vec<String>,
    #[serde(default)]
    component: Option<Interfaces>,
}

/// What a component imports and exports, by full WIT name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interfaces {
    /// Names of the exports.
    pub exports: Vec<String>,
    /// Names of the imports.
    pub imports: Vec<String>,
}

impl Manifest {
    /// Reads and checks a manifest of `reference`; a component of more than `component_bytes_max` bytes is refused.
    pub fn read(bytes: &[u8], reference: &Reference, component_bytes_max: u64) -> Result<Self, RegistryError> {
        let lie = |problem: String| RegistryError::Untrustworthy { reference: reference.to_string(), problem };
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(too_large(format!("{reference}: the manifest"), bytes.len() as u64, MANIFEST_BYTES_MAX));
        }
        let raw: RawManifest = serde_json::from_slice(bytes).map_err(|error| {
            lie(format!("its manifest is not a manifest of one recipe ({})", shown(&error.to_string())))
        })?;
        if raw.schema_version != 2 || raw.media_type.as_deref().is_some_and(|found| found != MANIFEST_TYPE) {
            return Err(lie(format!(
                "its manifest calls itself something else than {MANIFEST_TYPE} of schema version 2"
            )));
        }
        let [layer] = raw.layers.as_slice() else {
            return Err(lie(format!("its manifest lists {} layers where a recipe has one", raw.layers.len())));
        };
        let config = blob(&raw.config, CONFIG_TYPE, "config").map_err(lie)?;
        let component = blob(layer, COMPONENT_TYPE, "layer").map_err(lie)?;
        if config.size > CONFIG_BYTES_MAX {
            return Err(too_large(format!("{reference}: the config"), config.size, CONFIG_BYTES_MAX));
        }
        if component.size > component_bytes_max {
            return Err(too_large(format!("{reference}: the component"), component.size, component_bytes_max));
        }
        Ok(Self { config, component, annotations: raw.annotations.unwrap_or_default() })
    }

    /// Checks that the config is one of WASM and names the component's digest.
    pub fn check_config(&self, config: &[u8], reference: &Reference) -> Result<(), RegistryError> {
        let lie = |problem: String| RegistryError::Untrustworthy { reference: reference.to_string(), problem };
        let raw: RawConfig = serde_json::from_slice(config)
            .map_err(|error| lie(format!("its config is not one of WASM ({})", shown(&error.to_string()))))?;
        if raw.architecture != "wasm" {
            return Err(lie(format!("its config names the architecture '{}', not wasm", shown(&raw.architecture))));
        }
        let component = self.component.digest.to_string();
        if raw.layer_digests.iter().any(|digest| *digest != component) {
            return Err(lie("its config names another component than its manifest".to_owned()));
        }
        Ok(())
    }

    /// The manifest as JSON; equal manifests give equal bytes.
    pub fn write(&self) -> Result<Vec<u8>, RegistryError> {
        let raw = RawManifest {
            schema_version: 2,
            media_type: Some(MANIFEST_TYPE.to_owned()),
            config: raw_blob(&self.config, CONFIG_TYPE),
            layers: vec![raw_blob(&self.component, COMPONENT_TYPE)],
            annotations: Some(self.annotations.clone()),
        };
        bounded_json(&raw, "the manifest", MANIFEST_BYTES_MAX)
    }
}

/// The config of a component, as the CNCF's WASM artefact layout describes it.
pub(crate) fn write_config(component: &Blob, interfaces: Interfaces) -> Result<Vec<u8>, RegistryError> {
    let raw = RawConfig {
        created: CREATED.to_owned(),
        architecture: "wasm".to_owned(),
        os: "wasip2".to_owned(),
        layer_digests: vec![component.digest.to_string()],
        component: Some(interfaces),
    };
    bounded_json(&raw, "the config", CONFIG_BYTES_MAX)
}

fn bounded_json(value: &impl Serialize, what: &str, bytes_max: u64) -> Result<Vec<u8>, RegistryError> {
    let json = serde_json::to_vec(value)
        .map_err(|error| RegistryError::Config(format!("{what} cannot be written as JSON: {error}; report this")))?;
    if json.len() as u64 > bytes_max {
        return Err(too_large(format!("{what} of this recipe"), json.len() as u64, bytes_max));
    }
    Ok(json)
}

fn raw_blob(blob: &Blob, media_type: &str) -> RawBlob {
    RawBlob { media_type: media_type.to_owned(), digest: blob.digest.to_string(), size: blob.size, urls: None }
}

fn blob(raw: &RawBlob, media_type: &str, what: &str) -> Result<Blob, String> {
    if raw.media_type != media_type {
        return Err(format!("its {what} has the media type '{}' instead of {media_type}", shown(&raw.media_type)));
    }
    if raw.urls.as_ref().is_some_and(|urls| !urls.is_empty()) {
        return Err(format!("its {what} lies at a foreign address"));
    }
    if raw.size == 0 {
        return Err(format!("its {what} is empty"));
    }
    let digest =
        raw.digest.parse::<Digest>().map_err(|_| format!("its {what} has '{}' for a digest", shown(&raw.digest)))?;
    Ok(Blob { digest, size: raw.size })
}

fn too_large(what: String, found: u64, bytes_max: u64) -> RegistryError {
    RegistryError::TooLarge { what, found: format!("{found} bytes"), bytes_max }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference() -> Reference {
        Reference::parse("r.example.com/sao:1", None).expect("valid")
    }

    fn manifest() -> Manifest {
        let annotations = BTreeMap::from([(NAME_ANNOTATION.to_owned(), "sao".to_owned())]);
        Manifest { config: Blob::of(b"{}"), component: Blob::of(b"\0asm"), annotations }
    }

    #[test]
    fn a_manifest_reads_what_it_writes() {
        let bytes = manifest().write().expect("written");
        assert_eq!(Manifest::read(&bytes, &reference(), 100).expect("read"), manifest());
    }

    #[test]
    fn each_lie_of_a_manifest_is_named() {
        let json = String::from_utf8(manifest().write().expect("written")).expect("text");
        let layer =
            json.split("\"layers\":[").nth(1).and_then(|rest| rest.split(']').next()).expect("a layer").to_owned();
        for (from, to, part) in [
            (COMPONENT_TYPE, "text/html", "instead of application/wasm"),
            (CONFIG_TYPE, "application/vnd.oci.image.config.v1+json", "instead of application/vnd.wasm.config"),
            (MANIFEST_TYPE, "application/vnd.oci.image.index.v1+json", "something else"),
            ("\"schemaVersion\":2", "\"schemaVersion\":1", "something else"),
            ("\"size\":4", "\"size\":10737418240", "at most 100 bytes"),
            ("\"size\":2", "\"size\":10737418240", "at most 65536 bytes"),
            ("\"size\":4", "\"size\":-4", "not a manifest"),
            ("\"size\":4", "\"size\":0", "is empty"),
            ("\"size\":4", "\"size\":4,\"urls\":[\"http://r.example.com/x\"]", "foreign address"),
            ("sha256:", "md5:", "for a digest"),
            (layer.as_str(), "", "lists 0 layers"),
            (layer.as_str(), &format!("{layer},{layer}"), "lists 2 layers"),
        ] {
            let lie = json.replace(from, to);
            assert_ne!(lie, json, "{from} is in the manifest");
            let refusal = Manifest::read(lie.as_bytes(), &reference(), 100).expect_err(to).to_string();
            assert!(refusal.contains(part), "{to}: {refusal}");
        }
    }

    #[test]
    fn a_config_of_another_component_is_refused() {
        let config = write_config(&Blob::of(b"other"), Interfaces::default()).expect("written");
        let refusal = manifest().check_config(&config, &reference()).expect_err("another").to_string();
        assert!(refusal.contains("another component"), "{refusal}");
        let config = write_config(&Blob::of(b"\0asm"), Interfaces::default()).expect("written");
        manifest().check_config(&config, &reference()).expect("the same");
    }
}
