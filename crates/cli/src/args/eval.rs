//! What may be typed after `lapidary eval`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{DeviceArgs, EngineArgs, ModelArgs};

#[derive(Debug, Subcommand)]
pub enum EvalCommand {
    /// Measure the perplexity of a text, in windows of which the second half is scored
    Ppl(PplArgs),
    /// Measure what a recipe costs: the KL divergence of predictions from those of a reference
    Kl(KlArgs),
    /// Ask held-out questions, and count correct answers
    Heldout(HeldoutArgs),
    /// Ask held-out questions, and check that every backend of this machine answers the same
    Agree(AgreeArgs),
}

#[derive(Debug, Args)]
pub struct PplArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub text: EvalText,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What quality is measured on.
#[derive(Debug, Args)]
pub struct EvalText {
    /// The text file
    #[arg(short, long)]
    pub file: PathBuf,
    /// Use the first N tokens of the text
    #[arg(long, value_name = "N")]
    pub tokens: Option<usize>,
    /// Tokens in a window, of which the second half is scored
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(4..))]
    pub window: u32,
}

#[derive(Debug, Args)]
#[command(after_help = KL_HELP)]
pub struct KlArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The reference: another model, or a built-in recipe applied to this one
    #[arg(long, value_name = "MODEL|RECIPE")]
    pub reference: String,
    /// Compare the model quantised by this recipe (repeatable; `all` for every built-in recipe)
    #[arg(long, value_name = "RECIPE", value_delimiter = ',')]
    pub quant: Vec<String>,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub text: EvalText,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const KL_HELP: &str = "\
A recipe is applied to the model's weights, which are dequantised first if they are quantised.
`--reference bf16` is the model with all its matrices in bf16. Without --quant, the model is compared
unchanged. Recipes: bf16, int8, int4, int4-sensitive, q4_0, or a .toml file. int4-minmax and
int4-sensitive-minmax find codes by range instead of half-quadratic optimisation.

  lapidary eval kl model.gguf --reference bf16 --quant all -f wiki.txt --tokens 4096
  lapidary eval kl model.lap --reference checkpoint-folder -f wiki.txt";

/// Which held-out questions to ask.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// A folder with other sets: questions in NAME.jsonl, texts in NAME.txt [default: Lapidary's own]
    #[arg(long, value_name = "FOLDER")]
    pub dir: Option<PathBuf>,
    /// The most tokens to generate for one answer
    #[arg(short = 'n', long, default_value_t = 64, value_name = "N")]
    pub max_tokens: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = HELDOUT_HELP)]
pub struct HeldoutArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub sets: SetArgs,
    /// Ask only these sets (comma-separated) [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub set: Vec<String>,
    /// Ask only the first N questions of each set, or read the first N windows of each text
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Ask this model too, and show how many points MODEL loses against it
    #[arg(long, value_name = "MODEL")]
    pub against: Option<PathBuf>,
}

const HELDOUT_HELP: &str = "\
Answers are greedy. The perplexity of a text counts every token, in windows of 511 tokens after the
token that begins a sequence.

  lapidary eval heldout                            the built-in model
  lapidary eval heldout --against checkpoint-folder  what quantisation lost";

const AGREE_HELP: &str = "\
Answers are greedy. At the first token where two backends differ, the margin shows by how much each
one prefers its own token. The exit code is 1 if a difference is more than a near tie.

  lapidary eval agree --precision exact
  lapidary eval agree --backends reference,vulkan model.lap";

#[derive(Debug, Args)]
#[command(after_help = AGREE_HELP)]
pub struct AgreeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The backend to compare the others with: auto for the best of this machine, or one that
    /// `lapidary doctor` lists
    #[arg(long, value_name = "NAME", default_value = "auto", env = "LAPIDARY_BACKEND")]
    pub backend: String,
    /// Compare only these backends, with the first of them; overrides --backend (comma-separated)
    /// [default: all that are useful on this machine]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub backends: Vec<String>,
    /// The largest margin of a near tie: if both backends prefer their own token by no more than this,
    /// the difference is shown but passes
    #[arg(long, value_name = "X", default_value_t = 0.05)]
    pub near_tie: f32,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub sets: SetArgs,
    /// Ask only these sets (comma-separated)
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "mixed")]
    pub set: Vec<String>,
    /// Ask only the first N questions of each set
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}
