//! What was derived from records that are erased: a recipe's state, the inputs and transcripts of steps, reasons in the
//! words of a recipe or a proposer. `erase.rs` calls it in the transaction that removes the records. What repeats a text
//! of theirs is taken out; what cannot be, because it is part of a release, is told as that release.

use std::collections::{BTreeMap, BTreeSet};

use reef_core::{RecordId, ReleaseId};
use serde_json::Value;

use crate::bytes::Bytes;
use crate::codec;
use crate::error::{Fault, damaged};
use crate::inputs::{StepInputs, StepTranscript};
use crate::key::Key;
use crate::needles::Needles;
use crate::records::{RecordBody, select_record};
use crate::sql::{self, Connection};

/// What stands where a text was taken out.
const INSTEAD: &str = "erased";
/// Bytes of texts that are looked for in one pass; what is derived is read once for each.
const PASS_BYTES_MAX: usize = 16 << 20;
/// Rows of a table that are read at once.
const ROWS_MAX: i64 = 64;

/// What was found of the records beside them.
#[derive(Debug, Default)]
pub(crate) struct Derived {
    /// Entries of recipes' state that are gone.
    pub state_entries: u64,
    /// Releases whose content or manifest repeats a text, or that a proposal made that was learned from it.
    pub releases: BTreeSet<ReleaseId>,
    /// The inputs of the running step repeat it, so that nothing may go before it ends.
    pub running: bool,
}

/// Takes out of everything that is derived what repeats these records. Where a running step does, nothing is changed.
pub(crate) async fn forget(conn: &mut Connection, key: &Key, ids: &[RecordId]) -> Result<Derived, Fault> {
    let passes = passes(conn, key, ids).await?;
    let mut derived = Derived::default();
    for needles in &passes {
        derived.running |= running_repeats(conn, key, needles).await?;
    }
    if derived.running {
        return Ok(derived);
    }
    for needles in &passes {
        derived.state_entries += state(conn, key, needles).await?;
        derived.state_entries += uses(conn, key, needles).await?;
        inputs(conn, key, needles).await?;
        steps(conn, key, needles).await?;
        texts(conn, key, (&REASONS, needles)).await?;
        texts(conn, key, (&NOTES, needles)).await?;
        texts(conn, key, (&FAULTS, needles)).await?;
        texts(conn, key, (&PROPOSALS, needles)).await?;
        texts(conn, key, (&REFUSED, needles)).await?;
        derived.releases.extend(releases(conn, key, needles).await?);
    }
    Ok(derived)
}

/// What the records say, in as many parts as memory wants.
async fn passes(conn: &mut Connection, key: &Key, ids: &[RecordId]) -> Result<Vec<Needles>, Fault> {
    let (mut passes, mut needles) = (Vec::new(), Needles::default());
    for id in ids {
        let Some(record) = select_record(conn, key, id).await? else { continue };
        match &record.body {
            RecordBody::Inference(record) => {
                needles.add_all(&record.request);
                needles.add_all(&record.response);
                record.session.iter().chain(record.tags.values()).for_each(|text| needles.add(text));
            }
            RecordBody::Report(report) => {
                report.feedback.iter().for_each(|said| needles.add_all(said));
                report.metadata.values().for_each(|said| needles.add_all(said));
            }
            RecordBody::Instruction(instruction) => {
                needles.add(&instruction.text);
                instruction.session.iter().for_each(|session| needles.add(session));
            }
        }
        if needles.bytes() >= PASS_BYTES_MAX {
            passes.push(std::mem::take(&mut needles));
        }
    }
    passes.push(needles);
    passes.retain(|needles| !needles.is_empty());
    Ok(passes)
}

