//! `lapidary eval kl`.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use lapidary_backend::Precision;
use lapidary_gemma::recipes::BUILT_IN;
use lapidary_program::Program;
use lapidary_quantise::{dequantise, quantise};
use lapidary_runner::{Divergence, Runner, divergence};
use serde_json::{Value, json};

use crate::args::ModelArgs;
use crate::args::eval::KlArgs;
use crate::model::{self, MediaNeed, Wanted};
use crate::tell::tell;
use crate::tokens::read_text;
use crate::{progress, recipe};

/// Prints how far a model, or the recipes that are asked for, are from a reference.
pub fn run(args: &KlArgs) -> Result<()> {
    let text = read_text(&args.text.file)?;
    let program = model::open(&args.model)?;
    let tokenizer = model::tokenizer(&program, &args.model)?;
    let mut tokens = Vec::new();
    tokens.extend(program.metadata().bos_id.filter(|_| program.metadata().add_bos));
    tokens.extend(tokenizer.encode_text(&text)?);
    tokens.truncate(args.text.tokens.unwrap_or(usize::MAX));
    // All names are looked up before anything is loaded.
    let models = models(args, &program)?;
    let mut reference = load(args, reference(args, &program)?)?;

    let start = Instant::now();
    let mut results: Vec<(Model, Divergence)> = Vec::new();
    let mut waiting = models.into_iter().peekable();
    while waiting.peek().is_some() {
        let (group, mut runners) = as_many_as_fit(args, &mut waiting)?;
        let names: Vec<&str> = group.iter().map(|m| m.name.as_str()).collect();
        tell(format_args!("note: comparing {} with {}", names.join(", "), args.reference));
        let bar = progress::Counted::windows();
        let window = args.text.window as usize;
        let found = divergence(&mut reference, &mut runners, &tokens, window, &mut |done, all| {
            bar.set(done, all);
        })?;
        results.extend(group.into_iter().zip(found));
    }
    let took = start.elapsed().as_secs_f64();
    let mut out = std::io::stdout().lock();
    match results.as_slice() {
        _ if args.json => writeln!(out, "{}", report(args, &results, took)?)?,
        [(model, only)] => write!(out, "{}", list(args, model, only))?,
        many => write!(out, "{}", table(many))?,
    }
    Ok(out.flush()?)
}

/// What is compared.
struct Model {
    name: String,
    program: Program,
}

fn models(args: &KlArgs, program: &Program) -> Result<Vec<Model>> {
    if args.quant.is_empty() {
        let name = program.metadata().name.clone();
        return Ok(vec![Model { name, program: program.clone() }]);
    }
    let mut names: Vec<&str> = Vec::new();
    for name in &args.quant {
        match name.as_str() {
            "all" => names.extend(BUILT_IN.iter().filter(|n| **n != args.reference)),
            one => names.push(one),
        }
    }
    names
        .into_iter()
        .map(|name| Ok(Model { name: name.to_string(), program: under(name, program)? }))
        .collect()
}

fn reference(args: &KlArgs, program: &Program) -> Result<Program> {
    if BUILT_IN.contains(&args.reference.as_str()) {
        return under(&args.reference, program);
    }
    let model = ModelArgs::at(Path::new(&args.reference));
    model::open(&ModelArgs { no_mmap: args.model.no_mmap, ..model })
}

/// The program's numbers under a recipe, whatever they are quantised to now.
fn under(name: &str, program: &Program) -> Result<Program> {
    let numbers = dequantise(program)?;
    Ok(quantise(&numbers, &recipe::of(name, &numbers)?)?)
}

fn load(args: &KlArgs, program: Program) -> Result<Runner> {
    let wanted = Wanted {
        context: args.text.window,
        chunk: None,
        say: false,
        precision: Precision::Fast,
        media: MediaNeed::default(),
    };
    let loaded = model::load(program, &args.device, &wanted)?;
    // Tokens come from the model's own tokenizer; none of these needs one.
    Ok(Runner::with_parts(loaded.engine, None, None)?)
}

