//! What a provider answers, in no dialect's words: events of a stream, and the whole that they add up to.
//! Providers emit `Event`s, each dialect's `Writer` turns them into `Frame`s; `Reply::push` is the one place
//! where a stream becomes a whole answer.

use serde_json::Value;

use crate::ask::Part;
use crate::custom;

/// What is the same in every frame of one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The record's id; the answer's id is made of it.
    pub receipt: String,
    /// The release that answers.
    pub release: String,
    /// The model's name as the client sent it.
    pub model: String,
    /// Arrival, seconds since the epoch.
    pub created_s: i64,
}

/// One server-sent event: its name where the dialect has names, and its data.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// `event:`; `None` in OpenAI's chat dialect.
    pub event: Option<&'static str>,
    /// `data:`.
    pub data: FrameData,
}

/// Data of a frame.
#[derive(Debug, Clone, PartialEq)]
pub enum FrameData {
    /// JSON.
    Json(Value),
    /// The literal `[DONE]`.
    Done,
}

/// A step of an answer. Order: `Started` once, deltas of each choice, one `Finished` per choice, `Usage` once.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The provider has the prompt.
    Started {
        /// Ids of the prompt, where the provider is the embedded engine.
        prompt: Option<Vec<u32>>,
    },
    /// More of one choice.
    Delta {
        /// Which, from 0.
        choice: u32,
        /// What was added.
        pieces: Vec<Piece>,
        /// The tokens that this is made of, where they are known; they may be more than the pieces show.
        tokens: Vec<TokenInfo>,
    },
    /// One choice has ended.
    Finished {
        /// Which.
        choice: u32,
        /// Why.
        stop: Stop,
    },
    /// Tokens of the prompt that the provider wrote into its cache; before `Usage`, and only where there are any.
    CacheWrites(u64),
    /// What it cost.
    Usage(Usage),
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text.
    Text(String),
    /// Reasoning.
    Reasoning(String),
    /// Ends the current reasoning with what the provider wants back.
    Signature(String),
    /// A sentence instead of an answer.
    Refusal(String),
    /// A call begins. Calls of a choice are numbered from 0 in order of their start; several may be open.
    CallStart {
        /// Its number.
        call: usize,
        /// Its id.
        id: String,
        /// The function.
        name: String,
    },
    /// A call of a custom tool begins: it is numbered with the others, and its input, which is any text, comes as arguments.
    CustomStart {
        /// Its number.
        call: usize,
        /// Its id.
        id: String,
        /// The tool.
        name: String,
    },
    /// Something that only the provider's own dialect has a word for; this is its type there.
    Foreign(String),
    /// More of a call's arguments: JSON text, cut anywhere.
    CallArguments {
        /// Its number.
        call: usize,
        /// The text.
        text: String,
    },
}

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenInfo {
    /// Its id, where the provider tells it.
    pub id: Option<u32>,
    /// Its text; U+FFFD for a part of a character.
    pub text: String,
    /// Its exact bytes.
    pub bytes: Vec<u8>,
    /// Natural-log probability at the sampling temperature.
    pub logprob: f32,
    /// Alternatives, best first: text, bytes, log-prob.
    pub top: Vec<(String, Vec<u8>, f32)>,
    /// Ids and log-probs of the alternatives that are kept with the record, best first; no dialect shows them.
    pub recorded: Vec<(u32, f32)>,
}

/// Why a choice ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The model ended it.
    End,
    /// This stop string did.
    Sequence(String),
    /// The token limit or the context.
    Length,
    /// It waits for the results of its calls.
    Calls,
    /// A filter of the provider.
    Filtered,
    /// The client went away.
    Cancelled,
}

/// Tokens of an exchange; those written into a cache are told by `Event::CacheWrites`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Of the prompt, cached ones included.
    pub input: u64,
    /// Of these, found in a cache.
    pub cached: u64,
    /// Of all choices, reasoning included.
    pub output: u64,
    /// Of these, reasoning.
    pub reasoning: u64,
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reply {
    /// Ids of the prompt.
    pub prompt: Option<Vec<u32>>,
    /// The choices, by number.
    pub choices: Vec<Choice>,
    /// What it cost; none = nobody said.
    pub usage: Option<Usage>,
    /// Tokens of the prompt that were written into a cache.
    pub cache_writes: u64,
}

/// One choice.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Choice {
    /// What was said: text, reasoning and calls in order of their start; neighbours of one kind are one part.
    pub parts: Vec<Part>,
    /// A sentence instead of an answer.
    pub refusal: Option<String>,
    /// Its tokens.
    pub tokens: Vec<TokenInfo>,
    /// Why it ended; `None` if it did not.
    pub stop: Option<Stop>,
}

impl Frame {
    /// A frame without a name.
    pub(crate) fn json(value: Value) -> Self {
        Self { event: None, data: FrameData::Json(value) }
    }

    /// The event's bytes: JSON escapes every line end, so data is always one line.
    pub fn to_sse(&self) -> String {
        let name = self.event.map(|event| format!("event: {event}\n")).unwrap_or_default();
        match &self.data {
            FrameData::Json(value) => format!("{name}data: {value}\n\n"),
            FrameData::Done => format!("{name}data: [DONE]\n\n"),
        }
    }
}

