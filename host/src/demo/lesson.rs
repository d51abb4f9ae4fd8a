//! One family from the first measurement to the last, as a client of the server.
//! It asks, scores and reports while the server learns, at most one batch ahead of it, and watches the
//! status. It never waits without a bound and never looks behind the HTTP routes.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt, TryStreamExt};
use reef_core::{HeldOutTask, Message, ReleaseId, Step, StepOutcome};
use serde_json::{Map, json};
use tokio::time::Instant;

use super::board::Board;
use super::client::Client;
use super::course::{Course, Example, Measured, Scored};
use super::error::DemoError;
use super::families::{Family, Splits, Task};
use super::scenario::{Asking, ListedRelease, Purpose, Scenario, Status};

/// Requests in flight: what the engine decodes together by default.
const IN_FLIGHT_MAX: usize = 32;
/// Pause between two looks at the status.
const POLL_MS: u64 = 250;
/// Looks without work on either side before samples count as lost (expired, retired) and are replaced.
const STARVED_POLLS: u32 = 8;
/// Failed steps in a row after which the learner is given up.
const FAILED_STEPS_MAX: usize = 5;
/// Seconds that an idle learner may show an error before it is given up.
const STUCK_SECONDS_MAX: u64 = 30;
/// Seconds that a running step may take to end after the lesson.
const SETTLE_SECONDS_MAX: u64 = 30;
/// Held-out prompts that are shown with their answers.
const EXAMPLES_SHOWN: usize = 4;

/// How a lesson is given.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Seed of words and sampling.
    pub seed: u64,
    /// Time limit in minutes, measuring included.
    pub minutes_max: f64,
}

type Events<'a> = FuturesUnordered<BoxFuture<'a, Result<Event, DemoError>>>;

enum Event {
    Scored(Scored),
    Looked { status: Status, history: Option<(Vec<Step>, Vec<ListedRelease>)> },
}

/// What changes when a step begins or ends.
type Mark = (u64, bool, u32);

struct Lesson<'a> {
    scenario: &'a Scenario<'a>,
    family: &'a Family,
    board: &'a mut Board,
    course: Course,
    splits: Splits,
    /// Training prompts asked so far, in flight or scored.
    asked: usize,
    in_flight: usize,
    /// Samples that the server lost and that may be asked again.
    replaced: usize,
    starved: u32,
    mark: Mark,
    failed: usize,
    started: Instant,
    moved: Instant,
    status: Status,
}

/// Teaches one family and returns what came of it.
pub async fn teach(client: &Client, family: &Family, plan: Plan, board: &mut Board) -> Result<Course, DemoError> {
    let started = Instant::now();
    let limit = Duration::try_from_secs_f64(plan.minutes_max * 60.0)
        .map_err(|_| DemoError::Options(format!("{} is not a number of minutes; use one over 0", plan.minutes_max)))?;
    let course = Course::new(family, plan.seed);
    let scenario = Scenario::new(client, course.scenario.clone());
    let mut lesson = Lesson {
        scenario: &scenario,
        family,
        board,
        course,
        splits: family.splits(plan.seed),
        asked: 0,
        in_flight: 0,
        replaced: 0,
        starved: 0,
        mark: (0, false, 0),
        failed: 0,
        started,
        moved: started,
        status: Status::default(),
    };
    lesson.prepare().await?;
    lesson.measure_before().await?;
    // The last measurement will take about as long as this one did.
    let deadline = started + limit.saturating_sub(started.elapsed());
    lesson.practise(deadline).await?;
    if lesson.course.steps.is_empty() {
        return Err(DemoError::NoStep {
            family: family.name.to_owned(),
            minutes: plan.minutes_max,
            learner: lesson.status.learner(),
        });
    }
    lesson.settle().await?;
    lesson.measure_after().await?;
    Ok(lesson.course)
}

