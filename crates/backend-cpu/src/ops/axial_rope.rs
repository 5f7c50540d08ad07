use lapidary_backend_kit::angles;

use super::begin;
use super::rope::turn;
use crate::matrix::Cpu;
use crate::parallel::rows;
use crate::simd::{Kernel, Simd};

/// `columns [P], rows [P] → [P, 4·pairs]`: the cosines and sines of a patch's column, then those of
/// its row. All layers share one such table per call.
pub(crate) fn axial_rope_table(
    cpu: Cpu<'_>,
    frequencies: &[f32],
    places: [&[i32]; 2],
    out: &mut [f32],
) {
    let pairs = frequencies.len();
    rows(cpu, out, 4 * pairs, |t, out| {
        for (half, places) in out.chunks_exact_mut(2 * pairs).zip(places) {
            let (cosines, sines) = half.split_at_mut(pairs);
            angles(places[t], frequencies, cosines, sines);
        }
    });
}

/// `x [P, heads·head_dim] → same`: the first half of each head turns by the first angles of the
/// table, the second by the others, each half split in two of its own.
pub(crate) fn axial_rope(
    cpu: Cpu<'_>,
    first: Option<&[f32]>,
    (table, head_dim): (&[f32], usize),
    (out, channels): (&mut [f32], usize),
) {
    rows(cpu, out, channels, |t, out| {
        begin(first, t * channels, out);
        let angles = &table[t * head_dim..(t + 1) * head_dim];
        cpu.isa.run(Turn { angles, out });
    });
}

struct Turn<'a> {
    /// Four parts as `axial_rope_table` has them, as long as a head in all.
    angles: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let half = self.angles.len() / 2;
        let (by_column, by_row) = self.angles.split_at(half);
        for head in self.out.chunks_exact_mut(2 * half) {
            let (first, second) = head.split_at_mut(half);
            turn(s, first, by_column.split_at(half / 2));
            turn(s, second, by_row.split_at(half / 2));
        }
    }
}
