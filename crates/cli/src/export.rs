//! `lapidary export`.

use std::sync::Arc;

use anyhow::{Context, Result};
use lapidary_backend::Precision;
use lapidary_program::{Encoding, Program, WeightDecl, blob, lap};
use lapidary_quantise::{dequantise, quantise, synthetic};
use lapidary_runner::golden;

use crate::args::{EngineArgs, ExportArgs, ModelArgs};
use crate::exit::Usage;
use crate::interrupt::cancel_on_interrupt;
use crate::model::{self, MediaNeed, Wanted};
use crate::tell::tell;
use crate::{progress, recipe, target};

/// Tokens of the longest golden sequence, with room.
const GOLDEN_CONTEXT: u32 = 64;

/// Writes a `.lap` file.
pub fn run(args: &ExportArgs) -> Result<()> {
    target::check(&args.out)?;
    if args.out.exists() && !args.force {
        let what = format!("{} is there already; --force replaces it", args.out.display());
        return Err(Usage(what).into());
    }
    let mut program = under_recipe(args, subject(args)?)?;
    // A vocabulary that can't be read is refused before the long work, not after it.
    program.blob(blob::TOKENIZER)?;
    if args.no_golden || args.synthetic.is_some() {
        tell(format_args!("note: without golden logits, `lapidary verify` has nothing to check"));
    } else {
        tell(format_args!(
            "note: computing golden logits on the reference (--no-golden leaves them out)"
        ));
        let wanted = Wanted {
            context: program.metadata().max_context_len.min(GOLDEN_CONTEXT),
            chunk: Some(GOLDEN_CONTEXT),
            say: false,
            precision: Precision::Exact,
            media: MediaNeed::towers(),
        };
        let how = EngineArgs::default();
        let mut reference = model::load_reference(&Arc::new(program.clone()), &how, &wanted)?;
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

/// A model from its files, or a released shape with random weights.
fn subject(args: &ExportArgs) -> Result<Program> {
    match (&args.model, &args.synthetic) {
        (Some(path), _) => {
            let (draft, mmproj) = (args.draft.clone(), args.mmproj.clone());
            let no_mmap = args.no_mmap;
            model::open(&ModelArgs { no_mmap, draft, mmproj, ..ModelArgs::at(path) })
        }
        (None, Some(name)) => Ok(synthetic(&recipe::shape(name)?, None)?),
        (None, None) => Err(Usage("give a model, or --synthetic and a shape".into()).into()),
    }
}

fn under_recipe(args: &ExportArgs, mut program: Program) -> Result<Program> {
    let Some(name) = &args.quant else { return Ok(program) };
    let is_quantised = |d: &WeightDecl| matches!(d.encoding, Encoding::Quant(_));
    let n = program.weights().values().filter(|d| is_quantised(d)).count();
    if args.requantise {
        program = dequantise(&program)?;
    } else if n > 0 {
        tell(format_args!(
            "note: {n} weights are quantised already and stay so (--requantise quantises them too)"
        ));
    }
    Ok(quantise(&program, &recipe::of(name, &program)?)?)
}
