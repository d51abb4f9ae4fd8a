//! Which session a request belongs to: as the client names it, or else by what it says.

mod index;
mod transcript;

pub use self::index::{IndexLimits, Placed, SessionIndex, SessionSource};
pub use self::transcript::{Answer, Transcript};

/// Headers in which harnesses already send their session, the surest first.
pub const SESSION_HEADERS: [&str; 5] =
    ["x-claude-code-session-id", "session_id", "session-id", "x-session-id", "x-session-affinity"];

/// The session that a client names: the tag `session`, a header of its harness, or a cache key that names a
/// conversation. Applications also use one cache key for all that they send, so that only a UUID counts.
pub fn named_session<'a>(
    tag: Option<&'a str>,
    header: impl Fn(&str) -> Option<&'a str>,
    cache_key: Option<&'a str>,
) -> Option<(&'a str, SessionSource)> {
    let present = |value: &&str| !value.trim().is_empty();
    let tag = tag.filter(present).map(|tag| (tag, SessionSource::Tag));
    let header = || SESSION_HEADERS.iter().find_map(|name| header(name).filter(present));
    let key = || cache_key.filter(|key| is_uuid(key)).map(|key| (key, SessionSource::CacheKey));
    tag.or_else(|| header().map(|session| (session, SessionSource::Header))).or_else(key)
}

fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|b| b.is_ascii_hexdigit()))
}
