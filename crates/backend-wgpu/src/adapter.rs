//! What GPUs there are, and which of their abilities kernels may use.

use std::sync::{Mutex, PoisonError};

use lapidary_backend::{DeviceId, DeviceInfo, DeviceKind, Error, Result};

use crate::instance::instance;
use crate::{memory, profile};

/// A system that GPUs are reached through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Api {
    Vulkan,
    Metal,
    Dx12,
    WebGpu,
}

/// Overrides what adapters can do: `none`, or a list of the words of [`Abilities::WORDS`].
pub(crate) const FEATURES_VARIABLE: &str = "LAPIDARY_GPU_FEATURES";

/// Bytes of one binding where nothing is known or allowed.
const LEAST_BINDING: u64 = 128 << 20;
/// Bytes of a workgroup's memory where nothing is known or allowed.
const LEAST_WORKGROUP: u32 = 16 << 10;
/// Invocations of a workgroup where nothing is known or allowed.
const LEAST_INVOCATIONS: u32 = 256;
/// Storage buffers of a kernel where nothing is known or allowed: what every WebGPU device has.
const LEAST_BUFFERS: u32 = 8;
/// No kernel needs more.
const MOST_BUFFERS: u32 = 13;
/// No binding is made larger: offsets into it are 32 bits, and some drivers take less than they say.
const MOST_BINDING: u64 = (1 << 31) - 256;

/// What kernels may use. Each has a path that needs none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Abilities {
    /// Sums over subgroups.
    pub subgroups: bool,
    /// Arithmetic on half floats.
    pub f16: bool,
    /// Cooperative matrices.
    pub matrices: bool,
    /// Bytes of compiled kernels.
    pub pipeline_cache: bool,
    /// Times of kernels, if they are asked for.
    pub times: bool,
    /// Invocations of a subgroup, least and most.
    pub subgroup_size: [u32; 2],
    /// The most bytes of one binding, and so of one buffer.
    pub max_binding: u64,
    /// The most bytes of one buffer of weights.
    pub max_shard: u64,
    /// Keys that one kernel goes over for a token at most, if not as many as it gains from.
    pub max_keys: Option<u64>,
    /// The most bytes that a workgroup shares.
    pub max_workgroup_bytes: u32,
    /// The most workgroups in one direction.
    pub max_groups: u32,
    /// The most invocations of a workgroup.
    pub max_invocations: u32,
    /// The most storage buffers of a kernel.
    pub max_buffers: u32,
    /// Whether products of four bytes are one instruction. No system tells; Metal has none.
    pub packed_dots: bool,
    /// Whether tables of embeddings may be on the device.
    pub tables: bool,
}

/// A GPU that can be opened.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    pub raw: wgpu::Adapter,
    pub abilities: Abilities,
    /// Its number among the devices of its API.
    pub index: u32,
}

/// How the devices begin in `/dev` through which drivers reach GPUs.
const DEVICES: &[&str] =
    &["accel", "dri", "dxg", "kfd", "kgsl", "mali", "nvgpu", "nvhost", "nvidia", "nvmap", "pvr"];

/// Whether one of some devices may be that of a GPU.
fn may_be_gpu(mut names: impl Iterator<Item = String>) -> bool {
    names.any(|name| DEVICES.iter().any(|device| name.starts_with(device)))
}

impl Api {
    /// Why there is no GPU, if the system shows that without its drivers: on Linux each has a device,
    /// and without one there is only software, which takes memory and half a second to say so.
    pub(crate) fn absent(self) -> Option<String> {
        if self != Api::Vulkan || cfg!(not(target_os = "linux")) {
            return None;
        }
        let entries = std::fs::read_dir("/dev").ok()?;
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        (!may_be_gpu(names)).then(|| "no GPU has a device in /dev".to_string())
    }

