//! What a step hears from its models: recorded while it runs, played back when it is replayed.
//! The step puts `Recording` in front of its models, the replay puts `Playback` in their place. A playback answers
//! only what was asked in the step, in the same order; the first question that differs is kept and ends the hearing.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reef_core::{ContentId, Measurement, Message, sha256_hex};
use reef_release::ReleaseFile;
use reef_sandbox::{ChatRequest, Completion, Finish, Models, ModelsError, Usage};
use reef_store::ModelCall;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::trainer_thread::Files;

/// Bytes of all answers of one step that are kept; a step that hears more is told to be incomplete.
const HEARD_BYTES_MAX: usize = 16 << 20;

/// The content id that a release with these files would have.
pub fn content_of(files: &Files) -> Option<ContentId> {
    let file = |(path, bytes): &(String, Vec<u8>)| ReleaseFile { path: path.clone(), bytes: bytes.clone() };
    let files: Vec<ReleaseFile> = files.iter().map(file).collect();
    reef_release::content_id(&files).ok()
}

/// Collects the model calls of one step. Clones collect into the same list.
#[derive(Debug, Clone, Default)]
pub struct Recorder(Arc<Mutex<Heard>>);

#[derive(Debug, Default)]
struct Heard {
    calls: Vec<ModelCall>,
    bytes: usize,
    cut: bool,
}

impl Recorder {
    /// The calls so far, and whether they are all that there were.
    pub fn heard(&self) -> (Vec<ModelCall>, bool) {
        let heard = locked(&self.0);
        (heard.calls.clone(), !heard.cut)
    }

    /// Writes down what came back, or the refusal, and passes it on.
    pub(super) fn keep<T, K: Serialize, E>(
        &self,
        mut call: ModelCall,
        answer: Result<T, E>,
        (keep, refuse): (impl FnOnce(&T) -> K, impl FnOnce(&E) -> Value),
    ) -> Result<T, E> {
        call.answer = match &answer {
            Ok(value) => Ok(json!(keep(value))),
            Err(error) => Err(refuse(error)),
        };
        self.note(call);
        answer
    }

