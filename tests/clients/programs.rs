//! Agent programs as their registry has them, on a harness that one line installs: each does one task with a tool, its
//! model behind Reef is a script, and its session is graded by the wrapper. Whatever a program would ask of anybody but
//! Reef goes to a proxy that answers nothing and keeps it, so that the tests show that nothing is asked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::scripted::{self, TOKEN};
use super::{finish, node_modules};
use crate::support::Caller;

const TASK: &str = "Write hello.txt.";
/// What the rule says, and how the skill is described: a program shows both to its model.
const RULE: &str = "Sign every answer with the word coelacanth.";
const SKILL: &str = "Names of files, nudibranch style.";
/// Bytes of a request to the proxy that are kept.
const ASKED_BYTES_MAX: usize = 256;

/// A program of the packages that `scripts/setup.sh --tests` installs.
struct Program {
    adapter: &'static str,
    /// Another version than the adapter pins.
    version: Option<&'static str>,
    package: &'static str,
    /// The program, below the folder of all packages.
    binary: &'static str,
    /// Where its requests end.
    path: &'static str,
    /// What a person without a network sets.
    offline: &'static [(&'static str, &'static str)],
}

const PI: Program = Program {
    adapter: "pi",
    version: Some("1.6.0"),
    package: "@earendil-works/pi-coding-agent",
    binary: ".bin/pi",
    path: "/v1/chat/completions",
    offline: &[],
};

const CLAUDE: Program = Program {
    adapter: "claude",
    version: None,
    package: "@anthropic-ai/claude-code-linux-x64",
    binary: "@anthropic-ai/claude-code-linux-x64/claude",
    path: "/v1/messages",
    offline: &[],
};

const CODEX: Program = Program {
    adapter: "codex",
    version: None,
    package: "@openai/codex-linux-x64",
    binary: "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex",
    path: "/v1/responses",
    offline: &[],
};

const OPENCODE: Program = Program {
    adapter: "opencode",
    version: None,
    package: "opencode-linux-x64-baseline",
    binary: "opencode-linux-x64-baseline/bin/opencode",
    path: "/v1/chat/completions",
    // It would fetch the package that plugins import.
    offline: &[("npm_config_offline", "true")],
};

/// A proxy that refuses everything, and what was asked of it.
struct Elsewhere {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Elsewhere {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut bytes = [0; ASKED_BYTES_MAX];
                let count = stream.read(&mut bytes).await.unwrap_or_default();
                kept.lock().expect("asked").push(String::from_utf8_lossy(&bytes[..count]).into_owned());
                // Who asked may be gone.
                let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await;
            }
        });
        Self { url, asked }
    }
}

/// A person's home, with a program and a folder to work in.
struct Home {
    folder: tempfile::TempDir,
    program: &'static Program,
    url: String,
    elsewhere: Elsewhere,
}

impl Home {
    async fn new(program: &'static Program, url: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["work", "tmp"] {
            fs::create_dir(folder.path().join(name)).expect("made");
        }
        Self { folder, program, url: url.to_owned(), elsewhere: Elsewhere::start().await }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// A command in the folder to work in, with nothing of this process's environment.
    fn command(&self, program: &Path) -> Command {
        let modules = node_modules(self.program.package);
        let mut command = Command::new(program);
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", modules.join(".bin").display());
        command.current_dir(self.path("work")).env_clear().env("PATH", path).env("HOME", self.folder.path());
        command.env("TMPDIR", self.path("tmp")).env("REEF_TOKEN", TOKEN).env("REEF_URL", &self.url);
        command.env("REEF_HARNESS_PROGRAM", modules.join(self.program.binary));
        command.envs(self.program.offline.iter().copied());
        // Node.js heeds these only if told so.
        command.env("NODE_USE_ENV_PROXY", "1");
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            command.env(name, &self.elsewhere.url).env(name.to_lowercase(), &self.elsewhere.url);
        }
        command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
        command
    }

    /// The one-liner of the page.
    async fn install(&self) -> String {
        let Program { adapter, version, .. } = self.program;
        let version = version.map(|version| format!("&version={version}")).unwrap_or_default();
        let line = format!(
            "curl -fsS -H \"Authorization: Bearer $REEF_TOKEN\" -H 'x-reef-scenario: {adapter}' \
             \"$REEF_URL/reef/harness/install?adapter={adapter}{version}\" | sh 2>&1"
        );
        let mut command = self.command(Path::new("sh"));
        command.args(["-c", &line]);
        finish(command, "the one-liner").await
    }

    /// What the wrapper prints.
    async fn wrapper(&self, arguments: &[&str]) -> String {
        let mut command = self.command(&self.path(&format!(".local/bin/reef-{}", self.program.adapter)));
        command.args(arguments);
        finish(command, &format!("reef-{} {arguments:?}", self.program.adapter)).await
    }

    /// What is there beside what Reef and the task made.
    fn left_behind(&self) -> Vec<String> {
        let names = |folder: &Path| -> Vec<String> {
            let entries = fs::read_dir(folder).expect("a folder");
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
        };
        let mut left = names(self.folder.path());
        left.retain(|name| ![".local", ".reef", "tmp", "work"].contains(&name.as_str()));
        let (local, work) = (names(&self.path(".local")), names(&self.path("work")));
        left.extend(local.into_iter().filter(|name| name != "bin"));
        left.extend(work.into_iter().filter(|name| name != scripted::FILE));
        left
    }
}

