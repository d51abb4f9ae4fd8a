//! What the cage lets out and what it ends, with isolation where this machine has it and without.

use std::time::{Duration, Instant};

use super::*;

fn sh(work: &Path, script: &str) -> Inside {
    Inside { argv: vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()], ..Inside::of(work) }
}

/// With isolation too, where it works here.
async fn cages() -> Vec<Cage> {
    let isolated = Cage::detect(Isolation::Required).await.ok();
    std::iter::once(Cage::open("a test")).chain(isolated).collect()
}

#[tokio::test]
async fn a_program_works_in_its_folder_and_says_how_it_ended() {
    for cage in cages().await {
        let work = tempfile::tempdir().expect("a folder");
        let done = cage.run(&sh(work.path(), "echo out; echo err >&2; echo x >file; exit 3"), Bounds::default()).await;
        let done = done.expect("runs");
        assert_eq!((done.code, done.output.as_str(), done.errors.as_str()), (Some(3), "out\n", "err\n"), "{cage:?}");
        assert_eq!(std::fs::read_to_string(work.path().join("file")).expect("written"), "x\n");
    }
}

#[tokio::test]
async fn variables_of_this_process_do_not_reach_a_program() {
    for cage in cages().await {
        let work = tempfile::tempdir().expect("a folder");
        let mut inside = sh(work.path(), "env");
        inside.environment.insert("GIVEN".to_owned(), "a b".to_owned());
        let seen = cage.run(&inside, Bounds::default()).await.expect("runs").output;
        assert!(seen.contains("GIVEN=a b\n") && !seen.contains("CARGO"), "{seen}");
    }
}

#[tokio::test]
async fn time_output_memory_and_processes_are_bounded() {
    for cage in cages().await {
        let work = tempfile::tempdir().expect("a folder");
        let bounds = Bounds { time: Duration::from_millis(300), output_bytes: 100, ..Bounds::default() };
        let done = cage.run(&sh(work.path(), "yes"), bounds).await.expect("runs");
        assert!(done.cut.as_deref().is_some_and(|cut| cut.contains("ran longer")), "{done:?}");
        assert!(done.output.len() < 200 && done.output.contains("bytes left out"), "{done:?}");
        let bounds = Bounds { processes: 8, ..Bounds::default() };
        let done = cage.run(&sh(work.path(), "for i in $(seq 20); do sleep 60 & done; wait"), bounds).await;
        assert!(done.expect("runs").cut.expect("cut").contains("more than 8 processes"));
        let bounds = Bounds { memory_bytes: 40 << 20, ..Bounds::default() };
        let hungry = "exec 2>/dev/null; x=$(head -c 20000000 /dev/zero | tr '\\0' a); y=$x$x$x$x; sleep 60";
        let done = cage.run(&sh(work.path(), hungry), bounds).await.expect("runs");
        assert!(done.cut.is_some() || done.code != Some(0), "{done:?}");
    }
}

/// Is there a process with these words in its command line?
fn lives(words: &str) -> bool {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.into_iter().any(|line| String::from_utf8_lossy(&line).replace('\0', " ").contains(words))
}

#[tokio::test]
async fn what_a_program_leaves_behind_ends_with_it() {
    for (at, cage) in cages().await.into_iter().enumerate() {
        let work = tempfile::tempdir().expect("a folder");
        let own = format!("{}{at}", std::process::id());
        // One in the background, one in a session of its own, whose parent is gone.
        let script = format!("sleep 71{own} & (setsid sleep 72{own} &) ; echo started");
        let done = cage.run(&sh(work.path(), &script), Bounds::default()).await.expect("runs");
        assert_eq!(done.output, "started\n");
        let patience = Instant::now() + Duration::from_secs(10);
        while (lives(&format!("sleep 71{own}")) || lives(&format!("sleep 72{own}"))) && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(!lives(&format!("sleep 71{own}")) && !lives(&format!("sleep 72{own}")), "{cage:?}");
    }
}

#[tokio::test]
async fn a_program_that_nobody_waits_for_ends() {
    for (at, cage) in cages().await.into_iter().enumerate() {
        let work = tempfile::tempdir().expect("a folder");
        let words = format!("sleep 73{}{at}", std::process::id());
        let inside = sh(work.path(), &format!("{words} & wait"));
        let running = tokio::time::timeout(Duration::from_millis(500), cage.run(&inside, Bounds::default()));
        assert!(running.await.is_err(), "it is given up");
        let patience = Instant::now() + Duration::from_secs(10);
        while lives(&words) && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(!lives(&words), "{cage:?}");
    }
}

