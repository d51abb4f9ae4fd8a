//! The process that compiles one component: how it is started and watched, and what it does.
//! It gets two paths in a folder of its own, an empty environment, and limits that it sets before it reads a byte.
//! Whatever a component makes the compiler do, this process is unharmed and the other one is gone afterwards.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use wasmtime::Engine;

use crate::cache::Artefact;
use crate::engine::settings;

/// Bytes of the compiler's last words that are read.
const TOLD_BYTES_MAX: u64 = 4 * 1024;
/// Bytes of compiled code, and of anything else that the process writes.
const WRITTEN_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
/// How often the process is looked after.
const WATCH_PERIOD: Duration = Duration::from_millis(2);
/// Exit code of a compiler that refuses the component; its last words say why.
const REFUSED: i32 = 1;
/// Variables of the environment that carry the limits.
const MEMORY_VARIABLE: &str = "REEF_COMPILE_MEMORY_BYTES_MAX";
const SECONDS_VARIABLE: &str = "REEF_COMPILE_CPU_SECONDS_MAX";
/// Limits of a compiler that is started without them.
const MEMORY_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
const SECONDS_MAX: u64 = 600;
/// What the dynamic linker needs to find the program's libraries.
const LINKER_VARIABLE: &str = "LD_LIBRARY_PATH";

/// What a compilation may use.
pub(crate) struct Terms<'a> {
    /// From start to end.
    pub(crate) time: Duration,
    /// Address space.
    pub(crate) memory_bytes_max: u64,
    /// Where its folder is made; the system's folder for temporary files if there is none.
    pub(crate) folder: Option<&'a Path>,
}

/// Why there is no code.
#[derive(Debug)]
pub(crate) enum Failed {
    TimedOut,
    /// The compiler's words on the component.
    Refused(String),
    /// How the process ended.
    Died(String),
    NotStarted(String),
}

/// Compiles in a process of `program` and waits for its end.
pub(crate) fn compile(
    (program, arguments): (&Path, &[OsString]),
    component: &[u8],
    terms: &Terms<'_>,
) -> Result<Artefact, Failed> {
    let not_started = |what: &str, error: io::Error| Failed::NotStarted(format!("{what}: {error}"));
    let artefact = Artefact::place(terms.folder).map_err(|error| not_started("there is no folder for it", error))?;
    let (input, told) = (artefact.folder().join("component.wasm"), artefact.folder().join("stderr"));
    fs::write(&input, component).map_err(|error| not_started("the component cannot be written", error))?;
    let stderr = File::create(&told).map_err(|error| not_started("there is no file for its messages", error))?;
    // Cranelift works on every core; its time on all of them together is bounded by this.
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let seconds = terms.time.as_secs().saturating_add(1).saturating_mul(cores);
    let child = Command::new(program)
        .args(arguments)
        .arg(&input)
        .arg(artefact.path())
        .env_clear()
        .envs(std::env::var_os(LINKER_VARIABLE).map(|value| (LINKER_VARIABLE, value)))
        .env("TMPDIR", artefact.folder())
        .env(MEMORY_VARIABLE, terms.memory_bytes_max.to_string())
        .env(SECONDS_VARIABLE, seconds.to_string())
        .current_dir(artefact.folder())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .map_err(|error| not_started(&program.display().to_string(), error))?;
    let status = watch(Reaped(child), terms.time)?;
    if status.success() {
        return Ok(artefact);
    }
    let told = last_words(&told);
    Err(match (status.code(), status.signal()) {
        (Some(REFUSED), _) => Failed::Refused(told),
        (_, Some(signal)) if signal == Signal::XCPU.as_raw() => Failed::TimedOut,
        (_, Some(signal)) => Failed::Died(format!("was ended by signal {signal}{told}", told = after_colon(&told))),
        (code, None) => Failed::Died(format!(
            "ended with code {code}{told}",
            code = code.unwrap_or_default(),
            told = after_colon(&told)
        )),
    })
}

fn after_colon(told: &str) -> String {
    if told.is_empty() { String::new() } else { format!(" ({told})") }
}

/// Killed and waited for, whatever happens here.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        // Both fail only for a process that is gone and waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn watch(mut child: Reaped, time: Duration) -> Result<ExitStatus, Failed> {
    let started = Instant::now();
    loop {
        match child.0.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if started.elapsed() > time => return Err(Failed::TimedOut),
            Ok(None) => std::thread::sleep(WATCH_PERIOD),
            Err(error) => return Err(Failed::Died(format!("cannot be waited for: {error}"))),
        }
    }
}

fn last_words(path: &Path) -> String {
    let mut bytes = Vec::new();
    // Without them there is still the way in which the process ended.
    let _ = File::open(path).and_then(|file| file.take(TOLD_BYTES_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// What the process does: limits itself, compiles the component at `input`, and writes the code to `output`.
/// The error is a sentence; the process prints it to its standard error and ends with code 1.
pub fn compile_worker(input: &Path, output: &Path) -> Result<(), String> {
    confine().map_err(|error| format!("the compiler cannot limit itself: {error}"))?;
    let bytes = fs::read(input).map_err(|error| format!("{}: {error}", input.display()))?;
    let engine = Engine::new(&settings()).map_err(|error| format!("wasmtime refuses its settings: {error:#}"))?;
    let code = engine.precompile_component(&bytes).map_err(|error| format!("{error:#}"))?;
    let failed = |error: io::Error| format!("{}: {error}", output.display());
    let mut file = File::create_new(output).map_err(failed)?;
    file.write_all(&code).map_err(failed)
}

fn confine() -> io::Result<()> {
    // Should the host be killed, nobody else would stop the compilation.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let told = |variable: &str, otherwise: u64| {
        std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
    };
    for (resource, most) in [
        (Resource::As, told(MEMORY_VARIABLE, MEMORY_BYTES_MAX)),
        (Resource::Cpu, told(SECONDS_VARIABLE, SECONDS_MAX)),
        (Resource::Fsize, WRITTEN_BYTES_MAX),
        (Resource::Core, 0),
    ] {
        // A limit can only be lowered.
        let most = getrlimit(resource).maximum.map_or(most, |hard| hard.min(most));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}
