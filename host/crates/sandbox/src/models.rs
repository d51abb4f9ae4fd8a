//! Capability `models`: the trait that the binary implements, and the host functions in front of it.
//! Held-out prompts stay in the host: a guest sees scores only.

use reef_core::Message;

use crate::call_state::{CallState, denied_becomes, terms};
use crate::chat::check_conversation;
use crate::offload::{Lost, NO_THREAD, offload};
use crate::text::{clean, is_binding_name};
use crate::traffic::Bytes;
use crate::{Capability, FaultKind};

/// Bytes of a binding's name that an error repeats.
const BINDING_BYTES_MAX: usize = 64;
/// Messages of one chat.
const MESSAGES_MAX: usize = 256;
/// Requests of one call.
const REQUESTS_MAX: usize = 64;
/// Answers to one request.
const ANSWERS_MAX: u32 = 64;
/// Tokens of one answer.
const TOKENS_MAX: u32 = 8_192;
/// Highest temperature.
const TEMPERATURE_MAX: f32 = 10.0;
/// Strings that end an answer.
const STOPS_MAX: usize = 16;
/// Bytes of a string that ends an answer.
const STOP_BYTES_MAX: usize = 256;
/// Bytes of an answer to be scored.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// How answers are sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatSampling {
    /// 0 = greedy, at most 10.
    pub temperature: f32,
    /// Nucleus mass in (0, 1].
    pub top_p: f32,
    /// Tokens of one answer, 1 to 8,192.
    pub tokens_max: u32,
    /// Strings that end an answer; at most 16 of 1 to 256 bytes.
    pub stop: Vec<String>,
    /// Answers to draw, 1 to 64.
    pub n: u32,
    /// Seed of the first answer; the next ones count up. None = drawn from the step's seed.
    pub seed: Option<u32>,
}

/// A conversation to answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// 1 to 256 messages.
    pub messages: Vec<Message>,
    /// How.
    pub sampling: ChatSampling,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// By itself, or at a stop string.
    Stop,
    /// At the number of tokens allowed.
    Length,
}

/// One answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// Its text.
    pub text: String,
    /// How it ended.
    pub finish: Finish,
    /// Its tokens.
    pub tokens: u32,
    /// Mean natural-log probability of its tokens; NaN where the provider gives none.
    pub mean_logprob: f64,
}

/// What a step has used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Answers drawn and scored.
    pub calls: u32,
    /// Tokens read.
    pub prompt_tokens: u32,
    /// Tokens drawn.
    pub answer_tokens: u32,
    /// Money at the operator's prices, US dollars; 0 for models of this machine.
    pub cost_usd: f64,
}

impl Bytes for ChatRequest {
    fn bytes(&self) -> u64 {
        const NUMBERS_BYTES: u64 = 20;
        (&self.messages, &self.sampling.stop).bytes().saturating_add(NUMBERS_BYTES)
    }
}

impl Bytes for Completion {
    fn bytes(&self) -> u64 {
        (&self.text, self.tokens, self.mean_logprob).bytes().saturating_add(1)
    }
}

impl Bytes for Usage {
    fn bytes(&self) -> u64 {
        size_of::<Self>() as u64
    }
}

/// Why a model call is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelsError {
    /// No such binding in this call.
    #[error("there is no model binding '{0}' in this call")]
    UnknownBinding(String),
    /// An argument, named.
    #[error("{0}")]
    Invalid(String),
    /// More calls or tokens than the step may use.
    #[error("{0}")]
    Budget(String),
    /// The step was cancelled.
    #[error("the step was cancelled")]
    Cancelled,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}
denied_becomes!(ModelsError);

/// The models behind one call. Every method may block.
pub trait Models: Send {
    /// Names that `chat`, `score` and `held_out_scores` know.
    fn bindings(&mut self) -> Result<Vec<String>, ModelsError>;
    /// Answers of the model bound to `binding`: per request as many as it asks for, in order.
    fn chat(&mut self, binding: &str, requests: Vec<ChatRequest>) -> Result<Vec<Vec<Completion>>, ModelsError>;
    /// Natural-log probability of each token of `answer` after the conversation.
    fn score(&mut self, binding: &str, messages: &[Message], answer: &str) -> Result<Vec<f32>, ModelsError>;
    /// What the step has used so far.
    fn spent(&mut self) -> Result<Usage, ModelsError>;
    /// Held-out tasks of the scenario.
    fn held_out_count(&mut self) -> Result<u32, ModelsError>;
    /// Scores in [0, 1] of greedy answers to the tasks `first..first + count`, which exist.
    fn held_out_scores(&mut self, binding: &str, first: u32, count: u32) -> Result<Vec<f64>, ModelsError>;
}

/// The models of a call.
#[derive(Default)]
pub(crate) struct ModelsHost {
    pub(crate) worker: Option<Box<dyn Models>>,
}

