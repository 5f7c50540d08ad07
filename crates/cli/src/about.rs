//! What the command says of itself: its version, completions and man pages. All of it comes from the
//! definitions of the flags.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use lapidary::program::lap::{OLDEST_VERSION, VERSION};
use lapidary::program::out_file::OutFile;

use crate::args::about::{CompletionsArgs, ManArgs};
use crate::args::command;
use crate::exit::Usage;
use crate::screen;
use crate::target;
use crate::tell::tell;

/// The commit that this was built from; empty if that is not known.
pub const COMMIT: &str = env!("LAPIDARY_BUILD_COMMIT");

/// `lapidary --version`.
pub fn version(verbose: bool) -> Result<()> {
    let mut out = screen::out();
    writeln!(out, "lapidary {}", env!("CARGO_PKG_VERSION"))?;
    if verbose {
        let commit = if COMMIT.is_empty() { "not known" } else { COMMIT };
        let backends: Vec<&str> = lapidary::backend_names();
        writeln!(out, "commit    {commit}")?;
        writeln!(out, "built for {}", env!("LAPIDARY_BUILD_TARGET"))?;
        writeln!(
            out,
            "built by  {}, {}",
            env!("LAPIDARY_BUILD_RUSTC"),
            env!("LAPIDARY_BUILD_PROFILE")
        )?;
        writeln!(out, "backends  {}", backends.join(", "))?;
        writeln!(out, ".lap      reads versions {OLDEST_VERSION} to {VERSION}")?;
    }
    Ok(out.flush()?)
}

/// `lapidary completions`.
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "lapidary", &mut script);
    let mut out = screen::out();
    out.write_all(&script)?;
    Ok(out.flush()?)
}

/// `lapidary man`.
pub fn man(args: &ManArgs) -> Result<()> {
    let pages = pages()?;
    if let Some(folder) = &args.out {
        return write(&pages, folder, args.force);
    }
    let wanted = std::iter::once("lapidary").chain(args.command.iter().map(String::as_str));
    let wanted = wanted.collect::<Vec<_>>().join("-");
    let Some((_, page)) = pages.iter().find(|(name, _)| *name == wanted) else {
        let what = format!(
            "there is no command `{}`; `lapidary --help` lists them",
            args.command.join(" ")
        );
        return Err(Usage(what).into());
    };
    let mut out = screen::out();
    out.write_all(page)?;
    Ok(out.flush()?)
}

/// The pages of all commands, and their names.
fn pages() -> Result<Vec<(String, Vec<u8>)>> {
    let mut whole = command().disable_help_subcommand(true);
    whole.build();
    let mut pages = Vec::new();
    let mut open = vec![(String::from("lapidary"), whole)];
    while let Some((name, command)) = open.pop() {
        for inner in command.get_subcommands().filter(|c| c.get_name() != "help") {
            open.push((format!("{name}-{}", inner.get_name()), inner.clone()));
        }
        let mut page = Vec::new();
        let titled = command.clone().display_name(name.clone());
        clap_mangen::Man::new(titled).render(&mut page)?;
        pages.push((name, page));
    }
    pages.sort();
    Ok(pages)
}

fn write(pages: &[(String, Vec<u8>)], folder: &Path, force: bool) -> Result<()> {
    let cant = |path: &Path| format!("can't write {}", path.display());
    std::fs::create_dir_all(folder).with_context(|| cant(folder))?;
    let path_of = |name: &str| folder.join(format!("{name}.1"));
    for (name, _) in pages {
        target::check(&path_of(name), force)?;
    }
    for (name, page) in pages {
        let path = path_of(name);
        let mut out =
            OutFile::create(&path, target::existing(force)).with_context(|| cant(&path))?;
        out.write_all(page).and_then(|()| out.finish()).with_context(|| cant(&path))?;
    }
    tell(format_args!("wrote {} pages to {}", pages.len(), folder.display()));
    Ok(())
}
