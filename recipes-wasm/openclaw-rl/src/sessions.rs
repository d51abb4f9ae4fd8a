//! Which request answers which turn. A session is named by the client, or recognised: a request continues the session
//! whose last request it strictly extends, first by the recorded answer and then by what came next. Pure; the state of
//! the recipe keeps the open sessions as bytes.

use reef_recipe::Exchange;
use reef_recipe::prelude::*;

/// Bytes of what came next that are kept for the judge.
const NEXT_BYTES_MAX: usize = 2_048;
/// Tag by which clients name a session.
const SESSION_TAG: &str = "session";
/// Bytes of a stored session beside its receipt: four numbers of 8 bytes and two of 4.
const STORED_NUMBERS: usize = 40;

/// An open session: its last turn, by digests.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Receipt of the last turn.
    pub receipt: String,
    /// When it was recorded, milliseconds since the Unix epoch.
    pub at_ms: f64,
    /// Digest of the name that the client gave; 0 = none.
    name: u64,
    /// Messages of the request.
    messages: u32,
    /// Digest of those messages.
    request: u64,
    /// Digest of the answer.
    answer: u64,
}

/// What the next request of a session holds after the recorded answer: the person's or the tools' reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Next {
    /// Did a person say it? Else tools did.
    pub from_user: bool,
    /// The text, cut to 2 KiB.
    pub text: String,
}

/// A turn with what came next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// Receipt of the turn.
    pub receipt: String,
    /// What came next.
    pub next: Next,
}

/// The open sessions, longest silent first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sessions {
    open: Vec<Session>,
}

impl Sessions {
    /// The open sessions.
    pub fn open(&self) -> &[Session] {
        &self.open
    }

    /// Closes sessions that were silent for over `ttl_ms`.
    pub fn expire(&mut self, now_ms: f64, ttl_ms: f64) {
        self.open.retain(|session| session.at_ms + ttl_ms >= now_ms);
    }

    /// Takes a main turn in: it becomes the last one of its session, old or new. The turn before it is completed if the
    /// request goes on from its recorded answer. Beyond `open_max` the session that was silent for longest is closed.
    pub fn follow(&mut self, exchange: &Exchange, open_max: usize) -> Option<Completed> {
        let turn = Turn::of(exchange);
        let before = turn.place(&self.open).map(|index| self.open.remove(index));
        let completed = before.and_then(|session| {
            let next = turn.after(&session)?;
            Some(Completed { receipt: session.receipt, next })
        });
        self.open.push(turn.session());
        let surplus = self.open.len().saturating_sub(open_max);
        self.open.drain(..surplus);
        completed
    }

    /// Little-endian numbers and the receipt, session after session.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.open.len() * (STORED_NUMBERS + 40));
        for session in &self.open {
            bytes.extend(session.at_ms.to_le_bytes());
            [session.name, session.request, session.answer]
                .iter()
                .for_each(|digest| bytes.extend(digest.to_le_bytes()));
            bytes.extend(session.messages.to_le_bytes());
            bytes.extend((session.receipt.len() as u32).to_le_bytes());
            bytes.extend(session.receipt.as_bytes());
        }
        bytes
    }

    /// What [`Sessions::to_bytes`] wrote; `None` if the bytes are anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (mut open, mut rest) = (Vec::new(), bytes);
        while !rest.is_empty() {
            let (at_ms, after) = rest.split_first_chunk()?;
            let (name, after) = after.split_first_chunk()?;
            let (request, after) = after.split_first_chunk()?;
            let (answer, after) = after.split_first_chunk()?;
            let (messages, after) = after.split_first_chunk()?;
            let (length, after) = after.split_first_chunk()?;
            let (receipt, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            open.push(Session {
                receipt: core::str::from_utf8(receipt).ok()?.to_owned(),
                at_ms: f64::from_le_bytes(*at_ms),
                name: u64::from_le_bytes(*name),
                messages: u32::from_le_bytes(*messages),
                request: u64::from_le_bytes(*request),
                answer: u64::from_le_bytes(*answer),
            });
            rest = after;
        }
        Some(Self { open })
    }
}

