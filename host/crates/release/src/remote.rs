//! Remotes: which addresses are taken, and what can go wrong with one.
//! Addresses become arguments of `git` and its helpers, so only plain ones are taken: no options, no other transports
//! than https, ssh and file, no secrets that a list of processes would show.

use std::path::{Path, PathBuf};

use gix::url::Scheme;
use reef_core::{ScenarioName, TenantId};

use crate::problem::Problem;
use crate::{ReleaseError, names};

/// Bytes of an address.
const URL_BYTES_MAX: usize = 1024;
/// Characters of a name.
const NAME_CHARS_MAX: usize = 64;

/// Why nothing was pushed or pulled. `Locked` in it, and `TimedOut`, may go away by themselves.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// An address or name that is not taken.
    #[error("remote '{shown}': {rule}")]
    Address {
        /// The address, escaped and shortened.
        shown: String,
        /// The rule that it breaks, and what to write instead.
        rule: String,
    },
    /// There is no `git` here.
    #[error("git cannot be started: {cause}; install it (Debian: apt-get install git) or put it into PATH")]
    GitMissing {
        /// What the system said.
        cause: std::io::Error,
    },
    /// There is no `git lfs` here, and the remote is not a folder.
    #[error(
        "git-lfs is not installed, and adapters reach a remote over the network only with it; install it (Debian: \
         apt-get install git-lfs, macOS: brew install git-lfs) or use a file:// remote"
    )]
    LfsMissing,
    /// It took too long; its processes were ended.
    #[error("git {doing} took longer than {seconds_max} s and was ended; try again, or allow more time")]
    TimedOut {
        /// Command.
        doing: String,
        /// Limit.
        seconds_max: u64,
    },
    /// Git refused.
    #[error(
        "git {doing} failed: {cause}; check the address, the credentials (nobody is asked for a password) and the remote"
    )]
    Git {
        /// Command.
        doing: String,
        /// The end of what it said.
        cause: String,
    },
    /// The remote has releases that are not in the local chain.
    #[error(
        "remote {remote}: its branch {branch} has releases that the local chain does not have, and history is never \
         rewritten; pull it to look at them, and push to another remote or under another scenario"
    )]
    Diverged {
        /// The address.
        remote: String,
        /// The reference.
        branch: String,
    },
    /// There is nothing to transfer.
    #[error("scenario {tenant}/{scenario} has no releases {at}; check its name")]
    NoChain {
        /// Owner.
        tenant: TenantId,
        /// Scenario.
        scenario: ScenarioName,
        /// Here or at the remote.
        at: String,
    },
    /// What the remote has is not a whole chain.
    #[error(
        "remote {remote}: its chain is refused, nothing of it is visible here; {}{}",
        problems.first().map(ToString::to_string).unwrap_or_default(),
        more(problems.len())
    )]
    Unverified {
        /// The address.
        remote: String,
        /// Everything that is wrong, newest release first.
        problems: Vec<Problem>,
    },
    /// The local repository.
    #[error(transparent)]
    Release(#[from] ReleaseError),
}

fn more(problems: usize) -> String {
    if problems > 1 { format!(" (and {} more problems)", problems - 1) } else { String::new() }
}

/// Another repository of releases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    name: String,
    url: String,
    scheme: &'static str,
    folder: Option<PathBuf>,
}

