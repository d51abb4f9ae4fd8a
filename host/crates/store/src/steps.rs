//! Steps: reserving a batch, and the one transaction that ends a step.
//! `finish_step` is the commit point of learning: step, samples, release, head and recipe state change
//! together or not at all, so that a crash at any moment leaves either a running step or a finished one.

use std::collections::HashSet;

use reef_core::{Release, ScenarioName, Step, StepOutcome, Surface, TenantId};

use crate::Store;
use crate::codec::{self, Body, number, to_text};
use crate::error::{Fault, StoreError, conflict, invalid};
use crate::inputs::{self, StepInputs, StepTranscript};
use crate::key::Key;
use crate::releases::{self, ReleaseRow};
use crate::sql::{self, Connection};
use crate::state::{self, StateWrites};
use crate::surfaces;

/// Samples of one batch.
const BATCH_MAX: usize = 16_384;
/// Steps of one listing.
const STEPS_LISTED_MAX: u32 = 1_000;

/// What is stored together with the end of a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Commit {
    /// The release that becomes the head; present iff the step ends `Released`.
    pub release: Option<Release>,
    /// The candidate that waits for a person; present iff the step ends `Held`.
    pub held: Option<Release>,
    /// Recipe state to write, `None` to delete a key. A failed step writes none.
    pub state: Vec<(String, Option<Vec<u8>>)>,
    /// Name of the recipe, without version, that owns the state.
    pub recipe: String,
    /// What the step heard, for a replay; kept only if its inputs were.
    pub transcript: Option<StepTranscript>,
}

/// A step ready to be written.
struct StepRow {
    step: Step,
    metrics: String,
    body: Body,
}

impl StepRow {
    async fn of(step: &Step) -> Result<Self, Fault> {
        let mut bare = step.clone();
        let metrics = codec::metrics_to_text(&std::mem::take(&mut bare.metrics))?;
        let body = codec::pack(&bare, &format!("step {}", step.step)).await?;
        Ok(Self { step: step.clone(), metrics, body })
    }

    /// Equal columns are equal steps: both are written by this version from sorted maps.
    fn same(&self, other: &Step) -> bool {
        let bare = |step: &Step| Step { metrics: Default::default(), ..step.clone() };
        let metrics = codec::metrics_to_text(&other.metrics).ok();
        metrics.as_deref() == Some(self.metrics.as_str()) && bare(&self.step) == bare(other)
    }

    fn size(&self) -> usize {
        self.metrics.len() + self.body.bytes.len()
    }
}

/// Everything `finish_step` writes.
struct Ending {
    row: StepRow,
    release: Option<ReleaseRow>,
    held: Option<ReleaseRow>,
    state: StateWrites,
    recipe: String,
    transcript: Option<Body>,
}

impl Ending {
    async fn of(key: &Key, step: &Step, commit: Commit) -> Result<Self, Fault> {
        check(step, &commit)?;
        let row = StepRow::of(step).await?;
        let release = match &commit.release {
            Some(release) => Some(ReleaseRow::of(key, release).await?),
            None => None,
        };
        let held = match &commit.held {
            Some(release) => Some(ReleaseRow::of(key, release).await?),
            None => None,
        };
        let failed = matches!(step.outcome, StepOutcome::Failed { .. });
        let state = if failed { StateWrites::new() } else { commit.state };
        let transcript =
            inputs::packed(commit.transcript.as_ref(), &format!("transcript of step {}", step.step)).await?;
        Ok(Self { row, release, held, state, recipe: commit.recipe, transcript })
    }

    fn size(&self) -> usize {
        let releases = self.release.iter().chain(&self.held).map(ReleaseRow::size).sum::<usize>();
        let transcript = self.transcript.as_ref().map_or(0, |body| body.bytes.len());
        self.row.size() + releases + state::size(&self.state) + transcript
    }
}

/// Outcome and commit must tell the same story.
fn check(step: &Step, commit: &Commit) -> Result<(), Fault> {
    let number = step.step;
    let told = match &step.outcome {
        StepOutcome::Running => return Err(invalid(format!("step {number}: it has not ended"))),
        StepOutcome::Released { release, .. } => {
            commit.held.is_none() && commit.release.as_ref().is_some_and(|new| new.release_id == *release)
        }
        StepOutcome::Held { .. } => commit.release.is_none() && commit.held.is_some(),
        _ => commit.release.is_none() && commit.held.is_none(),
    };
    if !told {
        return Err(invalid(format!("step {number}: its outcome and the release to commit do not fit")));
    }
    state::check(&commit.recipe, &commit.state)
}

