//! A child process: one engine, loaded once.

use std::io::{BufRead, Write};

use anyhow::{Context, Result};

use crate::args::EngineArgs;
use crate::lapidary::Lapidary;
use crate::llama::Llama;
use crate::machine;
use crate::media::Cost;
use crate::protocol::{EngineName, Reply, Test};

/// An engine with a model in it.
pub trait Engine {
    /// One line about the build and what it runs on.
    fn describe(&self) -> String;

    /// Runs a test once and returns its seconds.
    fn measure(&mut self, test: Test) -> Result<f64>;

    /// Shows an image or plays an audio clip, and says what it cost.
    fn show(&mut self, test: Test) -> Result<Cost>;

    /// Continues a text greedily by `n` tokens.
    fn generate(&mut self, text: &str, n: usize, on_token: &mut dyn FnMut(u32)) -> Result<()>;
}

/// What a fresh start continues: six tokens with the one that begins a text.
const TEXT: &str = "The capital of France is";
/// After this many tokens every page that decoding needs has been touched.
const TOKENS_BEFORE_MEMORY: usize = 8;

/// Answers tests from standard input until it ends.
pub fn serve(args: &EngineArgs) -> Result<()> {
    let mut engine = load(args)?;
    say(&Reply::Ready { describe: engine.describe() })?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let test: Test =
            serde_json::from_str(&line).with_context(|| format!("no test: {line:?}"))?;
        let reply = match test {
            Test::Image { .. } | Test::Audio { .. } => {
                let Cost { encode_s, first_token_s, n_soft } =
                    engine.show(test).with_context(|| test.name())?;
                let memory = machine::memory().context("the system does not tell the memory")?;
                Reply::Medium { encode_s, first_token_s, n_soft, memory }
            }
            _ => Reply::Seconds { seconds: engine.measure(test).with_context(|| test.name())? },
        };
        say(&reply)?;
    }
    Ok(())
}

/// Loads, says so at the first token, and tells the memory a few tokens later.
pub fn start(args: &EngineArgs) -> Result<()> {
    let mut engine = load(args)?;
    let mut said: Option<Result<()>> = None;
    engine.generate(TEXT, TOKENS_BEFORE_MEMORY, &mut |token| {
        said.get_or_insert_with(|| say(&Reply::FirstToken { token }));
    })?;
    said.context("the model ended its answer before the first token")??;
    say(&Reply::Memory(machine::memory().context("the system does not tell the memory")?))
}

fn load(args: &EngineArgs) -> Result<Box<dyn Engine>> {
    let named = || format!("{} can't load {}", args.engine.word(), args.model.display());
    Ok(match args.engine {
        EngineName::Lapidary => Box::new(Lapidary::load(args).with_context(named)?),
        EngineName::Llama => Box::new(Llama::load(args).with_context(named)?),
    })
}

fn say(reply: &Reply) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, reply)?;
    writeln!(out)?;
    Ok(out.flush()?)
}