    fn note(&self, call: ModelCall) {
        let mut heard = locked(&self.0);
        let bytes = match &call.answer {
            Ok(value) | Err(value) => value.to_string().len(),
        };
        heard.bytes = heard.bytes.saturating_add(bytes);
        // Nothing after a gap can be played back.
        heard.cut |= heard.bytes > HEARD_BYTES_MAX;
        if !heard.cut {
            heard.calls.push(call);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Function and binding of a call, and the digest of its other arguments.
pub(super) fn question(function: &str, binding: &str, mut arguments: Value) -> ModelCall {
    // Two orders of the same keys are the same question.
    arguments.sort_all_objects();
    ModelCall {
        function: function.to_owned(),
        binding: binding.to_owned(),
        request: sha256_hex(arguments.to_string().as_bytes()),
        answer: Ok(Value::Null),
    }
}

fn chat_arguments(requests: &[ChatRequest]) -> Value {
    let request = |ChatRequest { messages, sampling }: &ChatRequest| {
        json!([
            messages,
            sampling.temperature,
            sampling.top_p,
            sampling.tokens_max,
            sampling.stop,
            sampling.n,
            sampling.seed
        ])
    };
    requests.iter().map(request).collect()
}

/// An answer as it is kept. A mean that is no number has no JSON and is kept as null.
type Kept = (String, bool, u32, Option<f64>);

fn kept(completion: &Completion) -> Kept {
    let mean = Some(completion.mean_logprob).filter(|mean| mean.is_finite());
    (completion.text.clone(), completion.finish == Finish::Length, completion.tokens, mean)
}

fn completion((text, cut, tokens, mean): Kept) -> Completion {
    let finish = if cut { Finish::Length } else { Finish::Stop };
    Completion { text, finish, tokens, mean_logprob: mean.unwrap_or(f64::NAN) }
}

/// What a step had used, as it is kept.
type KeptUsage = (u32, u32, u32, f64);

fn kept_usage(usage: &Usage) -> KeptUsage {
    (usage.calls, usage.prompt_tokens, usage.answer_tokens, usage.cost_usd)
}

/// Models that write down what they are asked and what they answer.
pub struct Recording {
    inner: Box<dyn Models>,
    recorder: Recorder,
}

impl Recording {
    /// Writes into `recorder`.
    pub fn new(inner: Box<dyn Models>, recorder: Recorder) -> Self {
        Self { inner, recorder }
    }

    fn asked<T, K: Serialize>(
        &mut self,
        call: ModelCall,
        ask: impl FnOnce(&mut dyn Models) -> Result<T, ModelsError>,
        keep: impl FnOnce(&T) -> K,
    ) -> Result<T, ModelsError> {
        self.recorder.keep(call, ask(self.inner.as_mut()), (keep, refusal_to_json))
    }
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording").field("recorder", &self.recorder).finish_non_exhaustive()
    }
}

impl Models for Recording {
    fn bindings(&mut self) -> Result<Vec<String>, ModelsError> {
        self.asked(question("bindings", "", Value::Null), |models| models.bindings(), Clone::clone)
    }

    fn chat(&mut self, binding: &str, requests: Vec<ChatRequest>) -> Result<Vec<Vec<Completion>>, ModelsError> {
        let call = question("chat", binding, chat_arguments(&requests));
        let keep = |answers: &Vec<Vec<Completion>>| -> Vec<Vec<Kept>> {
            answers.iter().map(|drawn| drawn.iter().map(kept).collect()).collect()
        };
        self.asked(call, |models| models.chat(binding, requests), keep)
    }

    fn score(&mut self, binding: &str, messages: &[Message], answer: &str) -> Result<Vec<f32>, ModelsError> {
        let call = question("score", binding, json!([messages, answer]));
        self.asked(call, |models| models.score(binding, messages, answer), Clone::clone)
    }

    fn spent(&mut self) -> Result<Usage, ModelsError> {
        self.asked(question("spent", "", Value::Null), |models| models.spent(), kept_usage)
    }

    fn held_out_count(&mut self) -> Result<u32, ModelsError> {
        self.asked(question("held-out-count", "", Value::Null), |models| models.held_out_count(), Clone::clone)
    }

    fn held_out_scores(&mut self, binding: &str, first: u32, count: u32) -> Result<Vec<f64>, ModelsError> {
        let call = question("held-out-scores", binding, json!([first, count]));
        self.asked(call, |models| models.held_out_scores(binding, first, count), Clone::clone)
    }
}

/// A transcript in the place of the models. Clones share the position.
#[derive(Debug, Clone)]
pub struct Playback(Arc<Mutex<Tape>>);

#[derive(Debug)]
struct Tape {
    calls: VecDeque<ModelCall>,
    number: usize,
    diverged: Option<String>,
}

impl Playback {
    /// Plays these calls in order.
    pub fn new(calls: Vec<ModelCall>) -> Self {
        let tape = Tape { calls: calls.into(), number: 0, diverged: None };
        Self(Arc::new(Mutex::new(tape)))
    }

    /// The first question that the step did not ask, or how many of its questions were not asked again.
    pub fn divergence(&self) -> Option<String> {
        let tape = locked(&self.0);
        let left = tape.calls.len();
        tape.diverged.clone().or_else(|| (left > 0).then(|| format!("{left} model calls of the step were not made")))
    }

    fn answer<T: DeserializeOwned>(&self, asked: &ModelCall) -> Result<T, ModelsError> {
        match self.hear(asked) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(refusal)) => Err(refusal_from_json(&refusal)),
            Err(diverged) => Err(ModelsError::Other(diverged)),
        }
    }

