//! The install script and the wrapper, run under dash and bash into a home of their own, against a server of the test
//! and a program that writes down how it was started.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::adapter::Adapters;
use crate::render::render;
use crate::samples;
use crate::tree::Tree;

#[path = "test_server.rs"]
mod test_server;
use test_server::{Answer, Server};

const SHELLS: [&str; 2] = ["dash", "bash"];
const TOKEN: &str = "reef-secret.0123456789";
const RELEASE: &str = "0123456789abcdef0123456789abcdef01234567";
const NEXT: &str = "89abcdef0123456789abcdef0123456789abcdef";

/// A home, a program and a server for one agent program.
struct Client {
    shell: &'static str,
    adapter: &'static str,
    folder: tempfile::TempDir,
    server: Server,
}

fn release(id: &str, requires: Vec<Requirement>) -> InstalledRelease {
    let release_id = ReleaseId::parse(id).expect("an id");
    InstalledRelease { release_id, content_id: ContentId::parse("0".repeat(64)).expect("an id"), step: 7, requires }
}

fn script(adapter: &str, url: &str, tree: &Tree, release: &InstalledRelease) -> (String, Rendering) {
    let adapters = Adapters::embedded().expect("adapters");
    let adapter = adapters.get(adapter).expect("an adapter");
    let binding = Binding { url: url.to_owned(), release: release.release_id.to_string(), ..samples::binding() };
    let rendering = render(tree, adapter, &binding).expect("renders");
    (install_script(adapter, release, &rendering, &binding), rendering)
}

impl Client {
    fn new(shell: &'static str, adapter: &'static str) -> Self {
        let client = Self { shell, adapter, folder: tempfile::tempdir().expect("a folder"), server: Server::start() };
        let program = client.path("program");
        let version =
            Adapters::embedded().expect("adapters").get(adapter).expect("there").install.version().to_string();
        let text = format!(
            "#!/bin/sh\n[ \"$1\" != --version ] || {{ echo 'Agent v{version} (test)'; exit 0; }}\n\
             for a in \"$@\"; do printf '%s\\n' \"<$a>\"; done >\"$HOME/arguments\"\nenv >\"$HOME/environment\"\n"
        );
        fs::write(&program, text).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
        client.server.answer("POST /v1/", Answer::ok("{}").with("x-reef-agent-record-id", "receipt-1"));
        client.server.answer("HEAD /reef/harness", Answer::ok("").with("x-reef-release-id", RELEASE));
        client.server.answer("GET /healthz", Answer::ok("ok"));
        client
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn root(&self) -> String {
        format!(".reef/harness/{}", self.adapter)
    }

    fn shell(&self, file: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.shell);
        command.arg(file).args(arguments).current_dir(self.folder.path()).env_clear();
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.folder.path());
        command.env("REEF_TOKEN", TOKEN).env("REEF_HARNESS_PROGRAM", self.path("program")).env("REEF_POLL_S", "0");
        command.env("ANTHROPIC_API_KEY", "the person's own");
        command
    }

    fn install(&self, script: &str) -> Output {
        let file = self.path("install.sh");
        fs::write(&file, script).expect("written");
        self.shell(&file, &[]).output().expect("the shell runs")
    }

    fn installed(shell: &'static str, adapter: &'static str, tree: &Tree) -> (Self, Rendering) {
        let client = Self::new(shell, adapter);
        let (script, rendering) = script(adapter, &client.server.url, tree, &release(RELEASE, Vec::new()));
        assert!(!script.contains(TOKEN));
        ok(&client.install(&script));
        (client, rendering)
    }

    fn wrapper(&self, arguments: &[&str]) -> Output {
        let file = self.path(&format!(".local/bin/reef-{}", self.adapter));
        self.shell(&file, arguments).output().expect("the shell runs")
    }
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{:?}: {}", output.status, error(output));
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn refused(output: &Output, code: i32, words: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", error(output));
    assert!(error(output).contains(words), "{}", error(output));
}

#[test]
fn install_writes_the_files_and_runs_one_inference() {
    for shell in SHELLS {
        let client = Client::new(shell, "pi");
        let (script, rendering) =
            script("pi", &client.server.url, &samples::every_kind(), &release(RELEASE, Vec::new()));
        let output = client.install(&script);
        ok(&output);
        for words in ["receipt receipt-1", "left out: subagent/helper: pi has no subagents", "reef-pi run"] {
            assert!(error(&output).contains(words), "{}", error(&output));
        }
        for file in rendering.files() {
            let folder = if file.client_writes { "restore" } else { "home" };
            assert_eq!(client.read(&format!("{}/{folder}/{}", client.root(), file.path)), file.text);
        }
        let seen = client.server.seen();
        assert_eq!(seen.len(), 1);
        assert!(
            seen[0].head.contains(&format!("Authorization: Bearer {TOKEN}"))
                && seen[0].head.contains("x-reef-capture: off"),
            "{}",
            seen[0].head
        );
        assert_eq!(seen[0].json()["model"], samples::binding().model);
        let everything = Command::new("grep")
            .args(["-r", TOKEN, "."])
            .current_dir(client.folder.path())
            .output()
            .expect("grep runs");
        assert!(
            !everything.status.success(),
            "the token is written nowhere: {}",
            String::from_utf8_lossy(&everything.stdout)
        );
    }
}

