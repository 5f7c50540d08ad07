//! The CPU backend against the reference, with each instruction set that the machine has.

use std::ffi::OsStr;
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

/// Ops that multiply with quantised weights.
#[test]
fn products() {
    for kind in ["linear", "experts", "router", "centroid_head"] {
        suite::op(&CpuBackend, kind).assert(IGNORED);
    }
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

/// Names what runs this target's programs on a machine of another kind; cargo reads it, too.
const EMULATOR: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER";

/// The instruction set is chosen by the environment, so each gets a process of its own.
fn with_isa(isa: &str) {
    let emulator = std::env::var(EMULATOR).ok().filter(|_| cfg!(target_arch = "aarch64"));
    let run = |test: &str| {
        let exe = std::env::current_exe().expect("a test has a file");
        let mut words = emulator.iter().flat_map(|e| e.split_whitespace()).map(OsStr::new);
        let mut command = Command::new(words.next().unwrap_or(exe.as_os_str()));
        command.args(words);
        if emulator.is_some() {
            command.arg(&exe);
        }
        command.args(["--exact", test]).env("LAPIDARY_CPU_ISA", isa);
        command.output().expect("the test's own file can be run")
    };
    let probe = run("isa_is_known");
    if !probe.status.success() {
        let told = String::from_utf8_lossy(&probe.stdout);
        assert!(emulator.is_none(), "the emulated machine has no {isa}: {told}");
        _ = writeln!(std::io::stderr(), "SKIPPED {isa}: this machine does not have it");
        return;
    }
    let tests = match isa {
        // These differ from NEON in products of bytes alone, and an emulator takes its time.
        "dotprod" | "i8mm" if emulator.is_some() => {
            ["products", "properties_of_random_models"].as_slice()
        }
        _ => &["ops", "graphs", "properties_of_random_models"],
    };
    for test in tests {
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

#[cfg(target_arch = "x86_64")]
#[test]
fn avx2_instructions() {
    with_isa("avx2");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avxvnni_instructions() {
    with_isa("avxvnni");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx512_instructions() {
    with_isa("avx512");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx512vnni_instructions() {
    with_isa("avx512vnni");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx512bf16_instructions() {
    with_isa("avx512bf16");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn amx_instructions() {
    with_isa("amx");
}

#[cfg(target_arch = "aarch64")]
#[test]
fn neon_instructions() {
    with_isa("neon");
}

#[cfg(target_arch = "aarch64")]
#[test]
fn dotprod_instructions() {
    with_isa("dotprod");
}

#[cfg(target_arch = "aarch64")]
#[test]
fn i8mm_instructions() {
    with_isa("i8mm");
}
