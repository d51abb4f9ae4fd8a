//! Writes many entries with few statements: the writer hands over those of a group, an import those of a batch.
//! Each entry is decided upon by itself, duplicate, refused or new, before the first row is written; so a failing
//! statement is a fault of the whole batch, which the writer then repeats entry by entry.

use std::collections::{BTreeMap, HashMap};

use reef_core::{RecordId, Surface};

use crate::codec::to_text;
use crate::entry::{self, Content, Entry};
use crate::error::{Fault, StoreError};
use crate::feedback;
use crate::key::Key;
use crate::records::{RecordBody, RecordKind, select_record};
use crate::reports::Appended;
use crate::sql::{self, Connection, Value};
use crate::surfaces::read_surfaces;

/// What became of an entry.
pub(crate) type Outcome = Result<Appended, StoreError>;

/// Writes the entries in their order; one outcome for each.
pub(crate) async fn all(conn: &mut Connection, entries: &[&Entry]) -> Result<Vec<Outcome>, Fault> {
    let mut outcomes: Vec<Option<Outcome>> = vec![None; entries.len()];
    let mut scenarios: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for (at, entry) in entries.iter().enumerate() {
        scenarios.entry((entry.key.tenant(), entry.key.scenario())).or_default().push(at);
    }
    for places in scenarios.into_values() {
        let here: Vec<&Entry> = places.iter().filter_map(|at| entries.get(*at).copied()).collect();
        let mut outcomes_here = Vec::with_capacity(here.len());
        // An amendment changes the sample of an earlier report, which must be written by then.
        for run in here.chunk_by(|a, b| a.amends().is_none() && b.amends().is_none()) {
            outcomes_here.extend(of_scenario(conn, run).await?);
        }
        for (at, outcome) in places.into_iter().zip(outcomes_here) {
            if let Some(slot) = outcomes.get_mut(at) {
                *slot = Some(outcome);
            }
        }
    }
    Ok(outcomes.into_iter().flatten().collect())
}

async fn of_scenario(conn: &mut Connection, entries: &[&Entry]) -> Result<Vec<Outcome>, Fault> {
    let Some(first) = entries.first() else { return Ok(Vec::new()) };
    let key = &first.key;
    let sql = "SELECT last_sequence, learns FROM scenarios WHERE tenant = $1 AND name = $2";
    let found: Option<(i64, String)> =
        sql::query(sql).bind(key.tenant()).bind(key.scenario()).fetch_optional(&mut *conn).await?;
    let Some((last, learns)) = found else {
        let unknown = StoreError::UnknownScenario(key.scenario_name().clone());
        return Ok(vec![Err(unknown); entries.len()]);
    };
    let known = select_known(conn, key, entries).await?;
    let mut batch =
        Batch { known, accepted: Vec::new(), places: HashMap::new(), last, learns: read_surfaces(&learns)? };
    let mut outcomes = Vec::with_capacity(entries.len());
    for entry in entries {
        outcomes.push(batch.decide(conn, entry).await?);
    }
    batch.write(conn, key).await?;
    Ok(outcomes)
}

/// What stands under an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Record(RecordKind),
    /// It was erased or dropped.
    Gone,
}

/// Every id that the entries bear or refer to and that is stored.
async fn select_known(conn: &mut Connection, key: &Key, entries: &[&Entry]) -> Result<HashMap<String, Known>, Fault> {
    let named = |entry: &'_ &Entry| {
        let ids = std::iter::once(entry.id()).chain(entry.references()).chain(entry.amends());
        ids.cloned().collect::<Vec<RecordId>>()
    };
    let list = to_text(&entries.iter().flat_map(named).collect::<Vec<_>>())?;
    let sql = "SELECT r.id, r.kind FROM json_each($3) AS wanted \
                 CROSS JOIN records AS r WHERE r.tenant = $1 AND r.scenario = $2 AND r.id = wanted.value \
               UNION ALL SELECT g.id, 'gone' FROM json_each($3) AS wanted \
                 CROSS JOIN tombstones AS g WHERE g.tenant = $1 AND g.scenario = $2 AND g.id = wanted.value";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(list);
    let rows: Vec<(String, String)> = query.fetch_all(conn).await?;
    let known = |kind: &str| RecordKind::parse(kind).map_or(Known::Gone, Known::Record);
    Ok(rows.into_iter().map(|(id, kind)| (id, known(&kind))).collect())
}

/// Entries of one scenario, some of them accepted.
struct Batch<'e> {
    known: HashMap<String, Known>,
    accepted: Vec<(i64, &'e Entry)>,
    /// Where an accepted id is.
    places: HashMap<&'e str, usize>,
    last: i64,
    /// A report becomes a sample of each.
    learns: Vec<Surface>,
}

impl<'e> Batch<'e> {
    async fn decide(&mut self, conn: &mut Connection, entry: &'e Entry) -> Result<Outcome, Fault> {
        let id = entry.id();
        if let Some((sequence, other)) = self.places.get(id.as_str()).and_then(|at| self.accepted.get(*at)) {
            let same = entry.same(&other.content);
            return Ok(if same { Ok(Appended { sequence: *sequence, duplicate: true }) } else { Err(taken(id)) });
        }
        match self.known.get(id.as_str()) {
            Some(Known::Gone) => return Ok(Err(StoreError::Gone(id.clone()))),
            Some(Known::Record(_)) => return stored_before(conn, entry).await,
            None => {}
        }
        if let Some(unknown) = entry.references().iter().find(|id| !self.is_inference(id)) {
            let refusal = if self.is_gone(unknown) { StoreError::Gone } else { StoreError::UnknownReference };
            return Ok(Err(refusal(unknown.clone())));
        }
        if let Some(old) = entry.amends().filter(|old| self.is_gone(old)) {
            return Ok(Err(StoreError::Gone(old.clone())));
        }
        if let Some(old) = entry.amends()
            && let Err(refusal) = feedback::amendable(conn, &entry.key, old).await?
        {
            return Ok(Err(refusal));
        }
        self.last += 1;
        self.places.insert(id.as_str(), self.accepted.len());
        self.accepted.push((self.last, entry));
        Ok(Ok(Appended { sequence: self.last, duplicate: false }))
    }