    /// The word after `--backend`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Api::Vulkan => "vulkan",
            Api::Metal => "metal",
            Api::Dx12 => "dx12",
            Api::WebGpu => "webgpu",
        }
    }

    pub(crate) fn backends(self) -> wgpu::Backends {
        match self {
            Api::Vulkan => wgpu::Backends::VULKAN,
            Api::Metal => wgpu::Backends::METAL,
            Api::Dx12 => wgpu::Backends::DX12,
            Api::WebGpu => wgpu::Backends::BROWSER_WEBGPU,
        }
    }

    /// All GPUs, real ones first. Without switches, the environment says what may be used.
    pub(crate) fn adapters(self, switches: Option<Switches>) -> Result<Vec<Adapter>> {
        let wanted = switches
            .map_or_else(Switches::from_environment, Ok)
            .map_err(|reason| Error::Unavailable { backend: self.name(), reason })?;
        let mut known = known_adapters(self);
        known.sort_by_key(|raw| rank(raw.get_info().device_type));
        if known.is_empty() {
            let reason = "no GPU was found".to_string();
            return Err(Error::Unavailable { backend: self.name(), reason });
        }
        let adapters = (0..).zip(known).map(|(index, raw)| Adapter {
            abilities: Abilities::of(&raw, wanted),
            raw,
            index,
        });
        Ok(adapters.collect())
    }

    /// The GPU of an id.
    pub(crate) fn adapter(self, id: &DeviceId, switches: Option<Switches>) -> Result<Adapter> {
        let all = self.adapters(switches)?;
        let known = |all: &[Adapter]| {
            let names = all.iter().map(|adapter| {
                let info = adapter.info(self);
                format!("{} ({})", info.id, info.name)
            });
            names.collect::<Vec<_>>().join(", ")
        };
        let is_it = |adapter: &&Adapter| adapter.index == id.index && self.name() == id.backend;
        all.iter()
            .find(is_it)
            .cloned()
            .ok_or_else(|| Error::UnknownDevice { id: id.to_string(), known: known(&all) })
    }
}

impl Adapter {
    /// As the registry knows it.
    pub(crate) fn info(&self, api: Api) -> DeviceInfo {
        let info = self.raw.get_info();
        let (total_bytes, available_bytes) = memory::of(&self.raw);
        DeviceInfo {
            id: DeviceId::new(api.name(), self.index),
            name: info.name,
            kind: kind(info.device_type),
            isa: api.name().to_string(),
            bus: Some(info.device_pci_bus_id).filter(|bus| !bus.is_empty()),
            available_bytes,
            total_bytes,
        }
    }
}

/// What a device is. One that no driver knows better is taken for the lesser kind.
fn kind(device_type: wgpu::DeviceType) -> DeviceKind {
    match device_type {
        wgpu::DeviceType::DiscreteGpu | wgpu::DeviceType::VirtualGpu => DeviceKind::Discrete,
        wgpu::DeviceType::IntegratedGpu | wgpu::DeviceType::Other => DeviceKind::Integrated,
        wgpu::DeviceType::Cpu => DeviceKind::Software,
    }
}

fn rank(kind: wgpu::DeviceType) -> u32 {
    match kind {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    }
}

/// What the environment lets kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switches {
    pub subgroups: bool,
    pub f16: bool,
    pub matrices: bool,
    /// Whether bindings and workgroup memory may be as large as the adapter has it.
    pub limits: bool,
    /// The most bytes of one buffer of weights, if that is to be less than a binding.
    pub shard: Option<u64>,
    /// Keys that one kernel goes over for a token at most; tests make it small.
    pub keys: Option<u64>,
    /// Whether tables of embeddings may be on the device.
    pub tables: bool,
}

impl Switches {
    pub(crate) const ALL: Self = Switches {
        subgroups: true,
        f16: true,
        matrices: true,
        limits: true,
        shard: None,
        keys: None,
        tables: true,
    };
    pub(crate) const NONE: Self = Switches {
        subgroups: false,
        f16: false,
        matrices: false,
        limits: false,
        shard: None,
        keys: None,
        tables: false,
    };

    fn from_environment() -> Result<Self, String> {
        match std::env::var(FEATURES_VARIABLE) {
            Ok(words) => Self::parse(&words),
            Err(_) => Ok(Self::ALL),
        }
    }

    fn parse(words: &str) -> Result<Self, String> {
        let mut on = Self::NONE;
        for word in words.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            match word {
                "none" => {}
                "all" => on = Self::ALL,
                "subgroups" => on.subgroups = true,
                "f16" => on.f16 = true,
                "matrices" => on.matrices = true,
                "limits" => on.limits = true,
                "tables" => on.tables = true,
                _ => {
                    let known = "none, all, subgroups, f16, matrices, limits, tables";
                    return Err(format!("{FEATURES_VARIABLE} has `{word}`; it takes {known}"));
                }
            }
        }
        Ok(on)
    }
}

impl Abilities {
    /// Those of a large GPU, for plans where there is none.
    pub(crate) const LARGE: Self = Abilities {
        subgroups: true,
        f16: true,
        matrices: true,
        pipeline_cache: true,
        times: false,
        subgroup_size: [32, 32],
        max_binding: MOST_BINDING,
        max_shard: MOST_BINDING,
        max_keys: None,
        max_workgroup_bytes: 48 << 10,
        max_groups: 65535,
        max_invocations: 1024,
        max_buffers: MOST_BUFFERS,
        packed_dots: true,
        tables: true,
    };

