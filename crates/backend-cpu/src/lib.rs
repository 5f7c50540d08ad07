//! Runs programs on the CPU: packed panels, SIMD chosen at run time, all cores.
//!
//! `load` compiles each method into steps with resolved weights and buffers, and packs the weights
//! one at a time; `run` walks the steps. Results do not depend on the number of threads, on the
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
mod derived;
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

use lapidary_backend::{Backend, Device, Engine, Error, LoadOptions, MemoryPlan, Result, host};
use lapidary_program::Program;

use crate::cache::CacheShape;
use crate::compile::Compiled;
use crate::engine::CpuEngine;
use crate::simd::Isa;
use crate::workers::Workers;

/// The word behind `--backend`.
const NAME: &str = "cpu";

/// Runs programs on the cores of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuBackend;

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> Result<Vec<Device>> {
        let (name, isa, threads) = (host::cpu_name(), choose_isa()?, host::n_threads());
        Ok(vec![Device {
            name: format!("{name}, {isa:?}, {}", count_threads(threads)),
            isa: format!("{isa:?}"),
            available_bytes: host::available_bytes(),
            total_bytes: host::total_bytes(),
        }])
    }

    fn preferred_chunk(&self) -> u32 {
        512
    }

    fn missing_ops(&self, _program: &Program, _method: &str) -> Vec<&'static str> {
        Vec::new()
    }

    fn plan(&self, program: &Program, options: &LoadOptions) -> Result<MemoryPlan> {
        let compiled = Compiled::new(program, options);
        Ok(MemoryPlan {
            weights: compiled.weights.size_bytes(program)?,
            kv: compiled.caches.iter().map(CacheShape::size_bytes).sum(),
            activations: compiled.room.size_bytes(threads_of(options)),
        })
    }

    fn load(
        &self,
        program: &Arc<Program>,
        _device: &Device,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Engine>> {
        let machine = (choose_isa()?, Workers::new(threads_of(options)));
        Ok(Box::new(CpuEngine::new(program.clone(), options.clone(), machine, progress)?))
    }
}

fn choose_isa() -> Result<Isa> {
    Isa::choose().map_err(|reason| Error::Unavailable { backend: NAME, reason })
}

fn threads_of(options: &LoadOptions) -> usize {
    options.threads.unwrap_or_else(host::n_threads).max(1)
}

fn count_threads(n: usize) -> String {
    if n == 1 { "1 thread".to_string() } else { format!("{n} threads") }
}
