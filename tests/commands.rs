//! The `reef` command against bad input: one sentence that names the thing and the remedy, and an exit
//! code that means something.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::json;

use crate::support::{ServerProcess, faults, model, reef, root, sao, target};

fn refused(arguments: &[&str], code: i32, told: &[&str]) {
    let output = reef().args(arguments).output().expect("reef runs");
    refused_output(&output, code, told);
}

fn refused_output(output: &Output, code: i32, told: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for part in told {
        assert!(stderr.contains(part), "'{part}' in: {stderr}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert!(!stderr.contains('\u{1b}'), "colours are for terminals: {stderr}");
}

fn serve<'a>(data: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&["serve", "--listen", "127.0.0.1:0", "--data", data], rest].concat()
}

#[test]
fn a_missing_damaged_or_foreign_model_is_exit_code_3() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    refused(&serve(data, &["--model", "/nowhere/model.gguf"]), 3, &["/nowhere/model.gguf", "--model"]);
    let broken = folder.path().join("broken.gguf");
    std::fs::write(&broken, &std::fs::read(model()).unwrap()[..100_000]).unwrap();
    refused(&serve(data, &["--model", broken.to_str().unwrap()]), 3, &["broken.gguf", "damaged"]);
    std::fs::write(&broken, b"not a model").unwrap();
    refused(&serve(data, &["--model", broken.to_str().unwrap()]), 3, &["broken.gguf"]);
    let foreign = folder.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("config.json"), r#"{"architectures":["MambaForCausalLM"],"model_type":"mamba"}"#)
        .unwrap();
    refused(&serve(data, &["--model", foreign.to_str().unwrap()]), 3, &["foreign", "not supported"]);
}

#[test]
fn a_file_that_is_no_component_is_exit_code_6() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let text = folder.path().join("text.wasm");
    std::fs::write(&text, "hello").unwrap();
    refused(&serve(data, &["--recipe", text.to_str().unwrap()]), 6, &["text.wasm"]);
    refused(&serve(data, &["--recipe", "/nowhere.wasm"]), 6, &["/nowhere.wasm"]);
    let cut = folder.path().join("cut.wasm");
    std::fs::write(&cut, &std::fs::read(sao()).unwrap()[..5_000]).unwrap();
    refused(&["recipe", "inspect", cut.to_str().unwrap()], 6, &["cut.wasm"]);
}

#[test]
fn only_plain_files_are_read_as_components() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.wasm");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in ["/dev/zero", pipe.to_str().unwrap(), folder.path().to_str().unwrap()] {
        for command in ["inspect", "check", "test"] {
            refused(&["recipe", command, path], 6, &[path, "plain file"]);
        }
        refused(&["recipe", "use", path, "--scenario", "s"], 6, &[path, "plain file"]);
        refused(&["recipe", "sign", path, "--key", "mine.key"], 6, &[path, "plain file"]);
    }
    let output = reef().args(["recipe", "check", "/nowhere.wasm"]).output().unwrap();
    refused_output(&output, 6, &["/nowhere.wasm", "check the path"]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("make recipes"));
}

/// A configuration with time for everything, each component compiled once, and these lines, the first of `sandbox`.
fn patient(folder: &Path, lines: &str) -> PathBuf {
    let walls: String = ["select", "propose", "evaluate", "ingest", "transform"]
        .map(|call| format!("  wall_{call}_ms: 600000\n"))
        .concat();
    let compiled = folder.join("compiled");
    let text = format!("sandbox:\n  compile_ms_max: 3600000\n{walls}  cache_dir: {}\n{lines}", compiled.display());
    let path = folder.join("reef.yaml");
    std::fs::write(&path, text).unwrap();
    path
}

fn tried(command: &str, config: &Path, settings: &[&str]) -> Output {
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    reef().args(["recipe", command]).arg(faults()).arg("--config").arg(config).args(settings).output().unwrap()
}

#[test]
fn a_recipe_that_never_works_passes_neither_check_nor_test() {
    let folder = tempfile::tempdir().unwrap();
    let grants = "recipes:\n  grants: [experience, training, models, state, config, log, metrics, requests]\n";
    let config = patient(folder.path(), grants);
    for settings in [&["fault=trap"][..], &["fault=fail", "where=select"], &["fault=hog", "where=select"]] {
        refused_output(&tried("check", &config, settings), 6, &["the check failed"]);
        refused_output(&tried("test", &config, settings), 6, &["recipe: "]);
    }
    let fine = tried("check", &config, &[]);
    let shown = String::from_utf8_lossy(&fine.stdout);
    assert_eq!(fine.status.code(), Some(0), "{shown}");
    for export in ["migrate", "ingest", "transform-request"] {
        assert!(shown.contains(&format!("determinism of {export} ")), "{shown}");
    }
}

