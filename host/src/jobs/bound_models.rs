//! Upstream models that recipes call by name: judges, and models that reflect.
//! `StepModels` asks them under the step's own budget of calls; every try is one. An answer that fails is asked for once
//! more, then the call fails and the recipe decides. Prompts of held-out tasks never go there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use reef_core::Message;
use reef_dialects::{Ask, Dialect, Input, Part, Reply, Role, Stop, Turn};
use reef_sandbox::{ChatSampling, Completion, Finish, ModelsError, Usage};
use tokio::time::timeout;

use crate::config::Config;
use crate::error::StartError;
use crate::provider::config::EMBEDDED;
use crate::provider::{ProviderError, Providers, Upstream};

/// Requests that one call has in flight.
const IN_FLIGHT_MAX: usize = 8;
/// Tries of one question, those that the upstream's own retries make not counted.
const TRIES_MAX: u32 = 2;
/// Time for one try with all retries of the upstream.
const ANSWER_MAX: Duration = Duration::from_secs(900);

/// The configured bindings.
#[derive(Debug, Clone, Default)]
pub struct BoundModels(Arc<BTreeMap<String, Bound>>);

/// One model of one upstream.
#[derive(Debug, Clone)]
pub struct Bound {
    upstream: Arc<Upstream>,
    model: String,
}

/// One answer to draw.
#[derive(Debug, Clone)]
pub struct Question {
    /// The conversation.
    pub messages: Arc<Vec<Message>>,
    /// How to answer it; `n` is not looked at.
    pub sampling: ChatSampling,
}

impl BoundModels {
    /// The bindings of the configuration.
    pub fn new(config: &Config, providers: &Providers) -> Result<Self, StartError> {
        let mut bound = BTreeMap::new();
        // What the embedded engine holds is for its trainer.
        for (name, section) in config.bindings.iter().filter(|(_, section)| section.provider != EMBEDDED) {
            let upstream = providers.named(&section.provider).ok_or_else(|| {
                StartError::Config(format!("bindings.{name}.provider '{}' is not configured", section.provider))
            })?;
            bound.insert(name.clone(), Bound { upstream: Arc::clone(upstream), model: section.model.clone() });
        }
        Ok(Self(Arc::new(bound)))
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// The model of this name.
    pub fn find(&self, name: &str) -> Option<Bound> {
        self.0.get(name).cloned()
    }
}

impl Bound {
    /// Answers all questions in order. `spend` is told how many tries are about to be made, and may refuse them.
    pub async fn answer(
        &self,
        questions: &[Question],
        mut spend: impl FnMut(usize) -> Result<(), ModelsError>,
        spent: &mut Usage,
    ) -> Result<Vec<Completion>, ModelsError> {
        let mut answers: BTreeMap<usize, Completion> = BTreeMap::new();
        let mut failure = None;
        for _ in 0..TRIES_MAX {
            let open: Vec<usize> = (0..questions.len()).filter(|at| !answers.contains_key(at)).collect();
            if open.is_empty() {
                break;
            }
            spend(open.len())?;
            let tries = open.iter().filter_map(|at| Some((*at, questions.get(*at)?)));
            let mut tries = futures::stream::iter(tries)
                .map(|(at, question)| async move { (at, self.once(question).await) })
                .buffer_unordered(IN_FLIGHT_MAX);
            while let Some((at, tried)) = tries.next().await {
                match tried {
                    Ok(reply) => drop(answers.insert(at, completion(&reply, spent))),
                    // The same request would be refused again.
                    Err(error @ ProviderError::Refused { status: 400..429, .. }) => {
                        return Err(ModelsError::Invalid(error.to_string()));
                    }
                    Err(error) => failure = Some(error),
                }
            }
        }
        match failure.filter(|_| answers.len() < questions.len()) {
            Some(error) => Err(ModelsError::Other(error.to_string())),
            None => Ok(answers.into_values().collect()),
        }
    }

    async fn once(&self, question: &Question) -> Result<Reply, ProviderError> {
        let ask = self.ask(question);
        timeout(ANSWER_MAX, self.upstream.answer(&ask)).await.unwrap_or_else(|_| {
            let seconds = ANSWER_MAX.as_secs();
            Err(ProviderError::Unavailable(format!("the model of this binding gave no answer within {seconds} s")))
        })
    }