/// Releases a harness with a rule and a skill.
async fn release_harness(caller: &Caller) -> String {
    caller.create(json!({})).await;
    let skill = json!({ "description": SKILL, "text": "One word, in lower case.\n" });
    let body = json!({ "reason": "asked for", "mutations": [
        { "op": "put", "kind": "rules", "id": "style", "config": { "text": format!("{RULE}\n") } },
        { "op": "put", "kind": "skill", "id": "names", "config": skill },
    ] });
    let proposal = caller.post("/reef/harness/proposals", body).await.ok().body;
    assert_eq!(proposal["admitted"], true, "{proposal}");
    let promoted = caller.post(&caller.path("/promote"), json!({ "release_id": proposal["release_id"] })).await.ok();
    promoted.body["release_id"].as_str().expect("an id").to_owned()
}

/// The exchanges of a session, oldest first, without those beside the task, such as one that finds a title.
async fn exchanges(caller: &Caller, session: &str) -> Vec<Value> {
    let mut body = caller.get(&caller.path("/records")).await.ok().body;
    let records = body["records"].as_array_mut().expect("records").iter_mut().map(|entry| entry["record"].take());
    records.filter(|record| record["session"] == session && record["tags"].get("kind").is_none()).collect()
}

/// Can a cage be built here? Codex CLI runs its commands in one.
async fn namespaces() -> bool {
    let mut command = tokio::process::Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "true"]);
    command.output().await.is_ok_and(|output| output.status.success())
}

async fn the_program_does_a_task_that_is_graded(program: &'static Program) {
    let (host, _) = scripted::host().await;
    let caller = host.caller(program.adapter).with_token(TOKEN);
    let release = release_harness(&caller).await;
    let home = Home::new(program, &host.url).await;

    let installed = home.install().await;
    assert!(installed.contains("one inference answered; receipt "), "{installed}");
    assert_eq!(home.wrapper(&["version"]).await.trim(), release);

    let uncaged = ["run", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", TASK];
    let caged = program.adapter != "codex" || namespaces().await;
    let said = home.wrapper(if caged { &["task", TASK] } else { &uncaged }).await;
    assert!(said.contains(&scripted::SAID.concat()), "{said}");
    let written = fs::read_to_string(home.path("work").join(scripted::FILE));
    assert_eq!(written.expect("the tool has written the file"), scripted::CONTENT, "{said}");

    let session = fs::read_to_string(home.path(&format!(".reef/harness/{}/session", program.adapter)));
    let session = session.expect("a session").trim().to_owned();
    let records = exchanges(&caller, &session).await;
    assert_eq!(records.len(), 2, "{records:?}");
    for record in &records {
        assert_eq!((&record["path"], &record["status"]), (&json!(program.path), &json!("complete")), "{record}");
        assert_eq!(record["tags"]["client"], program.adapter, "{record}");
        let request = record["request"].to_string();
        assert!(request.contains(RULE) && request.contains(SKILL), "{request}");
    }

    let report = home.wrapper(&["report", "--score", "1", "--feedback", "signed as asked"]).await;
    let kept = caller.get(&caller.path(&format!("/records/{}", report.trim()))).await.ok().body;
    assert_eq!(kept["request_type"], "report", "{kept}");
    let receipts: Vec<&Value> = records.iter().map(|record| &record["id"]).collect();
    assert_eq!(kept["record"]["references"], json!(receipts), "{kept}");
    assert_eq!((&kept["record"]["score"], &kept["record"]["feedback"]), (&json!(1.0), &json!("signed as asked")));

    assert_eq!(*home.elsewhere.asked.lock().expect("asked"), Vec::<String>::new(), "nobody but Reef is asked");
    assert_eq!(home.left_behind(), Vec::<String>::new(), "nothing is written beside the harness and the task");
    home.wrapper(&["uninstall", "--purge"]).await;
    assert!(!home.path(&format!(".reef/harness/{}", program.adapter)).exists());
    host.stop().await;
}

#[tokio::test]
async fn pi_does_a_task_on_the_installed_harness_and_is_graded() {
    the_program_does_a_task_that_is_graded(&PI).await;
}

#[tokio::test]
async fn claude_code_does_a_task_on_the_installed_harness_and_is_graded() {
    the_program_does_a_task_that_is_graded(&CLAUDE).await;
}

#[tokio::test]
async fn codex_does_a_task_on_the_installed_harness_and_is_graded() {
    the_program_does_a_task_that_is_graded(&CODEX).await;
}

#[tokio::test]
async fn opencode_does_a_task_on_the_installed_harness_and_is_graded() {
    the_program_does_a_task_that_is_graded(&OPENCODE).await;
}
