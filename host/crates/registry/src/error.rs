//! What can go wrong with registries, signatures and the shelf, each with its remedy.
//! Text that came from outside is escaped and shortened before it stands in a message.

use std::io;
use std::path::{Path, PathBuf};

/// Characters of foreign text that an error repeats.
const SHOWN_CHARS_MAX: usize = 160;

/// Split by what the caller can do: correct its input (`Reference`, `Config`, `NotFound`), try again (`Unreachable`,
/// `TimedOut`), get access (`Refused`), decide whom to trust (`TooLarge`, `Untrustworthy`, `Signature`, `Moved`), or
/// repair the machine (`Disk`, `Local`).
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The text names no recipe in a registry.
    #[error("'{shown}' does not name a recipe: {rule}")]
    Reference {
        /// The text, escaped and shortened.
        shown: String,
        /// The rule that it breaks, with the remedy.
        rule: String,
    },
    /// The settings contradict each other or cannot be read; the message says which and what to write instead.
    #[error("{0}")]
    Config(String),
    /// No connection, or it ended early, also after the retries.
    #[error(
        "registry {origin}: cannot {doing}: {cause}; check the address and that the registry runs, then try again{}",
        plain_remedy(cause)
    )]
    Unreachable {
        /// Scheme, host and port.
        origin: String,
        /// Verb and object.
        doing: String,
        /// What the network said.
        cause: String,
    },
    /// The whole operation took longer than the configured time-out.
    #[error("registry {host}: {doing} took longer than {seconds} s; try again, or raise the registry's time-out")]
    TimedOut {
        /// Host of the reference.
        host: String,
        /// Verb and object.
        doing: String,
        /// The time-out.
        seconds: u64,
    },
    /// The registry says no, or what it asks for is refused here; the message ends with the remedy.
    #[error("registry {origin}: {problem}")]
    Refused {
        /// Scheme, host and port.
        origin: String,
        /// What was refused and why, with the remedy.
        problem: String,
    },
    /// The registry has no such recipe or version.
    #[error("{reference} is not in the registry; list the versions with `reef recipe list`, or check the name")]
    NotFound {
        /// What was asked for.
        reference: String,
    },
    /// More bytes than allowed; nothing beyond the limit was read.
    #[error(
        "{what} has {found} and at most {bytes_max} bytes are allowed; use a smaller one, or raise the limit if you trust its origin"
    )]
    TooLarge {
        /// What is too large.
        what: String,
        /// Bytes, as declared or as counted until the limit.
        found: String,
        /// The limit.
        bytes_max: u64,
    },
    /// What arrived is not what was named or not a recipe: never use it, never retry.
    #[error("{reference}: {problem}; nothing of it was kept: do not use this copy, ask who publishes it")]
    Untrustworthy {
        /// What was asked for.
        reference: String,
        /// What differs from what.
        problem: String,
    },
    /// A signature is missing, wrong, or made with a key that is not trusted.
    #[error("recipe '{name}': {problem}")]
    Signature {
        /// Name of the recipe.
        name: String,
        /// What is wrong, with the remedy.
        problem: String,
    },
    /// A tag names other code than the lock file says.
    #[error(
        "{reference} moved: the lock file {} says {locked}, the registry now has {found}; keep the old one by its \
         digest, or accept the new one with --update",
        lock.display()
    )]
    Moved {
        /// The tag.
        reference: String,
        /// The lock file.
        lock: PathBuf,
        /// Digest of the code that was accepted.
        locked: String,
        /// Digest of the code that is there now.
        found: String,
    },
    /// The file system refused.
    #[error("cannot {doing} {}: {cause}; check that the folder exists, is writable and has room", path.display())]
    Disk {
        /// Verb.
        doing: &'static str,
        /// File or folder.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A local file or folder is damaged, unsafe or full; the message ends with the remedy.
    #[error("{}: {problem}", path.display())]
    Local {
        /// File or folder.
        path: PathBuf,
        /// What it is instead, with the remedy.
        problem: String,
    },
}

/// A plain server that is spoken to in TLS fails in an odd way: say what to write.
fn plain_remedy(cause: &str) -> &'static str {
    if cause.contains("corrupt message") || cause.contains("InvalidContentType") {
        "; if it speaks plain http and you trust the network, list its host under insecure hosts"
    } else {
        ""
    }
}

/// Foreign text, fit for a message: escaped, shortened.
pub(crate) fn shown(text: &str) -> String {
    let escaped: String = text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_default).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() { format!("{escaped}…") } else { escaped }
}

/// Makes a disk error of an `io::Error`.
pub(crate) fn disk(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RegistryError {
    let path = path.to_path_buf();
    move |cause| RegistryError::Disk { doing, path, cause }
}
