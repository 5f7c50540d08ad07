//! Which tiles the kernels of `linear` work on, by the shape of a matrix and the tokens of a call.
//!
//! Measured on an NVIDIA H200 through Vulkan (BENCHMARKS.md). What counts elsewhere is much the
//! same: enough invocations to keep memory busy when a matrix is small, and few when it is large.

use super::form::{Codes, PackedForm, UNIT};
use crate::adapter::Abilities;

/// How `matvec` goes over a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatvecTile {
    /// Invocations of a workgroup.
    pub invocations: usize,
    /// Tiles of eight rows that a workgroup makes.
    pub tiles: usize,
    /// Units that an invocation asks for before it needs the first.
    pub unroll: usize,
}

/// How `coop` goes over a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoopTile {
    /// Tokens of a workgroup.
    pub bm: usize,
    /// Rows of the matrix of a workgroup.
    pub bn: usize,
    /// Tokens of a subgroup.
    pub wm: usize,
    /// Rows of a subgroup.
    pub wn: usize,
    /// Columns at a time.
    pub bk: usize,
}

/// What is known of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning<'a> {
    pub abilities: &'a Abilities,
}

/// Workgroups that keep a large device busy while each makes a tile of `coop`.
const BUSY: usize = 320;
/// Workgroups up to which each makes bytes of activations for itself.
const LOCAL_GROUPS: usize = 2048;
/// Vectors of activations that one invocation then makes bytes of, at most.
const LOCAL_EACH: usize = 3;
/// Columns that a share of a split sum has at least.
const LEAST_SHARE: usize = 1024;

impl Tuning<'_> {
    /// How many tokens each variant of `matvec` is for. Cooperative matrices are better from 5 on.
    pub(crate) const fn few(coop: bool) -> &'static [usize] {
        if coop { &[1, 2, 4] } else { &[1, 2, 4, 8] }
    }

    /// The size of a subgroup, if kernels may count on it; else 0.
    pub(crate) fn subgroup(&self) -> usize {
        let [least, most] = self.abilities.subgroup_size;
        let fit = matches!(least, 8 | 16 | 32 | 64) && least == most;
        if self.abilities.subgroups && fit { least as usize } else { 0 }
    }

    /// Whether `coop` runs and can read the form.
    pub(crate) fn has_coop(&self, form: &PackedForm) -> bool {
        let a = self.abilities;
        let fits = |tile: &CoopTile| tile.shared_bytes() <= a.max_workgroup_bytes as usize;
        a.matrices
            && a.f16
            && self.subgroup() == 32
            && form.codes != Codes::F32
            && Self::COOP.iter().all(|(_, tile)| fits(tile))
    }

    pub(crate) fn matvec(&self, tiles: usize, units: usize, tokens: usize) -> MatvecTile {
        let (invocations, per_group, unroll) = match (tokens, tiles) {
            // Long rows are read by more invocations.
            (1, 1024..4096) if units >= 128 => (256, 4, 4),
            (1, 2048..) => (128, 2, 2),
            (1, 512..) => (512, 2, 4),
            (1, _) => (512, 1, 2),
            (_, 2048..) => (128, 2, 1),
            _ => (256, 2, 1),
        };
        let most = self.abilities.max_invocations as usize;
        let invocations = if invocations > most { 256.min(most) } else { invocations };
        // A subgroup's sum is one number; without subgroups each slot leaves its own.
        let slots =
            if self.subgroup() > 0 { invocations / self.subgroup() } else { invocations / 8 };
        let fits = per_group * tokens * 8 * slots.max(1) * 4
            <= self.abilities.max_workgroup_bytes as usize;
        let per_group = if fits { per_group } else { 1 };
        MatvecTile {
            invocations,
            tiles: per_group,
            unroll: unroll.min(units * 8 / invocations).max(1),
        }
    }

    /// Whether kernels that make rows of so many channels can keep them in bytes, too.
    pub(crate) fn keeps_bytes(&self, channels: usize) -> bool {
        let enough = self.abilities.max_buffers >= 9;
        enough && self.subgroup() >= 8 && channels.is_multiple_of(UNIT)
    }

    /// Whether each workgroup makes bytes of activations for itself: a kernel less, where it has
    /// little else to do and the memory.
    pub(crate) fn makes_bytes(
        &self,
        tile: &MatvecTile,
        tiles: usize,
        units: usize,
        tokens: usize,
    ) -> bool {
        let groups = tiles.div_ceil(tile.tiles);
        let bytes = tokens * units.next_multiple_of(4) * (64 + 16)
            + tile.tiles * tokens * 8 * (tile.invocations / self.subgroup().max(1)) * 4;
        self.subgroup() >= 8
            && groups <= LOCAL_GROUPS
            && tokens * units * 8 <= LOCAL_EACH * tile.invocations
            && bytes <= self.abilities.max_workgroup_bytes as usize
    }

    /// Tiles of `coop`, each with the most tokens that it is best for.
    pub(crate) const COOP: [(usize, CoopTile); 4] = [
        (16, CoopTile { bm: 16, bn: 64, wm: 16, wn: 16, bk: 64 }),
        (32, CoopTile { bm: 32, bn: 64, wm: 32, wn: 16, bk: 64 }),
        (128, CoopTile { bm: 64, bn: 64, wm: 32, wn: 32, bk: 64 }),
        (usize::MAX, CoopTile { bm: 128, bn: 128, wm: 64, wn: 64, bk: 32 }),
    ];

    /// How many workgroups share the columns of a row when a call has so many tokens.
    pub(crate) fn split(
        &self,
        tile: &CoopTile,
        form: &PackedForm,
        rows: usize,
        tokens: usize,
    ) -> usize {
        let groups = rows.div_ceil(tile.bn) * tokens.div_ceil(tile.bm);
        let most = (form.cols / LEAST_SHARE).clamp(1, 8);
        let rounds = form.units() * UNIT / tile.bk;
        let mut split = BUSY.div_ceil(groups.max(1)).min(most);
        while split > 1 && !rounds.is_multiple_of(split) {
            split -= 1;
        }
        split
    }
}

impl CoopTile {
    /// The same with rounds of which whole ones go over a form's columns.
    pub(crate) fn fitted(self, form: &PackedForm) -> Self {
        if form.units().is_multiple_of(self.bk / UNIT) {
            return self;
        }
        let tile = CoopTile { bk: UNIT, ..self };
        // Every invocation takes a vector of activations at least.
        if tile.vectors() >= tile.invocations() {
            tile
        } else {
            CoopTile { bm: 32, wm: 32, ..tile }
        }
    }

    /// Bytes that a workgroup shares.
    pub(crate) const fn shared_bytes(&self) -> usize {
        (self.bm + self.bn) * (self.bk + 8) * 2 + self.invocations() / 32 * 1024
    }

    pub(crate) const fn invocations(&self) -> usize {
        self.bm / self.wm * (self.bn / self.wn) * 32
    }

    /// Vectors of activations of a round.
    pub(crate) const fn vectors(&self) -> usize {
        self.bm * self.bk / 8
    }

    /// Words of codes that an invocation takes at a time, and how often it does in a round.
    pub(crate) fn words(&self, form: &PackedForm) -> (usize, usize) {
        let quads = self.bn * self.bk / UNIT * form.codes.quads();
        let mut words = 4;
        while words > 1 && quads * 4 / words < self.invocations() {
            words /= 2;
        }
        (words, quads * 4 / words / self.invocations())
    }
}
