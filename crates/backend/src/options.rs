//! What is decided before a program is packed.

use std::path::PathBuf;

use crate::limits::CallLimits;

/// What a loader decides before a program is packed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Positions of one sequence.
    pub max_context: u32,
    /// Sequences that are answered at once: rows that room is kept for.
    pub n_sequences: u32,
    /// How much one call may take, as [`crate::Device::limits`] has it.
    pub limits: CallLimits,
    /// Pages of each group's pool, in the order of the program's groups;
    /// [`crate::CallLimits::pages`] says how many serve a number of whole sequences.
    pub pages: Vec<u32>,
    /// Worker threads; `None` for what the machine allows.
    pub threads: Option<usize>,
    /// How activations meet quantised weights.
    pub precision: Precision,
    /// The most patches of one image that room is kept for; room for more is made when they come.
    pub max_patches: u32,
    /// The most frames of one audio clip that room is kept for; room for more is made when they
    /// come.
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
    /// As bytes, a scale per head and position.
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

    /// Pages of a group's pool.
    pub fn pages_of(&self, group: usize) -> usize {
        self.pages.get(group).map_or(0, |n| *n as usize)
    }
}

impl KvType {
    /// Every kind, most exact first.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];

    /// The word after `--kv`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}