#[test]
fn half_a_script_does_nothing() {
    let client = Client::new("dash", "pi");
    let (script, _) = script("pi", &client.server.url, &samples::every_kind(), &release(RELEASE, Vec::new()));
    let ends = [script.len() - 3, script.len() - 5, script.len() - 8, script.len() / 2];
    for end in ends {
        client.install(script.get(..end).expect("ASCII there"));
        assert!(!client.path(".reef").exists() && !client.path(".local").exists(), "{end}");
    }
}

#[test]
fn run_and_task_start_the_program_with_its_home_its_key_and_a_session() {
    for shell in SHELLS {
        let (client, _) = Client::installed(shell, "claude", &samples::every_kind());
        ok(&client.wrapper(&["task", "it's \"$HOME\"; `id`"]));
        let home = client.path(&format!("{}/home", client.root())).display().to_string();
        let expected = format!(
            "<--mcp-config>\n<{home}/mcp.json>\n<--append-system-prompt-file>\n<{home}/system-prompt.md>\n\
             <--permission-mode>\n<acceptEdits>\n<-p>\n<it's \"$HOME\"; `id`>\n"
        );
        assert_eq!(client.read("arguments"), expected);
        let environment = client.read("environment");
        let session = client.read(&format!("{}/session", client.root()));
        for line in [
            format!("CLAUDE_CONFIG_DIR={home}"),
            format!("ANTHROPIC_BASE_URL={}", client.server.url),
            format!("ANTHROPIC_AUTH_TOKEN={TOKEN}"),
            format!("x-reef-tag-session: {}", session.trim()),
        ] {
            assert!(environment.lines().any(|own| own == line), "{line} in {environment}");
        }
        assert!(!environment.contains("the person's own") && !environment.contains("LC_ALL"), "{environment}");
        assert!(client.path(&format!("{}/home/settings.json", client.root())).exists(), "restored before the run");
        ok(&client.wrapper(&["run", "--resume", "a b"]));
        assert!(client.read("arguments").ends_with("<--resume>\n<a b>\n"));
    }
}

#[test]
fn a_tampered_tree_is_refused_and_an_update_repairs_it() {
    for shell in SHELLS {
        let (client, rendering) = Client::installed(shell, "pi", &samples::every_kind());
        let rules = client.path(&format!("{}/home/agent/AGENTS.md", client.root()));
        let update = script("pi", &client.server.url, &samples::every_kind(), &release(RELEASE, Vec::new())).0;
        client.server.answer("GET /reef/harness/install?adapter=pi&version=0.84.2", Answer::ok(&update));
        fs::write(&rules, "Obey me.").expect("written");
        refused(&client.wrapper(&["run"]), 3, "AGENTS.md is not as it was installed");
        assert!(!client.path("arguments").exists(), "nothing was started");
        ok(&client.wrapper(&["update"]));
        ok(&client.wrapper(&["run"]));
        fs::remove_file(&rules).expect("removed");
        std::os::unix::fs::symlink("/etc/passwd", &rules).expect("a link");
        refused(&client.wrapper(&["run"]), 3, "is a link; remove it");
        fs::remove_file(&rules).expect("removed");
        refused(&client.wrapper(&["run"]), 3, "AGENTS.md is not as it was installed");
        let own = client.path(&format!("{}/home/agent/settings.json", client.root()));
        ok(&client.wrapper(&["update"]));
        fs::write(&own, "{\"defaultProvider\":\"openai\"}").expect("the program writes its settings");
        ok(&client.wrapper(&["run"]));
        let settings = rendering.files().iter().find(|file| file.client_writes).expect("settings");
        assert_eq!(
            fs::read_to_string(&own).expect("read"),
            settings.text,
            "each run starts from the release's settings"
        );
    }
}

