//! Reads the JSON object of one call, character by character.
//! The answer's parser feeds it and asks for what became certain: the name, then the arguments as they come. It
//! checks only what tells a call from other text; arguments pass as the model wrote them.

/// What a character did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The object goes on.
    More,
    /// The object is complete, with this character.
    Done,
    /// This character does not belong to a call.
    Bad,
}

/// Which member of the object a value belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Name,
    Arguments,
    Other,
}

/// Where in the object the next character stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Key {
        first: bool,
    },
    InKey {
        escaped: bool,
    },
    Colon,
    Value,
    InText {
        escaped: bool,
    },
    /// In an object or array; `depth` counts what is open, `text` says whether it stands in a string.
    InNested {
        depth: u32,
        text: bool,
        escaped: bool,
    },
    InScalar,
    After,
    End,
}

/// One call on its way.
#[derive(Debug)]
pub(super) struct CallScanner {
    /// Arguments may be JSON in a string, and may be left out.
    lenient: bool,
    state: State,
    member: Member,
    /// The key or string that is being read, with its quotes.
    token: String,
    /// Everything so far, to be given back if it is no call.
    raw: String,
    name: Option<String>,
    /// Arguments that were not taken yet; `None` until their value opens.
    arguments: Option<String>,
    /// The name was taken: what follows cannot become text any more.
    started: bool,
    /// Members other than those of a call.
    strange: bool,
}

impl CallScanner {
    pub fn new(lenient: bool) -> Self {
        Self {
            lenient,
            state: State::Open,
            member: Member::Other,
            token: String::new(),
            raw: String::new(),
            name: None,
            arguments: None,
            started: false,
            strange: false,
        }
    }

    /// Was the name taken?
    pub fn started(&self) -> bool {
        self.started
    }

    /// All characters that were pushed.
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// The name, once, as soon as this is certain to be a call.
    pub fn take_name(&mut self) -> Option<String> {
        if self.started || self.arguments.is_none() {
            return None;
        }
        let name = self.name.clone()?;
        self.started = true;
        Some(name)
    }

    /// Arguments that came since the last time.
    pub fn take_arguments(&mut self) -> String {
        if self.started { self.arguments.as_mut().map(std::mem::take).unwrap_or_default() } else { String::new() }
    }

    /// Arguments that are cut: a string that has no end, as it reads.
    pub fn take_cut(&mut self) -> String {
        let cut = self.member == Member::Arguments && matches!(self.state, State::InText { .. });
        if cut { std::mem::take(&mut self.token) } else { String::new() }
    }

    pub fn push(&mut self, c: char) -> Step {
        if !self.started {
            self.raw.push(c);
        }
        let blank = matches!(c, ' ' | '\n' | '\r' | '\t');
        match self.state {
            State::Open | State::Key { .. } | State::Colon | State::After if blank => Step::More,
            State::Open => self.go(c == '{', State::Key { first: true }),
            State::Key { first } => match c {
                '"' => self.begin(State::InKey { escaped: false }),
                '}' if first => self.end(),
                _ => Step::Bad,
            },
            State::InKey { escaped } => {
                self.token.push(c);
                match (escaped, c) {
                    (false, '"') => self.key(),
                    _ => self.go(true, State::InKey { escaped: !escaped && c == '\\' }),
                }
            }
            State::Colon => self.go(c == ':', State::Value),
            State::Value if blank => Step::More,
            State::Value => self.value(c),
            State::InText { escaped } => {
                self.token.push(c);
                match (escaped, c) {
                    (false, '"') => self.text(),
                    _ => self.go(true, State::InText { escaped: !escaped && c == '\\' }),
                }
            }
            State::InNested { depth, text, escaped } => self.nested(c, (depth, text, escaped)),
            State::InScalar if c == ',' || c == '}' || blank => {
                self.state = State::After;
                if blank { Step::More } else { self.after(c) }
            }
            State::InScalar => self.go(matches!(c, 'a'..='z' | '0'..='9' | '.' | '-' | '+' | 'E'), State::InScalar),
            State::After => self.after(c),
            State::End => Step::Bad,
        }
    }

