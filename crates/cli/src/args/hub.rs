//! Names of models, and what is downloaded.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = PULL_HELP)]
pub struct PullArgs {
    /// Names: gemma4:e2b, gemma3:1b-it-bf16, org/repo, org/repo:Q4_K_M, org/repo@revision
    #[arg(required = true)]
    pub names: Vec<String>,
    /// Download also what does not fit into this machine's memory
    #[arg(short, long)]
    pub force: bool,
}

const PULL_HELP: &str = "\
Files go to Hugging Face's own cache, where its tools find them, and what these have downloaded is
not downloaded again. A download that was interrupted goes on where it ended.

HF_HOME and HF_HUB_CACHE set the folder, HF_TOKEN the token (or `hf auth login`), HF_ENDPOINT another
hub; HF_HUB_OFFLINE=1 keeps Lapidary from connecting.

  lapidary pull gemma4:e2b
  lapidary pull ggml-org/gemma-3-4b-it-GGUF:Q4_K_M";

#[derive(Debug, Args)]
pub struct LsArgs {
    /// List also the models that have a name but are not on this machine
    #[arg(short, long)]
    pub all: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// A name: gemma4:e2b, gemma3:1b-it-bf16, org/repo
    pub name: String,
    /// Backend: auto, or one that `lapidary doctor` lists
    #[arg(long, default_value = "auto", env = "LAPIDARY_BACKEND")]
    pub backend: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RmArgs {
    /// Names; all variants that come from the same repository go together
    #[arg(required = true)]
    pub names: Vec<String>,
}
