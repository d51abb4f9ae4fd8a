//! Held-out tasks and model calls of one step: the `models` capability.
//! Answers are greedy, so a score depends only on weights and task; the incumbent's scores are kept from
//! step to step by content id. Prompts of held-out tasks never reach the trainer: the learner asks here.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use reef_core::{ContentId, HeldOutTask, Message, ReleaseEvaluation, Sampling, Trajectory, sha256_hex};
use reef_engine::{Engine, EngineError, Event, FinishReason, Request, Weights};
use reef_sandbox::{ChatRequest, ChatSampling, Completion, Finish, Models, ModelsError, Usage};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::bound_models::{Bound, BoundModels, Question};
use super::gate_candidate::{CANDIDATE, SERVED};

/// Tokens of an answer to a held-out task beyond the wanted answer's own length.
const ANSWER_TOKENS_SLACK: usize = 8;
/// Model calls of one step.
const CALLS_MAX: u32 = 10_000;
/// Prompts in flight at once; the rest waits here instead of filling the engine's queue.
const WAVE: usize = 32;
/// Scores kept for incumbents.
const KEPT_CONTENTS_MAX: usize = 8;

/// Tasks of a scenario, rendered once.
#[derive(Debug, Default)]
pub struct HeldOut {
    tasks: Vec<(Vec<u32>, HeldOutTask)>,
    prompts: HashSet<Vec<u32>>,
    /// Their lengths, so that a long trajectory is not hashed once for each of its turns.
    lengths: HashSet<usize>,
}

impl HeldOut {
    /// Renders every prompt.
    pub fn new(engine: &Engine, tasks: Vec<HeldOutTask>) -> Result<Self, EngineError> {
        let tasks = tasks
            .into_iter()
            .map(|task| Ok((engine.render_chat(&task.messages)?, task)))
            .collect::<Result<Vec<_>, EngineError>>()?;
        Ok(Self::rendered(tasks))
    }

    fn rendered(tasks: Vec<(Vec<u32>, HeldOutTask)>) -> Self {
        let prompts = tasks.iter().map(|(prompt, _)| prompt.clone()).collect();
        let lengths = tasks.iter().map(|(prompt, _)| prompt.len()).collect();
        Self { tasks, prompts, lengths }
    }

    /// True for the prompt of a held-out task.
    fn contains_prompt(&self, prompt: &[u32]) -> bool {
        self.lengths.contains(&prompt.len()) && self.prompts.contains(prompt)
    }

    /// True where any turn of the trajectory answers the prompt of a held-out task: a task of several messages is the
    /// prompt of a later turn. Turns that are not known begin where the mask rises.
    pub fn is_answered_in(&self, trajectory: &Trajectory) -> bool {
        let turns = trajectory.turns.iter().map(|turn| turn.start as usize);
        let rises = trajectory.mask.windows(2).zip(1..).filter(|(pair, _)| matches!(pair, [0, 1])).map(|(_, at)| at);
        std::iter::once(0).chain(turns).chain(rises).any(|start| {
            let prompt = trajectory.tokens.get(..trajectory.prompt_length.saturating_add(start));
            prompt.is_some_and(|prompt| self.contains_prompt(prompt))
        })
    }

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// How many there are, and the SHA-256 of them as JSON.
    pub fn fingerprint(&self) -> (u32, String) {
        let tasks: Vec<&HeldOutTask> = self.tasks.iter().map(|(_, task)| task).collect();
        let text = serde_json::to_vec(&tasks).unwrap_or_default();
        (u32::try_from(tasks.len()).unwrap_or(u32::MAX), sha256_hex(&text))
    }

