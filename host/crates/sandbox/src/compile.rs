//! From the bytes of a component to code that can be linked: from the cache, or compiled in a bounded process.
//! One compilation at a time; whoever waits for one of the same component takes its result from the cache.
//! Compiled code comes from this host only, never from outside.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;
use wasmtime::component::Component;

use crate::SandboxError;
use crate::cache::{self, Artefact};
use crate::compile_child::{self, Failed, Terms};
use crate::engine::Shared;
use crate::text::clean;

/// Times that a compilation may wait as long as it may run: others come first, one at a time.
const WAIT_FACTOR: u32 = 20;
/// The hidden command of the `reef` program that calls [`compile_worker`](crate::compile_worker).
pub const COMPILE_COMMAND: &str = "compile-component";
/// Characters of a compiler's message that an error repeats.
const TOLD_CHARS_MAX: usize = 400;
/// First bytes of compiled code.
const ELF: &[u8] = b"\x7fELF";

/// Which process compiles components.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compiler {
    /// This one: for tests and small commands. What a compilation takes stays resident, and it cannot be stopped.
    InProcess,
    /// A process for each compilation, bounded in time and memory. It is given the paths of the component and of the
    /// result as its last two arguments, and calls [`compile_worker`](crate::compile_worker) with them.
    Child {
        /// The program.
        program: PathBuf,
        /// Its arguments before the two paths.
        arguments: Vec<OsString>,
    },
}

impl Compiler {
    /// A process of this very program for each compilation, for a program that knows [`COMPILE_COMMAND`].
    pub fn this_program() -> Self {
        // The program that runs, also when its file has been replaced meanwhile.
        Self::Child { program: PathBuf::from("/proc/self/exe"), arguments: vec![COMPILE_COMMAND.into()] }
    }
}

/// How often the cache had the code of a component.
#[derive(Debug, Default)]
pub(crate) struct CompileCounts {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
}

/// What compiled code that somebody brings along is told; `None` for everything else.
pub(crate) fn foreign_code(bytes: &[u8]) -> Option<String> {
    bytes.starts_with(ELF).then(|| {
        "it is compiled code, which is never taken from outside because loading it would run it; give the component that it was compiled from".to_owned()
    })
}

/// The code of a component whose header was checked.
pub(crate) async fn compile(shared: &Arc<Shared>, bytes: Vec<u8>) -> Result<Component, SandboxError> {
    let job = Job { name: shared.cache().map(|cache| cache.name(&bytes)), bytes, shared: Arc::clone(shared) };
    let (job, cached) = in_thread(move || {
        let cached = job.cached();
        (job, cached)
    })
    .await?;
    if let Some(component) = cached {
        return Ok(component);
    }
    let ms_max = shared.config().compile_ms_max;
    let slow = || SandboxError::CompileTimeout { ms_max };
    let time = Duration::from_millis(ms_max);
    let turn = timeout(time.saturating_mul(WAIT_FACTOR), Arc::clone(shared.compiling()).acquire_owned()).await;
    let permit = turn.map_err(|_| slow())?;
    // The permit stays with the thread: a compilation that is given up still occupies its place until it ends.
    let work = in_thread(move || {
        let _permit = permit;
        job.compile()
    });
    match shared.compiler() {
        Compiler::InProcess => timeout(time, work).await.map_err(|_| slow())??,
        Compiler::Child { .. } => work.await?,
    }
}

async fn in_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, SandboxError> {
    let broken = |error| SandboxError::Invalid(format!("the compiler broke down on it: {error}"));
    tokio::task::spawn_blocking(work).await.map_err(broken)
}

struct Job {
    shared: Arc<Shared>,
    bytes: Vec<u8>,
    /// Its name in the cache, if there is one.
    name: Option<String>,
}

impl Job {
    fn cached(&self) -> Option<Component> {
        let (cache, name) = (self.shared.cache()?, self.name.as_ref()?);
        let component = cache.load(self.shared.engine(), name)?;
        self.shared.compiles().hits.fetch_add(1, Ordering::Relaxed);
        Some(component)
    }

    fn compile(&self) -> Result<Component, SandboxError> {
        // Another job may have compiled the same component while this one waited.
        if let Some(component) = self.cached() {
            return Ok(component);
        }
        self.shared.compiles().misses.fetch_add(1, Ordering::Relaxed);
        let artefact = match self.shared.compiler() {
            Compiler::InProcess => self.in_process()?,
            Compiler::Child { program, arguments } => self.in_child(program, arguments)?,
        };
        let Some(artefact) = artefact else {
            return Component::from_binary(self.shared.engine(), &self.bytes).map_err(|error| invalid(&error));
        };
        if let (Some(cache), Some(name)) = (self.shared.cache(), &self.name) {
            cache.keep(name, &artefact);
        }
        artefact.component(self.shared.engine()).map_err(|error| invalid(&error))
    }

    /// Without a cache there is no reason to write a file.
    fn in_process(&self) -> Result<Option<Artefact>, SandboxError> {
        let Some(cache) = self.shared.cache() else { return Ok(None) };
        let code = self.shared.engine().precompile_component(&self.bytes).map_err(|error| invalid(&error))?;
        match Artefact::write(cache.folder(), &code) {
            Ok(artefact) => Ok(Some(artefact)),
            Err(error) => {
                tracing::warn!("a compiled recipe cannot be kept in {}: {error}", cache.folder().display());
                Ok(None)
            }
        }
    }

    fn in_child(&self, program: &Path, arguments: &[OsString]) -> Result<Option<Artefact>, SandboxError> {
        let config = self.shared.config();
        let terms = Terms {
            time: Duration::from_millis(config.compile_ms_max),
            memory_bytes_max: config.compile_memory_bytes_max,
            folder: self.shared.cache().map(cache::Cache::folder),
        };
        compile_child::compile((program, arguments), &self.bytes, &terms).map(Some).map_err(|failed| match failed {
            Failed::TimedOut => SandboxError::CompileTimeout { ms_max: config.compile_ms_max },
            Failed::Refused(told) => SandboxError::Invalid(clean(&told, TOLD_CHARS_MAX)),
            Failed::Died(how) => SandboxError::Invalid(format!(
                "the process that compiled it {}; raise sandbox.compile_memory_bytes_max ({} bytes) or build a smaller component",
                clean(&how, TOLD_CHARS_MAX),
                config.compile_memory_bytes_max
            )),
            Failed::NotStarted(told) => {
                SandboxError::Start(format!("recipes cannot be compiled: {}", clean(&told, TOLD_CHARS_MAX)))
            }
        })
    }
}

fn invalid(error: &wasmtime::Error) -> SandboxError {
    SandboxError::Invalid(clean(&format!("{error:#}"), TOLD_CHARS_MAX))
}
