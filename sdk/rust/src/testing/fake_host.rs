//! How the test double answers each import.

use super::sample::{policy_key, rendered};
use super::{CANDIDATE, Call, FIRST_DERIVED, FIRST_SAMPLE, FakeHost, FakeSample, Level, Line, TRAINER};
use crate::experience::{Alternatives, Turn, UnusableReport};
use crate::harness::{Episode, Tree};
use crate::host::Host;
use crate::models::Finish;
use crate::{
    Advantages, ChatRequest, Completion, CriticOptimizer, Entry, EntryName, Failure, Measurement, Message, Mutation,
    Objective, Optimizer, Outcome, Policy, Result, Sample, Term, Usage,
};

impl FakeHost {
    fn find(&self, handle: Sample) -> Result<&FakeSample> {
        let derived = handle.checked_sub(FIRST_DERIVED).map(|index| self.derived.get(index as usize));
        let own = handle.checked_sub(FIRST_SAMPLE).map(|index| self.samples.get(index as usize));
        derived
            .or(own)
            .flatten()
            .ok_or_else(|| Failure::capability(format!("experience: {handle} is not a sample of this call")))
    }

    fn column<T>(&self, items: &[Sample], of: impl Fn(&FakeSample) -> T) -> Result<Vec<T>> {
        items.iter().map(|&handle| self.find(handle).map(&of)).collect()
    }

    fn per_token(&self, items: &[Sample], of: impl Fn(&FakeSample) -> Vec<f32>) -> Result<Vec<f32>> {
        let mut column = Vec::new();
        for &handle in items {
            let (sample, t) = (self.find(handle)?, self.find(handle)?.mask.len());
            let part = of(sample);
            same_length("a scripted column", part.len(), t, "tokens")?;
            column.extend(part);
        }
        Ok(column)
    }

    fn check_column(&self, what: &str, items: &[Sample], column: &[f32]) -> Result<()> {
        let tokens = self.column(items, |sample| sample.mask.len())?.iter().sum();
        same_length(what, column.len(), tokens, "tokens")?;
        finite(what, column)
    }

    fn check_terms(&self, items: &[Sample], terms: &[Term]) -> Result<()> {
        self.column(items, |_| ())?;
        if terms.is_empty() {
            return Err(Failure::capability("training: no term to train on"));
        }
        for term in terms {
            finite("factor", &[term.factor])?;
            match &term.what {
                Objective::PolicyGradient(objective) => match &objective.advantages {
                    Advantages::PerToken(column) => self.check_column("advantages", items, column)?,
                    Advantages::PerSample(numbers) => per_sample("advantages", numbers, items)?,
                },
                Objective::Distill(objective) => {
                    self.check_contexts(items, &objective.contexts)?;
                    if !objective.weights.is_empty() {
                        per_sample("weights", &objective.weights, items)?;
                    }
                }
                Objective::DistillTopK(objective) => self.check_contexts(items, &objective.contexts)?,
                Objective::Nll => {}
            }
        }
        Ok(())
    }

    fn check_contexts(&self, items: &[Sample], contexts: &[Sample]) -> Result<()> {
        self.column(contexts, |_| ())?;
        let wanted = if contexts.is_empty() { 0 } else { items.len() };
        same_length("contexts", contexts.len(), wanted, "samples")
    }

    fn check_harness(&self) -> Result<()> {
        match &self.no_harness {
            Some(reason) => Err(Failure::capability(format!("harness: {reason}"))),
            None => Ok(()),
        }
    }

