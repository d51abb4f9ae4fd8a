//! Runs a case on both kinds of sandboxes, and a test in a process of its own.
//! Used by the attacks and by the fuzz targets; knows nothing of guests.

use std::ffi::OsStr;
use std::process::Command;

/// Names the test that a process of its own runs.
const ALONE: &str = "REEF_TEST_ALONE";

tokio::task_local! {
    static POOLING: bool;
}

/// Do the sandboxes of the case that runs now take their instances from a pool?
pub fn pooling() -> bool {
    POOLING.try_with(|pooling| *pooling).unwrap_or(true)
}

/// Runs the case twice: in sandboxes with a pool of instances, and in sandboxes without one.
pub async fn for_each_sandbox(case: impl AsyncFn()) {
    for pooling in [true, false] {
        println!("{} a pool of instances:", if pooling { "with" } else { "without" });
        POOLING.scope(pooling, case()).await;
    }
}

/// True in a process that runs this test and nothing else. Elsewhere starts that process, waits for it, and is false.
pub fn alone(test: &str) -> bool {
    alone_in(test, "exec \"$0\" \"$@\"")
}

/// As [`alone`], where a line of shell starts the program `"$0" "$@"`.
pub fn alone_in(test: &str, shell: &str) -> bool {
    if std::env::var_os(ALONE).as_deref() == Some(OsStr::new(test)) {
        return true;
    }
    let output = Command::new("/bin/sh")
        .args(["-c", shell])
        // The program that runs, also when its file has been replaced meanwhile.
        .arg(format!("/proc/{}/exe", std::process::id()))
        .args(["--exact", test, "--nocapture", "--include-ignored", "--test-threads=1"])
        .env(ALONE, test)
        .output()
        .expect("a process starts");
    let [told, wrong] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success() && told.contains("1 passed"), "{test}: {}\n{told}\n{wrong}", output.status);
    false
}

/// A size of this process, as `VmRSS` for what is resident now and `VmHWM` for the most that ever was.
pub fn process_bytes(size: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with(size)).expect("a size").to_owned();
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") * 1_024
}
