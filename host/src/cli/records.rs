//! `reef records …`: takes a scenario's records out of a running server, puts them into one, and erases them.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use reef_core::ScenarioName;
use serde_json::{Value, json};

use super::{Remote, bar, scenario_name, show};
use crate::client::Client;
use crate::error::StartError;

/// Records of one import, and bytes of one: below what servers take.
const BATCH_RECORDS: usize = 500;
const BATCH_BYTES: usize = 16 << 20;

const BAR: &str = "{spinner} {human_pos} records, {per_sec}";

const BYTES_BAR: &str = "{spinner} {bytes}, {bytes_per_sec}";

/// What an export is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Jsonl,
    Parquet,
}

#[derive(Debug, Subcommand)]
pub(super) enum RecordsCommand {
    /// Write all records, oldest first: JSON lines, which `import` takes back, or a Parquet file.
    #[command(
        after_help = "Examples:\n  reef records export my-agent --out my-agent.jsonl\n  reef records export my-agent --format parquet --out my-agent.parquet"
    )]
    Export {
        /// Scenario.
        #[arg(value_parser = scenario_name)]
        scenario: ScenarioName,
        /// File to write; standard output if absent.
        #[arg(long)]
        out: Option<PathBuf>,
        /// Only records after this sequence: an export that broke off goes on after the last it wrote.
        #[arg(long, default_value_t = 0)]
        after: i64,
        /// What to write.
        #[arg(long, value_enum, default_value_t = Format::Jsonl)]
        format: Format,
        #[command(flatten)]
        remote: Remote,
    },
    /// Add the lines of an export; records that are there already are counted and left alone.
    #[command(after_help = "Example:\n  reef records import my-agent my-agent.jsonl")]
    Import {
        /// Scenario.
        #[arg(value_parser = scenario_name)]
        scenario: ScenarioName,
        /// File with JSON lines.
        file: PathBuf,
        #[command(flatten)]
        remote: Remote,
    },
    /// Erase records and the reports about them, for good; names the releases that were trained on them.
    #[command(
        after_help = "Examples:\n  reef records erase my-agent --session s-1\n  reef records erase my-agent --tag user=4711"
    )]
    Erase {
        /// Scenario.
        #[arg(value_parser = scenario_name)]
        scenario: ScenarioName,
        #[command(flatten)]
        what: What,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct What {
    /// One record, by its receipt.
    #[arg(long)]
    record: Option<String>,
    /// All records of a session.
    #[arg(long)]
    session: Option<String>,
    /// All records with this tag, as name=value.
    #[arg(long)]
    tag: Option<String>,
}

pub(super) async fn run(command: RecordsCommand) -> Result<(), StartError> {
    match command {
        RecordsCommand::Export { scenario, out, after, format, remote } => {
            export(&remote.client()?, (&scenario, after, format), out.as_deref()).await
        }
        RecordsCommand::Import { scenario, file, remote } => import(&remote.client()?, &scenario, &file).await,
        RecordsCommand::Erase { scenario, what, remote } => {
            let path = format!("/reef/scenarios/{scenario}/erase");
            show(&remote.client()?.post(&path, &what.body()?).await?)
        }
    }
}

impl What {
    fn body(self) -> Result<Value, StartError> {
        match (self.record, self.session, self.tag) {
            (Some(record), _, _) => Ok(json!({ "record": record })),
            (_, Some(session), _) => Ok(json!({ "session": session })),
            (_, _, tag) => match tag.as_deref().unwrap_or_default().split_once('=') {
                Some((name, value)) => Ok(json!({ "tag": { name: value } })),
                None => Err(StartError::Config("--tag must be name=value".to_owned())),
            },
        }
    }
}

async fn export(
    client: &Client,
    (scenario, after, format): (&ScenarioName, i64, Format),
    out: Option<&Path>,
) -> Result<(), StartError> {
    let failed = |error: std::io::Error| StartError::Other(format!("the export cannot be written: {error}"));
    let (bar, format_name) = match format {
        Format::Jsonl => (bar(BAR, false), "jsonl"),
        Format::Parquet => (bar(BYTES_BAR, false), "parquet"),
    };
    let path = format!("/reef/scenarios/{scenario}/export?after_sequence={after}&format={format_name}");
    let mut answer = client.open(&path).await?;
    // What stood in the file before goes when the export is whole.
    let folder = out.map(|path| path.parent().filter(|folder| !folder.as_os_str().is_empty()));
    let beside = folder.map(|folder| tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new("."))));
    let mut beside = beside.transpose().map_err(failed)?;
    let mut file: Box<dyn Write> = match &mut beside {
        Some(beside) => Box::new(std::io::BufWriter::new(beside.as_file_mut())),
        None => Box::new(std::io::stdout().lock()),
    };
    while let Some(chunk) = client.next(&mut answer).await? {
        bar.inc(match format {
            Format::Jsonl => chunk.iter().filter(|byte| **byte == b'\n').count() as u64,
            Format::Parquet => chunk.len() as u64,
        });
        file.write_all(&chunk).map_err(failed)?;
    }
    file.flush().map_err(failed)?;
    drop(file);
    if let (Some(beside), Some(path)) = (beside, out) {
        beside.persist(path).map_err(|error| failed(error.error))?;
    }
    bar.finish();
    Ok(())
}

