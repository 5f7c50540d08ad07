//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};

use crate::protocol::EngineName;

#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure both engines on GGUF files
    Bench(BenchArgs),
    /// Measure the machine's read bandwidth
    Bandwidth(BandwidthArgs),
    /// Keep one engine loaded and measure what standard input asks for
    #[command(hide = true)]
    Worker(EngineArgs),
    /// Load one engine, generate a few tokens, tell when and with how much memory
    #[command(hide = true)]
    Start(EngineArgs),
}

#[derive(Debug, ClapArgs)]
pub struct BenchArgs {
    /// GGUF files
    #[arg(required = true)]
    pub models: Vec<PathBuf>,
    /// Tokens that are fed at once (pp)
    #[arg(short = 'p', long, default_value = "512", value_delimiter = ',')]
    pub n_prompt: Vec<usize>,
    /// Tokens that are generated one by one (tg)
    #[arg(short = 'n', long, default_value = "64", value_delimiter = ',')]
    pub n_gen: Vec<usize>,
    /// Tokens that are in the caches before
    #[arg(short = 'd', long, default_value = "0", value_delimiter = ',')]
    pub depth: Vec<usize>,
    /// Tokens of one verifying call; 0 leaves it out
    #[arg(long, default_value_t = 4)]
    pub verify: usize,
    /// Tokens that are in the caches before a verifying call
    #[arg(long, default_value_t = 256)]
    pub verify_depth: usize,
    /// Threads of each engine
    #[arg(short = 't', long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Runs of each test and engine, after one that is not counted
    #[arg(short = 'r', long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub repetitions: u16,
    /// Fresh starts of each engine, after one that is not counted; 0 leaves out starts and memory
    #[arg(long, default_value_t = 5)]
    pub starts: u16,
    /// Positions that a fresh start makes room for
    #[arg(long, default_value_t = 2048)]
    pub start_context: u32,
    /// MiB of the buffer that measures bandwidth (several times the last cache); 0 leaves it out
    #[arg(long, default_value_t = 2048)]
    pub bandwidth_mib: usize,
    /// Measure images and audio clips with the towers of this file instead of text
    #[arg(long, value_name = "GGUF")]
    pub mmproj: Option<PathBuf>,
    /// Write everything that was measured to this file, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub struct BandwidthArgs {
    /// MiB of the buffer
    #[arg(default_values_t = [2048], value_delimiter = ',')]
    pub mib: Vec<usize>,
    /// Threads
    #[arg(short = 't', long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
}

#[derive(Debug, ClapArgs)]
pub struct EngineArgs {
    #[arg(long)]
    pub engine: EngineName,
    #[arg(long)]
    pub model: PathBuf,
    #[arg(long)]
    pub threads: u16,
    /// Positions
    #[arg(long)]
    pub context: u32,
    /// Towers
    #[arg(long)]
    pub mmproj: Option<PathBuf>,
}
