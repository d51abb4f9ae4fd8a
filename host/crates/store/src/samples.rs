//! Samples: what is waiting to be learned from, what was set aside and why, and the figures of a scenario.
//! A report is one sample for each surface that learns; there it is pending, reserved by the running step, consumed by a
//! step, or retired with a reason, whatever becomes of it on another.

use std::collections::{BTreeMap, HashMap, HashSet};

use reef_core::{RecordId, ReleaseId, Sample, ScenarioName, Surface, TenantId};

use crate::Store;
use crate::codec::{from_text, to_text};
use crate::error::{Fault, StoreError, conflict, damaged, invalid};
use crate::key::Key;
use crate::records::{read_tokens, record_id};
use crate::sql::{self, Connection, Value};
use crate::surfaces::surface_named;
use crate::trajectory::{Exchange, Forming, Graded, Unusable};

/// Samples of one pool or batch; all their tokens are in memory at once.
const SAMPLES_MAX: u32 = 16_384;
/// Reports retired by one call.
const RETIREMENTS_MAX: usize = 100_000;
/// Characters of a reason that are kept; recipes write reasons too.
const REASON_CHARS_MAX: usize = 300;
/// Kinds of reasons that are listed, most frequent first.
const REASONS_LISTED_MAX: u32 = 256;

/// What a learner may choose from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pool {
    /// Usable samples, oldest first.
    pub samples: Vec<Sample>,
    /// Reports that cannot become samples, and why; to be retired.
    pub unusable: Vec<(RecordId, Unusable)>,
}

/// Figures of a scenario. On each surface that learns, `pending + reserved + consumed + retired` is the number of
/// reports with references.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Inference records.
    pub inferences: i64,
    /// Reports, with or without references.
    pub reports: i64,
    /// Samples that wait.
    pub pending: i64,
    /// Samples in the running step.
    pub reserved: i64,
    /// Samples that a step used.
    pub consumed: i64,
    /// Samples set aside with a reason.
    pub retired: i64,
    /// Steps begun, however they ended.
    pub steps: i64,
}

impl Store {
    /// Pending samples, oldest first, from at most `limit` reports (and 16,384). A record counts for its
    /// oldest usable report; reports on a record of the running step are left out until the step ends.
    pub async fn pool(&self, t: &TenantId, s: &ScenarioName, limit: u32) -> Result<Pool, StoreError> {
        let mut conn = self.reader().await?;
        self.told(select_pool(&mut conn, &Key::of(t, s), limit.min(SAMPLES_MAX), Forming::Tokens).await)
    }

    /// The pool of a learner that reads texts: records need no tokens and form no trajectory, so that its samples have
    /// empty columns. They are said to come from `release`.
    pub async fn text_pool(
        &self,
        (t, s): (&TenantId, &ScenarioName),
        limit: u32,
        release: &ReleaseId,
    ) -> Result<Pool, StoreError> {
        let mut conn = self.reader().await?;
        self.told(select_pool(&mut conn, &Key::of(t, s), limit.min(SAMPLES_MAX), Forming::Texts(release)).await)
    }

    /// Forms the samples of these reports again, in the given order, whatever their state.
    pub async fn samples(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        reports: &[RecordId],
    ) -> Result<Vec<Sample>, StoreError> {
        let mut conn = self.reader().await?;
        self.told(select_samples(&mut conn, &Key::of(t, s), reports, Forming::Tokens).await)
    }

    /// The same of samples as in [`Store::text_pool`].
    pub async fn text_samples(
        &self,
        (t, s): (&TenantId, &ScenarioName),
        reports: &[RecordId],
        release: &ReleaseId,
    ) -> Result<Vec<Sample>, StoreError> {
        let mut conn = self.reader().await?;
        self.told(select_samples(&mut conn, &Key::of(t, s), reports, Forming::Texts(release)).await)
    }

    /// Forms each of these reports into a sample as if none had been used yet, or says why it cannot be one.
    /// Reports without references are left out.
    pub async fn formed(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        reports: &[RecordId],
    ) -> Result<Vec<(RecordId, Result<Sample, Unusable>)>, StoreError> {
        let mut conn = self.reader().await?;
        self.told(select_formed(&mut conn, &Key::of(t, s), reports, Forming::Tokens).await)
    }

