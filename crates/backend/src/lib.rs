//! The contract between a program and whatever runs it: probe, plan, load, run.
//!
//! A backend takes a whole method and compiles it as it likes; there is no op-by-op interface.
//! This room knows programs. It knows no backend and no model family.

mod error;
mod feed;
pub mod host;
mod largest;
mod plan;
mod registry;

use std::path::PathBuf;
use std::sync::Arc;

use lapidary_program::Program;

pub use error::{Error, Result};
pub use feed::{Feed, FeedData, OutputTensor, Outputs, Sizes, bind};
pub use largest::{Found, Largest};
pub use plan::{MemoryPlan, fit};
pub use registry::Registry;

/// Something that programs can run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// For people: `Intel Xeon, avx512-vnni, 2 threads`.
    pub name: String,
    /// What its kernels are compiled for: `avx512`, `scalar`.
    pub isa: String,
    /// Bytes that a program may use, as far as the system tells.
    pub available_bytes: Option<u64>,
    /// Bytes that it has in all, as far as the system tells.
    pub total_bytes: Option<u64>,
}

/// What a loader decides before a program is packed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Positions of one slot.
    pub max_context: u32,
    /// The most tokens of one call, and so of one slot in one call.
    pub max_chunk: u32,
    /// Conversations that are kept at once.
    pub n_slots: u32,
    /// Worker threads; `None` for what the machine allows.
    pub threads: Option<usize>,
    /// How activations meet quantised weights.
    pub precision: Precision,
    /// The most patches of one picture that room is kept for; room for more is made when they come.
    pub max_patches: u32,
    /// The most frames of one sound that room is kept for; room for more is made when they come.
    pub max_frames: u32,
    /// The methods that will be called; empty for all. The weights of others need not be packed.
    pub methods: Vec<String>,
    /// How keys and values are stored; `None` for what suits the precision, [`Self::kv_type`].
    /// A backend may store more exactly than it is told to: the reference always keeps `f32`.
    pub kv: Option<KvType>,
    /// A folder for packed weights, so that a second start need not pack them; `None` for none.
    pub pack_cache: Option<PathBuf>,
}

/// How activations meet quantised weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Rounded to bytes, a scale per token and small group of channels, where that is faster.
    #[default]
    Fast,
    /// As they are: results differ from the reference's by the order of sums alone.
    Exact,
}

/// How the numbers of a KV cache are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// As they are.
    F32,
    /// As the nearest `bf16`.
    Bf16,
    /// As bytes, a scale per slot, head and position.
    Int8,
}

impl LoadOptions {
    /// Whether a method will be called.
    pub fn wants(&self, method: &str) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|m| m == method)
    }

    /// How keys and values are stored: as was asked for, or else as they are if results shall be
    /// exact, and in half the bytes if not.
    pub fn kv_type(&self) -> KvType {
        let suits = match self.precision {
            Precision::Fast => KvType::Bf16,
            Precision::Exact => KvType::F32,
        };
        self.kv.unwrap_or(suits)
    }
}

impl KvType {
    /// Every kind, most exact first.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];

    /// The word behind `--kv`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

/// A way to run programs.
pub trait Backend: Send + Sync {
    /// The word behind `--backend`.
    fn name(&self) -> &'static str;

    /// The devices that can be used now; `Err` says why there is none.
    fn probe(&self) -> Result<Vec<Device>>;

    /// Why there can be no device for who leaves the choice open, if that is known without asking
    /// for devices: to ask may load large drivers.
    fn absent(&self) -> Option<String> {
        None
    }

    /// Why nobody who leaves the choice open should be given a device; `None` if they should.
    fn passes_over(&self, _device: &Device) -> Option<String> {
        None
    }

    /// The most tokens of one call that this backend gains from.
    fn preferred_chunk(&self) -> u32;

    /// Kinds of ops in a method that this backend lacks; empty if it can run the method whole.
    fn missing_ops(&self, program: &Program, method: &str) -> Vec<&'static str>;

    /// Bytes that `load` would take, by part, without taking them.
    fn plan(&self, program: &Program, options: &LoadOptions) -> Result<MemoryPlan>;

    /// Packs the weights one at a time and makes an engine. `progress` is told weight bytes done
    /// and in all.
    fn load(
        &self,
        program: &Arc<Program>,
        device: &Device,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Engine>>;
}

/// A packed program on one device, with the KV state of all its slots.
///
/// KV caches are addressed by slot and position, so an engine has no notion of a conversation:
/// rewinding one is feeding a lower position again. The caller keeps the one rule that follows:
/// a ring cache has forgotten positions older than its capacity before the newest one written.
pub trait Engine: Send {
    /// The program.
    fn program(&self) -> &Arc<Program>;

    /// As given to `load`.
    fn options(&self) -> &LoadOptions;

    /// One line for people: backend, device, instruction set, threads.
    fn describe(&self) -> String;

    /// Runs a method. `outputs` is filled in the order of the graph's outputs and keeps its
    /// storage from call to call.
    fn run(&mut self, method: &str, feeds: &[Feed<'_>], outputs: &mut Outputs) -> Result<()>;

    /// The most numbers of a row that [`Self::run_largest`] finds; 0 if this engine finds none, and
    /// the caller has to take whole rows.
    fn max_largest(&self) -> usize {
        0
    }

    /// Runs a method of which only the `k` largest numbers of each row of one output come back, or
    /// all if a row has fewer. This spares whoever chooses tokens the way of all logits from the
    /// device to the host; [`Largest`] says how they are sorted, and they are the very numbers that
    /// [`Self::run`] gives. `k` is at least 1 and at most [`Self::max_largest`].
    fn run_largest(
        &mut self,
        method: &str,
        _feeds: &[Feed<'_>],
        _output: &str,
        _k: usize,
        _largest: &mut Largest,
    ) -> Result<()> {
        let what = "this engine does not find the largest numbers of rows".to_string();
        Err(Error::Feed { method: method.to_string(), what })
    }

    /// Runs a method and shows every `f32` value that is made, by node number, in node order.
    /// This is how `verify` names the first op that diverges; speed does not matter here, but the
    /// kernels must be those that `run` uses.
    fn trace(
        &mut self,
        method: &str,
        feeds: &[Feed<'_>],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()>;
}
