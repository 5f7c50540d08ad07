//! `lapidary export`.

use std::sync::Arc;

use anyhow::{Context, Result};
use lapidary_program::{blob, lap};
use lapidary_runner::golden;

use crate::args::{DeviceArgs, ExportArgs};
use crate::exit::Usage;
use crate::model::{self, Wanted};
use crate::progress;

/// Tokens of the longest golden sequence, with room.
const GOLDEN_CONTEXT: u32 = 64;

/// Writes a `.lap` file.
pub fn run(args: &ExportArgs) -> Result<()> {
    if args.out.exists() && !args.force {
        let what = format!("{} is there already; --force replaces it", args.out.display());
        return Err(Usage(what).into());
    }
    if args.out.is_dir() {
        return Err(Usage(format!("{} is a folder; name a file", args.out.display())).into());
    }
    let mut program = model::open(&args.model)?;
    if args.no_golden {
        eprintln!("note: without golden logits, `lapidary verify` has nothing to check");
    } else {
        eprintln!("note: computing golden logits on the reference (--no-golden leaves them out)");
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
    lap::write(&program, &args.out, &mut |done, all| bar.set(done, all))?;
    drop(bar);
    lap::check_hashes(&args.out).context("what was written does not read back")?;
    let bytes = std::fs::metadata(&args.out)?.len();
    eprintln!("wrote {} ({})", args.out.display(), indicatif::HumanBytes(bytes));
    Ok(())
}