impl Store {
    /// Begins a step: its row and the reservation of its batch, in one transaction. A `Conflict` when another step runs
    /// or a sample is not free; `HeadMoved` when the batch was formed on an older head. `inputs`: what a replay needs.
    pub async fn begin_step(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        step: &Step,
        inputs: Option<&StepInputs>,
    ) -> Result<(), StoreError> {
        let key = Key::of(t, s);
        let row = self.told(beginning(step).await)?;
        let inputs = self.told(inputs::packed(inputs, &format!("inputs of step {}", step.step)).await)?;
        let size = row.size() + inputs.as_ref().map_or(0, |body| body.bytes.len());
        self.write(size, move |conn| Box::pin(begin(conn, key, row, inputs))).await
    }

    /// Ends the running step. Its samples are consumed, or return to the pool when it failed; the release becomes the head
    /// (`HeadMoved` if another did meanwhile: nothing is written and the step still runs). The same step again is no error.
    pub async fn finish_step(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        step: &Step,
        commit: Commit,
    ) -> Result<(), StoreError> {
        let key = Key::of(t, s);
        let ending = self.told(Ending::of(&key, step, commit).await)?;
        self.write(ending.size(), move |conn| Box::pin(finish(conn, key, ending))).await
    }

    /// The step that has not ended; after a restart, the one to do again.
    pub async fn running_step(&self, t: &TenantId, s: &ScenarioName) -> Result<Option<Step>, StoreError> {
        let mut conn = self.reader().await?;
        self.told(select_running(&mut conn, &Key::of(t, s)).await)
    }

    /// One step.
    pub async fn step(&self, t: &TenantId, s: &ScenarioName, n: u32) -> Result<Option<Step>, StoreError> {
        let mut conn = self.reader().await?;
        let found = select_step(&mut conn, &Key::of(t, s), n).await;
        Ok(self.told(found)?.map(|(step, _)| step))
    }

    /// Steps, newest first; at most 1,000.
    pub async fn steps(&self, t: &TenantId, s: &ScenarioName, limit: u32) -> Result<Vec<Step>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT body_bytes, body, metrics FROM steps WHERE tenant = $1 AND scenario = $2 \
                   ORDER BY step DESC LIMIT $3";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(limit.min(STEPS_LISTED_MAX));
        let rows: Vec<Row> = self.told(query.fetch_all(&mut conn).await)?;
        let mut steps = Vec::with_capacity(rows.len());
        for row in rows {
            steps.push(self.told(read(row).await)?);
        }
        Ok(steps)
    }

    /// The number that the next step must have: 1 in a new scenario.
    pub async fn next_step_number(&self, t: &TenantId, s: &ScenarioName) -> Result<u32, StoreError> {
        let mut conn = self.reader().await?;
        self.told(next_number(&mut conn, &Key::of(t, s)).await)
    }
}

async fn beginning(step: &Step) -> Result<StepRow, Fault> {
    let number = step.step;
    if step.outcome != StepOutcome::Running {
        return Err(invalid(format!("step {number}: a step begins as running")));
    }
    if step.batch.len() > BATCH_MAX {
        return Err(invalid(format!(
            "step {number}: its batch has {} samples; the limit is {BATCH_MAX}",
            step.batch.len()
        )));
    }
    if step.batch.iter().collect::<HashSet<_>>().len() < step.batch.len() {
        return Err(invalid(format!("step {number}: its batch names a report twice")));
    }
    StepRow::of(step).await
}

async fn begin(conn: &mut Connection, key: Key, row: StepRow, inputs: Option<Body>) -> Result<(), Fault> {
    let step = &row.step;
    if let Some(running) = select_running(conn, &key).await? {
        let number = running.step;
        let again = row.same(&running);
        return if again { Ok(()) } else { Err(conflict(format!("step {number} is running; end it first"))) };
    }
    // A step begins on the head of the surface that it changes.
    let surface = releases::surface_of(conn, &key, &step.parent).await?.unwrap_or(Surface::Weights);
    releases::require_head(conn, &key, (surface, Some(&step.parent))).await?;
    let next = next_number(conn, &key).await?;
    if step.step != next {
        return Err(conflict(format!("step {} cannot begin: the next step is {next}", step.step)));
    }
    let sql = "INSERT INTO steps (tenant, scenario, step, running, metrics, body_bytes, body) \
               VALUES ($1, $2, $3, 1, $4, $5, $6)";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(step.step);
    let query = query.bind(row.metrics.as_str()).bind(row.body.raw_bytes).bind(row.body.bytes.as_slice());
    query.execute(&mut *conn).await?;
    if let Some(inputs) = &inputs {
        inputs::begin(conn, &key, step.step, inputs).await?;
    }
    reserve(conn, &key, (step, surface)).await
}