    /// The entries that an episode runs on: those of the incumbent, with the changes applied in their order.
    pub(super) fn tree_of(&self, tree: &Tree) -> Result<Vec<Entry>> {
        let changes = match tree {
            Tree::Incumbent => &[],
            Tree::Changed(changes) => changes.as_slice(),
            Tree::Candidate(CANDIDATE) => self.candidate.as_slice(),
            Tree::Candidate(other) => {
                return Err(Failure::capability(format!("harness: {other} is not a candidate of this call")));
            }
        };
        let mut entries = self.entries.clone();
        for change in changes {
            let name = match change {
                Mutation::Put(entry) => EntryName { kind: entry.kind, id: entry.id.clone() },
                Mutation::Remove(name) => name.clone(),
            };
            entries.retain(|entry| (entry.kind, &entry.id) != (name.kind, &name.id));
            if let Mutation::Put(entry) = change {
                entries.push(entry.clone());
            }
        }
        Ok(entries)
    }

    /// The next scripted answer of a binding.
    fn next_answer(&mut self, binding: &str) -> Result<Completion> {
        let scripted = self.answers.get(binding).filter(|answers| !answers.is_empty());
        let answers = scripted.ok_or_else(|| unknown_binding(binding))?;
        let given = self.answers_given.entry(binding.to_owned()).or_default();
        let text = answers.get(*given as usize % answers.len()).cloned().unwrap_or_default();
        *given += 1;
        let tokens = text.split_whitespace().count() as u32;
        Ok(Completion { text, finish: Finish::Stop, tokens, mean_logprob: -1.0 })
    }
}

fn same_length(what: &str, found: usize, wanted: usize, of: &str) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Failure::capability(format!("training: {what} has {found} numbers for {wanted} {of}")))
}

fn per_sample(what: &str, numbers: &[f32], items: &[Sample]) -> Result<()> {
    same_length(what, numbers.len(), items.len(), "samples")?;
    finite(what, numbers)
}

fn finite(what: &str, column: &[f32]) -> Result<()> {
    match column.iter().position(|number| !number.is_finite()) {
        Some(index) => Err(Failure::capability(format!("training: {what}[{index}] is not finite"))),
        None => Ok(()),
    }
}

fn check_trainer(handle: u32) -> Result<()> {
    if handle == TRAINER {
        return Ok(());
    }
    Err(Failure::capability(format!("training: {handle} is not a trainer of this call")))
}

fn unknown_binding(name: &str) -> Failure {
    Failure::capability(format!("models: no binding '{name}' in this call"))
}

fn mean(logprobs: &[f32], mask: &[u8]) -> f64 {
    let sampled: Vec<f64> =
        logprobs.iter().zip(mask).filter(|&(_, &bit)| bit == 1).map(|(&logprob, _)| f64::from(logprob)).collect();
    crate::maths::mean(&sampled)
}

