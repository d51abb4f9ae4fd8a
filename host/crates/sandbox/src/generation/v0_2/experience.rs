//! The import `experience`: each function translates its arguments, asks the call's state, and translates the answer.

use reef_core::{Alternatives, AssemblyError};

use super::answers::wit_message;
use super::bindings::reef::recipe::experience as wit;
use super::bindings::reef::recipe::types::Message;
use crate::call_state::CallState;
use crate::experience::{ExperienceError, TurnView};

impl From<ExperienceError> for wit::ExperienceError {
    fn from(error: ExperienceError) -> Self {
        match error {
            ExperienceError::UnknownSample(sample) => Self::UnknownSample(sample),
            ExperienceError::Budget(told) => Self::Budget(told),
            ExperienceError::Absent(told) => Self::Absent(told),
            ExperienceError::Other(told) => Self::Other(told),
        }
    }
}

fn turn(turn: TurnView) -> wit::Turn {
    wit::Turn { id: turn.id, release: turn.release, start: turn.start, length: turn.length }
}

fn unusable((report, why): (String, AssemblyError)) -> wit::UnusableReport {
    let turn = |turn: usize| u32::try_from(turn).unwrap_or(u32::MAX);
    let why = match why {
        AssemblyError::Empty => wit::AssemblyFailure::Empty,
        AssemblyError::NoTokens(at) => wit::AssemblyFailure::NoTokens(turn(at)),
        AssemblyError::Fork(at) => wit::AssemblyFailure::Fork(turn(at)),
    };
    wit::UnusableReport { report, why }
}

impl wit::Host for CallState {
    fn scores(&mut self, items: Vec<u32>) -> Result<Vec<f64>, wit::ExperienceError> {
        let answer = CallState::scores(self, &items);
        self.hand(answer)
    }

    fn lags(&mut self, items: Vec<u32>) -> Result<Vec<u32>, wit::ExperienceError> {
        let answer = CallState::lags(self, &items);
        self.hand(answer)
    }

    fn releases(&mut self, items: Vec<u32>) -> Result<Vec<String>, wit::ExperienceError> {
        let answer = CallState::releases(self, &items);
        self.hand(answer)
    }

    fn reference_counts(&mut self, items: Vec<u32>) -> Result<Vec<u32>, wit::ExperienceError> {
        let answer = CallState::reference_counts(self, &items);
        self.hand(answer)
    }

    fn prompt_lengths(&mut self, items: Vec<u32>) -> Result<Vec<u32>, wit::ExperienceError> {
        let answer = CallState::prompt_lengths(self, &items);
        self.hand(answer)
    }

    fn response_lengths(&mut self, items: Vec<u32>) -> Result<Vec<u32>, wit::ExperienceError> {
        let answer = CallState::response_lengths(self, &items);
        self.hand(answer)
    }

    fn action_counts(&mut self, items: Vec<u32>) -> Result<Vec<u32>, wit::ExperienceError> {
        let answer = CallState::action_counts(self, &items);
        self.hand(answer)
    }

    fn mean_logprobs(&mut self, items: Vec<u32>) -> Result<Vec<f64>, wit::ExperienceError> {
        let answer = CallState::mean_logprobs(self, &items);
        self.hand(answer)
    }

    fn record_ids(&mut self, items: Vec<u32>) -> Result<Vec<String>, wit::ExperienceError> {
        let answer = CallState::record_ids(self, &items);
        self.hand(answer)
    }

    fn prompt_keys(&mut self, items: Vec<u32>) -> Result<Vec<String>, wit::ExperienceError> {
        let answer = CallState::prompt_keys(self, &items);
        self.hand(answer)
    }

    fn mask(&mut self, item: u32) -> Result<Vec<u8>, wit::ExperienceError> {
        let answer = CallState::mask(self, item);
        self.hand(answer)
    }

    fn prompt_tokens(&mut self, item: u32) -> Result<Vec<u32>, wit::ExperienceError> {
        let answer = CallState::prompt_tokens(self, item);
        self.hand(answer)
    }

    fn tokens(&mut self, item: u32) -> Result<Vec<u32>, wit::ExperienceError> {
        let answer = CallState::tokens(self, item);
        self.hand(answer)
    }

    fn logprobs(&mut self, item: u32) -> Result<Vec<f32>, wit::ExperienceError> {
        let answer = CallState::logprobs(self, item);
        self.hand(answer)
    }

    fn top_k(&mut self, item: u32) -> Result<wit::Alternatives, wit::ExperienceError> {
        let answer = CallState::top_k(self, item);
        self.hand(answer).map(|Alternatives { k, ids, logprobs }| wit::Alternatives { k, ids, logprobs })
    }

    fn turns(&mut self, item: u32) -> Result<Vec<wit::Turn>, wit::ExperienceError> {
        let answer = CallState::turns(self, item);
        self.hand(answer).map(|turns| turns.into_iter().map(turn).collect())
    }

    async fn messages(&mut self, item: u32) -> Result<Vec<Message>, wit::ExperienceError> {
        let answer = CallState::messages(self, item).await;
        self.hand(answer).map(|messages| messages.into_iter().map(wit_message).collect())
    }

    async fn response_text(&mut self, item: u32) -> Result<String, wit::ExperienceError> {
        let answer = CallState::response_text(self, item).await;
        self.hand(answer)
    }

    async fn tags(&mut self, item: u32) -> Result<Vec<(String, String)>, wit::ExperienceError> {
        let answer = CallState::tags(self, item).await;
        self.hand(answer)
    }

    async fn session(&mut self, item: u32) -> Result<Option<String>, wit::ExperienceError> {
        let answer = CallState::session(self, item).await;
        self.hand(answer)
    }

    fn report_field(&mut self, item: u32, name: String) -> Result<Option<String>, wit::ExperienceError> {
        let answer = CallState::report_field(self, item, &name);
        self.hand(answer)
    }

    fn unusable(&mut self) -> Result<Vec<wit::UnusableReport>, wit::ExperienceError> {
        let answer = CallState::unusable(self);
        self.hand(answer).map(|reports| reports.into_iter().map(unusable).collect())
    }
}
