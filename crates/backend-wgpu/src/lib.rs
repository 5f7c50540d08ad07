//! Runs programs on GPUs through Vulkan, Metal, DX12 and WebGPU: one set of WGSL kernels.
//!
//! `load` compiles each method into kernels with planned buffers and writes the weights to the
//! device a few rows at a time; `run` records them all, submits, and reads the outputs back.
//! Every kernel that needs more than the least GPU has another that does not.
//! This room knows programs and the backend contract. It knows no model family, no tokeniser and no
//! other backend.
//!
//! `LAPIDARY_GPU_FEATURES` takes `none`, `all`, or some of `subgroups,f16,matrices,limits`, and so
//! overrides what kernels may use: everything that the device has. `LAPIDARY_GPU_PROFILE=1` has each
//! kernel timed, `LAPIDARY_GPU_PROFILE=host` the host's part of calls (`profile.rs`).

mod adapter;
mod cache;
mod compile;
mod derived;
mod device;
mod engine;
#[cfg(test)]
mod faults;
mod fuse;
mod host;
mod instance;
mod linear;
#[cfg(test)]
mod long;
mod memory;
mod ops;
mod pipeline_cache;
mod profile;
mod room;
mod shader;
mod speed;
mod step;
mod template;
#[cfg(test)]
mod translate;
mod weights;

use std::sync::Arc;

use lapidary_backend::{Backend, Device, Engine, LoadOptions, MemoryPlan, Result};
use lapidary_program::{Op, Program};

use crate::adapter::{Adapter, Api, Switches};
use crate::cache::CacheShape;
use crate::compile::{Compiled, Fusing};
use crate::device::Gpu;
use crate::engine::WgpuEngine;
use crate::room::Room;

/// Tokens of one call on a GPU with memory of its own: many, for a large GPU is filled by many rows
/// only.
const CHUNK: u32 = 2048;
/// On a GPU that takes part of the system's memory.
const SMALL_CHUNK: u32 = 256;
/// On what is no GPU.
const SOFTWARE_CHUNK: u32 = 64;
/// Where nothing is known, or buffers can't be large.
const PLAIN_CHUNK: u32 = 512;
/// Bytes of one binding, and of memory, with which long chunks fit.
const LARGE: [u64; 2] = [1 << 30, 6 << 30];

/// Tokens of one call that a GPU gains from.
fn chunk(device: &Device, max_binding: u64) -> u32 {
    let is_large =
        max_binding >= LARGE[0] && device.total_bytes.is_none_or(|bytes| bytes >= LARGE[1]);
    match device.isa.as_str() {
        adapter::SOFTWARE => SOFTWARE_CHUNK,
        adapter::INTEGRATED => SMALL_CHUNK,
        adapter::DISCRETE if is_large => CHUNK,
        _ => PLAIN_CHUNK,
    }
}

/// Runs programs on the GPUs that one system reaches.
#[derive(Clone, Copy, Debug)]
pub struct WgpuBackend {
    api: Api,
    /// What kernels may use; the environment says it if this does not.
    switches: Option<Switches>,
}

impl WgpuBackend {
    /// Through Vulkan.
    pub const VULKAN: Self = Self::new(Api::Vulkan);
    /// Through Metal.
    pub const METAL: Self = Self::new(Api::Metal);
    /// Through Direct3D 12.
    pub const DX12: Self = Self::new(Api::Dx12);
    /// Through a browser.
    pub const WEBGPU: Self = Self::new(Api::WebGpu);

    const fn new(api: Api) -> Self {
        WgpuBackend { api, switches: None }
    }

    /// The same with kernels that use nothing but what every GPU has.
    pub const fn with_least(self) -> Self {
        WgpuBackend { switches: Some(Switches::NONE), ..self }
    }

    /// The same with weights in buffers of so many bytes at most; for tests of what large models
    /// need.
    pub const fn with_shards(self, max_bytes: u64) -> Self {
        let switches = self.known_switches();
        WgpuBackend { switches: Some(Switches { shard: Some(max_bytes), ..switches }), ..self }
    }

    /// The same with tokens that see more keys than this worked on as those of long contexts are.
    pub const fn with_most_keys(self, most: u64) -> Self {
        let switches = self.known_switches();
        WgpuBackend { switches: Some(Switches { keys: Some(most), ..switches }), ..self }
    }

