//! Measures Lapidary beside llama.cpp: the same GGUF files, on the same machine, in turn.
//!
//! The command that people call starts one child process for each engine and lets them work
//! alternately, so that whatever else the machine does falls on both. Each pair of runs gives one
//! ratio. README.md says what is measured and how.

mod args;
mod bandwidth;
mod bench;
mod child;
mod file;
mod lapidary;
mod llama;
mod machine;
mod media;
mod protocol;
mod report;
mod worker;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::args::{Args, Command};

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Bench(bench) => bench::run(bench),
        Command::Bandwidth(bandwidth) => bandwidth::run(bandwidth),
        Command::Worker(worker) => worker::serve(worker),
        Command::Start(start) => worker::start(start),
    }
}
