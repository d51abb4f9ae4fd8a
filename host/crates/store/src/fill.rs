//! Fills in what rows of earlier versions lack: time, session, kind of call and tags, which lie in their compressed
//! bodies. `home.rs` calls it when a file opens; it goes in bounded batches, and a start that was interrupted goes on.

use crate::entry::{RowFacts, tag_row};
use crate::error::{Fault, damaged};
use crate::records::{RecordBody, RecordKind, read_body};
use crate::sql::{self, Connection};

/// Rows of one transaction.
const ROWS_AT_ONCE: i64 = 500;

type Row = (String, String, i64, String, i64, Vec<u8>);

/// Fills every row that lacks it.
pub(crate) async fn fill(conn: &mut Connection) -> Result<(), Fault> {
    let mut filled = 0;
    loop {
        sql::query("BEGIN IMMEDIATE").execute(&mut *conn).await?;
        let rows = batch(conn).await?;
        sql::query("COMMIT").execute(&mut *conn).await?;
        if rows == 0 {
            return Ok(());
        }
        filled += rows;
        tracing::info!(records = filled, "store.fill");
    }
}

async fn batch(conn: &mut Connection) -> Result<usize, Fault> {
    let sql = "SELECT tenant, scenario, sequence, kind, body_bytes, body FROM records INDEXED BY records_to_fill \
               WHERE created_at_ms IS NULL ORDER BY sequence LIMIT $1";
    let rows: Vec<Row> = sql::query(sql).bind(ROWS_AT_ONCE).fetch_all(&mut *conn).await?;
    let filled = rows.len();
    for (tenant, scenario, sequence, kind, raw_bytes, body) in rows {
        let kind = RecordKind::parse(&kind).ok_or_else(|| damaged("kind of a record", kind))?;
        let body = read_body(kind, body, raw_bytes, sequence).await?;
        let facts = match &body {
            RecordBody::Inference(record) => RowFacts::inference(record),
            RecordBody::Report(report) => RowFacts::report(report),
            RecordBody::Instruction(instruction) => RowFacts::instruction(instruction),
        };
        let tags = facts.tags.into_iter().map(|(tag, value)| tag_row((&tenant, &scenario), sequence, (tag, value)));
        sql::insert_rows(conn, "record_tags (tenant, scenario, tag, value, sequence)", tags.collect(), "").await?;
        let sql = "UPDATE records SET created_at_ms = $4, session = $5, call = $6 \
                   WHERE tenant = $1 AND scenario = $2 AND sequence = $3";
        let query = sql::query(sql).bind(tenant).bind(scenario).bind(sequence).bind(facts.created_at_ms);
        query.bind(facts.session).bind(facts.call).execute(&mut *conn).await?;
    }
    Ok(filled)
}
