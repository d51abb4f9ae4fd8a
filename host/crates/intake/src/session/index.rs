//! The sessions of requests that name none: a request goes on with the session whose request it extends.
//! It extends one if it says the same, then the answer that was given to it, then more. Conversations that begin alike
//! are told apart by their answers; where these are alike too, each continuation takes another of them, and since
//! nothing tells them apart so far, it does not matter which. The index is memory of bounded size: what is forgotten, or
//! was said before the server started, begins a new session.

use std::sync::Arc;

use hashlink::LruCache;
use reef_core::{ScenarioName, TenantId};

use super::transcript::{Answer, Digest, Transcript};

/// Sessions that may be at the same point of the same conversation.
const ALIKE_MAX: usize = 32;
/// Answers of a request at which an earlier request may end, from the last one.
const ANSWERS_MAX: usize = 64;
/// Bytes of an entry beside the session's name.
const ENTRY_BYTES: usize = 128;

/// What the index may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexLimits {
    /// Scenarios, of all tenants together; the one unused longest is forgotten.
    pub scenarios_max: usize,
    /// Requests of one scenario.
    pub requests_max: usize,
    /// Bytes of one scenario.
    pub bytes_max: usize,
}

impl Default for IndexLimits {
    fn default() -> Self {
        Self { scenarios_max: 256, requests_max: 8192, bytes_max: 2 << 20 }
    }
}

/// How a session was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionSource {
    /// The client's tag.
    Tag,
    /// A header of its harness.
    Header,
    /// The cache key of the request.
    CacheKey,
    /// It extends an earlier request.
    Extends,
    /// It extends none: a new session.
    New,
}

/// A request's place in a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The session.
    pub session: Arc<str>,
    /// How it was found.
    pub source: SessionSource,
    /// The request, for its answer.
    whole: Digest,
}

/// A request that was answered, or is being answered.
#[derive(Debug)]
struct Asked {
    session: Arc<str>,
    system: Digest,
    answer: Option<Answer>,
    continued: bool,
}

/// Requests of one scenario, by what they say.
#[derive(Debug)]
struct Shelf {
    requests: LruCache<Digest, Vec<Asked>>,
    bytes: usize,
}

/// See the module.
#[derive(Debug)]
pub struct SessionIndex {
    limits: IndexLimits,
    shelves: LruCache<(TenantId, ScenarioName), Shelf>,
}

impl SessionIndex {
    /// An empty index.
    pub fn new(limits: IndexLimits) -> Self {
        Self { limits, shelves: LruCache::new(limits.scenarios_max.max(1)) }
    }

    /// The session of a request. A new one is called `auto-` and `fresh`, which nobody else may be called, e.g. the
    /// receipt.
    pub fn place(&mut self, owner: (&TenantId, &ScenarioName), said: &Transcript, fresh: &str) -> Placed {
        let limits = self.limits;
        let shelf = self.shelf(owner);
        let found = shelf.extended(said);
        let source = if found.is_some() { SessionSource::Extends } else { SessionSource::New };
        let session = found.unwrap_or_else(|| Arc::from(format!("auto-{fresh}")));
        let asked = Asked { session: Arc::clone(&session), system: said.system, answer: None, continued: false };
        shelf.put(said.whole, asked, limits);
        Placed { session, source, whole: said.whole }
    }

    /// Remembers how a placed request was answered.
    pub fn answered(&mut self, owner: (&TenantId, &ScenarioName), placed: &Placed, answer: Answer) {
        let alike = self.shelf(owner).requests.get_mut(&placed.whole);
        let open = |asked: &&mut Asked| asked.answer.is_none() && asked.session == placed.session;
        if let Some(asked) = alike.and_then(|alike| alike.iter_mut().find(open)) {
            asked.answer = Some(answer);
        }
    }

    /// Requests that are remembered, and their bytes.
    pub fn size(&self) -> (usize, usize) {
        self.shelves.iter().fold((0, 0), |(requests, bytes), (_, shelf)| {
            (requests + shelf.requests.iter().map(|(_, alike)| alike.len()).sum::<usize>(), bytes + shelf.bytes)
        })
    }

    fn shelf(&mut self, (tenant, scenario): (&TenantId, &ScenarioName)) -> &mut Shelf {
        let empty = || Shelf { requests: LruCache::new_unbounded(), bytes: 0 };
        self.shelves.entry((tenant.clone(), scenario.clone())).or_insert_with(empty)
    }
}

impl Shelf {
    /// The session of the longest request that this one extends.
    fn extended(&mut self, said: &Transcript) -> Option<Arc<str>> {
        let again: Vec<Arc<str>> = match self.requests.get(&said.whole) {
            Some(alike) => alike.iter().map(|asked| Arc::clone(&asked.session)).collect(),
            None => Vec::new(),
        };
        for (before, answer) in said.answers.iter().rev().take(ANSWERS_MAX) {
            let Some(alike) = self.requests.get_mut(before) else { continue };
            // What is not answered yet, as far as anybody knows, may have been answered so.
            let known = alike.iter().any(|asked| asked.answer == Some(*answer));
            let expected = if known { Some(*answer) } else { None };
            let same_system = alike.iter().any(|asked| asked.answer == expected && asked.system == said.system);
            let fits = |asked: &&mut Asked| asked.answer == expected && (!same_system || asked.system == said.system);
            let mut fitting: Vec<&mut Asked> = alike.iter_mut().filter(fits).collect();
            let sessions = fitting.iter().map(|asked| &asked.session).collect::<std::collections::BTreeSet<_>>().len();
            if sessions == 0 || (expected.is_none() && sessions > 1) {
                continue;
            }
            // One that nobody has gone on with; else it is sent again, or the conversation forks.
            let at = fitting.iter().position(|asked| !asked.continued);
            let at = at.or_else(|| fitting.iter().rposition(|asked| again.contains(&asked.session)));
            let last = fitting.len() - 1;
            let taken = fitting.get_mut(at.unwrap_or(last))?;
            taken.continued = true;
            return Some(Arc::clone(&taken.session));
        }
        None
    }

    fn put(&mut self, whole: Digest, asked: Asked, limits: IndexLimits) {
        self.bytes += cost(&asked);
        match self.requests.get_mut(&whole) {
            Some(alike) => {
                alike.push(asked);
                if alike.len() > ALIKE_MAX {
                    self.bytes -= cost(&alike.remove(0));
                }
            }
            None => drop(self.requests.insert(whole, vec![asked])),
        }
        while self.requests.len() > limits.requests_max.max(1)
            || (self.bytes > limits.bytes_max && self.requests.len() > 1)
        {
            let Some((_, forgotten)) = self.requests.remove_lru() else { return };
            self.bytes -= forgotten.iter().map(cost).sum::<usize>();
        }
    }
}

fn cost(asked: &Asked) -> usize {
    ENTRY_BYTES + asked.session.len()
}