    fn is_gone(&self, id: &RecordId) -> bool {
        self.known.get(id.as_str()) == Some(&Known::Gone)
    }

    fn is_inference(&self, id: &RecordId) -> bool {
        let here = self.places.get(id.as_str()).and_then(|at| self.accepted.get(*at));
        match here {
            Some((_, entry)) => entry.kind() == RecordKind::Inference,
            None => self.known.get(id.as_str()) == Some(&Known::Record(RecordKind::Inference)),
        }
    }

    async fn write(self, conn: &mut Connection, key: &Key) -> Result<(), Fault> {
        if self.accepted.is_empty() {
            return Ok(());
        }
        let records = self.accepted.iter().map(|(sequence, entry)| entry.columns(*sequence)).collect();
        sql::insert_rows(conn, entry::COLUMNS, records, "").await?;
        let tags = self.accepted.iter().flat_map(|(sequence, entry)| entry.tag_rows(*sequence)).collect();
        sql::insert_rows(conn, "record_tags (tenant, scenario, tag, value, sequence)", tags, "").await?;
        for (_, entry) in &self.accepted {
            if let Some(old) = entry.amends() {
                feedback::amend(conn, &entry.key, old, entry).await?;
            }
        }
        let rows = |(sequence, entry): &(i64, &Entry)| {
            let row = |surface: &Surface| sample_row(*sequence, entry, *surface);
            self.learns.iter().filter_map(row).collect::<Vec<_>>()
        };
        let samples = self.accepted.iter().flat_map(rows).collect();
        let into = "samples (tenant, scenario, report, surface, sequence, state, score, metadata, content)";
        sql::insert_rows(conn, into, samples, "").await?;
        let links = self.accepted.iter().flat_map(|(_, entry)| link_rows(entry)).collect();
        sql::insert_rows(conn, "sample_records (tenant, scenario, report, record)", links, "").await?;
        self.count(conn, key).await
    }

    /// Moves the counters of the scenario past the new records.
    async fn count(&self, conn: &mut Connection, key: &Key) -> Result<(), Fault> {
        let all = i64::try_from(self.accepted.len()).unwrap_or(i64::MAX);
        let of = |kind| {
            let count = self.accepted.iter().filter(|(_, entry)| entry.kind() == kind).count();
            i64::try_from(count).unwrap_or(i64::MAX)
        };
        let bytes: usize = self.accepted.iter().map(|(_, entry)| entry.stored_bytes()).sum();
        let sql = "UPDATE scenarios SET last_sequence = $3, inferences = inferences + $4, reports = reports + $5, \
                     stored_records = stored_records + $6, stored_bytes = stored_bytes + $7 \
                   WHERE tenant = $1 AND name = $2";
        let query =
            sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(self.last).bind(of(RecordKind::Inference));
        let query = query.bind(of(RecordKind::Report)).bind(all).bind(i64::try_from(bytes).unwrap_or(i64::MAX));
        query.execute(conn).await?;
        Ok(())
    }
}

/// The outcome of an entry whose id is stored.
async fn stored_before(conn: &mut Connection, entry: &Entry) -> Result<Outcome, Fault> {
    let Some(stored) = select_record(conn, &entry.key, entry.id()).await? else { return Ok(Err(taken(entry.id()))) };
    let old = match stored.body {
        RecordBody::Inference(record) => Content::Inference(record),
        RecordBody::Report(report) => Content::Report(report),
        RecordBody::Instruction(instruction) => Content::Instruction(instruction),
    };
    let same = entry.same(&old);
    Ok(if same { Ok(Appended { sequence: stored.sequence, duplicate: true }) } else { Err(taken(entry.id())) })
}

/// The refusal of an id that stands for something else.
fn taken(id: &RecordId) -> StoreError {
    let told = format!("record {id} exists already with other content; send it under a new id, or amend it");
    StoreError::Conflict(told)
}

fn sample_row(sequence: i64, entry: &Entry, surface: Surface) -> Option<Vec<Value>> {
    let (score, metadata, content) = entry.sample()?;
    if entry.kind() == RecordKind::Instruction && surface != Surface::Harness {
        return None;
    }
    let (tenant, scenario, report) = (entry.key.tenant(), entry.key.scenario(), entry.id().as_str());
    let state = "pending";
    Some(vec![
        tenant.into(),
        scenario.into(),
        report.into(),
        surface.as_str().into(),
        sequence.into(),
        state.into(),
        score.into(),
        metadata.into(),
        content.into(),
    ])
}

fn link_rows(entry: &Entry) -> Vec<Vec<Value>> {
    let (tenant, scenario, report) = (entry.key.tenant(), entry.key.scenario(), entry.id().as_str());
    let row = |record: &RecordId| vec![tenant.into(), scenario.into(), report.into(), record.as_str().into()];
    entry.references().iter().map(row).collect()
}
