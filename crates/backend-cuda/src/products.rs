//! Products with packed weights, and the experts.

use lapidary_backend::Result;
use lapidary_program::ValueId;

use crate::compile::Step;
use crate::driver::args;
use crate::ops::Work;
use crate::packed::{BLOCK_COLS, Bytes, Outs};
use crate::weights::{Matrix, MatrixForm};

/// Rows up to which activations are bytes.
pub(crate) const FEW_ROWS: usize = 16;
/// Bytes of what warps share of an output, for four rows: `parts` of `packed.cu`.
const PART_BYTES: usize = WARPS * 2 * 16 * 4 * 4;
/// Warps of a block of threads.
const WARPS: usize = 16;
/// What a block of `many` has in shared memory.
const MANY_SHARED: u32 = 3 * 128 * 80 * 2;

/// Fours of rows that a kernel is made for.
fn fours(rows: usize) -> usize {
    match rows.div_ceil(4) {
        0 | 1 => 1,
        2 => 2,
        _ => 4,
    }
}

impl Work<'_> {
    /// Products of the same rows with packed weights.
    pub(crate) fn together(&self, step: &Step, group: &[usize]) -> Result<()> {
        let node = &self.method.graph.nodes[step.node];
        let (x, rows) = (self.at(node.inputs[0]), self.rows(step.makes));
        let matrix = self.matrix(step.needs[0]);
        let [bytes, halves] = [1, 2].map(|i| self.vector(step.needs[i]));
        let values = group.iter().map(|i| self.compiled.firsts[*i]);
        let outs: Vec<(u64, usize)> =
            values.map(|value| (self.at(value), self.channels(value))).collect();
        let per_call = self.rows_at_once(matrix);
        if rows > FEW_ROWS || rows > 2 * per_call {
            return self.many(matrix, x, halves, &outs, rows);
        }
        let (n_cols, n_blocks) = (matrix.packed.n_cols, matrix.packed.n_blocks as usize);
        // Whoever made the rows may have made their bytes.
        let bytes = match self.bytes_of(node.inputs[0]) {
            Some(bytes) => bytes,
            None => {
                let bytes = Bytes::new(bytes, rows, n_blocks);
                self.quantise(x, bytes, rows, n_cols)?;
                bytes
            }
        };
        for first in (0..rows).step_by(per_call) {
            let n = per_call.min(rows - first);
            let outs: Vec<(u64, usize)> =
                outs.iter().map(|(y, wide)| (y + (first * wide * 4) as u64, *wide)).collect();
            self.few(matrix, bytes.starting_at(first, n_blocks), &outs, n)?;
        }
        Ok(())
    }

    /// A value of few rows as bytes, if whoever makes it makes them.
    pub(crate) fn bytes_of(&self, value: ValueId) -> Option<Bytes> {
        let buffer = self.compiled.bytes[value.index()]?;
        let (rows, channels) = (self.rows(value), self.channels(value));
        let n_blocks = channels.div_ceil(BLOCK_COLS);
        (rows <= FEW_ROWS).then(|| Bytes::new(self.arena[buffer].at(), rows, n_blocks))
    }

    /// Bytes of shared memory that products with so many rows take.
    fn shared(&self, matrix: &Matrix, rows: usize) -> usize {
        let affine = matrix.packed.affine as usize;
        let block = 128 + 4 + 8 * affine;
        let record = matrix.packed.bits as usize * 128 + 64 * (1 + affine);
        // Four stages of two blocks, or of one of bytes.
        let ring = WARPS * 4 * if matrix.packed.bits == 4 { 2 } else { 1 } * record;
        ring + rows * matrix.packed.n_blocks as usize * block + PART_BYTES * fours(rows)
    }

    /// Rows that fit shared memory at once; none on a GPU with little of it.
    fn rows_at_once(&self, matrix: &Matrix) -> usize {
        let most = self.gpu.context.most_shared as usize;
        (1..=FEW_ROWS).rev().find(|n| self.shared(matrix, *n) <= most).unwrap_or(0)
    }

    /// Rows as bytes.
    pub(crate) fn quantise(&self, x: u64, to: Bytes, rows: usize, n_cols: u32) -> Result<()> {
        let n_blocks = n_cols.div_ceil(BLOCK_COLS as u32);
        let n = rows as u32 * n_blocks;
        let args = args![x, to, rows as u32, n_cols, n_blocks];
        self.launch("rows_to_bytes", ([n.div_ceil(4), 1, 1], 128, 0), args)
    }

    fn few(&self, matrix: &Matrix, x: Bytes, outs: &[(u64, usize)], rows: usize) -> Result<()> {
        let MatrixForm::Packed(form) = matrix.form else { unreachable!("compiled as packed") };
        let name = format!("product_{}_{}", form.suffix(), fours(rows));
        let shared = self.shared(matrix, rows);
        let blocks = self.gpu.context.n_processors.min(matrix.packed.n_tiles);
        let outs = Outs::new(outs);
        let args = args![matrix.packed, x, outs, rows as u32, 1u32, 0u64, 1u32];
        self.launch(&name, ([blocks, 1, 1], 32 * WARPS as u32, shared as u32), args)
    }

    fn many(
        &self,
        matrix: &Matrix,
        x: u64,
        halves: u64,
        outs: &[(u64, usize)],
        rows: usize,
    ) -> Result<()> {
        let MatrixForm::Packed(form) = matrix.form else { unreachable!("compiled as packed") };
        let packed = &matrix.packed;
        let width = packed.n_blocks * 64;
        let factors = halves + (rows * width as usize * 2) as u64;
        let args = args![x, halves, factors, packed.n_cols, width];
        self.launch("rows_to_halves", ([rows as u32, 1, 1], 256, 0), args)?;
        let name = format!("many_{}", form.suffix());
        let grid = [packed.n_tiles.div_ceil(8), rows.div_ceil(128) as u32, 1];
        let args = args![*packed, halves, factors, Outs::new(outs), rows as u32];
        self.launch(&name, (grid, 256, MANY_SHARED), args)
    }

    pub(crate) fn experts(&self, step: &Step) -> Result<()> {
        let node = &self.method.graph.nodes[step.node];
        let [x, chosen, weights] = [0, 1, 2].map(|i| self.at(node.inputs[i]));
        let per = self.channels(node.inputs[1]);
        let rows = self.rows(step.makes) * per;
        let [gate_up, down] = [0, 1].map(|i| self.matrix(step.needs[i]));
        let [both, gated, made] = [2, 3, 4].map(|i| self.vector(step.needs[i]));
        let [bytes_in, bytes_out] = [5, 6].map(|i| self.vector(step.needs[i]));
        let channels = self.channels(step.makes);
        let inner = down.raw.cols() as usize;
        self.chosen(gate_up, (x, bytes_in, chosen), both, (rows, 2 * inner, per))?;
        let n = rows * inner;
        self.each("gelu_halves", n, args![both, gated, n, inner as u32])?;
        self.chosen(down, (gated, bytes_out, chosen), made, (rows, channels, 1))?;
        let n = self.numbers(step.makes);
        let y = self.at(step.makes);
        self.each("experts_sum", n, args![made, weights, y, n, channels as u32, per as u32])
    }

    /// Products of rows with a matrix each: row `i` of `y` is made of row `i / per` of `x`.
    fn chosen(
        &self,
        matrix: &Matrix,
        (x, bytes, chosen): (u64, u64, u64),
        y: u64,
        (rows, n_out, per): (usize, usize, usize),
    ) -> Result<()> {
        let MatrixForm::Packed(form) = matrix.form else {
            let args = args![matrix.raw, x, chosen, y, rows as u32, n_out as u32, per as u32];
            let grid = [n_out.div_ceil(8) as u32, rows as u32, 1];
            return self.launch("linear_experts", (grid, 256, 0), args);
        };
        let bytes = Bytes::new(bytes, rows / per, matrix.packed.n_blocks as usize);
        self.quantise(x, bytes, rows / per, matrix.packed.n_cols)?;
        let name = format!("product_{}_1", form.suffix());
        let shared = self.shared(matrix, 1) as u32;
        // Few rows share the GPU, many fill it.
        let fill = (2 * self.gpu.context.n_processors).div_ceil(rows as u32).max(1);
        let blocks = fill.min(matrix.packed.n_tiles);
        let outs = Outs::new(&[(y, n_out)]);
        let args = args![matrix.packed, bytes, outs, 1u32, 1u32, chosen, per as u32];
        self.launch(&name, ([blocks, rows as u32, 1], 32 * WARPS as u32, shared), args)
    }
}
