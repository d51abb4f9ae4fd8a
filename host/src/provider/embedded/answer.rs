//! Tokens of the engine become the events of an answer.
//! One task per answer follows all of its choices; each choice takes its text apart by the engine's parser. A token
//! travels with the end of its text, so that per event text, ids and log-probs belong together: while text is held back
//! because it may begin a stop, so are its tokens.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use reef_dialects::{Ask, Dialect, Event, Input, Piece, Stop, TokenInfo, Usage};
use reef_engine::{AnswerParser, AnswerPiece, Engine, Event as EngineEvent, Finish, FinishReason, Token};
use tokio::sync::mpsc;

use super::constraint::dead_end;
use super::prompt::{functions, variables};
use crate::provider::{Heard, ProviderError};

/// Events that wait for a slow reader; the engine's own channels hold the rest of the answer.
pub(super) const HEARD_MAX: usize = 64;

/// All choices of one answer.
pub(super) struct Speakers {
    engine: Engine,
    ask: Arc<Ask>,
    dialect: Dialect,
    prompt: Vec<u32>,
    choices: Choices,
    speakers: Vec<Speaker>,
}

impl Speakers {
    /// `named`: ids of the prompt, and what the ids of calls are made of.
    pub fn new(
        engine: &Engine,
        (ask, dialect): (&Arc<Ask>, Dialect),
        named: (Vec<u32>, &str),
        choices: Vec<mpsc::Receiver<EngineEvent>>,
    ) -> Self {
        let (prompt, id) = named;
        let mut speakers = Vec::new();
        let parses = matches!(ask.input, Input::Turns(_));
        let (tools, variables) = (functions(ask).next().is_some(), variables(ask));
        for number in 0..choices.len() {
            speakers.push(Speaker {
                number: u32::try_from(number).unwrap_or(u32::MAX),
                call_prefix: if number == 0 { format!("call_{id}") } else { format!("call_{id}_{number}") },
                parser: parses.then(|| engine.answer_parser(tools, &variables)),
                single_call: ask.parallel_calls == Some(false),
                shown: ask.logprobs.unwrap_or(0) as usize,
                ..Speaker::default()
            });
        }
        let choices = Choices { speak: choices.into_iter().map(Some).collect(), first: 0 };
        Self { engine: engine.clone(), ask: Arc::clone(ask), dialect, prompt, choices, speakers }
    }

    /// With that many alternatives of each token for the record.
    pub fn recording(mut self, alternatives: u32) -> Self {
        self.speakers.iter_mut().for_each(|speaker| speaker.recorded = alternatives as usize);
        self
    }

    /// Runs to the end of all choices, or until nobody listens any more.
    pub async fn run(mut self, sender: mpsc::Sender<Result<Heard, ProviderError>>) {
        let started = Event::Started { prompt: Some(self.prompt.clone()) };
        if sender.send(Ok(heard(vec![started]))).await.is_err() {
            return;
        }
        loop {
            let next = tokio::select! {
                biased;
                next = poll_fn(|context| self.choices.poll(context)) => next,
                () = sender.closed() => return,
            };
            let Some((number, event)) = next else { break };
            let said = self.take(number, event).map(heard);
            let failed = said.is_err();
            if sender.send(said).await.is_err() || failed {
                return;
            }
        }
        let last = if self.speakers.iter().all(|speaker| speaker.ended) {
            Ok(heard(vec![Event::Usage(self.usage())]))
        } else {
            Err(ProviderError::Broken("the engine stopped".to_owned()))
        };
        // Nobody listens any more: there is nobody to tell.
        let _ = sender.send(last).await;
    }

    fn take(&mut self, number: usize, event: EngineEvent) -> Result<Vec<Event>, ProviderError> {
        let Some(speaker) = self.speakers.get_mut(number) else { return Ok(Vec::new()) };
        let events = match event {
            EngineEvent::Token(token) => speaker.token(&self.engine, token),
            EngineEvent::Done(finish) => speaker.done(finish),
            EngineEvent::Failed(reason) => {
                return Err(dead_end(&self.ask, self.dialect, &reason).unwrap_or(ProviderError::Broken(reason)));
            }
        };
        if speaker.ended {
            self.choices.close(number);
        }
        Ok(events)
    }

    /// The choices share one prompt, which the first of them computed.
    fn usage(&self) -> Usage {
        Usage {
            input: self.prompt.len() as u64,
            cached: self.speakers.first().map_or(0, |first| first.reused),
            output: self.speakers.iter().map(|speaker| speaker.tokens).sum(),
            reasoning: self.speakers.iter().map(|speaker| speaker.reasoning).sum(),
        }
    }
}

