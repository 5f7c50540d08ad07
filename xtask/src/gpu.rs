//! What tests of the GPU backend need: a Vulkan in software, and a compiler that checks Metal's types.

use std::process::Command;

use crate::packages;

/// Debian's names: a driver that computes on the CPU, the library that finds drivers, and clang.
const PACKAGES: [&str; 3] = ["mesa-vulkan-drivers", "libvulkan1", "clang"];
/// Where drivers tell that they are there.
const DRIVERS: [&str; 2] = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"];

/// Installs what tests on a GPU need, where that can be done; else they say that they are skipped.
pub fn prepare() {
    let has_driver = DRIVERS
        .iter()
        .any(|folder| std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some()));
    let has_clang = Command::new("clang").arg("--version").output().is_ok();
    if !cfg!(target_os = "linux") || has_driver && has_clang {
        return;
    }
    if let Err(e) = packages::install(&PACKAGES) {
        eprintln!("xtask: SKIPPED what needs a GPU: {e:#}");
    }
}
