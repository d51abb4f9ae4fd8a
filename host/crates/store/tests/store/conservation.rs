//! Conservation: under any schedule, with crashes, erasures and retention in it, every report with references is
//! pending, reserved, consumed or retired, and no record is trained twice.

use std::collections::BTreeSet;

use proptest::prelude::*;
use reef_core::{RecordId, ReleaseOrigin, Report, Sample, Step, StepOutcome, Surface};
use reef_store::{Commit, Retention, Retracted, Selector, StoreError};

use crate::fixture::{
    Fixture, NOW_MS, ended, failed, held, inference, name, release, released, report, skipped, step, tenant,
};

const CASES: u32 = 32;
const ACTIONS_MAX: usize = 28;

#[derive(Debug, Clone)]
enum Ending {
    Released,
    Held,
    Rejected,
    Skipped,
    Failed,
}

#[derive(Debug, Clone)]
enum Action {
    Answer,
    /// A report on one or two answers, by index; a repeated index is one reference.
    Report(usize, usize),
    Amend(usize, usize),
    Repeat(usize),
    Begin {
        skip: usize,
        take: usize,
    },
    End(Ending),
    Retire(usize),
    RetireUnusable,
    Retract(usize),
    /// Everything that waits.
    Expire,
    /// An answer with the reports about it, or a report.
    Erase(usize, bool),
    /// All but so many records.
    Retain(i64),
    Reopen,
    Crash,
}

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        Just(Ending::Released),
        Just(Ending::Held),
        Just(Ending::Rejected),
        Just(Ending::Skipped),
        Just(Ending::Failed),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::Answer),
        6 => (0..64usize, 0..64usize).prop_map(|(a, b)| Action::Report(a, b)),
        2 => (0..64usize, 0..64usize).prop_map(|(old, on)| Action::Amend(old, on)),
        1 => (0..64usize).prop_map(Action::Repeat),
        4 => (0..3usize, 1..4usize).prop_map(|(skip, take)| Action::Begin { skip, take }),
        5 => ending().prop_map(Action::End),
        2 => (0..64usize).prop_map(Action::Retire),
        1 => Just(Action::RetireUnusable),
        2 => (0..64usize).prop_map(Action::Retract),
        1 => Just(Action::Expire),
        2 => (0..64usize, any::<bool>()).prop_map(|(n, answer)| Action::Erase(n, answer)),
        1 => (0..8i64).prop_map(Action::Retain),
        1 => Just(Action::Reopen),
        1 => Just(Action::Crash),
    ]
}

/// What was done, and what therefore must hold.
struct World {
    fixture: Fixture,
    answers: usize,
    reports: Vec<Report>,
    with_references: i64,
    running: Option<(Step, Vec<Sample>)>,
    steps: u32,
    releases: u32,
    trained_reports: BTreeSet<RecordId>,
    trained_records: BTreeSet<RecordId>,
    /// Erased or dropped, of either kind.
    gone: BTreeSet<RecordId>,
}

impl World {
    async fn new() -> Self {
        Self {
            fixture: Fixture::new().await,
            answers: 0,
            reports: Vec::new(),
            with_references: 0,
            running: None,
            steps: 0,
            releases: 0,
            trained_reports: BTreeSet::new(),
            trained_records: BTreeSet::new(),
            gone: BTreeSet::new(),
        }
    }

    async fn act(&mut self, action: &Action) {
        match action {
            Action::Answer => {
                let n = self.answers as u32;
                self.fixture.answer(inference(&format!("r-{n}"), &[1, n], &[2])).await;
                self.answers += 1;
            }
            Action::Report(a, b) => self.report(&[*a, *b], None).await,
            Action::Amend(old, on) => self.amend(*old, *on).await,
            Action::Repeat(n) => self.repeat(*n).await,
            Action::Begin { skip, take } => self.begin(*skip, *take).await,
            Action::End(ending) => self.end(ending).await,
            Action::Retire(n) => self.retire(*n).await,
            Action::RetireUnusable => {
                let unusable = self.fixture.pool().await.unusable;
                let unusable: Vec<_> = unusable.into_iter().map(|(report, why)| (report, why.reason)).collect();
                self.fixture
                    .store
                    .retire((&tenant(), &name()), Surface::Weights, &unusable, 0)
                    .await
                    .expect("pending reports can be retired");
            }
            Action::Retract(n) => self.retract(*n).await,
            Action::Expire => {
                let waiting = self.fixture.counts().await.pending.unsigned_abs();
                let expired = self.fixture.store.expire(&tenant(), &name(), NOW_MS + 1, NOW_MS).await;
                assert_eq!(expired, Ok(waiting));
            }
            Action::Erase(n, answer) => self.erase(*n, *answer).await,
            Action::Retain(most) => self.retain(*most).await,
            Action::Reopen => self.fixture.reopen().await,
            Action::Crash => self.fixture.crash().await,
        }
    }

