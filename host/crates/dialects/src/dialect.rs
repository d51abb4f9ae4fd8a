//! One dialect among the four: which module reads, writes and ends an answer.
//! Whoever serves a route or calls an upstream names a `Dialect` and needs no module's own types; errors have their
//! shape here, since they are the same for every route of a dialect.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::ask::{Ask, Refusal};
use crate::reply::{Envelope, Event, Frame, Piece, Reply};
use crate::sse::SseEvent;
use crate::{chat, completions, messages, responses, trouble};

/// A wire dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// OpenAI chat completions.
    #[default]
    Chat,
    /// OpenAI completions.
    Completions,
    /// Anthropic messages.
    Messages,
    /// OpenAI responses.
    Responses,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 4] = [Self::Chat, Self::Completions, Self::Messages, Self::Responses];

    /// The route, from the server's root.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
        }
    }

    /// The dialect whose shape errors have on this path; OpenAI's for whatever is not Anthropic's.
    pub fn of_path(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            return Self::Messages;
        }
        Self::ALL.into_iter().find(|dialect| dialect.path() == path).unwrap_or_default()
    }

    /// Reads a request's body.
    pub fn parse(self, body: &Map<String, Value>) -> Result<Ask, Refusal> {
        match self {
            Self::Chat => chat::parse(body),
            Self::Completions => completions::parse(body),
            Self::Messages => messages::parse(body),
            Self::Responses => responses::parse(body),
        }
    }

    /// Writes a request's body for an upstream; `same` says that `ask` came from this dialect's `parse`.
    pub fn write(self, ask: &Ask, model: &str, same: bool) -> Result<Value, Refusal> {
        match self {
            Self::Chat => chat::write(ask, model, same),
            Self::Completions => completions::write(ask, model, same),
            Self::Messages => messages::write(ask, model, same),
            Self::Responses => responses::write(ask, model, same),
        }
    }

    /// The writer of a streamed answer to `ask`.
    pub fn writer(self, ask: &Ask, envelope: Envelope) -> Writer {
        match self {
            Self::Chat => Writer::Chat(Box::new(chat::Writer::new(ask, envelope))),
            Self::Completions => Writer::Completions(Box::new(completions::Writer::new(ask, envelope))),
            Self::Messages => Writer::Messages(Box::new(messages::Writer::new(ask, envelope))),
            Self::Responses => Writer::Responses(Box::new(responses::Writer::new(ask, envelope))),
        }
    }

    /// The reader of an upstream's stream; `answer` as in `Mender::new`.
    pub fn reader(self, answer: &str) -> Reader {
        match self {
            Self::Chat => Reader::Chat(chat::Reader::of(answer)),
            Self::Completions => Reader::Completions(completions::Reader::new()),
            Self::Messages => Reader::Messages(messages::Reader::new()),
            Self::Responses => Reader::Responses(responses::Reader::new()),
        }
    }

    /// The events of an upstream's whole answer; the error is a sentence about the upstream.
    pub fn read_whole(self, body: &Value, answer: &str) -> Result<Vec<Event>, String> {
        match self {
            Self::Chat => chat::read_whole_of(body, answer),
            Self::Completions => completions::read_whole(body),
            Self::Messages => messages::read_whole(body),
            Self::Responses => responses::read_whole(body),
        }
    }

    /// A whole answer as one object.
    pub fn whole(self, ask: &Ask, envelope: &Envelope, reply: &Reply) -> Value {
        match self {
            Self::Chat => chat::whole(ask, envelope, reply),
            Self::Completions => completions::whole(ask, envelope, reply),
            Self::Messages => messages::whole(ask, envelope, reply),
            Self::Responses => responses::whole(ask, envelope, reply),
        }
    }

    /// Has the dialect words for all of it? If not, a sentence about the upstream says for what it has none.
    pub fn check_says(self, events: &[Event]) -> Result<(), String> {
        let pieces = events.iter().filter_map(|event| match event {
            Event::Delta { pieces, .. } => Some(pieces),
            _ => None,
        });
        let unsaid = pieces.flatten().find_map(|piece| match (piece, self) {
            (Piece::Foreign(kind), _) => Some(kind.as_str()),
            (Piece::CustomStart { .. }, Self::Messages | Self::Completions) => Some("a custom tool's call"),
            (Piece::CallStart { .. }, Self::Completions) => Some("a call"),
            _ => None,
        });
        match unsaid {
            None => Ok(()),
            Some(what) => Err(format!("it holds {what}, which the client's dialect has no word for")),
        }
    }

    /// What the dialect calls an error of this HTTP status.
    pub fn error_kind(self, status: u16) -> &'static str {
        match (self, status) {
            (_, 401) => "authentication_error",
            (_, 403) => "permission_error",
            (_, 404) => "not_found_error",
            (Self::Messages, 413) => "request_too_large",
            (_, 429) => "rate_limit_error",
            (Self::Messages, 503 | 529) => "overloaded_error",
            (Self::Messages, 504) => "timeout_error",
            (Self::Messages, 500..) => "api_error",
            (_, 500..) => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The sentence of an error in the words that clients of the dialect look for.
    pub fn error_message<'a>(self, code: &str, message: &'a str) -> Cow<'a, str> {
        trouble::message(self, code, message)
    }

    /// The body of an error. Anthropic's shape has no place for the parameter, which its message names.
    pub fn error_body(self, status: u16, code: &str, message: &str, param: Option<&str>) -> Value {
        let (kind, message) = (self.error_kind(status), self.error_message(code, message));
        match self {
            Self::Messages => json!({ "type": "error", "error": { "type": kind, "message": message, "code": code } }),
            _ => json!({ "error": { "message": message, "type": kind, "param": param, "code": code } }),
        }
    }
}