#[test]
fn a_newer_release_is_told_and_installed_and_old_files_go() {
    for shell in SHELLS {
        let (client, _) = Client::installed(shell, "pi", &samples::every_kind());
        client.server.answer("HEAD /reef/harness", Answer::ok("").with("x-reef-release-id", NEXT));
        let output = client.wrapper(&["run"]);
        ok(&output);
        assert!(error(&output).contains(&format!("release {NEXT} is served")), "{}", error(&output));
        let next = script("pi", &client.server.url, &samples::texts_only(), &release(NEXT, Vec::new())).0;
        client.server.answer(
            &format!("GET /reef/harness/install?adapter=pi&version=0.84.2&release_id={NEXT}"),
            Answer::ok(&next),
        );
        let state = client.path(&format!("{}/home/agent/sessions", client.root()));
        fs::create_dir_all(&state).expect("state of the program");
        let skill = client.path(&format!("{}/home/agent/skills/ropes", client.root()));
        assert!(skill.exists());
        let bare = script("pi", &client.server.url, &Tree::default(), &release(NEXT, Vec::new())).0;
        ok(&client.wrapper(&["update", "--release", NEXT]));
        assert_eq!(ok(&client.wrapper(&["version"])).trim(), NEXT);
        ok(&client.install(&bare));
        assert!(!skill.exists() && state.exists(), "files of the older release go, the program's stay");
        refused(&client.wrapper(&["update", "--release", "../x"]), 2, "needs the id");
    }
}

#[test]
fn reports_and_instructions_reach_the_server_as_they_were_typed() {
    let hostile = "it's \"quoted\" \\ 100% %s\n\ttab äß字 \u{7f}\u{1}`id` $HOME";
    for shell in SHELLS {
        let (client, _) = Client::installed(shell, "pi", &samples::texts_only());
        client.server.answer("POST /reef/report", Answer::ok("{\"agent_record_id\": \"rec-1\"}"));
        client.server.answer(
            "POST /reef/train",
            Answer::ok("{\"note\":\"\\\"agent_record_id\\\":\\\"no\\\"\",\"agent_record_id\":\"rec-2\"}"),
        );
        client.server.answer(
            "GET /reef/harness/requests/rec-2/progress",
            Answer::ok(&format!("{{\"state\":\"released\",\"release_id\":\"{NEXT}\"}}")),
        );
        refused(&client.wrapper(&["report", "--score", "1"]), 2, "no run to report on");
        ok(&client.wrapper(&["run"]));
        let session = client.read(&format!("{}/session", client.root()));
        let last = || client.server.seen().pop().expect("a request").json();
        assert_eq!(ok(&client.wrapper(&["report", "--score", "-0.5", "--feedback", hostile])), "rec-1\n");
        assert_eq!(last(), json!({"score": -0.5, "feedback": hostile, "session": session.trim()}));
        ok(&client.wrapper(&["report", "--score", "1", "--receipt", "r-1"]));
        assert_eq!(last(), json!({"score": 1, "references": ["r-1"]}));
        for bad in ["", "1,\"a\":2", "NaN", "1\n2", "01", "+1"] {
            refused(&client.wrapper(&["report", "--score", bad]), 2, "--score with a number");
        }
        let output = client.wrapper(&["evolve", hostile, "--wait"]);
        assert_eq!(ok(&output), "rec-2\n");
        assert!(error(&output).contains(&format!("released as {NEXT}")), "{}", error(&output));
        let sent =
            client.server.seen().into_iter().rev().find(|request| request.head.contains("/reef/train")).expect("sent");
        assert_eq!(sent.json(), json!({"text": hostile, "release_id": RELEASE, "session": session.trim()}));
        assert!(sent.head.contains("x-reef-scenario: coding"));
        assert!(ok(&client.wrapper(&["page"])).ends_with("/reef/harness/releases/7/page\n"));
        client.server.answer("POST /reef/report", Answer::ok("{\"error\":\"\u{1b}[31mno\"}").code(400));
        let output = client.wrapper(&["report", "--score", "1"]);
        refused(&output, 5, "answered 400");
        assert!(!error(&output).contains('\u{1b}'));
    }
}

#[test]
fn what_a_release_needs_is_asked_for_before_a_run() {
    for shell in SHELLS {
        let client = Client::new(shell, "pi");
        let needs = [(RequirementKind::Env, "FILES_TOKEN"), (RequirementKind::Permission, "read-mail")];
        let requires = needs.map(|(kind, name)| Requirement::new(kind, name, "it's for $(id)").expect("a requirement"));
        let (script, _) =
            script("pi", &client.server.url, &samples::texts_only(), &release(RELEASE, requires.to_vec()));
        let output = client.install(&script);
        ok(&output);
        assert!(error(&output).contains("needs the env FILES_TOKEN (it's for $(id))"), "{}", error(&output));
        refused(&client.wrapper(&["run"]), 4, "needs the env FILES_TOKEN");
        refused(&client.wrapper(&["setup"]), 4, "");
        let with = |arguments: &[&str]| {
            let file = client.path(".local/bin/reef-pi");
            client.shell(&file, arguments).env("FILES_TOKEN", "x").output().expect("the shell runs")
        };
        refused(&with(&["run"]), 4, "needs the permission read-mail");
        assert!(ok(&with(&["setup", "--yes"])).contains("allowed  read-mail"));
        ok(&with(&["run"]));
        assert!(ok(&with(&["doctor"])).lines().all(|line| line.starts_with("ok ")));
        refused(&client.wrapper(&["doctor"]), 1, "");
    }
    for (kind, name) in
        [(RequirementKind::Env, "A;id"), (RequirementKind::Service, "file:///x"), (RequirementKind::Permission, "a b")]
    {
        assert!(Requirement::new(kind, name, "").is_err(), "{name}");
    }
}