    /// True without tasks.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

/// Scores by content id and task index.
pub type ScoreCache = Arc<Mutex<HashMap<ContentId, BTreeMap<usize, f64>>>>;

/// A name a recipe may call, and what answers.
#[derive(Debug, Clone)]
pub struct Binding {
    /// `served`, `candidate` or `base`.
    pub name: &'static str,
    /// The weights.
    pub weights: Weights,
    /// Key of the kept scores; none = not kept.
    pub content: Option<ContentId>,
}

/// Scores that were measured in a step: no task is asked twice.
#[derive(Debug, Clone, Default)]
pub struct Measured(Arc<Mutex<HashMap<&'static str, BTreeMap<usize, f64>>>>);

impl Measured {
    /// Scores of one binding by task.
    pub fn scores(&self, binding: &str) -> BTreeMap<usize, f64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(binding).cloned().unwrap_or_default()
    }

    /// What a release says of its evaluation; none without held-out tasks.
    pub fn evaluation(&self, tasks: &HeldOut) -> Option<ReleaseEvaluation> {
        let (candidate, incumbent) = (self.scores(CANDIDATE), self.scores(SERVED));
        let both = candidate.iter().filter_map(|(task, score)| Some((*score, *incumbent.get(task)?)));
        let (candidate, incumbent): (Vec<f64>, Vec<f64>) = both.unzip();
        let mean = |scores: &[f64]| (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64);
        (!tasks.is_empty()).then(|| ReleaseEvaluation {
            tasks: tasks.fingerprint().1,
            compared: u32::try_from(candidate.len()).unwrap_or(u32::MAX),
            candidate: mean(&candidate),
            incumbent: mean(&incumbent),
            weights: None,
        })
    }
}

/// The `models` capability of one step.
#[derive(Debug)]
pub struct StepModels {
    engine: Engine,
    runtime: Handle,
    bindings: Vec<Binding>,
    bound: BoundModels,
    held_out: Arc<HeldOut>,
    cache: ScoreCache,
    measured: Measured,
    spent: Spent,
}

/// What the model calls of one step have used, all its sandboxed calls together. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Spent(Arc<Mutex<Usage>>);

impl Spent {
    fn so_far(&self) -> Usage {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that would be one too many is not made, and not counted.
    fn calls(&self, calls: usize) -> Result<(), ModelsError> {
        let mut spent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let after = spent.calls.saturating_add(count(calls));
        if after > CALLS_MAX {
            return Err(ModelsError::Budget(format!("a step makes at most {CALLS_MAX} model calls")));
        }
        spent.calls = after;
        Ok(())
    }

    fn tokens(&self, prompt: u32, answer: u32) {
        let mut spent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spent.prompt_tokens = spent.prompt_tokens.saturating_add(prompt);
        spent.answer_tokens = spent.answer_tokens.saturating_add(answer);
    }
}

impl StepModels {
    /// `runtime` drives the receivers; every call blocks its own thread only.
    pub fn new(
        engine: Engine,
        bindings: Vec<Binding>,
        held_out: Arc<HeldOut>,
        cache: ScoreCache,
        measured: Measured,
    ) -> Self {
        let (runtime, bound, spent) = (Handle::current(), BoundModels::default(), Spent::default());
        Self { engine, runtime, bindings, bound, held_out, cache, measured, spent }
    }

    /// With upstream models beside its own, and the account of a step that asked others before.
    pub fn with_bound(self, bound: BoundModels, spent: Spent) -> Self {
        Self { bound, spent, ..self }
    }

    fn binding(&self, name: &str) -> Result<Binding, ModelsError> {
        let own = self.bindings.iter().find(|binding| binding.name == name).cloned();
        own.ok_or_else(|| match self.bound.find(name) {
            Some(_) => {
                ModelsError::Invalid(format!("'{name}' is a provider's model; held-out tasks stay in this server"))
            }
            None => ModelsError::UnknownBinding(name.to_owned()),
        })
    }

