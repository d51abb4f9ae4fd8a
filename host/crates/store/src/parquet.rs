//! Export of records as Parquet, for tools that read columns. One row group per page of the export, so that memory stays
//! at one page; the columns are those of the record, with the body as JSON text.

use std::io::Write;
use std::sync::Arc;

use ::parquet::basic::Compression;
use ::parquet::data_type::{ByteArray, ByteArrayType, DataType, FloatType, Int32Type, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::parser::parse_message_type;
use reef_core::{Inference, ScenarioName, TenantId, TokenTrace};

use crate::Store;
use crate::entry::status_str;
use crate::error::StoreError;
use crate::records::{RecordBody, StoredRecord};
use crate::transfer::{Exported, unwriting};

const SCHEMA: &str = "message record {
    required int64 sequence;
    required binary id (UTF8);
    required binary kind (UTF8);
    optional binary status (UTF8);
    optional binary session (UTF8);
    required int64 created_at_ms;
    optional group prompt (LIST) { repeated group list { required int32 element (UINT_32); } }
    optional group output (LIST) { repeated group list { required int32 element (UINT_32); } }
    optional group logprobs (LIST) { repeated group list { required float element; } }
    required binary body (UTF8);
}";

impl Store {
    /// Writes the records after a sequence as a Parquet file, oldest first, and returns the writer. Memory stays at one
    /// page and the file's index.
    pub async fn export_parquet<W: Write + Send + 'static>(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        after: i64,
        out: W,
    ) -> Result<(Exported, W), StoreError> {
        let mut file = blocking(move || open(out)).await?;
        let mut exported = Exported { records: 0, last: after };
        loop {
            let page = self.page(t, s, exported.last).await?;
            let Some(last) = page.last() else { break };
            exported.last = last.sequence;
            exported.records += page.len() as u64;
            let bodies = page.iter().map(StoredRecord::body_text).collect::<Result<Vec<_>, _>>()?;
            file = blocking(move || write_page(file, &page, bodies)).await?;
        }
        let out = blocking(move || file.into_inner()).await?;
        Ok((exported, out))
    }
}

/// Runs work that blocks where it holds up no request.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ParquetError> + Send + 'static,
) -> Result<T, StoreError> {
    // The task is only lost when the runtime stops.
    tokio::task::spawn_blocking(work).await.map_err(|_| StoreError::Closed)?.map_err(unwriting)
}

fn open<W: Write + Send>(out: W) -> Result<SerializedFileWriter<W>, ParquetError> {
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    SerializedFileWriter::new(out, schema, Arc::new(properties))
}

/// One row group. The columns come in the order of the schema.
fn write_page<W: Write + Send>(
    mut file: SerializedFileWriter<W>,
    page: &[StoredRecord],
    bodies: Vec<String>,
) -> Result<SerializedFileWriter<W>, ParquetError> {
    let mut group = file.next_row_group()?;
    let inferences: Vec<Option<&Inference>> = page.iter().map(inference).collect();
    let tokens: Vec<Option<&TokenTrace>> = inferences.iter().map(|i| i.and_then(|i| i.tokens.as_ref())).collect();
    let own = |text: &str| Some(text.to_owned());
    numbers(&mut group, page.iter().map(|record| record.sequence))?;
    texts(&mut group, page.iter().map(|record| own(record.body.id().as_str())), Presence::Required)?;
    texts(&mut group, page.iter().map(|record| own(record.kind.as_str())), Presence::Required)?;
    texts(&mut group, inferences.iter().map(|i| i.and_then(|i| own(status_str(i.status)))), Presence::Optional)?;
    texts(&mut group, inferences.iter().map(|i| i.and_then(|i| i.session.clone())), Presence::Optional)?;
    numbers(&mut group, page.iter().map(created_at_ms))?;
    lists::<Int32Type, W>(
        &mut group,
        tokens.iter().map(|t| t.map(|t| t.prompt.iter().map(|id| id.cast_signed()).collect())),
    )?;
    lists::<Int32Type, W>(
        &mut group,
        tokens.iter().map(|t| t.map(|t| t.output.iter().map(|id| id.cast_signed()).collect())),
    )?;
    lists::<FloatType, W>(&mut group, tokens.iter().map(|t| t.map(|t| t.logprobs.clone())))?;
    texts(&mut group, bodies.into_iter().map(Some), Presence::Required)?;
    group.close()?;
    Ok(file)
}

fn inference(record: &StoredRecord) -> Option<&Inference> {
    match &record.body {
        RecordBody::Inference(inference) => Some(inference),
        RecordBody::Report(_) | RecordBody::Instruction(_) => None,
    }
}

fn created_at_ms(record: &StoredRecord) -> i64 {
    match &record.body {
        RecordBody::Inference(inference) => inference.created_at_ms,
        RecordBody::Report(report) => report.created_at_ms,
        RecordBody::Instruction(instruction) => instruction.created_at_ms,
    }
}

/// Writes the next column.
fn write<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    definition: Option<&[i16]>,
    repetition: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let column = group.next_column()?;
    let mut column = column.ok_or_else(|| ParquetError::General("the schema has fewer columns".to_owned()))?;
    column.typed::<T>().write_batch(values, definition, repetition)?;
    column.close()
}

fn numbers<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: impl Iterator<Item = i64>,
) -> Result<(), ParquetError> {
    write::<Int64Type, W>(group, &values.collect::<Vec<_>>(), None, None)
}

/// May a value be absent?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    Required,
    Optional,
}

fn texts<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    texts: impl Iterator<Item = Option<String>>,
    presence: Presence,
) -> Result<(), ParquetError> {
    let texts: Vec<Option<String>> = texts.collect();
    let levels: Vec<i16> = texts.iter().map(|text| i16::from(text.is_some())).collect();
    let values: Vec<ByteArray> = texts.into_iter().flatten().map(|text| text.into_bytes().into()).collect();
    let levels = (presence == Presence::Optional).then_some(levels.as_slice());
    write::<ByteArrayType, W>(group, &values, levels, None)
}

/// Definition levels: 0 no list, 1 an empty one, 2 an element. Repetition levels: 0 a new row, 1 the same row.
fn lists<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    lists: impl Iterator<Item = Option<Vec<T::T>>>,
) -> Result<(), ParquetError> {
    let (mut values, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
    for list in lists {
        let elements = list.as_ref().map_or(0, Vec::len);
        definition.push(if elements > 0 { 2 } else { i16::from(list.is_some()) });
        definition.extend(std::iter::repeat_n(2, elements.saturating_sub(1)));
        repetition.push(0);
        repetition.extend(std::iter::repeat_n(1, elements.saturating_sub(1)));
        values.extend(list.into_iter().flatten());
    }
    write::<T, W>(group, &values, Some(&definition), Some(&repetition))
}
