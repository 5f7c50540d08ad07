//! One op in one shape: a program, calls, and what they must give.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lapidary_backend::{Backend, Engine, Feed, KvType, LoadOptions, Outputs, Precision};
use lapidary_program::{DType, Encoding, Program, WeightDecl};
use lapidary_reference::ReferenceBackend;

use crate::report::Outcome;
use crate::tolerance::{FAST_LINEAR, KV_BF16, KV_INT8};

/// A program of few ops with a sequence of calls.
pub(crate) struct Case {
    pub name: String,
    pub program: Arc<Program>,
    pub options: LoadOptions,
    pub calls: Vec<Call>,
    pub tolerance: f64,
}

/// One call and its true results.
pub(crate) struct Call {
    pub method: &'static str,
    pub feeds: Vec<(&'static str, Data)>,
    pub expected: Vec<(&'static str, Vec<f64>)>,
}

/// The numbers of one input.
#[derive(Clone)]
pub(crate) enum Data {
    I32(Vec<i32>),
    F32(Vec<f32>),
}

impl Call {
    /// A call of the method that one-op programs have, with the one output they have.
    pub(crate) fn new(feeds: Vec<(&'static str, Data)>, expected: Vec<f64>) -> Self {
        Call { method: crate::lab::OP, feeds, expected: vec![(crate::lab::Y, expected)] }
    }
}

/// Options for calls of so many tokens.
pub(crate) fn options(max_chunk: usize) -> LoadOptions {
    LoadOptions {
        max_context: 64,
        max_chunk: max_chunk as u32,
        n_slots: 2,
        threads: Some(2),
        precision: Precision::Exact,
        ..LoadOptions::default()
    }
}

/// How far results over a cache may be from those over exact numbers, by how it is stored.
const ROUNDED_CACHES: [(KvType, f64); 2] = [(KvType::Bf16, KV_BF16), (KvType::Int8, KV_INT8)];

/// Runs a case on a backend with activations and caches as they are; again, if it is one of those
/// whose activations may be rounded, as the backend likes; and again, if it has caches, with each
/// kind that rounds, of which `bf16` may have queries and weights rounded as well.
pub(crate) fn run(backend: &dyn Backend, kind: &str, case: &Case) -> Vec<Outcome> {
    let mut outcomes = vec![run_as(backend, kind, case, "", &case.options, case.tolerance)];
    let rounds_with =
        |w: &WeightDecl| matches!(w.encoding, Encoding::Quant(_) | Encoding::Dense(DType::Bf16));
    if case.program.weights().values().any(rounds_with) {
        let options = LoadOptions { precision: Precision::Fast, ..case.options.clone() };
        // Ops that choose do so exactly.
        let rounds = matches!(kind, "linear" | "experts");
        let tolerance = if rounds { FAST_LINEAR } else { case.tolerance };
        outcomes.push(run_as(backend, kind, case, ", fast", &options, tolerance));
    }
    // The reference does not round.
    if !case.program.states().is_empty() && backend.name() != ReferenceBackend.name() {
        for (kv, tolerance) in ROUNDED_CACHES {
            let options = LoadOptions { kv: Some(kv), ..case.options.clone() };
            let how = format!(", KV {}", kv.name());
            outcomes.push(run_as(backend, kind, case, &how, &options, tolerance));
            if kind == "attention" && kv == KvType::Bf16 {
                let options = LoadOptions { precision: Precision::Fast, ..options };
                let how = format!("{how}, fast");
                outcomes.push(run_as(backend, kind, case, &how, &options, tolerance));
            }
        }
    }
    outcomes
}

/// Runs a case on a backend, and on the reference beside it.
fn run_as(
    backend: &dyn Backend,
    kind: &str,
    case: &Case,
    how: &str,
    options: &LoadOptions,
    tolerance: f64,
) -> Outcome {
    let name = format!("{kind}/{}{how}", case.name);
    // A panic is one failed case, not the end of the suite.
    let run = catch_unwind(AssertUnwindSafe(|| try_run(backend, case, options, tolerance)));
    let failure = run.unwrap_or_else(|_| Err("it panicked".into())).err();
    Outcome { name, failure }
}

fn try_run(
    backend: &dyn Backend,
    case: &Case,
    options: &LoadOptions,
    tolerance: f64,
) -> Result<(), String> {
    let reference = ReferenceBackend;
    let mut engine = load(backend, &case.program, options)?;
    let mut oracle = match backend.name() == reference.name() {
        true => None,
        false => Some(load(&reference, &case.program, options)?),
    };
    let mut outputs = Outputs::default();
    let mut truth = Outputs::default();
    for (i, call) in case.calls.iter().enumerate() {
        let feeds: Vec<Feed<'_>> = call.feeds.iter().map(|(name, data)| data.feed(name)).collect();
        let tell = |e| format!("call {i}: {e}");
        engine.run(call.method, &feeds, &mut outputs).map_err(tell)?;
        for (name, expected) in &call.expected {
            let got = data(&outputs, name)?;
            compare_odd(got, expected, tolerance)
                .map_err(|e| format!("call {i}, `{name}` against f64: {e}"))?;
        }
        if let Some(oracle) = &mut oracle {
            oracle.run(call.method, &feeds, &mut truth).map_err(tell)?;
            for (name, _) in &call.expected {
                let expected: Vec<f64> =
                    data(&truth, name)?.iter().map(|x| f64::from(*x)).collect();
                compare_odd(data(&outputs, name)?, &expected, tolerance)
                    .map_err(|e| format!("call {i}, `{name}` against the reference: {e}"))?;
            }
        }
    }
    Ok(())
}

/// An engine on a backend's first device.
pub(crate) fn load(
    backend: &dyn Backend,
    program: &Arc<Program>,
    options: &LoadOptions,
) -> Result<Box<dyn Engine>, String> {
    let devices = backend.probe().map_err(|e| e.to_string())?;
    let device = devices.first().ok_or("it has no device")?;
    backend.load(program, device, options, &mut |_, _| {}).map_err(|e| e.to_string())
}

/// An output's numbers.
pub(crate) fn data<'a>(outputs: &'a Outputs, name: &str) -> Result<&'a [f32], String> {
    outputs.get(name).map(|t| t.data.as_slice()).ok_or_else(|| format!("no output `{name}`"))
}

/// Fails if a tensor is too far from the truth, in the sense of `tolerance`, or if the truth itself
/// is not finite.
pub(crate) fn compare(got: &[f32], expected: &[f64], tolerance: f64) -> Result<(), String> {
    compare_with(got, expected, tolerance, |_, _| false)
}

/// The same for a truth that may hold what is infinite or not a number; that must be just so.
fn compare_odd(got: &[f32], expected: &[f64], tolerance: f64) -> Result<(), String> {
    compare_with(got, expected, tolerance, |got, want| {
        got == want || (got.is_nan() && want.is_nan())
    })
}

/// `is_right(got, want)` judges where the truth is not finite.
fn compare_with(
    got: &[f32],
    expected: &[f64],
    tolerance: f64,
    is_right: impl Fn(f64, f64) -> bool,
) -> Result<(), String> {
    if got.len() != expected.len() {
        return Err(format!("{} numbers, not {}", got.len(), expected.len()));
    }
    let finite = expected.iter().filter(|x| x.is_finite());
    let scale = finite.fold(1.0f64, |m, x| m.max(x.abs()));
    for (i, (got, want)) in got.iter().zip(expected).enumerate() {
        let got = f64::from(*got);
        if !want.is_finite() {
            if !is_right(got, *want) {
                return Err(format!("[{i}] is {got}, not {want}"));
            }
            continue;
        }
        let error = (got - want).abs() / scale;
        if error.is_nan() || error > tolerance {
            return Err(format!("[{i}] is {got}, not {want}: error {error:.1e} > {tolerance:.1e}"));
        }
    }
    Ok(())
}

impl Data {
    pub(crate) fn feed<'a>(&'a self, name: &'a str) -> Feed<'a> {
        match self {
            Data::I32(data) => Feed::i32(name, data),
            Data::F32(data) => Feed::f32(name, data),
        }
    }
}