impl Host for FakeHost {
    fn scores(&mut self, items: &[Sample]) -> Result<Vec<f64>> {
        self.column(items, |sample| sample.score)
    }
    fn lags(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        self.column(items, |sample| sample.lag)
    }
    fn releases(&mut self, items: &[Sample]) -> Result<Vec<String>> {
        self.column(items, |sample| format!("{:040}", sample.lag))
    }
    fn reference_counts(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        self.column(items, |sample| sample.references)
    }
    fn prompt_lengths(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        self.column(items, |sample| sample.prompt_tokens.len() as u32)
    }
    fn response_lengths(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        self.column(items, |sample| sample.mask.len() as u32)
    }
    fn action_counts(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        self.column(items, |sample| sample.mask.iter().filter(|&&bit| bit == 1).count() as u32)
    }
    fn mean_logprobs(&mut self, items: &[Sample]) -> Result<Vec<f64>> {
        self.column(items, |sample| mean(&sample.logprobs, &sample.mask))
    }
    fn record_ids(&mut self, items: &[Sample]) -> Result<Vec<String>> {
        items.iter().map(|&handle| self.find(handle).map(|_| format!("record-{handle}"))).collect()
    }
    fn prompt_keys(&mut self, items: &[Sample]) -> Result<Vec<String>> {
        self.column(items, |sample| sample.prompt.clone())
    }
    fn mask(&mut self, item: Sample) -> Result<Vec<u8>> {
        Ok(self.find(item)?.mask.clone())
    }
    fn prompt_tokens(&mut self, item: Sample) -> Result<Vec<u32>> {
        Ok(self.find(item)?.prompt_tokens.clone())
    }
    fn tokens(&mut self, item: Sample) -> Result<Vec<u32>> {
        Ok(self.find(item)?.tokens.clone())
    }
    fn logprobs(&mut self, item: Sample) -> Result<Vec<f32>> {
        Ok(self.find(item)?.logprobs.clone())
    }
    fn top_k(&mut self, item: Sample) -> Result<Alternatives> {
        let recorded = self.find(item)?.top_k.clone();
        recorded.ok_or_else(|| Failure::capability("experience: not recorded: top-K of this sample"))
    }
    fn turns(&mut self, item: Sample) -> Result<Vec<Turn>> {
        let sample = self.find(item)?;
        if !sample.turns.is_empty() {
            return Ok(sample.turns.clone());
        }
        let (id, release) = (format!("record-{item}"), format!("{:040}", sample.lag));
        Ok(vec![Turn { id, release, start: 0, length: sample.mask.len() as u32 }])
    }
    fn messages(&mut self, item: Sample) -> Result<Vec<Message>> {
        Ok(self.find(item)?.messages.clone())
    }
    fn response_text(&mut self, item: Sample) -> Result<String> {
        Ok(self.find(item)?.response_text.clone())
    }
    fn tags(&mut self, item: Sample) -> Result<Vec<(String, String)>> {
        Ok(self.find(item)?.tags.clone())
    }
    fn session(&mut self, item: Sample) -> Result<Option<String>> {
        Ok(self.find(item)?.session.clone())
    }
    fn report_field(&mut self, item: Sample, name: &str) -> Result<Option<String>> {
        if let Some(left) = &mut self.report_fields_left {
            *left =
                left.checked_sub(1).ok_or_else(|| Failure::capability("experience: over budget: too many calls"))?;
        }
        Ok(self.find(item)?.metadata.get(name).cloned())
    }
    fn unusable(&mut self) -> Result<Vec<UnusableReport>> {
        Ok(self.unusable.clone())
    }

