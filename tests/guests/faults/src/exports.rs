//! The optional exports, which behave unless told otherwise: `migrate` by a state key, `ingest` by a tag of an
//! exchange and `transform` by a tag of the request, each named `fault`. No configuration is needed for them.

use reef_recipe::prelude::*;
use reef_recipe::{Exchange, Judgement, Live, Migration, Request, Requests, StateEntry};

use crate::Faults;
use crate::fault::{FORGED, Fault};

/// State key and tag that name a fault.
const FAULT: &str = "fault";
/// Tag of requests whose answers are judged.
const JUDGE: &str = "judge";

fn tagged(tags: &[(String, String)]) -> Result<Option<Fault>> {
    match tags.iter().find(|(name, _)| name == FAULT) {
        Some((_, fault)) => Fault::named(fault),
        None => Ok(None),
    }
}

/// Keeps every entry and adds `migrated_from`.
impl Migration for Faults {
    fn migrate(from_version: &str, mut entries: Vec<StateEntry>) -> Result<Vec<StateEntry>> {
        let told = entries.iter().find(|entry| entry.key == FAULT).map(|entry| String::from_utf8_lossy(&entry.value));
        let fault = told.map_or(Ok(None), |name| Fault::named(&name))?;
        match fault {
            // The same key twice, and one that is too long.
            Some(Fault::Lie) => {
                entries.extend(entries.first().cloned());
                entries.push(StateEntry::new("k".repeat(1_000), &FORGED));
            }
            Some(other) => other.happen(&Samples::default())?,
            None => {}
        }
        entries.push(StateEntry::new("migrated_from", &from_version.as_bytes().to_vec()));
        Ok(entries)
    }
}

/// Scores answers whose request has the tag `judge` with their tokens per prompt token, and counts all exchanges in
/// the state.
impl Live for Faults {
    fn ingest(_: &Context, exchanges: &[Exchange]) -> Result<Vec<Judgement>> {
        let mut judgements = Vec::new();
        for exchange in exchanges {
            let score = f64::from(exchange.answer_tokens) / f64::from(exchange.prompt_tokens.max(1));
            match tagged(&exchange.tags)? {
                Some(Fault::Lie) => judgements.push(Judgement::new("no-such-record", score)),
                Some(Fault::Nan) => judgements.push(Judgement::new(exchange.id.as_str(), f64::NAN)),
                Some(other) => other.happen(&Samples::default())?,
                None if exchange.tags.iter().any(|(name, _)| name == JUDGE) => {
                    judgements.push(Judgement::new(exchange.id.as_str(), score));
                }
                None => {}
            }
        }
        let seen: u32 = state::get("ingested")?.unwrap_or(0);
        state::set("ingested", &(seen + exchanges.len() as u32))?;
        Ok(judgements)
    }
}

/// Changes nothing, unless a tag `say` holds what the last message is to end with.
impl Requests for Faults {
    fn transform(request: &Request) -> Option<Vec<Message>> {
        match tagged(&request.tags) {
            Ok(Some(Fault::Lie)) => return Some(vec![Message { role: "emperor".to_owned(), content: String::new() }]),
            Ok(Some(other)) => other.happen(&Samples::default()).ok()?,
            Ok(None) | Err(_) => {}
        }
        let (_, said) = request.tags.iter().find(|(name, _)| name == "say")?;
        let mut messages = request.messages.clone();
        messages.last_mut()?.content.push_str(said);
        Some(messages)
    }
}
