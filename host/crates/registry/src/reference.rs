//! Names of recipes in registries: `host[:port]/name[:tag][@sha256:…]`, or the short forms `NAME@VERSION` and
//! `NAME@sha256:…` against a default registry. The command line and the configuration parse into them.
//! A reference is valid by construction; nothing here touches the network.

use std::fmt;

use crate::error::shown;
use crate::{Digest, RegistryError};

/// Bytes of a whole reference.
const REFERENCE_BYTES_MAX: usize = 1024;
/// Bytes of host and port, and of the repository path (OCI: 255).
const PART_BYTES_MAX: usize = 255;
/// Bytes of a tag (OCI: 128).
const TAG_BYTES_MAX: usize = 128;

/// A place in a registry: host, repository, and at most one tag and one digest of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    host: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// Parses the text; short forms need a `default` registry (`host[:port][/prefix]`).
    pub fn parse(text: &str, default: Option<&str>) -> Result<Self, RegistryError> {
        parse(text, default).map_err(|rule| RegistryError::Reference { shown: shown(text), rule })
    }

    /// Host and port as written.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Path of the repository, without the host.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Last part of the repository's path: the name that signatures cover.
    pub fn name(&self) -> &str {
        self.repository.rsplit('/').next().unwrap_or(&self.repository)
    }

    /// The tag, which is the version.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Digest of the manifest, if pinned.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The same recipe, pinned to one manifest.
    #[must_use]
    pub fn pinned(&self, manifest: Digest) -> Self {
        Self { digest: Some(manifest), ..self.clone() }
    }

    /// The same recipe under another tag, unpinned.
    pub fn with_tag(&self, tag: &str) -> Result<Self, RegistryError> {
        check_tag(tag).map_err(|rule| RegistryError::Reference { shown: shown(tag), rule })?;
        Ok(Self { tag: Some(tag.to_owned()), digest: None, ..self.clone() })
    }

    /// What the registry's interface calls the reference: the digest when pinned, else the tag.
    pub(crate) fn selector(&self) -> Result<String, RegistryError> {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => Ok(digest.to_string()),
            (None, Some(tag)) => Ok(tag.clone()),
            (None, None) => Err(RegistryError::Reference {
                shown: self.to_string(),
                rule: format!(
                    "it names no version; append one ({self}:1.0.0) or a digest ({self}@sha256:…), there is no default"
                ),
            }),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

type Rule<T> = Result<T, String>;

fn parse(text: &str, default: Option<&str>) -> Rule<Reference> {
    if text.len() > REFERENCE_BYTES_MAX {
        return Err(format!("it has {} bytes; at most {REFERENCE_BYTES_MAX} are allowed", text.len()));
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        return Err(format!("leave out '{}://' and write {}", shown(scheme), shown(rest)));
    }
    let (place, version) = match text.split_once('@') {
        Some((place, version)) => (place, Some(version)),
        None => (text, None),
    };
    match place.split_once('/').filter(|(first, _)| is_host(first)) {
        Some((host, path)) => full(host, path, version),
        None => short(place, version, default),
    }
}

/// A first part is a host, not a folder, when it has a dot or a port, or is `localhost` (the rule of every client).
fn is_host(first: &str) -> bool {
    first == "localhost" || first.contains(['.', ':'])
}

fn full(host: &str, path: &str, digest: Option<&str>) -> Rule<Reference> {
    let digest = digest.map(|text| match text.parse::<Digest>() {
        Ok(digest) => Ok(digest),
        Err(_) => Err(format!(
            "after '@' stands a digest, sha256: and 64 digits of 0-9 and a-f, not '{}'; a version follows a colon: {}/{}:VERSION",
            shown(text), shown(host), shown(path)
        )),
    });
    build(host, path, digest.transpose()?)
}

fn short(place: &str, version: Option<&str>, default: Option<&str>) -> Rule<Reference> {
    let default = default.ok_or_else(|| {
        "it has no registry host and no default registry is configured; write host/name:version, or configure a default"
            .to_owned()
    })?;
    let (host, path) = match default.split_once('/') {
        Some((host, prefix)) => (host, format!("{}/{place}", prefix.trim_end_matches('/'))),
        None => (default, place.to_owned()),
    };
    match version {
        Some(text) if text.starts_with("sha256:") => full(host, &path, Some(text)),
        Some(_) if place.contains(':') => Err("it names a version twice; write NAME@VERSION".to_owned()),
        Some(text) => {
            check_tag(text)?;
            build(host, &format!("{path}:{text}"), None)
        }
        None => build(host, &path, None),
    }
}

fn build(host: &str, path: &str, digest: Option<Digest>) -> Rule<Reference> {
    let (repository, tag) = match path.split_once(':') {
        Some((repository, tag)) => (repository, Some(tag)),
        None => (path, None),
    };
    check_host(host)?;
    check_repository(repository)?;
    tag.map_or(Ok(()), check_tag)?;
    Ok(Reference {
        host: host.to_ascii_lowercase(),
        repository: repository.to_owned(),
        tag: tag.map(str::to_owned),
        digest,
    })
}

/// `host[:port]`; the host is a DNS name, an IPv4 address, or an IPv6 address in brackets.
pub(crate) fn check_host(text: &str) -> Rule<()> {
    let refuse = || Err(format!("'{}' is no host; write a DNS name or an address and, if needed, :port", shown(text)));
    if text.is_empty() || text.len() > PART_BYTES_MAX {
        return refuse();
    }
    let (host, port) = split_port(text);
    let port_fits = port.is_none_or(|p| p.parse::<u16>().is_ok_and(|p| p > 0) && p.bytes().all(|b| b.is_ascii_digit()));
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let host_fits = match bracketed {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.split('.').all(is_label),
    };
    if port_fits && host_fits { Ok(()) } else { refuse() }
}

/// Host and port; the colons inside brackets belong to the host.
pub(crate) fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    }
}