    fn ask_upstream(&mut self, bound: &Bound, requests: Vec<ChatRequest>) -> Result<Vec<Vec<Completion>>, ModelsError> {
        let (mut questions, mut counts) = (Vec::new(), Vec::with_capacity(requests.len()));
        for ChatRequest { messages, sampling } in requests {
            let messages = Arc::new(messages);
            counts.push(sampling.n as usize);
            questions.extend((0..sampling.n).map(|draw| Question {
                messages: Arc::clone(&messages),
                sampling: ChatSampling { seed: sampling.seed.map(|seed| seed.wrapping_add(draw)), ..sampling.clone() },
            }));
        }
        let mut tokens = Usage::default();
        let answers = self.runtime.block_on(bound.answer(&questions, |tries| self.spent.calls(tries), &mut tokens));
        // What was drawn before a failure has been paid for, too.
        self.spent.tokens(tokens.prompt_tokens, tokens.answer_tokens);
        let mut answers = answers?.into_iter();
        Ok(counts.into_iter().map(|drawn| answers.by_ref().take(drawn).collect()).collect())
    }

    /// Answers several prompts together, so that the engine batches them: what came, by prompt, and the first failure,
    /// after which no further wave is asked.
    fn answer(&mut self, prompts: &[Prompt], weights: &Weights) -> (Vec<Option<Completion>>, Option<ModelsError>) {
        let (engine, mut answers, mut failure) = (self.engine.clone(), Vec::with_capacity(prompts.len()), None);
        self.runtime.block_on(async {
            for wave in prompts.chunks(WAVE) {
                let mut running = Vec::with_capacity(wave.len());
                for prompt in wave {
                    match admit(&engine, prompt, weights).await {
                        Ok(events) => running.push(events),
                        Err(error) => {
                            failure = Some(error);
                            break;
                        }
                    }
                }
                for events in running {
                    match collect(events).await {
                        Ok(answer) => answers.push(Some(answer)),
                        Err(error) => {
                            answers.push(None);
                            failure = failure.take().or(Some(error));
                        }
                    }
                }
                if failure.is_some() {
                    break;
                }
            }
        });
        let read: usize = prompts.iter().take(answers.len()).map(|prompt| prompt.ids.len()).sum();
        let drawn = answers.iter().flatten().fold(0_u32, |sum, answer| sum.saturating_add(answer.tokens));
        self.spent.tokens(count(read), drawn);
        (answers, failure)
    }
}

/// A rendered prompt and how to answer it.
#[derive(Debug, Clone)]
struct Prompt {
    ids: Vec<u32>,
    sampling: Sampling,
    tokens_max: u32,
    stop: Vec<String>,
}

fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}

/// In whose name the server's own requests wait: no tenant's name has a space.
const OWN_WORK: &str = "the server";

/// Tries while serving traffic fills the queue; bounded in number.
async fn admit(engine: &Engine, prompt: &Prompt, weights: &Weights) -> Result<mpsc::Receiver<Event>, ModelsError> {
    const ATTEMPTS_MAX: u32 = 600;
    const WAIT: std::time::Duration = std::time::Duration::from_millis(50);
    let other = |error: EngineError| ModelsError::Other(error.to_string());
    for _ in 0..ATTEMPTS_MAX {
        let (ids, weights) = (prompt.ids.clone(), weights.clone());
        let mut request = Request::new(OWN_WORK, ids, weights, prompt.sampling, prompt.tokens_max);
        request.stop.clone_from(&prompt.stop);
        match engine.generate(request) {
            Err(EngineError::Overloaded { .. }) => tokio::time::sleep(WAIT).await,
            result => return result.map_err(other),
        }
    }
    Err(ModelsError::Other("the engine stayed full".to_owned()))
}

async fn collect(mut events: mpsc::Receiver<Event>) -> Result<Completion, ModelsError> {
    let (mut text, mut tokens, mut logprob) = (String::new(), 0_u32, 0.0);
    while let Some(event) = events.recv().await {
        match event {
            Event::Token(token) => {
                text.push_str(&token.text);
                tokens = tokens.saturating_add(1);
                logprob += f64::from(token.logprob);
            }
            Event::Done(done) => {
                text.push_str(&done.text);
                let finish = match done.reason {
                    FinishReason::Length => Finish::Length,
                    FinishReason::Stop { .. } | FinishReason::Cancelled => Finish::Stop,
                };
                return Ok(Completion { text, finish, tokens, mean_logprob: logprob / f64::from(tokens) });
            }
            Event::Failed(reason) => return Err(ModelsError::Other(reason)),
        }
    }
    Err(ModelsError::Other("the engine stopped".to_owned()))
}

const GREEDY: Sampling = Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 0 };

