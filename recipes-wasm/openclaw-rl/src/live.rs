//! Live exchanges: main turns become samples, and a turn that was answered is remembered with what came next. The
//! judge is asked later, in the step: there its calls are budgeted and recorded.

use reef_recipe::prelude::*;
use reef_recipe::{Exchange, Judgement};

use crate::sessions::{Completed, Next, Sessions};
use crate::settings::{OPEN_SESSIONS, SESSION_TTL_S};

/// State key: the open sessions.
const SESSIONS: &str = "sessions";
/// First part of the state key of what came after a turn; the receipt of the turn follows.
const NEXT: &str = "next/";
/// Turns that wait with what came next. With their texts they fill half of the state's mebibyte.
const WAITING_MAX: usize = 256;

/// The open sessions as stored.
///
/// # Errors
/// The host's refusal, or bytes of another version.
pub(crate) fn open_sessions() -> Result<Sessions> {
    let Some(bytes) = state::get::<Vec<u8>>(SESSIONS)? else { return Ok(Sessions::default()) };
    Sessions::from_bytes(&bytes)
        .ok_or_else(|| Failure::other("state sessions: its bytes are no sessions of this version; delete the key"))
}

/// Receipts of the turns that wait with what came next, sorted.
pub(crate) fn completed() -> Result<Vec<String>> {
    let keys = state::keys()?;
    Ok(keys.iter().filter_map(|key| key.strip_prefix(NEXT)).map(ToOwned::to_owned).collect())
}

/// What came after a turn, which is forgotten.
pub(crate) fn take_next(receipt: &str) -> Result<Option<Next>> {
    let key = format!("{NEXT}{receipt}");
    let next = state::get::<Vec<u8>>(&key)?.and_then(|bytes| Next::from_bytes(&bytes));
    state::delete(&key)?;
    Ok(next)
}

/// Follows the sessions. Every main turn gets a report, so that it becomes a sample; its score of 0 is no judgement.
/// A request without tools is a side call and gets none.
pub(crate) fn ingest(exchanges: &[Exchange]) -> Result<Vec<Judgement>> {
    let (ttl_ms, open_max) = (SESSION_TTL_S.get()? * 1e3, OPEN_SESSIONS.get()? as usize);
    let (mut sessions, mut turns) = (open_sessions()?, Vec::new());
    for exchange in exchanges.iter().filter(|exchange| exchange.tools) {
        sessions.expire(exchange.at_ms, ttl_ms);
        if let Some(Completed { receipt, next }) = sessions.follow(exchange, open_max) {
            state::set(&format!("{NEXT}{receipt}"), &next.to_bytes())?;
        }
        let metadata = "{\"judged\":false}".to_owned();
        turns.push(Judgement { metadata, ..Judgement::new(exchange.id.as_str(), 0.0) });
    }
    state::set(SESSIONS, &sessions.to_bytes())?;
    // Receipts count up in time, so that the first are the oldest.
    let waiting = completed()?;
    for receipt in waiting.iter().take(waiting.len().saturating_sub(WAITING_MAX)) {
        state::delete(&format!("{NEXT}{receipt}"))?;
    }
    Ok(turns)
}
