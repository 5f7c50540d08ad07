//! Quantised weights in the order of matrix instructions; `packed.cuh` has the layout.

use lapidary_program::{Encoding, WeightDecl};

use crate::driver::Arg;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Columns of a block.
pub(crate) const BLOCK_COLS: usize = 64;
/// Matrices that may be multiplied at once.
pub(crate) const MOST_OUTS: usize = 4;

/// How a weight is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedForm {
    /// Bits of a code: 4 or 8.
    pub bits: u32,
    /// Whether each scale has a bias.
    pub affine: bool,
}

impl PackedForm {
    /// How a weight can be packed, if it can: a scale belongs to all of 32 columns, and the matrices of
    /// a weight of several consist of whole tiles.
    pub(crate) fn of(decl: &WeightDecl) -> Option<PackedForm> {
        let Encoding::Quant(q) = decl.encoding else { return None };
        let (cols, group) = (decl.cols(), q.group as usize);
        let is_whole = match decl.shape.as_slice() {
            [_, _] => true,
            [_, rows, _] => (*rows as usize).is_multiple_of(TILE_ROWS),
            _ => false,
        };
        if !(group.is_multiple_of(32) || group == cols) || !is_whole {
            return None;
        }
        let bits = if q.bits <= 4 { 4 } else { 8 };
        let (half, most) = (1 << (bits - 1), (1 << q.bits) - 1);
        let offset = i32::from(q.offset);
        let fits = offset <= half && most - offset < half;
        Some(PackedForm { bits, affine: q.affine || !fits })
    }

    /// Blocks of a tile.
    pub(crate) fn n_blocks(decl: &WeightDecl) -> usize {
        decl.cols().div_ceil(BLOCK_COLS)
    }

    /// Tiles of a weight, all its matrices counted.
    pub(crate) fn n_tiles(decl: &WeightDecl) -> usize {
        decl.rows().div_ceil(TILE_ROWS)
    }

    /// Bytes of a tile.
    pub(crate) fn tile_bytes(&self, decl: &WeightDecl) -> usize {
        let block = self.bits as usize * 128 + 64 * (1 + usize::from(self.affine));
        Self::n_blocks(decl) * block
    }

    /// What the kernels for this form are called.
    pub(crate) fn suffix(&self) -> &'static str {
        match (self.bits, self.affine) {
            (4, false) => "4",
            (4, true) => "4a",
            (_, false) => "8",
            (_, true) => "8a",
        }
    }
}

/// `Packed` of `packed.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed {
    pub data: u64,
    pub n_rows: u32,
    pub n_cols: u32,
    /// Of one matrix.
    pub n_tiles: u32,
    pub n_blocks: u32,
    pub bits: u32,
    pub affine: u32,
}

/// `Bytes` of `packed.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bytes {
    pub planes: u64,
    pub scales: u64,
    pub sums: u64,
}

/// `Outs` of `packed.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outs {
    y: [u64; MOST_OUTS],
    end_tile: [u32; MOST_OUTS],
    n_rows: [u32; MOST_OUTS],
}

// SAFETY: as `packed.cuh` declares it; six words after an address leave no padding.
#[allow(unsafe_code)]
unsafe impl Arg for Packed {}
// SAFETY: as `packed.cuh` declares it.
#[allow(unsafe_code)]
unsafe impl Arg for Bytes {}
// SAFETY: as `packed.cu` declares it; eight words after four addresses leave no padding.
#[allow(unsafe_code)]
unsafe impl Arg for Outs {}

impl Bytes {
    /// Words of a row of so many blocks.
    pub(crate) const fn row_words(n_blocks: usize) -> usize {
        n_blocks * (32 + 1 + 2)
    }

    /// The same from a row on.
    pub(crate) fn starting_at(self, row: usize, n_blocks: usize) -> Self {
        let before = (row * n_blocks) as u64;
        Bytes {
            planes: self.planes + before * 128,
            scales: self.scales + before * 4,
            sums: self.sums + before * 8,
        }
    }

    /// Room for so many rows at an address.
    pub(crate) fn new(at: u64, rows: usize, n_blocks: usize) -> Self {
        let scales = at + (rows * n_blocks * 128) as u64;
        Bytes { planes: at, scales, sums: scales + (rows * n_blocks * 4) as u64 }
    }
}

impl Outs {
    /// Where the rows of matrices that stand one after another go.
    pub(crate) fn new(outs: &[(u64, usize)]) -> Self {
        let mut made = Outs { y: [0; 4], end_tile: [u32::MAX; 4], n_rows: [0; 4] };
        let mut tile = 0;
        for (i, (y, rows)) in outs.iter().enumerate().take(MOST_OUTS) {
            tile += rows.div_ceil(TILE_ROWS) as u32;
            (made.y[i], made.end_tile[i], made.n_rows[i]) = (*y, tile, *rows as u32);
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use lapidary_program::{DType, QuantLayout, ScaleFormat, WeightDecl};

    use super::PackedForm;

    #[test]
    fn what_can_be_packed() {
        let form = |shape: &[u64], q| PackedForm::of(&WeightDecl::quant(shape.to_vec(), q));
        let plain = Some(PackedForm { bits: 4, affine: false });
        assert_eq!(form(&[33, 192], QuantLayout::symmetric(4, 32, DType::F16)), plain);
        assert_eq!(form(&[33, 192], QuantLayout::symmetric(2, 64, DType::F32)), plain);
        let eight = Some(PackedForm { bits: 8, affine: false });
        assert_eq!(form(&[7, 257], QuantLayout::symmetric(5, 257, DType::F32)), eight);
        assert_eq!(form(&[33, 192], QuantLayout::symmetric(4, 16, DType::F16)), None);
        let affine = Some(PackedForm { bits: 4, affine: true });
        assert_eq!(form(&[33, 192], QuantLayout::affine(3, 32, DType::F16)), affine);
        let odd = QuantLayout { offset: 1, ..QuantLayout::symmetric(4, 32, DType::F16) };
        assert_eq!(form(&[33, 192], odd), affine, "codes less 1 do not fit four bits");
        let scale = ScaleFormat::Nested { per: 8, sub: DType::U8, dtype: DType::F16 };
        let nested = QuantLayout { scale, ..QuantLayout::affine(4, 32, DType::F16) };
        assert_eq!(form(&[33, 256], nested), affine);
        assert_eq!(form(&[4, 33, 192], QuantLayout::symmetric(4, 32, DType::F16)), None);
        assert_eq!(form(&[4, 32, 192], QuantLayout::symmetric(4, 32, DType::F16)), plain);
    }
}
