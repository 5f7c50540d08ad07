//! The reference against formulas in `f64`, its properties, and tiny checkpoints against transformers.

#[cfg(feature = "checkpoints")]
mod checkpoints;

use std::process::ExitCode;

use lapidary_conformance::{Class, Suite};
use lapidary_reference::ReferenceBackend;

fn main() -> ExitCode {
    let suite = Suite::new("reference", &ReferenceBackend, Class::OneOrder);
    #[cfg(feature = "checkpoints")]
    let suite = suite.with_tests(|| {
        use checkpoints::{Extent, On, tests};
        let extent = Extent::Everything;
        tests(On { backend: &ReferenceBackend, class: Class::OneOrder, extent })
    });
    lapidary_conformance::run(vec![suite])
}
