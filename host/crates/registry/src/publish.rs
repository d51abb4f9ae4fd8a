//! Publishing a recipe: config, component, then the manifest under its tag. The command line calls it.
//! The same recipe gives the same manifest, so publishing it twice changes nothing; a version that holds other code is
//! left alone unless the caller says to replace it. Uploads are not retried.

use std::collections::BTreeMap;

use bytes::Bytes;
use hyper::{Method, StatusCode};

use crate::component::interfaces;
use crate::error::shown;
use crate::manifest::{
    CONFIG_TYPE, MANIFEST_TYPE, NAME_ANNOTATION, SIGNATURE_ANNOTATION, VERSION_ANNOTATION, WORLD_ANNOTATION,
    write_config,
};
use crate::origin::encoded;
use crate::registry::{Registry, header, manifest, within};
use crate::session::{Right, Session};
use crate::{Blob, Digest, Manifest, Reference, RegistryError, Signature, verify};

/// Bytes of one annotation.
const ANNOTATION_BYTES_MAX: usize = 1024;

/// What is said about a component that is published.
#[derive(Debug, Clone, Default)]
pub struct Publication {
    /// The recipe's name, as its manifest says.
    pub name: String,
    /// The recipe's version, as its manifest says.
    pub version: String,
    /// The WIT world that it targets, for example `reef:recipe/recipe@0.1.0`.
    pub world: String,
    /// A signature over the component under the last part of the reference's path.
    pub signature: Option<Signature>,
    /// Whether a version that holds another recipe is replaced.
    pub replace: bool,
}

/// Where a recipe was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// SHA-256 of the component.
    pub digest: Digest,
    /// SHA-256 of the manifest: pin with `@sha256:…`.
    pub manifest_digest: Digest,
}

impl Registry {
    /// Publishes a component under the tag of the reference.
    pub async fn publish(
        &self,
        reference: &Reference,
        component: &[u8],
        publication: &Publication,
    ) -> Result<Published, RegistryError> {
        let size = component.len() as u64;
        if size > self.config.component_bytes_max {
            let (what, found) = ("the component to publish".to_owned(), format!("{size} bytes"));
            return Err(RegistryError::TooLarge { what, found, bytes_max: self.config.component_bytes_max });
        }
        let (None, Some(_)) = (reference.digest(), reference.tag()) else {
            return Err(RegistryError::Reference {
                shown: reference.to_string(),
                rule: "to publish, name a version and no digest (host/name:version)".to_owned(),
            });
        };
        self.check_signature(reference, component, publication)?;
        let config = write_config(&Blob::of(component), interfaces(component)?)?;
        let annotations = annotations(publication)?;
        let manifest = Manifest { config: Blob::of(&config), component: Blob::of(component), annotations };
        let written = manifest.write()?;
        let work = async {
            let mut session = Session::new(&self.transport, &self.config, reference, Right::Push);
            if self.is_there(&mut session, reference, (written.as_slice(), publication.replace)).await? {
                return Ok(());
            }
            upload(&mut session, &manifest.config, config).await?;
            upload(&mut session, &manifest.component, component.to_vec()).await?;
            put_manifest(&mut session, reference, written.clone()).await
        };
        within(self.config.timeout, reference, "publishing", work).await?;
        Ok(Published { digest: manifest.component.digest, manifest_digest: Digest::of(&written) })
    }

    /// A signature that no puller would accept is found before anything is sent, if its key is known here.
    fn check_signature(
        &self,
        reference: &Reference,
        component: &[u8],
        publication: &Publication,
    ) -> Result<(), RegistryError> {
        let trusted = &self.config.trusted_keys;
        match publication.signature.as_ref().filter(|made| trusted.iter().any(|key| key.id() == *made.key())) {
            Some(signature) => verify(reference.name(), component, signature, trusted).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Whether the tag already holds this manifest; one that holds another is refused, unless it is to be replaced.
    async fn is_there(
        &self,
        session: &mut Session<'_>,
        reference: &Reference,
        (written, replace): (&[u8], bool),
    ) -> Result<bool, RegistryError> {
        match manifest(session, &self.config, reference).await {
            Ok((_, found)) if found == Digest::of(written) => Ok(true),
            Err(RegistryError::NotFound { .. }) => Ok(false),
            Ok(_) | Err(RegistryError::Untrustworthy { .. } | RegistryError::TooLarge { .. }) if replace => Ok(false),
            Ok(_) | Err(RegistryError::Untrustworthy { .. } | RegistryError::TooLarge { .. }) => {
                Err(RegistryError::Refused {
                    origin: session.origin().to_string(),
                    problem: format!(
                        "{reference} is there and holds something else; publish under a new version, or replace it with --replace"
                    ),
                })
            }
            Err(other) => Err(other),
        }
    }
}

fn annotations(publication: &Publication) -> Result<BTreeMap<String, String>, RegistryError> {
    let signature = publication.signature.as_ref().map(ToString::to_string).unwrap_or_default();
    let all = [
        (NAME_ANNOTATION, publication.name.clone()),
        (VERSION_ANNOTATION, publication.version.clone()),
        (WORLD_ANNOTATION, publication.world.clone()),
        (SIGNATURE_ANNOTATION, signature),
    ];
    for (name, value) in &all {
        if value.len() > ANNOTATION_BYTES_MAX || value.chars().any(char::is_control) {
            return Err(RegistryError::Config(format!(
                "the annotation {name} of this recipe has control characters or more than {ANNOTATION_BYTES_MAX} bytes; shorten it"
            )));
        }
    }
    Ok(all.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Brings a blob to the registry, unless it has it.
async fn upload(session: &mut Session<'_>, blob: &Blob, bytes: Vec<u8>) -> Result<(), RegistryError> {
    let nothing = || (CONFIG_TYPE, Bytes::new());
    let here = session.origin().at(session.path(&format!("blobs/{}", blob.digest)));
    let found = session.send(Method::HEAD, &here, nothing(), &[StatusCode::OK, StatusCode::NOT_FOUND]).await?;
    if found.status == StatusCode::OK {
        return Ok(());
    }
    let start = session.origin().at(session.path("blobs/uploads/"));
    let started =
        session.send(Method::POST, &start, ("application/octet-stream", Bytes::new()), &[StatusCode::ACCEPTED]).await?;
    let target = session.location(&started)?.with_parameter("digest", &encoded(&blob.digest.to_string()));
    session.send(Method::PUT, &target, ("application/octet-stream", bytes.into()), &[StatusCode::CREATED]).await?;
    Ok(())
}

async fn put_manifest(session: &mut Session<'_>, reference: &Reference, written: Vec<u8>) -> Result<(), RegistryError> {
    let digest = Digest::of(&written).to_string();
    let at = session.origin().at(session.path(&format!("manifests/{}", reference.selector()?)));
    let done = session.send(Method::PUT, &at, (MANIFEST_TYPE, written.into()), &[StatusCode::CREATED]).await?;
    match header(&done.headers, "docker-content-digest").filter(|claimed| *claimed != digest) {
        None => Ok(()),
        Some(claimed) => Err(RegistryError::Untrustworthy {
            reference: reference.to_string(),
            problem: format!("the registry stored the manifest {} instead of {digest}", shown(claimed)),
        }),
    }
}
