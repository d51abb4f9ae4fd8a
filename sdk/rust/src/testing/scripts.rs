//! What a test tells the double before it runs a recipe on it.

use super::{FakeHost, FakeSample};
use crate::experience::UnusableReport;
use crate::harness::Episode;
use crate::{Entry, Measurement, Usage, Verifier};

impl FakeHost {
    /// Sets a configuration value, as JSON.
    #[must_use]
    pub fn config(mut self, key: &str, json: &str) -> Self {
        self.config.insert(key.to_owned(), json.to_owned());
        self
    }

    /// Adds a sample at the end of the pool.
    #[must_use]
    pub fn sample(mut self, sample: FakeSample) -> Self {
        self.samples.push(sample);
        self
    }

    /// Adds a report that could not be assembled.
    #[must_use]
    pub fn unusable(mut self, report: UnusableReport) -> Self {
        self.unusable.push(report);
        self
    }

    /// What `train`, `forward-backward`, `backward` and `optimizer-step` measure.
    #[must_use]
    pub fn measures_training(mut self, name: &str, value: f64) -> Self {
        self.train_measurements.push(Measurement { name: name.to_owned(), value });
        self
    }

    /// What `fit-values` measures.
    #[must_use]
    pub fn measures_fit(mut self, name: &str, value: f64) -> Self {
        self.fit_measurements.push(Measurement { name: name.to_owned(), value });
        self
    }

    /// Scores of a binding on the held-out tasks; their number is the number of tasks.
    #[must_use]
    pub fn held_out(mut self, binding: &str, scores: &[f64]) -> Self {
        self.held_out.insert(binding.to_owned(), scores.to_vec());
        self
    }

    /// Adds an answer of `chat` on a binding. Several are given in turn, over and over.
    #[must_use]
    pub fn answers(mut self, binding: &str, answer: &str) -> Self {
        self.answers.entry(binding.to_owned()).or_default().push(answer.to_owned());
        self
    }

    /// A call of `chat` with this text in any of its messages fails.
    #[must_use]
    pub fn refuses_chat(mut self, text: &str) -> Self {
        self.refused_chats.push(text.to_owned());
        self
    }

    /// The budget of the call is spent after this many fields of reports; if never set, there is none.
    #[must_use]
    pub fn allows_report_fields(mut self, count: u32) -> Self {
        self.report_fields_left = Some(count);
        self
    }

    /// Milliseconds since the Unix epoch when the step begins; 0 if never set.
    #[must_use]
    pub fn at_ms(mut self, now: f64) -> Self {
        self.now_ms = now;
        self
    }

    /// What `score` gives on a binding.
    #[must_use]
    pub fn scores_answers(mut self, binding: &str, logprobs: &[f32]) -> Self {
        self.scores.insert(binding.to_owned(), logprobs.to_vec());
        self
    }

    /// What the step has used so far; if never set, the double counts its own answers.
    #[must_use]
    pub fn spent(mut self, usage: Usage) -> Self {
        self.spent = Some(usage);
        self
    }

    /// Tokens of a conversation that `render` refuses to reach, as a model's context does; none if never set.
    #[must_use]
    pub fn context_length(mut self, tokens: usize) -> Self {
        self.context_length = Some(tokens);
        self
    }

    /// Installs a verifier.
    #[must_use]
    pub fn verifier<V: Verifier>(mut self, name: &str) -> Self {
        self.verifiers.insert(name.to_owned(), V::check);
        self
    }

    /// Adds an entry to the harness tree.
    #[must_use]
    pub fn entry(mut self, entry: Entry) -> Self {
        self.entries.push(entry);
        self
    }

    /// Adds a task of the harness and how every episode of it ends.
    #[must_use]
    pub fn episode(mut self, task: &str, outcome: Episode) -> Self {
        self.episodes.insert(task.to_owned(), outcome);
        self
    }

    /// Names the tasks that [`FakeHost::plays`] plays.
    #[must_use]
    pub fn tasks(mut self, names: &[&str]) -> Self {
        self.tasks = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// How an episode ends, by the entries of its tree, the task and the seed.
    #[must_use]
    pub fn plays(mut self, player: fn(&[Entry], &str, u32) -> Episode) -> Self {
        self.player = Some(player);
        self
    }

    /// Makes the mutations of the last proposal the tree that serves, as a release does.
    ///
    /// # Errors
    /// `capability` if they cannot be applied.
    pub fn release_candidate(&mut self) -> crate::Result<()> {
        self.entries = self.tree_of(&crate::harness::Tree::Candidate(super::CANDIDATE))?;
        self.candidate.clear();
        Ok(())
    }

    /// Refuses every call of the harness with this reason.
    #[must_use]
    pub fn without_harness(mut self, reason: &str) -> Self {
        self.no_harness = Some(reason.to_owned());
        self
    }
}
