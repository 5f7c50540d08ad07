//! The command line's arguments. Other modules act on them.

pub mod about;
pub mod bench;
pub mod eval;
pub mod hub;
pub mod serve;

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use lapidary::{DeviceChoice, Draft, KvType, Modality, Precision};

use self::about::{CompletionsArgs, ManArgs};
use self::bench::BenchArgs;
use self::eval::EvalCommand;
use self::hub::{LsArgs, PullArgs, RmArgs, ShowArgs};
use self::serve::ServeArgs;
use crate::named;

/// Runs Gemma models on whatever you have: one file, every backend, the same tokens.
#[derive(Debug, Parser)]
#[command(name = "lapidary", version, disable_version_flag = true, max_term_width = 100,
          arg_required_else_help = true, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Print the version
    #[arg(short = 'V', long)]
    pub version: bool,
    /// With --version: also how it was built, and with what
    #[arg(long, requires = "version")]
    pub verbose: bool,
}

const EXIT_CODES: &str = "\
Results go to standard output, everything else to standard error.
Exit codes: 0 done · 1 failed · 2 wrong usage · 3 invalid model file · 4 out of memory or no device
            5 not found · 130 interrupted";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer a prompt, or continue plain text with --raw
    Run(RunArgs),
    /// Chat with a model; type /help there for what else you can do
    Chat(ChatArgs),
    /// Serve models over HTTP: OpenAI's, Anthropic's and Ollama's APIs, and a web page
    Serve(ServeArgs),
    /// Have the built-in model chat, see and call a tool on every backend of this machine
    Demo(DemoArgs),
    /// Turn a checkpoint into one .lap file
    Export(ExportArgs),
    /// Show what a model contains: methods, ops, caches, quantisation, sizes
    Inspect(InspectArgs),
    /// Download a model by its name: gemma3:1b, gemma4:e2b, or org/repo of Hugging Face
    Pull(PullArgs),
    /// List the models that are on this machine, or all that have a name
    Ls(LsArgs),
    /// Show what a name stands for: variants, licence, memory, and which backend would run it
    Show(ShowArgs),
    /// Remove downloaded models
    Rm(RmArgs),
    /// Check a file's bytes, and a backend against the golden logits in the file
    Verify(VerifyArgs),
    /// Compute the logits of raw token ids
    Logits(LogitsArgs),
    /// Print the token ids of a text as JSON
    Tokens(TokensArgs),
    /// Measure the quality of a model
    #[command(subcommand)]
    Eval(EvalCommand),
    /// Measure the speed of a model, of a released shape with random weights, or of a server
    Bench(BenchArgs),
    /// List or remove the cached files that make later starts faster
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Show backends, devices and memory
    Doctor(DoctorArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print a manual page, or write those of all commands
    Man(ManArgs),
}

/// Which model.
#[derive(Debug, Default, Args)]
pub struct ModelArgs {
    /// A Hugging Face folder, a GGUF file, a .lap file, or a name such as gemma4:e2b (`lapidary ls
    /// --all`) [default: pebble, which is built in]
    pub model: Option<PathBuf>,
    /// Read files instead of mapping them (for files that may change while they are open)
    #[arg(long)]
    pub no_mmap: bool,
    /// The GGUF file with the model's vision and audio towers [default: the one next to the model]
    #[arg(long, value_name = "FILE.gguf")]
    pub mmproj: Option<PathBuf>,
    /// The drafter to open with it, where a command has a use for one.
    #[arg(skip)]
    pub draft: Option<DraftArg>,
    /// Whether a name that is not on this machine is downloaded where a person sees it.
    #[arg(skip)]
    pub may_pull: bool,
}

/// Images, videos and audio. They come before the prompt, in the order in which they are given.
#[derive(Clone, Debug, Default, Args)]
pub struct MediaArgs {
    /// An image: PNG, JPEG, WebP, GIF or BMP (repeatable)
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,
    /// A video: a folder of images, an animated GIF or WebP, or any file if ffmpeg is installed
    /// (repeatable)
    #[arg(long, value_name = "FILE|FOLDER")]
    pub video: Vec<PathBuf>,
    /// Audio: WAV, FLAC, MP3 or OGG (repeatable)
    #[arg(long, value_name = "FILE")]
    pub audio: Vec<PathBuf>,
    /// The most soft tokens for an image, if the model lets you choose
    #[arg(long, value_name = "N")]
    pub image_tokens: Option<u32>,
    /// Show long images whole and in crops, if the model supports crops
    #[arg(long)]
    pub pan_and_scan: bool,
    /// Frames per second, for a folder of images
    #[arg(long, value_name = "X", value_parser = positive)]
    pub fps: Option<f64>,
    /// The order in which they were given.
    #[arg(skip)]
    pub order: Vec<Modality>,
}

