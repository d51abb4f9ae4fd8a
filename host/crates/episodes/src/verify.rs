//! What a verifier says of a try. A program runs caged like an agent's commands, after the agent and everything that it
//! started has ended; a component is asked through the function that the binary gives.

use std::path::Path;
use std::time::Duration;

use crate::bounded::shortened;
use crate::cage::{Bounds, Cage, Inside};
use crate::episode::{HOME_INSIDE, Judge, TASK_INSIDE};
use crate::task::{Task, VerifierSource};

/// The agent's last words, beside its home.
pub const OUTPUT_FILE: &str = "output.txt";
/// Time of a verifier that is a program.
const TIME_MAX: Duration = Duration::from_secs(120);
/// Bytes of a file that a component reads.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Bytes of what a verifier says.
const DETAIL_BYTES_MAX: usize = 500;

/// The outcome.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// A score in [0, 1].
    Score(f64),
    /// The verifier failed; why.
    Failed(String),
    /// The machine failed; why.
    Broken(String),
}

/// Where a try was made.
pub struct Tried<'a> {
    /// The agent's folder.
    pub work: &'a Path,
    /// A folder beside it, with the agent's last words.
    pub beside: &'a Path,
    /// The agent's last words.
    pub answer: &'a str,
}

/// Asks the task's verifier.
pub async fn verify(task: &Task, tried: &Tried<'_>, cage: &Cage, judge: &Judge) -> Verdict {
    match &task.verifier {
        VerifierSource::Program(argv) => program(task, argv, tried, cage).await,
        VerifierSource::Component(name) => {
            let answer = match &task.answer_file {
                Some(file) => match answer_file(tried.work, file) {
                    Ok(text) => text,
                    // The agent was to write it.
                    Err(_) => return Verdict::Score(0.0),
                },
                None => tried.answer.to_owned(),
            };
            match judge(name.clone(), task.instruction.clone(), answer).await {
                Ok(score) if (0.0..=1.0).contains(&score) => Verdict::Score(score),
                Ok(score) => Verdict::Failed(format!("the verifier '{name}' gave the score {score}, not 0 to 1")),
                Err(told) => Verdict::Failed(shortened(&told, DETAIL_BYTES_MAX)),
            }
        }
    }
}

fn answer_file(work: &Path, file: &str) -> Result<String, String> {
    let folder = crate::agent::Folder::open(work, crate::episode::WORK_INSIDE).map_err(|error| error.to_string())?;
    let text = folder.read(file)?;
    if text.len() as u64 > ANSWER_BYTES_MAX { Err("too long".to_owned()) } else { Ok(text) }
}

async fn program(task: &Task, argv: &[String], tried: &Tried<'_>, cage: &Cage) -> Verdict {
    let seen = cage.seen(&task.folder, TASK_INSIDE).display().to_string();
    let output = cage.seen(tried.beside, HOME_INSIDE).join(OUTPUT_FILE).display().to_string();
    let inside = Inside {
        argv: argv.iter().map(|word| word.replace("{task}", &seen)).collect(),
        environment: [("REEF_TASK", seen), ("REEF_OUTPUT", output)]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        home: Some(tried.beside.to_owned()),
        task: Some(task.folder.clone()),
        ..Inside::of(tried.work)
    };
    let bounds = Bounds { time: TIME_MAX, memory_bytes: task.limits.memory_mb << 20, ..Bounds::default() };
    let done = match cage.run(&inside, bounds).await {
        Ok(done) => done,
        Err(error) => return Verdict::Broken(format!("the verifier cannot run: {error}")),
    };
    let last = done.output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let said = shortened(format!("{last} {}", done.errors.trim()).trim(), DETAIL_BYTES_MAX);
    match (done.cut, done.code) {
        (Some(cut), _) => Verdict::Failed(format!("the verifier was ended: {cut}")),
        (None, Some(0)) => match last.parse::<f64>() {
            Ok(score) if (0.0..=1.0).contains(&score) => Verdict::Score(score),
            Ok(score) => Verdict::Failed(format!("the verifier printed the score {score}, not 0 to 1")),
            Err(_) => Verdict::Score(1.0),
        },
        (None, Some(1)) => Verdict::Score(0.0),
        (None, Some(code)) => Verdict::Failed(format!("the verifier ended with exit code {code}: {said}")),
        (None, None) => Verdict::Failed(format!("the verifier was ended by a signal: {said}")),
    }
}
