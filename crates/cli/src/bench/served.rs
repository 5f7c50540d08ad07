//! `lapidary bench --url`: a server under load.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use lapidary_measure::{Latency, ServeReport, ServeTest, ServerError, ServerUrl, bench_server};
use serde_json::{Value, json};

use crate::args::bench::BenchArgs;
use crate::exit::Usage;
use crate::tell::tell;

/// Requests at the same time, if nobody says how many: as many as `serve` answers at once.
const PARALLEL: u32 = 4;

/// Measures each number of requests at the same time.
pub fn run(args: &BenchArgs, url: &str) -> Result<()> {
    // `serve` takes several keys from the variable; any of them will do.
    let key = args.api_key.as_deref().and_then(|keys| keys.split(',').next());
    let url = ServerUrl::new(url, key.map(String::from)).map_err(|e| Usage(e.to_string()))?;
    let mut rows = Vec::new();
    for test in tests(args)? {
        let report = bench_server(&url, &test)?;
        let ServeReport { served, failed, .. } = &report;
        if let Some(first) = failed.first() {
            let n = failed.len();
            tell(format_args!("warning: {n} of {} requests failed: {first}", test.n_requests));
        }
        if served.is_empty() {
            return Err(no_answer(report.failed).into());
        }
        if !report.ignores_eos {
            tell(format_args!("note: the server refuses `ignore_eos`, so answers may be shorter"));
        }
        tell(format_args!(
            "note: {} × (pp{} + tg{}) done",
            served.len(),
            test.n_prompt,
            test.n_gen
        ));
        rows.push(row(&test, &report));
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

/// Why there is nothing to show.
fn no_answer(failed: Vec<ServerError>) -> ServerError {
    let none = || ServerError::Garbage("no request was answered".into());
    failed.into_iter().next().unwrap_or_else(none)
}

fn tests(args: &BenchArgs) -> Result<Vec<ServeTest>> {
    let at_once = if args.parallel.is_empty() { vec![PARALLEL] } else { args.parallel.clone() };
    let model = args.model.as_ref().map(|name| name.to_string_lossy().into_owned());
    // Prompts that an earlier run sent may still be cached by the server.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut tests = Vec::new();
    for n_prompt in args.prompts() {
        for n_gen in args.answers() {
            if n_prompt == 0 || n_gen == 0 {
                let what = "--url needs prompts and answers of at least one token: -p 1 -n 1";
                return Err(Usage(what.into()).into());
            }
            for n in &at_once {
                let n_requests = args.requests.unwrap_or(n.saturating_mul(8)) as usize;
                tests.push(ServeTest {
                    model: model.clone(),
                    n_requests,
                    concurrency: *n as usize,
                    request_rate: args.rate.unwrap_or(f64::INFINITY),
                    n_prompt,
                    n_gen,
                    seed: now.wrapping_add((tests.len() as u64) << 32),
                });
            }
        }
    }
    Ok(tests)
}

fn row(test: &ServeTest, report: &ServeReport) -> Value {
    let per_second = |n: usize| n as f64 / report.duration_s.max(1e-9);
    let (n_read, n_made) = (report.n_prompt(), report.n_gen());
    let mut row = json!({
        "model_id": report.model,
        "max_concurrency": test.concurrency,
        "request_rate": if test.request_rate.is_finite() { json!(test.request_rate) } else { json!("inf") },
        "num_prompts": test.n_requests,
        "completed": report.served.len(),
        "failed": report.failed.len(),
        "duration": report.duration_s,
        "total_input_tokens": n_read,
        "total_output_tokens": n_made,
        "request_throughput": per_second(report.served.len()),
        "output_throughput": per_second(n_made),
        "total_token_throughput": per_second(n_read + n_made),
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
    });
    for (name, latency) in [("ttft", report.ttft()), ("tpot", report.tpot()), ("itl", report.itl())]
    {
        let Latency { mean_ms, median_ms, std_ms, p90_ms, p99_ms } = latency;
        for (which, ms) in [
            ("mean", mean_ms),
            ("median", median_ms),
            ("std", std_ms),
            ("p90", p90_ms),
            ("p99", p99_ms),
        ] {
            row[format!("{which}_{name}_ms")] = json!(ms);
        }
    }
    row
}

fn table(rows: &[Value]) -> String {
    let mut lines = vec![
        "| model | at once | requests | failed | PP | TG | req/s | t/s | TTFT ms: p50 | p90 | p99 \
         | ITL ms: p50 | p90 | p99 |"
            .to_string(),
        format!("| --- |{}", " ---: |".repeat(13)),
    ];
    for r in rows {
        let whole = |name: &str| r[name].as_u64().unwrap_or(0);
        let real = |name: &str| r[name].as_f64().unwrap_or(0.0);
        let done = whole("completed").max(1);
        lines.push(format!(
            "| {} | {} | {} | {} | {} | {} | {:.2} | {:.2} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} \
             | {:.1} |",
            r["model_id"].as_str().unwrap_or_default(),
            whole("max_concurrency"),
            whole("num_prompts"),
            whole("failed"),
            // As the server counted them, which may be a few more or fewer.
            whole("total_input_tokens") / done,
            whole("total_output_tokens") / done,
            real("request_throughput"),
            real("output_throughput"),
            real("median_ttft_ms"),
            real("p90_ttft_ms"),
            real("p99_ttft_ms"),
            real("median_itl_ms"),
            real("p90_itl_ms"),
            real("p99_itl_ms"),
        ));
    }
    lines.join("\n") + "\n"
}
