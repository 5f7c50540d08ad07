//! `lapidary verify`.

use std::fmt;
use std::io::Write;

use anyhow::Result;
use lapidary::program::method;
use lapidary::{Load, Precision, Towers};
use lapidary_measure::golden::{self, Golden, Verdict};
use serde_json::{Value, json};

use crate::args::VerifyArgs;
use crate::exit::Failed;
use crate::model;
use crate::tell::tell;

/// Checks a file's bytes and a backend's logits, and names the first op that diverges.
pub fn run(args: &VerifyArgs) -> Result<()> {
    let mut out = crate::screen::out();
    let mut written: std::io::Result<()> = Ok(());
    let mut report = Report::default();
    let passed = check(args, &mut report, &mut |line| {
        if written.is_ok() && !args.json {
            written = writeln!(out, "{line}");
        }
    })?;
    if args.json {
        let text = serde_json::to_string_pretty(&report.as_json(passed))?;
        written = writeln!(out, "{text}");
    }
    // The verdict counts even if nobody reads it.
    match passed {
        true => Ok(written.and_then(|()| out.flush())?),
        false => Err(Failed.into()),
    }
}

/// What was found, for programs.
#[derive(Default)]
struct Report {
    model: String,
    device: Option<String>,
    bytes_checked: bool,
    outputs: Vec<Value>,
    diverges: Option<Value>,
}

impl Report {
    fn as_json(&self, passed: bool) -> Value {
        json!({
            "model": self.model,
            "device": self.device,
            "bytes_checked": self.bytes_checked,
            "logits_checked": !self.outputs.is_empty(),
            "outputs": self.outputs,
            "first_divergence": self.diverges,
            "passed": passed,
        })
    }
}

/// Whether all is well; `show` is told what was found.
fn check(
    args: &VerifyArgs,
    report: &mut Report,
    show: &mut dyn FnMut(fmt::Arguments<'_>),
) -> Result<bool> {
    let tolerance = args.tolerance as f32;
    let model = model::open(&args.model)?;
    let checked = model.check_bytes()?;
    (report.model, report.bytes_checked) = (model.name().to_string(), checked);
    if checked {
        show(format_args!("bytes: as written"));
    }
    let goldens = golden::of_program(model.program())?;
    let Some(longest) = golden::longest(&goldens) else {
        let what =
            "it carries no golden logits to compare with; `lapidary export` makes a file that does";
        if checked {
            show(format_args!("logits: not checked: {what}"));
            return Ok(true);
        }
        anyhow::bail!("nothing can be checked: {what}");
    };
    let context = model.metadata().max_context_len.min(longest as u32);
    let as_goldens = |load: Load| {
        let load = load.context(context).chunk(context).towers(Towers::any());
        model::engine_args(load, &args.device.engine, Precision::Exact)
    };
    let mut loaded = model.load_engine(&as_goldens(model::load_args(&args.device, true)))?;
    tell(format_args!("note: running on {}", loaded.engine.describe()));
    let verdicts = golden::verify(loaded.engine.as_mut(), &goldens, tolerance)?;
    report.device = Some(loaded.engine.describe());
    for v in &verdicts {
        report.outputs.push(json!({
            "method": v.method, "calls": v.n_calls, "largest_difference": v.max_difference,
            "allowed": v.tolerance, "passed": v.passed(),
        }));
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
    let reference = as_goldens(Load::default().backend("reference"));
    let mut reference = model.load_engine(&reference)?;
    let failed = |g: &&Golden| verdicts.iter().any(|v| v.method == g.method() && !v.passed());
    for g in goldens.iter().filter(failed) {
        let found = golden::first_divergence(
            loaded.engine.as_mut(),
            reference.engine.as_mut(),
            g,
            tolerance,
        )?;
        if let Some(d) = found {
            report.diverges = Some(json!({
                "node": d.node, "op": d.op, "element": d.index, "got": d.got, "reference": d.want,
            }));
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
