//! The `lapidary` command. No algorithm lives here: it reads flags, calls the rooms, and prints.

mod about;
mod agree;
mod args;
mod bench;
mod bus;
mod cache;
mod chat;
mod demo;
mod doctor;
mod eval;
mod exit;
mod export;
mod heldout;
mod hub;
mod input;
mod inspect;
mod interrupt;
mod kl;
mod logits;
mod markdown;
mod media;
mod memory;
mod model;
mod named;
mod progress;
mod run;
mod screen;
mod serve;
mod show;
mod target;
mod tell;
mod tokens;
mod verify;

use std::process::ExitCode;

use crate::args::eval::EvalCommand;
use crate::args::{Cli, Command};

#[global_allocator]
static MEMORY: memory::Watched = memory::Watched;

fn main() -> ExitCode {
    memory::explain();
    bus::explain();
    let cli = Cli::read();
    let Some(command) = cli.command else {
        return exit::report(about::version(cli.verbose));
    };
    let done = match command {
        Command::Run(args) => run::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Pull(args) => hub::pull::run(&args),
        Command::Ls(args) => hub::ls::run(&args),
        Command::Show(args) => hub::show::run(&args),
        Command::Rm(args) => hub::rm::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Logits(args) => logits::run(&args),
        Command::Tokens(args) => tokens::run(&args),
        Command::Eval(EvalCommand::Ppl(args)) => eval::ppl(&args),
        Command::Eval(EvalCommand::Kl(args)) => kl::run(&args),
        Command::Eval(EvalCommand::Heldout(args)) => heldout::run(&args),
        Command::Eval(EvalCommand::Agree(args)) => agree::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Cache(command) => cache::run(&command),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => about::completions(&args),
        Command::Man(args) => about::man(&args),
    };
    exit::report(done)
}