/// What the engine says of each choice.
struct Choices {
    /// None once it has ended.
    speak: Vec<Option<mpsc::Receiver<EngineEvent>>>,
    /// Whose turn it is: none is heard before the others for long.
    first: usize,
}

impl Choices {
    /// The next event and whose it is; none when all have ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, EngineEvent)>> {
        let (count, first, mut open) = (self.speak.len(), self.first, false);
        for number in (first..count).chain(0..first.min(count)) {
            let Some(receiver) = self.speak.get_mut(number).and_then(Option::as_mut) else { continue };
            match receiver.poll_recv(context) {
                Poll::Ready(Some(event)) => {
                    self.first = number + 1;
                    return Poll::Ready(Some((number, event)));
                }
                Poll::Ready(None) => self.close(number),
                Poll::Pending => open = true,
            }
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    }

    fn close(&mut self, number: usize) {
        if let Some(speaks) = self.speak.get_mut(number) {
            *speaks = None;
        }
    }
}

fn heard(events: Vec<Event>) -> Heard {
    Heard { events, raw: None }
}

/// One choice.
#[derive(Debug, Default)]
struct Speaker {
    number: u32,
    call_prefix: String,
    /// None where the text is the answer as it is.
    parser: Option<AnswerParser>,
    /// The answer ends where a second call begins.
    single_call: bool,
    /// Alternatives of each token for the client, and for the record.
    shown: usize,
    recorded: usize,
    called: bool,
    /// Something other than reasoning was said.
    said: bool,
    tokens: u64,
    reasoning: u64,
    reused: u64,
    ended: bool,
    /// Tokens whose text is not all visible, each with where it ends; and how much text there was and is to see.
    held: VecDeque<(u64, TokenInfo)>,
    sampled_bytes: u64,
    seen_bytes: u64,
}

impl Speaker {
    fn token(&mut self, engine: &Engine, token: Token) -> Vec<Event> {
        let (pieces, cut) = self.say(&token.text);
        self.tokens += 1;
        if !self.said && pieces.iter().any(|piece| matches!(piece, Piece::Reasoning(_))) {
            // Tags and white space around the thoughts count as well.
            self.reasoning = self.tokens;
        }
        self.said |= pieces.iter().any(|piece| !matches!(piece, Piece::Reasoning(_)));
        let info = self.info(engine, &token);
        self.sampled_bytes += info.bytes.len() as u64;
        self.seen_bytes += token.text.len() as u64;
        self.held.push_back((self.sampled_bytes, info));
        let mut tokens = Vec::new();
        while self.held.front().is_some_and(|(end, _)| cut || *end <= self.seen_bytes) {
            tokens.extend(self.held.pop_front().map(|(_, info)| info));
        }
        let mut events = Vec::with_capacity(2);
        if !pieces.is_empty() || !tokens.is_empty() {
            events.push(Event::Delta { choice: self.number, pieces, tokens });
        }
        if cut {
            events.push(self.finished(Stop::Calls));
        }
        events
    }

    fn done(&mut self, finish: Finish) -> Vec<Event> {
        let (mut pieces, cut) = self.say(&finish.text);
        if !cut && let Some(parser) = &mut self.parser {
            let cut = finish.reason == FinishReason::Length;
            let rest = if cut { parser.finish_cut() } else { parser.finish() };
            pieces.extend(self.pieces(rest).0);
        }
        self.reused = finish.reused as u64;
        let stop = match finish.reason {
            FinishReason::Stop { matched: Some(stop) } => Stop::Sequence(stop),
            FinishReason::Stop { matched: None } if self.called => Stop::Calls,
            FinishReason::Stop { matched: None } => Stop::End,
            FinishReason::Length => Stop::Length,
            FinishReason::Cancelled => Stop::Cancelled,
        };
        let mut events = Vec::with_capacity(2);
        let tokens: Vec<TokenInfo> = self.held.drain(..).map(|(_, info)| info).collect();
        if !pieces.is_empty() || !tokens.is_empty() {
            events.push(Event::Delta { choice: self.number, pieces, tokens });
        }
        events.push(self.finished(stop));
        events
    }

    fn finished(&mut self, stop: Stop) -> Event {
        self.ended = true;
        Event::Finished { choice: self.number, stop }
    }

    fn info(&self, engine: &Engine, token: &Token) -> TokenInfo {
        let spelled = |id: u32| {
            let bytes = engine.token_bytes(id);
            (String::from_utf8_lossy(&bytes).into_owned(), bytes)
        };
        let (text, bytes) = spelled(token.id);
        let top = token.top.iter().take(self.shown).map(|(id, logprob)| {
            let (text, bytes) = spelled(*id);
            (text, bytes, *logprob)
        });
        let recorded = token.top.iter().take(self.recorded).copied().collect();
        TokenInfo { id: Some(token.id), text, bytes, logprob: token.logprob, top: top.collect(), recorded }
    }

