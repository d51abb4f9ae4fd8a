//! Doubles of the trainer, the models and the tokenizer. Their numbers are plausible and depend on nothing but the
//! arguments, so that a recipe that is deterministic looks deterministic; they learn nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use reef_core::Message;
use reef_sandbox::{
    ChatRequest, Completion, Finish, Models, ModelsError, Optimizer, Policy, PoolSample, Term, Tokens, Training,
    TrainingError, Usage,
};

/// How much less likely the base finds a token than the policy that sampled it.
const BASE_GAP: f32 = 0.05;
/// Held-out tasks of the lab.
const HELD_OUT: u32 = 16;

/// A trainer that answers and learns nothing.
#[derive(Debug)]
pub struct GeneratedTraining {
    samples: Arc<Vec<PoolSample>>,
    /// Response lengths of derived items, which follow the samples.
    derived: Vec<usize>,
    trainers: u32,
    candidates: u32,
    steps: u32,
}

impl GeneratedTraining {
    /// Over the samples of one call.
    pub fn new(samples: Arc<Vec<PoolSample>>) -> Self {
        Self { samples, derived: Vec::new(), trainers: 0, candidates: 0, steps: 0 }
    }

    fn length(&self, item: u32) -> usize {
        let index = item as usize;
        match self.samples.get(index) {
            Some(pooled) => pooled.sample.trajectory.mask.len(),
            None => self.derived.get(index - self.samples.len()).copied().unwrap_or(0),
        }
    }

    fn column(&self, items: &[u32], of: impl Fn(&PoolSample) -> Vec<f32>) -> Vec<f32> {
        let part = |item: &u32| match self.samples.get(*item as usize) {
            Some(pooled) => of(pooled),
            None => vec![-1.0; self.length(*item)],
        };
        items.iter().flat_map(part).collect()
    }