async fn running_repeats(conn: &mut Connection, key: &Key, needles: &Needles) -> Result<bool, Fault> {
    let sql = "SELECT i.inputs_bytes, i.inputs FROM step_inputs AS i JOIN steps AS s ON s.tenant = i.tenant \
                 AND s.scenario = i.scenario AND s.step = i.step \
               WHERE i.tenant = $1 AND i.scenario = $2 AND s.running = 1";
    let row: Option<(i64, Vec<u8>)> =
        sql::query(sql).bind(key.tenant()).bind(key.scenario()).fetch_optional(conn).await?;
    let Some((bytes, inputs)) = row else { return Ok(false) };
    let mut inputs: StepInputs = codec::unpack(inputs, bytes, "inputs of a step").await?;
    Ok(take_out_of(&mut inputs, needles))
}

/// State of every recipe of the scenario.
async fn state(conn: &mut Connection, key: &Key, needles: &Needles) -> Result<u64, Fault> {
    let sql = "SELECT recipe, key, value FROM recipe_state WHERE tenant = $1 AND scenario = $2 \
                 AND (recipe, key) > ($3, $4) ORDER BY recipe, key LIMIT $5";
    let (mut after, mut gone) = ((String::new(), String::new()), 0);
    loop {
        let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(after.0).bind(after.1);
        let rows: Vec<(String, String, Vec<u8>)> = query.bind(ROWS_MAX).fetch_all(&mut *conn).await?;
        let Some((recipe, name, _)) = rows.last() else { return Ok(gone) };
        after = (recipe.clone(), name.clone());
        for (recipe, name, value) in rows {
            if needles.are_in_state(&value) || needles.are_in(name.as_bytes()) {
                let sql = "DELETE FROM recipe_state WHERE tenant = $1 AND scenario = $2 AND recipe = $3 AND key = $4";
                let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(recipe).bind(name);
                gone += query.execute(&mut *conn).await?;
            }
        }
    }
}

/// State that an exchange of the recipe replaced.
async fn uses(conn: &mut Connection, key: &Key, needles: &Needles) -> Result<u64, Fault> {
    let sql = "SELECT position, replaced_bytes, replaced_state FROM recipe_uses \
               WHERE tenant = $1 AND scenario = $2 AND position > $3 ORDER BY position LIMIT $4";
    let (mut after, mut gone) = (0, 0);
    loop {
        let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(after).bind(ROWS_MAX);
        let rows: Vec<(i64, i64, Vec<u8>)> = query.fetch_all(&mut *conn).await?;
        let Some((last, ..)) = rows.last() else { return Ok(gone) };
        after = *last;
        for (position, bytes, state) in rows {
            let mut state: BTreeMap<String, Vec<u8>> = codec::unpack(state, bytes, "replaced recipe state").await?;
            let before = state.len();
            state.retain(|name, value| !needles.are_in_state(value) && !needles.are_in(name.as_bytes()));
            if state.len() < before {
                gone += (before - state.len()) as u64;
                let body = codec::pack(&state, "replaced recipe state").await?;
                let sql = "UPDATE recipe_uses SET replaced_bytes = $4, replaced_state = $5 \
                           WHERE tenant = $1 AND scenario = $2 AND position = $3";
                let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(position);
                query.bind(body.raw_bytes).bind(body.bytes).execute(&mut *conn).await?;
            }
        }
    }
}

/// Number of a step, its inputs and its transcript as they are stored.
type RecordedRow = (i64, i64, Vec<u8>, Option<i64>, Option<Vec<u8>>);