    /// What text becomes, and whether a second call that is not wanted begins in it.
    fn say(&mut self, text: &str) -> (Vec<Piece>, bool) {
        match &mut self.parser {
            Some(parser) => {
                let found = parser.push(text);
                self.pieces(found)
            }
            None if text.is_empty() => (Vec::new(), false),
            None => (vec![Piece::Text(text.to_owned())], false),
        }
    }

    fn pieces(&mut self, found: Vec<AnswerPiece>) -> (Vec<Piece>, bool) {
        let mut pieces = Vec::with_capacity(found.len());
        for piece in found {
            pieces.push(match piece {
                AnswerPiece::Text(text) => Piece::Text(text),
                AnswerPiece::Reasoning(text) => Piece::Reasoning(text),
                AnswerPiece::CallStart { call, .. } if call > 0 && self.single_call => return (pieces, true),
                AnswerPiece::CallStart { call, name } => {
                    self.called = true;
                    Piece::CallStart { call, id: format!("{}_{call}", self.call_prefix), name }
                }
                AnswerPiece::CallArguments { call, text } => Piece::CallArguments { call, text },
            });
        }
        (pieces, false)
    }
}

#[cfg(test)]
mod tests {
    use reef_engine::CallFormat;

    use super::*;

    fn speaker(tools: bool, single_call: bool) -> Speaker {
        let parser = Some(AnswerParser::new(CallFormat::Hermes, tools, false));
        Speaker { call_prefix: "call_ab".to_owned(), parser, single_call, ..Speaker::default() }
    }

    fn stop(reason: FinishReason) -> Finish {
        Finish { reason, text: String::new(), reused: 0 }
    }

    const CALLS: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";

    #[test]
    fn calls_have_ids_and_end_the_answer_as_calls() {
        let mut speaker = speaker(true, false);
        let (pieces, cut) = speaker.say(CALLS);
        let ids: Vec<&str> = pieces
            .iter()
            .filter_map(|piece| if let Piece::CallStart { id, .. } = piece { Some(id.as_str()) } else { None })
            .collect();
        assert_eq!((ids, cut), (vec!["call_ab_0", "call_ab_1"], false));
        let events = speaker.done(stop(FinishReason::Stop { matched: None }));
        assert_eq!(events.last(), Some(&Event::Finished { choice: 0, stop: Stop::Calls }));
        assert!(speaker.ended);
    }

    #[test]
    fn a_second_call_is_cut_where_one_is_wanted() {
        let mut speaker = speaker(true, true);
        let (pieces, cut) = speaker.say(CALLS);
        let calls = pieces.iter().filter(|piece| matches!(piece, Piece::CallStart { .. })).count();
        assert!(cut && calls == 1, "{pieces:?}");
    }

    #[test]
    fn a_call_that_the_limit_cut_keeps_its_arguments_and_says_length() {
        let mut speaker = speaker(true, false);
        let (pieces, _) = speaker.say("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"un");
        assert!(pieces.contains(&Piece::CallArguments { call: 0, text: "{\"a\": \"un".to_owned() }), "{pieces:?}");
        let events = speaker.done(stop(FinishReason::Length));
        assert_eq!(events, [Event::Finished { choice: 0, stop: Stop::Length }]);
    }

    #[test]
    fn a_call_that_the_limit_cut_before_its_name_says_nothing() {
        for text in ["<tool_call>\n{\"name\": \"get_", "<tool_call>", "<tool_c"] {
            let mut speaker = speaker(true, false);
            let (pieces, _) = speaker.say(text);
            assert!(pieces.is_empty(), "{pieces:?}");
            assert_eq!(speaker.done(stop(FinishReason::Length)), [Event::Finished { choice: 0, stop: Stop::Length }]);
        }
        let mut speaker = speaker(true, false);
        speaker.say("a <");
        let told = speaker.done(stop(FinishReason::Length));
        assert_eq!(told.len(), 2, "a sign alone is text: {told:?}");
    }

    #[test]
    fn text_that_was_held_back_comes_with_the_end() {
        let mut speaker = Speaker::default();
        let finish = Finish { text: "rest".to_owned(), ..stop(FinishReason::Stop { matched: Some("#".to_owned()) }) };
        let delta = Event::Delta { choice: 0, pieces: vec![Piece::Text("rest".to_owned())], tokens: Vec::new() };
        let finished = Event::Finished { choice: 0, stop: Stop::Sequence("#".to_owned()) };
        assert_eq!(speaker.done(finish), [delta, finished]);
    }
}