    async fn report(&mut self, on: &[usize], amends: Option<RecordId>) {
        let Some(answers) = std::num::NonZeroUsize::new(self.answers) else { return };
        let references: BTreeSet<String> = on.iter().map(|n| format!("r-{}", *n % answers)).collect();
        let references: Vec<&str> = references.iter().map(String::as_str).collect();
        let new = Report { amends, ..report(&format!("g-{}", self.reports.len()), &references) };
        match self.fixture.report(new.clone()).await {
            Ok(_) => {
                self.reports.push(new);
                self.with_references += 1;
            }
            Err(StoreError::Conflict(told)) => assert!(told.contains("was amended by"), "{told}"),
            Err(StoreError::Gone(id)) => assert!(self.gone.contains(&id), "{id} is there"),
            Err(other) => panic!("{other}"),
        }
    }

    async fn amend(&mut self, old: usize, on: usize) {
        if let Some(old) = self.any_report(old) {
            self.report(&[on], Some(old.id)).await;
        }
    }

    fn any_report(&self, n: usize) -> Option<Report> {
        self.reports.get(n.checked_rem(self.reports.len())?).cloned()
    }

    async fn repeat(&mut self, n: usize) {
        let Some(same) = self.any_report(n) else { return };
        if self.gone.contains(&same.id) {
            let gone = StoreError::Gone(same.id.clone());
            assert_eq!(self.fixture.report(same).await, Err(gone));
        } else {
            assert!(self.fixture.report(same).await.expect("a retry").duplicate);
        }
    }

    async fn begin(&mut self, skip: usize, take: usize) {
        let pool = self.fixture.pool().await;
        let mut samples: Vec<Sample> = pool.samples.into_iter().skip(skip).take(take).collect();
        samples.reverse();
        let head = self.fixture.store.head(&tenant(), &name()).await.expect("head").expect("a head");
        let batch: Vec<&str> = samples.iter().map(|sample| sample.report.as_str()).collect();
        let new = step(self.steps + 1, &head, &batch);
        let begun = self.fixture.begin(&new).await;
        if self.running.is_some() {
            assert!(matches!(begun, Err(StoreError::Conflict(_))), "one step at a time");
            return;
        }
        begun.expect("what the pool offers can be reserved");
        self.steps += 1;
        self.running = Some((new, samples));
    }

    async fn end(&mut self, ending: &Ending) {
        let Some((step, samples)) = self.running.take() else { return };
        let again = self.fixture.store.samples(&tenant(), &name(), &step.batch).await.expect("formed again");
        assert_eq!(again, samples, "the batch is re-formed as it was");
        let parent = self.fixture.store.head(&tenant(), &name()).await.expect("head").expect("a head");
        let candidate = release(self.releases + 1, Some(&parent), ReleaseOrigin::Step { step: step.step });
        let nothing = Commit::default;
        let (step, commit) = match ending {
            Ending::Released => released(&step, &candidate),
            Ending::Held => held(&step, &candidate),
            Ending::Rejected => (ended(&step, StepOutcome::Rejected { reason: "worse".to_owned() }), nothing()),
            Ending::Skipped => (skipped(&step), nothing()),
            Ending::Failed => (failed(&step), nothing()),
        };
        self.fixture.finish(&step, commit.clone()).await.expect("ended");
        self.fixture.finish(&step, commit).await.expect("ended again");
        self.releases += 1;
        if matches!(ending, Ending::Failed) {
            return;
        }
        for sample in samples {
            assert!(self.trained_reports.insert(sample.report.clone()), "report {} trained twice", sample.report);
            for record in sample.records {
                assert!(self.trained_records.insert(record.clone()), "record {record} trained twice");
            }
        }
    }

    async fn retire(&mut self, n: usize) {
        let Some(report) = self.any_report(n) else { return };
        let taken = self.trained_reports.contains(&report.id)
            || self.running.iter().any(|(step, _)| step.batch.contains(&report.id));
        let retired = self.fixture.retire(&[(report.id.as_str(), "expired: too old")]).await;
        assert_eq!(retired.is_err(), taken, "{retired:?}");
    }