    const fn known_switches(&self) -> Switches {
        match self.switches {
            Some(switches) => switches,
            None => Switches::ALL,
        }
    }
}

impl WgpuBackend {
    fn open(&self, device: &Device, options: &LoadOptions) -> Result<Arc<Gpu>> {
        let adapter = self.api.adapter(device, self.switches)?;
        Gpu::open(self.api, &adapter, options.pack_cache.as_deref())
    }
}

impl Backend for WgpuBackend {
    fn name(&self) -> &'static str {
        self.api.name()
    }

    fn probe(&self) -> Result<Vec<Device>> {
        Ok(self.api.adapters(self.switches)?.iter().map(Adapter::device).collect())
    }

    fn absent(&self) -> Option<String> {
        self.api.absent()
    }

    fn passes_over(&self, device: &Device) -> Option<String> {
        if device.isa != adapter::SOFTWARE {
            return None;
        }
        // What draws pictures in software is large, and is not to stay in memory for nothing.
        adapter::forget_adapters(self.api);
        Some(format!("{} is no GPU, but software", device.name))
    }

    fn preferred_chunk(&self) -> u32 {
        let adapters = self.api.adapters(self.switches).unwrap_or_default();
        let of = |a: &Adapter| chunk(&a.device(), a.abilities.max_binding);
        adapters.first().map_or(PLAIN_CHUNK, of)
    }

    fn missing_ops(&self, program: &Program, method: &str) -> Vec<&'static str> {
        let Some(method) = program.methods().get(method) else { return Vec::new() };
        let n_inputs = method.graph.inputs.len();
        let lacks = |node: &&lapidary_program::Node| match &node.op {
            // The host gathers rows and makes angles, and knows only what it is fed.
            Op::Embed { .. } => node.inputs.iter().any(|id| id.index() >= n_inputs),
            Op::Rope(_) | Op::AxialRope(_) => {
                node.inputs.iter().skip(1).any(|id| id.index() >= n_inputs)
            }
            _ => false,
        };
        let mut kinds: Vec<_> =
            method.graph.nodes.iter().filter(lacks).map(|node| node.op.kind()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    fn plan(&self, program: &Program, options: &LoadOptions) -> Result<MemoryPlan> {
        let adapters = self.api.adapters(self.switches)?;
        let compiled = Compiled::new(program, options, &adapters[0].abilities, Fusing::On, None);
        Ok(MemoryPlan {
            weights: compiled.weights.size_bytes(program)?,
            kv: compiled.caches.iter().map(CacheShape::size_bytes).sum(),
            activations: Room::size_bytes(&compiled.room, &compiled.methods, compiled.planned)
                + engine::largest_bytes(&compiled),
        })
    }

    fn load(
        &self,
        program: &Arc<Program>,
        device: &Device,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Engine>> {
        let gpu = match self.open(device, options) {
            Ok(gpu) => gpu,
            // A device that was lost may be there again, but not behind the adapter that was known.
            Err(_) => {
                adapter::forget_adapters(self.api);
                self.open(device, options)?
            }
        };
        Ok(Box::new(WgpuEngine::new(program.clone(), options.clone(), gpu, progress)?))
    }
}

#[cfg(test)]
mod tests {
    use lapidary_backend::Device;

    #[test]
    fn a_large_gpu_takes_long_chunks() {
        let of = |kind: &str, gib: Option<u64>, binding| {
            let total_bytes = gib.map(|gib| gib << 30);
            let device = Device {
                name: "a GPU".to_string(),
                isa: kind.to_string(),
                available_bytes: None,
                total_bytes,
            };
            super::chunk(&device, binding)
        };
        assert_eq!(of("discrete", Some(141), 1 << 31), 2048);
        assert_eq!(of("discrete", None, 1 << 31), 2048);
        assert_eq!(of("discrete", Some(4), 1 << 31), 512);
        assert_eq!(of("discrete", Some(24), 128 << 20), 512);
        assert_eq!(of("integrated", Some(16), 1 << 31), 256);
        assert_eq!(of("software", Some(16), 1 << 27), 64);
    }
}