impl MediaArgs {
    /// Takes the order from what was typed.
    fn put_in_order(&mut self, matches: &ArgMatches) {
        use Modality::{Audio, Image, Video};
        let mut all: Vec<(usize, Modality)> = Vec::new();
        for (name, kind) in [("image", Image), ("video", Video), ("audio", Audio)] {
            all.extend(matches.indices_of(name).into_iter().flatten().map(|at| (at, kind)));
        }
        all.sort_unstable_by_key(|(at, _)| *at);
        self.order = all.into_iter().map(|(_, kind)| kind).collect();
    }
}

/// Lets numbers below zero reach the checks of their range, which say what would be right.
fn signed(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| match arg.get_action().takes_values() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        })
        .mut_subcommands(signed)
}

/// A number that is not below zero, and is one.
fn magnitude(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x.is_finite() && x >= 0.0 => Ok(x),
        Ok(_) => Err("it must be a number from 0 on".into()),
        Err(e) => Err(e.to_string()),
    }
}

/// The same, and not zero.
fn positive(text: &str) -> Result<f64, String> {
    match magnitude(text)? {
        0.0 => Err("it must be more than 0".into()),
        x => Ok(x),
    }
}

/// The definitions of all flags.
pub fn command() -> clap::Command {
    signed(Cli::command())
}

impl Cli {
    /// What the user typed.
    pub fn read() -> Self {
        let matches = command().get_matches();
        let mut cli = Self::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
        if cli.command.is_none() && !cli.version {
            let what = "name a command; --help lists them";
            command().error(clap::error::ErrorKind::MissingSubcommand, what).exit();
        }
        let media = match &mut cli.command {
            Some(Command::Run(args)) => Some(&mut args.media),
            Some(Command::Logits(args)) => Some(&mut args.media),
            _ => None,
        };
        if let (Some(media), Some((_, matches))) = (media, matches.subcommand()) {
            media.put_in_order(matches);
        }
        match &mut cli.command {
            Some(Command::Chat(args)) => args.model.may_pull = true,
            Some(Command::Run(args)) => {
                args.model.may_pull = true;
                args.prompt = args.prompt.take().or(args.prompt_flag.take());
                named::settle(&mut args.model.model, &mut args.prompt);
            }
            Some(Command::Tokens(args)) if args.file.is_none() => {
                named::settle(&mut args.model.model, &mut args.text);
            }
            _ => {}
        }
        cli
    }
}

/// Where to run it.
#[derive(Debug, Args)]
pub struct DeviceArgs {
    /// Backend: auto, or one that `lapidary doctor` lists, which then never falls back to another
    #[arg(long, default_value = "auto", env = "LAPIDARY_BACKEND")]
    pub backend: String,
    /// The number of one of its devices (1), or a device name that `lapidary doctor` lists (vulkan:1)
    #[arg(long, value_name = "DEVICE", env = "LAPIDARY_DEVICE")]
    pub device: Option<DeviceChoice>,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// How to run it there.
#[derive(Clone, Debug, Default, Args)]
pub struct EngineArgs {
    /// Worker threads [default: as many as the machine allows]
    #[arg(long, env = "LAPIDARY_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Precision of activations: `fast` rounds them for quantised weights where that saves time, `exact`
    /// does not [default: fast; exact for `verify` and `logits`]
    #[arg(long, value_enum, env = "LAPIDARY_PRECISION")]
    pub precision: Option<PrecisionArg>,
    /// Type of the KV cache: a smaller type takes less memory and is read faster. The reference
    /// backend always uses f32 [default: bf16; f32 with --precision exact]
    #[arg(long, value_enum, value_name = "TYPE", env = "LAPIDARY_KV")]
    pub kv: Option<KvArg>,
}

/// The names of [`Precision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionArg {
    Fast,
    Exact,
}

impl From<PrecisionArg> for Precision {
    fn from(precision: PrecisionArg) -> Self {
        match precision {
            PrecisionArg::Fast => Self::Fast,
            PrecisionArg::Exact => Self::Exact,
        }
    }
}

/// The names of [`KvType`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvArg {
    F32,
    Bf16,
    Int8,
}

impl From<KvArg> for KvType {
    fn from(kv: KvArg) -> Self {
        match kv {
            KvArg::F32 => Self::F32,
            KvArg::Bf16 => Self::Bf16,
            KvArg::Int8 => Self::Int8,
        }
    }
}

/// What guesses the next tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DraftArg {
    /// The drafter that the model has, or that lies beside it.
    #[default]
    Auto,
    Off,
    Lookup,
    /// The drafter at a path.
    At(PathBuf),
}

impl FromStr for DraftArg {
    type Err = Infallible;

    fn from_str(s: &str) -> Result<Self, Infallible> {
        Ok(match s {
            "auto" => Self::Auto,
            "off" => Self::Off,
            "lookup" => Self::Lookup,
            path => Self::At(path.into()),
        })
    }
}

