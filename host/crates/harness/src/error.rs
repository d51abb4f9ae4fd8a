//! What can be wrong with an entry or a tree. Every message names the entry, the reason and the remedy.

use std::fmt;

/// Characters of an offending name that an error repeats.
const SHOWN_CHARS_MAX: usize = 80;

/// Escaped and shortened, for an error.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_default).collect()
}

/// An entry that a tree does not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{subject}: {problem}")]
pub struct TreeError {
    /// The entry as `kind/id`, with the part of it, or the file.
    pub subject: String,
    /// Reason and remedy.
    pub problem: Problem,
}

impl TreeError {
    pub(crate) fn new(subject: impl fmt::Display, problem: Problem) -> Self {
        Self { subject: subject.to_string(), problem }
    }
}

/// A reason, with its remedy in the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The name breaks its rule.
    #[error("the name '{shown}' is not valid; {rule}")]
    Name {
        /// The name, escaped and shortened.
        shown: String,
        /// What a name must be.
        rule: &'static str,
    },
    /// Two entries, or two files of a skill, share a name.
    #[error("'{other}' has that name already, upper and lower case being equal on some computers; choose another name")]
    Duplicate {
        /// The other one.
        other: String,
    },
    /// Not UTF-8.
    #[error("byte {at} is not UTF-8; save the text as UTF-8")]
    NotUtf8 {
        /// First wrong byte, from 0.
        at: usize,
    },
    /// A byte order mark; some agent programs silently ignore such a file.
    #[error("the text starts with a byte order mark; save it as UTF-8 without one")]
    ByteOrderMark,
    /// A control character.
    #[error(
        "byte {at} is the control character U+{code:04X}; use LF for line ends and remove other control characters"
    )]
    Control {
        /// Code point.
        code: u32,
        /// Byte, from 0.
        at: usize,
    },
    /// Over a limit of bytes or characters.
    #[error("{bytes} bytes are over the limit of {most}; shorten it or split it")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// Over a limit of a number of things.
    #[error("{count} {what} are over the limit of {most}; remove some")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// The limit.
        most: usize,
    },
    /// A literal key.
    #[error("it holds what looks like a key ('{start}…'); name an environment variable instead and revoke the key")]
    Credential {
        /// How the key starts.
        start: &'static str,
    },
    /// The fields of the entry do not fit its kind.
    #[error("{told}")]
    Fields {
        /// Which field, why, and what to do.
        told: String,
    },
    /// A file that belongs to no entry.
    #[error("this file belongs to no entry; remove it, or name it as KIND/ID/entry.json")]
    StrayFile,
}
