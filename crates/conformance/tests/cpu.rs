//! The CPU backend against the reference, with each instruction set that the machine has.
//!
//! The environment chooses the set, so each has a process of its own, which this file starts; the
//! names of its tests begin with the set's: `avx2/linear/…`. With `LAPIDARY_CPU_ISA` there is one.

#[cfg(feature = "checkpoints")]
mod checkpoints;

use std::process::{Command, ExitCode};

use lapidary_backend::Backend as _;
use lapidary_backend_cpu::CpuBackend;
use lapidary_conformance::{Class, Suite, harness};

/// Chooses the instruction set.
const ISA: &str = "LAPIDARY_CPU_ISA";

/// Set where a set that the machine does not have is no failure.
const MAY_LACK: &str = "LAPIDARY_CPU_ISA_MAY_LACK";

/// The sets that there are for this kind of processor, and whether one has its own kernels for
/// products with packed weights alone: `Isa::run` gives all else to those of a set before it.
#[cfg(target_arch = "x86_64")]
const SETS: &[(&str, bool)] = &[
    ("scalar", false),
    ("avx2", false),
    ("avxvnni", true),
    ("avx512", false),
    ("avx512vnni", true),
    ("avx512bf16", true),
    ("amx", true),
];
#[cfg(target_arch = "aarch64")]
const SETS: &[(&str, bool)] =
    &[("scalar", false), ("neon", false), ("dotprod", true), ("i8mm", true)];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const SETS: &[(&str, bool)] = &[("scalar", false)];

/// Ops that multiply with packed weights.
const PRODUCTS: &[&str] = &["linear", "experts", "router", "centroid_head"];

fn main() -> ExitCode {
    match std::env::var(ISA) {
        Ok(isa) => with_set(&isa),
        Err(_) => with_each_set(),
    }
}

fn with_set(isa: &str) -> ExitCode {
    let Some((name, products)) = SETS.iter().find(|(name, _)| *name == isa) else {
        eprintln!("{ISA} is `{isa}`, which is none of {SETS:?}");
        return ExitCode::FAILURE;
    };
    match CpuBackend.devices() {
        Ok(devices) if devices.iter().all(|device| device.isa == isa) => {}
        Err(_) if std::env::var_os(MAY_LACK).is_some() => {}
        other => {
            eprintln!("{ISA} is `{isa}`, but the backend has {other:?}");
            return ExitCode::FAILURE;
        }
    }
    let suite = Suite::new(name, &CpuBackend, Class::EqualBits);
    let suite = if *products { suite.with_ops(PRODUCTS).without_graphs() } else { suite };
    #[cfg(feature = "checkpoints")]
    let suite = suite.with_tests(|| {
        use checkpoints::{Extent, On, tests};
        tests(On { backend: &CpuBackend, class: Class::EqualBits, extent: Extent::Everything })
    });
    lapidary_conformance::run(vec![suite])
}

/// Gives the command line to a process for each set; what it filters by name, they filter.
fn with_each_set() -> ExitCode {
    let wanted = harness::wanted();
    let exe = std::env::current_exe().expect("a test has a file");
    let mut code = ExitCode::SUCCESS;
    for (isa, _) in SETS {
        if !harness::is_wanted(wanted.as_deref(), &format!("{isa}/")) {
            continue;
        }
        let mut command = Command::new(&exe);
        command.args(std::env::args_os().skip(1)).env(ISA, isa).env(MAY_LACK, "1");
        if !command.status().is_ok_and(|status| status.success()) {
            code = ExitCode::FAILURE;
        }
    }
    code
}
