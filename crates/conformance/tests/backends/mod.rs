//! The backends that tests over models run on.

use std::io::Write as _;

use lapidary_backend::Backend;
use lapidary_backend_wgpu::WgpuBackend;

const GPU: WgpuBackend = WgpuBackend::VULKAN;
const LEAST_GPU: WgpuBackend = WgpuBackend::VULKAN.with_least();

/// The reference, the CPU, and a GPU, as it is and with nothing but what every GPU has. Software
/// will do for a GPU; where there is none, this says so.
pub fn all() -> Vec<&'static dyn Backend> {
    let mut all: Vec<&dyn Backend> =
        vec![&lapidary_reference::ReferenceBackend, &lapidary_backend_cpu::CpuBackend];
    match GPU.probe() {
        Ok(_) => all.extend([&GPU as &dyn Backend, &LEAST_GPU]),
        Err(e) => _ = writeln!(std::io::stderr(), "SKIPPED GPU: {e}"),
    }
    all
}
