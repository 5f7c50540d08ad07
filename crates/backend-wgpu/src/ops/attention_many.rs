//! Attention of many queries at once: which kernel makes them, and in what tiles.

use lapidary_backend::Precision;
use lapidary_program::{AttentionSpec, Dim};

use super::attention::has_horizons;
use super::kernel::Kernel;
use crate::adapter::Abilities;
use crate::cache::CacheShape;
use crate::compile::MethodCompiler;
use crate::linear::Tuning;
use crate::shader::Shader;
use crate::step::{Binding, Count, Grid, Value, When, Work};

/// Workgroups that keep a large device busy; with fewer, tiles are smaller.
const BUSY: u64 = 128;

/// One attention, as its kernels need it.
pub(super) struct ManyQueries<'a> {
    pub spec: &'a AttentionSpec,
    /// The cache and its number.
    pub cache: (usize, CacheShape),
    pub q: Value,
    pub y: Value,
    pub work: Work,
}

impl ManyQueries<'_> {
    /// The kernels for calls of `least` tokens and more.
    pub(super) fn compile(&self, cx: &mut MethodCompiler<'_>, least: usize) {
        let head_dim = self.spec.head_dim;
        let halves = self.cache.1.halves;
        let horizons = has_horizons(self.spec);
        let rounds = halves && cx.options.precision == Precision::Fast;
        let abilities = cx.abilities;
        let coop = |rows| {
            let tile = CoopTile::of(head_dim, rows).filter(|_| rounds);
            tile.filter(|tile| tile.runs(abilities))
        };
        let Some(small) = coop(Rows::Few) else {
            let tile = PlainTile::of(head_dim);
            let shader = tile.shader(head_dim, halves, horizons);
            return self.kernel(cx, shader, tile.rows, self.spec.scale, (least, usize::MAX));
        };
        let large = coop(Rows::Many).filter(|large| *large != small);
        let busy_from = large.map_or(usize::MAX, |_| self.busy_from().max(least));
        self.coop(cx, &small, (least, busy_from - 1));
        if let Some(large) = large {
            self.coop(cx, &large, (busy_from, usize::MAX));
        }
    }

    fn coop(&self, cx: &mut MethodCompiler<'_>, tile: &CoopTile, tokens: (usize, usize)) {
        let scale = self.spec.scale * std::f32::consts::LOG2_E;
        let shader = tile.shader(has_horizons(self.spec));
        self.kernel(cx, shader, tile.rows, scale, tokens);
    }

    /// Tokens from which large tiles are enough to keep a device busy.
    fn busy_from(&self) -> usize {
        (BUSY * 64).div_ceil(u64::from(self.spec.n_heads)) as usize
    }

    fn kernel(
        &self,
        cx: &mut MethodCompiler<'_>,
        shader: Shader,
        tile_rows: u32,
        scale: f32,
        (least, most): (usize, usize),
    ) {
        let spec = self.spec;
        let (id, cache) = self.cache;
        let per_kv = spec.n_heads / spec.n_kv_heads;
        let len = cx.len(self.y.rows);
        let window = spec.window.unwrap_or(0);
        let (places, pages) = (cx.places(&cache, self.y.rows), cx.pages(&cache));
        let kernel = Kernel::new(shader)
            .words(&[len, spec.n_heads, spec.n_kv_heads, per_kv])
            .words(&[scale.to_bits(), window, spec.own_key.into()])
            .read(self.q)
            .read(places)
            .reads(pages)
            .reads(Binding::Keys(id))
            .reads(Binding::Values(id))
            .write(self.y);
        let grid = Grid {
            x: Count::of(self.y.rows, per_kv as usize, tile_rows.into()),
            y: Count::of(Dim::Fixed(1), spec.n_kv_heads as usize, 1),
        };
        kernel.when(When::rows(self.y.rows, least, most)).grid(cx, grid, self.work);
    }
}

/// How many rows a call has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    Few,
    Many,
}

