//! NEON kernels on a machine that has none: cross-built, and run by an emulator.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{cargo, packages, run};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// Debian's names of what is needed; the C library comes with the last.
const PACKAGES: [&str; 3] = ["qemu-user", "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"];
/// Where they put the target's C library.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// The sets of instructions that only this processor has.
const ISAS: [&str; 3] = ["neon", "dotprod", "i8mm"];

/// Tests the CPU backend with each of NEON's levels. Where the tools can't be installed, says so
/// loudly and tests nothing.
pub fn test(root: &Path) -> Result<()> {
    if cfg!(target_arch = "aarch64") {
        // The workspace's tests have run these kernels already, on the machine itself.
        return Ok(());
    }
    if let Err(e) = install() {
        eprintln!("xtask: SKIPPED aarch64: {e:#}");
        return Ok(());
    }
    // Built at once, so that both cores have something to do.
    let [kernels, cases] = ["lapidary-backend-cpu", "lapidary-conformance"];
    let build = ["-p", kernels, "-p", cases, "--no-default-features", "--lib", "--test", "cpu"];
    run(emulated(root).args(build).arg("--no-run"))?;
    run(emulated(root).args(["-p", kernels, "-p", cases, "--no-default-features", "--lib"]))?;
    for isa in ISAS {
        // A set that the emulated machine does not have is a failure.
        let test = ["-p", kernels, "-p", cases, "--no-default-features", "--test", "cpu"];
        run(emulated(root).args(test).env("LAPIDARY_CPU_ISA", isa))?;
    }
    Ok(())
}

/// Installs what is needed, so that a test later finds it there.
pub fn prepare() {
    if cfg!(not(target_arch = "aarch64")) {
        _ = install();
    }
}

/// `cargo test` for the other machine. The emulated one has all instruction sets.
fn emulated(root: &Path) -> Command {
    let mut command = cargo(root);
    command.args(["test", "--quiet", "--target", TARGET]);
    let variable =
        |what| format!("CARGO_TARGET_{}_{what}", TARGET.replace('-', "_").to_uppercase());
    command.env(variable("LINKER"), LINKER);
    command.env(variable("RUNNER"), format!("{EMULATOR} -cpu max -L {LIBRARIES}"));
    command
}

/// Installs the compiler's target, the linker and the emulator where they are missing.
fn install() -> Result<()> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("cross-building is set up for x86_64 Linux only");
    }
    run(Command::new("rustup").args(["--quiet", "target", "add", TARGET]))
        .with_context(|| format!("rustup can't add {TARGET}"))?;
    if answers(LINKER) && answers(EMULATOR) && Path::new(LIBRARIES).is_dir() {
        return Ok(());
    }
    packages::install(&PACKAGES)
}

fn answers(tool: &str) -> bool {
    Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success())
}