/// A main turn with the digests that it is matched by.
struct Turn<'a> {
    exchange: &'a Exchange,
    name: u64,
    /// Digest of the first k messages, at k.
    prefixes: Vec<u64>,
}

impl<'a> Turn<'a> {
    fn of(exchange: &'a Exchange) -> Self {
        let tagged = || exchange.tags.iter().find(|(tag, _)| tag == SESSION_TAG).map(|(_, value)| value.as_str());
        let name = exchange.session.as_deref().or_else(tagged);
        let mut digest = Digest::new();
        let mut prefixes = vec![digest.0];
        for message in &exchange.messages {
            digest.add(&message.role);
            // Clients trim what they send back.
            digest.add(message.content.trim());
            prefixes.push(digest.0);
        }
        Self { exchange, name: name.map_or(0, digest_of), prefixes }
    }

    /// The session that the turn belongs to: the one of its name; without a name, the one that it repeats, or else the
    /// longest that it continues.
    fn place(&self, open: &[Session]) -> Option<usize> {
        if self.name != 0 {
            return open.iter().position(|session| session.name == self.name);
        }
        let unnamed = || open.iter().enumerate().filter(|(_, session)| session.name == 0);
        let repeated = unnamed().find(|(_, session)| self.repeats(session));
        let continued = || unnamed().filter(|(_, session)| self.after(session).is_some());
        repeated.or_else(|| continued().max_by_key(|(_, session)| session.messages)).map(|(index, _)| index)
    }

    fn repeats(&self, session: &Session) -> bool {
        session.messages as usize == self.exchange.messages.len() && self.prefixes.last() == Some(&session.request)
    }

    /// What came after the session's recorded answer, if the request strictly extends it.
    fn after(&self, session: &Session) -> Option<Next> {
        let length = session.messages as usize;
        let (answer, next) = self.exchange.messages.get(length..)?.split_first()?;
        let extends = self.prefixes.get(length) == Some(&session.request)
            && answer.role == "assistant"
            && digest_of(answer.content.trim()) == session.answer;
        if next.is_empty() || !extends {
            return None;
        }
        let texts: Vec<&str> = next.iter().map(|message| message.content.as_str()).collect();
        let from_user = next.iter().any(|message| message.role == "user");
        Some(Next { from_user, text: cut(&texts.join("\n"), NEXT_BYTES_MAX).to_owned() })
    }

    fn session(&self) -> Session {
        Session {
            receipt: self.exchange.id.clone(),
            at_ms: self.exchange.at_ms,
            name: self.name,
            messages: self.exchange.messages.len() as u32,
            request: self.prefixes.last().copied().unwrap_or(0),
            answer: digest_of(self.exchange.answer.trim()),
        }
    }
}

impl Next {
    /// One byte for who said it, then the text.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&[u8::from(self.from_user)], self.text.as_bytes()].concat()
    }

    /// What [`Next::to_bytes`] wrote; `None` if the bytes are anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (from_user, text) = bytes.split_first()?;
        Some(Self { from_user: *from_user == 1, text: core::str::from_utf8(text).ok()?.to_owned() })
    }
}

/// The start of a text, of at most so many bytes and whole characters.
pub fn cut(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or(text)
}

/// FNV-1a over texts with their lengths (Fowler, Noll, Vo). 64 bits: what collides are turns of one scenario, and the
/// price is one wrong pair for the judge to look at.
struct Digest(u64);

impl Digest {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, text: &str) {
        for byte in text.bytes().chain((text.len() as u64).to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Never 0, which stands for no text.
fn digest_of(text: &str) -> u64 {
    let mut digest = Digest::new();
    digest.add(text);
    digest.0.max(1)
}
