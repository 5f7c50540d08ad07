//! The CPU backend against the reference, with each instruction set that the machine has.

use std::io::Write as _;
use std::process::Command;

use lapidary_backend::Backend;
use lapidary_backend_cpu::CpuBackend;
use lapidary_conformance::suite;

/// Prefixes of cases that the CPU backend may fail.
const IGNORED: &[&str] = &[];

#[test]
fn ops() {
    suite::ops(&CpuBackend).assert(IGNORED);
}

#[test]
fn graphs() {
    suite::graphs(&CpuBackend).assert(IGNORED);
}

#[test]
fn properties_of_random_models() {
    for (program, tokens) in suite::random_models() {
        suite::exact_properties(&CpuBackend, program, &tokens).assert(IGNORED);
    }
}

/// The instruction set is chosen by the environment, so each gets a process of its own.
fn with_isa(isa: &str) {
    let run = |test: &str| {
        let exe = std::env::current_exe().expect("a test has a file");
        let mut command = Command::new(exe);
        command.args(["--exact", test]).env("LAPIDARY_CPU_ISA", isa);
        command.output().expect("the test's own file can be run")
    };
    let probe = run("isa_is_known");
    if !probe.status.success() {
        _ = writeln!(std::io::stderr(), "SKIPPED {isa}: this machine does not have it");
        return;
    }
    for test in ["ops", "graphs", "properties_of_random_models"] {
        let output = run(test);
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.contains("1 passed"), "{isa}: {told}");
    }
}

/// Fails in a process whose `LAPIDARY_CPU_ISA` names what the machine does not have.
#[test]
fn isa_is_known() {
    let devices = CpuBackend.probe().expect("the instruction set is there");
    assert_eq!(devices.len(), 1);
    if let Ok(isa) = std::env::var("LAPIDARY_CPU_ISA") {
        assert!(devices[0].name.contains(&isa), "{} runs {isa}", devices[0].name);
    }
}

#[test]
fn scalar_instructions() {
    with_isa("scalar");
}

#[test]
fn avx2_instructions() {
    with_isa("avx2");
}

#[test]
fn avx512_instructions() {
    with_isa("avx512");
}