/// Set in the process that is killed: where it works, and whether with isolation.
const HELD: &str = "REEF_TEST_HELD_IN";

/// Runs a program that does not end, as a server would, and says so by a file.
async fn hold(folder: &Path) {
    let isolated = folder.join("isolated").exists();
    let cage = if isolated { Cage::detect(Isolation::Required).await.expect("a cage") } else { Cage::open("a test") };
    let words = std::fs::read_to_string(folder.join("words")).expect("written");
    let done = cage.run(&sh(folder, &format!("touch started; {words} & wait")), Bounds::default()).await;
    panic!("it was to be killed: {done:?}");
}

#[tokio::test]
async fn a_killed_process_takes_its_programs_with_it() {
    if let Some(folder) = std::env::var_os(HELD) {
        return hold(Path::new(&folder)).await;
    }
    for (at, cage) in cages().await.into_iter().enumerate() {
        let work = tempfile::tempdir().expect("a folder");
        let words = format!("sleep 74{}{at}", std::process::id());
        std::fs::write(work.path().join("words"), &words).expect("written");
        if cage.isolates() {
            std::fs::write(work.path().join("isolated"), "").expect("written");
        }
        let mut server = std::process::Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "cage::tests::a_killed_process_takes_its_programs_with_it"])
            .env(HELD, work.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        let patience = Instant::now() + Duration::from_secs(60);
        while !(work.path().join("started").exists() && lives(&words)) && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(lives(&words), "{cage:?}");
        server.kill().expect("killed");
        server.wait().expect("over");
        let patience = Instant::now() + Duration::from_secs(30);
        while lives(&words) && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(!lives(&words), "{cage:?}");
    }
}

#[tokio::test]
async fn a_pass_is_on_no_command_line() {
    for cage in cages().await {
        let work = tempfile::tempdir().expect("a folder");
        let pass = format!("pass-{}", uuid::Uuid::now_v7());
        let mut inside = sh(work.path(), "touch started; while ! test -e looked; do sleep 0.02; done; echo \"$PASS\"");
        inside.environment.insert("PASS".to_owned(), pass.clone());
        let looking = async {
            while !work.path().join("started").exists() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let seen = lives(&pass);
            std::fs::write(work.path().join("looked"), "").expect("written");
            seen
        };
        let (done, seen) = tokio::join!(cage.run(&inside, Bounds::default()), looking);
        assert_eq!(done.expect("runs").output, format!("{pass}\n"), "it has it");
        assert!(!seen, "and nobody else: {cage:?}");
    }
}

#[tokio::test]
async fn a_folder_that_grows_too_large_ends_its_program() {
    for cage in cages().await {
        let work = tempfile::tempdir().expect("a folder");
        let bounds = Bounds { folder_bytes: 4 << 20, ..Bounds::default() };
        let script = "i=0; while :; do i=$((i + 1)); head -c 1000000 /dev/zero > f$i; sleep 0.1; done";
        let done = cage.run(&sh(work.path(), script), bounds).await.expect("runs");
        assert_eq!(done.cut.as_deref(), Some("its folder grew over 4 MiB"), "{cage:?}");
    }
}

#[tokio::test]
async fn an_isolated_program_sees_no_network_no_process_and_no_other_file() {
    let Ok(cage) = Cage::detect(Isolation::Required).await else {
        eprintln!("bubblewrap does not work here; nothing to look at");
        return;
    };
    let work = tempfile::tempdir().expect("a folder");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let secret = tempfile::NamedTempFile::new().expect("a file");
    let script = format!(
        "test -e {} && echo file; test -e /etc/passwd && echo passwd; test -e /proc/{} && echo process; \
         (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo network; \
         touch /usr/x 2>/dev/null && echo system; pwd",
        secret.path().display(),
        std::process::id()
    );
    let inside = Inside { argv: vec!["bash".to_owned(), "-c".to_owned(), script], ..Inside::of(work.path()) };
    let done = cage.run(&inside, Bounds::default()).await.expect("runs");
    assert_eq!(done.output, format!("{WORK_INSIDE}\n"), "{done:?}");
}

#[test]
fn a_program_brings_itself_and_no_folder_of_the_system() {
    let own = std::env::current_exe().expect("a path");
    let needed = needed_by(&own);
    assert_eq!(needed.first(), Some(&own));
    assert!(needed.iter().all(|place| !place.starts_with("/usr") && !place.starts_with("/lib")), "{needed:?}");
    assert!(needed.iter().skip(1).all(|place| place.is_dir()), "{needed:?}");
}
