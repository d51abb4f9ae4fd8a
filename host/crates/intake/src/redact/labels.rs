//! Labels, which name a record's session or what it is about: one that holds a secret goes whole, and its digest stays.
//! Records and selectors go through the same function, so that what was stored under a label is found under it again.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::ops::Range;

use sha2::{Digest as _, Sha256};

use super::config::is_name;
use super::{Counts, Redactor};

/// How everything that was taken out begins.
const OPEN: &str = "[redacted:";
/// Hexadecimal digits of a label's digest: enough to keep the labels of one tenant apart.
const DIGEST_CHARS: usize = 12;
/// Bytes of the longest redacted label; kinds have at most 40.
const LABEL_BYTES_MAX: usize = 64;

impl Redactor {
    /// What a tag's value or the name of a session is stored as, and what was found in it. Without a secret it is the
    /// label itself; with one it is `[redacted:KIND:HEX]`, with the first 12 hexadecimal digits of the SHA-256 of the
    /// whole label, so that different labels stay different. Whoever looks for records by a label (an erase, a report
    /// on a session) has to ask for what this returns. What it returned it returns again.
    pub fn redact_label<'a>(&self, label: &'a str) -> (Cow<'a, str>, Counts) {
        let mut counts = Counts::default();
        let spans = self.spans(label);
        let Some((_, kind)) = spans.first() else { return (Cow::Borrowed(label), counts) };
        spans.iter().for_each(|(_, kind)| counts.add(kind, 1));
        let mut redacted = format!("{OPEN}{kind}:");
        for byte in Sha256::digest(label).iter().take(DIGEST_CHARS / 2) {
            // Writing to a string cannot fail.
            let _ = write!(redacted, "{byte:02x}");
        }
        redacted.push(']');
        (Cow::Owned(redacted), counts)
    }
}

/// Does the range lie inside a redacted label? Its digest looks random, and its kind like a name before it.
pub(super) fn is_inside_label(text: &str, range: &Range<usize>) -> bool {
    let label = || {
        let from = range.start.saturating_sub(LABEL_BYTES_MAX);
        let before = text.as_bytes().get(from..range.start)?;
        let start = from + before.windows(OPEN.len()).rposition(|window| window == OPEN.as_bytes())?;
        let length = text.as_bytes().get(start..)?.iter().take(LABEL_BYTES_MAX).position(|b| *b == b']')? + 1;
        text.get(start..start + length).filter(|label| is_redacted_label(label) && range.end <= start + label.len())
    };
    label().is_some()
}

fn is_redacted_label(text: &str) -> bool {
    let inner = text.strip_prefix(OPEN).and_then(|rest| rest.strip_suffix(']'));
    inner.and_then(|inner| inner.split_once(':')).is_some_and(|(kind, digest)| {
        let hexadecimal = digest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        is_name(kind) && digest.len() == DIGEST_CHARS && hexadecimal
    })
}
