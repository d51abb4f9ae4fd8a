//! A Postgres server of the machine's own binaries, in a temporary folder and reached through a socket there.
//! It ends when the process of the tests ends, however it does: a shell beside it waits for the end of a pipe.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;

/// Set to `off` where Postgres is not installed.
const SWITCH: &str = "REEF_TEST_POSTGRES";
/// Attempts to reach a server that starts.
const ATTEMPTS: u32 = 600;
const PAUSE: Duration = Duration::from_millis(50);
/// Who runs the server when the tests run as root, which Postgres refuses.
const UNPRIVILEGED: &str = "nobody";

/// Runs the server `$1 -D $2 -k $3` until its standard input ends, then removes the folder `$3`.
const KEEPER: &str = r#"
"$1" -D "$2" -k "$3" -c listen_addresses= -c max_connections=200 >"$3/log" 2>&1 &
server=$!
cat >/dev/null
kill -INT $server 2>/dev/null
wait $server
rm -rf "$3"
"#;

pub struct Server {
    folder: PathBuf,
    binaries: PathBuf,
    keeper: Child,
    earlier: Vec<Child>,
}

/// The server of this process.
pub fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    if std::env::var(SWITCH).is_ok_and(|value| value == "off") {
        println!("skipped: the tests on Postgres are switched off by {SWITCH}=off");
        std::process::exit(0);
    }
    SERVER.get_or_init(Server::start)
}

impl Server {
    pub fn start() -> Self {
        let binaries = binaries().unwrap_or_else(|| {
            panic!("initdb and postgres are not installed; install PostgreSQL, or set {SWITCH}=off to test without it")
        });
        let folder = TempDir::with_prefix("reef-pg-").expect("folder").keep();
        let data = folder.join("data");
        fs::create_dir(&data).expect("made");
        let root = fs::metadata(&folder).expect("there").uid() == 0;
        if root {
            let owned = Command::new("chown").arg("-R").arg(UNPRIVILEGED).arg(&folder).status();
            assert!(owned.expect("chown runs").success(), "the folder goes to {UNPRIVILEGED}");
        }
        let made = as_user(root, &binaries.join("initdb"))
            .args(["--username=reef", "--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8", "-D"])
            .arg(&data)
            .output()
            .expect("initdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let keeper = keep(&binaries, &folder);
        let server = Self { folder, binaries, keeper, earlier: Vec::new() };
        server.wait();
        server
    }

    /// Stops the server as if the power failed: no process of it writes another byte.
    pub fn crash(&mut self) {
        let pid = fs::read_to_string(self.folder.join("data/postmaster.pid")).expect("it runs");
        let pid = pid.lines().next().expect("a line").to_owned();
        let ended = Command::new("kill").args(["-QUIT", &pid]).status().expect("kill runs");
        assert!(ended.success());
        while Path::new("/proc").join(&pid).join("exe").exists() {
            std::thread::sleep(PAUSE);
        }
    }

    /// Starts it again on what is left.
    pub fn restart(&mut self) {
        let folder = fs::metadata(&self.folder).is_ok();
        assert!(folder, "the data are there");
        // The first keeper still waits for the end of its pipe; the second one cleans up with it.
        let first = std::mem::replace(&mut self.keeper, keep(&self.binaries, &self.folder));
        self.earlier.push(first);
        self.wait();
    }

    fn wait(&self) {
        for _ in 0..ATTEMPTS {
            let ready = Command::new(self.binaries.join("pg_isready")).arg("-q").arg("-h").arg(&self.folder).status();
            if ready.is_ok_and(|ready| ready.success()) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        panic!("the server does not start: {}", fs::read_to_string(self.folder.join("log")).unwrap_or_default());
    }

    /// The database that is always there.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// Where a database of this server is.
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres:///{database}?user=reef&host={}", self.folder.display())
    }

    /// Runs statements as the server's owner in the database that is always there; what they answer, a row a line.
    pub fn query(&self, sql: &str) -> String {
        self.query_in("postgres", sql)
    }

    /// The same in another database.
    pub fn query_in(&self, database: &str, sql: &str) -> String {
        let mut psql = Command::new(self.binaries.join("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &self.url_of(database), "-c", sql]);
        let output = psql.output().expect("psql runs");
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// Starts the server and the shell that ends it with this process.
fn keep(binaries: &Path, folder: &Path) -> Child {
    let root = fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0);
    as_user(root, Path::new("/bin/sh"))
        .args(["-c", KEEPER, "keeper"])
        .args([&binaries.join("postgres"), &folder.join("data"), folder])
        .stdin(Stdio::piped())
        .spawn()
        .expect("started")
}

/// The folder of the binaries: where the path leads, or the newest version that Debian installs.
fn binaries() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut debian: Vec<PathBuf> =
        fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|e| e.path().join("bin")).collect();
    debian.sort();
    std::env::split_paths(&path)
        .chain(debian.into_iter().rev())
        .find(|folder| ["initdb", "postgres", "pg_isready", "psql"].iter().all(|name| folder.join(name).exists()))
}

fn as_user(root: bool, program: &Path) -> Command {
    if !root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", UNPRIVILEGED, "--regid", "nogroup", "--clear-groups"]).arg(program);
    command
}
