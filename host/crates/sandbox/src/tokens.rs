//! Capability `tokens`: the tokenizer and the chat template of the scenario's model.
//! The work may take long for long texts and runs off the guest's threads.

use reef_core::Message;

use crate::call_state::{CallState, denied_becomes};
use crate::chat::check_conversation;
use crate::offload::{Lost, NO_THREAD};
use crate::{Capability, FaultKind};

/// Bytes of a text to encode.
const TEXT_BYTES_MAX: usize = 1024 * 1024;
/// Ids to decode at once.
const IDS_MAX: usize = 262_144;
/// Messages of a conversation to render.
const MESSAGES_MAX: usize = 4_096;

/// The tokenizer of a call. Methods may block; errors are sentences that name the argument.
pub trait Tokens: Send + Sync {
    /// Ids of a text, without special tokens being added.
    fn encode(&self, text: &str) -> Result<Vec<u32>, String>;
    /// Text of ids; partial characters become U+FFFD.
    fn decode(&self, ids: &[u32]) -> Result<String, String>;
    /// Ids of a conversation through the chat template, up to where the assistant answers.
    fn render(&self, messages: &[Message]) -> Result<Vec<u32>, String>;
}

/// Why the tokenizer is not asked, or refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokensError {
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Budget(String),
    #[error("{0}")]
    Other(String),
}
denied_becomes!(TokensError);

impl CallState {
    pub(crate) async fn encode(&mut self, text: String) -> Result<Vec<u32>, TokensError> {
        self.admit(Capability::Tokens, &text)?;
        at_most("text", text.len(), TEXT_BYTES_MAX, "bytes")?;
        self.ask_tokens(move |tokens| tokens.encode(&text)).await
    }

    pub(crate) async fn decode(&mut self, ids: Vec<u32>) -> Result<String, TokensError> {
        self.admit(Capability::Tokens, &ids)?;
        at_most("ids", ids.len(), IDS_MAX, "ids")?;
        self.ask_tokens(move |tokens| tokens.decode(&ids)).await
    }

    pub(crate) async fn render(&mut self, messages: Vec<Message>) -> Result<Vec<u32>, TokensError> {
        self.admit(Capability::Tokens, &messages)?;
        check_conversation(&messages, MESSAGES_MAX).map_err(TokensError::Invalid)?;
        self.ask_tokens(move |tokens| tokens.render(&messages)).await
    }

    async fn ask_tokens<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&dyn Tokens) -> Result<R, String> + Send + 'static,
    ) -> Result<R, TokensError> {
        match self.blocking(self.tokens.clone(), move |tokens| work(tokens.as_ref())).await {
            Ok(answer) => answer.map_err(TokensError::Invalid),
            Err(Lost::Absent) => Err(TokensError::Other("there is no tokenizer in this call".to_owned())),
            Err(Lost::Cancelled) => Err(TokensError::Other("the step was cancelled".to_owned())),
            Err(Lost::NoThread) => Err(TokensError::Other(NO_THREAD.to_owned())),
            Err(Lost::Panicked) => {
                self.cut(FaultKind::HostBug, "the tokenizer panicked");
                Err(TokensError::Other("the tokenizer panicked".to_owned()))
            }
        }
    }
}

fn at_most(name: &str, count: usize, most: usize, unit: &str) -> Result<(), TokensError> {
    if count <= most {
        return Ok(());
    }
    Err(TokensError::Invalid(format!("{name}: {count} {unit} and at most {most} are allowed")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::call::testing;

    /// One id a byte.
    struct BytesOnly;

    impl Tokens for BytesOnly {
        fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
            Ok(text.bytes().map(u32::from).collect())
        }
        fn decode(&self, ids: &[u32]) -> Result<String, String> {
            let bytes: Result<Vec<u8>, _> = ids.iter().map(|id| u8::try_from(*id)).collect();
            bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(|_| "ids: unknown id".into())
        }
        fn render(&self, _: &[Message]) -> Result<Vec<u32>, String> {
            panic!("a bug of the host")
        }
    }

    #[tokio::test]
    async fn texts_become_ids_and_back_within_limits() {
        let mut state = testing::state(1, vec![0]);
        assert!(matches!(state.encode("a".into()).await, Err(TokensError::Other(_))), "no tokenizer in this call");
        state.tokens = Some(Arc::new(BytesOnly));
        assert_eq!(state.encode("ab".into()).await, Ok(vec![97, 98]));
        assert_eq!(state.decode(vec![97, 98]).await, Ok("ab".into()));
        assert_eq!(state.decode(vec![300]).await, Err(TokensError::Invalid("ids: unknown id".into())));
        assert!(matches!(state.encode("x".repeat(TEXT_BYTES_MAX + 1)).await, Err(TokensError::Invalid(_))));
        assert!(matches!(state.decode(vec![97; IDS_MAX + 1]).await, Err(TokensError::Invalid(_))));
        assert_eq!(state.response_text(0).await, Ok("\n".into()));
    }

    #[tokio::test]
    async fn a_tokenizer_that_panics_is_a_bug_of_the_host() {
        let mut state = testing::state(0, vec![]);
        state.tokens = Some(Arc::new(BytesOnly));
        assert!(matches!(state.render(vec![]).await, Err(TokensError::Invalid(_))));
        let user = Message { role: "user".into(), content: "hi".into() };
        assert!(state.render(vec![user]).await.is_err());
        assert_eq!(state.cut_off.expect("cut off").kind, FaultKind::HostBug);
    }
}