#[test]
fn a_recipe_is_tried_under_the_limits_of_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let config = patient(folder.path(), "  memory_bytes_max: 33554432\n");
    let output = tried("check", &config, &["fault=hog", "where=select"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    for part in ["33554432 bytes of memory", "raise sandbox.memory_bytes_max"] {
        assert!(shown.contains(part), "'{part}' in {shown}");
    }
    let config = patient(folder.path(), "  memory_bytes_max: 1048576\n");
    refused_output(&tried("check", &config, &[]), 6, &["sandbox.memory_bytes_max"]);
}

#[test]
fn numbers_that_never_end_are_exit_code_2() {
    for (flag, value) in [("--steps", "4000000000"), ("--steps", "0"), ("--samples", "100000000000")] {
        refused(&["recipe", "test", "my.wasm", flag, value], 2, &[flag, value]);
    }
}

#[test]
fn names_and_addresses_are_checked_before_anything_is_sent() {
    let release = "a".repeat(40);
    for command in [
        &["release", "list", "../s1"][..],
        &["release", "show", "../s1", &release],
        &["release", "show", "s1", "nope"],
        &["release", "rollback", "s1", "../x"],
        &["step", "show", "a/b", "1"],
        &["recipe", "rollback", "--scenario", "../s1"],
        &["recipe", "use", "my.wasm", "--scenario", "../s1"],
    ] {
        refused(&[command, &["--url", "http://127.0.0.1:9"]].concat(), 2, &["is not valid"]);
    }
    refused(&["status", "--url", "notaurl"], 2, &["notaurl", "http://host:port"]);
}

#[tokio::test]
async fn the_exit_code_of_a_refusal_says_whose_doing_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.wasm");
    std::fs::write(&text, "hello").unwrap();
    let server = ServerProcess::start(&folder.path().join("data"), &["--recipe", sao().to_str().unwrap()]);
    server.caller("s1").create(json!({})).await;
    let address = server.url.clone();
    let url = ["--url", &address];
    let to_use = ["recipe", "use", text.to_str().unwrap(), "--scenario", "s1"];
    refused(&[&to_use[..], &url].concat(), 6, &["the server answered 422", "not a WASM component"]);
    let release = "a".repeat(40);
    refused(&[&["release", "show", "s1", &release][..], &url].concat(), 2, &["the server answered 404"]);
    drop(server);
    refused(&[&["release", "list", "s1"][..], &url].concat(), 1, &["does not answer", "reef serve"]);
}

#[test]
fn a_capability_that_is_not_granted_is_named_before_the_guest_runs() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("reef.yaml");
    std::fs::write(&config, "listen: 127.0.0.1:0\nrecipes:\n  grants: [experience, config, log]\n").unwrap();
    let arguments = serve(folder.path().to_str().unwrap(), &["--config", config.to_str().unwrap(), "--recipe"]);
    refused(&[arguments, vec![faults().to_str().unwrap()]].concat(), 6, &["training"]);
}

#[test]
fn a_wrong_configuration_is_exit_code_2_with_the_nearest_key() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("reef.yaml");
    for (text, told) in [
        ("engine:\n  bach_max: 3\n", "batch_max"),
        ("listen: nowhere\n", "listen"),
        ("training:\n  share: 7\n", "training.share"),
        (": : :", "YAML"),
        ("recipes:\n  config:\n    batchsize: 3\n", "batch_size"),
    ] {
        std::fs::write(&config, text).unwrap();
        let arguments = serve(folder.path().to_str().unwrap(), &["--config", config.to_str().unwrap(), "--recipe"]);
        refused(&[arguments, vec![sao().to_str().unwrap()]].concat(), 2, &[told]);
    }
    refused(&["serve", "--config", "/nowhere.yaml"], 2, &["/nowhere.yaml"]);
    refused(&["serve", "--no-such-flag"], 2, &["--no-such-flag"]);
}

#[test]
fn a_port_in_use_is_exit_code_4() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    refused(&["serve", "--listen", &address, "--data", folder.path().to_str().unwrap()], 4, &[&address, "--listen"]);
}

#[test]
fn a_store_that_cannot_be_used_is_exit_code_5() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("reef.db"), "this is no database, and long enough to be read as a header")
        .unwrap();
    refused(&serve(folder.path().to_str().unwrap(), &[]), 5, &["reef.db"]);
    let other = tempfile::tempdir().unwrap();
    std::fs::create_dir(other.path().join("releases.git")).unwrap();
    std::fs::write(other.path().join("releases.git/notes.txt"), "mine").unwrap();
    refused(&serve(other.path().to_str().unwrap(), &[]), 5, &["releases.git"]);
}

#[tokio::test]
async fn a_data_folder_in_use_is_exit_code_5() {
    let folder = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(folder.path(), &[]);
    refused(&serve(folder.path().to_str().unwrap(), &[]), 5, &["another server", "--data"]);
    drop(server);
}

#[test]
fn a_full_disk_is_told_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("small");
    std::fs::create_dir(&data).unwrap();
    // A private mount of 64 KiB: too small for the database, gone with the process.
    let script = "mount -t tmpfs -o size=64k tmpfs \"$1\" || exit 99; shift; exec \"$@\"";
    let binary = reef().get_program().to_os_string();
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(&data)
        .arg(binary)
        .args(serve(data.to_str().unwrap(), &[]))
        .current_dir(root())
        .output();
    match output {
        Ok(output) if output.status.code() != Some(99) && output.status.code() != Some(1) => {
            refused_output(&output, 5, &["small", "full"])
        }
        _ => eprintln!("this system forbids private mounts; the store's own tests cover a full disk"),
    }
}