    /// The recorded answer or refusal; the error is where this hearing differs from the step's.
    pub(super) fn hear<T: DeserializeOwned>(&self, asked: &ModelCall) -> Result<Result<T, Value>, String> {
        let mut tape = locked(&self.0);
        if let Some(told) = &tape.diverged {
            return Err(told.clone());
        }
        tape.number += 1;
        let number = tape.number;
        let place = |call: &ModelCall| format!("{} of '{}'", call.function, call.binding);
        let problem = match tape.calls.pop_front() {
            Some(known) if (&known.function, &known.binding, &known.request) == key(asked) => match known.answer {
                Err(refusal) => return Ok(Err(refusal)),
                Ok(value) => match serde_json::from_value(value) {
                    Ok(answer) => return Ok(Ok(answer)),
                    Err(error) => format!("model call {number}: the recorded answer cannot be read: {error}"),
                },
            },
            Some(known) if known.function == asked.function && known.binding == asked.binding => {
                format!("model call {number}: {} with other arguments than in the step", place(asked))
            }
            Some(known) => format!("model call {number} is {} and was {} in the step", place(asked), place(&known)),
            None => format!("model call {number}: {} was not made in the step, or is not kept", place(asked)),
        };
        tape.diverged = Some(problem.clone());
        Err(problem)
    }
}

fn key(call: &ModelCall) -> (&String, &String, &String) {
    (&call.function, &call.binding, &call.request)
}

impl Models for Playback {
    fn bindings(&mut self) -> Result<Vec<String>, ModelsError> {
        self.answer(&question("bindings", "", Value::Null))
    }

    fn chat(&mut self, binding: &str, requests: Vec<ChatRequest>) -> Result<Vec<Vec<Completion>>, ModelsError> {
        let answers: Vec<Vec<Kept>> = self.answer(&question("chat", binding, chat_arguments(&requests)))?;
        Ok(answers.into_iter().map(|drawn| drawn.into_iter().map(completion).collect()).collect())
    }

    fn score(&mut self, binding: &str, messages: &[Message], answer: &str) -> Result<Vec<f32>, ModelsError> {
        self.answer(&question("score", binding, json!([messages, answer])))
    }

    fn spent(&mut self) -> Result<Usage, ModelsError> {
        let (calls, prompt_tokens, answer_tokens, cost_usd) = self.answer(&question("spent", "", Value::Null))?;
        Ok(Usage { calls, prompt_tokens, answer_tokens, cost_usd })
    }

    fn held_out_count(&mut self) -> Result<u32, ModelsError> {
        self.answer(&question("held-out-count", "", Value::Null))
    }

    fn held_out_scores(&mut self, binding: &str, first: u32, count: u32) -> Result<Vec<f64>, ModelsError> {
        self.answer(&question("held-out-scores", binding, json!([first, count])))
    }
}

/// How a binding did on the tasks of a step, by lots from the first on, up to the first that the step did not ask for.
/// The tasks of a lot that did not come together were asked for one by one; one of them without a score failed.
pub fn heard_scores(calls: &[ModelCall], binding: &str, lots: impl Iterator<Item = Range<u32>>) -> Vec<Measurement> {
    let mut measured = Vec::new();
    for lot in lots {
        match heard_lot(calls, binding, lot.clone()) {
            Lot::NotAsked => break,
            Lot::Scored(scores) => measured.extend(scores.into_iter().map(Measurement::of)),
            Lot::Failed => measured.extend(lot.map(|task| heard_task(calls, binding, task))),
        }
    }
    measured
}

fn heard_task(calls: &[ModelCall], binding: &str, task: u32) -> Measurement {
    let score = match heard_lot(calls, binding, task..task.saturating_add(1)) {
        Lot::Scored(scores) => scores.first().copied(),
        Lot::Failed | Lot::NotAsked => None,
    };
    score.map_or_else(|| Measurement::Failed(format!("no score of task {task} came in the step")), Measurement::of)
}

