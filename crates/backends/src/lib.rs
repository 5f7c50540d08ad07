//! The backends of this build: one line each, and nothing else.

use lapidary_backend::Registry;
use lapidary_backend_cpu::CpuBackend;
use lapidary_reference::ReferenceBackend;

/// All backends, best first.
pub fn all() -> Registry {
    gpus(cuda(Registry::new())).with(CpuBackend).with(ReferenceBackend)
}

/// NVIDIA GPUs by NVIDIA's own way.
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
fn cuda(registry: Registry) -> Registry {
    registry.with(lapidary_backend_cuda::CudaBackend)
}

#[cfg(not(all(feature = "cuda", any(target_os = "linux", windows))))]
fn cuda(registry: Registry) -> Registry {
    registry
}

/// Those of the systems that reach GPUs here.
#[cfg(feature = "wgpu")]
fn gpus(registry: Registry) -> Registry {
    use lapidary_backend_wgpu::WgpuBackend;

    if cfg!(target_family = "wasm") {
        registry.with(WgpuBackend::WEBGPU)
    } else if cfg!(target_vendor = "apple") {
        registry.with(WgpuBackend::METAL)
    } else if cfg!(windows) {
        registry.with(WgpuBackend::DX12).with(WgpuBackend::VULKAN)
    } else {
        registry.with(WgpuBackend::VULKAN)
    }
}

#[cfg(not(feature = "wgpu"))]
fn gpus(registry: Registry) -> Registry {
    registry
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_known_and_unique() {
        let registry = super::all();
        let mut names: Vec<_> = registry.iter().map(|backend| backend.name()).collect();
        assert!(names.ends_with(&["cpu", "reference"]), "{names:?}");
        assert_eq!(names.len() > 2, cfg!(any(feature = "cuda", feature = "wgpu")), "{names:?}");
        for name in ["cpu", "reference"] {
            assert!(registry.named(name, None).is_ok(), "{name}");
        }
        let n = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n);
    }
}