impl Reply {
    /// Adds an event. How an answer was cut into events makes no difference.
    pub fn push(&mut self, event: &Event) {
        match event {
            Event::Started { prompt } => self.prompt.clone_from(prompt),
            Event::Delta { choice, pieces, tokens } => {
                let choice = self.choice(*choice);
                pieces.iter().for_each(|piece| choice.push(piece));
                choice.tokens.extend_from_slice(tokens);
            }
            Event::Finished { choice, stop } => self.choice(*choice).stop = Some(stop.clone()),
            Event::CacheWrites(tokens) => self.cache_writes = *tokens,
            Event::Usage(usage) => self.usage = Some(*usage),
        }
    }

    fn choice(&mut self, number: u32) -> &mut Choice {
        let number = number as usize;
        if self.choices.len() <= number {
            self.choices.resize(number + 1, Choice::default());
        }
        &mut self.choices[number]
    }
}

impl Choice {
    fn push(&mut self, piece: &Piece) {
        match piece {
            Piece::Text(more) if more.is_empty() => {}
            Piece::Text(more) => match self.parts.last_mut() {
                Some(Part::Text(text)) => text.push_str(more),
                _ => self.parts.push(Part::Text(more.clone())),
            },
            Piece::Reasoning(more) if more.is_empty() => {}
            Piece::Reasoning(more) => match self.parts.last_mut() {
                Some(Part::Reasoning { text, signature: None }) => text.push_str(more),
                _ => self.parts.push(Part::Reasoning { text: more.clone(), signature: None }),
            },
            Piece::Signature(sign) => match self.parts.last_mut() {
                Some(Part::Reasoning { signature: signature @ None, .. }) => *signature = Some(sign.clone()),
                _ => self.parts.push(Part::Reasoning { text: String::new(), signature: Some(sign.clone()) }),
            },
            Piece::Refusal(more) if more.is_empty() => {}
            Piece::Refusal(more) => self.refusal.get_or_insert_default().push_str(more),
            Piece::CallStart { id, name, .. } => {
                self.parts.push(Part::Call { id: id.clone(), name: name.clone(), arguments: String::new() });
            }
            Piece::CustomStart { id, name, .. } => self.parts.push(custom::call(id, name, "")),
            Piece::Foreign(_) => {}
            Piece::CallArguments { call, text } => {
                if let Some(arguments) = self.arguments(*call) {
                    arguments.push_str(text);
                }
            }
        }
    }

    /// Arguments of the call of this number; none if it never began.
    fn arguments(&mut self, call: usize) -> Option<&mut String> {
        let mut calls = self.parts.iter_mut().filter_map(|part| match part {
            Part::Call { arguments, .. } => Some(arguments),
            Part::Other { kind, value } if kind == custom::CALL => custom::input(value),
            _ => None,
        });
        calls.nth(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn delta(pieces: Vec<Piece>) -> Event {
        Event::Delta { choice: 0, pieces, tokens: Vec::new() }
    }

    fn reply(events: &[Event]) -> Reply {
        let mut reply = Reply::default();
        events.iter().for_each(|event| reply.push(event));
        reply
    }

    fn start(call: usize) -> Piece {
        Piece::CallStart { call, id: format!("c{call}"), name: "f".to_owned() }
    }

    fn arguments(call: usize, text: &str) -> Piece {
        Piece::CallArguments { call, text: text.to_owned() }
    }

    #[test]
    fn neighbours_of_one_kind_are_one_part_and_calls_keep_the_order_of_their_start() {
        let text = |text: &str| Piece::Text(text.to_owned());
        let pieces = vec![
            Piece::Reasoning("h".to_owned()),
            Piece::Reasoning("m".to_owned()),
            Piece::Signature("s".to_owned()),
            Piece::Reasoning("again".to_owned()),
            text("a"),
            text(""),
            start(0),
            start(1),
            arguments(1, "{"),
            arguments(0, "[]"),
            text("b"),
            arguments(1, "}"),
            text("c"),
            arguments(7, "nothing"),
        ];
        let call = |id: &str, arguments: &str| Part::Call {
            id: id.to_owned(),
            name: "f".to_owned(),
            arguments: arguments.to_owned(),
        };
        let expected = vec![
            Part::Reasoning { text: "hm".to_owned(), signature: Some("s".to_owned()) },
            Part::Reasoning { text: "again".to_owned(), signature: None },
            Part::Text("a".to_owned()),
            call("c0", "[]"),
            call("c1", "{}"),
            Part::Text("bc".to_owned()),
        ];
        let single: Vec<Event> = pieces.iter().map(|piece| delta(vec![piece.clone()])).collect();
        assert_eq!(reply(&[delta(pieces)]).choices[0].parts, expected);
        assert_eq!(reply(&single).choices[0].parts, expected);
    }

    #[test]
    fn choices_are_found_by_number() {
        let finished = |choice, stop| Event::Finished { choice, stop };
        let whole = reply(&[finished(1, Stop::Length), finished(0, Stop::End)]);
        assert_eq!(
            whole.choices.iter().map(|c| c.stop.clone()).collect::<Vec<_>>(),
            [Some(Stop::End), Some(Stop::Length)]
        );
    }

    #[test]
    fn frames_are_one_line_of_data() {
        let frame = Frame { event: Some("a"), data: FrameData::Json(json!({ "t": "x\ny\u{2028}" })) };
        assert_eq!(frame.to_sse(), "event: a\ndata: {\"t\":\"x\\ny\u{2028}\"}\n\n");
        assert_eq!(Frame { event: None, data: FrameData::Done }.to_sse(), "data: [DONE]\n\n");
    }
}
