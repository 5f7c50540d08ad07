//! The CPU backend against the reference.

use lapidary_backend_cpu::CpuBackend;
use lapidary_conformance::suite;

/// Prefixes of cases that the CPU backend may fail.
const IGNORED: &[&str] = &[];

#[test]
fn ops() {
    suite::ops(&CpuBackend).assert(IGNORED);
}

#[test]
fn properties_of_random_models() {
    for (program, tokens) in suite::random_models() {
        suite::properties(&CpuBackend, program, &tokens).assert(IGNORED);
    }
}
