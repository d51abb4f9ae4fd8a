//! Brings the pieces of one choice into an order in which at most one block is open.
//! The messages and responses dialects stream block after block, while a provider may interleave parallel calls:
//! what cannot leave yet waits here, in order of its start. A call is over when its arguments are a whole JSON value
//! and something else follows; text that a provider adds to it later has no place any more and is left out.

use std::collections::{BTreeMap, VecDeque};

use crate::reply::Piece;

/// What a block holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Block {
    /// Text.
    Text,
    /// Reasoning.
    Reasoning,
    /// Reasoning of which only the signature is known; nothing follows but its end.
    Sealed(String),
    /// A sentence instead of an answer.
    Refusal,
    /// A call.
    Call {
        /// Its id.
        id: String,
        /// The function.
        name: String,
    },
    /// A call of a custom tool.
    Custom {
        /// Its id.
        id: String,
        /// The tool.
        name: String,
    },
}

/// What to write next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// A block begins.
    Open(Block),
    /// More of the open block.
    More(String),
    /// The signature of the open reasoning; its end follows.
    Signature(String),
    /// The open block ends.
    Close,
}

/// The pieces of one choice, in order.
#[derive(Debug, Default)]
pub(crate) struct InOrder {
    open: Option<Open>,
    /// Not empty only while a call is open whose arguments are not whole.
    waiting: VecDeque<Waiting>,
    /// Arguments so far of the calls that wait.
    arguments: BTreeMap<usize, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Open {
    Said(Said),
    Call { call: usize, json: JsonEnd },
}

/// Kinds of block that are nothing but text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Text,
    Reasoning,
    Refusal,
}

#[derive(Debug)]
enum Waiting {
    Said { said: Said, text: String, signature: Option<String> },
    Call { call: usize, block: Block },
}

impl InOrder {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Takes a piece; adds what can be written now.
    pub(crate) fn push(&mut self, piece: &Piece, steps: &mut Vec<Step>) {
        match piece {
            Piece::Text(text) => self.say(Said::Text, text, steps),
            Piece::Reasoning(text) => self.say(Said::Reasoning, text, steps),
            Piece::Refusal(text) => self.say(Said::Refusal, text, steps),
            Piece::Signature(signature) => self.sign(signature, steps),
            Piece::CallStart { call, id, name } => {
                self.start(*call, Block::Call { id: id.clone(), name: name.clone() }, steps);
            }
            Piece::CustomStart { call, id, name } => {
                self.start(*call, Block::Custom { id: id.clone(), name: name.clone() }, steps);
            }
            Piece::Foreign(_) => {}
            Piece::CallArguments { call, text } => self.argue(*call, text, steps),
        }
    }

    /// The choice has ended: everything leaves and the last block is closed.
    pub(crate) fn finish(&mut self, steps: &mut Vec<Step>) {
        while let Some(next) = self.waiting.pop_front() {
            self.begin(next, steps);
        }
        self.close(steps);
    }

    /// Closes the open block and forgets what waits.
    pub(crate) fn abandon(&mut self, steps: &mut Vec<Step>) {
        self.waiting.clear();
        self.arguments.clear();
        self.close(steps);
    }

    fn must_wait(&self) -> bool {
        matches!(&self.open, Some(Open::Call { json, .. }) if !json.reached())
    }

    fn start(&mut self, call: usize, block: Block, steps: &mut Vec<Step>) {
        if self.must_wait() {
            self.arguments.entry(call).or_default();
            self.waiting.push_back(Waiting::Call { call, block });
        } else {
            self.open_call(call, block, steps);
        }
    }

    fn say(&mut self, said: Said, text: &str, steps: &mut Vec<Step>) {
        if text.is_empty() {
            return;
        }
        if !self.must_wait() {
            self.open_said(said, steps);
            steps.push(Step::More(text.to_owned()));
            return;
        }
        match self.waiting.back_mut() {
            Some(Waiting::Said { said: last, text: so_far, signature: None }) if *last == said => {
                so_far.push_str(text);
            }
            _ => self.waiting.push_back(Waiting::Said { said, text: text.to_owned(), signature: None }),
        }
    }

    fn sign(&mut self, signature: &str, steps: &mut Vec<Step>) {
        let signed = Some(signature.to_owned());
        if self.must_wait() {
            match self.waiting.back_mut() {
                Some(Waiting::Said { said: Said::Reasoning, signature: empty @ None, .. }) => *empty = signed,
                _ => self.waiting.push_back(Waiting::Said {
                    said: Said::Reasoning,
                    text: String::new(),
                    signature: signed,
                }),
            }
        } else if self.open == Some(Open::Said(Said::Reasoning)) {
            steps.push(Step::Signature(signature.to_owned()));
            self.close(steps);
        } else {
            self.close(steps);
            steps.extend([Step::Open(Block::Sealed(signature.to_owned())), Step::Close]);
        }
    }

    fn argue(&mut self, call: usize, text: &str, steps: &mut Vec<Step>) {
        if let Some(so_far) = self.arguments.get_mut(&call) {
            so_far.push_str(text);
            return;
        }
        let Some(Open::Call { call: open, json }) = &mut self.open else { return };
        if *open != call || text.is_empty() {
            return;
        }
        json.read(text);
        steps.push(Step::More(text.to_owned()));
        while !self.must_wait() {
            let Some(next) = self.waiting.pop_front() else { return };
            self.begin(next, steps);
        }
    }

