//! Servers for tests: one shared by all that only need a scenario, and own ones for the rest.

mod caller;
mod database;
mod process;
mod tiny;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use reef::config::Config;
use reef::host::{self, Running};

pub use caller::{Answer, Caller, MODEL, poll};
pub use database::{Database, Home};
pub use process::ServerProcess;
pub use tiny::{TINY, tiny_model};

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests folder has a parent").to_path_buf()
}

/// The default model; `make test` installs it.
pub fn model() -> PathBuf {
    let path = root().join(".deps/models/smollm2-135m-instruct-q4_1.gguf");
    assert!(path.exists(), "{} is missing; run scripts/setup.sh", path.display());
    path
}

/// A component that `make test` builds.
pub fn component(name: &str) -> PathBuf {
    let path = target().join("wasm32-wasip2/recipe").join(name);
    assert!(
        path.exists(),
        "{} is missing; run 'make recipes' and build the guests as 'make test' does",
        path.display()
    );
    path
}

/// The recipe that ships with Reef.
pub fn sao() -> PathBuf {
    component("reef_recipe_sao.wasm")
}

/// The guest that misbehaves as its configuration says.
pub fn faults() -> PathBuf {
    component("reef_guest_faults.wasm")
}

/// The build folder.
pub fn target() -> PathBuf {
    let binary = std::env::current_exe().expect("the test binary has a path");
    binary.ancestors().nth(3).expect("target/debug/deps/reef").to_path_buf()
}

/// The `reef` command, or the program that REEF_TEST_PROGRAM names in its place.
pub fn reef() -> Command {
    let path = std::env::var_os("REEF_TEST_PROGRAM").map_or_else(|| target().join("debug/reef"), PathBuf::from);
    assert!(path.exists(), "{} is missing; run 'cargo build -p reef'", path.display());
    let mut command = Command::new(path);
    command.current_dir(root()).env_remove("REEF_TOKEN").env_remove("REEF_CONFIG");
    command
}

/// A configuration with a free port and its own folder.
pub fn config(data: &Path) -> Config {
    let mut config =
        Config { listen: ([127, 0, 0, 1], 0).into(), data: data.to_path_buf(), model: model(), ..Config::default() };
    config.telemetry.log = "warn".to_owned();
    // The test binary knows no hidden command that compiles.
    config.recipes.compile_in_process = true;
    config
}

/// A server of one test; its folder goes with it.
pub struct TestHost {
    running: Option<Running>,
    pub url: String,
    pub data: tempfile::TempDir,
}

impl TestHost {
    /// Starts with a changed configuration.
    pub async fn start(change: impl FnOnce(&mut Config)) -> Self {
        Self::start_in(tempfile::tempdir().expect("a temporary folder"), change).await
    }

    /// Starts on data that is there already.
    pub async fn start_in(data: tempfile::TempDir, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config(data.path());
        change(&mut config);
        let running = host::start(config).await.expect("the server starts");
        let url = format!("http://{}", running.address);
        Self { running: Some(running), url, data }
    }

    /// Stops and gives the data back.
    pub async fn stop(mut self) -> tempfile::TempDir {
        if let Some(running) = self.running.take() {
            running.shutdown().await;
        }
        self.data
    }

    /// A caller with a scenario of its own.
    pub fn caller(&self, scenario: &str) -> Caller {
        Caller::new(&self.url, scenario)
    }
}

/// A caller of the shared server, with a scenario nobody else uses.
pub fn shared() -> Caller {
    static URL: OnceLock<String> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static STARTING: Mutex<()> = Mutex::new(());
    let _starting = STARTING.lock();
    let url = URL.get_or_init(start_shared);
    Caller::new(url, &format!("shared-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// Runs on a thread of its own for as long as the test binary does; its folder is wiped at the start.
fn start_shared() -> String {
    let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shared-server");
    // Absent at the first run.
    let _ = std::fs::remove_dir_all(&data);
    let (address, started) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async move {
            let mut config = config(&data);
            config.recipe = Some(sao());
            let running = host::start(config).await.expect("the shared server starts");
            address.send(format!("http://{}", running.address)).expect("somebody waits");
            std::future::pending::<()>().await;
            drop(running);
        });
    });
    started.recv().expect("the shared server started")
}
