//! The registry client: pull a recipe, list its versions. The command line and the host's configuration call it.
//! A pull gives bytes whose digest the manifest names, whose manifest the pin names, and whose signature was judged;
//! anything else is an error and nothing is kept. It writes no file: shelf and lock file are the caller's.

use std::time::Duration;

use hyper::header::{CONTENT_TYPE, HeaderMap, LINK};
use serde::Deserialize;
use tokio::time::timeout;

use crate::error::shown;
use crate::manifest::{MANIFEST_BYTES_MAX, MANIFEST_TYPE, Manifest, SIGNATURE_ANNOTATION};
use crate::origin::Address;
use crate::reference::check_tag;
use crate::session::{Right, Session, Wanted};
use crate::transport::Transport;
use crate::{Blob, Digest, KeyId, Reference, RegistryConfig, RegistryError, Signature, Verified, verify_digest};

/// Bytes of one page of tags.
const TAGS_BYTES_MAX: u64 = 1024 * 1024;
/// Tags of one recipe.
const TAGS_MAX: usize = 10_000;
/// Pages of tags of one recipe.
const TAG_PAGES_MAX: usize = 100;
/// Tags asked for at once.
const TAGS_PER_PAGE: usize = 1000;

/// A recipe as it came from a registry.
#[derive(Debug, Clone)]
pub struct Pulled {
    /// The component.
    pub bytes: Vec<u8>,
    /// SHA-256 of the component: what the shelf and the lock file name.
    pub digest: Digest,
    /// SHA-256 of the manifest: what `@sha256:…` in a reference names.
    pub manifest_digest: Digest,
    /// The manifest; its annotations are the publisher's words.
    pub manifest: Manifest,
    /// The trusted key that signed it, if one did.
    pub signature: Option<Verified>,
    /// The key that signed it, if it is none that is trusted: as good as unsigned, but worth a line.
    pub stranger: Option<KeyId>,
}

/// Talks to registries.
#[derive(Debug)]
pub struct Registry {
    pub(crate) config: RegistryConfig,
    pub(crate) transport: Transport,
}

impl Registry {
    /// A client with these settings; opens no connection.
    pub fn new(config: RegistryConfig) -> Result<Self, RegistryError> {
        config.check()?;
        let transport = Transport::new(config.root_certificates.clone());
        Ok(Self { config, transport })
    }

    /// Parses a reference against the default registry of the settings.
    pub fn reference(&self, text: &str) -> Result<Reference, RegistryError> {
        Reference::parse(text, self.config.default.as_deref())
    }

    /// Pulls one recipe.
    pub async fn pull(&self, reference: &Reference) -> Result<Pulled, RegistryError> {
        let mut session = Session::new(&self.transport, &self.config, reference, Right::Pull);
        let work = pull(&mut session, &self.config, reference);
        within(self.config.timeout, reference, "pulling", work).await
    }

    /// The versions of a recipe, in the registry's order.
    pub async fn tags(&self, reference: &Reference) -> Result<Vec<String>, RegistryError> {
        let mut session = Session::new(&self.transport, &self.config, reference, Right::Pull);
        within(self.config.timeout, reference, "listing versions", tags(&mut session, reference)).await
    }
}

/// Bounds one whole operation.
pub(crate) async fn within<T>(
    limit: Duration,
    reference: &Reference,
    doing: &str,
    work: impl Future<Output = Result<T, RegistryError>>,
) -> Result<T, RegistryError> {
    let late = || RegistryError::TimedOut {
        host: reference.host().to_owned(),
        doing: format!("{doing} {reference}"),
        seconds: limit.as_secs(),
    };
    timeout(limit, work).await.unwrap_or_else(|_| Err(late()))
}

async fn pull(
    session: &mut Session<'_>,
    config: &RegistryConfig,
    reference: &Reference,
) -> Result<Pulled, RegistryError> {
    let (manifest, manifest_digest) = manifest(session, config, reference).await?;
    let (signature, stranger) = judge(&manifest, config, reference)?;
    let declared = blob(session, &manifest.config, reference, "the config").await?;
    manifest.check_config(&declared, reference)?;
    let bytes = blob(session, &manifest.component, reference, "the component").await?;
    let digest = manifest.component.digest;
    Ok(Pulled { bytes, digest, manifest_digest, manifest, signature, stranger })
}

/// The manifest that a reference names, checked, and its digest.
pub(crate) async fn manifest(
    session: &mut Session<'_>,
    config: &RegistryConfig,
    reference: &Reference,
) -> Result<(Manifest, Digest), RegistryError> {
    let lie = |problem: String| RegistryError::Untrustworthy { reference: reference.to_string(), problem };
    let path = session.path(&format!("manifests/{}", reference.selector()?));
    let wanted = Wanted { path, accept: MANIFEST_TYPE, bytes_max: MANIFEST_BYTES_MAX, doing: "read the manifest" };
    let got = session.get(&wanted).await?;
    let found = Digest::of(&got.bytes);
    if let Some(pinned) = reference.digest().filter(|pinned| **pinned != found) {
        return Err(lie(format!("its manifest has the digest {found} instead of the pinned {pinned}")));
    }
    if let Some(claimed) = header(&got.headers, "docker-content-digest").filter(|claimed| *claimed != found.to_string())
    {
        return Err(lie(format!("the registry says its manifest has the digest {}, it has {found}", shown(claimed))));
    }
    let media_type = header(&got.headers, CONTENT_TYPE.as_str()).unwrap_or_default();
    if media_type.split(';').next().unwrap_or_default().trim() != MANIFEST_TYPE {
        return Err(lie(format!("its manifest has the media type '{}' instead of {MANIFEST_TYPE}", shown(media_type))));
    }
    Ok((Manifest::read(&got.bytes, reference, config.component_bytes_max)?, found))
}

