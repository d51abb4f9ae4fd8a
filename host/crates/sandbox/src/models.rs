//! Capability `models`: the trait that the binary implements, and the host functions in front of it.
//! Held-out prompts stay in the host: a guest sees scores only.

use reef_core::Message;

use crate::bindings::reef::recipe::models as wit;
use crate::call_state::{CallState, terms};
use crate::offload::{Lost, offload};
use crate::text::clean;
use crate::{Capability, FaultKind};

/// Bytes of a binding's name.
const BINDING_BYTES_MAX: usize = 64;
/// Messages of one chat.
const MESSAGES_MAX: usize = 256;
/// Bytes of all messages of one chat.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Tokens of one answer.
const TOKENS_MAX: u32 = 8_192;
/// Highest temperature.
const TEMPERATURE_MAX: f32 = 10.0;
/// Roles of a message.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// How an answer is sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChatSampling {
    /// 0 = greedy, at most 10.
    pub temperature: f32,
    /// Nucleus mass in (0, 1].
    pub top_p: f32,
    /// Tokens of the answer, at least 1.
    pub tokens_max: u32,
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

/// The models behind one call. Every method may block.
pub trait Models: Send {
    /// The assistant's answer of the model bound to `binding`.
    fn chat(&mut self, binding: &str, messages: &[Message], sampling: ChatSampling) -> Result<String, ModelsError>;
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

impl From<ModelsError> for wit::ModelsError {
    fn from(error: ModelsError) -> Self {
        match error {
            ModelsError::UnknownBinding(name) => Self::UnknownBinding(name),
            ModelsError::Invalid(told) => Self::Invalid(told),
            ModelsError::Budget(told) => Self::Budget(told),
            ModelsError::Cancelled => Self::Cancelled,
            ModelsError::Other(told) => Self::Other(told),
        }
    }
}

impl CallState {
    async fn ask_models<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut dyn Models) -> Result<R, ModelsError> + Send + 'static,
    ) -> Result<R, wit::ModelsError> {
        let answer = offload(&mut self.models.worker, terms!(self), move |worker| work(worker.as_mut())).await;
        match answer {
            Ok(answer) => Ok(answer?),
            Err(Lost::Cancelled) => Err(wit::ModelsError::Cancelled),
            Err(Lost::Absent) => Err(wit::ModelsError::Other("model calls are not available in this call".to_owned())),
            Err(Lost::Panicked) => {
                self.cut(FaultKind::HostBug, "a model call panicked");
                Err(wit::ModelsError::Other("a model call panicked".to_owned()))
            }
        }
    }
}

fn check(holds: bool, told: impl FnOnce() -> String) -> Result<(), wit::ModelsError> {
    if holds { Ok(()) } else { Err(wit::ModelsError::Invalid(told())) }
}

fn binding(name: &str) -> Result<(), wit::ModelsError> {
    let valid = !name.is_empty()
        && name.len() <= BINDING_BYTES_MAX
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    if valid { Ok(()) } else { Err(wit::ModelsError::UnknownBinding(clean(name, BINDING_BYTES_MAX))) }
}

fn chat_messages(raw: Vec<wit::Message>) -> Result<Vec<Message>, wit::ModelsError> {
    check(!raw.is_empty() && raw.len() <= MESSAGES_MAX, || {
        format!("messages: {} is not in 1 to {MESSAGES_MAX}", raw.len())
    })?;
    let bytes: usize = raw.iter().map(|message| message.content.len()).sum();
    check(bytes <= MESSAGE_BYTES_MAX, || {
        format!("messages: {bytes} bytes and at most {MESSAGE_BYTES_MAX} are allowed")
    })?;
    for message in &raw {
        check(ROLES.contains(&message.role.as_str()), || {
            format!("messages: role '{}' is none of {}", clean(&message.role, 32), ROLES.join(", "))
        })?;
    }
    Ok(raw.into_iter().map(|message| Message { role: message.role, content: message.content }).collect())
}

fn sampling(raw: wit::Sampling) -> Result<ChatSampling, wit::ModelsError> {
    let temperature = raw.temperature;
    check((0.0..=TEMPERATURE_MAX).contains(&temperature), || {
        format!("temperature: {temperature} is not in [0, {TEMPERATURE_MAX}]")
    })?;
    check(raw.top_p > 0.0 && raw.top_p <= 1.0, || format!("top-p: {} is not in (0, 1]", raw.top_p))?;
    check((1..=TOKENS_MAX).contains(&raw.tokens_max), || {
        format!("tokens-max: {} is not in 1 to {TOKENS_MAX}", raw.tokens_max)
    })?;
    Ok(ChatSampling { temperature, top_p: raw.top_p, tokens_max: raw.tokens_max })
}

