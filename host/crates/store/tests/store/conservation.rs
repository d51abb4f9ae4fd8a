//! Every report with references is pending, reserved, consumed or retired, under random schedules.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use reef_core::{RecordId, ReleaseOrigin, Report, Step, StepOutcome};
use reef_store::{Commit, Counts};

use crate::fixture::{Place, ended, graded, id, release, release_id, step, why};

#[derive(Debug, Clone)]
enum Event {
    /// A record and a report on it.
    Sample,
    /// The latest report again.
    Repeat,
    /// A new report that replaces a known one.
    Amend(prop::sample::Index),
    /// A step on up to so many samples of the pool.
    Begin(usize),
    /// The end of the running step: 0 released, 1 rejected, 2 skipped, 3 held, 4 failed.
    Finish(u8),
    /// Retiring one sample of the pool, and all unusable reports.
    Retire(prop::sample::Index),
    /// A crash.
    Reopen,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Sample),
        1 => Just(Event::Repeat),
        2 => any::<prop::sample::Index>().prop_map(Event::Amend),
        3 => (1..4usize).prop_map(Event::Begin),
        3 => (0..5u8).prop_map(Event::Finish),
        1 => any::<prop::sample::Index>().prop_map(Event::Retire),
        1 => Just(Event::Reopen),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Pending,
    Reserved,
    Consumed,
    Retired,
}

/// What the store must agree with.
struct Model {
    place: Place,
    states: BTreeMap<RecordId, State>,
    amended: BTreeMap<RecordId, RecordId>,
    records: BTreeMap<RecordId, String>,
    running: Option<Step>,
    steps: u32,
    head: u32,
    releases: u32,
    names: u32,
}

impl Model {
    async fn new() -> Self {
        let place = Place::with_base().await;
        let (states, amended, records) = Default::default();
        Self { place, states, amended, records, running: None, steps: 0, head: 0, releases: 0, names: 0 }
    }

    async fn run(&mut self, event: &Event) {
        match event {
            Event::Sample => self.sample().await,
            Event::Repeat => self.repeat().await,
            Event::Amend(index) => self.amend(index).await,
            Event::Begin(size) => self.begin(*size).await,
            Event::Finish(kind) => self.finish(*kind).await,
            Event::Retire(index) => self.retire(index).await,
            Event::Reopen => self.place.reopen().await,
        }
    }

    async fn sample(&mut self) {
        self.names += 1;
        let name = self.names.to_string();
        let report = self.place.sample(&name).await;
        self.records.insert(report.clone(), format!("i-{name}"));
        self.states.insert(report, State::Pending);
    }

    async fn repeat(&mut self) {
        if let Some((report, record)) = self.records.iter().find(|(id, _)| id.as_str().starts_with("r-")) {
            assert!(self.place.report(graded(report.as_str(), &[record], 1.0)).await);
        }
    }

    async fn amend(&mut self, index: &prop::sample::Index) {
        let open: Vec<_> = self.states.keys().filter(|id| !self.amended.contains_key(id)).cloned().collect();
        if open.is_empty() {
            return;
        }
        let old = open[index.index(open.len())].clone();
        self.names += 1;
        let (name, record) = (format!("a-{}", self.names), self.records[&old].clone());
        self.place.report(Report { amends: Some(old.clone()), ..graded(&name, &[&record], 0.5) }).await;
        if self.states[&old] == State::Pending {
            self.states.insert(old.clone(), State::Retired);
        }
        self.amended.insert(old, id(&name));
        self.records.insert(id(&name), record);
        self.states.insert(id(&name), State::Pending);
    }

    async fn begin(&mut self, size: usize) {
        if self.running.is_some() {
            return;
        }
        let pool = self.place.store.pool(&self.place.t, &self.place.s, 1000).await.expect("pool");
        let batch: Vec<_> = pool.samples.iter().take(size).map(|s| s.report.clone()).collect();
        let next = step(self.steps + 1, self.head, &batch);
        self.place.store.begin_step(&self.place.t, &self.place.s, &next).await.expect("begin");
        self.steps += 1;
        self.states.extend(batch.into_iter().map(|id| (id, State::Reserved)));
        self.running = Some(next);
    }

    async fn finish(&mut self, kind: u8) {
        let Some(running) = self.running.take() else { return };
        let reason = why();
        self.releases += 1;
        let made = release(self.releases, Some(self.head), ReleaseOrigin::Step { step: running.step });
        let (outcome, commit) = match kind {
            0 => {
                self.head = self.releases;
                let outcome = StepOutcome::Released { release: release_id(self.head), reason };
                (outcome, Commit { release: Some(made), ..Commit::default() })
            }
            1 => (StepOutcome::Rejected { reason }, Commit::default()),
            2 => (StepOutcome::Skipped { reason }, Commit::default()),
            3 => (StepOutcome::Held { reason }, Commit { held: Some(made), ..Commit::default() }),
            _ => (StepOutcome::Failed { reason }, Commit::default()),
        };
        let step = ended(&running, outcome);
        for _ in 0..2 {
            let (t, s) = (&self.place.t, &self.place.s);
            self.place.store.finish_step(t, s, &step, commit.clone()).await.expect("finish");
        }
        for report in running.batch {
            let state = match (kind, self.amended.contains_key(&report)) {
                (0..=3, _) => State::Consumed,
                (_, true) => State::Retired,
                (_, false) => State::Pending,
            };
            self.states.insert(report, state);
        }
    }

    async fn retire(&mut self, index: &prop::sample::Index) {
        let pool = self.place.store.pool(&self.place.t, &self.place.s, 1000).await.expect("pool");
        let mut items = pool.unusable;
        if !pool.samples.is_empty() {
            items
                .push((pool.samples[index.index(pool.samples.len())].report.clone(), "chosen: by the test".to_owned()));
        }
        self.place.store.retire(&self.place.t, &self.place.s, &items, 50).await.expect("retire");
        self.states.extend(items.into_iter().map(|(id, _)| (id, State::Retired)));
    }

    async fn check(&self) -> Result<(), TestCaseError> {
        let counts = self.place.store.counts(&self.place.t, &self.place.s).await.expect("counts");
        let of = |state| self.states.values().filter(|s| **s == state).count() as i64;
        let wanted = Counts {
            inferences: self.records.values().collect::<std::collections::BTreeSet<_>>().len() as i64,
            reports: self.states.len() as i64,
            pending: of(State::Pending),
            reserved: of(State::Reserved),
            consumed: of(State::Consumed),
            retired: of(State::Retired),
            steps: i64::from(self.steps),
        };
        prop_assert_eq!(counts, wanted);
        let running = self.place.store.running_step(&self.place.t, &self.place.s).await.expect("running");
        prop_assert_eq!(&running, &self.running);
        let reasons = self.place.store.retirement_reasons(&self.place.t, &self.place.s).await.expect("reasons");
        prop_assert_eq!(reasons.values().sum::<i64>(), counts.retired);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_sample_is_in_exactly_one_state(events in prop::collection::vec(event(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(async {
            let mut model = Model::new().await;
            for event in &events {
                model.run(event).await;
                model.check().await?;
            }
            Ok::<(), TestCaseError>(())
        })?;
    }
}
