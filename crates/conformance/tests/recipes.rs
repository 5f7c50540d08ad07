//! The built-in recipes on the real Gemma 3 270M, quantised again from its dequantised numbers.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use lapidary_backend::{LoadOptions, Precision};
use lapidary_backend_cpu::CpuBackend;
use lapidary_conformance::{limits, load};
use lapidary_gemma::{OpenOptions, recipes};
use lapidary_measure::divergence;
use lapidary_program::Program;
use lapidary_quantise::{dequantise, quantise};
use lapidary_runner::Runner;
use serde_json::Value;

/// Tokens of many kinds of text: three windows of 128.
fn tokens() -> Vec<u32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/real/gemma3_270m.json");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let longest = cases.iter().filter_map(|c| c["ids"].as_array()).max_by_key(|ids| ids.len());
    longest.unwrap().iter().take(384).map(|id| id.as_u64().unwrap() as u32).collect()
}

fn runner(program: Program) -> Runner {
    let options = LoadOptions {
        max_context: 128,
        n_sequences: 1,
        limits: limits(128, 1),
        // The codes are judged here, not how activations are rounded.
        precision: Precision::Exact,
        ..LoadOptions::default()
    };
    let engine = load(&CpuBackend, &Arc::new(program), &options).unwrap();
    Runner::with_parts(engine, None, None).unwrap()
}

#[test]
fn half_quadratic_codes_diverge_less_than_those_by_range() {
    let tokens = tokens();
    assert_eq!(tokens.len(), 384);
    let Some(path) = std::env::var_os("LAPIDARY_GEMMA3_270M") else {
        _ = writeln!(
            std::io::stderr(),
            "SKIPPED: LAPIDARY_GEMMA3_270M does not name the real model's file"
        );
        return;
    };
    let program = lapidary_gemma::open(Path::new(&path), &OpenOptions::default()).unwrap();
    let numbers = dequantise(&program).unwrap();
    let under = |name: &str| {
        let recipe = recipes::built_in(name, &numbers).unwrap();
        runner(quantise(&numbers, &recipe).unwrap())
    };
    let mut reference = under("bf16");
    let mut models = ["int4", "int4-minmax"].map(under);
    let found = divergence(&mut reference, &mut models, &tokens, 128, &mut |_, _| {}).unwrap();
    let [hqq, min_max] = [found[0], found[1]];
    assert_eq!(hqq.n_scored, 3 * 63);
    // By a margin: on most texts the one is some two thirds of the other.
    assert!(hqq.kl_mean < min_max.kl_mean * 0.95, "{hqq:?} {min_max:?}");
    assert!(hqq.kl_mean > 0.0, "{hqq:?}");
}