/// Judges the signature before anything large is asked for: it covers the digest, which the bytes have to match.
fn judge(
    manifest: &Manifest,
    config: &RegistryConfig,
    reference: &Reference,
) -> Result<(Option<Verified>, Option<KeyId>), RegistryError> {
    let refuse = |problem: &str| RegistryError::Signature { name: reference.to_string(), problem: problem.to_owned() };
    let Some(text) = manifest.annotations.get(SIGNATURE_ANNOTATION) else {
        if config.require_signature {
            return Err(refuse("it is not signed, and the settings require a signature; ask its publisher to sign it"));
        }
        return Ok((None, None));
    };
    let signature: Signature = text
        .parse()
        .map_err(|_| refuse("its signature cannot be read; do not use it, ask its publisher to sign it again"))?;
    let known = config.trusted_keys.iter().any(|key| key.id() == *signature.key());
    if !known && !config.require_signature {
        return Ok((None, Some(signature.key().clone())));
    }
    let verified = verify_digest(reference.name(), &manifest.component.digest, &signature, &config.trusted_keys)?;
    Ok((Some(verified), None))
}

/// Reads a blob of known digest and size; not one byte more is kept.
async fn blob(
    session: &mut Session<'_>,
    blob: &Blob,
    reference: &Reference,
    what: &str,
) -> Result<Vec<u8>, RegistryError> {
    let lie = |problem: String| RegistryError::Untrustworthy { reference: reference.to_string(), problem };
    let doing = format!("read {what}");
    let wanted = Wanted {
        path: session.path(&format!("blobs/{}", blob.digest)),
        // A blob is data to a registry: some answer 406 to its exact type.
        accept: "application/octet-stream, */*",
        bytes_max: blob.size,
        doing: &doing,
    };
    let got = match session.get(&wanted).await {
        Err(RegistryError::TooLarge { found, .. }) => {
            return Err(lie(format!("{what} has {found}, its manifest says {}", blob.size)));
        }
        got => got?,
    };
    if got.bytes.len() as u64 != blob.size {
        return Err(lie(format!("{what} has {} bytes, its manifest says {}", got.bytes.len(), blob.size)));
    }
    let found = Digest::of(&got.bytes);
    if found != blob.digest {
        return Err(lie(format!("{what} has the digest {found}, its manifest says {}", blob.digest)));
    }
    Ok(got.bytes)
}

#[derive(Deserialize)]
struct TagPage {
    tags: Option<Vec<String>>,
}

async fn tags(session: &mut Session<'_>, reference: &Reference) -> Result<Vec<String>, RegistryError> {
    let lie = |problem: String| RegistryError::Untrustworthy { reference: reference.to_string(), problem };
    let mut found = Vec::new();
    let mut next = Some(session.path(&format!("tags/list?n={TAGS_PER_PAGE}")));
    for _ in 0..TAG_PAGES_MAX {
        let Some(path) = next else { return Ok(found) };
        let wanted = Wanted { path, accept: "application/json", bytes_max: TAGS_BYTES_MAX, doing: "list the versions" };
        let got = session.get(&wanted).await?;
        let page: TagPage = serde_json::from_slice(&got.bytes)
            .map_err(|error| lie(format!("the list of its versions cannot be read ({})", shown(&error.to_string()))))?;
        for tag in page.tags.unwrap_or_default() {
            check_tag(&tag).map_err(|rule| lie(format!("the list of its versions: {rule}")))?;
            found.push(tag);
        }
        if found.len() > TAGS_MAX {
            return Err(lie(format!("it lists more than {TAGS_MAX} versions")));
        }
        next = next_page(session, &got.headers).map_err(lie)?;
    }
    Err(lie(format!("its versions fill more than {TAG_PAGES_MAX} pages")))
}

/// The path in `link: <…>; rel="next"`; it stays on the registry.
fn next_page(session: &Session<'_>, headers: &HeaderMap) -> Result<Option<String>, String> {
    let Some(link) = header(headers, LINK.as_str()) else { return Ok(None) };
    let target = link.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map(|(target, _)| target);
    let target = target.ok_or_else(|| format!("the list of its versions continues at '{}'", shown(link)))?;
    let at = Address::resolve(target, session.origin())?;
    if at.origin != *session.origin() {
        return Err(format!("the list of its versions continues at another place, {}", at.origin));
    }
    Ok(Some(at.path))
}

/// A header as text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