    fn of(adapter: &wgpu::Adapter, wanted: Switches) -> Self {
        let (features, limits, info) = (adapter.features(), adapter.limits(), adapter.get_info());
        let own = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
        let own = own.min(MOST_BINDING);
        let memory = limits.max_compute_workgroup_storage_size;
        let max_binding = if wanted.limits { own } else { own.min(LEAST_BINDING) };
        Abilities {
            subgroups: wanted.subgroups && features.contains(wgpu::Features::SUBGROUP),
            f16: wanted.f16 && features.contains(wgpu::Features::SHADER_F16),
            matrices: wanted.matrices
                && features.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX),
            pipeline_cache: features.contains(wgpu::Features::PIPELINE_CACHE),
            times: profile::is_wanted() && features.contains(wgpu::Features::TIMESTAMP_QUERY),
            subgroup_size: [info.subgroup_min_size, info.subgroup_max_size],
            max_binding,
            max_keys: wanted.keys,
            max_shard: wanted.shard.map_or(max_binding, |bytes| bytes.min(max_binding)),
            max_workgroup_bytes: if wanted.limits { memory } else { memory.min(LEAST_WORKGROUP) },
            max_groups: limits.max_compute_workgroups_per_dimension,
            max_invocations: limits
                .max_compute_invocations_per_workgroup
                .min(limits.max_compute_workgroup_size_x)
                .min(if wanted.limits { u32::MAX } else { LEAST_INVOCATIONS }),
            max_buffers: if wanted.limits {
                limits.max_storage_buffers_per_shader_stage.min(MOST_BUFFERS)
            } else {
                LEAST_BUFFERS
            },
            packed_dots: info.backend != wgpu::Backend::Metal,
            tables: wanted.tables,
        }
    }

    /// What a device must be opened with.
    pub(crate) fn features(&self) -> wgpu::Features {
        let mut features = wgpu::Features::empty();
        features.set(wgpu::Features::SUBGROUP, self.subgroups);
        features.set(wgpu::Features::SHADER_F16, self.f16);
        features.set(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX, self.matrices);
        features.set(wgpu::Features::PIPELINE_CACHE, self.pipeline_cache);
        features.set(wgpu::Features::TIMESTAMP_QUERY, self.times);
        features
    }

    /// The limits that a device must be opened with: its own, but for what abilities leave out.
    pub(crate) fn limits(&self, adapter: &wgpu::Limits) -> wgpu::Limits {
        wgpu::Limits {
            max_storage_buffer_binding_size: self.max_binding,
            max_buffer_size: adapter.max_buffer_size.min(self.max_binding.max(LEAST_BINDING)),
            max_compute_workgroup_storage_size: self.max_workgroup_bytes,
            // So that no kernel takes more by mistake.
            max_storage_buffers_per_shader_stage: self.max_buffers,
            ..adapter.clone()
        }
    }
}

/// An instance and its adapters, asked for once in a process: asking takes time.
struct Known {
    api: Api,
    // Adapters need it.
    _instance: wgpu::Instance,
    adapters: Vec<wgpu::Adapter>,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

fn known_adapters(api: Api) -> Vec<wgpu::Adapter> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known.iter().find(|known| known.api == api) {
        return known.adapters.clone();
    }
    let instance = instance(api);
    let adapters = pollster::block_on(instance.enumerate_adapters(api.backends()));
    known.push(Known { api, _instance: instance, adapters: adapters.clone() });
    adapters
}

/// Forgets what is known of an API's adapters: one of them was lost.
pub(crate) fn forget_adapters(api: Api) {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).retain(|known| known.api != api);
}

#[cfg(test)]
mod tests {
    use super::{Switches, may_be_gpu};

    #[test]
    fn gpus_have_devices() {
        let of = |names: &[&str]| may_be_gpu(names.iter().map(ToString::to_string));
        assert!(of(&["null", "nvidiactl"]) && of(&["dri"]) && of(&["tty", "mali0"]));
        assert!(!of(&["null", "tty", "kvm", "shm", "vda"]) && !of(&[]));
    }

    #[test]
    fn words_switch_abilities_on() {
        assert_eq!(Switches::parse("none"), Ok(Switches::NONE));
        assert_eq!(Switches::parse("all"), Ok(Switches::ALL));
        let some = Switches::parse("f16, limits").unwrap();
        assert_eq!(some, Switches { f16: true, limits: true, ..Switches::NONE });
        assert!(Switches::parse("f17").unwrap_err().contains("f17"));
    }
}
