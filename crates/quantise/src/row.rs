//! One row at a time, by code that is compiled for each instruction set. All of them give the same
//! bits: nothing is fused, and sums have one order.

#![allow(unsafe_code)]

use crate::hqq::Hqq;
use crate::min_max::{Grid, affine, symmetric};
use crate::recipe::{Method, Quantise};

/// Finds the codes of rows; keeps what it needs from row to row.
pub(crate) struct RowQuantiser {
    q: Quantise,
    group: usize,
    grids: Vec<Grid>,
    hqq: Hqq,
}

impl RowQuantiser {
    pub(crate) fn new(q: Quantise, group: usize) -> Self {
        RowQuantiser { q, group, grids: vec![], hqq: Hqq::new(group) }
    }

    /// The codes of a row, and the grid of each of its groups.
    pub(crate) fn row(&mut self, values: &[f32], codes: &mut [u8]) -> &[Grid] {
        self.grids.clear();
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx512f") {
                // SAFETY: the processor has the instructions, as was just asked.
                unsafe { self.row_avx512(values, codes) };
                return &self.grids;
            }
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has the instructions, as was just asked.
                unsafe { self.row_avx2(values, codes) };
                return &self.grids;
            }
        }
        self.row_any(values, codes);
        &self.grids
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn row_avx512(&mut self, values: &[f32], codes: &mut [u8]) {
        self.row_any(values, codes);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn row_avx2(&mut self, values: &[f32], codes: &mut [u8]) {
        self.row_any(values, codes);
    }

    #[inline(always)]
    fn row_any(&mut self, values: &[f32], codes: &mut [u8]) {
        let q = self.q;
        if !q.symmetric && q.method == Method::Hqq {
            return self.hqq.row(values, &q, codes, &mut self.grids);
        }
        for (values, codes) in values.chunks(self.group).zip(codes.chunks_mut(self.group)) {
            self.grids.push(match q.symmetric {
                true => symmetric(values, q.bits, q.scale, codes),
                false => affine(values, q.bits, q.scale, codes),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use lapidary_program::DType;

    use super::*;
    use crate::recipe::Group;

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let values: Vec<f32> =
            (0..640u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 3e8 - 0.02).collect();
        let kinds =
            [(4, false, Method::Hqq), (4, false, Method::MinMax), (8, true, Method::MinMax)];
        for (bits, symmetric, method) in kinds {
            let q = Quantise { bits, group: Group::Size(32), symmetric, scale: DType::F16, method };
            let (mut here, mut plain) = (RowQuantiser::new(q, 32), RowQuantiser::new(q, 32));
            let (mut a, mut b) = (vec![0; 640], vec![0; 640]);
            let grids = here.row(&values, &mut a);
            plain.row_any(&values, &mut b);
            assert_eq!(grids, plain.grids, "{q:?}");
            assert_eq!(a, b, "{q:?}");
        }
    }
}
