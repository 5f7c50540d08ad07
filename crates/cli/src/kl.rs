//! `lapidary eval kl`.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use lapidary::{ErrorCode, Model, Runner};
use lapidary_measure::{Divergence, divergence};
use serde_json::{Value, json};

use crate::args::ModelArgs;
use crate::args::eval::KlArgs;
use crate::input;
use crate::model;
use crate::progress;
use crate::tell::tell;

/// Prints how far a model, or the recipes that are asked for, are from a reference.
pub fn run(args: &KlArgs) -> Result<()> {
    let text = input::file(&args.text.file)?;
    let model = model::open(&args.model)?;
    model::need_tokenizer(&model)?;
    let mut tokens = model.tokenise(&text)?;
    tokens.truncate(args.text.tokens.unwrap_or(usize::MAX));
    // All names are looked up before anything is loaded.
    let models = models(args, &model)?;
    let mut reference = load(args, &reference(args, &model)?)?;

    let start = Instant::now();
    let mut results: Vec<(Compared, Divergence)> = Vec::new();
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
    let mut out = crate::screen::out();
    match results.as_slice() {
        _ if args.json => writeln!(out, "{}", report(args, &results, took)?)?,
        [(model, only)] => write!(out, "{}", list(args, model, only))?,
        many => write!(out, "{}", table(many))?,
    }
    Ok(out.flush()?)
}

/// What is compared.
struct Compared {
    name: String,
    model: Model,
}

fn models(args: &KlArgs, model: &Model) -> Result<Vec<Compared>> {
    if args.quant.is_empty() {
        let name = model.name().to_string();
        return Ok(vec![Compared { name, model: model.clone() }]);
    }
    let mut names: Vec<&str> = Vec::new();
    for name in &args.quant {
        match name.as_str() {
            "all" => names.extend(Model::recipes().iter().filter(|n| **n != args.reference)),
            one => names.push(one),
        }
    }
    names
        .into_iter()
        .map(|name| Ok(Compared { name: name.to_string(), model: under(name, model)? }))
        .collect()
}

fn reference(args: &KlArgs, model: &Model) -> Result<Model> {
    if Model::recipes().contains(&args.reference.as_str()) {
        return under(&args.reference, model);
    }
    let other = ModelArgs::at(Path::new(&args.reference));
    model::open(&ModelArgs { no_mmap: args.model.no_mmap, ..other })
}

/// The model's numbers under a recipe, whatever they are quantised to now.
fn under(recipe: &str, model: &Model) -> Result<Model> {
    Ok(model.dequantised()?.quantised(recipe)?)
}

fn load(args: &KlArgs, model: &Model) -> Result<Runner> {
    let load = model::load_args(&args.device, false).context(args.text.window).text_only();
    Ok(model::load_runner(model, load, false)?.runner)
}

/// Loads models until the next would not fit beside them, and at least one: the reference runs once
/// for all that are loaded together.
fn as_many_as_fit(
    args: &KlArgs,
    waiting: &mut std::iter::Peekable<std::vec::IntoIter<Compared>>,
) -> Result<(Vec<Compared>, Vec<Runner>)> {
    let (mut group, mut runners) = (Vec::new(), Vec::new());
    while let Some(next) = waiting.peek() {
        match load(args, &next.model) {
            Err(e) if !runners.is_empty() && is_out_of_memory(&e) => break,
            loaded => runners.push(loaded?),
        }
        group.extend(waiting.next());
    }
    Ok((group, runners))
}

fn is_out_of_memory(error: &anyhow::Error) -> bool {
    error.chain().find_map(ErrorCode::of) == Some(ErrorCode::OutOfMemory)
}

fn report(args: &KlArgs, results: &[(Compared, Divergence)], took: f64) -> Result<Value> {
    let models = results
        .iter()
        .map(|(model, found)| {
            let mut row = serde_json::to_value(found)?;
            row["name"] = json!(model.name);
            row["size_bytes"] = json!(model.model.program().weight_bytes());
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

fn list(args: &KlArgs, model: &Compared, d: &Divergence) -> String {
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

fn table(results: &[(Compared, Divergence)]) -> String {
    let mut lines = vec![
        "| recipe | bits | mean KL | median | 90 % | 95 % | 99 % | 99.9 % | max | same top | \
         mean Δp | RMS Δp | ppl | ln(ppl/ref) |"
            .to_string(),
        format!("| --- {}|", "| ---: ".repeat(13)),
    ];
    for (model, d) in results {
        let (program, percent) = (model.model.program(), |x: f64| format!("{:.2} %", x * 100.0));
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