    fn begin(&mut self, next: Waiting, steps: &mut Vec<Step>) {
        match next {
            Waiting::Call { call, block } => {
                self.open_call(call, block, steps);
                let so_far = self.arguments.remove(&call).unwrap_or_default();
                if let (Some(Open::Call { json, .. }), false) = (&mut self.open, so_far.is_empty()) {
                    json.read(&so_far);
                    steps.push(Step::More(so_far));
                }
            }
            Waiting::Said { text, signature: Some(signature), .. } if text.is_empty() => {
                self.close(steps);
                steps.extend([Step::Open(Block::Sealed(signature)), Step::Close]);
            }
            Waiting::Said { said, text, signature } => {
                self.open_said(said, steps);
                steps.push(Step::More(text));
                if let Some(signature) = signature {
                    steps.push(Step::Signature(signature));
                    self.close(steps);
                }
            }
        }
    }

    fn open_said(&mut self, said: Said, steps: &mut Vec<Step>) {
        if self.open == Some(Open::Said(said)) {
            return;
        }
        self.close(steps);
        self.open = Some(Open::Said(said));
        steps.push(Step::Open(match said {
            Said::Text => Block::Text,
            Said::Reasoning => Block::Reasoning,
            Said::Refusal => Block::Refusal,
        }));
    }

    fn open_call(&mut self, call: usize, block: Block, steps: &mut Vec<Step>) {
        self.close(steps);
        // The input of a custom tool is any text: it may be over at any time.
        let json = JsonEnd { reached: matches!(block, Block::Custom { .. }), ..JsonEnd::default() };
        self.open = Some(Open::Call { call, json });
        steps.push(Step::Open(block));
    }

    fn close(&mut self, steps: &mut Vec<Step>) {
        if self.open.take().is_some() {
            steps.push(Step::Close);
        }
    }
}

/// Finds where a JSON object or list ends, however its text is cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct JsonEnd {
    depth: u32,
    in_string: bool,
    escaped: bool,
    reached: bool,
}

impl JsonEnd {
    fn reached(self) -> bool {
        self.reached
    }

    fn read(&mut self, text: &str) {
        for byte in text.bytes() {
            if self.in_string {
                let ends = byte == b'"' && !self.escaped;
                self.escaped = byte == b'\\' && !self.escaped;
                self.in_string = !ends;
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.reached |= self.depth == 0;
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(pieces: &[Piece]) -> Vec<Step> {
        let (mut order, mut steps) = (InOrder::new(), Vec::new());
        for piece in pieces {
            order.push(piece, &mut steps);
        }
        order.finish(&mut steps);
        steps
    }

    fn start(call: usize) -> Piece {
        Piece::CallStart { call, id: format!("c{call}"), name: "f".to_owned() }
    }

    fn more(call: usize, text: &str) -> Piece {
        Piece::CallArguments { call, text: text.to_owned() }
    }

    fn open(call: usize) -> Step {
        Step::Open(Block::Call { id: format!("c{call}"), name: "f".to_owned() })
    }

    #[test]
    fn a_second_call_waits_for_the_first() {
        let pieces = [start(0), more(0, "{"), start(1), more(1, "{\"a\":"), more(0, "}"), more(1, "1}")];
        let more = |text: &str| Step::More(text.to_owned());
        assert_eq!(
            steps(&pieces),
            [open(0), more("{"), more("}"), Step::Close, open(1), more("{\"a\":"), more("1}"), Step::Close]
        );
    }

    #[test]
    fn a_call_with_whole_arguments_holds_nothing_up() {
        let (mut order, mut steps) = (InOrder::new(), Vec::new());
        for piece in [start(0), more(0, "{\"a\":\"}"), more(0, "\\\"{\"}"), start(1)] {
            order.push(&piece, &mut steps);
        }
        assert_eq!(steps.last(), Some(&open(1)));
    }

    #[test]
    fn a_call_that_was_cut_off_releases_the_others_at_the_end() {
        let pieces = [start(0), more(0, "{\"a"), Piece::Text("t".to_owned()), start(1)];
        let expected = [
            open(0),
            Step::More("{\"a".to_owned()),
            Step::Close,
            Step::Open(Block::Text),
            Step::More("t".to_owned()),
            Step::Close,
            open(1),
            Step::Close,
        ];
        assert_eq!(steps(&pieces), expected);
    }

    #[test]
    fn a_signature_ends_its_reasoning() {
        let pieces =
            [Piece::Reasoning("a".to_owned()), Piece::Signature("s".to_owned()), Piece::Reasoning("b".to_owned())];
        let expected = [
            Step::Open(Block::Reasoning),
            Step::More("a".to_owned()),
            Step::Signature("s".to_owned()),
            Step::Close,
            Step::Open(Block::Reasoning),
            Step::More("b".to_owned()),
            Step::Close,
        ];
        assert_eq!(steps(&pieces), expected);
    }
}
