//! The parent's end of a child process.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::media::Cost;
use crate::protocol::{EngineName, Memory, Reply, Test};

/// What a child is started with.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    pub engine: EngineName,
    pub model: &'a Path,
    pub threads: u16,
    pub context: u32,
    pub mmproj: Option<&'a Path>,
}

/// A child that keeps its engine loaded.
pub struct Worker {
    pipe: Pipe,
    /// What the engine says about itself.
    pub describe: String,
}

impl Worker {
    pub fn start(setup: &Setup<'_>) -> Result<Self> {
        let mut pipe = Pipe::open("worker", setup)?;
        match pipe.read()? {
            Reply::Ready { describe } => Ok(Worker { pipe, describe }),
            other => bail!("{} answered {other:?}", setup.engine.word()),
        }
    }

    pub fn measure(&mut self, test: Test) -> Result<f64> {
        self.pipe.write(&test)?;
        match self.pipe.read()? {
            Reply::Seconds { seconds } => Ok(seconds),
            other => bail!("{} answered {other:?}", self.pipe.engine.word()),
        }
    }

    /// Shows an image or plays an audio clip.
    pub fn show(&mut self, test: Test) -> Result<(Cost, Memory)> {
        self.pipe.write(&test)?;
        match self.pipe.read()? {
            Reply::Medium { encode_s, first_token_s, n_soft, memory } => {
                Ok((Cost { encode_s, first_token_s, n_soft }, memory))
            }
            other => bail!("{} answered {other:?}", self.pipe.engine.word()),
        }
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.pipe.process.id()
    }
}

/// How one fresh start went.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Seconds from the start of the process to the first token.
    pub seconds: f64,
    pub token: u32,
    pub memory: Memory,
}

/// Starts an engine afresh and lets it generate a few tokens.
pub fn start(setup: &Setup<'_>) -> Result<Start> {
    let started = Instant::now();
    let mut pipe = Pipe::open("start", setup)?;
    let Reply::FirstToken { token } = pipe.read()? else {
        bail!("{} did not begin with a token", setup.engine.word())
    };
    let seconds = started.elapsed().as_secs_f64();
    let Reply::Memory(memory) = pipe.read()? else {
        bail!("{} did not end with its memory", setup.engine.word())
    };
    Ok(Start { seconds, token, memory })
}

struct Pipe {
    engine: EngineName,
    process: Process,
    /// Taken when the child shall end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Pipe {
    fn open(command: &str, setup: &Setup<'_>) -> Result<Self> {
        let towers = setup.mmproj.map(|path| [Path::new("--mmproj"), path]);
        let mut process = Command::new(std::env::current_exe()?)
            .arg(command)
            .args(["--engine", setup.engine.word()])
            .arg("--model")
            .arg(setup.model)
            .args(["--threads", &setup.threads.to_string()])
            .args(["--context", &setup.context.to_string()])
            .args(towers.into_iter().flatten())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("can't start a child process")?;
        let input = process.stdin.take();
        let output = process.stdout.take().context("the child has no standard output")?;
        Ok(Pipe { engine: setup.engine, process, input, output: BufReader::new(output) })
    }

    fn write(&mut self, test: &Test) -> Result<()> {
        let input = self.input.as_mut().context("the child was told to end")?;
        serde_json::to_writer(&mut *input, test)?;
        Ok(writeln!(input)?)
    }

    fn read(&mut self) -> Result<Reply> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            let status = self.process.wait()?;
            bail!("the process of {} ended with {status}", self.engine.word());
        }
        serde_json::from_str(&line).with_context(|| format!("{} said {line:?}", self.engine.word()))
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // Without input a worker ends. Its memory must be free before the next one is measured.
        drop(self.input.take());
        let _ = self.process.wait();
    }
}
