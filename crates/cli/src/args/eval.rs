//! What may be typed behind `lapidary eval`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{DeviceArgs, ModelArgs};

#[derive(Debug, Subcommand)]
pub enum EvalCommand {
    /// Perplexity of a text, in windows of which the second half counts
    Ppl(PplArgs),
    /// How far predictions are from those of a reference: what a recipe costs
    Kl(KlArgs),
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
    /// The text
    #[arg(short, long)]
    pub file: PathBuf,
    /// Use the first N tokens of the text
    #[arg(long, value_name = "N")]
    pub tokens: Option<usize>,
    /// Tokens of one window, of which the second half counts
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(4..))]
    pub window: u32,
}

#[derive(Debug, Args)]
#[command(after_help = KL_HELP)]
pub struct KlArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// What to compare with: another model, or a built-in recipe applied to this one
    #[arg(long, value_name = "MODEL|RECIPE")]
    pub reference: String,
    /// What to compare: the model under a recipe (repeatable; `all` for every built-in recipe)
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
Recipes are applied to the model's numbers, dequantised first where it is quantised already.
`--reference bf16` is the model with all its matrices in bf16. Without --quant the model is compared
as it is. Recipes: bf16, int8, int4, int4-sensitive, q4_0, or a .toml file; int4-minmax and
int4-sensitive-minmax are the same with codes found by range instead of half-quadratic optimisation.

  lapidary eval kl model.gguf --reference bf16 --quant all -f wiki.txt --tokens 4096
  lapidary eval kl model.lap --reference checkpoint-folder -f wiki.txt";
