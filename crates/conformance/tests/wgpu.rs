//! The GPU backend against the reference: as the GPU is, and with nothing but what every GPU has.
//!
//! Mesa's software Vulkan is enough. Without any Vulkan the tests say so and pass. Those named `m3…`
//! are a row of the fault checklist: small limits, no half floats, no subgroups.

use std::io::Write as _;

use lapidary_backend::Backend as _;
use lapidary_backend_wgpu::WgpuBackend;
use lapidary_conformance::{Report, suite};

/// Prefixes of cases that the GPU backend may fail.
const IGNORED: &[&str] = &[];

const GPU: WgpuBackend = WgpuBackend::VULKAN;
const LEAST_GPU: WgpuBackend = WgpuBackend::VULKAN.with_least();

/// Checks a backend, if it has something to run on.
fn check(backend: WgpuBackend, suite: impl Fn(&WgpuBackend) -> Report) {
    match backend.probe() {
        Ok(_) => suite(&backend).assert(IGNORED),
        Err(e) => _ = writeln!(std::io::stderr(), "SKIPPED: {e}"),
    }
}

/// An op, in a part of its cases if they are many: software takes a second to compile a kernel, and
/// all cases were run with what the GPU has.
fn sampled(backend: &WgpuBackend, kind: &str) -> Report {
    let step = if matches!(kind, "linear" | "attention") { 3 } else { 1 };
    suite::op_sampled(backend, kind, step)
}

/// The properties of random models, but for the first few.
fn random_models(backend: &WgpuBackend, but: usize) -> Report {
    let models = suite::random_models().into_iter().skip(but);
    models
        .flat_map(|(program, tokens)| suite::unordered_properties(backend, program, &tokens))
        .collect()
}

#[test]
fn ops() {
    check(GPU, |gpu| suite::ops(gpu));
}

#[test]
fn m3_ops_with_the_least() {
    check(LEAST_GPU, |gpu| suite::OPS.iter().flat_map(|kind| sampled(gpu, kind)).collect());
}

/// Weights that are larger than a binding lie in several buffers.
#[test]
fn m3_split_weights() {
    for backend in [GPU, LEAST_GPU] {
        check(backend.with_shards(8 << 10), |gpu| {
            let kinds = ["linear", "experts", "router", "centroid_head"];
            kinds.into_iter().flat_map(|kind| sampled(gpu, kind)).collect()
        });
    }
}

#[test]
fn graphs() {
    check(GPU, |gpu| suite::graphs(gpu));
}

#[test]
fn properties_of_random_models() {
    check(GPU, |gpu| random_models(gpu, 0));
}

/// Tokens go from one kernel for all of attention to several as their context grows.
#[test]
fn properties_of_random_models_with_long_contexts() {
    check(GPU.with_most_keys(3), |gpu| random_models(gpu, 0));
}

/// The first is dense, and tiny checkpoints of that kind are tried with the least, too.
#[test]
fn m3_properties_of_random_models_with_the_least() {
    check(LEAST_GPU, |gpu| random_models(gpu, 1));
}
