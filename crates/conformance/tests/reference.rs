//! The reference against formulas in `f64`, and its properties.

use lapidary_conformance::suite;
use lapidary_reference::ReferenceBackend;

/// Prefixes of cases that the reference may fail.
const IGNORED: &[&str] = &[];

#[test]
fn ops() {
    suite::ops(&ReferenceBackend).assert(IGNORED);
}

#[test]
fn graphs() {
    suite::graphs(&ReferenceBackend).assert(IGNORED);
}

#[test]
fn properties_of_random_models() {
    for (program, tokens) in suite::random_models() {
        suite::properties(&ReferenceBackend, program, &tokens).assert(IGNORED);
    }
}
