//! The `reef` command.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    reef::cli::run(reef::cli::Cli::parse())
}
