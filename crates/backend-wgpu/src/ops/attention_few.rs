use lapidary_program::{AttentionSpec, Dim};

use super::attention::has_horizons;
use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::linear::Tuning;
use crate::shader::Shader;
use crate::step::{Binding, Count, Keys, Value, When, Work};

/// Rows up to which the keys of a query are shared among workgroups.
const FEW: usize = 8;
/// Invocations of a workgroup, and so the most quads of a head.
const WORKGROUP: u32 = 256;
/// Query heads of a workgroup at most. More of them read keys less often, but a device that is busy
/// with one token alone waits for the longest workgroup.
const TOGETHER: u32 = 2;
/// Workgroups that a large device wants.
const BUSY: u32 = 256;

/// Queries over a cache, few rows of them and such keys; the least number of rows that is left to
/// others.
pub(super) fn attention_few(
    cx: &mut MethodCompiler<'_>,
    state: &str,
    spec: &AttentionSpec,
    q: Value,
    y: Value,
    keys: Keys,
) -> usize {
    let quads = spec.head_dim.div_ceil(4);
    if quads > WORKGROUP {
        return 0;
    }
    let (id, cache) = cx.cache(state);
    let per_kv = spec.n_heads / spec.n_kv_heads;
    let max_bytes = cx.abilities.max_workgroup_bytes;
    let together = together(per_kv, quads, max_bytes);
    let blocks = per_kv.div_ceil(together) * spec.n_kv_heads;
    let splits = splits(blocks, cache.most_seen);
    let horizons = has_horizons(spec);
    let (places, pages) = (cx.places(&cache, y.rows), cx.pages(&cache));
    let (len, window) = (cx.len(y.rows), spec.window.unwrap_or(0));
    let rows = Dim::Fixed(FEW as u64);
    let parts = cx.scratch(rows, (spec.n_heads * splits * quads * 4) as usize);
    let stats = cx.scratch(rows, (spec.n_heads * splits * 2) as usize);
    let when = |least, most| When { rows: y.rows, least, most, keys };

    let few = Few {
        head_dim: spec.head_dim,
        together,
        halves: cache.halves,
        horizons,
        subgroup: Tuning { abilities: cx.abilities }.subgroup() as u32,
    };
    let kernel = Kernel::new(few.shader(max_bytes))
        .words(&[len, spec.n_heads, spec.n_kv_heads, splits])
        .words(&[spec.scale.to_bits(), window, spec.own_key.into()])
        .read(q)
        .read(places)
        .reads(pages)
        .reads(Binding::Keys(id))
        .reads(Binding::Values(id))
        .write(parts)
        .write(stats);
    let work = Work::Keys(y.rows, 2 * y.channels as u64, cache.most_seen as u64);
    let groups = Count::of(y.rows, (blocks * splits) as usize, 1);
    kernel.when(when(0, FEW)).groups(cx, groups, work);

    let work = Work::Rows(y.rows, y.channels as u64 * u64::from(splits));
    let groups = Count::of(y.rows, spec.n_heads as usize, 1);
    let join = |bytes: Option<[Value; 2]>| {
        let shader = join(spec.head_dim, horizons, bytes.map(|_| y.channels as u32));
        let kernel = Kernel::new(shader)
            .words(&[len, spec.n_heads, window, spec.own_key.into(), splits])
            .read(parts)
            .read(stats)
            .read(places)
            .write(y);
        bytes.into_iter().flatten().fold(kernel, Kernel::write)
    };
    let mut least = 0;
    if let Some(bytes) = cx.bytes(y) {
        let most = bytes[0].most_rows().min(FEW);
        join(Some(bytes)).when(when(least, most)).groups(cx, groups, work);
        least = most + 1;
    }
    join(None).when(when(least, FEW)).groups(cx, groups, work);
    FEW + 1
}

/// What the kernel that finds the parts of a query depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Few {
    pub head_dim: u32,
    /// Query heads of one workgroup.
    pub together: u32,
    pub halves: bool,
    pub horizons: bool,
    /// The size of a subgroup, if kernels may count on it; else 0.
    pub subgroup: u32,
}

impl Few {
    /// The kernel, for workgroups that share so many bytes at most.
    pub(crate) fn shader(&self, max_bytes: u32) -> Shader {
        let quads = self.head_dim.div_ceil(4);
        let shader = Shader::new("attention_few")
            .unchecked()
            .with("SUBGROUPS", self.subgroup == 32)
            .with("HALVES", self.halves)
            .with("HORIZONS", self.horizons)
            .constant("HD", self.head_dim)
            .constant("GT", self.together)
            .constant("NG", at_once(self.together, quads, max_bytes))
            .constant("TURNS", WORKGROUP / quads);
        if self.subgroup == 32 { shader.constant("SG", 32) } else { shader }
    }
}

/// What makes one of them; also in bytes, if it is told the channels of a row.
pub(crate) fn join(head_dim: u32, horizons: bool, bytes: Option<u32>) -> Shader {
    Shader::new("attention_few_join")
        .unchecked()
        .with("HORIZONS", horizons)
        .with("BYTES", bytes.is_some())
        .with("SUBGROUPS", bytes.is_some())
        .constant("HD", head_dim)
        .constant("CHANNELS", bytes.unwrap_or(0))
}

/// Query heads of one workgroup: as many as share keys and fit.
pub(crate) fn together(per_kv: u32, quads: u32, max_bytes: u32) -> u32 {
    let mut heads = TOGETHER.min(per_kv.next_power_of_two());
    while heads > 1 && shared_bytes(heads, quads, 1) > max_bytes {
        heads /= 2;
    }
    heads
}

/// Heads whose sums are joined at once.
fn at_once(together: u32, quads: u32, max_bytes: u32) -> u32 {
    let mut heads = together.min(4);
    while heads > 1 && shared_bytes(together, quads, heads) > max_bytes {
        heads /= 2;
    }
    heads
}

/// Bytes that a workgroup shares.
fn shared_bytes(together: u32, quads: u32, at_once: u32) -> u32 {
    together * (16 * quads + 8 * 36 * 4 + 2 * 128 + 16) + at_once * 16 * WORKGROUP
}

/// Workgroups that share the keys of a query at most; `attention_few_join` has room for so many.
const MOST_SPLITS: u32 = 32;

/// Workgroups that share the keys of a query: enough for a large device, no more than have a tile.
fn splits(blocks: u32, most_seen: usize) -> u32 {
    let tiles = most_seen.div_ceil(32) as u32;
    (BUSY / blocks.max(1)).clamp(8, MOST_SPLITS).min(tiles).max(1)
}
