//! Runs programs on the CPU: packed panels, SIMD chosen at run time, all cores.
//!
//! `load` compiles each method into steps with resolved weights and buffers, and packs the weights
//! one at a time; a submitted call walks the steps. Results do not depend on the number of threads, on the
//! other tokens of a call, or on how a prompt is cut into chunks: each row is computed in an order
//! of its own (see `matrix` and `ops/attention`).
//! This room knows programs and the backend contract. It knows no model family, no tokeniser and no
//! other backend.
//!
//! `LAPIDARY_CPU_ISA=scalar|avx2|avxvnni|avx512|avx512vnni|avx512bf16|amx|neon|dotprod|i8mm` overrides
//! the instruction set that `load` picks: the widest of the machine.

mod aligned;
mod cache;
mod compile;
mod engine;
mod matrix;
mod ops;
mod pack_cache;
mod parallel;
mod shared;
mod simd;
mod step;
mod weights;
mod workers;

use std::sync::Arc;

use lapidary_backend::{
    Backend, CallLimits, Device, DeviceId, DeviceInfo, DeviceKind, Engine, Error, LoadOptions,
    MemoryPlan, Result, Wishes, host,
};
use lapidary_program::Program;

use crate::cache::CacheShape;
use crate::compile::Compiled;
use crate::engine::CpuEngine;
use crate::simd::Isa;
use crate::workers::Workers;

/// The word after `--backend`.
const NAME: &str = "cpu";
/// Tokens of one sequence that are worth a call: longer chunks gain nothing.
const CHUNK: u32 = 512;

/// Runs programs on the cores of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuBackend;

/// All cores of this machine.
struct CpuDevice {
    info: DeviceInfo,
    isa: Isa,
}

impl CpuDevice {
    fn new() -> Result<Self> {
        let isa = Isa::choose().map_err(|reason| Error::Unavailable { backend: NAME, reason })?;
        let (name, threads) = (host::cpu_name(), host::n_threads());
        let info = DeviceInfo {
            id: DeviceId::new(NAME, 0),
            name: format!("{name}, {isa:?}, {}", count_threads(threads)),
            kind: DeviceKind::Cpu,
            isa: format!("{isa:?}"),
            bus: None,
            available_bytes: host::available_bytes(),
            total_bytes: host::total_bytes(),
        };
        Ok(CpuDevice { info, isa })
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(vec![CpuDevice::new()?.info])
    }

    fn open(&self, id: &DeviceId) -> Result<Box<dyn Device>> {
        let device = CpuDevice::new()?;
        if *id != device.info.id {
            let known = format!("{} ({})", device.info.id, device.info.name);
            return Err(Error::UnknownDevice { id: id.to_string(), known });
        }
        Ok(Box::new(device))
    }
}

impl Device for CpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn limits(&self, program: &Program, wishes: &Wishes) -> CallLimits {
        CallLimits::new(program, CHUNK, wishes)
    }

    fn missing_ops(&self, _program: &Program, _method: &str) -> Vec<&'static str> {
        Vec::new()
    }

    fn plan(&self, program: &Program, options: &LoadOptions) -> Result<MemoryPlan> {
        let compiled = Compiled::new(program, options);
        Ok(MemoryPlan {
            weights: compiled.weights.size_bytes(program),
            kv: compiled.caches.iter().map(CacheShape::size_bytes).sum(),
            activations: compiled.room.size_bytes(threads_of(options)),
        })
    }

    fn load(
        &self,
        program: &Arc<Program>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Engine>> {
        let machine = (self.isa, Workers::new(threads_of(options)));
        Ok(Box::new(CpuEngine::new(program.clone(), options.clone(), machine, progress)?))
    }
}

fn threads_of(options: &LoadOptions) -> usize {
    options.threads.unwrap_or_else(host::n_threads).max(1)
}

fn count_threads(n: usize) -> String {
    if n == 1 { "1 thread".to_string() } else { format!("{n} threads") }
}