#[test]
fn wrong_versions_links_and_foreign_files_stop_an_install() {
    for shell in SHELLS {
        let client = Client::new(shell, "pi");
        let (script, _) = script("pi", &client.server.url, &samples::texts_only(), &release(RELEASE, Vec::new()));
        fs::write(client.path("program"), "#!/bin/sh\necho 0.58.0\n").expect("written");
        refused(&client.install(&script), 1, "is version '0.58.0', and these files are for 0.84.2");
        assert!(
            !client.path(&client.root()).join("manifest").exists()
                && !client.path(&client.root()).join("lock").exists()
        );

        let client = Client::new(shell, "pi");
        fs::create_dir_all(client.path(&client.root())).expect("a folder");
        std::os::unix::fs::symlink("/tmp", client.path(&client.root()).join("home")).expect("a link");
        refused(&client.install(&script), 3, "is a link");

        let client = Client::new(shell, "pi");
        fs::create_dir_all(client.path(".local/bin")).expect("a folder");
        fs::write(client.path(".local/bin/reef-pi"), "my own").expect("written");
        refused(&client.install(&script), 1, "is not Reef's");
        let changed = script.replace("Write short sentences.", "Write long sentences.");
        refused(&client.install(&changed), 1, "its sha256 differs");
    }
}

#[test]
fn uninstall_keeps_what_the_program_wrote_and_gives_back_what_was_there() {
    for shell in SHELLS {
        let client = Client::new(shell, "pi");
        let rules = client.path(&format!("{}/home/agent/AGENTS.md", client.root()));
        fs::create_dir_all(rules.parent().expect("a folder")).expect("made");
        fs::write(&rules, "my own").expect("written");
        let (script, _) = script("pi", &client.server.url, &samples::every_kind(), &release(RELEASE, Vec::new()));
        ok(&client.install(&script));
        fs::write(client.path(&format!("{}/home/agent/auth.json", client.root())), "{}").expect("written");
        ok(&client.wrapper(&["uninstall"]));
        let left = Command::new("find")
            .args([".reef", ".local", "-type", "f"])
            .current_dir(client.folder.path())
            .output()
            .expect("find runs");
        let mut left: Vec<String> = String::from_utf8_lossy(&left.stdout).lines().map(str::to_owned).collect();
        left.sort();
        assert_eq!(left, [".reef/harness/pi/home/agent/AGENTS.md", ".reef/harness/pi/home/agent/auth.json"]);
        assert_eq!(fs::read_to_string(&rules).expect("read"), "my own");
        ok(&client.install(&script));
        ok(&client.wrapper(&["uninstall", "--purge"]));
        assert!(!client.path(&client.root()).exists());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn any_tree_is_on_the_disk_as_it_was_rendered(tree in samples::trees(), model in "[!-~äß字]{1,30}") {
        for shell in SHELLS {
            for name in ["pi", "claude", "aider"] {
                let client = Client::new(shell, name);
                let adapters = Adapters::embedded().expect("adapters");
                let adapter = adapters.get(name).expect("there");
                let binding = Binding { url: client.server.url.clone(), model: model.clone(), ..samples::binding() };
                let Ok(rendering) = render(&tree, adapter, &binding) else { continue };
                ok(&client.install(&install_script(adapter, &release(RELEASE, Vec::new()), &rendering, &binding)));
                let found: BTreeMap<String, String> = rendering.files().iter().map(|file| {
                    let folder = if file.client_writes { "restore" } else { "home" };
                    (file.path.clone(), client.read(&format!("{}/{folder}/{}", client.root(), file.path)))
                }).collect();
                let expected: BTreeMap<String, String> = rendering.files().iter().map(|file| (file.path.clone(), file.text.clone())).collect();
                prop_assert_eq!(found, expected);
                prop_assert_eq!(&client.server.seen()[0].json()["model"], &Value::String(model.clone()));
                ok(&client.wrapper(&["task", &model]));
                let named = client.read("arguments").contains(&format!("<{model}>"));
                prop_assert!(named, "{}", model);
            }
        }
    }
}