impl<'a> Lesson<'a> {
    async fn prepare(&mut self) -> Result<(), DemoError> {
        let settings = Map::from_iter([
            ("recipe_config".to_owned(), self.family.config()),
            ("gate".to_owned(), json!(self.family.gate)),
        ]);
        self.scenario.create(settings).await?;
        self.status = self.scenario.status().await?;
        if self.status.head_sequence > 0 || self.status.step > 0 {
            return Err(DemoError::ScenarioUsed {
                scenario: self.scenario.name.clone(),
                sequence: self.status.head_sequence,
            });
        }
        let tasks: Vec<HeldOutTask> = self.splits.gate.iter().map(|task| self.family.held_out(task)).collect();
        self.scenario.upload(&tasks).await
    }

    async fn measure_before(&mut self) -> Result<(), DemoError> {
        let measured = self.measure(self.status.head.clone()).await?;
        let shown = self.splits.test.iter().zip(&measured).take(EXAMPLES_SHOWN);
        self.course.examples = shown
            .map(|(task, measured)| Example {
                prompt: task.prompt.clone(),
                wanted: task.wanted.clone(),
                before: measured.answer.clone(),
                after: None,
            })
            .collect();
        self.course.before = Some(measured.iter().map(|measured| measured.exact).collect());
        self.publish()
    }

    async fn measure_after(&mut self) -> Result<(), DemoError> {
        let measured = self.measure(self.status.head.clone()).await?;
        for (example, measured) in self.course.examples.iter_mut().zip(&measured) {
            example.after = Some(measured.answer.clone());
        }
        self.course.after = Some(measured.iter().map(|measured| measured.exact).collect());
        self.publish()
    }

    /// Greedy answers of one release to the test prompts, in their order.
    async fn measure(&self, release: Option<ReleaseId>) -> Result<Vec<Measured>, DemoError> {
        let asking = Asking {
            temperature: 0.0,
            tokens_max: self.family.tokens_max,
            seed: 0,
            purpose: Purpose::Measuring { release },
        };
        let mut answers = Vec::with_capacity(self.splits.test.len());
        for task in &self.splits.test {
            answers.push(measure_one(self.scenario, self.family.messages(task), task, &asking));
        }
        futures::stream::iter(answers).buffered(IN_FLIGHT_MAX).try_collect().await
    }

    /// Asks, scores and reports until the family is learned, all steps are done, or the time is over.
    async fn practise(&mut self, deadline: Instant) -> Result<(), DemoError> {
        let scenario = self.scenario;
        let mut events: Events<'_> = FuturesUnordered::new();
        events.push(Box::pin(look(scenario, self.mark)));
        self.moved = Instant::now();
        while !self.course.learned() && self.steps_left() > 0 {
            while self.in_flight < IN_FLIGHT_MAX && self.asked < self.allowed() {
                events.push(self.question());
            }
            let Ok(Some(event)) = tokio::time::timeout_at(deadline, events.next()).await else { break };
            match event? {
                Event::Scored(scored) => {
                    self.in_flight -= 1;
                    self.course.score(scored);
                    self.show();
                }
                Event::Looked { status, history } => {
                    self.look_at(status, history)?;
                    events.push(Box::pin(look(scenario, self.mark)));
                }
            }
        }
        Ok(())
    }