/// What came of the question for the scores of some tasks.
enum Lot {
    NotAsked,
    Failed,
    Scored(Vec<f64>),
}

fn heard_lot(calls: &[ModelCall], binding: &str, tasks: Range<u32>) -> Lot {
    let count = tasks.end.saturating_sub(tasks.start);
    let asked = question("held-out-scores", binding, json!([tasks.start, count]));
    let mut found = Lot::NotAsked;
    for call in calls.iter().filter(|call| key(call) == key(&asked)) {
        let scores = call.answer.as_ref().ok().and_then(|value| serde_json::from_value::<Vec<f64>>(value.clone()).ok());
        match scores.filter(|scores| scores.len() == count as usize) {
            Some(scores) => return Lot::Scored(scores),
            None => found = Lot::Failed,
        }
    }
    found
}

fn refusal_to_json(error: &ModelsError) -> Value {
    match error {
        ModelsError::UnknownBinding(told) => json!(["unknown-binding", told]),
        ModelsError::Invalid(told) => json!(["invalid", told]),
        ModelsError::Budget(told) => json!(["budget", told]),
        ModelsError::Cancelled => json!(["cancelled", ""]),
        ModelsError::Other(told) => json!(["other", told]),
    }
}

fn refusal_from_json(value: &Value) -> ModelsError {
    let told = value.get(1).and_then(Value::as_str).unwrap_or_default().to_owned();
    match value.get(0).and_then(Value::as_str) {
        Some("unknown-binding") => ModelsError::UnknownBinding(told),
        Some("invalid") => ModelsError::Invalid(told),
        Some("budget") => ModelsError::Budget(told),
        Some("cancelled") => ModelsError::Cancelled,
        _ => ModelsError::Other(told),
    }
}

#[cfg(test)]
mod tests {
    use reef_sandbox::ChatSampling;

    use super::*;

    struct Echo;

    impl Models for Echo {
        fn bindings(&mut self) -> Result<Vec<String>, ModelsError> {
            Ok(vec!["base".to_owned()])
        }
        fn chat(&mut self, binding: &str, requests: Vec<ChatRequest>) -> Result<Vec<Vec<Completion>>, ModelsError> {
            let Some(message) = requests.first().and_then(|request| request.messages.first()) else {
                return Err(ModelsError::Budget("enough".to_owned()));
            };
            let text = format!("{binding}: {}", message.content);
            Ok(vec![vec![Completion { text, finish: Finish::Length, tokens: 2, mean_logprob: f64::NAN }]])
        }
        fn score(&mut self, _: &str, _: &[Message], _: &str) -> Result<Vec<f32>, ModelsError> {
            Ok(vec![-0.1, -1.0 / 3.0])
        }
        fn spent(&mut self) -> Result<Usage, ModelsError> {
            Ok(Usage { calls: 1, prompt_tokens: 2, answer_tokens: 3, cost_usd: 0.0 })
        }
        fn held_out_count(&mut self) -> Result<u32, ModelsError> {
            Ok(2)
        }
        fn held_out_scores(&mut self, _: &str, first: u32, count: u32) -> Result<Vec<f64>, ModelsError> {
            Ok((first..first + count).map(|task| 0.1 + f64::from(task) / 3.0).collect())
        }
    }

    fn user(content: &str) -> Vec<ChatRequest> {
        let sampling = ChatSampling { temperature: 0.0, top_p: 1.0, tokens_max: 8, stop: Vec::new(), n: 1, seed: None };
        let message = Message { role: "user".to_owned(), content: content.to_owned() };
        vec![ChatRequest { messages: vec![message], sampling }]
    }