impl wit::Host for CallState {
    async fn chat(
        &mut self,
        name: String,
        messages: Vec<wit::Message>,
        how: wit::Sampling,
    ) -> Result<String, wit::ModelsError> {
        self.admit(Capability::Models).map_err(wit::ModelsError::Budget)?;
        binding(&name)?;
        let (messages, sampling) = (chat_messages(messages)?, sampling(how)?);
        self.ask_models(move |worker| worker.chat(&name, &messages, sampling)).await
    }

    async fn held_out_count(&mut self) -> Result<u32, wit::ModelsError> {
        self.admit(Capability::Models).map_err(wit::ModelsError::Budget)?;
        self.ask_models(|worker| worker.held_out_count()).await
    }

    async fn held_out_scores(&mut self, name: String, first: u32, count: u32) -> Result<Vec<f64>, wit::ModelsError> {
        self.admit(Capability::Models).map_err(wit::ModelsError::Budget)?;
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
        let told = format!("{} held-out scores for {count} tasks, or one outside [0, 1]", scores.len());
        self.cut(FaultKind::HostBug, &told);
        Err(wit::ModelsError::Other(told))
    }
}

#[cfg(test)]
mod tests {
    use super::wit::Host;
    use super::*;
    use crate::call::testing;

    struct Probe;

    impl Models for Probe {
        fn chat(&mut self, binding: &str, messages: &[Message], _: ChatSampling) -> Result<String, ModelsError> {
            if binding == "served" {
                Ok(messages[0].content.clone())
            } else {
                Err(ModelsError::UnknownBinding(binding.to_owned()))
            }
        }
        fn held_out_count(&mut self) -> Result<u32, ModelsError> {
            Ok(3)
        }
        fn held_out_scores(&mut self, binding: &str, _: u32, count: u32) -> Result<Vec<f64>, ModelsError> {
            Ok(vec![if binding == "served" { 0.5 } else { 2.0 }; count as usize])
        }
    }

    fn state() -> CallState {
        let mut state = testing::state(0, vec![]);
        state.models = ModelsHost { worker: Some(Box::new(Probe)) };
        state
    }

    fn greedy() -> wit::Sampling {
        wit::Sampling { temperature: 0.0, top_p: 1.0, tokens_max: 8 }
    }

    fn user(content: &str) -> Vec<wit::Message> {
        vec![wit::Message { role: "user".into(), content: content.into() }]
    }

    #[tokio::test]
    async fn arguments_are_refused_by_name() {
        let mut state = state();
        assert_eq!(state.chat("served".into(), user("hi"), greedy()).await.expect("answer"), "hi");
        assert!(matches!(
            state.chat("../x".into(), user("hi"), greedy()).await,
            Err(wit::ModelsError::UnknownBinding(_))
        ));
        let mut refused = async |messages, how| match state.chat("served".into(), messages, how).await {
            Err(wit::ModelsError::Invalid(told)) => told,
            other => panic!("{other:?}"),
        };
        assert!(refused(vec![], greedy()).await.starts_with("messages"));
        assert!(
            refused(user("hi"), wit::Sampling { temperature: f32::NAN, ..greedy() }).await.starts_with("temperature")
        );
        assert!(refused(user("hi"), wit::Sampling { top_p: 0.0, ..greedy() }).await.starts_with("top-p"));
        assert!(refused(user("hi"), wit::Sampling { tokens_max: 0, ..greedy() }).await.starts_with("tokens-max"));
        assert!(
            refused(vec![wit::Message { role: "root".into(), content: String::new() }], greedy())
                .await
                .contains("role 'root'")
        );
    }

    #[tokio::test]
    async fn held_out_ranges_stay_inside_the_tasks() {
        let mut state = state();
        assert_eq!(state.held_out_scores("served".into(), 1, 2).await.expect("scores"), [0.5, 0.5]);
        for (first, count) in [(0, 4), (3, 1), (u32::MAX, 2)] {
            assert!(matches!(
                state.held_out_scores("served".into(), first, count).await,
                Err(wit::ModelsError::Invalid(_))
            ));
        }
        assert!(state.held_out_scores("wrong".into(), 0, 1).await.is_err());
        assert_eq!(state.cut_off.expect("cut off").kind, FaultKind::HostBug);
    }
}
