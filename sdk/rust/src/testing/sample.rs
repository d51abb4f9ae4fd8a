//! A sample of a test.

use std::collections::BTreeMap;

/// One trajectory and its report. A fresh one has one response token, sampled at log-prob −1.
#[derive(Debug, Clone, PartialEq)]
pub struct FakeSample {
    pub(super) score: f64,
    pub(super) lag: u32,
    pub(super) references: u32,
    pub(super) prompt: String,
    pub(super) mask: Vec<u8>,
    pub(super) tokens: Vec<u32>,
    pub(super) logprobs: Vec<f32>,
    pub(super) current: Option<Vec<f32>>,
    pub(super) base: Option<Vec<f32>>,
    pub(super) values: Vec<f32>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// Tokens of every fake prompt.
pub(super) const PROMPT_LENGTH: u32 = 4;

impl FakeSample {
    /// A sample whose report carries this score.
    pub fn scored(score: f64) -> Self {
        Self {
            score,
            lag: 0,
            references: 1,
            prompt: "prompt".to_owned(),
            mask: Vec::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            current: None,
            base: None,
            values: Vec::new(),
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
    pub fn forward(mut self, which: crate::Policy, logprobs: &[f32]) -> Self {
        let column = Some(logprobs.to_vec());
        match which {
            crate::Policy::Current => self.current = column,
            crate::Policy::Base => self.base = column,
        }
        self
    }

    /// What the critic values, T numbers; 0 if never set.
    #[must_use]
    pub fn values(mut self, values: &[f32]) -> Self {
        self.values = values.to_vec();
        self
    }

    /// A field of the report's metadata, as JSON.
    #[must_use]
    pub fn field(mut self, name: &str, json: &str) -> Self {
        self.metadata.insert(name.to_owned(), json.to_owned());
        self
    }
}
