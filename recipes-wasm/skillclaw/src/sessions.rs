//! Sessions of a batch: what was said in each, and which skills it refers to; and the groups that they make, one a skill
//! and one of those without any. A session is in the group of each of its skills.

use alloc::collections::BTreeMap;

use reef_evolution::traces::trace;
use reef_evolution::untrusted::shortened;
use reef_recipe::prelude::*;

/// Tag that names the skills of an exchange, with commas.
const SKILL_TAG: &str = "skill";
/// Characters of one exchange, and of a whole session.
const EXCHANGE_CHARS_MAX: usize = 6_000;
const SESSION_CHARS_MAX: usize = 24_000;

/// One session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// What was said.
    pub text: String,
    /// Ids of the skills that it refers to.
    pub skills: Vec<String>,
}

/// Samples by session, in the order of their first ones; a sample without a session is one of its own.
///
/// # Errors
/// The host's refusal.
pub fn by_session(samples: &[Sample]) -> Result<Vec<Vec<Sample>>> {
    let (mut places, mut sessions) = (BTreeMap::new(), Vec::<Vec<Sample>>::new());
    for &sample in samples {
        let place = experience::session(sample)?.map(|name| *places.entry(name).or_insert(sessions.len()));
        match place.and_then(|place| sessions.get_mut(place)) {
            Some(session) => session.push(sample),
            None => sessions.push(vec![sample]),
        }
    }
    Ok(sessions)
}

impl Session {
    /// Reads the exchanges of a session. `known`: ids of the skills of the tree.
    ///
    /// # Errors
    /// The host's refusal.
    pub fn read(samples: &[Sample], known: &[String]) -> Result<Self> {
        let (mut texts, mut tagged) = (Vec::new(), Vec::new());
        for &sample in samples {
            texts.push(trace(sample, EXCHANGE_CHARS_MAX)?);
            let tags = experience::tags(sample)?.into_iter().filter(|(name, _)| name == SKILL_TAG);
            tagged.extend(
                tags.flat_map(|(_, skills)| skills.split(',').map(|id| id.trim().to_owned()).collect::<Vec<_>>()),
            );
        }
        let text = shortened(&texts.join("\n"), SESSION_CHARS_MAX);
        let refers = |id: &&String| tagged.contains(id) || mentions(&text, id);
        let skills = known.iter().filter(refers).cloned().collect();
        Ok(Self { text, skills })
    }
}

/// Does the text hold the id as a word of its own?
pub fn mentions(text: &str, id: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '-');
    let whole = |at: usize| {
        let (before, after) = (text.get(..at).unwrap_or_default(), text.get(at + id.len()..).unwrap_or_default());
        !part(before.chars().next_back()) && !part(after.chars().next())
    };
    !id.is_empty() && text.match_indices(id).any(|(at, _)| whole(at))
}

/// Numbers of the sessions of each skill, at most `most` a group, and of those without any under the empty name.
pub fn groups(sessions: &[Session], most: usize) -> BTreeMap<String, Vec<usize>> {
    let mut groups = BTreeMap::<String, Vec<usize>>::new();
    for (number, session) in sessions.iter().enumerate() {
        let none = [String::new()];
        let names = if session.skills.is_empty() { &none[..] } else { session.skills.as_slice() };
        for name in names {
            let group = groups.entry(name.clone()).or_default();
            if group.len() < most {
                group.push(number);
            }
        }
    }
    groups
}