    fn go(&mut self, right: bool, next: State) -> Step {
        if !right {
            return Step::Bad;
        }
        self.state = next;
        Step::More
    }

    /// A string opens.
    fn begin(&mut self, next: State) -> Step {
        self.token.clear();
        self.token.push('"');
        self.go(true, next)
    }

    fn key(&mut self) -> Step {
        let Ok(key) = serde_json::from_str::<String>(&self.token) else { return Step::Bad };
        self.member = match key.as_str() {
            "name" if self.name.is_none() => Member::Name,
            "arguments" | "parameters" if self.arguments.is_none() => Member::Arguments,
            _ => Member::Other,
        };
        self.strange |= self.member == Member::Other && key != "type" && key != "id";
        self.go(true, State::Colon)
    }

    fn value(&mut self, c: char) -> Step {
        let text = c == '"';
        let fits = match self.member {
            Member::Name => text,
            Member::Arguments => c == '{' || (text && self.lenient),
            Member::Other => true,
        };
        if !fits {
            return Step::Bad;
        }
        if self.member == Member::Arguments {
            self.arguments = Some(String::new());
        }
        match c {
            '"' => self.begin(State::InText { escaped: false }),
            '{' | '[' => {
                self.argue(c);
                self.go(true, State::InNested { depth: 1, text: false, escaped: false })
            }
            _ => self.go(matches!(c, 'a'..='z' | '0'..='9' | '-'), State::InScalar),
        }
    }

    /// Keeps a character of the arguments' object.
    fn argue(&mut self, c: char) {
        if self.member == Member::Arguments
            && let Some(arguments) = &mut self.arguments
        {
            arguments.push(c);
        }
    }

    fn nested(&mut self, c: char, (depth, text, escaped): (u32, bool, bool)) -> Step {
        // What cannot be JSON ends a candidate at once, so that another one cannot begin inside of it.
        let json = matches!(c, '{' | '}' | '[' | ']' | '"' | ':' | ',' | '+' | '-' | '.') || c.is_ascii_alphanumeric();
        if !(text || self.started || json || c.is_ascii_whitespace()) {
            return Step::Bad;
        }
        self.argue(c);
        let next = match (text, c) {
            (true, _) => (depth, escaped || c != '"', !escaped && c == '\\'),
            (false, '"') => (depth, true, false),
            (false, '{' | '[') => (depth.saturating_add(1), false, false),
            (false, '}' | ']') => (depth - 1, false, false),
            (false, _) => (depth, false, false),
        };
        self.state = State::InNested { depth: next.0, text: next.1, escaped: next.2 };
        if next.0 > 0 {
            return Step::More;
        }
        self.state = State::After;
        // Arguments that stand before the name are not shown yet: damaged ones can still be text.
        let held = self.member == Member::Arguments && self.name.is_none();
        let sound = |text: &String| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        if held && !self.arguments.as_ref().is_some_and(sound) { Step::Bad } else { Step::More }
    }

    /// A string that is a value has ended.
    fn text(&mut self) -> Step {
        self.state = State::After;
        if self.member == Member::Other {
            return Step::More;
        }
        let Ok(text) = serde_json::from_str::<String>(&self.token) else {
            if self.started {
                self.arguments = Some(std::mem::take(&mut self.token));
                return Step::More;
            }
            return Step::Bad;
        };
        match self.member {
            Member::Arguments => self.arguments = Some(text),
            _ if text.is_empty() => return Step::Bad,
            _ => self.name = Some(text),
        }
        Step::More
    }

    fn after(&mut self, c: char) -> Step {
        match c {
            ',' => self.go(true, State::Key { first: false }),
            '}' => self.end(),
            _ => Step::Bad,
        }
    }

    fn end(&mut self) -> Step {
        self.state = State::End;
        if self.name.is_some() && self.arguments.is_none() && self.lenient && !self.strange {
            self.arguments = Some("{}".to_owned());
        }
        if self.name.is_some() && self.arguments.is_some() { Step::Done } else { Step::Bad }
    }
}
