//! The GPU backend against the reference: as the GPU is, and with nothing but what every GPU has.
//!
//! Mesa's software Vulkan is enough. Without any Vulkan the tests are listed as ignored. Suites that
//! are named `m3-…` are a row of the fault checklist: small limits, no half floats, no subgroups.

mod checkpoints;

use std::collections::BTreeSet;
use std::process::ExitCode;

use checkpoints::{Extent, On};
use lapidary_backend::{Backend as _, DeviceKind};
use lapidary_backend_wgpu::WgpuBackend;
use lapidary_conformance::harness::Test;
use lapidary_conformance::{Class, Kernels, Suite, Turns};

const GPU: WgpuBackend = WgpuBackend::VULKAN;
const LEAST: WgpuBackend = GPU.with_least();
/// Weights that are larger than a binding lie in several buffers.
const SPLIT: WgpuBackend = GPU.with_shards(8 << 10);
const SPLIT_LEAST: WgpuBackend = LEAST.with_shards(8 << 10);
/// Tokens go from one kernel for all of attention to several as their context grows.
const LONG: WgpuBackend = GPU.with_most_keys(3);

/// Ops whose cases differ in kernels most, of which software takes up to a second to compile one. It
/// runs those cases that cover all kernels; a GPU runs all.
const MANY: &[&str] = &["linear", "experts"];
/// Ops that read weights of many rows.
const PRODUCTS: &[&str] = &["linear", "experts", "router", "centroid_head"];

fn main() -> ExitCode {
    lapidary_conformance::run(suites())
}

/// The backends under test, with what tells of their kernels.
const BACKENDS: &[(&WgpuBackend, Kernels)] = &[
    (&GPU, |p, o, n| GPU.kernels(p, o, n).unwrap_or_default()),
    (&LEAST, |p, o, n| LEAST.kernels(p, o, n).unwrap_or_default()),
    (&SPLIT, |p, o, n| SPLIT.kernels(p, o, n).unwrap_or_default()),
    (&SPLIT_LEAST, |p, o, n| SPLIT_LEAST.kernels(p, o, n).unwrap_or_default()),
    (&LONG, |p, o, n| LONG.kernels(p, o, n).unwrap_or_default()),
];

fn suites() -> Vec<Suite> {
    let names = ["vulkan", "m3-least", "m3-split", "m3-split-least", "long"];
    let suite = |i: usize| suite(names[i], BACKENDS[i].0, BACKENDS[i].1);
    let [gpu, least, split, split_least, long] = [0, 1, 2, 3, 4].map(suite);
    let products = |suite: Suite| suite.with_ops(PRODUCTS).without_graphs().with_models(0..0);
    vec![
        gpu.with_tests(|| {
            let mut tests = checkpoints(&GPU, Extent::Numbers);
            tests.push(Test::new(&["every kernel has a case"], every_kernel_has_a_case));
            tests
        }),
        // The first model is dense, and tiny checkpoints of that kind are tried with the least, too.
        least
            .without_graphs()
            .with_models(1..usize::MAX)
            .with_tests(|| checkpoints(&LEAST, Extent::Least)),
        products(split),
        products(split_least),
        // Experts do not come into it.
        long.with_ops(&[]).without_graphs().with_models(0..2),
    ]
}

/// Kernels that no case of an op, a graph or a model runs, and what runs them.
const OTHERS: &[(&str, &str)] = &[
    ("attention_coop", MATRICES),
    ("draw", WANTS),
    ("linear/coop", MATRICES),
    ("linear/join", MATRICES),
    ("linear/rows_to_halves", MATRICES),
    ("logsumexp", WANTS),
    ("speed", "loading: it measures the device"),
    ("top", WANTS),
];
const MATRICES: &str = "the same cases on a GPU with cooperative matrices, which software has not";
const WANTS: &str = "the property of wants: no part of a program, but of what a call asks for";

/// Fails if a kernel is run by no test.
fn every_kernel_has_a_case() -> Result<(), String> {
    let mut run = BTreeSet::new();
    for (suite, (_, kernels)) in suites().iter().zip(BACKENDS) {
        run.extend(suite.kernels(*kernels));
    }
    let known = |name: &str| run.contains(name) || OTHERS.iter().any(|(other, _)| *other == name);
    let missing: Vec<_> = WgpuBackend::all_kernels().into_iter().filter(|k| !known(k)).collect();
    match missing.as_slice() {
        [] => Ok(()),
        _ => Err(format!("no case runs {missing:?}")),
    }
}

fn checkpoints(backend: &'static WgpuBackend, extent: Extent) -> Vec<Test> {
    checkpoints::tests(On { backend, class: Class::AnyOrder, extent })
}

fn suite(name: &'static str, backend: &'static WgpuBackend, kernels: Kernels) -> Suite {
    let suite = Suite::new(name, backend, Class::AnyOrder);
    let is_software = backend
        .devices()
        .is_ok_and(|devices| devices.iter().all(|device| device.kind == DeviceKind::Software));
    if !is_software {
        return suite;
    }
    // The kernels of rounded caches and of caches as they are share all but how a key is read.
    let turns = if name == "vulkan" { Turns::Two } else { Turns::One };
    suite.covering(MANY, kernels).in_turns(&["attention", "kv_write"], turns)
}