    fn open(&mut self) -> Result<u32> {
        self.calls.push(Call::Open);
        Ok(TRAINER)
    }
    fn derive(&mut self, item: Sample, prompt: Option<&[u32]>, response: Option<&[u32]>) -> Result<Sample> {
        let derived = self.find(item)?.derived(prompt, response);
        let (prompt, response) = (prompt.map(<[u32]>::to_vec), response.map(<[u32]>::to_vec));
        self.calls.push(Call::Derive { item, prompt, response });
        self.derived.push(derived);
        Ok(FIRST_DERIVED + self.derived.len() as u32 - 1)
    }
    fn forward(&mut self, on: u32, which: &Policy, items: &[Sample]) -> Result<Vec<f32>> {
        check_trainer(on)?;
        self.calls.push(Call::Forward { which: which.clone(), items: items.to_vec() });
        let key = policy_key(which);
        self.per_token(items, |sample| sample.forward.get(&key).unwrap_or(&sample.logprobs).clone())
    }
    fn train(&mut self, on: u32, items: &[Sample], what: &[Term], how: Optimizer) -> Result<Vec<Measurement>> {
        check_trainer(on)?;
        self.check_terms(items, what)?;
        self.calls.push(Call::Train { items: items.to_vec(), terms: what.to_vec(), optimizer: how });
        Ok(self.train_measurements.clone())
    }
    fn forward_backward(&mut self, on: u32, items: &[Sample], what: &[Term]) -> Result<Vec<Measurement>> {
        check_trainer(on)?;
        self.check_terms(items, what)?;
        self.calls.push(Call::ForwardBackward { items: items.to_vec(), terms: what.to_vec() });
        Ok(self.train_measurements.clone())
    }
    fn backward(&mut self, on: u32, items: &[Sample], gradients: &[f32]) -> Result<Vec<Measurement>> {
        check_trainer(on)?;
        self.check_column("gradients", items, gradients)?;
        self.calls.push(Call::Backward { items: items.to_vec(), gradients: gradients.to_vec() });
        Ok(self.train_measurements.clone())
    }
    fn optimizer_step(&mut self, on: u32, how: Optimizer) -> Result<Vec<Measurement>> {
        check_trainer(on)?;
        self.calls.push(Call::OptimizerStep(how));
        Ok(self.train_measurements.clone())
    }
    fn update_ema(&mut self, on: u32, rate: f64) -> Result<()> {
        check_trainer(on)?;
        if !(0.0..=1.0).contains(&rate) {
            return Err(Failure::capability(format!("training: rate {rate} is not in [0, 1]")));
        }
        self.calls.push(Call::UpdateEma(rate));
        Ok(())
    }
    fn values(&mut self, on: u32, items: &[Sample]) -> Result<Vec<f32>> {
        check_trainer(on)?;
        self.calls.push(Call::Values(items.to_vec()));
        self.per_token(items, |sample| sample.values.clone())
    }
    fn fit_values(
        &mut self,
        on: u32,
        items: &[Sample],
        returns: &[f32],
        how: CriticOptimizer,
    ) -> Result<Vec<Measurement>> {
        check_trainer(on)?;
        self.check_column("returns", items, returns)?;
        self.calls.push(Call::FitValues { items: items.to_vec(), returns: returns.to_vec(), optimizer: how });
        Ok(self.fit_measurements.clone())
    }
    fn checkpoint(&mut self, on: u32) -> Result<u32> {
        check_trainer(on)?;
        self.calls.push(Call::Checkpoint);
        Ok(CANDIDATE)
    }

    fn bindings(&mut self) -> Result<Vec<String>> {
        Ok(self.answers.keys().cloned().collect())
    }
    fn chat(&mut self, binding: &str, requests: &[ChatRequest]) -> Result<Vec<Vec<Completion>>> {
        self.calls.push(Call::Chat { binding: binding.to_owned(), requests: requests.to_vec() });
        let mut messages = requests.iter().flat_map(|request| &request.messages);
        let refused = |message: &Message| self.refused_chats.iter().any(|text| message.content.contains(text));
        if messages.any(refused) {
            return Err(Failure::capability(format!("models: '{binding}' failed")));
        }
        requests.iter().map(|request| (0..request.how.n).map(|_| self.next_answer(binding)).collect()).collect()
    }
    fn score(&mut self, binding: &str, messages: &[Message], answer: &str) -> Result<Vec<f32>> {
        let (messages, answer) = (messages.to_vec(), answer.to_owned());
        self.calls.push(Call::Score { binding: binding.to_owned(), messages, answer });
        self.scores.get(binding).cloned().ok_or_else(|| unknown_binding(binding))
    }
    fn spent(&mut self) -> Result<Usage> {
        let counted =
            Usage { calls: self.answers_given.values().sum(), prompt_tokens: 0, answer_tokens: 0, cost_usd: 0.0 };
        Ok(self.spent.unwrap_or(counted))
    }
    fn held_out_count(&mut self) -> Result<u32> {
        Ok(self.held_out.values().map(Vec::len).min().unwrap_or(0) as u32)
    }
    fn held_out_scores(&mut self, binding: &str, first: u32, count: u32) -> Result<Vec<f64>> {
        self.calls.push(Call::HeldOut(binding.to_owned(), first, count));
        let scores = self.held_out.get(binding);
        let range = first as usize..first.saturating_add(count) as usize;
        let part = scores.and_then(|scores| scores.get(range)).map(<[f64]>::to_vec);
        part.ok_or_else(|| Failure::capability(format!("models: no tasks {first} + {count} on '{binding}'")))
    }

