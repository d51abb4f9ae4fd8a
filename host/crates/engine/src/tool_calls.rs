//! The model's text as pieces: what it says, what it thinks, which functions it calls.
//! The serving side pushes the text of an answer as it comes; pieces do not depend on how the text is cut. Text is
//! held back only while it may still become a tag or a call; what turns out to be neither comes out unchanged.
//! White space beside a tag belongs to the tag.

mod scan;
#[cfg(test)]
mod tests;

use self::scan::{CallScanner, Step};

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const PYTHON: &str = "<|python_tag|>";

/// How a model writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>` anywhere in the answer (Qwen, SmolLM, Hermes).
    Hermes,
    /// The whole answer is `{"name": …, "parameters": …}`, or several of them (Llama 3).
    Llama3,
    /// In a way that is not known here: calls stay text.
    None,
}

impl CallFormat {
    /// From the source of a chat template. One that knows no tools is served in Hermes form, see `ChatTemplate`.
    pub fn of_template(source: &str) -> Self {
        let has = |part: &str| source.contains(part);
        // XML in the place of JSON, as with Qwen3-Coder and GLM, is not read.
        let xml = has("<function=") || has("<arg_key>");
        let json = has(PYTHON) || (has("\"parameters\": ") && has("{\"name\": "));
        if !has("tools") || (has(CALL) && !xml) {
            Self::Hermes
        } else if has("<|start_header_id|>") && json && !xml {
            Self::Llama3
        } else {
            Self::None
        }
    }
}

/// A part of an answer. Parts of the same kind follow each other and are to be joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerPiece {
    /// What the model says.
    Text(String),
    /// What it thinks.
    Reasoning(String),
    /// It begins a call.
    CallStart {
        /// Number of the call in the answer, from 0.
        call: usize,
        /// The function.
        name: String,
    },
    /// More of a call's arguments.
    CallArguments {
        /// Number of the call.
        call: usize,
        /// JSON text as the model wrote it; incomplete if the answer was cut.
        text: String,
    },
}

/// What the next character belongs to.
#[derive(Debug)]
enum State {
    /// Nothing was said yet: the answer may be a call as a whole, or begin with reasoning.
    Start,
    Reasoning,
    Text,
    /// What may be a call; the text before it that goes out with it if it is none.
    Candidate(String, Box<CallScanner>),
    /// Behind a call.
    Tail,
}

/// Text in, pieces out.
#[derive(Debug)]
pub struct AnswerParser {
    format: CallFormat,
    state: State,
    /// White space that may belong to a tag.
    blank: String,
    /// The start of a tag, behind `blank`.
    open: String,
    /// Calls so far.
    calls: usize,
    /// Reasoning has been shown or is over, or a call is: white space that follows at the start is dropped.
    thought: bool,
    pieces: Vec<AnswerPiece>,
}

impl AnswerParser {
    /// `tools`: the request has tools, so calls are looked for. `reasoning`: the prompt ends inside of `<think>`.
    pub fn new(format: CallFormat, tools: bool, reasoning: bool) -> Self {
        Self {
            format: if tools { format } else { CallFormat::None },
            state: if reasoning { State::Reasoning } else { State::Start },
            blank: String::new(),
            open: String::new(),
            calls: 0,
            thought: false,
            pieces: Vec::new(),
        }
    }

