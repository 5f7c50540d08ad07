//! The backends that tests over models run on.

use std::io::Write as _;

use lapidary_backend::Backend;
use lapidary_backend_wgpu::WgpuBackend;

const GPU: WgpuBackend = WgpuBackend::VULKAN;
const LEAST_GPU: WgpuBackend = WgpuBackend::VULKAN.with_least();

/// The reference, the CPU, and a GPU, as it is and with nothing but what every GPU has. Software
/// will do for a GPU; where there is none, this says so.
#[allow(dead_code, reason = "each test binary uses some of these")]
pub fn all() -> Vec<&'static dyn Backend> {
    let mut all = each();
    all.extend((all.len() > of_importers().len()).then_some(&LEAST_GPU as &dyn Backend));
    all
}

/// The same with a GPU as it is: for what the runner makes of an engine that `suite::properties`
/// has tested both ways.
#[allow(dead_code, reason = "each test binary uses some of these")]
pub fn each() -> Vec<&'static dyn Backend> {
    let mut each = of_importers();
    match GPU.devices() {
        Ok(_) => each.push(&GPU),
        Err(e) => _ = writeln!(std::io::stderr(), "SKIPPED GPU: {e}"),
    }
    each
}

/// Those that are fast enough to see what importers make of the same numbers in many files. A GPU
/// gets these numbers from other tests; in software, it takes its time to compile each kernel.
#[allow(dead_code, reason = "each test binary uses some of these")]
pub fn of_importers() -> Vec<&'static dyn Backend> {
    vec![&lapidary_reference::ReferenceBackend, &lapidary_backend_cpu::CpuBackend]
}

/// Whether a backend is a GPU, whose sums have no one order: it has other kernels for few tokens than
/// for many.
#[allow(dead_code, reason = "each test binary uses some of these")]
pub fn is_gpu(backend: &dyn Backend) -> bool {
    of_importers().iter().all(|b| b.name() != backend.name())
}