fn is_label(label: &str) -> bool {
    !label.is_empty()
        && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

fn check_repository(text: &str) -> Rule<()> {
    let fits = text.len() <= PART_BYTES_MAX && text.split('/').all(is_component);
    if fits {
        return Ok(());
    }
    Err(format!(
        "the name '{}' is not valid: use a-z and 0-9, with single '.', '_' or '-' between them, and '/' between folders",
        shown(text)
    ))
}

/// OCI: `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn is_component(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends_fit = text.bytes().next().is_some_and(plain) && text.bytes().next_back().is_some_and(plain);
    let separators = text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    ends_fit && separators.into_iter().all(|s| matches!(s, "" | "." | "_" | "__") || s.bytes().all(|b| b == b'-'))
}

/// OCI: `[A-Za-z0-9_][A-Za-z0-9._-]{0,127}`
pub(crate) fn check_tag(text: &str) -> Rule<()> {
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    let fits = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if first && fits && text.len() <= TAG_BYTES_MAX {
        return Ok(());
    }
    Err(format!(
        "the version '{}' is not valid: use 1 to {TAG_BYTES_MAX} of A-Z, a-z, 0-9, '.', '_' and '-' ('+' is not allowed in tags)",
        shown(text)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn parsed(text: &str, default: Option<&str>) -> String {
        Reference::parse(text, default).map_or_else(|error| error.to_string(), |reference| reference.to_string())
    }

    #[test]
    fn full_references_read_what_they_write() {
        for text in [
            "r.example.com/sao:1.0.0".to_owned(),
            "localhost:5000/team/sao:1.0.0-rc.1".to_owned(),
            "[::1]:5000/sao:v1".to_owned(),
            format!("r.example.com/a/b__c/d--e:1@{DIGEST}"),
            format!("127.0.0.1:80/sao@{DIGEST}"),
            "r.example.com/sao".to_owned(),
        ] {
            assert_eq!(parsed(&text, None), text);
        }
    }

    #[test]
    fn short_forms_resolve_against_the_default() {
        assert_eq!(parsed("sao@1.0.0", Some("r.example.com/reef")), "r.example.com/reef/sao:1.0.0");
        assert_eq!(parsed("sao:1.0.0", Some("localhost:5000")), "localhost:5000/sao:1.0.0");
        assert_eq!(parsed("team/sao@1.0.0", Some("localhost:5000")), "localhost:5000/team/sao:1.0.0");
        let pinned = format!("sao@{DIGEST}");
        assert_eq!(parsed(&pinned, Some("r.example.com")), format!("r.example.com/{pinned}"));
        assert!(parsed("sao@1.0.0", None).contains("no default registry is configured"));
        assert!(parsed("sao:1@2", Some("r.example.com")).contains("twice"));
    }

    #[test]
    fn hostile_references_are_refused_with_a_rule() {
        let long = "a".repeat(2000);
        for (bad, part) in [
            ("", "is not valid"),
            ("https://r.example.com/sao:1", "leave out"),
            ("r.example.com/../etc:1", "is not valid"),
            ("r.example.com/Sao:1", "is not valid"),
            ("r.example.com//sao:1", "is not valid"),
            ("r.example.com/sao:", "the version"),
            ("r.example.com/sao:1+2", "'+' is not allowed"),
            ("r.example.com/sao:1/x", "the version"),
            ("r.example.com/sao@1.0.0", "a version follows a colon"),
            ("r.example.com/sao@sha256:12", "64 digits"),
            ("r.example.com:0/sao:1", "is no host"),
            ("r.example.com:+80/sao:1", "is no host"),
            ("r.exa mple.com/sao:1", "is no host"),
            ("user@r.example.com/sao:1", "the version"),
            ("r.example.com\u{1b}[31m/sao:1", "\\u{1b}"),
            (long.as_str(), "1024"),
        ] {
            let refusal = Reference::parse(bad, Some("d.example.com")).expect_err(bad).to_string();
            assert!(refusal.contains(part), "{bad}: {refusal}");
        }
    }

    #[test]
    fn nothing_is_asked_for_without_a_version() {
        let bare = Reference::parse("r.example.com/sao", None).expect("valid");
        assert!(bare.selector().expect_err("no version").to_string().contains("names no version"));
        assert_eq!(bare.with_tag("2").expect("valid").selector().expect("tag"), "2");
    }
}
