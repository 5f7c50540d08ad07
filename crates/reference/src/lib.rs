//! The scalar f32 meaning of every op: the oracle, and the first backend.
//!
//! Each op is one file in `ops/`, written to be read: obvious loops over plain slices.
//! The engine walks a method's nodes in order and reads weights from the program as it goes.
//! Nothing is packed, fused or cached here, so that a disagreement with another backend has only
//! one side to look at. This room knows programs and the backend contract, and no other backend.

mod engine;
mod kept;
mod ops;

use std::sync::Arc;

use lapidary_backend::{
    Backend, CallLimits, Device, DeviceId, DeviceInfo, DeviceKind, Engine, LoadOptions, MemoryPlan,
    Result, Wishes, host,
};
use lapidary_backend_kit::activation_bytes;
use lapidary_program::Program;

use crate::engine::ReferenceEngine;

/// The word after `--backend`.
const NAME: &str = "reference";

/// Runs every program, slowly, and says what the right answer is.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceBackend;

/// The only device: the cores of this machine, one number at a time.
struct ReferenceDevice {
    info: DeviceInfo,
}

impl Backend for ReferenceBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(vec![DeviceInfo {
            id: DeviceId::new(NAME, 0),
            name: "reference, scalar f32".into(),
            kind: DeviceKind::Cpu,
            isa: "scalar".into(),
            bus: None,
            available_bytes: host::available_bytes(),
            total_bytes: host::total_bytes(),
        }])
    }

    fn open(&self, _id: &DeviceId) -> Result<Box<dyn Device>> {
        let info = self.devices()?.remove(0);
        Ok(Box::new(ReferenceDevice { info }))
    }
}

impl Device for ReferenceDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn limits(&self, program: &Program, wishes: &Wishes) -> CallLimits {
        CallLimits::new(program, 64, wishes)
    }

    fn missing_ops(&self, _program: &Program, _method: &str) -> Vec<&'static str> {
        Vec::new()
    }

    /// Weights that are at hand count as 0: they are read from the program's store, never copied.
    fn plan(&self, program: &Program, options: &LoadOptions) -> Result<MemoryPlan> {
        Ok(MemoryPlan {
            weights: kept::size_bytes(program),
            kv: MemoryPlan::kv_bytes(program, options, 4),
            activations: activation_bytes(program, options),
        })
    }

    fn load(
        &self,
        program: &Arc<Program>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Engine>> {
        let engine = ReferenceEngine::new(kept::keep(program)?, options.clone())?;
        let total = program.weight_bytes();
        progress(total, total);
        Ok(Box::new(engine))
    }
}
