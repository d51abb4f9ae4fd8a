//! What a client is told of an answer: written in its dialect, or passed on as an upstream of the same dialect sent it.
//! The exchange feeds it what it hears. Everything terminal comes from `close` alone.

use reef_dialects::{Ask, Dialect, Envelope, Frame, Relay, Reply, Writer, relay};
use serde_json::Value;

use crate::http::error::ApiError;
use crate::provider::{Heard, ProviderError};

/// See the module.
#[derive(Debug)]
pub enum Voice {
    /// Written here.
    Written(Writer),
    /// Passed on.
    Relayed(Box<Relayed>),
}

/// An answer that is passed on.
#[derive(Debug)]
pub struct Relayed {
    relay: Relay,
    /// A whole answer, as the upstream sent it.
    object: Option<Value>,
    /// Writes the stream of an upstream that sent an object although a stream was asked for; none once frames came.
    instead: Option<Writer>,
}

impl Voice {
    /// The voice for an answer to `ask`; `relays`: it comes in the client's own dialect.
    pub fn new(dialect: Dialect, ask: &Ask, envelope: &Envelope, relays: bool) -> Self {
        let writer = dialect.writer(ask, envelope.clone());
        if relays {
            let relay = Relay::new(dialect, ask, envelope.clone());
            return Self::Relayed(Box::new(Relayed { relay, object: None, instead: Some(writer) }));
        }
        Self::Written(writer)
    }

    /// Is there anything in it that the client's dialect has no word for? What is passed on needs none.
    pub fn check(&self, heard: &Heard, dialect: Dialect) -> Result<(), ProviderError> {
        let relayed = matches!(self, Self::Relayed(_)) && heard.raw.is_some();
        if relayed {
            return Ok(());
        }
        dialect.check_says(&heard.events).map_err(|sentence| {
            ProviderError::Broken(format!("the answer of this model's provider cannot be told: {sentence}"))
        })
    }

    /// The text of a stream that may leave now.
    pub fn push(&mut self, heard: Heard, stream: bool) -> String {
        let Self::Relayed(relayed) = self else { return self.write(&heard, stream) };
        match (heard.raw, stream) {
            (Some(raw), false) => {
                relayed.object = serde_json::from_str(&raw.data).ok();
                String::new()
            }
            (Some(raw), true) => {
                relayed.instead = None;
                relayed.relay.push(raw, &heard.events).concat()
            }
            (None, false) => String::new(),
            (None, true) => match relayed.instead.take() {
                None => String::new(),
                Some(writer) => {
                    *self = Self::Written(writer);
                    self.write(&Heard { raw: None, ..heard }, stream)
                }
            },
        }
    }

    fn write(&mut self, heard: &Heard, stream: bool) -> String {
        match self {
            Self::Written(writer) if stream => text(heard.events.iter().flat_map(|event| writer.push(event))),
            Self::Written(_) | Self::Relayed(_) => String::new(),
        }
    }

    /// The end of a stream, once the record is durable.
    pub fn close(&mut self) -> String {
        match self {
            Self::Written(writer) => text(writer.close()),
            Self::Relayed(relayed) => relayed.relay.close().concat(),
        }
    }

    /// The end of a stream that failed.
    pub fn fail(&mut self, error: &ApiError, dialect: Dialect) -> String {
        let kind = dialect.error_kind(error.status.as_u16());
        let message = dialect.error_message(&error.code, &error.message);
        match self {
            Self::Written(writer) => text(writer.fail(&error.code, &message, kind)),
            Self::Relayed(relayed) => relayed.relay.fail(&error.code, &message, kind).concat(),
        }
    }

    /// The whole answer.
    pub fn whole(&mut self, dialect: Dialect, (ask, envelope): (&Ask, &Envelope), reply: &Reply) -> Value {
        let told = match self {
            Self::Relayed(relayed) => match relayed.object.take() {
                Some(object) => Some(relay::whole(object, envelope)),
                None => relayed.relay.whole(),
            },
            Self::Written(_) => None,
        };
        match told {
            Some(told) => told,
            None => dialect.whole(ask, envelope, reply),
        }
    }
}

fn text(frames: impl IntoIterator<Item = Frame>) -> String {
    frames.into_iter().map(|frame| frame.to_sse()).collect()
}

#[cfg(test)]
mod tests {
    use reef_dialects::{Event, Input, Piece, SseEvent, Stop};

    use super::*;

    fn voice() -> Voice {
        let envelope =
            Envelope { receipt: "r".to_owned(), release: "l".to_owned(), model: "m".to_owned(), created_s: 1 };
        let ask = Ask { stream: true, ..Ask::new("m", Input::Text("x".to_owned())) };
        Voice::new(Dialect::Chat, &ask, &envelope, true)
    }

    fn said() -> Vec<Event> {
        let pieces = vec![Piece::Text("hi".to_owned())];
        let delta = Event::Delta { choice: 0, pieces, tokens: Vec::new() };
        vec![Event::Started { prompt: None }, delta, Event::Finished { choice: 0, stop: Stop::End }]
    }

    #[test]
    fn an_object_instead_of_a_stream_is_written_as_one() {
        let mut voice = voice();
        let told = voice.push(Heard { events: said(), raw: None }, true) + &voice.close();
        assert!(told.contains("\"content\":\"hi\"") && told.contains("\"finish_reason\":\"stop\""), "{told}");
        assert!(told.contains("agent_record_id") && told.ends_with("data: [DONE]\n\n"), "{told}");
    }

    #[test]
    fn what_the_clients_dialect_cannot_say_is_an_error_unless_it_is_passed_on() {
        let pieces = vec![Piece::Foreign("server_tool_use".to_owned())];
        let heard = |raw: bool| Heard {
            events: vec![Event::Delta { choice: 0, pieces: pieces.clone(), tokens: Vec::new() }],
            raw: raw.then(|| SseEvent { event: None, data: "{}".to_owned() }),
        };
        let told = voice().check(&heard(false), Dialect::Chat).expect_err("no word for it");
        assert!(told.status() == 502 && told.to_string().contains("server_tool_use"), "{told}");
        assert_eq!(voice().check(&heard(true), Dialect::Chat), Ok(()));
    }

    #[test]
    fn the_record_of_what_was_passed_on_is_in_its_own_words() {
        let mut voice = voice();
        let end = r#"{"id":"theirs","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"weird"}]}"#;
        let raw = SseEvent { event: None, data: end.to_owned() };
        voice.push(Heard { events: said(), raw: Some(raw) }, true);
        let envelope =
            Envelope { receipt: "r".to_owned(), release: "l".to_owned(), model: "m".to_owned(), created_s: 1 };
        let ask = Ask::new("m", Input::Text("x".to_owned()));
        let record = voice.whole(Dialect::Chat, (&ask, &envelope), &Reply::default());
        assert_eq!((&record["id"], &record["choices"][0]["finish_reason"]), (&"theirs".into(), &"weird".into()));
        assert_eq!(record["reef"]["agent_record_id"], "r");
    }

    #[test]
    fn frames_are_passed_on_with_what_nobody_knows() {
        let mut voice = voice();
        let raw = SseEvent { event: None, data: "{\"choices\":[],\"odd\":1}".to_owned() };
        let told = voice.push(Heard { events: Vec::new(), raw: Some(raw) }, true);
        assert_eq!(told, "data: {\"choices\":[],\"odd\":1}\n\n");
        assert_eq!(voice.push(Heard { events: said(), raw: None }, true), "");
    }
}