/// Loads models until the next would not fit beside them, and at least one: the reference runs once
/// for all that are loaded together.
fn as_many_as_fit(
    args: &KlArgs,
    waiting: &mut std::iter::Peekable<std::vec::IntoIter<Model>>,
) -> Result<(Vec<Model>, Vec<Runner>)> {
    let (mut group, mut runners) = (Vec::new(), Vec::new());
    while let Some(next) = waiting.peek() {
        match load(args, next.program.clone()) {
            Err(e) if !runners.is_empty() && is_out_of_memory(&e) => break,
            loaded => runners.push(loaded?),
        }
        group.extend(waiting.next());
    }
    Ok((group, runners))
}

fn is_out_of_memory(error: &anyhow::Error) -> bool {
    use lapidary_backend::Error;
    error.chain().any(|e| matches!(e.downcast_ref::<Error>(), Some(Error::OutOfMemory(_))))
}

fn report(args: &KlArgs, results: &[(Model, Divergence)], took: f64) -> Result<Value> {
    let models = results
        .iter()
        .map(|(model, found)| {
            let mut row = serde_json::to_value(found)?;
            row["name"] = json!(model.name);
            row["size_bytes"] = json!(model.program.weight_bytes());
            Ok(row)
        })
        .collect::<Result<Vec<Value>>>()?;
    Ok(json!({
        "reference": args.reference,
        "window": args.text.window,
        "seconds": took,
        "models": models,
    }))
}

fn list(args: &KlArgs, model: &Model, d: &Divergence) -> String {
    let lines = [
        format!("{} against {}", model.name, args.reference),
        format!("mean KL         {:.6} ± {:.6}", d.kl_mean, d.kl_stderr),
        format!("median KL       {:.6}", d.kl_median),
        format!("90 % KL         {:.6}", d.kl_p90),
        format!("95 % KL         {:.6}", d.kl_p95),
        format!("99 % KL         {:.6}", d.kl_p99),
        format!("99.9 % KL       {:.6}", d.kl_p99_9),
        format!("maximum KL      {:.6}", d.kl_max),
        format!("same top token  {:.2} %", d.same_top * 100.0),
        format!("mean Δp         {:.3} %", d.delta_p_mean * 100.0),
        format!("RMS Δp          {:.3} %", d.delta_p_rms * 100.0),
        format!("perplexity      {:.4}, reference {:.4}", d.ppl, d.ppl_reference),
        format!("ln of the ratio {:.6} ± {:.6}", d.ln_ppl_ratio, d.ln_ppl_ratio_stderr),
        format!("{} tokens scored in {} windows of {}", d.n_scored, d.n_windows, args.text.window),
    ];
    lines.join("\n") + "\n"
}

fn table(results: &[(Model, Divergence)]) -> String {
    let mut lines = vec![
        "| recipe | bits | mean KL | median | 90 % | 95 % | 99 % | 99.9 % | max | same top | \
         mean Δp | RMS Δp | ppl | ln(ppl/ref) |"
            .to_string(),
        format!("| --- {}|", "| ---: ".repeat(13)),
    ];
    for (model, d) in results {
        let (program, percent) = (&model.program, |x: f64| format!("{:.2} %", x * 100.0));
        let bits = program.weight_bytes() as f64 * 8.0 / program.n_params().max(1) as f64;
        lines.push(format!(
            "| {} | {bits:.2} | {:.5} ± {:.5} | {:.5} | {:.5} | {:.5} | {:.4} | {:.4} | {:.4} | \
             {} | {} | {} | {:.4} | {:.5} ± {:.5} |",
            model.name,
            d.kl_mean,
            d.kl_stderr,
            d.kl_median,
            d.kl_p90,
            d.kl_p95,
            d.kl_p99,
            d.kl_p99_9,
            d.kl_max,
            percent(d.same_top),
            percent(d.delta_p_mean),
            percent(d.delta_p_rms),
            d.ppl,
            d.ln_ppl_ratio,
            d.ln_ppl_ratio_stderr,
        ));
    }
    if let Some((_, d)) = results.first() {
        let (n, windows) = (d.n_scored, d.n_windows);
        lines.push(format!(
            "\nreference perplexity {:.4}; {n} tokens scored in {windows} windows",
            d.ppl_reference
        ));
    }
    lines.join("\n") + "\n"
}