/// Writes one streamed answer.
#[derive(Debug)]
pub enum Writer {
    /// As chat completions.
    Chat(Box<chat::Writer>),
    /// As completions.
    Completions(Box<completions::Writer>),
    /// As messages.
    Messages(Box<messages::Writer>),
    /// As responses.
    Responses(Box<responses::Writer>),
}

impl Writer {
    /// The frames that may leave at once.
    pub fn push(&mut self, event: &Event) -> Vec<Frame> {
        match self {
            Self::Chat(writer) => writer.push(event),
            Self::Completions(writer) => writer.push(event),
            Self::Messages(writer) => writer.push(event),
            Self::Responses(writer) => writer.push(event),
        }
    }

    /// What may leave once the record is durable.
    pub fn close(&mut self) -> Vec<Frame> {
        match self {
            Self::Chat(writer) => writer.close(),
            Self::Completions(writer) => writer.close(),
            Self::Messages(writer) => writer.close(),
            Self::Responses(writer) => writer.close(),
        }
    }

    /// The end of an answer that failed; `kind` is the dialect's `error_kind`.
    pub fn fail(&mut self, code: &str, message: &str, kind: &str) -> Vec<Frame> {
        match self {
            Self::Chat(writer) => writer.fail(code, message, kind),
            Self::Completions(writer) => writer.fail(code, message, kind),
            Self::Messages(writer) => writer.fail(code, message, kind),
            Self::Responses(writer) => writer.fail(code, message, kind),
        }
    }
}

/// Reads one upstream's stream.
#[derive(Debug)]
pub enum Reader {
    /// Of chat completions.
    Chat(chat::Reader),
    /// Of completions.
    Completions(completions::Reader),
    /// Of messages.
    Messages(messages::Reader),
    /// Of responses.
    Responses(responses::Reader),
}

impl Reader {
    /// The events in one event of the stream; the error is a sentence about the upstream.
    pub fn push(&mut self, event: &SseEvent) -> Result<Vec<Event>, String> {
        match self {
            Self::Chat(reader) => reader.push(event),
            Self::Completions(reader) => reader.push(event),
            Self::Messages(reader) => reader.push(event),
            Self::Responses(reader) => reader.push(event),
        }
    }

    /// The end of the stream; an answer that was cut is an error.
    pub fn finish(self) -> Result<Vec<Event>, String> {
        match self {
            Self::Chat(reader) => reader.finish(),
            Self::Completions(reader) => reader.finish(),
            Self::Messages(reader) => reader.finish(),
            Self::Responses(reader) => reader.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_tells_its_dialect() {
        for dialect in Dialect::ALL {
            assert_eq!(Dialect::of_path(dialect.path()), dialect);
        }
        assert_eq!(Dialect::of_path("/v1/messages/count_tokens"), Dialect::Messages);
        assert_eq!(Dialect::of_path("/v1/models"), Dialect::Chat);
    }

    #[test]
    fn errors_have_the_dialects_shape() {
        let openai = Dialect::Responses.error_body(400, "c", "m", Some("p"));
        assert_eq!(
            openai,
            json!({ "error": { "message": "m", "type": "invalid_request_error", "param": "p", "code": "c" } })
        );
        let anthropic = Dialect::Messages.error_body(413, "c", "m", Some("p"));
        assert_eq!(
            anthropic,
            json!({ "type": "error", "error": { "type": "request_too_large", "message": "m", "code": "c" } })
        );
        assert_eq!(Dialect::Chat.error_kind(502), "server_error");
        assert_eq!(Dialect::Messages.error_kind(502), "api_error");
    }

    #[test]
    fn names_are_those_of_the_configuration() {
        for (name, dialect) in ["chat", "completions", "messages", "responses"].into_iter().zip(Dialect::ALL) {
            assert_eq!(serde_json::to_value(dialect).expect("text"), json!(name));
        }
    }
}
