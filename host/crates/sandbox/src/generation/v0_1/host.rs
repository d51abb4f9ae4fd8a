//! The imports: each function translates its arguments, asks the call's state, and translates the answer.

use std::collections::BTreeMap;

use super::bindings::reef::recipe::{config, experience, log, metrics, models, state, training, types};
use crate::call_state::CallState;
use crate::experience::ExperienceError;
use crate::generation::message;
use crate::log::Level;
use crate::state::StateError;
use crate::training::{Advantages, Draft, DraftTerm, TrainingRefusal};
use crate::{
    Bounds, ChatRequest, ChatSampling, ModelsError, Optimizer, Policy, PolicyGradient, RatioSource, Reduction,
    TrainingError, Weight,
};

impl types::Host for CallState {}

impl From<ExperienceError> for experience::ExperienceError {
    fn from(error: ExperienceError) -> Self {
        match error {
            ExperienceError::UnknownSample(sample) => Self::UnknownSample(sample),
            ExperienceError::Budget(told) => Self::Budget(told),
            ExperienceError::Absent(told) | ExperienceError::Other(told) => Self::Other(told),
        }
    }
}

impl experience::Host for CallState {
    fn scores(&mut self, items: Vec<u32>) -> Result<Vec<f64>, experience::ExperienceError> {
        let answer = CallState::scores(self, &items);
        self.hand(answer)
    }

    fn lags(&mut self, items: Vec<u32>) -> Result<Vec<u32>, experience::ExperienceError> {
        let answer = CallState::lags(self, &items);
        self.hand(answer)
    }

    fn reference_counts(&mut self, items: Vec<u32>) -> Result<Vec<u32>, experience::ExperienceError> {
        let answer = CallState::reference_counts(self, &items);
        self.hand(answer)
    }

    fn prompt_lengths(&mut self, items: Vec<u32>) -> Result<Vec<u32>, experience::ExperienceError> {
        let answer = CallState::prompt_lengths(self, &items);
        self.hand(answer)
    }

    fn response_lengths(&mut self, items: Vec<u32>) -> Result<Vec<u32>, experience::ExperienceError> {
        let answer = CallState::response_lengths(self, &items);
        self.hand(answer)
    }

    fn mean_logprobs(&mut self, items: Vec<u32>) -> Result<Vec<f64>, experience::ExperienceError> {
        let answer = CallState::mean_logprobs(self, &items);
        self.hand(answer)
    }

    fn record_ids(&mut self, items: Vec<u32>) -> Result<Vec<String>, experience::ExperienceError> {
        let answer = CallState::record_ids(self, &items);
        self.hand(answer)
    }

    fn prompt_keys(&mut self, items: Vec<u32>) -> Result<Vec<String>, experience::ExperienceError> {
        let answer = CallState::prompt_keys(self, &items);
        self.hand(answer)
    }

    fn mask(&mut self, item: u32) -> Result<Vec<u8>, experience::ExperienceError> {
        let answer = CallState::mask(self, item);
        self.hand(answer)
    }

    fn tokens(&mut self, item: u32) -> Result<Vec<u32>, experience::ExperienceError> {
        let answer = CallState::tokens(self, item);
        self.hand(answer)
    }

    fn logprobs(&mut self, item: u32) -> Result<Vec<f32>, experience::ExperienceError> {
        let answer = CallState::logprobs(self, item);
        self.hand(answer)
    }

    fn report_field(&mut self, item: u32, name: String) -> Result<Option<String>, experience::ExperienceError> {
        let answer = CallState::report_field(self, item, &name);
        self.hand(answer)
    }
}

impl From<TrainingRefusal> for training::TrainingError {
    fn from(refusal: TrainingRefusal) -> Self {
        match refusal {
            TrainingRefusal::UnknownSample(sample) => Self::UnknownSample(sample),
            TrainingRefusal::UnknownTrainer(trainer) => Self::UnknownTrainer(trainer),
            TrainingRefusal::Refused(TrainingError::Invalid(told)) => Self::Invalid(told),
            TrainingRefusal::Refused(TrainingError::Budget(told)) => Self::Budget(told),
            TrainingRefusal::Refused(TrainingError::Cancelled) => Self::Cancelled,
            TrainingRefusal::Refused(TrainingError::Unsupported(told) | TrainingError::Other(told)) => {
                Self::Other(told)
            }
        }
    }
}

fn bounds(raw: training::Bounds) -> Bounds {
    Bounds { low: raw.low, high: raw.high }
}