    fn recorded() -> Vec<ModelCall> {
        let recorder = Recorder::default();
        let mut models = Recording::new(Box::new(Echo), recorder.clone());
        models.chat("base", user("hi")).expect("answer");
        models.chat("base", Vec::new()).expect_err("refused");
        models.score("base", &[], "yes").expect("scored");
        models.spent().expect("told");
        models.held_out_scores("candidate", 0, 2).expect("scores");
        models.held_out_scores("served", 1, 1).expect("scores");
        let (calls, complete) = recorder.heard();
        assert!(complete);
        calls
    }

    #[test]
    fn the_same_questions_get_the_same_answers_and_refusals() {
        let playback = Playback::new(recorded());
        let mut models = playback.clone();
        let answer = models.chat("base", user("hi")).expect("answer").remove(0).remove(0);
        assert_eq!((answer.text.as_str(), answer.finish, answer.tokens), ("base: hi", Finish::Length, 2));
        assert!(answer.mean_logprob.is_nan());
        assert_eq!(models.chat("base", Vec::new()), Err(ModelsError::Budget("enough".to_owned())));
        assert_eq!(models.score("base", &[], "yes").expect("scored"), [-0.1, -1.0 / 3.0], "bit for bit");
        assert_eq!(models.spent(), Echo.spent());
        assert!(playback.divergence().expect("more to come").starts_with("2 model calls"));
        let scores = models.held_out_scores("candidate", 0, 2).expect("scores");
        assert_eq!(scores, Echo.held_out_scores("", 0, 2).expect("scores"), "bit for bit");
        models.held_out_scores("served", 1, 1).expect("scores");
        assert_eq!(playback.divergence(), None);
    }

    #[test]
    fn scores_are_heard_by_lots_and_one_by_one_where_a_task_of_a_lot_failed() {
        let call = |first: u32, count: u32, answer: Result<&[f64], &str>| ModelCall {
            answer: answer.map(|scores| json!(scores)).map_err(|told| json!(["other", told])),
            ..question("held-out-scores", "candidate", json!([first, count]))
        };
        let calls = [
            call(0, 2, Ok(&[0.5, 0.25])),
            call(2, 3, Err("the engine stopped")),
            call(2, 1, Ok(&[1.0])),
            call(3, 1, Err("the engine stopped")),
            call(4, 1, Ok(&[0.0])),
        ];
        let heard = |binding: &str, lots: &[(u32, u32)]| {
            let scores = heard_scores(&calls, binding, lots.iter().map(|(first, end)| *first..*end));
            scores.iter().map(Measurement::score).collect::<Vec<_>>()
        };
        let all = [Some(0.5), Some(0.25), Some(1.0), None, Some(0.0)];
        assert_eq!(heard("candidate", &[(0, 2), (2, 5), (5, 7)]), all, "as far as they were asked for");
        assert_eq!(heard("candidate", &[(0, 5)]), [], "no such lot was asked for");
        assert_eq!(heard("served", &[(0, 2)]), [], "nor of another binding");
    }

    #[test]
    fn the_first_other_question_is_named_and_nothing_is_answered_after_it() {
        for (other, told) in [(user("ho"), "other arguments"), (user("hi"), "was chat of 'base' in the step")] {
            let playback = Playback::new(recorded());
            let mut models = playback.clone();
            let binding = if told.starts_with("other") { "base" } else { "served" };
            assert!(models.chat(binding, other).is_err());
            assert!(models.chat("base", Vec::new()).is_err());
            let named = playback.divergence().expect("named");
            assert!(named.starts_with("model call 1") && named.contains(told), "{named}");
        }
    }

    #[test]
    fn a_flood_of_answers_is_cut_and_told() {
        let recorder = Recorder::default();
        let long = user(&"x".repeat(HEARD_BYTES_MAX / 2));
        let mut models = Recording::new(Box::new(Echo), recorder.clone());
        for _ in 0..3 {
            models.chat("base", long.clone()).expect("the step itself goes on");
        }
        let (calls, complete) = recorder.heard();
        assert_eq!((calls.len(), complete), (1, false));
    }
}