#[test]
fn a_replay_or_backtest_of_what_is_not_there_is_told_and_makes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let sao = sao();
    let backtest = ["recipe", "backtest", sao.to_str().unwrap()];
    for command in [&["replay", "1"][..], &backtest[..]] {
        refused(&[command, &["--scenario", "s", "--data", data]].concat(), 5, &["reef.db", "--data"]);
        refused(&[command, &["--scenario", "no name"]].concat(), 2, &["--scenario"]);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
    refused(&[&backtest[..], &["--scenario", "s", "--set", "lr"]].concat(), 2, &["--set lr", "key=value"]);
}

/// Built by `make guests` and `make languages`.
#[test]
fn a_recipe_in_every_language_passes_check_and_test() {
    let folder = tempfile::tempdir().unwrap();
    let config = patient(folder.path(), "");
    for (place, command) in [
        ("wasm32-wasip2/recipe/examples/best_of.wasm", "make guests"),
        ("languages/best-of-c.wasm", "make languages"),
        ("languages/best-of-js.wasm", "make languages"),
        ("languages/best-of-python.wasm", "make languages"),
    ] {
        let path = target().join(place);
        assert!(path.exists(), "{} is missing; run '{command}'", path.display());
        for arguments in [&["check"][..], &["test", "--steps", "2", "--samples", "8"][..]] {
            let output = reef()
                .arg("recipe")
                .args(arguments)
                .arg(&path)
                .arg("--config")
                .arg(&config)
                .arg("--json")
                .output()
                .unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{place}: {arguments:?}: {told}");
            let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(shown["recipe"].as_str().unwrap().starts_with("best-of@0.1.0#sha256:"), "{shown}");
        }
    }
}

#[test]
fn every_command_has_help_with_an_example() {
    for command in [
        "serve",
        "demo",
        "bench",
        "status",
        "release list",
        "release show",
        "release verify",
        "release diff",
        "release push",
        "release pull",
        "release prune",
        "step show",
        "harness check",
        "harness render",
        "harness diff",
        "recipe inspect",
        "recipe backtest",
        "recipe publish",
        "recipe pull",
        "recipe list",
        "recipe sign",
        "recipe verify",
        "replay",
    ] {
        let output = reef().args(command.split(' ')).arg("--help").output().unwrap();
        let help = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && help.contains("Example"), "{command:?}: {help}");
    }
}

#[test]
fn a_harness_is_checked_rendered_and_compared_without_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let tree = |name: &str, text: &str| {
        let rules = folder.path().join(name).join("rules/style");
        std::fs::create_dir_all(&rules).unwrap();
        std::fs::write(rules.join("text.md"), text).unwrap();
    };
    tree("before", "Be brief.\n");
    tree("after", "Be kind.\n");
    let run = |arguments: &[&str]| {
        let output = reef().arg("harness").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let checked: serde_json::Value = serde_json::from_str(&run(&["check", &path("before"), "--json"])).unwrap();
    assert_eq!(checked["entries"], json!(["rules/style"]));
    assert!(run(&["check", &path("before")]).contains("entries   1: rules/style"));
    let diff = run(&["diff", &path("before"), &path("after")]);
    assert!(diff.contains("-Be brief.\n+Be kind.\n"), "{diff}");
    assert_eq!(run(&["diff", &path("after"), &path("after")]), "the trees are equal\n");
    let told = run(&["render", "--adapter", "pi", &path("after"), "--out", &path("out")]);
    assert!(told.contains("AGENTS.md"), "{told}");
    assert!(std::fs::read_to_string(folder.path().join("out/agent/AGENTS.md")).unwrap().contains("Be kind."));
    refused(&["harness", "render", "--adapter", "pi", &path("after"), "--out", &path("out")], 2, &["not empty"]);
    refused(&["harness", "render", "--adapter", "none", &path("after"), "--out", &path("b")], 2, &["'none'", "pi"]);
    refused(&["harness", "check", &path("absent")], 2, &["absent"]);
    std::fs::write(folder.path().join("after/stray"), "x").unwrap();
    refused(&["harness", "check", &path("after")], 2, &["stray", "belongs to no entry"]);
}

#[test]
fn print_config_shows_where_each_value_came_from() {
    let output = reef().args(["serve", "--listen", "127.0.0.1:1", "--print-config"]).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(
        shown.contains("listen = \"127.0.0.1:1\"  # flag") && shown.contains("engine.batch_max = 32  # default"),
        "{shown}"
    );
}

#[test]
fn inspect_shows_the_manifest_of_the_shipped_recipe() {
    let output = reef().args(["recipe", "inspect"]).arg(sao()).output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["manifest"]["name"], "sao");
    assert_eq!(shown["digest"].as_str().unwrap().len(), 64);
}