    /// One training prompt, from the question to its report.
    fn question(&mut self) -> BoxFuture<'a, Result<Event, DemoError>> {
        let task = (self.family.task)(&mut self.splits.train);
        let asking = Asking {
            temperature: 1.0,
            tokens_max: self.family.tokens_max,
            // Half the range, for servers that read a seed as a signed number.
            seed: self.splits.train.bits() >> 1,
            purpose: Purpose::Training { session: format!("{}-{}", self.scenario.name, self.asked) },
        };
        self.asked += 1;
        self.in_flight += 1;
        Box::pin(practise_one(self.scenario, self.family.messages(&task), task, asking))
    }

    fn steps_left(&self) -> usize {
        (self.family.steps_max as usize).saturating_sub(self.course.steps.len())
    }

    /// Questions that may have been asked by now: the batch in the learner's hands, one ahead, no more
    /// than the remaining steps can use.
    fn allowed(&self) -> usize {
        self.course.consumed() + self.replaced + self.family.batch_size as usize * self.steps_left().min(2)
    }

    fn look_at(&mut self, status: Status, history: Option<(Vec<Step>, Vec<ListedRelease>)>) -> Result<(), DemoError> {
        self.course.head_sequence = status.head_sequence;
        self.status = status;
        if let Some((steps, releases)) = history {
            self.mark = mark(&self.status);
            let over = steps.iter().rev().filter(|step| step.outcome != StepOutcome::Running);
            self.failed = over.take_while(|step| matches!(step.outcome, StepOutcome::Failed { .. })).count();
            if self.course.learn_history(steps, releases) {
                self.moved = Instant::now();
                self.publish()?;
            }
        }
        if self.status.running {
            self.moved = Instant::now();
        }
        self.replace_lost();
        let stuck = self.status.last_error.is_some() && self.moved.elapsed() > Duration::from_secs(STUCK_SECONDS_MAX);
        if self.failed >= FAILED_STEPS_MAX || stuck {
            return Err(DemoError::Learner { scenario: self.scenario.name.clone(), reason: self.status.learner() });
        }
        self.show();
        Ok(())
    }

    /// Samples may expire without a step; a learner that waits for them must not wait for ever.
    fn replace_lost(&mut self) {
        let batch = self.family.batch_size as usize;
        let short = batch.saturating_sub(usize::try_from(self.status.pending).unwrap_or(batch));
        let starved = !self.status.running && self.in_flight == 0 && self.asked >= self.allowed() && short > 0;
        self.starved = if starved { self.starved + 1 } else { 0 };
        if self.starved >= STARVED_POLLS {
            self.replaced += short;
            self.starved = 0;
        }
    }

    /// Pauses the learner and waits, for a bounded time, until the running step has ended.
    async fn settle(&mut self) -> Result<(), DemoError> {
        self.scenario.pause().await?;
        let patience = Instant::now() + Duration::from_secs(SETTLE_SECONDS_MAX);
        loop {
            self.status = self.scenario.status().await?;
            if !self.status.running || Instant::now() > patience {
                break;
            }
            tokio::time::sleep(Duration::from_millis(POLL_MS)).await;
        }
        let (steps, releases) = (self.scenario.steps().await?, self.scenario.releases().await?);
        self.course.head_sequence = self.status.head_sequence;
        self.course.learn_history(steps, releases);
        Ok(())
    }

    fn show(&mut self) {
        self.course.elapsed = self.started.elapsed();
        self.board.show(&self.course);
    }

    fn publish(&mut self) -> Result<(), DemoError> {
        self.course.elapsed = self.started.elapsed();
        self.board.publish(&self.course)
    }
}

fn mark(status: &Status) -> Mark {
    (status.step, status.running, status.head_sequence)
}

/// Looks at the status after a pause, and at the history if something began or ended since.
async fn look(scenario: &Scenario<'_>, seen: Mark) -> Result<Event, DemoError> {
    tokio::time::sleep(Duration::from_millis(POLL_MS)).await;
    let status = scenario.status().await?;
    let changed = mark(&status) != seen;
    let history = if changed { Some((scenario.steps().await?, scenario.releases().await?)) } else { None };
    Ok(Event::Looked { status, history })
}

async fn practise_one(
    scenario: &Scenario<'_>,
    messages: Vec<Message>,
    task: Task,
    asking: Asking,
) -> Result<Event, DemoError> {
    let answer = scenario.ask(&messages, &asking).await?;
    let graded = task.grade(&answer.text);
    let report = scenario.report(&answer.receipt, graded.reward).await?;
    Ok(Event::Scored(Scored { report, graded, release: answer.release, tokens: answer.tokens }))
}

async fn measure_one(
    scenario: &Scenario<'_>,
    messages: Vec<Message>,
    task: &Task,
    asking: &Asking,
) -> Result<Measured, DemoError> {
    let answer = scenario.ask(&messages, asking).await?;
    let exact = task.grade(&answer.text).exact;
    Ok(Measured { answer: answer.text, exact })
}
