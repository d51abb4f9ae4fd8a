//! `reef recipe sign|verify|publish|pull|list` against a real registry on a free port.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{reef, root, sao};

/// Time for the registry to listen.
const START_MAX: Duration = Duration::from_secs(60);

/// A registry that ends when dropped; its files are below the test's folder.
struct Registry {
    host: String,
    process: Child,
}

impl Registry {
    fn start(folder: &Path) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let host = format!("127.0.0.1:{port}");
        let data = folder.join("registry");
        let settings = folder.join("registry.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: {host}}}\n",
            data.display()
        );
        fs::write(&settings, text).unwrap();
        let quiet = || Stdio::null();
        let process = Command::new(program()).arg("serve").arg(&settings).stdout(quiet()).stderr(quiet()).spawn();
        let registry = Self { host, process: process.unwrap() };
        let started = Instant::now();
        while TcpStream::connect(&registry.host).is_err() {
            assert!(started.elapsed() < START_MAX, "docker-registry does not listen on {}", registry.host);
            std::thread::sleep(Duration::from_millis(50));
        }
        registry
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn program() -> PathBuf {
    let unpacked = root().join(".deps/docker-registry/usr/bin/docker-registry");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("docker-registry"));
    let found = std::iter::once(unpacked).chain(found).find(|file| file.is_file());
    found.expect("docker-registry is missing; run 'scripts/setup.sh --tests'")
}

/// `reef recipe …` in a folder.
fn recipe(folder: &Path, arguments: &[&str]) -> Output {
    reef().arg("recipe").args(arguments).current_dir(folder).env_remove("REEF_REGISTRY").output().unwrap()
}

fn shown(folder: &Path, arguments: &[&str]) -> Value {
    let output = recipe(folder, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(folder: &Path, arguments: &[&str], code: i32, told: &str) {
    let output = recipe(folder, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(stderr.contains(told) && !stderr.contains("panicked"), "{arguments:?}: '{told}' in: {stderr}");
}

/// A component like this one with an empty custom section: other bytes, the same recipe.
fn variant(component: &[u8]) -> Vec<u8> {
    [component, &[0, 2, 1, b'x']].concat()
}

#[test]
fn a_signature_counts_for_its_bytes_its_name_and_its_key() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let component = fs::read(sao()).unwrap();
    fs::write(folder.join("sao.wasm"), &component).unwrap();
    fs::write(folder.join("other.wasm"), variant(&component)).unwrap();
    let key = shown(folder, &["sign", "--new-key", "mine.key"])["key"].clone();
    shown(folder, &["sign", "--new-key", "theirs.key"]);
    refused(folder, &["sign", "--new-key", "mine.key"], 6, "mine.key");
    assert_eq!(shown(folder, &["sign", "sao.wasm", "--key", "mine.key"])["signed_by"], key);
    let verify = |path: &'static str, name: &'static str, trust: &'static str| {
        ["verify", path, "--name", name, "--signature", "sao.wasm.sig", "--trust", trust]
    };
    assert_eq!(shown(folder, &verify("sao.wasm", "sao", "mine.key.pub"))["signed_by"], key);
    refused(folder, &verify("other.wasm", "sao", "mine.key.pub"), 6, "not one of these bytes");
    refused(folder, &verify("sao.wasm", "sdar", "mine.key.pub"), 6, "under this name");
    refused(folder, &verify("sao.wasm", "sao", "theirs.key.pub"), 6, "not trusted");
    refused(folder, &verify("sao.wasm", "sao", "mine.key"), 6, "private key");
    fs::write(folder.join("text.wasm"), "hello").unwrap();
    refused(folder, &["sign", "text.wasm", "--key", "mine.key"], 6, "text.wasm");
}

#[test]
fn a_recipe_is_published_listed_pulled_and_pinned() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let registry = Registry::start(folder);
    let component = fs::read(sao()).unwrap();
    fs::write(folder.join("sao.wasm"), &component).unwrap();
    fs::write(folder.join("other.wasm"), variant(&component)).unwrap();
    shown(folder, &["sign", "--new-key", "mine.key"]);
    let bare = format!("{}/team/sao", registry.host);
    let published = shown(folder, &["publish", "sao.wasm", &bare, "--key", "mine.key"]);
    let reference = published["reference"].as_str().unwrap();
    let version = reference.rsplit(':').next().unwrap();
    let listed = recipe(folder, &["list", &bare]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout), format!("{version}\n"));

    let strict = ["--trust", "mine.key.pub", "--require-signature"];
    let pulled = shown(folder, &[&["pull", reference, "--out", "pulled.wasm"], &strict[..]].concat());
    assert_eq!(fs::read(folder.join("pulled.wasm")).unwrap(), component);
    assert!(pulled["signature"].as_str().unwrap().starts_with("signed with the trusted key"), "{pulled}");
    let short = format!("sao@{version}");
    let kept = shown(folder, &["pull", &short, "--registry", &format!("{}/team", registry.host)]);
    assert_eq!(fs::read(folder.join(kept["component"].as_str().unwrap())).unwrap(), component);

    refused(folder, &["publish", "other.wasm", &bare], 6, "--replace");
    shown(folder, &["publish", "other.wasm", &bare, "--replace"]);
    refused(folder, &["pull", reference, "--out", "moved.wasm"], 6, "--update");
    assert!(!folder.join("moved.wasm").exists(), "what is refused leaves nothing behind");
    let unsigned = [&["pull", reference, "--update", "--out", "moved.wasm"], &strict[..]].concat();
    refused(folder, &unsigned, 6, "not signed");
    shown(folder, &["pull", reference, "--update", "--out", "moved.wasm"]);
    assert_eq!(fs::read(folder.join("moved.wasm")).unwrap(), variant(&component));
    let old = shown(folder, &["pull", published["pinned"].as_str().unwrap(), "--out", "old.wasm"]);
    assert_eq!(old["sha256"], published["sha256"]);

    refused(folder, &["pull", &format!("{}/team/none:1.0.0", registry.host)], 6, "reef recipe list");
    refused(folder, &["publish", "sao.wasm", &format!("{}/team/other", registry.host)], 6, "names something else");
    refused(folder, &["pull", "https://r.example.com/sao:1"], 2, "leave out");
    refused(folder, &["pull", "127.0.0.1:1/sao:1"], 6, "check the address");
}
