//! Runs programs through MLX, Apple's array library, on whatever MLX was built for: Metal, CUDA or the
//! CPU.
//!
//! Nothing of MLX is needed to build this crate. At run time MLX and mlx-c, its interface for C, are
//! loaded if they are installed (`find.rs`); a machine without them has no device, and says why.
//! This room knows programs and the backend contract. It knows no model family, no tokeniser and no
//! other backend.

mod attention;
mod cache;
mod draw;
mod dtype;
mod engine;
mod ffi;
mod find;
mod ops;
mod weights;

use std::sync::Arc;

use lapidary_backend::{
    Backend, CallLimits, Device, DeviceId, DeviceInfo, DeviceKind, Engine, Error, LoadOptions,
    MemoryPlan, Result, Wishes, host,
};
use lapidary_backend_kit::activation_bytes;
use lapidary_program::Program;

use crate::cache::CacheShape;
use crate::engine::{MlxEngine, score_bytes};
use crate::ffi::{Kind, Mlx, Place};
use crate::find::VERSION;
use crate::weights::WeightPlan;

/// The word after `--backend`.
const NAME: &str = "mlx";
/// Tokens of one call that a GPU gains from.
const CHUNK: u32 = 512;
/// The same on a GPU with little memory, and on the CPU.
const SMALL_CHUNK: u32 = 128;
/// Bytes of memory with which long chunks fit.
const LARGE: u64 = 12 << 30;

/// Runs programs through MLX.
#[derive(Clone, Copy, Debug, Default)]
pub struct MlxBackend;

/// A device that was chosen.
struct MlxDevice {
    place: Place,
    info: DeviceInfo,
}

impl MlxDevice {
    fn new(index: usize, place: Place) -> Result<Self> {
        let id = DeviceId::new(NAME, index as u32);
        let sizes = [c"max_recommended_working_set_size", c"total_memory", c"memory_size"];
        let info = match place.kind {
            Kind::Cpu => DeviceInfo {
                id,
                name: format!("MLX {VERSION} on {}", host::cpu_name()),
                kind: DeviceKind::Cpu,
                isa: "cpu".into(),
                bus: None,
                available_bytes: host::available_bytes(),
                total_bytes: host::total_bytes(),
            },
            Kind::Gpu => {
                let (name, total) = ffi::describe(place, &sizes)?;
                let (_, free) = ffi::describe(place, &[c"free_memory"])?;
                let left = total.zip(ffi::active_bytes().ok()).map(|(all, own)| all - own.min(all));
                let is_apple = cfg!(target_vendor = "apple");
                DeviceInfo {
                    id,
                    name: format!("MLX {VERSION} on {}", name.as_deref().unwrap_or("a GPU")),
                    kind: if is_apple { DeviceKind::Integrated } else { DeviceKind::Discrete },
                    isa: if is_apple { "metal" } else { "cuda" }.into(),
                    bus: None,
                    available_bytes: free.or(left),
                    total_bytes: total,
                }
            }
        };
        Ok(MlxDevice { place, info })
    }

    fn all() -> Result<Vec<Self>> {
        ffi::places()?.into_iter().enumerate().map(|(i, place)| Self::new(i, place)).collect()
    }
}

impl Backend for MlxBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(MlxDevice::all()?.into_iter().map(|device| device.info).collect())
    }

    /// MLX is at its best on Apple's GPUs; elsewhere there are backends that are faster.
    fn passes_over(&self, device: &DeviceInfo) -> Option<String> {
        match device.isa.as_str() {
            "metal" => None,
            isa => Some(format!("it runs on `{isa}` here, where others are faster")),
        }
    }

    fn open(&self, id: &DeviceId) -> Result<Box<dyn Device>> {
        let mut all = MlxDevice::all()?;
        match all.iter().position(|device| device.info.id == *id) {
            Some(at) => Ok(Box::new(all.swap_remove(at))),
            None => {
                let known: Vec<String> = all.iter().map(|d| d.info.id.to_string()).collect();
                Err(Error::UnknownDevice { id: id.to_string(), known: known.join(", ") })
            }
        }
    }
}

impl Device for MlxDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn limits(&self, program: &Program, wishes: &Wishes) -> CallLimits {
        let is_large = self.info.total_bytes.is_some_and(|bytes| bytes >= LARGE);
        let chunk = if self.place.kind == Kind::Gpu && is_large { CHUNK } else { SMALL_CHUNK };
        CallLimits::new(program, chunk, wishes)
    }

    /// Every op is a graph of MLX's.
    fn missing_ops(&self, _program: &Program, _method: &str) -> Vec<&'static str> {
        Vec::new()
    }

    fn plan(&self, program: &Program, options: &LoadOptions) -> Result<MemoryPlan> {
        Ok(MemoryPlan {
            weights: WeightPlan::new(program, options).size_bytes(program),
            kv: CacheShape::of(program, options).iter().map(CacheShape::size_bytes).sum(),
            activations: activation_bytes(program, options)
                .saturating_add(score_bytes(program, options)),
        })
    }

    fn load(
        &self,
        program: &Arc<Program>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Engine>> {
        let mlx = Mlx::open(self.place)?;
        if let (Kind::Gpu, Some(total)) = (self.place.kind, self.info.total_bytes) {
            // Beyond this MLX waits for work to end, and then fails, rather than have the system swap.
            ffi::limit_memory(total / 10 * 9)?;
        }
        let about = format!("mlx · {} · {}", self.info.name, self.info.isa);
        Ok(Box::new(MlxEngine::new(program.clone(), options.clone(), (mlx, about), progress)?))
    }
}
