//! `lapidary bench --parallel`: many sequences at once.

use std::io::Write;

use anyhow::Result;
use lapidary::backend::{Error as BackendError, PAGE, pages_for};
use lapidary::{Load, Model, Plan, Towers};
use lapidary_measure::{BatchTest, BatchTimes, bench_batch};
use serde_json::{Value, json};

use super::Facts;
use crate::args::bench::BenchArgs;
use crate::exit::Usage;
use crate::model;
use crate::tell::tell;

/// Measures each number of sequences.
pub fn run(args: &BenchArgs, model: &Model) -> Result<()> {
    let tests = tests(args)?;
    let context = tests.iter().map(BatchTest::context).max().unwrap_or(1);
    let context = u32::try_from(context).unwrap_or(u32::MAX);
    let most = args.parallel.iter().copied().max().unwrap_or(1);
    let mut load = model::load_args(&args.device, false)
        .sequences(most)
        .context(context)
        .towers(Towers::none());
    if let Some(chunk) = args.chunk {
        load = load.chunk(chunk);
    }
    need_pages(&load, model, context, most)?;
    let mut loaded = model::load_runner(model, load, false)?;
    let facts = Facts::of(model.program());
    let device = loaded.runner.describe();

    let mut rows = Vec::new();
    for test in &tests {
        // The first run warms caches and pages; it is not counted.
        bench_batch(&mut loaded.runner, *test)?;
        let mut all = Vec::new();
        for _ in 0..args.repetitions {
            all.push(bench_batch(&mut loaded.runner, *test)?);
        }
        rows.push(row(test, &median(all), &facts, &device));
        let BatchTest { n_sequences, n_prompt, n_gen } = test;
        tell(format_args!("note: {n_sequences} × (pp{n_prompt} + tg{n_gen}) done"));
    }
    let mut out = crate::screen::out();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &rows).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", table(&rows))?;
    }
    Ok(out.flush()?)
}

fn tests(args: &BenchArgs) -> Result<Vec<BatchTest>> {
    let mut tests = Vec::new();
    for n_prompt in args.prompts() {
        if n_prompt == 0 {
            let what = "--parallel needs prompts of at least one token: -p 1";
            return Err(Usage(what.into()).into());
        }
        for n_gen in args.answers() {
            let of = |n: &u32| BatchTest { n_sequences: *n as usize, n_prompt, n_gen };
            tests.extend(args.parallel.iter().map(of));
        }
    }
    Ok(tests)
}

/// Refuses sequences that would have to wait for each other's pages: that would measure waiting.
fn need_pages(load: &Load, model: &Model, context: u32, n: u32) -> Result<()> {
    let plan: Plan = load.plan(model)?;
    let need = (pages_for(context as usize) * PAGE) as u64 * u64::from(n);
    // What does not fit at all is refused when it is loaded.
    if plan.shortage().is_some() || plan.positions >= need {
        return Ok(());
    }
    let fit = plan.positions / ((pages_for(context as usize) * PAGE) as u64).max(1);
    let (memory, device) = (&plan.memory, &plan.device.name);
    Err(lapidary::Error::from(BackendError::OutOfMemory(format!(
        "{n} sequences at ctx {context} need KV pages for {need} positions, {device} has room for {} \
         ({memory}); try --parallel {fit} or shorter -p and -n",
        plan.positions
    )))
    .into())
}

/// The run whose whole time is in the middle.
fn median(mut all: Vec<BatchTimes>) -> BatchTimes {
    all.sort_by(|a, b| (a.prefill_s + a.decode_s).total_cmp(&(b.prefill_s + b.decode_s)));
    all.get(all.len() / 2).copied().unwrap_or_default()
}

fn row(test: &BatchTest, times: &BatchTimes, facts: &Facts, device: &str) -> Value {
    let rate = |n: usize, seconds: f64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
    let BatchTimes { prefill_s, decode_s, decode_tokens, decode_calls } = *times;
    let n_read = test.n_sequences * test.n_prompt;
    let whole_s = prefill_s + decode_s;
    json!({
        "pp": test.n_prompt,
        "tg": test.n_gen,
        "pl": test.n_sequences,
        "n_kv": test.n_kv(),
        "t_pp": prefill_s,
        "speed_pp": rate(n_read, prefill_s),
        "t_tg": decode_s,
        "speed_tg": rate(decode_tokens, decode_s),
        "t": whole_s,
        "speed": rate(n_read + decode_tokens, whole_s),
        "decode_calls": decode_calls,
        "decode_tokens": decode_tokens,
        "model_type": format!("{} {}", facts.model, facts.encodings),
        "device": device,
        "program_hash": facts.hash,
    })
}

fn table(rows: &[Value]) -> String {
    let mut lines = vec![
        "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |"
            .to_string(),
        "|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|"
            .to_string(),
    ];
    for r in rows {
        let whole = |name: &str| r[name].as_u64().unwrap_or(0);
        let real = |name: &str| r[name].as_f64().unwrap_or(0.0);
        lines.push(format!(
            "|{:6} | {:6} | {:4} | {:6} | {:8.3} | {:8.2} | {:8.3} | {:8.2} | {:8.3} | {:8.2} |",
            whole("pp"),
            whole("tg"),
            whole("pl"),
            whole("n_kv"),
            real("t_pp"),
            real("speed_pp"),
            real("t_tg"),
            real("speed_tg"),
            real("t"),
            real("speed"),
        ));
    }
    lines.join("\n") + "\n"
}
