//! What a client asks for, in no dialect's words.
//! Each dialect's `parse` makes one from a body, its `write` makes a body of one.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::dialect::Dialect;

/// A body that cannot be honoured; the host answers 400 in the dialect's shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The parameter at fault, as a path: `messages[2].content`.
    pub param: String,
    /// A sentence: the thing, the reason, the remedy.
    pub message: String,
}

impl Refusal {
    /// A refusal of `param`.
    pub fn new(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: param.into(), message: message.into() }
    }

    /// The same refusal, of a field inside `path`. Messages begin with the parameter, so both get the path.
    pub(crate) fn under(self, path: &str) -> Self {
        Self { param: format!("{path}.{}", self.param), message: format!("{path}.{}", self.message) }
    }
}

/// A request for an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// The dialect that it came in; none for what the server asks by itself.
    pub dialect: Option<Dialect>,
    /// `model`, as sent.
    pub model: String,
    /// What is to be continued.
    pub input: Input,
    /// Where in the body the `Part::Other` of the turns stand, in their order, as far as that is known.
    pub places: Vec<String>,
    /// Functions that the model may call.
    pub tools: Vec<Tool>,
    /// Whether it must.
    pub tool_choice: ToolChoice,
    /// May one answer hold several calls? `None`: the provider's default.
    pub parallel_calls: Option<bool>,
    /// Form of the answer's text.
    pub format: Format,
    /// Temperature; `None`: the provider's default.
    pub temperature: Option<f32>,
    /// Nucleus mass, over 0 and up to 1.
    pub top_p: Option<f32>,
    /// Tokens kept before sampling; 0 or absent: all.
    pub top_k: Option<u32>,
    /// Seed of the sampling.
    pub seed: Option<u64>,
    /// Penalty on tokens by how often they stand in the answer, −2 to 2.
    pub frequency_penalty: Option<f32>,
    /// Penalty on tokens that stand in the answer at all, −2 to 2.
    pub presence_penalty: Option<f32>,
    /// Added to the logit of each token id, −100 to 100.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens of the answer, reasoning included.
    pub tokens_max: Option<u32>,
    /// Strings that end the answer.
    pub stop: Vec<String>,
    /// Answers to the same prompt, at least 1.
    pub n: u32,
    /// Log-probs of the answer's tokens, with this many alternatives each.
    pub logprobs: Option<u32>,
    /// Reasoning effort or budget as the dialect spells it; `None`: the provider's default.
    pub reasoning: Option<Value>,
    /// Answer as server-sent events.
    pub stream: bool,
    /// The stream's last chunk but one carries usage (chat completions and completions only).
    pub include_usage: bool,
    /// Prompt and output ids in the answer.
    pub return_token_ids: bool,
    /// Fields that describe the client and change nothing in the answer, as sent.
    pub descriptive: Map<String, Value>,
    /// Fields that no code here knows, as sent; whoever cannot forward them refuses them by name.
    pub unknown: Map<String, Value>,
}

impl Ask {
    /// A request that leaves everything else to the provider.
    pub fn new(model: impl Into<String>, input: Input) -> Self {
        Self {
            dialect: None,
            model: model.into(),
            input,
            places: Vec::new(),
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            parallel_calls: None,
            format: Format::Text,
            temperature: None,
            top_p: None,
            top_k: None,
            seed: None,
            frequency_penalty: None,
            presence_penalty: None,
            logit_bias: Vec::new(),
            tokens_max: None,
            stop: Vec::new(),
            n: 1,
            logprobs: None,
            reasoning: None,
            stream: false,
            include_usage: false,
            return_token_ids: false,
            descriptive: Map::new(),
            unknown: Map::new(),
        }
    }
}

impl Ask {
    /// The reasoning effort in the words that the dialects share (`none`, `low` … `max`), however it came.
    /// A budget of tokens becomes the nearest of them; `None`: the provider's default.
    pub fn effort(&self) -> Option<&str> {
        let reasoning = self.reasoning.as_ref()?;
        let word = |field: &str| reasoning.get(field).and_then(Value::as_str);
        if word("type") == Some("disabled") {
            return Some("none");
        }
        let budget = reasoning.get("budget_tokens").and_then(Value::as_u64).map(|tokens| match tokens {
            0..4096 => "low",
            4096..16_384 => "medium",
            _ => "high",
        });
        reasoning.as_str().or_else(|| word("effort")).or(budget)
    }

