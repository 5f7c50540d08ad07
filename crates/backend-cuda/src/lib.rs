//! Runs programs on NVIDIA GPUs through the CUDA driver.
//!
//! Nothing of CUDA is needed to build this crate. At run time the driver is enough: kernels are written
//! in CUDA C++ (`kernels/`), compiled by `cargo xtask cuda` and shipped as a bundle with the crate. A
//! machine without a driver has no device, and says why.
//! This room knows programs and the backend contract. It knows no model family, no tokeniser and no
//! other backend.

mod bundle;
mod cache;
mod compile;
mod driver;
mod engine;
mod fuse;
mod gpu;
mod ops;
mod packed;
mod products;
mod raw;
mod rows;
mod weights;

use std::sync::Arc;

use lapidary_backend::{
    Backend, CallLimits, Device, DeviceId, DeviceInfo, DeviceKind, Engine, Error, LoadOptions,
    MemoryPlan, Result, Wishes,
};
use lapidary_program::Program;

use crate::cache::CacheShape;
use crate::compile::Compiled;
use crate::driver::Found;
use crate::engine::CudaEngine;
use crate::gpu::Gpu;

/// The word after `--backend`.
const NAME: &str = "cuda";
/// Tokens of one call that a GPU gains from.
const CHUNK: u32 = 2048;
/// The same on a GPU with little memory.
const SMALL_CHUNK: u32 = 512;
/// Bytes of memory with which long chunks fit.
const LARGE: u64 = 12 << 30;
/// The oldest GPUs that kernels are compiled for.
const LEAST_CAPABILITY: (i32, i32) = (8, 0);

/// Runs programs on NVIDIA GPUs.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaBackend;

/// A GPU that was chosen.
struct CudaDevice {
    found: Found,
    info: DeviceInfo,
}

impl CudaBackend {
    fn device(&self, found: &Found) -> CudaDevice {
        let (major, minor) = found.capability;
        // Asking for free memory opens the GPU, which is kept open for who loads next.
        let free = Gpu::open(found).and_then(|gpu| gpu.context.free_bytes()).ok();
        let info = DeviceInfo {
            id: DeviceId::new(NAME, found.index),
            name: found.name.clone(),
            kind: DeviceKind::Discrete,
            isa: format!("sm_{major}{minor}"),
            bus: found.bus.clone(),
            available_bytes: free,
            total_bytes: Some(found.total_bytes),
        };
        CudaDevice { found: found.clone(), info }
    }

    /// The GPUs that kernels are compiled for.
    fn found(&self) -> Result<Vec<Found>> {
        let all = driver::found()?;
        let usable: Vec<Found> =
            all.iter().filter(|found| found.capability >= LEAST_CAPABILITY).cloned().collect();
        if let (true, Some(old)) = (usable.is_empty(), all.first()) {
            let (major, minor) = old.capability;
            let reason = format!(
                "{} has compute capability {major}.{minor}, and {}.{} is needed",
                old.name, LEAST_CAPABILITY.0, LEAST_CAPABILITY.1
            );
            return Err(Error::Unavailable { backend: NAME, reason });
        }
        Ok(usable)
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(self.found()?.iter().map(|found| self.device(found).info).collect())
    }

    /// Towers and experts are not fast enough yet to be what nobody asked for.
    fn passes_over(&self, _device: &DeviceInfo) -> Option<String> {
        Some("it is young: ask for it by `--backend cuda`".into())
    }

    fn open(&self, id: &DeviceId) -> Result<Box<dyn Device>> {
        let all = self.found()?;
        let Some(found) = all.iter().find(|found| found.index == id.index) else {
            let known: Vec<String> = all.iter().map(|f| format!("{NAME}:{}", f.index)).collect();
            return Err(Error::UnknownDevice { id: id.to_string(), known: known.join(", ") });
        };
        Ok(Box::new(self.device(found)))
    }
}

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn limits(&self, program: &Program, wishes: &Wishes) -> CallLimits {
        let chunk = if self.found.total_bytes >= LARGE { CHUNK } else { SMALL_CHUNK };
        CallLimits::new(program, chunk, wishes)
    }

    /// Every op has a kernel.
    fn missing_ops(&self, _program: &Program, _method: &str) -> Vec<&'static str> {
        Vec::new()
    }

    fn plan(&self, program: &Program, options: &LoadOptions) -> Result<MemoryPlan> {
        let compiled = Compiled::new(program, options, true, None);
        Ok(MemoryPlan {
            weights: compiled.weights.size_bytes(program),
            kv: compiled.caches.iter().map(CacheShape::size_bytes).sum(),
            activations: compiled.arena.size_bytes(compiled.planned),
        })
    }

    fn load(
        &self,
        program: &Arc<Program>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Engine>> {
        let gpu = Gpu::open(&self.found)?;
        Ok(Box::new(CudaEngine::new(program.clone(), options.clone(), gpu, progress)?))
    }
}