/// Inputs and transcripts of steps that have ended; without them a step cannot be replayed.
async fn inputs(conn: &mut Connection, key: &Key, needles: &Needles) -> Result<(), Fault> {
    let sql = "SELECT step, inputs_bytes, inputs, transcript_bytes, transcript FROM step_inputs \
               WHERE tenant = $1 AND scenario = $2 AND step > $3 ORDER BY step LIMIT $4";
    let mut after = 0;
    loop {
        let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(after).bind(ROWS_MAX);
        let rows: Vec<RecordedRow> = query.fetch_all(&mut *conn).await?;
        let Some((last, ..)) = rows.last() else { return Ok(()) };
        after = *last;
        for (step, bytes, inputs, transcript_bytes, transcript) in rows {
            let mut inputs: StepInputs = codec::unpack(inputs, bytes, "inputs of a step").await?;
            if take_out_of(&mut inputs, needles) {
                let body = codec::pack(&inputs, "inputs of a step").await?;
                let sql = "UPDATE step_inputs SET inputs_bytes = $4, inputs = $5 \
                           WHERE tenant = $1 AND scenario = $2 AND step = $3";
                let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(step);
                query.bind(body.raw_bytes).bind(body.bytes).execute(&mut *conn).await?;
            }
            let (Some(bytes), Some(transcript)) = (transcript_bytes, transcript) else { continue };
            if heard(codec::unpack(transcript, bytes, "transcript of a step").await?, needles) {
                let sql = "UPDATE step_inputs SET transcript = NULL, transcript_bytes = NULL \
                           WHERE tenant = $1 AND scenario = $2 AND step = $3";
                sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(step).execute(&mut *conn).await?;
            }
        }
    }
}

fn take_out_of(inputs: &mut StepInputs, needles: &Needles) -> bool {
    let before = inputs.state.len();
    inputs.state.retain(|name, value| !needles.are_in_state(&value.0) && !needles.are_in(name.as_bytes()));
    let mut found = inputs.state.len() < before;
    for (_, reason) in inputs.retired.iter_mut().chain(&mut inputs.unusable) {
        if needles.are_in(reason.as_bytes()) {
            INSTEAD.clone_into(reason);
            found = true;
        }
    }
    found
}

/// Does a transcript repeat it, in what models said or in the state that the step wrote?
fn heard(transcript: StepTranscript, needles: &Needles) -> bool {
    let said = |answer: &Value| needles.are_in_json(answer);
    let written = |(name, value): (&String, &Option<Bytes>)| {
        needles.are_in(name.as_bytes()) || value.as_ref().is_some_and(|value| needles.are_in_state(&value.0))
    };
    transcript.calls.iter().any(|call| said(call.answer.as_ref().unwrap_or_else(|refused| refused)))
        || transcript.state.iter().any(written)
}

/// Rows with a text or with JSON that a recipe or a proposer wrote.
struct Table {
    /// Names of the rows with the text, in order, after `$3`; at most `$4`.
    select: &'static str,
    /// Sets the text of one.
    update: &'static str,
    /// The text is JSON, of which only the texts in it go.
    json: bool,
}

/// What a recipe said of a sample stands after its kind. Two surfaces learn at most, so that the first and the last of a
/// report's reasons are all of them, and no page ends between the two.
const REASONS: Table = Table {
    select: "SELECT report, MIN(reason) || ' ' || MAX(reason) FROM samples WHERE tenant = $1 AND scenario = $2 \
               AND report > $3 AND reason IS NOT NULL GROUP BY report ORDER BY report LIMIT $4",
    update: "UPDATE samples SET reason = substr(reason, 1, instr(reason || ':', ':') - 1) || ': ' || $4 \
             WHERE tenant = $1 AND scenario = $2 AND report = $3",
    json: false,
};
const NOTES: Table = Table {
    select: "SELECT CAST(position AS TEXT), note FROM recipe_uses WHERE tenant = $1 AND scenario = $2 \
               AND CAST(position AS TEXT) > $3 ORDER BY CAST(position AS TEXT) LIMIT $4",
    update: "UPDATE recipe_uses SET note = $4 WHERE tenant = $1 AND scenario = $2 AND CAST(position AS TEXT) = $3",
    json: false,
};
const FAULTS: Table = Table {
    select: "SELECT recipe, record FROM quarantine WHERE tenant = $1 AND scenario = $2 AND recipe > $3 \
             ORDER BY recipe LIMIT $4",
    update: "UPDATE quarantine SET record = $4 WHERE tenant = $1 AND scenario = $2 AND recipe = $3",
    json: true,
};
const PROPOSALS: Table = Table {
    select: "SELECT id, body FROM proposals WHERE tenant = $1 AND scenario = $2 AND id > $3 ORDER BY id LIMIT $4",
    update: "UPDATE proposals SET body = $4 WHERE tenant = $1 AND scenario = $2 AND id = $3",
    json: true,
};
const REFUSED: Table = Table {
    select: "SELECT id, body FROM refused_proposals WHERE tenant = $1 AND scenario = $2 AND id > $3 \
             ORDER BY id LIMIT $4",
    update: "UPDATE refused_proposals SET body = $4 WHERE tenant = $1 AND scenario = $2 AND id = $3",
    json: true,
};

