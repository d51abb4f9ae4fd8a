//! The `reef` command.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use clap::Parser;

/// How threads of the tensor library wait for each other. Spinning, its default, halves the speed of two
/// computations that share the cores, and serving and training always do.
const WAIT_POLICY: (&str, &str) = ("OMP_WAIT_POLICY", "passive");

fn main() -> ExitCode {
    // A compiler of recipes is this program too; it needs neither threads of the tensor library nor a configuration.
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let [command, input, output] = arguments.as_slice()
        && command == reef_sandbox::COMPILE_COMMAND
    {
        return compile(Path::new(input), Path::new(output));
    }
    // In the cage of an agent program this is the way to the gateway, and starts the program.
    if let [command, socket, port, program, rest @ ..] = arguments.as_slice()
        && command == reef_episodes::bridge::COMMAND
    {
        return bridge(Path::new(socket), port, program, rest);
    }
    end_quietly_on_closed_pipes();
    let cli = reef::cli::Cli::parse();
    if std::env::var_os(WAIT_POLICY.0).is_none() {
        // The library reads the variable while it is loaded, before `main`, so the process starts over once.
        if let Ok(program) = std::env::current_exe() {
            let error =
                Command::new(program).args(std::env::args_os().skip(1)).env(WAIT_POLICY.0, WAIT_POLICY.1).exec();
            eprintln!("reef: goes on without {}={}: {error}", WAIT_POLICY.0, WAIT_POLICY.1);
        }
    }
    reef::leave::leave(reef::cli::run(cli))
}

/// Whoever reads the output may stop before its end, as `head` does: then there is nobody to write for, and no fault.
fn end_quietly_on_closed_pipes() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>().map(String::as_str).unwrap_or_default();
        if text.starts_with("failed printing to stdout") && text.contains("Broken pipe") {
            std::process::exit(0);
        }
        tell(panic);
    }));
}

fn bridge(socket: &Path, port: &OsStr, program: &OsStr, rest: &[OsString]) -> ExitCode {
    let Some(port) = port.to_str().and_then(|port| port.parse().ok()) else {
        eprintln!("reef: '{}' is no port", port.display());
        return ExitCode::from(2);
    };
    reef_episodes::bridge::inside(socket, port, program, rest)
}

fn compile(input: &Path, output: &Path) -> ExitCode {
    match reef_sandbox::compile_worker(input, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(told) => {
            eprintln!("{told}");
            ExitCode::FAILURE
        }
    }
}
