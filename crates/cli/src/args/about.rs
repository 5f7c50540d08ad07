//! The arguments of what the command says of itself.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_HELP)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

const COMPLETIONS_HELP: &str = "\
  bash        lapidary completions bash > ~/.local/share/bash-completion/completions/lapidary
  zsh         lapidary completions zsh > \"${fpath[1]}/_lapidary\"
  fish        lapidary completions fish > ~/.config/fish/completions/lapidary.fish
  powershell  lapidary completions powershell >> $PROFILE";

#[derive(Debug, Args)]
#[command(after_help = MAN_HELP)]
pub struct ManArgs {
    /// The command whose page is printed: `run`, `eval ppl` [default: the page of lapidary itself]
    #[arg(conflicts_with = "out")]
    pub command: Vec<String>,
    /// Write the pages of all commands to this folder
    #[arg(short, long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Overwrite pages that exist
    #[arg(short, long, requires = "out")]
    pub force: bool,
}

const MAN_HELP: &str = "\
  lapidary man run | man -l -
  lapidary man -o ~/.local/share/man/man1";
