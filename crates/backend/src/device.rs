//! Backends and their devices.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use lapidary_program::Program;

use crate::{CallLimits, Engine, LoadOptions, MemoryPlan, Result, Wishes};

/// A way to run programs.
pub trait Backend: Send + Sync {
    /// The word after `--backend`.
    fn name(&self) -> &'static str;

    /// The devices that can be used now, best first; `Err` says why there is none. Two equal cards
    /// are two devices.
    fn devices(&self) -> Result<Vec<DeviceInfo>>;

    /// Why there can be no device for who leaves the choice open, if that is known without asking
    /// for devices: to ask may load large drivers.
    fn absent(&self) -> Option<String> {
        None
    }

    /// Why nobody who leaves the choice open should be given a device; `None` if they should.
    fn passes_over(&self, _device: &DeviceInfo) -> Option<String> {
        None
    }

    /// Opens a device that [`Self::devices`] named.
    fn open(&self, id: &DeviceId) -> Result<Box<dyn Device>>;
}

/// A device that is open. Nothing of a program is on it yet.
pub trait Device: Send + Sync {
    /// Which device this is.
    fn info(&self) -> &DeviceInfo;

    /// How much one call of a program may take here. Nobody else computes a chunk:
    /// implementations give [`CallLimits::new`] the chunk that this device gains from.
    fn limits(&self, program: &Program, wishes: &Wishes) -> CallLimits;

    /// Kinds of ops in a method that this device lacks; empty if it can run the method whole.
    fn missing_ops(&self, program: &Program, method: &str) -> Vec<&'static str>;

    /// The most pages that the pool of each group may have, whatever memory there is; `None` if
    /// memory alone bounds them. `plan` and `load` refuse more.
    fn max_pages(&self, _program: &Program, _options: &LoadOptions) -> Option<Vec<u32>> {
        None
    }

    /// Bytes that `load` would take, by part, without taking them.
    fn plan(&self, program: &Program, options: &LoadOptions) -> Result<MemoryPlan>;

    /// Packs the weights one at a time and makes an engine. `progress` is told weight bytes done
    /// and in all.
    fn load(
        &self,
        program: &Arc<Program>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Engine>>;
}

/// Something that programs can run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Which device this is, among all of this machine.
    pub id: DeviceId,
    /// For people: `Intel Xeon, avx512-vnni, 2 threads`.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// What its kernels are compiled for: `avx512`, `scalar`, `vulkan`.
    pub isa: String,
    /// Where it is plugged in, as far as the system tells: `0000:01:00.0`.
    pub bus: Option<String>,
    /// Bytes that a program may use, as far as the system tells.
    pub available_bytes: Option<u64>,
    /// Bytes that it has in all, as far as the system tells.
    pub total_bytes: Option<u64>,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The cores of this machine.
    Cpu,
    /// A GPU that takes part of the system's memory.
    Integrated,
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that is software.
    Software,
}

/// The name of a device: `vulkan:1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId {
    /// The backend's name.
    pub backend: String,
    /// Which of its devices, counted from 0.
    pub index: u32,
}

impl DeviceId {
    /// A device of a backend.
    pub fn new(backend: impl Into<String>, index: u32) -> Self {
        DeviceId { backend: backend.into(), index }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.backend, self.index)
    }
}

impl FromStr for DeviceId {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("`{s}` is not a device; write it like `vulkan:1`");
        let (backend, index) = s.split_once(':').ok_or_else(wrong)?;
        let index = index.parse().map_err(|_| wrong())?;
        if backend.is_empty() { Err(wrong()) } else { Ok(DeviceId::new(backend, index)) }
    }
}

impl DeviceKind {
    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Integrated => "integrated",
            DeviceKind::Discrete => "discrete",
            DeviceKind::Software => "software",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_as_they_are_read() {
        let id: DeviceId = "vulkan:1".parse().unwrap();
        assert_eq!(id, DeviceId::new("vulkan", 1));
        assert_eq!(id.to_string(), "vulkan:1");
        for wrong in ["", "1", "vulkan", ":1", "vulkan:", "vulkan:x", "vulkan:-1"] {
            assert!(wrong.parse::<DeviceId>().is_err(), "{wrong}");
        }
    }
}