    /// Sets pending reports aside on one surface for ever, with reasons. One that is retired already keeps its first
    /// reason; one in a running step or consumed is a `Conflict`, and then none is retired.
    pub async fn retire(
        &self,
        (t, s): (&TenantId, &ScenarioName),
        surface: Surface,
        items: &[(RecordId, String)],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        if items.len() > RETIREMENTS_MAX {
            let refusal = format!("{} retirements in one call; the limit is {RETIREMENTS_MAX}", items.len());
            return self.told(Err(invalid(refusal)));
        }
        let mut named = HashSet::new();
        let first = items.iter().filter(|(id, _)| named.insert(id));
        let list: Vec<_> = first.map(|(id, reason)| (id.clone(), clean(reason))).collect();
        let key = Key::of(t, s);
        let size = list.iter().map(|(_, reason)| reason.len()).sum();
        self.write(size, move |conn| Box::pin(set_aside(conn, (key, surface), list, now_ms))).await
    }

    /// Figures of the scenario, samples of all its surfaces together; all 0 when it does not exist.
    pub async fn counts(&self, t: &TenantId, s: &ScenarioName) -> Result<Counts, StoreError> {
        self.counts_on_each(t, s).await.map(|(all, _)| all)
    }

    /// The same, and again for each surface with its samples alone. Looks at every sample once.
    pub async fn counts_on_each(
        &self,
        t: &TenantId,
        s: &ScenarioName,
    ) -> Result<(Counts, BTreeMap<Surface, Counts>), StoreError> {
        let mut conn = self.reader().await?;
        self.told(select_counts(&mut conn, &Key::of(t, s)).await)
    }

    /// How many samples were retired for which kind of reason: its text up to the first `:`.
    /// The 256 most frequent kinds.
    pub async fn retirement_reasons(
        &self,
        t: &TenantId,
        s: &ScenarioName,
    ) -> Result<BTreeMap<String, i64>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT substr(reason, 1, instr(reason || ':', ':') - 1) AS kind, COUNT(*) AS times FROM samples \
                   WHERE tenant = $1 AND scenario = $2 AND surface IN ('weights', 'harness', 'router') \
                     AND state = 'retired' GROUP BY kind ORDER BY times DESC, kind LIMIT $3";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(REASONS_LISTED_MAX);
        let rows: Vec<(String, i64)> = self.told(query.fetch_all(&mut conn).await)?;
        Ok(rows.into_iter().collect())
    }
}

type GradedRow = (String, i64, Option<f64>, String, Option<String>);

async fn select_pool(conn: &mut Connection, key: &Key, limit: u32, forming: Forming<'_>) -> Result<Pool, Fault> {
    let sql = "SELECT report, sequence, score, metadata, content FROM samples AS mine \
               WHERE tenant = $1 AND scenario = $2 AND surface = $4 AND state = 'pending' AND NOT EXISTS ( \
                 SELECT 1 FROM sample_records AS a \
                 WHERE a.tenant = $1 AND a.scenario = $2 AND a.report = mine.report AND a.record IN ( \
                   SELECT b.record FROM samples AS held JOIN sample_records AS b ON b.tenant = held.tenant \
                     AND b.scenario = held.scenario AND b.report = held.report \
                   WHERE held.tenant = $1 AND held.scenario = $2 AND held.surface = $4 AND held.state = 'reserved')) \
               ORDER BY sequence LIMIT $3";
    let surface = forming.surface();
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(limit).bind(surface.as_str());
    let rows: Vec<GradedRow> = query.fetch_all(&mut *conn).await?;
    let graded = rows.into_iter().map(read_graded).collect::<Result<Vec<_>, _>>()?;
    let mut exchanges = select_exchanges(&mut *conn, key, &graded).await?;
    mark_consumed(conn, (key, surface), &mut exchanges).await?;
    let mut pool = Pool::default();
    // By record: the report that took it, and what that says.
    let mut claimed: HashMap<RecordId, (RecordId, Option<String>)> = HashMap::new();
    for graded in graded {
        let turns = exchanges.remove(graded.report.as_str()).unwrap_or_default();
        let report = graded.report.clone();
        let taken = turns.iter().find_map(|turn| Some((&turn.record, claimed.get(&turn.record)?)));
        let content = graded.content.clone();
        let formed = match taken {
            Some((_, (by, said))) if said.is_some() && *said == content => {
                Err(format!("duplicate: report {by} says the same").into())
            }
            Some((record, (by, _))) => {
                Err(format!("record graded already: record {record} by report {by}; amend that").into())
            }
            None => forming.form(graded, &turns),
        };
        match formed {
            Ok(sample) => {
                claimed.extend(sample.records.iter().map(|record| (record.clone(), (report.clone(), content.clone()))));
                pool.samples.push(sample);
            }
            Err(why) => pool.unusable.push((report, why)),
        }
    }
    Ok(pool)
}