    fn measured(&self, items: &[u32]) -> BTreeMap<String, f64> {
        let tokens: usize = items.iter().map(|item| self.length(*item)).sum();
        let step = f64::from(self.steps);
        [
            ("loss", 1.0 / (1.0 + step)),
            ("gradient_norm", 0.5),
            ("masked_share", 0.0),
            ("first_step_kl", 0.0),
            ("logprob_abs_diff", 0.0),
            ("tokens", tokens as f64),
            ("entropy", 1.0),
            ("skipped", 0.0),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

/// How much less likely a policy finds a token than the one that sampled it. Of an operator's binding the lab knows
/// only that it is another model.
fn gap(which: &Policy) -> f32 {
    match which {
        Policy::Current | Policy::Ema => 0.0,
        Policy::Named(name) if name == "served" => 0.0,
        Policy::Base | Policy::Named(_) => BASE_GAP,
    }
}

impl Training for GeneratedTraining {
    fn open(&mut self) -> Result<u32, TrainingError> {
        self.trainers += 1;
        Ok(self.trainers)
    }

    fn derive(&mut self, item: u32, _: Option<Vec<u32>>, response: Option<Vec<u32>>) -> Result<u32, TrainingError> {
        self.derived.push(response.map_or_else(|| self.length(item), |response| response.len()));
        u32::try_from(self.samples.len() + self.derived.len() - 1).map_err(|e| TrainingError::Other(e.to_string()))
    }

    fn forward(&mut self, _: u32, which: Policy, items: &[u32]) -> Result<Vec<f32>, TrainingError> {
        let gap = gap(&which);
        Ok(self.column(items, |pooled| pooled.sample.trajectory.logprobs.iter().map(|logp| logp - gap).collect()))
    }

    fn train(
        &mut self,
        _: u32,
        items: &[u32],
        _: Vec<Term>,
        _: Optimizer,
    ) -> Result<BTreeMap<String, f64>, TrainingError> {
        self.steps += 1;
        Ok(self.measured(items))
    }

    fn forward_backward(
        &mut self,
        _: u32,
        items: &[u32],
        _: Vec<Term>,
    ) -> Result<BTreeMap<String, f64>, TrainingError> {
        Ok(self.measured(items))
    }

    fn backward(&mut self, _: u32, items: &[u32], _: Vec<f32>) -> Result<BTreeMap<String, f64>, TrainingError> {
        Ok(self.measured(items))
    }

    fn optimizer_step(&mut self, _: u32, _: Optimizer) -> Result<BTreeMap<String, f64>, TrainingError> {
        self.steps += 1;
        Ok(self.measured(&[]))
    }

    fn update_ema(&mut self, _: u32, _: f64) -> Result<(), TrainingError> {
        Ok(())
    }

    fn values(&mut self, _: u32, items: &[u32]) -> Result<Vec<f32>, TrainingError> {
        Ok(vec![0.0; items.iter().map(|item| self.length(*item)).sum()])
    }

    fn fit_values(
        &mut self,
        _: u32,
        _: &[u32],
        _: Vec<f32>,
        _: f64,
        _: u32,
    ) -> Result<BTreeMap<String, f64>, TrainingError> {
        Ok([("value_loss", 0.25), ("explained_variance", 0.1)].map(|(name, value)| (name.to_owned(), value)).into())
    }

    fn checkpoint(&mut self, _: u32) -> Result<u32, TrainingError> {
        self.candidates += 1;
        Ok(self.candidates - 1)
    }
}

/// Models that always answer the same; the candidate is a little better than what serves.
#[derive(Debug, Default)]
pub struct GeneratedModels {
    used: Usage,
}

fn known(binding: &str) -> Result<(), ModelsError> {
    if ["served", "candidate", "base"].contains(&binding) {
        return Ok(());
    }
    Err(ModelsError::UnknownBinding(binding.to_owned()))
}

impl Models for GeneratedModels {
    fn bindings(&mut self) -> Result<Vec<String>, ModelsError> {
        Ok(["served", "candidate", "base"].map(str::to_owned).to_vec())
    }

    fn chat(&mut self, binding: &str, requests: Vec<ChatRequest>) -> Result<Vec<Vec<Completion>>, ModelsError> {
        known(binding)?;
        let answer = |draw: u32| Completion {
            text: format!("generated answer {draw}"),
            finish: Finish::Stop,
            tokens: 3,
            mean_logprob: -0.5,
        };
        let answers: Vec<Vec<_>> =
            requests.iter().map(|request| (0..request.sampling.n).map(answer).collect()).collect();
        self.used.calls = self.used.calls.saturating_add(answers.iter().map(Vec::len).sum::<usize>() as u32);
        Ok(answers)
    }

    fn score(&mut self, binding: &str, _: &[Message], answer: &str) -> Result<Vec<f32>, ModelsError> {
        known(binding)?;
        Ok(vec![-0.5; answer.len()])
    }

    fn spent(&mut self) -> Result<Usage, ModelsError> {
        Ok(self.used)
    }

    fn held_out_count(&mut self) -> Result<u32, ModelsError> {
        Ok(HELD_OUT)
    }

    fn held_out_scores(&mut self, binding: &str, first: u32, count: u32) -> Result<Vec<f64>, ModelsError> {
        known(binding)?;
        let every = if binding == "candidate" { 2 } else { 3 };
        Ok((first..first.saturating_add(count)).map(|task| f64::from(u8::from(task % every == 0))).collect())
    }
}

/// One id a byte.
#[derive(Debug)]
pub struct GeneratedTokens;

impl Tokens for GeneratedTokens {
    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn decode(&self, ids: &[u32]) -> Result<String, String> {
        let bytes: Vec<u8> = ids.iter().map(|id| (*id % 256) as u8).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn render(&self, messages: &[Message]) -> Result<Vec<u32>, String> {
        let text: Vec<_> = messages.iter().map(|message| format!("{}: {}\n", message.role, message.content)).collect();
        self.encode(&text.concat())
    }
}