impl From<&DraftArg> for Draft {
    fn from(draft: &DraftArg) -> Self {
        match draft {
            DraftArg::Auto => Self::Auto,
            DraftArg::Off => Self::Off,
            DraftArg::Lookup => Self::Lookup,
            DraftArg::At(_) => Self::Model,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = RUN_HELP)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The prompt [default: read from standard input]
    pub prompt: Option<String>,
    /// The prompt, if it could be mistaken for a model
    #[arg(short, long = "prompt", value_name = "PROMPT", conflicts_with = "prompt")]
    pub prompt_flag: Option<String>,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Continue the prompt as plain text, without the chat template
    #[arg(long)]
    pub raw: bool,
    /// System prompt: instructions that come before the prompt
    #[arg(long, conflicts_with = "raw")]
    pub system: Option<String>,
    /// Let the model think first, where its chat template can
    #[arg(long, conflicts_with = "raw")]
    pub think: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// The most tokens to generate
    #[arg(short = 'n', long, default_value_t = 512, value_name = "N")]
    pub max_tokens: usize,
    /// Tokens of prompt and answer together, at most [default: the model's limit, at most 8192]
    #[arg(long, value_name = "N", env = "LAPIDARY_CTX")]
    pub ctx: Option<u32>,
    /// What guesses the next tokens, so that one step may give several; the answer stays the same:
    /// `lookup` (in the text so far), `off`, or a drafter (…-assistant), a folder or a GGUF file, or
    /// `pebble` for the built-in model's [default: the drafter in the model or next to it]
    #[arg(
        long,
        value_name = "MODEL|lookup|off",
        env = "LAPIDARY_DRAFT",
        default_value = "auto",
        hide_default_value = true
    )]
    pub draft: DraftArg,
    /// Stop before this text (repeatable)
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Keep the computed state of the prompt in this folder, and reuse it for prompts that begin the
    /// same
    #[arg(long, value_name = "FOLDER")]
    pub prefix_cache: Option<PathBuf>,
    /// Print JSON when the answer is whole: text, thinking, tool calls, why it ended, and statistics
    #[arg(long)]
    pub json: bool,
    /// No statistics, no notes
    #[arg(short, long)]
    pub quiet: bool,
}

const RUN_HELP: &str = "\
A single argument is a model if there is such a file or folder, or if it is written like one.
Anything else is a prompt for the built-in model. What is piped in along with a prompt comes after it.
The name `pebble` always means the built-in model; write ./pebble for a folder of that name.

  lapidary run \"Tell me a story about a brave fox.\"
  lapidary run --image drawing.png \"Describe this image.\"
  lapidary run gemma3:1b \"Why is the sky blue?\"
  lapidary run gemma-3-1b-it.gguf \"Why is the sky blue?\"
  lapidary run \"Summarise this:\" < report.txt
  lapidary run -p pebble";

#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// System prompt: instructions that come before the conversation
    #[arg(long)]
    pub system: Option<String>,
    /// Let the model think first, where its chat template can
    #[arg(long)]
    pub think: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// The most tokens to generate for one answer
    #[arg(short = 'n', long, default_value_t = 2048, value_name = "N")]
    pub max_tokens: usize,
    /// Tokens of the whole conversation, at most [default: the model's limit, at most 8192]
    #[arg(long, value_name = "N", env = "LAPIDARY_CTX")]
    pub ctx: Option<u32>,
    /// What guesses the next tokens, so that one step may give several; the answer stays the same:
    /// `lookup` (in the text so far), `off`, or a drafter (…-assistant), a folder or a GGUF file, or
    /// `pebble` for the built-in model's [default: the drafter in the model or next to it]
    #[arg(
        long,
        value_name = "MODEL|lookup|off",
        env = "LAPIDARY_DRAFT",
        default_value = "auto",
        hide_default_value = true
    )]
    pub draft: DraftArg,
    /// Save the conversation when you leave, with its media and its computed state (FILE.kv)
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Let --save overwrite a file other than the one that --resume names
    #[arg(short, long, requires = "save")]
    pub force: bool,
    /// Continue a saved conversation
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Show answers as the model writes them, without bold, lists and code made visible
    #[arg(long)]
    pub plain: bool,
    /// Chat with a running server instead, over OpenAI's API; MODEL is then the name of one of its
    /// models [default: its first]
    #[arg(long, value_name = "URL",
          conflicts_with_all = ["draft", "mmproj", "no_mmap", "resume"])]
    pub url: Option<String>,
    /// The server's API key
    // The variable is the one of `serve`, and may be set where no server is asked.
    #[arg(long, value_name = "KEY", env = "LAPIDARY_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
}

