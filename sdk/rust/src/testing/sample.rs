//! A sample of a test.

use std::collections::BTreeMap;

use crate::experience::{Alternatives, Turn};
use crate::{Message, Policy};

/// One trajectory and its report. A fresh one has one response token, sampled at log-prob −1.
#[derive(Debug, Clone, PartialEq)]
pub struct FakeSample {
    pub(super) score: f64,
    pub(super) lag: u32,
    pub(super) references: u32,
    pub(super) prompt: String,
    pub(super) prompt_tokens: Vec<u32>,
    pub(super) mask: Vec<u8>,
    pub(super) tokens: Vec<u32>,
    pub(super) logprobs: Vec<f32>,
    pub(super) forward: BTreeMap<String, Vec<f32>>,
    pub(super) values: Vec<f32>,
    pub(super) top_k: Option<Alternatives>,
    pub(super) turns: Vec<Turn>,
    pub(super) messages: Vec<Message>,
    pub(super) response_text: String,
    pub(super) tags: Vec<(String, String)>,
    pub(super) session: Option<String>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// What forward passes are scripted by.
pub(super) fn policy_key(which: &Policy) -> String {
    match which {
        Policy::Current => "current".to_owned(),
        Policy::Base => "base".to_owned(),
        Policy::Ema => "ema".to_owned(),
        Policy::Named(name) => format!("named {name}"),
    }
}

/// The chat template of the double, one id a byte: `role: content` a line, and the start of the answer.
pub(super) fn rendered(messages: &[Message]) -> Vec<u32> {
    let turns: String = messages.iter().map(|turn| format!("{}: {}\n", turn.role, turn.content)).collect();
    (turns + "assistant: ").bytes().map(u32::from).collect()
}

impl FakeSample {
    /// A sample whose report carries this score.
    pub fn scored(score: f64) -> Self {
        Self {
            score,
            lag: 0,
            references: 1,
            prompt: "prompt".to_owned(),
            prompt_tokens: vec![0; 4],
            mask: Vec::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            forward: BTreeMap::new(),
            values: Vec::new(),
            top_k: None,
            turns: Vec::new(),
            messages: vec![Message::user("prompt")],
            response_text: "response".to_owned(),
            tags: Vec::new(),
            session: None,
            metadata: BTreeMap::new(),
        }
        .mask(&[1])
    }

    /// A sample whose report carries no score.
    pub fn unscored() -> Self {
        Self::scored(f64::NAN)
    }

    /// The action mask, which sets T; the other per-token columns start anew.
    #[must_use]
    pub fn mask(mut self, mask: &[u8]) -> Self {
        self.mask = mask.to_vec();
        self.tokens = (0..).take(mask.len()).collect();
        self.logprobs = mask.iter().map(|&bit| -f32::from(bit)).collect();
        self.values = vec![0.0; mask.len()];
        self.forward.clear();
        self
    }

    /// Releases since it was sampled.
    #[must_use]
    pub fn lag(mut self, lag: u32) -> Self {
        self.lag = lag;
        self
    }

    /// Records that the report references.
    #[must_use]
    pub fn references(mut self, count: u32) -> Self {
        self.references = count;
        self
    }

    /// Identity of the prompt.
    #[must_use]
    pub fn prompt(mut self, key: &str) -> Self {
        self.prompt = key.to_owned();
        self
    }

    /// Token ids of the prompt; four zeros if never set.
    #[must_use]
    pub fn prompt_tokens(mut self, ids: &[u32]) -> Self {
        self.prompt_tokens = ids.to_vec();
        self
    }

    /// Token ids of the response, T of them.
    #[must_use]
    pub fn tokens(mut self, ids: &[u32]) -> Self {
        self.tokens = ids.to_vec();
        self
    }

    /// Recorded log-probs, T of them.
    #[must_use]
    pub fn logprobs(mut self, logprobs: &[f32]) -> Self {
        self.logprobs = logprobs.to_vec();
        self
    }

    /// What `forward` gives under a policy, T numbers; the recorded log-probs if never set.
    #[must_use]
    pub fn forward(mut self, which: &Policy, logprobs: &[f32]) -> Self {
        self.forward.insert(policy_key(which), logprobs.to_vec());
        self
    }

    /// What the critic values, T numbers; 0 if never set.
    #[must_use]
    pub fn values(mut self, values: &[f32]) -> Self {
        self.values = values.to_vec();
        self
    }

    /// The alternatives that the sampler recorded; none if never set.
    #[must_use]
    pub fn top_k(mut self, alternatives: Alternatives) -> Self {
        self.top_k = Some(alternatives);
        self
    }

    /// Adds a turn; without any, the whole response is one.
    #[must_use]
    pub fn turn(mut self, turn: Turn) -> Self {
        self.turns.push(turn);
        self
    }

    /// The conversation of the prompt; one word of a user if never set.
    #[must_use]
    pub fn messages(mut self, messages: &[Message]) -> Self {
        self.messages = messages.to_vec();
        self
    }

    /// The conversation, and the prompt that the double's template makes of it.
    #[must_use]
    pub fn chat(self, messages: &[Message]) -> Self {
        let prompt = rendered(messages);
        self.messages(messages).prompt_tokens(&prompt)
    }

    /// Text of the response.
    #[must_use]
    pub fn response_text(mut self, text: &str) -> Self {
        self.response_text = text.to_owned();
        self
    }

    /// Adds a tag.
    #[must_use]
    pub fn tag(mut self, name: &str, value: &str) -> Self {
        self.tags.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The session.
    #[must_use]
    pub fn session(mut self, session: &str) -> Self {
        self.session = Some(session.to_owned());
        self
    }

    /// A field of the report's metadata, as JSON.
    #[must_use]
    pub fn field(mut self, name: &str, json: &str) -> Self {
        self.metadata.insert(name.to_owned(), json.to_owned());
        self
    }

    /// The sample that `derive` makes of this one.
    pub(super) fn derived(&self, prompt: Option<&[u32]>, response: Option<&[u32]>) -> Self {
        let mut derived = self.clone();
        if let Some(ids) = prompt {
            derived.prompt_tokens = ids.to_vec();
        }
        if let Some(ids) = response {
            derived = derived.mask(&vec![1; ids.len()]).tokens(ids).logprobs(&vec![0.0; ids.len()]);
        }
        derived
    }
}
