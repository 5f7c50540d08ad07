//! The backends of this build: one line each, and nothing else.

use lapidary_backend::Registry;
use lapidary_backend_cpu::CpuBackend;
use lapidary_reference::ReferenceBackend;

/// All backends, best first.
pub fn all() -> Registry {
    let registry = cuda(Registry::new());
    // Apple's own engine is the best for Apple's GPUs. Elsewhere it is there for who asks for it, and
    // `auto` does not even look for it.
    let registry = match cfg!(target_vendor = "apple") {
        true => gpus(mlx(registry)).with(CpuBackend),
        false => mlx(gpus(registry).with(CpuBackend)),
    };
    registry.with(ReferenceBackend)
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

/// Apple's array library, on the devices that it was built for.
#[cfg(all(feature = "mlx", any(target_os = "linux", target_os = "macos")))]
fn mlx(registry: Registry) -> Registry {
    registry.with(lapidary_backend_mlx::MlxBackend)
}

#[cfg(not(all(feature = "mlx", any(target_os = "linux", target_os = "macos"))))]
fn mlx(registry: Registry) -> Registry {
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
        let at = |name: &str| names.iter().position(|n| *n == name);
        assert_eq!(at("reference"), Some(names.len() - 1), "{names:?}");
        let is_behind = cfg!(all(feature = "mlx", target_os = "linux"));
        assert_eq!(at("cpu"), Some(names.len() - 2 - usize::from(is_behind)), "{names:?}");
        assert_eq!(
            names.len() > 2,
            cfg!(any(feature = "cuda", feature = "mlx", feature = "wgpu")),
            "{names:?}"
        );
        for name in ["cpu", "reference"] {
            assert!(registry.named(name, None).is_ok(), "{name}");
        }
        let n = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n);
    }
}