    /// What the client's dialect calls a field that this one calls `name`.
    pub(crate) fn named<'a>(&self, name: &'a str) -> &'a str {
        match (self.dialect, name) {
            (Some(Dialect::Messages), "stop") => "stop_sequences",
            (Some(Dialect::Messages), "response_format") => "output_config.format",
            (Some(Dialect::Responses), "response_format") => "text.format",
            (Some(Dialect::Responses), "logprobs") => "top_logprobs",
            (Some(Dialect::Responses), "messages") => "input",
            _ => name,
        }
    }

    /// A refusal of a field that this dialect calls `name`, in the client's words.
    pub(crate) fn unsupported(&self, name: &str) -> Refusal {
        let name = self.named(name);
        Refusal::new(name, format!("{name} is not supported by this model's provider; leave it out"))
    }

    /// Refuses the first field that no code here knows: only the dialect it came in can say it.
    pub(crate) fn refuse_unknown(&self) -> Result<(), Refusal> {
        match self.unknown.keys().next() {
            None => Ok(()),
            Some(name) => {
                let name = crate::fields::shown(name);
                let message = format!("'{name}' cannot be passed on to this model's provider; leave it out");
                Err(Refusal::new(name, message))
            }
        }
    }
}

/// What is to be continued.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A conversation; system turns keep their places.
    Turns(Vec<Turn>),
    /// Plain text without a template (completions).
    Text(String),
    /// Token ids (completions).
    Tokens(Vec<u32>),
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The operator; also OpenAI's `developer`.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// Results of calls.
    Tool,
}

/// One turn. A turn without parts says nothing and is not rendered.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Who speaks.
    pub role: Role,
    /// What is said, in order.
    pub parts: Vec<Part>,
}

/// A part of a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Text.
    Text(String),
    /// The model's reasoning; `signature` is what the provider wants back unchanged.
    Reasoning {
        /// Its text.
        text: String,
        /// Opaque.
        signature: Option<String>,
    },
    /// The model calls a function.
    Call {
        /// Names the call in its result.
        id: String,
        /// The function.
        name: String,
        /// JSON text, as the model wrote it; perhaps incomplete.
        arguments: String,
    },
    /// What a call gave; only in turns of `Role::Tool`.
    Result {
        /// The call.
        id: String,
        /// Text of the result.
        text: String,
        /// The call failed.
        failed: bool,
    },
    /// Something that is neither (an image, a document …), as sent in the dialect it came from.
    Other {
        /// Its type, e.g. `image_url`.
        kind: String,
        /// As sent.
        value: Value,
    },
}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name; for a tool that is no function, its type.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON schema of its arguments.
    pub parameters: Value,
    /// Arguments must match the schema exactly.
    pub strict: bool,
    /// A tool of another type (web_search, custom, mcp, local_shell …), as sent; `None` for a function.
    pub hosted: Option<Value>,
}

impl Part {
    /// Text of a result for dialects that have no other word for a failure.
    pub(crate) fn told(text: &str, failed: bool) -> Cow<'_, str> {
        match (failed, text) {
            (false, text) => Cow::Borrowed(text),
            (true, "") => Cow::Borrowed("The tool failed."),
            (true, text) => Cow::Owned(format!("The tool failed: {text}")),
        }
    }
}

impl Tool {
    /// Is it called so? A tool that is no function may be chosen by its type or by the name in what was sent.
    pub(crate) fn is(&self, name: &str) -> bool {
        let own = self.hosted.as_ref().and_then(|sent| sent.get("name")).and_then(Value::as_str);
        self.name == name || own == Some(name)
    }
}

/// Whether the model must call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// As it likes.
    #[default]
    Auto,
    /// Never.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// Form of the answer's text.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Format {
    /// Any text.
    #[default]
    Text,
    /// Any JSON object.
    Json,
    /// JSON of a schema.
    Schema {
        /// Its name, for the provider.
        name: String,
        /// The schema.
        schema: Value,
        /// Exactly.
        strict: bool,
    },
}