impl Remote {
    /// Checks the name (part of `refs/remotes/<name>/…`) and the address: `https://host/path`, `ssh://git@host/path` or
    /// `file:///absolute/path`; plain `http://` for this machine only.
    ///
    /// Errors: `Address`.
    pub fn parse(name: &str, url: &str) -> Result<Self, RemoteError> {
        let refuse =
            |text: &str, rule: &str| Err(RemoteError::Address { shown: names::shown(text), rule: rule.to_owned() });
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(plain) || name.starts_with('-') {
            return refuse(name, "a remote's name has 1 to 64 of a-z, 0-9, '-' and '_', and does not begin with '-'");
        }
        if url.len() > URL_BYTES_MAX || url.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
            return refuse(url, "an address has at most 1024 bytes, without spaces, control characters and '\\'");
        }
        let rule = "write https://host/path, ssh://git@host/path or file:///absolute/path";
        let Ok(parsed) = gix::url::parse(url) else { return refuse(url, rule) };
        let scheme = match (parsed.scheme.clone(), url.split_once("://").map(|(scheme, _)| scheme)) {
            (Scheme::Https, Some("https")) => "https",
            (Scheme::Ssh, Some("ssh")) => "ssh",
            (Scheme::File, Some("file")) => "file",
            (Scheme::Http, Some("http")) => "http",
            _ => return refuse(url, rule),
        };
        let (host, path) = (parsed.host.as_deref().unwrap_or_default(), parsed.path.to_string());
        if scheme == "file" {
            let folder = url.trim_start_matches("file://");
            // Git and this program must mean the same folder, and git reads '%' as the start of a byte.
            if !host.is_empty() || !folder.starts_with('/') || folder.contains('%') {
                return refuse(url, "a folder is written file:///absolute/path, without a host and without '%'");
            }
            let (name, url, folder) = (name.to_owned(), url.to_owned(), Some(PathBuf::from(folder)));
            return Ok(Self { name, url, scheme, folder });
        }
        if host.is_empty() || host.starts_with('-') || path.starts_with("/-") || path.len() < 2 {
            return refuse(url, rule);
        }
        if parsed.password.is_some() || (scheme != "ssh" && parsed.user.is_some()) {
            return Err(RemoteError::Address {
                // The secret is not repeated.
                shown: format!("{scheme}://…@{}", names::shown(host)),
                rule:
                    "an address holds no secrets, which a list of processes would show; use a credential helper of git"
                        .to_owned(),
            });
        }
        if parsed.user.as_deref().is_some_and(|user| user.starts_with('-')) {
            return refuse(url, rule);
        }
        if scheme == "http" && !["127.0.0.1", "localhost", "[::1]", "::1"].contains(&host) {
            return refuse(url, "over the network only https is safe; write https://");
        }
        Ok(Self { name: name.to_owned(), url: url.to_owned(), scheme, folder: None })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The one transport that git may use.
    pub(crate) fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// The git folder of a remote that is a folder; `None` for one on the network.
    pub(crate) fn git_folder(&self) -> Result<Option<PathBuf>, RemoteError> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let is_git = |folder: &Path| folder.join("HEAD").is_file() && folder.join("objects").is_dir();
        let inner = folder.join(".git");
        if let Some(found) = [folder.clone(), inner].into_iter().find(|folder| is_git(folder)) {
            return Ok(Some(found));
        }
        Err(RemoteError::Address {
            shown: names::shown(&self.url),
            rule: format!("there is no git repository; make one with `git init --bare {}`", folder.display()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_addresses_are_taken() {
        for url in [
            "https://example.org/acme/releases.git",
            "https://example.org:8443/releases",
            "ssh://git@example.org/srv/releases.git",
            "ssh://example.org:2222/~/releases.git",
            "file:///srv/releases.git",
            "http://127.0.0.1:8080/releases.git",
            "http://localhost:8080/releases.git",
        ] {
            assert_eq!(Remote::parse("origin", url).expect(url).url(), url);
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_to_write() {
        let long = format!("https://example.org/{}", "a".repeat(2_000));
        for url in [
            "",
            "origin",
            "/srv/releases.git",
            "git@example.org:releases.git",
            "--upload-pack=touch /tmp/x",
            "-oProxyCommand=x",
            "ext::sh -c touch% /tmp/x",
            "ext::x",
            "git://example.org/releases.git",
            "ftp://example.org/releases.git",
            "http://example.org/releases.git",
            "http://127.0.0.1.example.org/releases.git",
            "https://",
            "https:///releases.git",
            "https://example.org",
            "ssh://-oProxyCommand=x/releases.git",
            "ssh://-oProxyCommand=x@example.org/releases.git",
            "ssh://example.org/-x",
            "file://host/srv/releases.git",
            "file://srv/releases.git",
            "file:///srv/a%20b",
            "https://example.org/a b",
            "https://example.org/a\nb",
            "https://example.org\\@evil.org/x",
            &long,
        ] {
            let refusal = Remote::parse("origin", url).expect_err(url).to_string();
            assert!(refusal.starts_with("remote '"), "{refusal}");
        }
        for name in ["", "-x", "a/b", "..", "A", "a.lock", &"a".repeat(65)] {
            assert!(Remote::parse(name, "file:///srv/x").is_err(), "{name}");
        }
    }

    #[test]
    fn secrets_in_an_address_are_refused_and_not_repeated() {
        for url in ["https://user:hunter2@example.org/x", "https://hunter2@example.org/x", "ssh://git:hunter2@h.org/x"]
        {
            let refusal = Remote::parse("origin", url).expect_err(url).to_string();
            assert!(refusal.contains("credential helper") && !refusal.contains("hunter2"), "{refusal}");
        }
    }
}