    fn entries(&mut self) -> Result<Vec<Entry>> {
        self.check_harness()?;
        Ok(self.entries.clone())
    }
    fn check_changes(&mut self, changes: &[Mutation]) -> Result<()> {
        self.check_harness()?;
        for change in changes {
            let (Mutation::Put(Entry { id, .. }) | Mutation::Remove(EntryName { id, .. })) = change;
            let known = self.entries.iter().any(|entry| entry.id == *id);
            if id.is_empty() || (matches!(change, Mutation::Remove(_)) && !known) {
                return Err(Failure::capability(format!("harness: refused: '{id}' cannot be put or removed")));
            }
        }
        Ok(())
    }
    fn tasks(&mut self) -> Result<Vec<String>> {
        self.check_harness()?;
        Ok(self.tasks.iter().chain(self.episodes.keys()).cloned().collect())
    }
    fn run_episode(&mut self, on: &Tree, task: &str, seed: u32) -> Result<Episode> {
        self.check_harness()?;
        self.calls.push(Call::Episode { tree: on.clone(), task: task.to_owned(), seed });
        if let Some(play) = self.player.filter(|_| self.tasks.iter().any(|known| known == task)) {
            return Ok(play(&self.tree_of(on)?, task, seed));
        }
        let outcome = self.episodes.get(task).cloned();
        outcome.ok_or_else(|| Failure::capability(format!("harness: no task '{task}'")))
    }

    fn verifiers(&mut self) -> Result<Vec<String>> {
        Ok(self.verifiers.keys().cloned().collect())
    }
    fn check_answer(&mut self, verifier: &str, task: &str, answer: &str) -> Result<Outcome> {
        self.calls.push(Call::Verify(verifier.to_owned(), task.to_owned(), answer.to_owned()));
        let Some(check) = self.verifiers.get(verifier) else {
            return Err(Failure::capability(format!("verify: no verifier '{verifier}'")));
        };
        check(task, answer).map_err(|reason| Failure::capability(format!("verify: {reason}")))
    }

    // One id a byte: long enough to be sliced, and nothing a real tokenizer would give.
    fn encode(&mut self, text: &str) -> Result<Vec<u32>> {
        Ok(text.bytes().map(u32::from).collect())
    }
    fn decode(&mut self, ids: &[u32]) -> Result<String> {
        let bytes: Vec<u8> = ids.iter().map(|&id| u8::try_from(id).unwrap_or(u8::MAX)).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
    fn render(&mut self, messages: &[Message]) -> Result<Vec<u32>> {
        let ids = rendered(messages);
        match self.context_length {
            Some(context) if ids.len() >= context => {
                Err(Failure::capability(format!("tokens: {} tokens and the context has {context}", ids.len())))
            }
            _ => Ok(ids),
        }
    }

    fn state_get(&mut self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.state.get(key).cloned())
    }
    fn state_set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        self.state.insert(key.to_owned(), value.to_vec());
        Ok(())
    }
    fn state_delete(&mut self, key: &str) -> Result<()> {
        self.state.remove(key);
        Ok(())
    }
    fn state_keys(&mut self) -> Result<Vec<String>> {
        Ok(self.state.keys().cloned().collect())
    }
    fn config(&mut self, key: &str) -> Result<Option<String>> {
        Ok(self.config.get(key).cloned())
    }
    fn config_all(&mut self) -> Result<Vec<(String, String)>> {
        Ok(self.config.clone().into_iter().collect())
    }
    fn log(&mut self, level: Level, context: &str, message: &str) -> Result<()> {
        self.logs.push(Line { level, context: context.to_owned(), message: message.to_owned() });
        Ok(())
    }
    fn gauge(&mut self, name: &str, value: f64) -> Result<()> {
        self.metrics.insert(name.to_owned(), value);
        Ok(())
    }
}
