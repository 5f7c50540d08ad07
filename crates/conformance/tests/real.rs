//! The real Gemma 3 270M, dequantised and run by transformers in f32, against our CPU backend and MLX's.
//! One prompt is longer than the sliding window.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use lapidary_backend::{Backend, LoadOptions, Precision};
use lapidary_backend_cpu::CpuBackend;
use lapidary_backend_mlx::MlxBackend;
use lapidary_conformance::{limits, load};
use lapidary_gemma::OpenOptions;
use lapidary_runner::{Rows, Runner};
use serde_json::Value;

/// Two f32 runs of 18 layers differ by rounding alone.
const TOLERANCE: f32 = 5e-3;

/// What transformers says.
fn cases() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/real/gemma3_270m.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn say(text: &str) {
    _ = writeln!(std::io::stderr(), "{text}");
}

#[test]
fn the_real_270m_has_the_logits_and_tokens_that_transformers_gives() {
    let cases = cases();
    assert!(cases.iter().any(|c| c["ids"].as_array().unwrap().len() > 512));
    check(&CpuBackend, &cases, usize::MAX);
}

/// A short prompt and a few tokens: MLX for the CPU is slow.
#[test]
fn the_real_270m_says_the_same_through_mlx() {
    if let Err(e) = MlxBackend.devices() {
        return say(&format!("SKIPPED: {e}"));
    }
    check(&MlxBackend, &cases()[..1], 4);
}

/// The best logits of each case and its first greedy tokens.
fn check(backend: &dyn Backend, cases: &[Value], most: usize) {
    let Some(model) = std::env::var_os("LAPIDARY_GEMMA3_270M") else {
        return say("SKIPPED: LAPIDARY_GEMMA3_270M does not name the real model's file");
    };
    let program = lapidary_gemma::open(Path::new(&model), &OpenOptions::default()).unwrap();
    let program = Arc::new(program);
    let options = LoadOptions {
        max_context: 768,
        n_sequences: 1,
        limits: limits(256, 1),
        threads: None,
        precision: Precision::Exact,
        ..LoadOptions::default()
    };
    let engine = load(backend, &program, &options).unwrap();
    let mut runner = Runner::with_parts(engine, None, None).unwrap();
    for case in cases {
        let what = case["prompt"].as_str().unwrap();
        let tokens = ids(&case["ids"]);
        let mut logits = Vec::new();
        runner
            .logits(&tokens, Rows::Last, None, &mut |_, row| logits.extend_from_slice(row))
            .unwrap();
        for (id, want) in ids(&case["top_ids"]).iter().zip(case["top_logits"].as_array().unwrap()) {
            let (got, want) = (logits[*id as usize], want.as_f64().unwrap() as f32);
            assert!((got - want).abs() <= TOLERANCE, "{what}, token {id}: {got}, not {want}");
        }
        let mut want = ids(&case["greedy"]);
        want.truncate(most);
        let margins = case["margins"].as_array().unwrap();
        let clear = f64::from(2.0 * TOLERANCE);
        assert!(margins.iter().all(|m| m.as_f64().unwrap() > clear), "{what}: {margins:?}");
        assert_eq!(runner.greedy(tokens.as_slice(), want.len()).unwrap(), want, "{what}");
    }
}
