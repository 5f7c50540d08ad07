//! `lapidary verify`.

use std::sync::Arc;

use anyhow::Result;
use lapidary_program::lap::{self, Kind};
use lapidary_runner::golden;

use crate::args::VerifyArgs;
use crate::exit::{Failed, Usage};
use crate::model::{self, Wanted};

/// Checks a file's bytes and a backend's logits, and names the first op that diverges.
pub fn run(args: &VerifyArgs) -> Result<()> {
    let program = model::open(&args.model)?;
    let is_lap = std::fs::File::open(&args.model.model)
        .and_then(|mut f| {
            let mut head = [0; 16];
            std::io::Read::read(&mut f, &mut head).map(|n| lap::sniff(&head[..n]))
        })
        .is_ok_and(|kind| kind == Kind::Safetensors);
    if is_lap {
        lap::check_hashes(&args.model.model)?;
        println!("bytes: as written");
    }
    let goldens = golden::of_program(&program)?;
    let Some(longest) = goldens.iter().map(|g| g.tokens.len()).max() else {
        let what = "it carries no golden logits; `lapidary export` makes a file that does";
        return Err(Usage(what.into()).into());
    };
    let context = program.metadata().max_context_len.min(longest as u32);
    let wanted = Wanted { context, chunk: Some(context), say: true };
    let program = Arc::new(program);
    let mut loaded = model::load((*program).clone(), &args.device, &wanted)?;
    let verdict = golden::verify(loaded.engine.as_mut(), &goldens, args.tolerance)?;
    println!(
        "logits: {} sequences on {}, largest difference {:.3e}, allowed {:.3e}",
        verdict.n_sequences,
        loaded.engine.describe(),
        verdict.max_difference,
        verdict.tolerance
    );
    if verdict.passed() {
        println!("passed");
        return Ok(());
    }
    println!("FAILED");
    let mut reference = model::load_reference(&program, &args.device, &Wanted { say: false, ..wanted })?;
    for g in &goldens {
        let found = golden::first_divergence(
            loaded.engine.as_mut(),
            reference.engine.as_mut(),
            &g.tokens,
            args.tolerance,
        )?;
        if let Some(d) = found {
            println!(
                "first op that diverges: {} ({}), element {}: got {}, reference {}",
                d.node, d.op, d.index, d.got, d.want
            );
            return Err(Failed.into());
        }
    }
    println!("no single op diverges from the reference by more than the tolerance: the file's goldens were made from other weights");
    Err(Failed.into())
}
