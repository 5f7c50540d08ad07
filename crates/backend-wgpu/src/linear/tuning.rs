//! Which tiles the kernels of `linear` work on, by the shape of a matrix and the tokens of a call.
//!
//! Measured on an NVIDIA H200 through Vulkan (BENCHMARKS.md). What counts elsewhere is much the
//! same: enough invocations to keep memory busy when a matrix is small, and few when it is large.

use super::form::{Codes, PackedForm, TILE_ROWS, UNIT};
use crate::adapter::Abilities;

/// How `matvec` goes over a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatvecTile {
    /// Parts of a workgroup that each make tiles of their own.
    pub parts: usize,
    /// Invocations of a part.
    pub invocations: usize,
    /// Tiles of eight rows that a part makes.
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
/// Slots of each part of a workgroup that makes a unit of a gate.
const UNIT_SLOTS: usize = 16;
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
        let (slots, unroll) = self.whole_rounds(units, invocations / 8, unroll);
        MatvecTile { parts: 1, invocations: slots * 8, tiles: per_group, unroll }
    }

    /// For one token of a gate whose every workgroup makes a whole unit, so that it can keep it in
    /// bytes: four parts, each with a tile of either factor.
    pub(crate) fn matvec_unit(&self, units: usize) -> MatvecTile {
        let parts = UNIT / TILE_ROWS;
        let most = self.abilities.max_invocations as usize / parts / 8;
        let slots = UNIT_SLOTS.min(most / self.step() * self.step()).max(self.step());
        let unroll = (2..=3).find(|u| units.is_multiple_of(slots * u)).unwrap_or(2);
        MatvecTile { parts, invocations: slots * 8, tiles: 2, unroll }
    }

    /// Invocations of a workgroup that makes a tile of an expert, from rows of so many units.
    pub(crate) fn experts_few(&self, units: usize) -> usize {
        let most = (self.abilities.max_invocations as usize).min(256) / TILE_ROWS;
        units.next_multiple_of(self.step()).clamp(self.step(), most / self.step() * self.step())
            * TILE_ROWS
    }

    /// [`whole_rounds`] of whole subgroups.
    fn whole_rounds(&self, units: usize, slots: usize, unroll: usize) -> (usize, usize) {
        whole_rounds(units, slots, unroll, self.step())
    }

    /// Slots of a whole subgroup, or of four tiles of rows.
    fn step(&self) -> usize {
        (self.subgroup() / TILE_ROWS).max(4)
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
        let groups = tiles.div_ceil(tile.parts * tile.tiles);
        let kept = if tile.parts > 1 { tokens * UNIT * 4 } else { 0 };
        let subgroups = tile.parts * tile.invocations / self.subgroup().max(1);
        let bytes = tokens * units.next_multiple_of(4) * (64 + 16)
            + tile.tiles * tokens * 8 * subgroups * 4
            + kept;
        self.subgroup() >= 8
            && groups <= LOCAL_GROUPS
            && tokens * units * 8 <= LOCAL_EACH * tile.parts * tile.invocations
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
        let groups = rows.div_ceil(tile.bn).saturating_mul(tokens.div_ceil(tile.bm));
        let most = (form.cols / LEAST_SHARE).clamp(1, 8);
        let rounds = form.units() * UNIT / tile.bk;
        let mut split = BUSY.div_ceil(groups.max(1)).min(most);
        while split > 1 && !rounds.is_multiple_of(split) {
            split -= 1;
        }
        split
    }
}

/// Slots of a workgroup, in whole `steps`, and units that each asks for at once, near what is wanted
/// and no more, such that rounds of them go over all units: what is left for a last round is read
/// while nothing else is.
fn whole_rounds(units: usize, slots: usize, unroll: usize, step: usize) -> (usize, usize) {
    if units <= slots {
        return (units.next_multiple_of(step).min(slots), 1);
    }
    let near = |n: usize| {
        let fit = (1..=unroll + unroll / 2).filter(|u| n.is_multiple_of(*u));
        fit.min_by_key(|u| (u.abs_diff(unroll), unroll - *u.min(&unroll))).unwrap_or(1)
    };
    let slot_counts = (slots * 5 / 8..=slots).rev();
    let whole = slot_counts.filter(|s| s.is_multiple_of(step) && units.is_multiple_of(*s));
    let best = whole.map(|s| (s, near(units / s))).max_by_key(|(s, u)| s * u.min(&unroll));
    best.unwrap_or((slots, unroll.min(units / slots).max(1)))
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

#[cfg(test)]
mod tests {
    use super::whole_rounds;

    #[test]
    fn rounds_are_whole_where_they_can_be() {
        for (units, slots, unroll, want) in [
            (672, 64, 4, (56, 4)),
            (168, 32, 4, (28, 3)),
            (256, 64, 4, (64, 4)),
            (48, 64, 4, (48, 1)),
            (8, 64, 2, (8, 1)),
            (1, 64, 2, (4, 1)),
            (101, 64, 2, (64, 1)),
        ] {
            assert_eq!(whole_rounds(units, slots, unroll, 4), want, "{units} units");
        }
    }

    #[test]
    fn no_workgroup_is_larger_than_wanted_or_has_parts_of_subgroups() {
        for units in 1..800 {
            let (slots, unroll) = whole_rounds(units, 32, 4, 8);
            assert!(slots <= 32 && slots.is_multiple_of(8) && unroll > 0, "{units} units");
            assert!(slots * unroll <= units.next_multiple_of(8), "{units}: {slots} x {unroll}");
        }
    }
}
