//! `lapidary export`.

use anyhow::{Context, Result};
use lapidary::program::out_file::OutFile;
use lapidary::program::{blob, lap};
use lapidary::{CancelToken, Load, Model, Precision, Towers};
use lapidary_measure::golden;

use crate::args::{DraftArg, EngineArgs, ExportArgs, ModelArgs};
use crate::exit::Usage;
use crate::interrupt::cancel_on_interrupt;
use crate::model;
use crate::tell::tell;
use crate::{progress, target};

/// Tokens of the longest golden sequence, with room.
const GOLDEN_CONTEXT: u32 = 64;

/// Writes a `.lap` file.
pub fn run(args: &ExportArgs) -> Result<()> {
    target::check(&args.out, args.force)?;
    let model = under_recipe(args, subject(args)?)?;
    let mut program = (**model.program()).clone();
    // A vocabulary that can't be read is refused before the long work, not after it.
    program.blob(blob::TOKENIZER)?;
    if args.no_golden || args.synthetic.is_some() {
        tell(format_args!("note: without golden logits, `lapidary verify` has nothing to check"));
    } else {
        tell(format_args!(
            "note: computing golden logits on the reference (--no-golden leaves them out)"
        ));
        let load = Load::default()
            .backend("reference")
            .context(program.metadata().max_context_len.min(GOLDEN_CONTEXT))
            .chunk(GOLDEN_CONTEXT)
            .towers(Towers::any());
        let load = model::engine_args(load, &EngineArgs::default(), Precision::Exact);
        let mut reference = model.load_engine(&load)?;
        drop(load);
        let goldens = golden::compute(reference.engine.as_mut())?;
        program.set_blob(blob::GOLDEN, golden::to_blob(&goldens)?);
    }
    let bar = progress::Bytes::new("writing");
    let cancel = CancelToken::new();
    cancel_on_interrupt(cancel.clone())?;
    let out = OutFile::create(&args.out, target::existing(args.force))
        .with_context(|| format!("can't write {}", args.out.display()))?;
    lap::write_file(&program, &args.out, out, &mut |done, all| {
        bar.set(done, all);
        !cancel.is_cancelled()
    })?;
    drop(bar);
    lap::check_hashes(&args.out).context("the file that was written can't be read back")?;
    let bytes = std::fs::metadata(&args.out)?.len();
    tell(format_args!("wrote {} ({})", args.out.display(), indicatif::HumanBytes(bytes)));
    Ok(())
}

/// A model from its files, or a released shape with random weights.
fn subject(args: &ExportArgs) -> Result<Model> {
    match (&args.model, &args.synthetic) {
        (Some(path), _) => {
            let (draft, mmproj) = (args.draft.clone().map(DraftArg::At), args.mmproj.clone());
            let no_mmap = args.no_mmap;
            model::open(&ModelArgs { no_mmap, draft, mmproj, ..ModelArgs::at(path) })
        }
        (None, Some(name)) => Ok(Model::synthetic(name, None)?),
        (None, None) => Err(Usage("give a model, or --synthetic and a shape".into()).into()),
    }
}

fn under_recipe(args: &ExportArgs, mut model: Model) -> Result<Model> {
    let Some(recipe) = &args.quant else { return Ok(model) };
    let n = model.n_quantised();
    if args.requantise {
        model = model.dequantised()?;
    } else if n > 0 {
        tell(format_args!(
            "note: {n} weights are quantised already and stay so (--requantise quantises them too)"
        ));
    }
    Ok(model.quantised(recipe)?)
}