/// How tokens are chosen. By default, as the model's makers recommend.
#[derive(Debug, Args)]
pub struct SamplingArgs {
    /// Higher is more random; 0 always takes the likeliest token
    #[arg(short, long, value_name = "X")]
    pub temperature: Option<f32>,
    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Keep the likeliest tokens that add up to P
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Keep tokens at least P times as likely as the likeliest
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Divide the scores of tokens that already occurred
    #[arg(long, value_name = "X")]
    pub repetition_penalty: Option<f32>,
    /// The same seed gives the same tokens, on every backend with --precision exact [default: random]
    #[arg(long)]
    pub seed: Option<u64>,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// A Hugging Face folder, a GGUF file, a .lap file, a name such as gemma4:e2b, or `pebble`
    #[arg(conflicts_with = "synthetic", required_unless_present = "synthetic")]
    pub model: Option<PathBuf>,
    /// Use a released shape with random weights instead, to try a recipe at full size: gemma-4-31b, …
    #[arg(long, value_name = "SHAPE")]
    pub synthetic: Option<String>,
    /// Read files instead of mapping them (for files that may change while they are open)
    #[arg(long)]
    pub no_mmap: bool,
    /// The model's drafter (…-assistant), a folder, a GGUF file or a name, to add the `draft` method
    #[arg(long, value_name = "PATH", conflicts_with = "synthetic")]
    pub draft: Option<PathBuf>,
    /// The GGUF file with the model's vision and audio towers [default: the one next to the model]
    #[arg(long, value_name = "FILE.gguf", conflicts_with = "synthetic")]
    pub mmproj: Option<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "FILE.lap")]
    pub out: PathBuf,
    /// Quantise by a recipe: bf16, int8, int4, int4-sensitive, q4_0, or a .toml file. int4-minmax and
    /// int4-sensitive-minmax find codes by range instead of half-quadratic optimisation
    #[arg(long, value_name = "RECIPE")]
    pub quant: Option<String>,
    /// Also quantise weights that are quantised already, from their dequantised values
    #[arg(long, requires = "quant")]
    pub requantise: bool,
    /// Leave out the golden logits, which are slow to compute for large models
    #[arg(long)]
    pub no_golden: bool,
    /// Overwrite the file if it exists
    #[arg(short, long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The model's drafter (…-assistant), a folder or a GGUF file, to see its `draft` method
    #[arg(long, value_name = "PATH")]
    pub draft: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// The largest difference that passes, as a fraction of the largest logit
    #[arg(long, default_value_t = 1e-3, value_name = "X", value_parser = magnitude)]
    pub tolerance: f64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Rows {
    /// One row per token
    All,
    /// The last token's row
    Last,
}

#[derive(Debug, Args)]
pub struct LogitsArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Token ids, `2,105,2364`, or a file that holds them; media replace the ids of soft tokens, in
    /// order
    #[arg(long, value_name = "IDS|FILE")]
    pub tokens: String,
    #[command(flatten)]
    pub media: MediaArgs,
    /// The safetensors file to write: `logits` [rows, vocab] f32, `greedy` [n] i64
    #[arg(short, long, value_name = "FILE.safetensors")]
    pub out: PathBuf,
    /// Overwrite the file if it exists
    #[arg(short, long)]
    pub force: bool,
    /// Which rows to write
    #[arg(long, value_enum, default_value_t = Rows::All)]
    pub rows: Rows,
    /// Feed at most N tokens at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunk: Option<u32>,
    /// Then generate N tokens, always the likeliest one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub greedy: usize,
}

#[derive(Debug, Args)]
pub struct TokensArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The text [default: read from standard input]
    #[arg(conflicts_with = "file")]
    pub text: Option<String>,
    /// Read the text from a file
    #[arg(short, long)]
    pub file: Option<PathBuf>,
}

/// Packed weights and compiled tokenizers, which are made again if they are missing
#[derive(Debug, Subcommand)]
#[command(after_help = CACHE_HELP)]
pub enum CacheCommand {
    /// List the cached files
    Ls(CacheLsArgs),
    /// Remove files that have not been used for a while, and damaged or half-written ones
    Prune(CachePruneArgs),
}

const CACHE_HELP: &str = "\
LAPIDARY_CACHE sets the folder; `off` turns the cache off. By default it is `lapidary` in the
system's cache folder: $XDG_CACHE_HOME, ~/.cache, ~/Library/Caches or %LOCALAPPDATA%.";

#[derive(Debug, Args)]
pub struct CacheLsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CachePruneArgs {
    /// Remove files that have not been used for this many days
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    pub older_than: u64,
    /// Remove everything
    #[arg(long, conflicts_with = "older_than")]
    pub all: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Backend: auto for all that are useful on this machine, or one that `lapidary doctor` lists
    #[arg(long, default_value = "auto", env = "LAPIDARY_BACKEND")]
    pub backend: String,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
