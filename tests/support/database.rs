//! The databases that a server can keep its log in, for tests that run on each: SQLite in the data folder, and Postgres
//! on a server that the tests start themselves.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use reef::config::Config;
use reef_store::Store;
use tempfile::TempDir;

#[path = "../../host/crates/store/tests/postgres/server.rs"]
#[expect(dead_code, reason = "the store's own tests also stop the server and start it again")]
mod server;

use self::server::Server;
use super::{ServerProcess, config, reef};

/// The variable in which a server is told where its Postgres database is.
const URL_VARIABLE: &str = "REEF_TEST_STORE_URL";

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Database {
    Sqlite,
    Postgres,
}

impl Database {
    /// Those that this machine is to be tested on.
    pub fn all() -> Vec<Self> {
        [Self::Sqlite, Self::Postgres].into_iter().filter(|database| database.is_tested()).collect()
    }

    /// Is this machine to be tested on it?
    pub fn is_tested(self) -> bool {
        let off = self == Self::Postgres && std::env::var("REEF_TEST_POSTGRES").is_ok_and(|value| value == "off");
        if off {
            println!("skipped: the tests on Postgres are switched off by REEF_TEST_POSTGRES=off");
        }
        !off
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }
}

fn postgres() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(Server::start)
}

/// What one server after another works on: its folder, its database and its configuration. Gone when dropped.
pub struct Home {
    pub data: TempDir,
    /// Name of the Postgres database.
    database: Option<String>,
    pub config: Config,
}

impl Home {
    pub fn new(database: Database, change: impl FnOnce(&mut Config)) -> Self {
        let data = tempfile::tempdir().expect("a folder");
        let name = (database == Database::Postgres).then(|| made(None));
        Self::on(data, name, change)
    }

    /// The same as it is on the disk now, in a place of its own. No server may run on this one.
    pub fn copy(&self) -> Self {
        let data = tempfile::tempdir().expect("a folder");
        copy(self.data.path(), data.path());
        let name = self.database.as_ref().map(|database| made(Some(database)));
        let config = self.config.clone();
        Self::on(data, name, |own| *own = config)
    }

    fn on(data: TempDir, database: Option<String>, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config(data.path());
        change(&mut config);
        config.data = data.path().to_path_buf();
        // The server is the program that compiles, unlike the test.
        config.recipes.compile_in_process = false;
        config.store.postgres_env = database.is_some().then(|| URL_VARIABLE.to_owned());
        Self { data, database, config }
    }

    fn url(&self) -> Option<String> {
        self.database.as_ref().map(|database| postgres().url_of(database))
    }

    pub fn start(&self) -> ServerProcess {
        self.start_with(&[])
    }

    /// Starts a server in an environment with more variables.
    pub fn start_with(&self, environment: &[(&str, &Path)]) -> ServerProcess {
        let url = self.url().map(PathBuf::from);
        let url = url.iter().map(|url| (URL_VARIABLE, url.as_path()));
        let environment: Vec<(&str, &Path)> = environment.iter().copied().chain(url).collect();
        ServerProcess::start_on(&self.config, &environment)
    }

    /// The `reef` command with the configuration of the server that ran here last.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = reef();
        command.args(arguments).arg("--config").arg(self.data.path().join("reef.yaml"));
        command.envs(self.url().map(|url| (URL_VARIABLE, url)));
        command
    }

    /// The store, to look at beside a server or after it.
    pub async fn open_read_only(&self) -> Store {
        match self.url() {
            Some(url) => Store::connect_read_only(&url).await.expect("the store"),
            None => Store::open_read_only(&self.data.path().join("reef.db")).await.expect("the store"),
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // A test that failed already has other things to tell.
        if let Some(database) = self.database.as_ref().filter(|_| !std::thread::panicking()) {
            postgres().query(&format!("DROP DATABASE {database} WITH (FORCE)"));
        }
    }
}

/// Makes a Postgres database with a name of its own.
fn made(like: Option<&String>) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("home_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let like = like.map(|like| format!(" TEMPLATE {like}")).unwrap_or_default();
    postgres().query(&format!("CREATE DATABASE {name}{like}"));
    name
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copied");
        }
    }
}
