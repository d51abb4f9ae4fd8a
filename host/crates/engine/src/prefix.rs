//! Pages that finished prompts and answers left behind, found again by their tokens.
//! The batch looks up new requests here and gives pages back as they fill. A page is named by its tenant, by the weights
//! that wrote it (a generation, never used twice) and by all tokens up to its end: an answer never reads keys of other
//! weights or of another text, and nobody learns from what was found what other tenants have asked.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use reef_cpu::{PAGE, Page};

/// A page's place: the place before it, and its own tokens.
type Key = (Place, [u32; PAGE]);

/// Whose pages, and of which weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    /// Two tenants with the same number would share pages, which hold the same whoever wrote them.
    tenant: u64,
    generation: u64,
}

impl Owner {
    pub fn new(tenant: &str, generation: u64) -> Self {
        let mut hasher = DefaultHasher::new();
        tenant.hash(&mut hasher);
        Self { tenant: hasher.finish(), generation }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    /// Before the first token.
    Start(Owner),
    /// After the page with this number.
    After(u64),
}

#[derive(Debug)]
struct Kept {
    number: u64,
    page: Arc<Page>,
    /// When its request last came by, and how many pages are before it.
    used: u64,
    depth: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct PrefixCache {
    pages: HashMap<Key, Kept>,
    numbers: u64,
    clock: u64,
}

/// How far a request has come in the cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    place: Place,
    depth: usize,
    began: u64,
}

impl PrefixCache {
    /// Before the first token of a request.
    pub fn path(&mut self, owner: Owner) -> Path {
        self.clock += 1;
        Path { place: Place::Start(owner), depth: 0, began: self.clock }
    }

    /// The page that holds `tokens` behind `path`, which moves on.
    pub fn get(&mut self, path: &mut Path, tokens: &[u32; PAGE]) -> Option<Arc<Page>> {
        let kept = self.pages.get_mut(&(path.place, *tokens))?;
        kept.used = path.began;
        *path = Path { place: Place::After(kept.number), depth: path.depth + 1, ..*path };
        Some(Arc::clone(&kept.page))
    }

    /// Keeps a full page behind `path`, which moves on. If its place is taken, the page that is there stays.
    pub fn put(&mut self, path: &mut Path, tokens: &[u32; PAGE], page: &Arc<Page>) {
        self.numbers += 1;
        let (number, depth) = (self.numbers, path.depth);
        let new = || Kept { number, page: Arc::clone(page), used: 0, depth };
        let kept = self.pages.entry((path.place, *tokens)).or_insert_with(new);
        kept.used = path.began;
        *path = Path { place: Place::After(kept.number), depth: depth + 1, ..*path };
    }

    /// Pages kept.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Pages that nobody else holds.
    pub fn idle(&self) -> usize {
        self.pages.values().filter(|kept| kept.is_idle()).count()
    }

    /// Pages of the beginning of `tokens` that are here and that a running request holds.
    pub fn held(&self, owner: Owner, tokens: &[u32]) -> usize {
        let (mut place, mut held) = (Place::Start(owner), 0);
        for page in tokens.as_chunks::<PAGE>().0 {
            match self.pages.get(&(place, *page)) {
                Some(kept) if !kept.is_idle() => (place, held) = (Place::After(kept.number), held + 1),
                _ => break,
            }
        }
        held
    }

    /// Lets go of `count` pages that nobody else holds, or of all of them: first those of requests that are longest
    /// ago, of these the last ones, because a page is found through those before it.
    pub fn evict(&mut self, count: usize) {
        let idle = self.pages.iter().filter(|(_, kept)| kept.is_idle());
        let mut oldest: Vec<(u64, std::cmp::Reverse<usize>, Key)> =
            idle.map(|(key, kept)| (kept.used, std::cmp::Reverse(kept.depth), *key)).collect();
        oldest.sort_unstable_by_key(|(used, depth, _)| (*used, *depth));
        for (_, _, key) in oldest.into_iter().take(count) {
            self.pages.remove(&key);
        }
    }

    /// Lets go of everything.
    pub fn clear(&mut self) {
        self.pages.clear();
    }
}

impl Kept {
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.page) == 1
    }
}
