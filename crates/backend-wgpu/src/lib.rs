//! Runs programs on GPUs through Vulkan, Metal, DX12 and WebGPU: one set of WGSL kernels.
//!
//! `load` compiles each method into kernels with planned buffers and writes the weights to the
//! device a few rows at a time; `submit` records them all and gives them to the device, and `poll` and
//! `wait` read the outputs back. Tokens may be drawn on the device and feed the next call from there.
//! Every kernel that needs more than the least GPU has another that does not.
//! This room knows programs and the backend contract. It knows no model family, no tokeniser and no
//! other backend.
//!
//! `LAPIDARY_GPU_FEATURES` takes `none`, `all`, or some of `subgroups,f16,matrices,limits,tables`, and
//! so overrides what kernels may use: everything that the device has, and tables of embeddings there. `LAPIDARY_GPU_PROFILE=1` has each
//! kernel timed, `LAPIDARY_GPU_PROFILE=host` the host's part of calls (`profile.rs`).

mod adapter;
mod arena;
mod cache;
mod compile;
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
#[cfg(test)]
mod paged;
mod pipeline_cache;
mod profile;
mod shader;
mod speed;
mod step;
#[cfg(test)]
mod tables;
mod template;
#[cfg(test)]
mod translate;
mod weights;

use std::sync::Arc;

use lapidary_backend::{
    Backend, CallLimits, Device, DeviceId, DeviceInfo, DeviceKind, Engine, LoadOptions, MemoryPlan,
    Result, Sizes, Wishes,
};
use lapidary_program::{Op, Program};

use crate::adapter::{Adapter, Api, Switches};
use crate::arena::Arena;
use crate::cache::CacheShape;
use crate::compile::{Compiled, Fusing, Tables};
use crate::device::Gpu;
use crate::engine::WgpuEngine;

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
/// Bytes of tables that are copied even to a device without memory of its own.
const SMALL_TABLES: u64 = 256 << 20;

/// Tokens of one call that a GPU gains from.
fn chunk(device_type: wgpu::DeviceType, total_bytes: Option<u64>, max_binding: u64) -> u32 {
    let is_large = max_binding >= LARGE[0] && total_bytes.is_none_or(|bytes| bytes >= LARGE[1]);
    match device_type {
        wgpu::DeviceType::Cpu => SOFTWARE_CHUNK,
        wgpu::DeviceType::IntegratedGpu => SMALL_CHUNK,
        wgpu::DeviceType::DiscreteGpu if is_large => CHUNK,
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

/// A GPU that was chosen.
struct WgpuDevice {
    backend: WgpuBackend,
    adapter: Adapter,
    info: DeviceInfo,
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

    /// The same with tables of embeddings on the host, as where a device has no memory for them.
    pub const fn with_host_tables(self) -> Self {
        let switches = self.known_switches();
        WgpuBackend { switches: Some(Switches { tables: false, ..switches }), ..self }
    }

    const fn known_switches(&self) -> Switches {
        match self.switches {
            Some(switches) => switches,
            None => Switches::ALL,
        }
    }

    /// What a program takes on a large GPU with memory of its own, whatever there is here: its
    /// limits, and a plan for any options. For tests.
    #[doc(hidden)]
    pub fn plan_large(
        program: &Program,
        wishes: &Wishes,
        options: impl FnOnce(CallLimits) -> LoadOptions,
    ) -> Result<MemoryPlan> {
        let options = options(CallLimits::new(program, CHUNK, wishes));
        let abilities = &adapter::Abilities::LARGE;
        let on = (Fusing::On, Tables::Device);
        let compiled = Compiled::new(program, &options, abilities, on, None);
        let most = cache::max_pages(&compiled.caches, compiled.groups.len(), abilities.max_binding);
        cache::check_pools(&options, &most, "a large GPU")?;
        Ok(plan_of(&compiled, program))
    }

    /// The kernels that calls of some lengths run on the first device, each with its switches and
    /// constants: `linear/tile BIAS BITS=4`. For tests that must know which programs run which.
    #[doc(hidden)]
    pub fn kernels(
        &self,
        program: &Program,
        options: &LoadOptions,
        lengths: &[usize],
    ) -> Result<Vec<String>> {
        let device = self.device(&DeviceId::new(self.api.name(), 0))?;
        let compiled = device.compiled(program, options);
        let calls = lengths.iter().map(|n| {
            let (tokens, rows, soft, patches, frames) = (*n, *n, *n, *n, *n);
            Sizes { tokens, rows, soft, patches, frames }
        });
        let calls: Vec<Sizes> = calls.collect();
        // From the first token of a context to the last.
        let keys = [1, u64::from(options.max_context)];
        let steps = compiled.methods.values().flat_map(|method| &method.steps);
        let all = steps.flat_map(|step| &step.dispatches);
        let runs = |d: &&step::Dispatch| {
            calls.iter().any(|sizes| keys.iter().any(|keys| d.is_meant(*sizes, *keys)))
        };
        Ok(all.filter(runs).map(|d| d.shader.label()).collect())
    }

    /// All kernels: files in `shaders/` that can be run, without switches and constants.
    #[doc(hidden)]
    pub fn all_kernels() -> Vec<&'static str> {
        let runs = shader::FILES.iter().filter(|(_, text)| text.contains("fn main("));
        runs.map(|(stem, _)| *stem).collect()
    }

    fn device(&self, id: &DeviceId) -> Result<WgpuDevice> {
        let adapter = self.api.adapter(id, self.switches)?;
        Ok(WgpuDevice { backend: *self, info: adapter.info(self.api), adapter })
    }
}

impl Backend for WgpuBackend {
    fn name(&self) -> &'static str {
        self.api.name()
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let adapters = self.api.adapters(self.switches)?;
        Ok(adapters.iter().map(|adapter| adapter.info(self.api)).collect())
    }

    fn absent(&self) -> Option<String> {
        self.api.absent()
    }

    fn passes_over(&self, device: &DeviceInfo) -> Option<String> {
        if device.kind != DeviceKind::Software {
            return None;
        }
        // What draws images in software is large, and is not to stay in memory for nothing.
        adapter::forget_adapters(self.api);
        Some(format!("{} is no GPU, but software", device.name))
    }

    fn open(&self, id: &DeviceId) -> Result<Box<dyn Device>> {
        Ok(Box::new(self.device(id)?))
    }
}

