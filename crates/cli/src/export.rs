//! `lapidary export`.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use lapidary_program::{Program, blob, lap};
use lapidary_quantise::{Recipe, quantise};
use lapidary_runner::golden;

use crate::args::{DeviceArgs, ExportArgs};
use crate::exit::Usage;
use crate::interrupt::cancel_on_interrupt;
use crate::model::{self, Wanted};
use crate::progress;
use crate::target;
use crate::tell::tell;

/// Tokens of the longest golden sequence, with room.
const GOLDEN_CONTEXT: u32 = 64;

/// Writes a `.lap` file.
pub fn run(args: &ExportArgs) -> Result<()> {
    target::check(&args.out)?;
    if args.out.exists() && !args.force {
        let what = format!("{} is there already; --force replaces it", args.out.display());
        return Err(Usage(what).into());
    }
    let mut program = model::open(&args.model)?;
    if let Some(recipe) = &args.quant {
        let recipe = recipe_of(recipe, &program)?;
        program = quantise(&program, &recipe)?;
    }
    if args.no_golden {
        tell(format_args!("note: without golden logits, `lapidary verify` has nothing to check"));
    } else {
        tell(format_args!(
            "note: computing golden logits on the reference (--no-golden leaves them out)"
        ));
        let wanted = Wanted {
            context: program.metadata().max_context_len.min(GOLDEN_CONTEXT),
            chunk: Some(GOLDEN_CONTEXT),
            say: false,
        };
        let device = DeviceArgs { backend: "reference".into(), threads: None };
        let mut reference = model::load_reference(&Arc::new(program.clone()), &device, &wanted)?;
        let goldens = golden::compute(reference.engine.as_mut())?;
        program.set_blob(blob::GOLDEN, golden::to_blob(&goldens)?);
    }
    let bar = progress::Bytes::new("writing");
    let cancel = cancel_on_interrupt()?;
    lap::write(&program, &args.out, &mut |done, all| {
        bar.set(done, all);
        !cancel.is_cancelled()
    })?;
    drop(bar);
    lap::check_hashes(&args.out).context("what was written does not read back")?;
    let bytes = std::fs::metadata(&args.out)?.len();
    tell(format_args!("wrote {} ({})", args.out.display(), indicatif::HumanBytes(bytes)));
    Ok(())
}

/// A built-in recipe, or one from a TOML file.
pub fn recipe_of(name: &str, program: &Program) -> Result<Recipe> {
    let is_file = Path::new(name).extension().is_some_and(|e| e == "toml");
    if !is_file {
        return Ok(Recipe::built_in(name, program)?);
    }
    let text = std::fs::read_to_string(name).with_context(|| format!("can't read {name}"))?;
    Recipe::from_toml(&text).with_context(|| name.to_string())
}
