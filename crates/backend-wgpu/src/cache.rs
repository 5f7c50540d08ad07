//! KV caches: a buffer of keys and one of values each, by slot, head, position and element.

use lapidary_backend::{KvType, LoadOptions, Result};
use lapidary_program::StateDecl;

use crate::device::Gpu;

/// Lengths of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheShape {
    pub n_slots: usize,
    pub n_heads: usize,
    pub capacity: usize,
    pub head_dim: usize,
    /// Whether numbers are stored as `bf16`.
    pub halves: bool,
}

/// A cache on the device.
pub(crate) struct Cache {
    pub keys: wgpu::Buffer,
    pub values: wgpu::Buffer,
}

impl CacheShape {
    pub(crate) fn of(state: &StateDecl, options: &LoadOptions) -> Self {
        CacheShape {
            n_slots: options.n_slots as usize,
            n_heads: state.n_kv_heads as usize,
            capacity: state.capacity(options.max_context, options.max_chunk) as usize,
            head_dim: state.head_dim as usize,
            // Bytes are not stored as such: a backend may store more exactly than it is told to.
            halves: options.kv_type() != KvType::F32,
        }
    }

    /// Quads of channels of one key or value of one head; the last may be filled up with zeros.
    pub(crate) fn quads(&self) -> usize {
        self.head_dim.div_ceil(4)
    }

    fn part_bytes(&self) -> u64 {
        let quad_bytes = if self.halves { 8 } else { 16 };
        (self.n_slots * self.n_heads * self.capacity * self.quads()) as u64 * quad_bytes
    }

    /// Bytes of keys and values.
    pub(crate) fn size_bytes(&self) -> u64 {
        2 * self.part_bytes()
    }

    pub(crate) fn open(&self, gpu: &Gpu) -> Result<Cache> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let part = |what| gpu.buffer(what, self.part_bytes(), usage);
        Ok(Cache { keys: part("a cache of keys")?, values: part("a cache of values")? })
    }
}