    async fn retract(&mut self, n: usize) {
        let Some(report) = self.any_report(n) else { return };
        let held = self.running.as_ref().filter(|(step, _)| step.batch.contains(&report.id));
        let told = self.fixture.store.retract(&tenant(), &name(), &report.id, NOW_MS).await;
        match told {
            Ok(Retracted::InStep(step)) => assert_eq!(Some(step), held.map(|(step, _)| step.step)),
            Ok(Retracted::Trained(_)) => assert!(self.trained_reports.contains(&report.id)),
            Ok(Retracted::LeftPool | Retracted::NotWaiting) => {
                assert!(held.is_none() && !self.trained_reports.contains(&report.id));
            }
            Err(StoreError::UnknownReference(id)) => assert!(self.gone.contains(&id), "{id} is there"),
            Err(other) => panic!("{other}"),
        }
        let pool = self.fixture.pool().await;
        assert!(pool.samples.iter().all(|sample| sample.report != report.id), "a retracted report is offered");
    }

    async fn erase(&mut self, n: usize, answer: bool) {
        let target = match (answer, n.checked_rem(self.answers)) {
            (true, Some(n)) => Some(RecordId::parse(format!("r-{n}")).expect("valid")),
            (true, None) => None,
            (false, _) => self.any_report(n).map(|report| report.id),
        };
        let Some(target) = target else { return };
        let what = Selector::Record(target.clone());
        let erased = self.fixture.store.erase(&tenant(), &name(), &what, NOW_MS).await.expect("erased");
        let before = self.gone.len();
        self.notice_gone().await;
        assert_eq!(erased.records, (self.gone.len() - before) as u64);
        assert!(erased.waiting > 0 || self.gone.contains(&target), "{target} is still there");
    }

    async fn retain(&mut self, most: i64) {
        let keep = Retention { records_max: Some(most), ..Retention::default() };
        let before = self.fixture.pool().await;
        self.fixture.store.retain(&tenant(), &name(), &keep, NOW_MS).await.expect("retained");
        assert_eq!(self.fixture.pool().await, before, "what waits is as it was");
        self.notice_gone().await;
    }

    /// Learns which records are gone; each has a tombstone, and the running step has lost none.
    async fn notice_gone(&mut self) {
        let answers = (0..self.answers).map(|n| RecordId::parse(format!("r-{n}")).expect("valid"));
        let reports = self.reports.iter().map(|report| report.id.clone());
        for id in answers.chain(reports).collect::<Vec<_>>() {
            let there = self.fixture.store.record(&tenant(), &name(), &id).await.expect("read").is_some();
            let stone = self.fixture.store.tombstone(&tenant(), &name(), &id).await.expect("read").is_some();
            assert_ne!(there, stone, "record {id}");
            if stone {
                self.gone.insert(id);
            }
        }
        if let Some((step, samples)) = &self.running {
            assert!(step.batch.iter().all(|report| !self.gone.contains(report)));
            assert!(samples.iter().flat_map(|sample| &sample.records).all(|record| !self.gone.contains(record)));
        }
    }

    async fn holds(&self) {
        let counts = self.fixture.counts().await;
        assert_eq!(counts.pending + counts.reserved + counts.consumed + counts.retired, self.with_references);
        assert_eq!(counts.reports, self.reports.len() as i64);
        assert_eq!(counts.inferences, self.answers as i64);
        assert_eq!(counts.consumed, self.trained_reports.len() as i64);
        assert_eq!(counts.reserved, self.running.as_ref().map_or(0, |(step, _)| step.batch.len() as i64));
        assert_eq!(counts.steps, i64::from(self.steps));
        let running = self.fixture.running().await;
        assert_eq!(running.map(|step| step.batch), self.running.as_ref().map(|(step, _)| step.batch.clone()));
        let pool = self.fixture.pool().await;
        let offered =
            pool.samples.iter().map(|sample| &sample.report).chain(pool.unusable.iter().map(|(report, _)| report));
        let offered: Vec<&RecordId> = offered.collect();
        assert!(offered.len() as i64 <= counts.pending);
        assert!(
            offered.iter().all(|report| !self.trained_reports.contains(*report)),
            "a trained report is offered again"
        );
        let records: Vec<&RecordId> = pool.samples.iter().flat_map(|sample| &sample.records).collect();
        assert_eq!(records.iter().collect::<BTreeSet<_>>().len(), records.len(), "a record is offered twice");
        assert!(
            records.iter().all(|record| !self.trained_records.contains(*record)),
            "a trained record is offered again"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_sample_is_in_exactly_one_state_under_any_schedule(actions in prop::collection::vec(action(), 1..ACTIONS_MAX)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(async {
            let mut world = World::new().await;
            for action in &actions {
                world.act(action).await;
                world.holds().await;
            }
            world.fixture.store.close().await;
        });
    }
}