async fn select_samples(
    conn: &mut Connection,
    key: &Key,
    reports: &[RecordId],
    forming: Forming<'_>,
) -> Result<Vec<Sample>, Fault> {
    let formed = select_formed(conn, key, reports, forming).await?;
    let found: HashSet<&RecordId> = formed.iter().map(|(report, _)| report).collect();
    if let Some(missing) = reports.iter().find(|id| !found.contains(id)) {
        return Err(StoreError::UnknownReference(missing.clone()).into());
    }
    let sample = |(report, sample): (RecordId, Result<Sample, Unusable>)| {
        sample.map_err(|why| conflict(format!("report {report} is no sample: {}", why.reason)))
    };
    formed.into_iter().map(sample).collect()
}

async fn select_formed(
    conn: &mut Connection,
    key: &Key,
    reports: &[RecordId],
    forming: Forming<'_>,
) -> Result<Vec<(RecordId, Result<Sample, Unusable>)>, Fault> {
    if reports.len() > SAMPLES_MAX as usize {
        return Err(invalid(format!("{} samples at once; the limit is {SAMPLES_MAX}", reports.len())));
    }
    // A report says the same on each surface.
    let sql = "SELECT report, MIN(sequence), MIN(score), MIN(metadata), MIN(content) \
               FROM json_each($3) AS wanted CROSS JOIN samples \
               WHERE tenant = $1 AND scenario = $2 AND report = wanted.value \
               GROUP BY wanted.key, report ORDER BY wanted.key";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(to_text(&reports)?);
    let rows: Vec<GradedRow> = query.fetch_all(&mut *conn).await?;
    let graded = rows.into_iter().map(read_graded).collect::<Result<Vec<_>, _>>()?;
    let exchanges = select_exchanges(conn, key, &graded).await?;
    let mut formed = Vec::with_capacity(graded.len());
    for graded in graded {
        let report = graded.report.clone();
        // Its own step may have consumed the records: that does not unmake the batch, so that nobody asks here.
        let turns = exchanges.get(report.as_str()).map_or(&[][..], Vec::as_slice);
        formed.push((report, forming.form(graded, turns)));
    }
    Ok(formed)
}

fn read_graded((report, sequence, score, metadata, content): GradedRow) -> Result<Graded, Fault> {
    Ok(Graded { report: record_id(report)?, sequence, score, metadata: from_text(&metadata, "metadata")?, content })
}

/// Report, record, status, call, capture, trace, log-probs, output, prompt.
type ExchangeRow = (
    String,
    String,
    Option<String>,
    Option<String>,
    Option<i64>,
    Option<String>,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
);

/// The referenced records of each report, in the order in which they happened.
async fn select_exchanges(
    conn: &mut Connection,
    key: &Key,
    graded: &[Graded],
) -> Result<HashMap<String, Vec<Exchange>>, Fault> {
    let sql = "SELECT link.report, link.record, r.status, r.call, r.capture, r.trace, r.logprobs, r.output, r.prompt \
               FROM json_each($3) AS wanted \
               CROSS JOIN sample_records AS link \
               LEFT JOIN records AS r ON r.tenant = $1 AND r.scenario = $2 AND r.id = link.record \
               WHERE link.tenant = $1 AND link.scenario = $2 AND link.report = wanted.value \
               ORDER BY wanted.key, r.sequence";
    let reports: Vec<&RecordId> =
        graded.iter().map(|graded| &graded.report).collect::<HashSet<_>>().into_iter().collect();
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(to_text(&reports)?);
    let rows: Vec<ExchangeRow> = query.fetch_all(conn).await?;
    let mut exchanges: HashMap<String, Vec<Exchange>> = HashMap::new();
    for (report, record, status, call, capture, trace, logprobs, output, prompt) in rows {
        let tokens = read_tokens((trace, logprobs, output, prompt))?;
        let (record, capture) = (record_id(record)?, capture == Some(1));
        let exchange = Exchange { record, status, call, capture, tokens, consumed_by: None };
        exchanges.entry(report).or_default().push(exchange);
    }
    Ok(exchanges)
}

/// Notes at each record the report through which the surface used it.
async fn mark_consumed(
    conn: &mut Connection,
    (key, surface): (&Key, Surface),
    exchanges: &mut HashMap<String, Vec<Exchange>>,
) -> Result<(), Fault> {
    let sql = "SELECT used.record, MIN(used.report) FROM json_each($3) AS wanted \
               CROSS JOIN sample_records AS used CROSS JOIN samples AS s \
               WHERE used.tenant = $1 AND used.scenario = $2 AND used.record = wanted.value \
                 AND s.tenant = $1 AND s.scenario = $2 AND s.report = used.report AND s.surface = $4 \
                 AND s.state = 'consumed' \
               GROUP BY used.record";
    let records: HashSet<&RecordId> = exchanges.values().flatten().map(|exchange| &exchange.record).collect();
    let list = to_text(&records.into_iter().collect::<Vec<_>>())?;
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(list).bind(surface.as_str());
    let rows: Vec<(String, String)> = query.fetch_all(conn).await?;
    let consumers: HashMap<String, String> = rows.into_iter().collect();
    for exchange in exchanges.values_mut().flatten() {
        exchange.consumed_by = consumers.get(exchange.record.as_str()).cloned();
    }
    Ok(())
}