impl Models for StepModels {
    fn bindings(&mut self) -> Result<Vec<String>, ModelsError> {
        let own = self.bindings.iter().map(|binding| binding.name.to_owned());
        Ok(own.chain(self.bound.names().cloned()).collect())
    }

    fn chat(&mut self, binding: &str, requests: Vec<ChatRequest>) -> Result<Vec<Vec<Completion>>, ModelsError> {
        if let Some(bound) = self.bound.find(binding) {
            return self.ask_upstream(&bound, requests);
        }
        let weights = self.binding(binding)?.weights;
        let (mut prompts, mut counts) = (Vec::new(), Vec::with_capacity(requests.len()));
        for ChatRequest { messages, sampling } in requests {
            let ids = self.engine.render_chat(&messages).map_err(|error| ModelsError::Invalid(error.to_string()))?;
            counts.push(sampling.n as usize);
            for draw in 0..sampling.n {
                self.spent.calls(1)?;
                let seed = sampling.seed.map_or(self.spent.so_far().calls, |seed| seed.wrapping_add(draw));
                let (temperature, top_p) = (sampling.temperature, sampling.top_p);
                prompts.push(Prompt {
                    ids: ids.clone(),
                    sampling: Sampling { temperature, top_p, top_k: 0, seed: u64::from(seed) },
                    tokens_max: sampling.tokens_max,
                    stop: sampling.stop.clone(),
                });
            }
        }
        let (answers, failure) = self.answer(&prompts, &weights);
        if let Some(failure) = failure {
            return Err(failure);
        }
        let mut answers = answers.into_iter().flatten();
        Ok(counts.into_iter().map(|drawn| answers.by_ref().take(drawn).collect()).collect())
    }

    fn score(&mut self, _: &str, _: &[Message], _: &str) -> Result<Vec<f32>, ModelsError> {
        Err(ModelsError::Other("this server does not score given answers".to_owned()))
    }

    fn spent(&mut self) -> Result<Usage, ModelsError> {
        Ok(self.spent.so_far())
    }

    fn held_out_count(&mut self) -> Result<u32, ModelsError> {
        Ok(u32::try_from(self.held_out.len()).unwrap_or(u32::MAX))
    }

    fn held_out_scores(&mut self, binding: &str, first: u32, count: u32) -> Result<Vec<f64>, ModelsError> {
        let binding = self.binding(binding)?;
        let range = first as usize..(first as usize).saturating_add(count as usize);
        let held_out = Arc::clone(&self.held_out);
        let tasks = held_out
            .tasks
            .get(range.clone())
            .ok_or_else(|| ModelsError::Invalid(format!("there are {} held-out tasks", held_out.len())))?;
        let mut scores = self.kept(&binding, range.clone());
        let missing: Vec<usize> = range.clone().filter(|task| !scores.contains_key(task)).collect();
        self.spent.calls(missing.len())?;
        let prompts: Vec<Prompt> = missing
            .iter()
            .filter_map(|task| tasks.get(task - range.start))
            .map(|(prompt, task)| Prompt {
                ids: prompt.clone(),
                sampling: GREEDY,
                tokens_max: answer_tokens(&self.engine, task),
                stop: Vec::new(),
            })
            .collect();
        let (answers, failure) = self.answer(&prompts, &binding.weights);
        for (index, answer) in missing.iter().zip(&answers) {
            if let (Some((_, task)), Some(answer)) = (tasks.get(index - range.start), answer) {
                scores.insert(*index, task.grader.grade(&answer.text, &task.answer));
            }
        }
        // What came before a failure is kept, so that asking for the rest again is cheap.
        self.keep(&binding, &scores);
        if let Some(failure) = failure {
            return Err(failure);
        }
        Ok(range.filter_map(|task| scores.get(&task).copied()).collect())
    }
}