/// How `attention_coop` goes over queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CoopTile {
    /// Queries of a workgroup.
    rows: u32,
    /// Keys at a time.
    keys: u32,
    subgroups: u32,
    /// Parts of the channels whose scores are added in the end.
    splits: u32,
    /// Blocks of 16 queries, and of 16 channels, whose values a subgroup makes.
    out_blocks: [u32; 2],
    head_dim: u32,
}

impl CoopTile {
    /// The tile for a head; `None` if the kernel has none.
    fn of(head_dim: u32, rows: Rows) -> Option<Self> {
        let blocks = head_dim / 16;
        let (rows, keys, splits): (u32, u32, u32) = match (head_dim, rows) {
            (16..=128, Rows::Few) if head_dim.is_multiple_of(16) => (32, 64, 1),
            (16..=128, Rows::Many) if head_dim.is_multiple_of(16) => (64, 64, 1),
            (192 | 256, Rows::Few) => (32, 64, 1),
            (192 | 256, Rows::Many) => (64, 32, 1),
            (320 | 384 | 448 | 512, _) => (32, 32, 2),
            _ => return None,
        };
        // Subgroups stand in a grid over blocks of rows and of channels; the most that fit whole.
        let row_blocks = rows / 16;
        let mut grids = [(2, 4), (4, 2), (1, 8), (2, 2), (4, 1), (2, 1)].into_iter();
        // Wide heads have few blocks of rows: values are better read by one subgroup alone.
        let wide = (blocks.is_multiple_of(8) && blocks > 16).then_some((1, 8));
        let fits = |(r, c): &(u32, u32)| {
            row_blocks.is_multiple_of(*r)
                && blocks.is_multiple_of(*c)
                && (r * c).is_multiple_of(row_blocks * splits)
                && (keys / 16).is_multiple_of(r * c / (row_blocks * splits))
        };
        let (r, c) = wide.into_iter().chain(&mut grids).find(fits)?;
        let out_blocks = [row_blocks / r, blocks / c];
        Some(CoopTile { rows, keys, subgroups: r * c, splits, out_blocks, head_dim })
    }

    /// Whether a device can run it.
    fn runs(&self, abilities: &Abilities) -> bool {
        abilities.matrices
            && abilities.f16
            && Tuning { abilities }.subgroup() == 32
            && self.shared_bytes() <= abilities.max_workgroup_bytes
            && self.subgroups * 32 <= abilities.max_invocations
    }

    /// Bytes that a workgroup shares: keys or values, scores, weights, and what is known of rows.
    fn shared_bytes(&self) -> u32 {
        let scores = self.splits * self.rows * (self.keys + 4) * 4;
        let weights = self.rows * (self.keys + 8) * 2;
        self.keys * (self.head_dim + 8) * 2 + scores + weights + self.rows * 20 + 128
    }

    fn shader(&self, horizons: bool) -> Shader {
        let head_dim = self.head_dim;
        let per_row = self.subgroups * 32 / self.rows;
        let in_keys = self.subgroups / (self.rows / 16 * self.splits);
        // Queries stand where keys will; if there are more of them, their channels come in parts.
        let parts = if self.rows > self.keys { 4 } else { 1 };
        Shader::new("attention_coop")
            .unchecked()
            .with("F16", true)
            .with("SUBGROUPS", true)
            .with("MATRICES", true)
            .with("HORIZONS", horizons)
            .constant("D", head_dim)
            .constant("M", self.rows)
            .constant("BK", self.keys)
            .constant("W", self.subgroups)
            .constant("KS", self.splits)
            .constant("KF", self.keys / 16 / in_keys)
            .constant("OI", self.out_blocks[0])
            .constant("OJ", self.out_blocks[1])
            .constant("TPR", per_row)
            .constant("QR", parts)
            .constant("L", self.keys * head_dim / 8 / (32 * self.subgroups))
    }
}

/// How `attention_many` goes over queries.
struct PlainTile {
    /// Queries of a workgroup.
    rows: u32,
    /// Invocations side by side along the quads of a head.
    across: u32,
}

impl PlainTile {
    /// Invocations of a workgroup.
    const INVOCATIONS: u32 = 128;