/// A reason as it is kept: short, on one line.
fn clean(reason: &str) -> String {
    reason.chars().take(REASON_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Each report of the list once.
async fn set_aside(
    conn: &mut Connection,
    (key, surface): (Key, Surface),
    list: Vec<(RecordId, String)>,
    now_ms: i64,
) -> Result<(), Fault> {
    let sql = "SELECT wanted.value, s.state FROM json_each($3) AS wanted LEFT JOIN samples AS s \
                 ON s.tenant = $1 AND s.scenario = $2 AND s.report = wanted.value AND s.surface = $4 \
               WHERE s.state IS NULL OR s.state IN ('reserved', 'consumed') ORDER BY wanted.key LIMIT 1";
    let reports: Vec<&RecordId> = list.iter().map(|(report, _)| report).collect();
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(to_text(&reports)?);
    let query = query.bind(surface.as_str());
    let taken: Option<(String, Option<String>)> = query.fetch_optional(&mut *conn).await?;
    match taken {
        None => retire_all(conn, (&key, surface), list, now_ms).await,
        Some((report, Some(state))) => {
            Err(conflict(format!("report {report} is {state} and can no longer be retired")))
        }
        Some((report, None)) => Err(StoreError::UnknownReference(record_id(report)?).into()),
    }
}

/// Retires those that are pending; every one of the list is a sample.
async fn retire_all(
    conn: &mut Connection,
    (key, surface): (&Key, Surface),
    list: Vec<(RecordId, String)>,
    now_ms: i64,
) -> Result<(), Fault> {
    // An upsert, because it takes many reasons at once; the rows exist, so that it only ever updates.
    let (tenant, scenario) = (key.tenant(), key.scenario());
    let row = |(report, reason): (RecordId, String)| -> Vec<Value> {
        let report = report.as_str();
        vec![
            tenant.into(),
            scenario.into(),
            report.into(),
            surface.as_str().into(),
            0.into(),
            "retired".into(),
            reason.into(),
            now_ms.into(),
            "{}".into(),
        ]
    };
    let rows = list.into_iter().map(row).collect();
    let into = "samples (tenant, scenario, report, surface, sequence, state, reason, retired_at_ms, metadata)";
    let then = "ON CONFLICT (tenant, scenario, report, surface) DO UPDATE SET state = excluded.state, reason = excluded.reason, \
                  retired_at_ms = excluded.retired_at_ms WHERE samples.state = 'pending'";
    sql::insert_rows(conn, into, rows, then).await
}

async fn select_counts(conn: &mut Connection, key: &Key) -> Result<(Counts, BTreeMap<Surface, Counts>), Fault> {
    // One statement, so that all figures are of one moment.
    let sql = "SELECT '', 'inferences', inferences FROM scenarios WHERE tenant = $1 AND name = $2 \
               UNION ALL SELECT '', 'reports', reports FROM scenarios WHERE tenant = $1 AND name = $2 \
               UNION ALL SELECT '', 'steps', COUNT(*) FROM steps WHERE tenant = $1 AND scenario = $2 \
               UNION ALL SELECT surface, state, COUNT(*) FROM samples \
                 WHERE tenant = $1 AND scenario = $2 GROUP BY surface, state";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario());
    let rows: Vec<(String, String, i64)> = query.fetch_all(conn).await?;
    let (of_scenario, of_samples): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(surface, ..)| surface.is_empty());
    let mut none = Counts::default();
    for (_, name, value) in of_scenario {
        none.add(&name, value)?;
    }
    let (mut all, mut each) = (none, BTreeMap::new());
    for (surface, state, value) in of_samples {
        all.add(&state, value)?;
        each.entry(surface_named(&surface)?).or_insert(none).add(&state, value)?;
    }
    Ok((all, each))
}

impl Counts {
    fn add(&mut self, name: &str, value: i64) -> Result<(), Fault> {
        let figure = match name {
            "inferences" => &mut self.inferences,
            "reports" => &mut self.reports,
            "steps" => &mut self.steps,
            "pending" => &mut self.pending,
            "reserved" => &mut self.reserved,
            "consumed" => &mut self.consumed,
            "retired" => &mut self.retired,
            other => return Err(damaged("sample state", other)),
        };
        *figure += value;
        Ok(())
    }
}
