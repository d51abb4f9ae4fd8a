//! The `reef` object of an answer: which record it is, which release answered, and the ids of its tokens for a client that
//! asked for them in a dialect without a place of its own for ids.

use serde_json::{Value, json};

use crate::ask::Ask;
use crate::openai::ids_of;
use crate::reply::{Envelope, Event, Reply, TokenInfo};

/// The record and the release.
pub(crate) fn reef(envelope: &Envelope) -> Value {
    json!({ "agent_record_id": envelope.receipt, "release_id": envelope.release })
}

/// The same, with the ids of the first choice if `ask` wants them.
pub(crate) fn reef_of(ask: &Ask, envelope: &Envelope, reply: &Reply) -> Value {
    let mut ids = Ids::new(ask);
    ids.prompt(reply.prompt.as_deref());
    ids.tokens(reply.choices.first().map_or(&[], |choice| &choice.tokens));
    ids.reef(envelope)
}

/// Ids as they come.
#[derive(Debug)]
pub(crate) struct Ids {
    wanted: bool,
    prompt: Vec<u32>,
    output: Vec<Value>,
}

impl Ids {
    pub fn new(ask: &Ask) -> Self {
        Self { wanted: ask.return_token_ids, prompt: Vec::new(), output: Vec::new() }
    }

    /// Keeps what an event of the first choice tells.
    pub fn push(&mut self, event: &Event) {
        match event {
            Event::Started { prompt } => self.prompt(prompt.as_deref()),
            Event::Delta { choice: 0, tokens, .. } => self.tokens(tokens),
            Event::Delta { .. } | Event::Finished { .. } | Event::CacheWrites(_) | Event::Usage(_) => {}
        }
    }

    /// The object at the end of the answer.
    pub fn reef(&self, envelope: &Envelope) -> Value {
        let mut reef = reef(envelope);
        if self.wanted {
            reef["prompt_token_ids"] = json!(self.prompt);
            reef["token_ids"] = json!(self.output);
        }
        reef
    }

    fn prompt(&mut self, ids: Option<&[u32]>) {
        if self.wanted {
            self.prompt.extend(ids.unwrap_or_default());
        }
    }

    fn tokens(&mut self, tokens: &[TokenInfo]) {
        if let (true, Value::Array(ids)) = (self.wanted, ids_of(tokens)) {
            self.output.extend(ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::{envelope, reply};
    use crate::dialect::Dialect;
    use crate::reply::{FrameData, Piece, Stop};

    fn token(id: u32) -> TokenInfo {
        let text = "x".to_owned();
        TokenInfo {
            id: Some(id),
            text: text.clone(),
            bytes: text.into_bytes(),
            logprob: 0.0,
            top: vec![],
            recorded: vec![],
        }
    }

    fn events() -> Vec<Event> {
        let delta = |choice, tokens: Vec<TokenInfo>| {
            let pieces = vec![Piece::Text("x".repeat(tokens.len()))];
            Event::Delta { choice, pieces, tokens }
        };
        let started = Event::Started { prompt: Some(vec![1, 2]) };
        let finished = Event::Finished { choice: 0, stop: Stop::End };
        vec![started, delta(0, vec![token(7), token(8)]), delta(1, vec![token(5)]), delta(0, vec![token(9)]), finished]
    }

    #[test]
    fn ids_stand_beside_the_receipt_for_those_who_ask_streamed_or_not() {
        for (dialect, more) in [
            (Dialect::Messages, json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }] })),
            (Dialect::Responses, json!({ "input": "hi" })),
        ] {
            for (wanted, ids) in [(true, json!([[1, 2], [7, 8, 9]])), (false, json!([null, null]))] {
                let mut body = more.as_object().expect("an object").clone();
                body.extend([("model".to_owned(), json!("m")), ("return_token_ids".to_owned(), json!(wanted))]);
                let ask = dialect.parse(&body).expect("parsed");
                let seen = |reef: &Value| json!([reef["prompt_token_ids"], reef["token_ids"]]);
                let whole = dialect.whole(&ask, &envelope(), &reply(&events()));
                assert_eq!(seen(&whole["reef"]), ids, "{dialect:?}");
                let mut writer = dialect.writer(&ask, envelope());
                let mut frames: Vec<_> = events().iter().flat_map(|event| writer.push(event)).collect();
                frames.extend(writer.close());
                let Some(FrameData::Json(last)) = frames.last().map(|frame| &frame.data) else { panic!("no end") };
                assert_eq!(seen(&last["reef"]), ids, "{dialect:?}");
            }
        }
    }
}
