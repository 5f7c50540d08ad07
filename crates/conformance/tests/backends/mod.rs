//! The backends that tests over models run on.

use std::io::Write as _;

use lapidary_backend::Backend;
use lapidary_backend_wgpu::WgpuBackend;

const GPU: WgpuBackend = WgpuBackend::VULKAN;
const LEAST_GPU: WgpuBackend = WgpuBackend::VULKAN.with_least();

/// The reference, the CPU, and a GPU, as it is and with nothing but what every GPU has. Software
/// will do for a GPU; where there is none, this says so.
pub fn all() -> Vec<&'static dyn Backend> {
    let mut all = of_importers();
    match GPU.probe() {
        Ok(_) => all.extend([&GPU as &dyn Backend, &LEAST_GPU]),
        Err(e) => _ = writeln!(std::io::stderr(), "SKIPPED GPU: {e}"),
    }
    all
}

/// Those that are fast enough to see what importers make of the same numbers in many files. A GPU
/// gets these numbers from other tests; in software, it takes a second for each kernel.
#[allow(dead_code, reason = "not every test is of an importer")]
pub fn of_importers() -> Vec<&'static dyn Backend> {
    vec![&lapidary_reference::ReferenceBackend, &lapidary_backend_cpu::CpuBackend]
}