impl CallState {
    async fn ask_models<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut dyn Models) -> Result<R, ModelsError> + Send + 'static,
    ) -> Result<R, ModelsError> {
        let answer = offload(&mut self.models.worker, terms!(self), move |worker| work(worker.as_mut())).await;
        match answer {
            Ok(answer) => answer,
            Err(Lost::Cancelled) => Err(ModelsError::Cancelled),
            Err(Lost::Absent) => Err(ModelsError::Other("model calls are not available in this call".to_owned())),
            Err(Lost::NoThread) => Err(ModelsError::Other(NO_THREAD.to_owned())),
            Err(Lost::Panicked) => Err(self.models_bug("a model call panicked")),
        }
    }

    fn models_bug(&mut self, told: &str) -> ModelsError {
        self.cut(FaultKind::HostBug, told);
        ModelsError::Other(told.to_owned())
    }

    pub(crate) async fn bindings(&mut self) -> Result<Vec<String>, ModelsError> {
        self.admit(Capability::Models, &())?;
        self.ask_models(|worker| worker.bindings()).await
    }

    pub(crate) async fn chat(
        &mut self,
        name: String,
        requests: Vec<ChatRequest>,
    ) -> Result<Vec<Vec<Completion>>, ModelsError> {
        self.admit(Capability::Models, &(&name, &requests))?;
        binding(&name)?;
        check((1..=REQUESTS_MAX).contains(&requests.len()), || {
            format!("requests: {} is not in 1 to {REQUESTS_MAX}", requests.len())
        })?;
        requests.iter().try_for_each(chat_request)?;
        let wanted: Vec<usize> = requests.iter().map(|request| request.sampling.n as usize).collect();
        let answers = self.ask_models(move |worker| worker.chat(&name, requests)).await?;
        if answers.iter().map(Vec::len).eq(wanted) {
            return Ok(answers);
        }
        Err(self.models_bug("a model gave another number of answers than was asked for"))
    }

    pub(crate) async fn score(
        &mut self,
        name: String,
        messages: Vec<Message>,
        answer: String,
    ) -> Result<Vec<f32>, ModelsError> {
        self.admit(Capability::Models, &(&name, &messages, &answer))?;
        binding(&name)?;
        check_conversation(&messages, MESSAGES_MAX).map_err(ModelsError::Invalid)?;
        check(answer.len() <= ANSWER_BYTES_MAX, || {
            format!("answer: {} bytes and at most {ANSWER_BYTES_MAX} are allowed", answer.len())
        })?;
        self.ask_models(move |worker| worker.score(&name, &messages, &answer)).await
    }

    pub(crate) async fn spent(&mut self) -> Result<Usage, ModelsError> {
        self.admit(Capability::Models, &())?;
        self.ask_models(|worker| worker.spent()).await
    }

    pub(crate) async fn held_out_count(&mut self) -> Result<u32, ModelsError> {
        self.admit(Capability::Models, &())?;
        self.ask_models(|worker| worker.held_out_count()).await
    }

    pub(crate) async fn held_out_scores(
        &mut self,
        name: String,
        first: u32,
        count: u32,
    ) -> Result<Vec<f64>, ModelsError> {
        self.admit(Capability::Models, &(&name, first, count))?;
        binding(&name)?;
        let scores = self.ask_models(move |worker| {
            let tasks = worker.held_out_count()?;
            if first.checked_add(count).is_none_or(|end| end > tasks) {
                return Err(ModelsError::Invalid(format!(
                    "tasks {first} to {first} + {count}: the scenario has {tasks} held-out tasks"
                )));
            }
            worker.held_out_scores(&name, first, count)
        });
        let scores = scores.await?;
        if scores.len() == count as usize && scores.iter().all(|score| (0.0..=1.0).contains(score)) {
            return Ok(scores);
        }
        Err(self.models_bug(&format!("{} held-out scores for {count} tasks, or one outside [0, 1]", scores.len())))
    }
}

fn check(holds: bool, told: impl FnOnce() -> String) -> Result<(), ModelsError> {
    if holds { Ok(()) } else { Err(ModelsError::Invalid(told())) }
}

fn binding(name: &str) -> Result<(), ModelsError> {
    if is_binding_name(name) { Ok(()) } else { Err(ModelsError::UnknownBinding(clean(name, BINDING_BYTES_MAX))) }
}

fn chat_request(request: &ChatRequest) -> Result<(), ModelsError> {
    check_conversation(&request.messages, MESSAGES_MAX).map_err(ModelsError::Invalid)?;
    let how = &request.sampling;
    check((0.0..=TEMPERATURE_MAX).contains(&how.temperature), || {
        format!("temperature: {} is not in [0, {TEMPERATURE_MAX}]", how.temperature)
    })?;
    check(how.top_p > 0.0 && how.top_p <= 1.0, || format!("top-p: {} is not in (0, 1]", how.top_p))?;
    check((1..=TOKENS_MAX).contains(&how.tokens_max), || {
        format!("tokens-max: {} is not in 1 to {TOKENS_MAX}", how.tokens_max)
    })?;
    check((1..=ANSWERS_MAX).contains(&how.n), || format!("n: {} is not in 1 to {ANSWERS_MAX}", how.n))?;
    check(how.stop.len() <= STOPS_MAX, || {
        format!("stop: {} strings and at most {STOPS_MAX} are allowed", how.stop.len())
    })?;
    check(how.stop.iter().all(|stop| (1..=STOP_BYTES_MAX).contains(&stop.len())), || {
        format!("stop: a string has 1 to {STOP_BYTES_MAX} bytes")
    })
}

#[cfg(test)]
#[path = "models_tests.rs"]
mod tests;