    /// Takes text and returns what became certain.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPiece> {
        for c in text.chars() {
            self.character(c);
        }
        std::mem::take(&mut self.pieces)
    }

    /// The rest, when the answer was cut by its limit: the beginning of a call that does not name its function yet is
    /// nothing that anybody can use.
    pub fn finish_cut(&mut self) -> Vec<AnswerPiece> {
        let nameless = match &self.state {
            State::Candidate(_, scanner) => !scanner.started(),
            State::Start | State::Text | State::Tail => self.open.len() > 1 && CALL.starts_with(&self.open),
            State::Reasoning => false,
        };
        if nameless && self.format == CallFormat::Hermes {
            self.forget();
            self.state = State::Text;
            return std::mem::take(&mut self.pieces);
        }
        self.finish()
    }

    /// The rest, when the answer ends.
    pub fn finish(&mut self) -> Vec<AnswerPiece> {
        let held = if matches!(self.state, State::Start) { self.held_at_start() } else { self.held() };
        match std::mem::replace(&mut self.state, State::Text) {
            State::Start | State::Text => self.text(&held),
            State::Reasoning => self.reasoning(&held),
            State::Candidate(_, mut scanner) if scanner.started() => {
                let cut = scanner.take_cut();
                self.arguments(cut);
            }
            State::Candidate(before, scanner) => self.text(&(before + scanner.raw())),
            // What is left of a closing tag, or of the white space before it.
            State::Tail if self.format == CallFormat::Hermes => {}
            State::Tail => self.text(&held),
        }
        std::mem::take(&mut self.pieces)
    }

    fn character(&mut self, c: char) {
        match &mut self.state {
            State::Candidate(_, scanner) => {
                let step = scanner.push(c);
                if let Some(name) = scanner.take_name() {
                    self.pieces.push(AnswerPiece::CallStart { call: self.calls, name });
                }
                let (more, started) = (scanner.take_arguments(), scanner.started());
                self.arguments(more);
                match step {
                    Step::More => {}
                    Step::Done => self.end_call(),
                    Step::Bad if started => {
                        self.end_call();
                        self.character(c);
                    }
                    Step::Bad => self.no_call(),
                }
            }
            State::Reasoning => self.think(c),
            State::Start => self.start(c),
            State::Text => self.say(c),
            State::Tail => self.tail(c),
        }
    }

    fn end_call(&mut self) {
        self.calls += 1;
        self.state = State::Tail;
    }

    /// What was held as a call is text. It may hold the tag of a true call.
    fn no_call(&mut self) {
        if let State::Candidate(before, scanner) = std::mem::replace(&mut self.state, State::Text) {
            self.text(&before);
            for c in scanner.raw().chars() {
                self.character(c);
            }
        }
    }

    fn start(&mut self, c: char) {
        let tags: &[&str] = match (self.format, self.thought) {
            (CallFormat::Hermes, false) => &[THINK, CALL],
            (CallFormat::Hermes, true) => &[CALL],
            (CallFormat::Llama3, false) => &[THINK, PYTHON],
            (CallFormat::Llama3, true) => &[PYTHON],
            (CallFormat::None, false) => &[THINK],
            (CallFormat::None, true) => &[],
        };
        if self.format == CallFormat::Llama3 && c == '{' && (self.open.is_empty() || self.open == PYTHON) {
            let before = self.held_at_start();
            return self.candidate(before, Some(c));
        }
        if self.open.is_empty() && c.is_whitespace() {
            return self.blank.push(c);
        }
        match self.tag(c, tags) {
            Some(THINK) => {
                self.forget();
                self.state = State::Reasoning;
            }
            Some(CALL) => {
                let before = self.held_at_start();
                self.candidate(before, None);
            }
            // Kept until an object follows.
            Some(_) => {}
            None if self.open.is_empty() => {
                if self.thought {
                    self.blank.clear();
                }
                self.state = State::Text;
                self.say(c);
            }
            None => {}
        }
    }

    fn say(&mut self, c: char) {
        if self.format != CallFormat::Hermes {
            let held = self.held();
            self.text(&held);
            return self.text(c.encode_utf8(&mut [0; 4]));
        }
        if self.open.is_empty() && c.is_whitespace() {
            return self.blank.push(c);
        }
        match self.tag(c, &[CALL]) {
            Some(_) => {
                let before = self.held();
                self.candidate(before, None);
            }
            None if self.open.is_empty() => {
                let held = self.held();
                self.text(&held);
                self.text(c.encode_utf8(&mut [0; 4]));
            }
            None => {}
        }
    }

    fn think(&mut self, c: char) {
        if self.open.is_empty() && c == '\n' {
            return self.blank.push(c);
        }
        let tags: &[&str] = if self.thought { &[THINK_END] } else { &[THINK, THINK_END] };
        match self.tag(c, tags) {
            Some(tag) => {
                self.forget();
                self.thought = tag == THINK_END;
                self.state = if self.thought { State::Start } else { State::Reasoning };
            }
            None if self.open.is_empty() => {
                let held = self.held();
                self.reasoning(&held);
                self.reasoning(c.encode_utf8(&mut [0; 4]));
            }
            None => {}
        }
    }

    fn tail(&mut self, c: char) {
        if self.format == CallFormat::Llama3 {
            match c {
                '{' => {
                    let before = self.held();
                    self.candidate(before, Some(c));
                }
                ';' | ',' => self.blank.push(c),
                _ if c.is_whitespace() => self.blank.push(c),
                _ => {
                    self.state = State::Text;
                    self.say(c);
                }
            }
            return;
        }
        // Models write one brace too many now and then.
        if self.open.is_empty() && (c == '}' || c.is_whitespace()) {
            return;
        }
        match self.tag(c, &[CALL_END, CALL]) {
            Some(CALL_END) => {
                self.forget();
                // White space behind a call is no text either.
                self.state = State::Start;
                self.thought = true;
            }
            Some(_) => {
                let before = self.held();
                self.candidate(before, None);
            }
            None if self.open.is_empty() => {
                self.state = State::Text;
                self.say(c);
            }
            None => {}
        }
    }

    /// Adds `c` to the start of a tag. The tag, if it is complete; else `open` is empty if `c` is of none, and the
    /// start that was held has gone out.
    fn tag(&mut self, c: char, tags: &[&'static str]) -> Option<&'static str> {
        self.open.push(c);
        let open = self.open.as_str();
        if let Some(tag) = tags.iter().find(|tag| tag.starts_with(open)) {
            return (tag.len() == open.len()).then_some(*tag);
        }
        self.open.pop();
        if !self.open.is_empty() {
            let held = if matches!(self.state, State::Start) { self.held_at_start() } else { self.held() };
            if matches!(self.state, State::Reasoning) {
                self.reasoning(&held)
            } else {
                self.text(&held)
            }
            if matches!(self.state, State::Start | State::Tail) {
                self.state = State::Text;
            }
            // A tag holds '<' at its start only.
            if c == '<' {
                self.open.push(c);
            }
        }
        None
    }

    fn forget(&mut self) {
        self.blank.clear();
        self.open.clear();
    }

    fn candidate(&mut self, before: String, first: Option<char>) {
        self.state = State::Candidate(before, Box::new(CallScanner::new(self.format == CallFormat::Hermes)));
        if let Some(c) = first {
            self.character(c);
        }
    }

    /// What was held back.
    fn held(&mut self) -> String {
        std::mem::take(&mut self.blank) + &std::mem::take(&mut self.open)
    }

    /// The same, without white space that belongs to what came before.
    fn held_at_start(&mut self) -> String {
        if self.thought {
            self.blank.clear();
        }
        self.held()
    }

    fn text(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(AnswerPiece::Text(last)) => last.push_str(text),
            _ => self.pieces.push(AnswerPiece::Text(text.to_owned())),
        }
    }

    fn reasoning(&mut self, text: &str) {
        let text = if self.thought { text } else { text.trim_start_matches('\n') };
        self.thought |= !text.is_empty();
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(AnswerPiece::Reasoning(last)) => last.push_str(text),
            _ => self.pieces.push(AnswerPiece::Reasoning(text.to_owned())),
        }
    }

    fn arguments(&mut self, more: String) {
        match self.pieces.last_mut() {
            _ if more.is_empty() => {}
            Some(AnswerPiece::CallArguments { call, text }) if *call == self.calls => text.push_str(&more),
            _ => self.pieces.push(AnswerPiece::CallArguments { call: self.calls, text: more }),
        }
    }
}
