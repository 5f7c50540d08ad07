//! `lapidary verify`.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use lapidary_backend::Precision;
use lapidary_program::lap::{self, Kind};
use lapidary_program::method;
use lapidary_runner::golden::{self, Golden, Verdict};

use crate::args::VerifyArgs;
use crate::exit::{Failed, Usage};
use crate::model::{self, MediaNeed, Wanted};
use crate::named::Named;

/// Checks a file's bytes and a backend's logits, and names the first op that diverges.
pub fn run(args: &VerifyArgs) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut written: std::io::Result<()> = Ok(());
    let passed = check(args, &mut |line| {
        if written.is_ok() {
            written = writeln!(out, "{line}");
        }
    })?;
    // The verdict counts even if nobody reads it.
    match passed {
        true => Ok(written.and_then(|()| out.flush())?),
        false => Err(Failed.into()),
    }
}

/// Whether all is well; `show` is told what was found.
fn check(args: &VerifyArgs, show: &mut dyn FnMut(fmt::Arguments<'_>)) -> Result<bool> {
    let program = model::open(&args.model)?;
    let checked = match args.model.named() {
        Named::Pebble => Some(lap::check_hashes_in(&lapidary_pebble::file())),
        Named::Path(path) => is_lap(path).then(|| lap::check_hashes(path)),
    };
    if let Some(checked) = checked {
        checked?;
        show(format_args!("bytes: as written"));
    }
    let goldens = golden::of_program(&program)?;
    let Some(longest) = golden::longest(&goldens) else {
        let what = "it carries no golden logits; `lapidary export` makes a file that does";
        return Err(Usage(what.into()).into());
    };
    let context = program.metadata().max_context_len.min(longest as u32);
    let wanted = Wanted {
        context,
        chunk: Some(context),
        say: true,
        precision: Precision::Exact,
        media: MediaNeed::towers(),
    };
    let program = Arc::new(program);
    let mut loaded = model::load((*program).clone(), &args.device, &wanted)?;
    let verdicts = golden::verify(loaded.engine.as_mut(), &goldens, args.tolerance)?;
    for v in &verdicts {
        let what = match v.method {
            method::FORWARD => format!("logits: {} sequences", v.n_calls),
            tower => format!("{tower}: {} call", v.n_calls),
        };
        show(format_args!(
            "{what} on {}, largest difference {:.3e}, allowed {:.3e}",
            loaded.engine.describe(),
            v.max_difference,
            v.tolerance
        ));
    }
    if verdicts.iter().all(Verdict::passed) {
        show(format_args!("passed"));
        return Ok(true);
    }
    show(format_args!("FAILED"));
    let wanted = Wanted { say: false, ..wanted };
    let mut reference = model::load_reference(&program, &args.device.engine, &wanted)?;
    let failed = |g: &&Golden| verdicts.iter().any(|v| v.method == g.method() && !v.passed());
    for g in goldens.iter().filter(failed) {
        let found = golden::first_divergence(
            loaded.engine.as_mut(),
            reference.engine.as_mut(),
            g,
            args.tolerance,
        )?;
        if let Some(d) = found {
            show(format_args!(
                "first op that diverges: {} ({}), element {}: got {}, reference {}",
                d.node, d.op, d.index, d.got, d.want
            ));
            return Ok(false);
        }
    }
    show(format_args!(
        "no op diverges from the reference by more than the tolerance: the file's goldens were made \
         from other weights"
    ));
    Ok(false)
}

fn is_lap(path: &Path) -> bool {
    let mut head = [0; 16];
    let read = File::open(path).and_then(|mut f| f.read(&mut head));
    read.is_ok_and(|n| lap::sniff(&head[..n]) == Kind::Safetensors)
}