async fn texts(conn: &mut Connection, key: &Key, (table, needles): (&Table, &Needles)) -> Result<(), Fault> {
    let mut after = String::new();
    loop {
        let query = sql::query(table.select).bind(key.tenant()).bind(key.scenario()).bind(after);
        let rows: Vec<(String, String)> = query.bind(ROWS_MAX).fetch_all(&mut *conn).await?;
        let Some((last, _)) = rows.last() else { return Ok(()) };
        after = last.clone();
        for (name, text) in rows {
            let next = if table.json {
                let mut json: Value = codec::from_text(&text, "a row")?;
                needles.take_out(&mut json, INSTEAD).then(|| json.to_string())
            } else {
                needles.are_in(text.as_bytes()).then(|| INSTEAD.to_owned())
            };
            if let Some(next) = next {
                let query = sql::query(table.update).bind(key.tenant()).bind(key.scenario()).bind(name);
                query.bind(next).execute(&mut *conn).await?;
            }
        }
    }
}

/// Why steps ended, and the faults of their calls.
async fn steps(conn: &mut Connection, key: &Key, needles: &Needles) -> Result<(), Fault> {
    let sql = "SELECT step, body_bytes, body FROM steps WHERE tenant = $1 AND scenario = $2 AND step > $3 \
                 AND running = 0 ORDER BY step LIMIT $4";
    let mut after = 0;
    loop {
        let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(after).bind(ROWS_MAX);
        let rows: Vec<(i64, i64, Vec<u8>)> = query.fetch_all(&mut *conn).await?;
        let Some((last, ..)) = rows.last() else { return Ok(()) };
        after = *last;
        for (step, bytes, body) in rows {
            let mut json: Value = codec::unpack(body, bytes, "step").await?;
            if needles.take_out(&mut json, INSTEAD) {
                let body = codec::pack(&json, "step").await?;
                let sql = "UPDATE steps SET body_bytes = $4, body = $5 \
                           WHERE tenant = $1 AND scenario = $2 AND step = $3";
                let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(step);
                query.bind(body.raw_bytes).bind(body.bytes).execute(&mut *conn).await?;
            }
        }
    }
}

/// Releases whose manifest repeats it: the reason of a decision, in a recipe's or a proposer's words. A manifest is part
/// of its release and stays.
async fn releases(conn: &mut Connection, key: &Key, needles: &Needles) -> Result<Vec<ReleaseId>, Fault> {
    let sql = "SELECT position, release_id, body_bytes, body FROM releases \
               WHERE tenant = $1 AND scenario = $2 AND position > $3 ORDER BY position LIMIT $4";
    let (mut after, mut found) = (-1, Vec::new());
    loop {
        let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(after).bind(ROWS_MAX);
        let rows: Vec<(i64, String, i64, Vec<u8>)> = query.fetch_all(&mut *conn).await?;
        let Some((last, ..)) = rows.last() else { return Ok(found) };
        after = *last;
        for (_, id, bytes, body) in rows {
            let json: Value = codec::unpack(body, bytes, "release").await?;
            if needles.are_in_json(&json) {
                found.push(ReleaseId::parse(id).map_err(|e| damaged("release id", e))?);
            }
        }
    }
}