async fn import(client: &Client, scenario: &ScenarioName, path: &Path) -> Result<(), StartError> {
    use std::io::BufRead;
    let shown = path.display();
    let unread = |error: std::io::Error| StartError::Data(format!("{shown} cannot be read: {error}"));
    let mut file = std::io::BufReader::new(std::fs::File::open(path).map_err(unread)?);
    if file.fill_buf().map_err(unread)?.starts_with(PARQUET_MAGIC) {
        let told = "is Parquet, which loses what an import needs; export as JSON lines (--format jsonl)";
        return Err(StartError::Data(format!("{shown} {told}")));
    }
    let (bar, mut batch, mut bytes) = (bar(BAR, false), Vec::new(), 0);
    let mut told = [0; 3];
    for (number, line) in file.lines().enumerate() {
        let broken = |problem: String, told: [u64; 3]| {
            let before: u64 = told.iter().sum();
            StartError::Data(format!(
                "{shown}, line {}: {problem}; the first {before} records were imported: correct the line and import again, what is there already is passed over",
                number + 1
            ))
        };
        let line = line.map_err(|error| broken(error.to_string(), told))?;
        if line.trim().is_empty() {
            continue;
        }
        let record: Value = serde_json::from_str(&line).map_err(|error| broken(error.to_string(), told))?;
        bytes += line.len();
        batch.push(record);
        if batch.len() == BATCH_RECORDS || bytes > BATCH_BYTES {
            bar.inc(batch.len() as u64);
            send(client, scenario, std::mem::take(&mut batch), &mut told).await?;
            bytes = 0;
        }
    }
    bar.inc(batch.len() as u64);
    send(client, scenario, batch, &mut told).await?;
    bar.finish();
    show(&FIGURES.into_iter().zip(told).map(|(name, count)| (name.to_owned(), json!(count))).collect())
}

/// The first bytes of a Parquet file.
const PARQUET_MAGIC: &[u8] = b"PAR1";

/// What an import tells of each batch.
const FIGURES: [&str; 3] = ["imported", "duplicates", "gone"];

/// Sends a batch and adds what became of it.
async fn send(
    client: &Client,
    scenario: &ScenarioName,
    batch: Vec<Value>,
    told: &mut [u64; 3],
) -> Result<(), StartError> {
    if batch.is_empty() {
        return Ok(());
    }
    let answer = client.post_in(scenario, "/reef/records/batch", &json!({ "records": batch })).await?;
    for (sum, name) in told.iter_mut().zip(FIGURES) {
        *sum += answer[name].as_u64().unwrap_or(0);
    }
    Ok(())
}
