//! One op in one shape: a program, calls, and what they must give.

use std::sync::Arc;

use lapidary_backend::{
    Backend, Call as BackendCall, Device, Engine, Feed, KvType, LoadOptions, Precision, Results,
    Wanted,
};
use lapidary_program::{DType, Encoding, Program, WeightDecl};
use lapidary_reference::ReferenceBackend;

use crate::paging::{Paging, Place, Placed, limits, with_pages};
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
    /// Where its tokens stand, for methods with positions.
    pub places: Vec<Place>,
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
        let expected = vec![(crate::lab::Y, expected)];
        Call { method: crate::lab::OP, feeds, places: vec![], expected }
    }
}

impl Case {
    /// Rows of each call.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        let rows = |call: &Call| {
            let graph = &self.program.methods()[call.method].graph;
            let rows = call.feeds.iter().map(|(name, data)| {
                let input = graph.inputs.iter().find(|input| input.name == *name);
                let channels = input.map_or(1, |input| input.value_type.channels());
                data.len() / channels.max(1)
            });
            rows.max().unwrap_or(0)
        };
        self.calls.iter().map(rows).collect()
    }

    /// What its weights are, as words: `weight q4 g32 sym f16`.
    pub(crate) fn weights(&self) -> impl Iterator<Item = String> {
        let label = |w: &WeightDecl| format!("weight {}", w.encoding.label());
        self.program.weights().values().map(label)
    }
}

/// Options for calls of so many tokens.
pub(crate) fn options(max_chunk: usize) -> LoadOptions {
    LoadOptions {
        max_context: 64,
        n_sequences: 2,
        limits: limits(max_chunk, 2),
        threads: Some(2),
        precision: Precision::Exact,
        ..LoadOptions::default()
    }
}

/// How far results over a cache may be from those over exact numbers, by how it is stored.
const ROUNDED_CACHES: [(KvType, f64); 2] = [(KvType::Bf16, KV_BF16), (KvType::Int8, KV_INT8)];

/// One way to run a case.
pub(crate) struct Way {
    /// Nothing where nothing is rounded, else `fast`, `KV int8`.
    pub name: String,
    pub options: LoadOptions,
    pub tolerance: f64,
}

/// The ways to run a case on a backend: with activations and caches as they are; if it is one of
/// those whose activations may be rounded, as the backend likes; and if it has caches, with each kind
/// that rounds, of which `bf16` may have queries and weights rounded as well.
pub(crate) fn ways(backend: &dyn Backend, kind: &str, case: &Case) -> Vec<Way> {
    let way = |name: &str, options, tolerance| Way { name: name.to_string(), options, tolerance };
    let mut ways = vec![way("", case.options.clone(), case.tolerance)];
    let rounds_with =
        |w: &WeightDecl| matches!(w.encoding, Encoding::Quant(_) | Encoding::Dense(DType::Bf16));
    if case.program.weights().values().any(rounds_with) {
        let options = LoadOptions { precision: Precision::Fast, ..case.options.clone() };
        // Ops that choose do so exactly.
        let rounds = matches!(kind, "linear" | "experts");
        let tolerance = if rounds { FAST_LINEAR } else { case.tolerance };
        ways.push(way("fast", options, tolerance));
    }
    // The reference does not round.
    if !case.program.states().is_empty() && backend.name() != ReferenceBackend.name() {
        for (kv, tolerance) in ROUNDED_CACHES {
            let options = LoadOptions { kv: Some(kv), ..case.options.clone() };
            let name = format!("KV {}", kv.name());
            ways.push(way(&name, options.clone(), tolerance));
            if kind == "attention" && kv == KvType::Bf16 {
                let options = LoadOptions { precision: Precision::Fast, ..options };
                ways.push(way(&format!("{name}, fast"), options, tolerance));
            }
        }
    }
    ways
}

/// Runs a case on a backend, and on the reference beside it.
pub(crate) fn run(backend: &dyn Backend, case: &Case, way: &Way) -> Result<(), String> {
    try_run(backend, case, &way.options, way.tolerance)
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
    let mut paging = Paging::new(&case.program, options);
    let mut outputs = Results::default();
    let mut truth = Results::default();
    for (i, call) in case.calls.iter().enumerate() {
        let feeds: Vec<Feed<'_>> = call.feeds.iter().map(|(name, data)| data.feed(name)).collect();
        let placed = paging.place(&call.places);
        let tell = |e| format!("call {i}: {e}");
        run_whole(&mut *engine, call.method, &feeds, &placed, &mut outputs).map_err(tell)?;
        for (name, expected) in &call.expected {
            let got = data(&outputs, name)?;
            compare_odd(got, expected, tolerance)
                .map_err(|e| format!("call {i}, `{name}` against f64: {e}"))?;
        }
        if let Some(oracle) = &mut oracle {
            run_whole(&mut **oracle, call.method, &feeds, &placed, &mut truth).map_err(tell)?;
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

/// An engine on a backend's first device, with pages for all its sequences.
pub fn load(
    backend: &dyn Backend,
    program: &Arc<Program>,
    options: &LoadOptions,
) -> Result<Box<dyn Engine>, String> {
    let device = open(backend)?;
    device.load(program, &with_pages(program, options), &mut |_, _| {}).map_err(|e| e.to_string())
}

/// A backend's first device.
pub(crate) fn open(backend: &dyn Backend) -> Result<Box<dyn Device>, String> {
    let devices = backend.devices().map_err(|e| e.to_string())?;
    let device = devices.first().ok_or("it has no device")?;
    backend.open(&device.id).map_err(|e| e.to_string())
}

/// Runs a call of which every output is wanted whole.
pub(crate) fn run_whole(
    engine: &mut dyn Engine,
    method: &str,
    feeds: &[Feed<'_>],
    placed: &Placed,
    results: &mut Results,
) -> lapidary_backend::Result<()> {
    let program = engine.program().clone();
    let outputs = &program.method(method)?.graph.outputs;
    let wants: Vec<Wanted<'_>> = outputs.iter().map(|out| Wanted::whole(&out.name)).collect();
    placed.with(|spans| {
        let (horizons, wants) = (&placed.horizons[..], &wants[..]);
        engine.run(&BackendCall { method, feeds, spans, horizons, wants, stop: None }, results)
    })
}

/// An output's numbers.
pub(crate) fn data<'a>(outputs: &'a Results, name: &str) -> Result<&'a [f32], String> {
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
    fn len(&self) -> usize {
        match self {
            Data::I32(data) => data.len(),
            Data::F32(data) => data.len(),
        }
    }

    pub(crate) fn feed<'a>(&'a self, name: &'a str) -> Feed<'a> {
        match self {
            Data::I32(data) => Feed::i32(name, data),
            Data::F32(data) => Feed::f32(name, data),
        }
    }
}
