//! The real `reef serve` process, to be killed.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use reef::config::Config;

use super::{Caller, model, reef};

/// How long a killed server may take to be gone, and how often that is looked at.
const GONE_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A server in a process of its own; killed when dropped.
pub struct ServerProcess {
    child: Child,
    pub url: String,
}

impl ServerProcess {
    /// Starts `reef serve` on data with further arguments and waits for its address.
    pub fn start(data: &Path, arguments: &[&str]) -> Self {
        Self::start_with(data, arguments, &[])
    }

    /// The same in an environment with more variables.
    pub fn start_with(data: &Path, arguments: &[&str], environment: &[(&str, &Path)]) -> Self {
        let mut command = reef();
        command.envs(environment.iter().copied());
        command.arg("serve").arg("--data").arg(data).arg("--model").arg(model()).args(arguments);
        if !arguments.contains(&"--config") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        Self::spawn(command)
    }

    /// Starts `reef serve` as it is configured; the configuration is left in the data folder.
    pub fn start_on(config: &Config, environment: &[(&str, &Path)]) -> Self {
        let file = config.data.join("reef.yaml");
        // JSON is YAML.
        let text = serde_json::to_string(config).expect("a configuration");
        std::fs::write(&file, text).expect("written");
        let mut command = reef();
        command.envs(environment.iter().copied()).arg("serve").arg("--config").arg(file);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("reef starts");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let line = output
            .lines()
            .map_while(Result::ok)
            .find(|line| line.contains("serves on"))
            .expect("reef says where it serves");
        let url = line.rsplit(' ').next().expect("an address").to_owned();
        Self { child, url }
    }

    pub fn caller(&self, scenario: &str) -> Caller {
        Caller::new(&self.url, scenario)
    }

    /// Of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL: no chance to tidy up.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a status")
    }

    /// SIGTERM, as a service manager does.
    pub fn terminate(mut self) -> ExitStatus {
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
        self.child.wait().expect("gone")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Already gone after `kill`.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A program in its place that ran the server elsewhere is gone before it.
        let address = self.url.trim_start_matches("http://");
        let began = Instant::now();
        while TcpStream::connect(address).is_ok() && began.elapsed() < GONE_MAX {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
