//! The other imports: each function translates its arguments, asks the call's state, and translates the answer.

use super::answers::own_messages;
use super::bindings::reef::recipe::{config, log, metrics, models, state, tokens, types, verify};
use crate::call_state::CallState;
use crate::log::Level;
use crate::state::StateError;
use crate::tokens::TokensError;
use crate::verify::VerifyError;
use crate::{ChatRequest, ChatSampling, Completion, Finish, ModelsError};

impl types::Host for CallState {}

impl From<ModelsError> for models::ModelsError {
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

fn request(raw: models::ChatRequest) -> ChatRequest {
    ChatRequest {
        messages: own_messages(raw.messages),
        sampling: ChatSampling {
            temperature: raw.how.temperature,
            top_p: raw.how.top_p,
            tokens_max: raw.how.tokens_max,
            stop: raw.how.stop,
            n: raw.how.n,
            seed: raw.how.seed,
        },
    }
}

fn completion(completion: Completion) -> models::Completion {
    models::Completion {
        text: completion.text,
        finish: match completion.finish {
            Finish::Stop => models::Finish::Stop,
            Finish::Length => models::Finish::Length,
        },
        tokens: completion.tokens,
        mean_logprob: completion.mean_logprob,
    }
}

fn completions(answers: Vec<Vec<Completion>>) -> Vec<Vec<models::Completion>> {
    answers.into_iter().map(|drawn| drawn.into_iter().map(completion).collect()).collect()
}

impl models::Host for CallState {
    async fn bindings(&mut self) -> Result<Vec<String>, models::ModelsError> {
        let answer = CallState::bindings(self).await;
        self.hand(answer)
    }

    async fn chat(
        &mut self,
        binding: String,
        requests: Vec<models::ChatRequest>,
    ) -> Result<Vec<Vec<models::Completion>>, models::ModelsError> {
        let answer = CallState::chat(self, binding, requests.into_iter().map(request).collect()).await;
        self.hand(answer).map(completions)
    }

    async fn score(
        &mut self,
        binding: String,
        messages: Vec<types::Message>,
        answer: String,
    ) -> Result<Vec<f32>, models::ModelsError> {
        let answer = CallState::score(self, binding, own_messages(messages), answer).await;
        self.hand(answer)
    }

    async fn spent(&mut self) -> Result<models::Usage, models::ModelsError> {
        let answer = CallState::spent(self).await;
        self.hand(answer).map(|usage| models::Usage {
            calls: usage.calls,
            prompt_tokens: usage.prompt_tokens,
            answer_tokens: usage.answer_tokens,
            cost_usd: usage.cost_usd,
        })
    }

    async fn held_out_count(&mut self) -> Result<u32, models::ModelsError> {
        let answer = CallState::held_out_count(self).await;
        self.hand(answer)
    }

    async fn held_out_scores(
        &mut self,
        binding: String,
        first: u32,
        count: u32,
    ) -> Result<Vec<f64>, models::ModelsError> {
        let answer = CallState::held_out_scores(self, binding, first, count).await;
        self.hand(answer)
    }
}

impl From<TokensError> for tokens::TokensError {
    fn from(error: TokensError) -> Self {
        match error {
            TokensError::Invalid(told) => Self::Invalid(told),
            TokensError::Budget(told) => Self::Budget(told),
            TokensError::Other(told) => Self::Other(told),
        }
    }
}

impl tokens::Host for CallState {
    async fn encode(&mut self, text: String) -> Result<Vec<u32>, tokens::TokensError> {
        let answer = CallState::encode(self, text).await;
        self.hand(answer)
    }

    async fn decode(&mut self, ids: Vec<u32>) -> Result<String, tokens::TokensError> {
        let answer = CallState::decode(self, ids).await;
        self.hand(answer)
    }

    async fn render(&mut self, messages: Vec<types::Message>) -> Result<Vec<u32>, tokens::TokensError> {
        let answer = CallState::render(self, own_messages(messages)).await;
        self.hand(answer)
    }
}

impl From<VerifyError> for verify::VerifyError {
    fn from(error: VerifyError) -> Self {
        match error {
            VerifyError::UnknownVerifier(name) => Self::UnknownVerifier(name),
            VerifyError::Failed(told) => Self::Failed(told),
            VerifyError::Budget(told) => Self::Budget(told),
            VerifyError::Other(told) => Self::Other(told),
        }
    }
}

impl verify::Host for CallState {
    async fn verifiers(&mut self) -> Result<Vec<String>, verify::VerifyError> {
        let answer = self.verifier_names();
        self.hand(answer)
    }

    async fn check(
        &mut self,
        verifier: String,
        task: String,
        answer: String,
    ) -> Result<verify::Outcome, verify::VerifyError> {
        let checked = self.verify(&verifier, task, answer).await;
        let checked = self.hand(checked);
        checked.map(|check| verify::Outcome { score: check.score, passed: check.passed, detail: check.detail })
    }
}

impl From<StateError> for state::StateError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::TooLarge(told) => Self::TooLarge(told),
            StateError::Budget(told) => Self::Budget(told),
            StateError::Other(told) => Self::Other(told),
        }
    }
}

impl state::Host for CallState {
    fn get(&mut self, key: String) -> Result<Option<Vec<u8>>, state::StateError> {
        let answer = self.state_get(&key);
        self.hand(answer)
    }

    fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), state::StateError> {
        let answer = self.state_set(key, value);
        self.hand(answer)
    }

    fn delete(&mut self, key: String) -> Result<(), state::StateError> {
        let answer = self.state_delete(&key);
        self.hand(answer)
    }

    fn keys(&mut self) -> Result<Vec<String>, state::StateError> {
        let answer = self.state_keys();
        self.hand(answer)
    }
}

impl config::Host for CallState {
    fn get(&mut self, key: String) -> Option<String> {
        self.config_get(&key)
    }

    fn get_all(&mut self) -> Vec<(String, String)> {
        self.config_get_all()
    }
}

impl log::Host for CallState {
    fn log(&mut self, level: log::Level, context: String, message: String) {
        let level = match level {
            log::Level::Trace => Level::Trace,
            log::Level::Debug => Level::Debug,
            log::Level::Info => Level::Info,
            log::Level::Warn => Level::Warn,
            log::Level::Error | log::Level::Critical => Level::Error,
        };
        self.log_line(level, &context, &message);
    }
}

impl metrics::Host for CallState {
    fn gauge(&mut self, name: String, value: f64) {
        CallState::gauge(self, name, value);
    }
}
