//! The registry server of the OCI distribution project, started for one test on a free port with a folder of its own.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// Time for the server to listen.
const START_MAX: Duration = Duration::from_secs(60);
/// Ports that are tried: another process may take one between choosing and listening.
const PORTS_MAX: usize = 5;

/// A running server; it ends, and its folder goes, when dropped.
#[derive(Debug)]
pub struct Server {
    /// `127.0.0.1:port`
    pub host: String,
    process: Child,
    folder: TempDir,
}

/// Certificate and private key, in PEM.
#[derive(Debug)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Server {
    pub async fn start(tls: Option<&Pair>) -> Self {
        for _ in 0..PORTS_MAX {
            if let Some(server) = Self::try_start(tls).await {
                return server;
            }
        }
        panic!(
            "docker-registry does not start on any of {PORTS_MAX} free ports; run `docker-registry serve` to see why"
        );
    }

    async fn try_start(tls: Option<&Pair>) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let port =
            TcpListener::bind(("127.0.0.1", 0)).and_then(|bound| bound.local_addr()).expect("a free port").port();
        let tls = tls.map_or_else(String::new, |pair| write_pair(folder.path(), pair));
        let settings = folder.path().join("config.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
             http:\n  addr: 127.0.0.1:{port}\n{tls}",
            folder.path().join("data").display()
        );
        fs::write(&settings, text).expect("written");
        let process = Command::new(binary())
            .args(["serve".as_ref(), settings.as_os_str()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry runs");
        let mut server = Self { host: format!("127.0.0.1:{port}"), process, folder };
        let started = std::time::Instant::now();
        while started.elapsed() < START_MAX {
            if server.process.try_wait().expect("its state is known").is_some() {
                return None;
            }
            if tokio::net::TcpStream::connect(&server.host).await.is_ok() {
                return Some(server);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        None
    }

    /// The folder where its files lie.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn write_pair(folder: &Path, pair: &Pair) -> String {
    let (certificate, key) = (folder.join("server.crt"), folder.join("server.key"));
    fs::write(&certificate, &pair.certificate).expect("written");
    fs::write(&key, &pair.key).expect("written");
    format!("  tls: {{certificate: {}, key: {}}}\n", certificate.display(), key.display())
}

/// The program: unpacked by `scripts/setup.sh --tests`, or on the PATH.
fn binary() -> PathBuf {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.deps/docker-registry/usr/bin/docker-registry");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("docker-registry"));
    std::iter::once(unpacked).chain(on_path).find(|file| file.is_file()).unwrap_or_else(|| {
        panic!(
            "docker-registry is not installed, and this test needs a real registry; run `scripts/setup.sh --tests` \
             (or install it: on Debian apt-get install docker-registry)"
        )
    })
}