impl WgpuDevice {
    /// The GPU itself. One that was lost may be there again, but not as the adapter that was known.
    fn gpu(&self, options: &LoadOptions) -> Result<Arc<Gpu>> {
        let folder = options.pack_cache.as_deref();
        let api = self.backend.api;
        Gpu::open(api, &self.adapter, folder).or_else(|_| {
            adapter::forget_adapters(api);
            let again = self.backend.device(&self.info.id)?;
            Gpu::open(api, &again.adapter, folder)
        })
    }

    fn most_pages(&self, compiled: &Compiled) -> Vec<u32> {
        let most = self.adapter.abilities.max_binding;
        cache::max_pages(&compiled.caches, compiled.groups.len(), most)
    }

    /// A compiled program, with its tables on the device if they fit there.
    fn compiled(&self, program: &Program, options: &LoadOptions) -> Compiled {
        let abilities = &self.adapter.abilities;
        let of = |tables| Compiled::new(program, options, abilities, (Fusing::On, tables), None);
        if abilities.tables {
            let compiled = of(Tables::Device);
            let plan = plan_of(&compiled, program);
            let is_small = table_bytes(program, options) <= SMALL_TABLES;
            let is_own = self.info.kind == DeviceKind::Discrete;
            let fits = self.info.available_bytes.is_none_or(|bytes| plan.total() <= bytes);
            if fits && (is_own || is_small) {
                return compiled;
            }
        }
        of(Tables::Host)
    }
}

/// Bytes of the tables whose rows methods look up.
fn table_bytes(program: &Program, options: &LoadOptions) -> u64 {
    let methods = program.methods().iter().filter(|(name, _)| options.wants(name));
    let nodes = methods.flat_map(|(_, method)| &method.graph.nodes);
    let mut tables: Vec<&str> = nodes
        .filter_map(|node| match &node.op {
            Op::Embed { weight, .. } => Some(weight.as_str()),
            _ => None,
        })
        .collect();
    tables.sort_unstable();
    tables.dedup();
    tables.into_iter().map(|name| program.weights()[name].size_bytes()).sum()
}

fn plan_of(compiled: &Compiled, program: &Program) -> MemoryPlan {
    let Compiled { arena, methods, planned, spans, .. } = compiled;
    MemoryPlan {
        weights: compiled.weights.size_bytes(program),
        kv: compiled.caches.iter().map(CacheShape::size_bytes).sum(),
        activations: Arena::size_bytes(arena, methods, *planned, *spans)
            + engine::top_bytes(compiled),
    }
}

impl Device for WgpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn limits(&self, program: &Program, wishes: &Wishes) -> CallLimits {
        let device_type = self.adapter.raw.get_info().device_type;
        let max_binding = self.adapter.abilities.max_binding;
        CallLimits::new(program, chunk(device_type, self.info.total_bytes, max_binding), wishes)
    }

    /// Every op has a kernel that needs nothing, or is the host's business.
    fn missing_ops(&self, _program: &Program, _method: &str) -> Vec<&'static str> {
        Vec::new()
    }

    fn max_pages(&self, program: &Program, options: &LoadOptions) -> Option<Vec<u32>> {
        Some(self.most_pages(&self.compiled(program, options)))
    }

    fn plan(&self, program: &Program, options: &LoadOptions) -> Result<MemoryPlan> {
        let compiled = self.compiled(program, options);
        cache::check_pools(options, &self.most_pages(&compiled), &self.info.name)?;
        Ok(plan_of(&compiled, program))
    }

    fn load(
        &self,
        program: &Arc<Program>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Engine>> {
        let compiled = self.compiled(program, options);
        cache::check_pools(options, &self.most_pages(&compiled), &self.info.name)?;
        let tables = compiled.tables;
        let gpu = self.gpu(options)?;
        let (program, options) = (program.clone(), options.clone());
        Ok(Box::new(WgpuEngine::new(program, options, gpu, tables, progress)?))
    }
}

#[cfg(test)]
mod tests {
    use wgpu::DeviceType;

    #[test]
    fn a_large_gpu_takes_long_chunks() {
        let of =
            |kind, gib: Option<u64>, binding| super::chunk(kind, gib.map(|gib| gib << 30), binding);
        assert_eq!(of(DeviceType::DiscreteGpu, Some(141), 1 << 31), 2048);
        assert_eq!(of(DeviceType::DiscreteGpu, None, 1 << 31), 2048);
        assert_eq!(of(DeviceType::DiscreteGpu, Some(4), 1 << 31), 512);
        assert_eq!(of(DeviceType::DiscreteGpu, Some(24), 128 << 20), 512);
        assert_eq!(of(DeviceType::IntegratedGpu, Some(16), 1 << 31), 256);
        assert_eq!(of(DeviceType::Cpu, Some(16), 1 << 27), 64);
    }
}
