//! A scenario's records as a stream: JSON lines, which an import takes back, or a Parquet file for tools that read
//! columns. Both are read page by page while the client reads, so that a large log takes no more memory than a small
//! one; a client that goes away ends the reading.

use std::io::{Error, ErrorKind, Write};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::stream;
use reef_core::{ScenarioName, TenantId};
use reef_store::{Store, StoreError};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::caller::Caller;
use super::error::ApiError;
use super::params::{Path, Query};
use super::scenarios::Management;
use crate::config::Scope;

/// Bytes of one part of a Parquet file that is sent.
const PART_BYTES: usize = 256 << 10;
/// Parts that wait for a slow reader.
const PARTS_MAX: usize = 4;

/// Query of an export.
#[derive(Debug, Deserialize)]
pub struct Wanted {
    after_sequence: Option<i64>,
    #[serde(default)]
    format: Format,
}

/// What it is written as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Jsonl,
    Parquet,
}

/// `GET /reef/scenarios/{s}/export?after_sequence&format=jsonl|parquet`, oldest first.
pub async fn export(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Result<Response, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let (store, key, after) = (management.store.clone(), scenario.key.clone(), wanted.after_sequence.unwrap_or(0));
    let (kind, body) = match wanted.format {
        Format::Jsonl => ("application/x-ndjson", lines(store, key, after)),
        Format::Parquet => ("application/vnd.apache.parquet", parquet(store, key, after)),
    };
    Ok(([(header::CONTENT_TYPE, kind)], body).into_response())
}

fn lines(store: Store, key: (TenantId, ScenarioName), after: i64) -> Body {
    Body::from_stream(stream::try_unfold(after, move |after| {
        let (store, key) = (store.clone(), key.clone());
        async move {
            let page = store.lines(&key.0, &key.1, after).await?;
            Ok::<_, StoreError>(page.map(|(lines, exported)| (Bytes::from(lines), exported.last)))
        }
    }))
}

fn parquet(store: Store, (tenant, name): (TenantId, ScenarioName), after: i64) -> Body {
    let (parts, mut received) = mpsc::channel(PARTS_MAX);
    tokio::spawn(async move {
        let writer = Parts { parts: parts.clone(), part: Vec::new() };
        let last = match store.export_parquet(&tenant, &name, after, writer).await {
            Ok((_, writer)) => Ok(Bytes::from(writer.part)),
            // The head is sent: the body breaks off, so that nobody takes a part for the whole.
            Err(error) => Err(Error::other(error.to_string())),
        };
        // Nobody listens any more: there is nobody to tell.
        let _ = parts.send(last).await;
    });
    Body::from_stream(stream::poll_fn(move |context| received.poll_recv(context)))
}

/// Collects what is written and sends it in parts; it blocks where the reader is slow.
struct Parts {
    parts: mpsc::Sender<Result<Bytes, Error>>,
    part: Vec<u8>,
}

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        self.part.extend_from_slice(bytes);
        if self.part.len() >= PART_BYTES {
            let part = Bytes::from(std::mem::take(&mut self.part));
            let gone = |_| Error::new(ErrorKind::BrokenPipe, "the client went away");
            self.parts.blocking_send(Ok(part)).map_err(gone)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
}