    /// What asks for nothing is left out: several providers refuse the fields of sampling, whatever they say.
    fn ask(&self, Question { messages, sampling }: &Question) -> Ask {
        let turns = messages.iter().map(turn).collect();
        let neutral = |number: f32| Some(number).filter(|number| *number != 1.0);
        Ask {
            temperature: neutral(sampling.temperature),
            top_p: neutral(sampling.top_p),
            seed: sampling.seed.map(u64::from).filter(|_| self.upstream.dialect() == Dialect::Chat),
            tokens_max: Some(sampling.tokens_max),
            stop: sampling.stop.clone(),
            ..Ask::new(self.model.clone(), Input::Turns(turns))
        }
    }
}

fn turn(Message { role, content }: &Message) -> Turn {
    let text = content.clone();
    let (role, part) = match role.as_str() {
        "system" => (Role::System, Part::Text(text)),
        "assistant" => (Role::Assistant, Part::Text(text)),
        "tool" => (Role::Tool, Part::Result { id: String::new(), text, failed: false }),
        _ => (Role::User, Part::Text(text)),
    };
    Turn { role, parts: vec![part] }
}

fn completion(reply: &Reply, spent: &mut Usage) -> Completion {
    let count = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
    let used = reply.usage.unwrap_or_default();
    let tokens = count(used.output);
    spent.prompt_tokens = spent.prompt_tokens.saturating_add(count(used.input));
    spent.answer_tokens = spent.answer_tokens.saturating_add(tokens);
    let choice = reply.choices.first();
    let parts = choice.into_iter().flat_map(|choice| &choice.parts);
    let mut text: String =
        parts.filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None }).collect();
    if text.is_empty() {
        text = choice.and_then(|choice| choice.refusal.clone()).unwrap_or_default();
    }
    let cut = choice.is_some_and(|choice| choice.stop == Some(Stop::Length));
    let finish = if cut { Finish::Length } else { Finish::Stop };
    Completion { text, finish, tokens, mean_logprob: f64::NAN }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::upstream_tests::{Act, Server, answer, chat, json_answer};
    use serde_json::json;

    fn question() -> Question {
        let messages = vec![Message { role: "user".to_owned(), content: "good?".to_owned() }];
        let sampling =
            ChatSampling { temperature: 0.0, top_p: 1.0, tokens_max: 9, stop: Vec::new(), n: 1, seed: Some(3) };
        Question { messages: Arc::new(messages), sampling }
    }

    /// The answers, the tries that were paid for, and what the judge was asked.
    async fn judged(
        acts: Vec<Vec<Act>>,
        questions: usize,
        budget: usize,
    ) -> (Result<Vec<Completion>, ModelsError>, usize, Vec<String>) {
        let server = Server::start(acts).await;
        let upstream = server.upstream(|section| (section.retries_max, section.first_byte_seconds_max) = (0, 1));
        let bound = Bound { upstream: Arc::new(upstream), model: "m".to_owned() };
        let (mut tries, mut spent) = (0, Usage::default());
        let spend = |more: usize| {
            if tries + more > budget {
                return Err(ModelsError::Budget("none is left".to_owned()));
            }
            tries += more;
            Ok(())
        };
        let answers = bound.answer(&vec![question(); questions], spend, &mut spent).await;
        if let Ok(answers) = &answers {
            assert_eq!(spent.answer_tokens, 2 * answers.len() as u32);
        }
        (answers, tries, server.seen())
    }

    #[tokio::test]
    async fn a_judge_answers_in_plain_words() {
        let (answers, tries, seen) = judged(vec![json_answer(&chat("yes"))], 20, 20).await;
        let answers = answers.expect("answers");
        assert!(answers.iter().all(|answer| answer.text == "yes" && answer.mean_logprob.is_nan()));
        assert_eq!((answers.len(), tries, seen.len()), (20, 20, 20));
        let sent: serde_json::Value =
            serde_json::from_str(seen[0].split_once("\r\n\r\n").expect("a body").1).expect("JSON");
        let messages = json!([{ "role": "user", "content": "good?" }]);
        let expected = json!({ "model": "their-m", "messages": messages, "temperature": 0.0, "seed": 3, "max_completion_tokens": 9 });
        assert_eq!(sent, expected);
    }

    #[tokio::test]
    async fn a_judge_that_fails_or_is_silent_is_asked_once_more_within_the_budget() {
        let failing = answer("500 Internal Server Error", "application/json", "", "{}");
        for bad in [failing, vec![Act::Wait(3_000)], vec![Act::Close], answer("200 OK", "text/html", "", "<p>")] {
            let (answers, tries, _) = judged(vec![bad.clone(), json_answer(&chat("yes"))], 1, 9).await;
            assert_eq!((answers.expect("the second try").len(), tries), (1, 2));
            let (answers, tries, seen) = judged(vec![bad.clone()], 1, 9).await;
            assert!(matches!(answers, Err(ModelsError::Other(_))), "{answers:?}");
            assert_eq!((tries, seen.len()), (2, 2));
            let (answers, tries, seen) = judged(vec![bad], 1, 1).await;
            assert!(matches!(answers, Err(ModelsError::Budget(_))), "{answers:?}");
            assert_eq!((tries, seen.len()), (1, 1));
        }
    }

    #[tokio::test]
    async fn a_request_that_is_refused_is_not_repeated() {
        let refused = answer("400 Bad Request", "application/json", "", r#"{"error":{"message":"no"}}"#);
        let (answers, tries, seen) = judged(vec![refused], 1, 9).await;
        assert_eq!((answers, tries, seen.len()), (Err(ModelsError::Invalid("no".to_owned())), 1, 1));
    }
}