/// A surface uses a record once: no two of its samples that a step holds or held may share one.
pub(crate) const TWICE: &str = "SELECT a.record FROM samples AS mine \
    JOIN sample_records AS a ON a.tenant = mine.tenant AND a.scenario = mine.scenario AND a.report = mine.report \
    JOIN sample_records AS b ON b.tenant = a.tenant AND b.scenario = a.scenario \
      AND b.record = a.record AND b.report <> a.report \
    JOIN samples AS other ON other.tenant = b.tenant AND other.scenario = b.scenario \
      AND other.report = b.report AND other.surface = mine.surface AND other.state IN ('reserved', 'consumed') \
    WHERE mine.tenant = $1 AND mine.scenario = $2 AND mine.step = $3 LIMIT 1";

async fn reserve(conn: &mut Connection, key: &Key, (step, surface): (&Step, Surface)) -> Result<(), Fault> {
    let sql = "UPDATE samples SET state = 'reserved', step = $3 WHERE tenant = $1 AND scenario = $2 \
               AND surface = $5 AND state = 'pending' AND report IN (SELECT value FROM json_each($4))";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(step.step);
    let query = query.bind(to_text(&step.batch)?).bind(surface.as_str());
    let reserved = query.execute(&mut *conn).await?;
    if reserved != step.batch.len() as u64 {
        return Err(not_free(conn, key, (step, surface)).await?);
    }
    let query = sql::query(TWICE).bind(key.tenant()).bind(key.scenario()).bind(step.step);
    let shared: Option<String> = query.scalar_optional(conn).await?;
    match shared {
        Some(record) => Err(conflict(format!("step {}: record {record} would be trained twice", step.step))),
        None => Ok(()),
    }
}

/// The refusal that names the first sample of the batch that the step could not reserve.
async fn not_free(conn: &mut Connection, key: &Key, (step, surface): (&Step, Surface)) -> Result<Fault, Fault> {
    let mut refusal = conflict(format!("step {}: a sample of its batch is not free", step.step));
    let sql = "SELECT wanted.value, s.state FROM json_each($4) AS wanted LEFT JOIN samples AS s \
               ON s.tenant = $1 AND s.scenario = $2 AND s.report = wanted.value AND s.surface = $5 \
               WHERE s.step IS DISTINCT FROM $3 ORDER BY wanted.key LIMIT 1";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(step.step);
    let query = query.bind(to_text(&step.batch)?).bind(surface.as_str());
    let found: Option<(String, Option<String>)> = query.fetch_optional(conn).await?;
    if let Some((report, state)) = found {
        let state = state.unwrap_or_else(|| "not a sample of this scenario".to_owned());
        refusal = conflict(format!("step {}: report {report} is {state}; form the batch again", step.step));
    }
    Ok(refusal)
}

async fn finish(conn: &mut Connection, key: Key, ending: Ending) -> Result<(), Fault> {
    let step = &ending.row.step;
    let number = step.step;
    match select_step(conn, &key, number).await? {
        None => return Err(conflict(format!("step {number} has not begun in this scenario"))),
        Some((ended, false)) => {
            let again = ending.row.same(&ended);
            return if again { Ok(()) } else { Err(conflict(format!("step {number} has ended otherwise already"))) };
        }
        Some((running, true)) => same_start(&running, step)?,
    }
    if let Some(release) = &ending.release {
        releases::advance(conn, &key, release, Some(&step.parent)).await?;
    }
    if let Some(held) = &ending.held {
        releases::hold(conn, &key, held).await?;
    }
    if matches!(step.outcome, StepOutcome::Failed { .. }) {
        give_back(conn, &key, step).await?;
    } else {
        settle(conn, &key, number).await?;
    }
    let sql = "UPDATE steps SET running = 0, metrics = $4, body_bytes = $5, body = $6 \
               WHERE tenant = $1 AND scenario = $2 AND step = $3";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(number);
    let query = query.bind(ending.row.metrics.as_str()).bind(ending.row.body.raw_bytes);
    query.bind(ending.row.body.bytes.as_slice()).execute(&mut *conn).await?;
    if let Some(transcript) = &ending.transcript {
        inputs::finish(conn, &key, number, transcript).await?;
    }
    state::apply(conn, &key, &ending.recipe, ending.state).await
}