impl StepModels {
    fn kept(&self, binding: &Binding, range: std::ops::Range<usize>) -> BTreeMap<usize, f64> {
        let within = |scores: &BTreeMap<usize, f64>| -> BTreeMap<usize, f64> {
            scores.range(range.clone()).map(|(task, score)| (*task, *score)).collect()
        };
        let mut kept = within(&self.measured.scores(binding.name));
        if let Some(content) = &binding.content {
            let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend(cache.get(content).map(within).unwrap_or_default());
        }
        kept
    }

    fn keep(&self, binding: &Binding, scores: &BTreeMap<usize, f64>) {
        self.measured.0.lock().unwrap_or_else(PoisonError::into_inner).entry(binding.name).or_default().extend(scores);
        let Some(content) = &binding.content else { return };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= KEPT_CONTENTS_MAX && !cache.contains_key(content) {
            cache.clear();
        }
        cache.entry(content.clone()).or_default().extend(scores);
    }
}

/// Tokens that an answer to a task may take.
pub fn answer_tokens(engine: &Engine, task: &HeldOutTask) -> u32 {
    let wanted = engine.encode(&task.answer).map_or(0, |ids| ids.len());
    u32::try_from(wanted + ANSWER_TOKENS_SLACK).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use reef_core::{Alternatives, Grader, Turn, assemble};

    use super::*;

    fn held_out(prompt: &[u32]) -> HeldOut {
        let task = HeldOutTask { messages: Vec::new(), answer: "x".to_owned(), grader: Grader::Exact };
        HeldOut::rendered(vec![(prompt.to_vec(), task)])
    }

    /// `[1, 2]` → `[3, 4]`, then `[1, 2, 3, 4, 5]` → `[6]`.
    fn two_turns() -> Trajectory {
        let alternatives = &Alternatives::NONE;
        let first = Turn { prompt: &[1, 2], output: &[3, 4], logprobs: &[-0.1, -0.2], alternatives };
        let second = Turn { prompt: &[1, 2, 3, 4, 5], output: &[6], logprobs: &[-0.3], alternatives };
        assemble(&[first, second], 0).expect("one trajectory")
    }

    #[test]
    fn a_held_out_prompt_is_found_at_every_turn_and_nowhere_else() {
        let (known, mut unknown) = (two_turns(), two_turns());
        unknown.turns.clear();
        for trajectory in [known, unknown] {
            for prompt in [&[1, 2][..], &[1, 2, 3, 4, 5]] {
                assert!(held_out(prompt).is_answered_in(&trajectory), "{prompt:?} in {trajectory:?}");
            }
            for other in [&[1][..], &[1, 2, 3], &[1, 2, 3, 4], &[1, 2, 3, 4, 6], &[1, 2, 3, 4, 5, 6], &[5]] {
                assert!(!held_out(other).is_answered_in(&trajectory), "{other:?} in {trajectory:?}");
            }
            assert!(!HeldOut::default().is_answered_in(&trajectory));
        }
    }

    #[test]
    fn a_turn_that_follows_the_last_without_a_word_between_is_a_turn() {
        let alternatives = &Alternatives::NONE;
        let first = Turn { prompt: &[1], output: &[2], logprobs: &[-0.1], alternatives };
        let second = Turn { prompt: &[1, 2], output: &[3], logprobs: &[-0.1], alternatives };
        let trajectory = assemble(&[first, second], 0).expect("one trajectory");
        assert!(held_out(&[1, 2]).is_answered_in(&trajectory), "the mask does not show it");
    }
}