fn term(raw: training::Objective) -> DraftTerm {
    let objective = match raw {
        training::Objective::Nll => Draft::Nll,
        training::Objective::PolicyGradient(raw) => Draft::PolicyGradient(
            PolicyGradient {
                weight: match raw.weight {
                    training::Weight::Reinforce => Weight::Reinforce,
                    training::Weight::Ratio => Weight::Ratio,
                    training::Weight::Truncated(cap) => Weight::Truncated(cap),
                    training::Weight::Masked(given) => Weight::Masked(bounds(given)),
                    training::Weight::Ppo(given) => Weight::Ppo(bounds(given)),
                },
                old: RatioSource::Rollout,
                advantages: Vec::new(),
                reduction: match raw.reduction {
                    training::Reduction::TokenSum => Reduction::TokenSum,
                    training::Reduction::SampleTokenMean => Reduction::SampleTokenMean,
                    training::Reduction::GlobalTokenMean => Reduction::GlobalTokenMean,
                },
                kl: None,
                entropy: 0.0,
                score_centering: false,
            },
            Advantages::PerToken(raw.advantages),
        ),
    };
    DraftTerm { factor: 1.0, objective }
}

fn optimizer(raw: training::Optimizer) -> Optimizer {
    Optimizer {
        learning_rate: raw.learning_rate,
        beta1: raw.beta1,
        beta2: raw.beta2,
        epsilon: raw.epsilon,
        weight_decay: raw.weight_decay,
        gradient_norm_max: raw.gradient_norm_max,
    }
}

fn measurements(metrics: BTreeMap<String, f64>) -> Vec<types::Measurement> {
    metrics.into_iter().map(|(name, value)| types::Measurement { name, value }).collect()
}

impl training::Host for CallState {
    async fn open(&mut self) -> Result<u32, training::TrainingError> {
        let answer = CallState::open(self).await;
        self.hand(answer)
    }

    async fn forward(
        &mut self,
        on: u32,
        which: training::Policy,
        items: Vec<u32>,
    ) -> Result<Vec<f32>, training::TrainingError> {
        let which = match which {
            training::Policy::Current => Policy::Current,
            training::Policy::Base => Policy::Base,
        };
        let answer = CallState::forward(self, on, which, items).await;
        self.hand(answer)
    }

    async fn train(
        &mut self,
        on: u32,
        items: Vec<u32>,
        what: training::Objective,
        how: training::Optimizer,
    ) -> Result<Vec<types::Measurement>, training::TrainingError> {
        let answer = CallState::train(self, on, items, vec![term(what)], optimizer(how)).await;
        self.hand(answer).map(measurements)
    }

    async fn values(&mut self, on: u32, items: Vec<u32>) -> Result<Vec<f32>, training::TrainingError> {
        let answer = CallState::values(self, on, items).await;
        self.hand(answer)
    }

    async fn fit_values(
        &mut self,
        on: u32,
        items: Vec<u32>,
        returns: Vec<f32>,
        how: training::CriticOptimizer,
    ) -> Result<Vec<types::Measurement>, training::TrainingError> {
        let answer = CallState::fit_values(self, on, items, returns, (how.learning_rate, how.updates)).await;
        self.hand(answer).map(measurements)
    }

    async fn checkpoint(&mut self, on: u32) -> Result<u32, training::TrainingError> {
        let answer = CallState::checkpoint(self, on).await;
        self.hand(answer)
    }
}

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

impl models::Host for CallState {
    async fn chat(
        &mut self,
        binding: String,
        messages: Vec<models::Message>,
        how: models::Sampling,
    ) -> Result<String, models::ModelsError> {
        let request = ChatRequest {
            messages: messages.into_iter().map(|raw| message(raw.role, raw.content)).collect(),
            sampling: ChatSampling {
                temperature: how.temperature,
                top_p: how.top_p,
                tokens_max: how.tokens_max,
                stop: Vec::new(),
                n: 1,
                seed: None,
            },
        };
        let answers = CallState::chat(self, binding, vec![request]).await;
        let text = answers.map(|answers| answers.into_iter().flatten().map(|answer| answer.text).collect());
        self.hand(text)
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
}

impl config::Host for CallState {
    fn get(&mut self, key: String) -> Option<String> {
        self.config_get(&key)
    }
}

impl log::Host for CallState {
    fn log(&mut self, level: log::Level, message: String) {
        let level = match level {
            log::Level::Trace => Level::Trace,
            log::Level::Debug => Level::Debug,
            log::Level::Info => Level::Info,
            log::Level::Warn => Level::Warn,
            log::Level::Error => Level::Error,
        };
        self.log_line(level, "", &message);
    }
}

impl metrics::Host for CallState {
    fn gauge(&mut self, name: String, value: f64) {
        CallState::gauge(self, name, value);
    }
}