/// A step ends with the batch and the parent with which it began.
fn same_start(running: &Step, ended: &Step) -> Result<(), Fault> {
    if running.batch == ended.batch && running.parent == ended.parent {
        return Ok(());
    }
    Err(conflict(format!("step {} began with another batch or parent", ended.step)))
}

async fn settle(conn: &mut Connection, key: &Key, number: u32) -> Result<(), Fault> {
    let sql = "UPDATE samples SET state = 'consumed' \
               WHERE tenant = $1 AND scenario = $2 AND step = $3 AND state = 'reserved'";
    sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(number).execute(conn).await?;
    Ok(())
}

/// Returns the batch to the pool; a report that was amended or taken back meanwhile is retired instead. Where the
/// surface went while the step ran, nobody comes for that pool, and nothing is left in it.
async fn give_back(conn: &mut Connection, key: &Key, step: &Step) -> Result<(), Fault> {
    let sql = "UPDATE samples SET step = NULL, state = 'retired', retired_at_ms = $4, \
                 reason = CASE WHEN amended_by IS NULL THEN 'retracted' ELSE 'amended by report: ' || amended_by END \
               WHERE tenant = $1 AND scenario = $2 AND step = $3 AND state = 'reserved' \
                 AND (amended_by IS NOT NULL OR EXISTS (SELECT 1 FROM retractions AS back WHERE back.tenant = $1 \
                   AND back.scenario = $2 AND back.report = samples.report))";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(step.step);
    query.bind(step.now_ms).execute(&mut *conn).await?;
    let sql = "UPDATE samples SET step = NULL, state = 'pending' \
               WHERE tenant = $1 AND scenario = $2 AND step = $3 AND state = 'reserved'";
    sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(step.step).execute(&mut *conn).await?;
    let surface = releases::surface_of(conn, key, &step.parent).await?.unwrap_or(Surface::Weights);
    if !surfaces::select(conn, key).await?.contains(&surface) {
        surfaces::end(conn, key, surface).await?;
    }
    Ok(())
}

type Row = (i64, Vec<u8>, String);

async fn select_running(conn: &mut Connection, key: &Key) -> Result<Option<Step>, Fault> {
    let sql = "SELECT body_bytes, body, metrics FROM steps WHERE tenant = $1 AND scenario = $2 AND running = 1";
    let row: Option<Row> = sql::query(sql).bind(key.tenant()).bind(key.scenario()).fetch_optional(conn).await?;
    match row {
        Some(row) => Ok(Some(read(row).await?)),
        None => Ok(None),
    }
}

/// A step, and whether it runs.
async fn select_step(conn: &mut Connection, key: &Key, number: u32) -> Result<Option<(Step, bool)>, Fault> {
    let sql = "SELECT body_bytes, body, metrics, running FROM steps WHERE tenant = $1 AND scenario = $2 AND step = $3";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(number);
    let row: Option<(i64, Vec<u8>, String, i64)> = query.fetch_optional(conn).await?;
    match row {
        Some((raw_bytes, body, metrics, running)) => Ok(Some((read((raw_bytes, body, metrics)).await?, running != 0))),
        None => Ok(None),
    }
}

async fn next_number(conn: &mut Connection, key: &Key) -> Result<u32, Fault> {
    let sql = "SELECT COALESCE(MAX(step), 0) + 1 FROM steps WHERE tenant = $1 AND scenario = $2";
    number(sql::query(sql).bind(key.tenant()).bind(key.scenario()).scalar(conn).await?, "number of a step")
}

async fn read((raw_bytes, body, metrics): Row) -> Result<Step, Fault> {
    let mut step: Step = codec::unpack(body, raw_bytes, "step").await?;
    step.metrics = codec::metrics_from_text(&metrics)?;
    Ok(step)
}