    fn of(head_dim: u32) -> Self {
        // An invocation keeps 16 quads of values at most.
        let rows = match head_dim {
            0..=256 => 32,
            257..=512 => 16,
            _ => 8,
        };
        let least = Self::INVOCATIONS * 4 / rows;
        let across = head_dim.div_ceil(4).next_power_of_two();
        PlainTile { rows, across: across.clamp(least, Self::INVOCATIONS) }
    }

    fn shader(&self, head_dim: u32, halves: bool, horizons: bool) -> Shader {
        Shader::new("attention_many")
            .with("HALVES", halves)
            .with("HORIZONS", horizons)
            .constant("D", head_dim)
            .constant("M", self.rows)
            .constant("KPT", (self.rows / 16).max(1))
            .constant("QT", self.across)
            .constant("RPT", self.rows * self.across / Self::INVOCATIONS)
            .constant("AQ", head_dim.div_ceil(4).div_ceil(self.across))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{CoopTile, PlainTile, Rows};
    use crate::shader::Shader;

    /// Kernels that every GPU may be given.
    pub(crate) fn variants() -> Vec<Shader> {
        let mut all = Vec::new();
        for head_dim in [7, 8, 20, 64, 72, 96, 128, 256, 320, 512, 1024] {
            for halves in [false, true] {
                for horizons in [false, true] {
                    all.push(PlainTile::of(head_dim).shader(head_dim, halves, horizons));
                }
            }
        }
        all
    }

    /// Kernels for those that have cooperative matrices.
    pub(crate) fn matrix_variants() -> Vec<Shader> {
        let tiles = coop_tiles().into_iter();
        tiles.flat_map(|t| [false, true].map(|h| t.shader(h))).collect()
    }

    fn coop_tiles() -> Vec<CoopTile> {
        let mut all: Vec<_> = (1..=64)
            .flat_map(|i| [Rows::Few, Rows::Many].map(|rows| CoopTile::of(8 * i, rows)))
            .flatten()
            .collect();
        all.dedup();
        all
    }

    #[test]
    fn heads_of_all_models_have_a_coop_tile() {
        for head_dim in [64, 96, 128, 256, 512] {
            assert!(CoopTile::of(head_dim, Rows::Few).is_some(), "{head_dim}");
            assert!(CoopTile::of(head_dim, Rows::Many).is_some(), "{head_dim}");
        }
        assert!(CoopTile::of(72, Rows::Few).is_none());
    }

    #[test]
    fn coop_tiles_are_whole() {
        for tile in coop_tiles() {
            let CoopTile { rows, keys, subgroups, splits, out_blocks: [i, j], head_dim } = tile;
            assert!(tile.shared_bytes() <= 48 << 10, "{tile:?}");
            assert_eq!(rows / 16 * head_dim / 16, subgroups * i * j, "{tile:?}");
            assert_eq!(keys * head_dim % (8 * 32 * subgroups), 0, "{tile:?}");
            assert_eq!(head_dim / 16 % splits, 0, "{tile:?}");
            assert!(splits == 1 || rows <= keys, "{tile:?}");
            assert!(rows <= keys || (head_dim % 64 == 0 && rows <= 2 * keys), "{tile:?}");
            let per_row = subgroups * 32 / rows;
            assert!([1, 2, 4, 8].contains(&per_row) && keys % (4 * per_row) == 0, "{tile:?}");
            // A subgroup's block of sums finds room among the scores.
            assert!(splits * rows * (keys + 4) >= subgroups * 256, "{tile:?}");
        }
    }

    #[test]
    fn plain_tiles_are_whole() {
        for head_dim in 1..=1024 {
            let tile = PlainTile::of(head_dim);
            let per_invocation = tile.rows * tile.across / PlainTile::INVOCATIONS;
            assert!(per_invocation >= 4 && per_invocation.is_multiple_of(4), "{head_dim}");
            assert!(per_invocation * head_dim.div_ceil(4).div_ceil(tile.across) <= 16);
        }
    }
}
