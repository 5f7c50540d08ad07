//! Which weights a program needs, in which form, and how they get there: one at a time.
//!
//! A quantised matrix stays codes. MLX multiplies with codes of 2, 3, 4, 5, 6 or 8 bits in groups of
//! 32, 64 or 128, each with an `f32` scale and bias here: a layout of ours that has an offset instead
//! has the bias `−offset · scale`, a longer group is several with the same scale, a shorter one is
//! filled with codes that meet zeros, and codes of 7 bits become codes of 8. Groups that are so short
//! that filling them would cost more than it saves are unpacked to `f32`.

use std::collections::{BTreeMap, BTreeSet};

use lapidary_backend::{Error, LoadOptions, Result};
use lapidary_backend_kit::{Derived, Form, RowSource, token_ids};
use lapidary_program::{
    DType, Encoding, Op, Part, Program, QuantLayout, ScaleFormat, Weight, WeightDecl,
};

use crate::ffi::{Array, Codes, Dtype, Mlx};

/// The longest group that MLX multiplies with, and the shortest.
const LONGEST: usize = 128;
const SHORTEST: usize = 32;
/// Groups below this are unpacked.
const LEAST: usize = 16;
/// Rows that are unpacked or packed again at a time.
const ROWS: usize = 256;

/// The codes of a matrix as MLX has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub bits: u8,
    /// Columns that share a scale.
    pub group: usize,
    /// Columns of a group as it is stored, and with what fills it.
    pub filled: Option<(usize, usize)>,
}

impl Layout {
    /// That of a quantised weight; `None` if it is unpacked.
    pub(crate) fn of(q: &QuantLayout) -> Option<Self> {
        let stored = q.group as usize;
        if stored < LEAST {
            return None;
        }
        let whole = stored.next_multiple_of(SHORTEST);
        let mut group = LONGEST;
        while !whole.is_multiple_of(group) {
            group /= 2;
        }
        let filled = (whole != stored).then_some((stored, whole));
        Some(Layout { bits: if q.bits == 7 { 8 } else { q.bits }, group, filled })
    }

    /// Columns with what fills them.
    fn columns(&self, cols: usize) -> usize {
        self.filled.map_or(cols, |(stored, whole)| cols / stored * whole)
    }

    fn size_bytes(&self, decl: &WeightDecl) -> u64 {
        let cols = self.columns(decl.cols());
        let row = cols * usize::from(self.bits) / 8 + cols / self.group * 8;
        (row as u64).saturating_mul(decl.rows() as u64)
    }
}

/// A weight that activations are multiplied with, or whose rows are looked up.
pub(crate) enum Matrix {
    /// `[…, N, K]`, `f32` where it is multiplied with.
    Dense(Array),
    /// `[…, N, words]`, `[…, N, groups]` twice.
    Quant { words: Array, scales: Array, biases: Array, layout: Layout },
}

/// What a program needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeightPlan {
    /// Matrices, by name; whether activations are multiplied with them.
    matrices: BTreeMap<String, bool>,
    derived: Vec<Derived>,
    /// Vectors with a number added to each of theirs.
    raised: Vec<(String, f32)>,
    orderings: BTreeSet<String>,
}

/// The weights of an engine.
pub(crate) struct Weights {
    matrices: BTreeMap<String, Matrix>,
    derived: Vec<(Derived, Array)>,
    raised: Vec<((String, f32), Array)>,
    orderings: BTreeMap<String, Array>,
}

impl WeightPlan {
    /// What the methods that will be called need.
    pub(crate) fn new(program: &Program, options: &LoadOptions) -> Self {
        let mut plan = WeightPlan::default();
        let wanted = program.methods().iter().filter(|(name, _)| options.wants(name));
        for node in wanted.flat_map(|(_, method)| &method.graph.nodes) {
            plan.add(&node.op);
        }
        plan
    }

    fn add(&mut self, op: &Op) {
        match op {
            Op::Embed { weight, .. } => _ = self.matrices.entry(weight.clone()).or_default(),
            Op::Linear { weight, bias } => {
                self.multiply(weight);
                bias.iter().for_each(|bias| self.derive(Derived::plain(bias)));
            }
            Op::RmsNorm { weight: Some(weight), offset, .. } => {
                if !self.raised.iter().any(|(name, by)| name == weight && by == offset) {
                    self.raised.push((weight.clone(), *offset));
                }
            }
            Op::Router { weight, expert_scale, .. } => {
                self.multiply(weight);
                self.derive(Derived::plain(expert_scale));
            }
            Op::Experts { gate_up, down } => {
                self.multiply(gate_up);
                self.multiply(down);
            }
            Op::CentroidHead { centroids, ordering, embedding, .. } => {
                self.multiply(centroids);
                self.multiply(embedding);
                self.orderings.insert(ordering.clone());
            }
            Op::LocalAttention(spec) => {
                self.derive(distances(spec));
                self.derive(factors(spec));
            }
            Op::Conv2d { weight, .. } => self.derive(Derived::new(weight, Form::Kernel)),
            Op::CausalConv1d { weight } => self.derive(Derived::new(weight, Form::Transposed)),
            other => other.weights().iter().for_each(|name| self.derive(Derived::plain(name))),
        }
    }

    fn multiply(&mut self, name: &str) {
        self.matrices.insert(name.to_string(), true);
    }

    fn derive(&mut self, derived: Derived) {
        if !self.derived.contains(&derived) {
            self.derived.push(derived);
        }
    }

    /// Bytes of all weights.
    pub(crate) fn size_bytes(&self, program: &Program) -> u64 {
        let decl = |name: &str| &program.weights()[name];
        let matrices = self.matrices.iter().map(|(name, multiplied)| {
            let decl = decl(name);
            match decl.encoding {
                Encoding::Quant(q) => match Layout::of(&q) {
                    Some(layout) => layout.size_bytes(decl),
                    None => 4 * decl.n_elements() as u64,
                },
                Encoding::Dense(_) if *multiplied => 4 * decl.n_elements() as u64,
                Encoding::Dense(_) => decl.size_bytes(),
            }
        });
        let derived = self.derived.iter().map(|derived| derived.size_bytes(program));
        let raised = self.raised.iter().map(|(name, _)| 4 * decl(name).n_elements() as u64);
        let orderings = self.orderings.iter().map(|name| 4 * decl(name).n_elements() as u64);
        matrices.chain(derived).chain(raised).chain(orderings).sum()
    }

    /// Reads all weights, one after another.
    pub(crate) fn load(
        &self,
        program: &Program,
        mlx: &Mlx,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Weights> {
        let bytes = |name: &String| program.weights()[name].size_bytes();
        let total: u64 = self.matrices.keys().map(bytes).sum();
        let mut done = 0;
        let mut matrices = BTreeMap::new();
        for (name, multiplied) in &self.matrices {
            matrices.insert(name.clone(), Matrix::load(program, name, *multiplied, mlx)?);
            program.store().forget(name);
            done += bytes(name);
            progress(done, total);
        }
        let mut derived = Vec::new();
        for one in &self.derived {
            let made = one.make(program)?;
            derived.push((one.clone(), mlx.floats(&made, &[made.len()])?));
        }
        let mut raised = Vec::new();
        for (name, by) in &self.raised {
            let mut made = Derived::plain(name).make(program)?;
            made.iter_mut().for_each(|x| *x += by);
            raised.push(((name.clone(), *by), mlx.floats(&made, &[made.len()])?));
        }
        let mut orderings = BTreeMap::new();
        for name in &self.orderings {
            let ids: Vec<i32> = token_ids(program, name)?.iter().map(|id| *id as i32).collect();
            orderings.insert(name.clone(), mlx.indices(&ids, &[ids.len()])?);
        }
        Ok(Weights { matrices, derived, raised, orderings })
    }
}

/// What an op makes of the weight of distances.
pub(crate) fn distances(spec: &lapidary_program::LocalAttentionSpec) -> Derived {
    Derived::new(&spec.relative, Form::Distances(spec.window as usize))
}

/// What an op multiplies queries with.
pub(crate) fn factors(spec: &lapidary_program::LocalAttentionSpec) -> Derived {
    let form = Form::Factors { softplus: spec.softplus, factor: spec.q_scale };
    Derived::new(&spec.per_dim_scale, form)
}

impl Weights {
    pub(crate) fn matrix(&self, name: &str) -> Result<&Matrix> {
        self.matrices.get(name).ok_or_else(|| unloaded(name))
    }

    /// A vector, or what is made of a weight; one length.
    pub(crate) fn derived(&self, wanted: &Derived) -> Result<&Array> {
        let found = self.derived.iter().find(|(derived, _)| derived == wanted);
        found.map(|(_, array)| array).ok_or_else(|| unloaded(&wanted.weight))
    }

    pub(crate) fn vector(&self, name: &str) -> Result<&Array> {
        self.derived(&Derived::plain(name))
    }

    /// A vector with a number added to each of its own.
    pub(crate) fn raised(&self, name: &str, by: f32) -> Result<&Array> {
        let found = self.raised.iter().find(|((of, raised), _)| of == name && *raised == by);
        found.map(|(_, array)| array).ok_or_else(|| unloaded(name))
    }

    pub(crate) fn ordering(&self, name: &str) -> Result<&Array> {
        self.orderings.get(name).ok_or_else(|| unloaded(name))
    }
}

fn unloaded(name: &str) -> Error {
    Error::Device(format!("weight `{name}` was not loaded"))
}

impl Matrix {
    fn load(program: &Program, name: &str, multiplied: bool, mlx: &Mlx) -> Result<Self> {
        let decl = &program.weights()[name];
        let shape: Vec<usize> = decl.shape.iter().map(|n| *n as usize).collect();
        match decl.encoding {
            Encoding::Quant(q) => match Layout::of(&q) {
                Some(layout) => Self::codes(program, name, (&q, layout), mlx),
                None => Self::unpacked(program, name, &shape, mlx),
            },
            Encoding::Dense(dtype) => match stored(dtype) {
                Some(dtype) if dtype == Dtype::F32 || !multiplied => {
                    let weight = program.weight(name)?;
                    Ok(Matrix::Dense(mlx.bytes(&weight.data, &shape, dtype)?))
                }
                _ => Self::unpacked(program, name, &shape, mlx),
            },
        }
    }

    /// All numbers as `f32`.
    fn unpacked(program: &Program, name: &str, shape: &[usize], mlx: &Mlx) -> Result<Self> {
        let source = RowSource::open(program, name)?;
        let (rows, cols) = (source.decl().rows(), source.decl().cols());
        let mut numbers = room(name, rows * cols, 0f32)?;
        for first in (0..rows).step_by(ROWS) {
            let some = source.rows(first..rows.min(first + ROWS))?;
            let out = &mut numbers[first * cols..];
            for (row, out) in out.chunks_exact_mut(cols.max(1)).take(ROWS).enumerate() {
                some.row_f32(row, out);
            }
        }
        Ok(Matrix::Dense(mlx.floats(&numbers, shape)?))
    }

    fn codes(
        program: &Program,
        name: &str,
        (q, layout): (&QuantLayout, Layout),
        mlx: &Mlx,
    ) -> Result<Self> {
        let source = RowSource::open(program, name)?;
        let decl = source.decl();
        let (rows, cols) = (decl.rows(), decl.cols());
        let columns = layout.columns(cols);
        let (row_bytes, groups) = (columns * usize::from(layout.bits) / 8, columns / layout.group);
        let is_stored = layout.filled.is_none() && layout.bits == q.bits;
        let mut words = room(name, rows * row_bytes, 0u8)?;
        let mut scales = room(name, rows * groups, 0f32)?;
        let mut biases = room(name, rows * groups, 0f32)?;
        // Scales of ours are those of so many groups of MLX's.
        let repeat = groups / q.groups(cols).max(1);
        for first in (0..rows).step_by(ROWS) {
            let n = ROWS.min(rows - first);
            let some = source.rows(first..first + n)?;
            let out = &mut words[first * row_bytes..(first + n) * row_bytes];
            match is_stored {
                true => out.copy_from_slice(&some.data),
                false => repack(q, layout, &some, cols, out),
            }
            let own = factors_of(&some, q, [Part::Scale, Part::SuperScale]);
            let added = q.affine.then(|| factors_of(&some, q, [Part::Bias, Part::SuperBias]));
            let at = first * groups..(first + n) * groups;
            let pairs = scales[at.clone()].iter_mut().zip(&mut biases[at]).enumerate();
            for (i, (scale, bias)) in pairs {
                *scale = own[i / repeat];
                *bias = added.as_ref().map_or(0.0, |added| added[i / repeat])
                    - f32::from(q.offset) * *scale;
            }
        }
        let shape = |last: usize| -> Vec<usize> {
            let outer = &decl.shape[..decl.shape.len().saturating_sub(1)];
            outer.iter().map(|n| *n as usize).chain([last]).collect()
        };
        Ok(Matrix::Quant {
            words: mlx.bytes(&words, &shape(row_bytes / 4), Dtype::U32)?,
            scales: mlx.floats(&scales, &shape(groups))?,
            biases: mlx.floats(&biases, &shape(groups))?,
            layout,
        })
    }

    /// Some rows as `f32`, for indices of any shape.
    pub(crate) fn rows(&self, mlx: &Mlx, indices: &Array) -> Result<Array> {
        let (words, scales, biases, layout) = match self {
            Matrix::Dense(table) => {
                return mlx.cast(&mlx.take(table, indices, 0)?, Dtype::F32);
            }
            Matrix::Quant { words, scales, biases, layout } => (words, scales, biases, layout),
        };
        let [words, scales, biases] = [
            mlx.take(words, indices, 0)?,
            mlx.take(scales, indices, 0)?,
            mlx.take(biases, indices, 0)?,
        ];
        let (bits, group) = (layout.bits, layout.group);
        let codes = Codes { words: &words, scales: &scales, biases: &biases, bits, group };
        let rows = mlx.dequantize(&codes)?;
        let Some((stored, whole)) = layout.filled else { return Ok(rows) };
        // What fills groups is left out.
        let mut shape = rows.shape();
        let columns = shape.pop().unwrap_or(0);
        let flat = shape.clone();
        shape.extend([columns / whole, whole]);
        let last = shape.len() - 1;
        let rows = mlx.slice(&mlx.reshape(&rows, &shape)?, last, 0..stored)?;
        mlx.reshape(&rows, &[&flat[..], &[columns / whole * stored]].concat())
    }

    /// `x [T, K] → [T, N]`.
    pub(crate) fn linear(&self, mlx: &Mlx, x: &Array) -> Result<Array> {
        match self {
            Matrix::Dense(w) => mlx.matmul(x, &mlx.transpose(w, &[1, 0])?),
            Matrix::Quant { words, scales, biases, layout } => {
                let x = fill(mlx, x, *layout)?;
                let (bits, group) = (layout.bits, layout.group);
                mlx.quantized_matmul(&x, &Codes { words, scales, biases, bits, group })
            }
        }
    }

    /// `x [T, k or 1, 1, K] → [T, k, 1, N]` with the matrices that `chosen [T, k]` names.
    pub(crate) fn chosen(&self, mlx: &Mlx, x: &Array, chosen: &Array) -> Result<Array> {
        match self {
            Matrix::Dense(w) => mlx.gather_mm(x, &mlx.transpose(w, &[0, 2, 1])?, chosen),
            Matrix::Quant { words, scales, biases, layout } => {
                let x = fill(mlx, x, *layout)?;
                let (bits, group) = (layout.bits, layout.group);
                mlx.gather_qmm(&x, &Codes { words, scales, biases, bits, group }, chosen)
            }
        }
    }
}

/// Zeros where a matrix has columns that only fill its groups.
fn fill(mlx: &Mlx, x: &Array, layout: Layout) -> Result<Array> {
    let Some((stored, whole)) = layout.filled else { return x.share() };
    let mut shape = x.shape();
    let cols = shape.pop().unwrap_or(0);
    let groups = cols / stored;
    let grouped = [&shape[..], &[groups, stored]].concat();
    let zeros = mlx.zeros(&[&shape[..], &[groups, whole - stored]].concat(), Dtype::F32)?;
    let axis = shape.len() + 1;
    let filled = mlx.concat(&[&mlx.reshape(x, &grouped)?, &zeros], axis)?;
    mlx.reshape(&filled, &[&shape[..], &[groups * whole]].concat())
}

/// Codes of rows in a layout that is not the stored one.
fn repack(q: &QuantLayout, layout: Layout, some: &Weight<'_>, cols: usize, out: &mut [u8]) {
    let columns = layout.columns(cols);
    let row_bytes = columns * usize::from(layout.bits) / 8;
    let (stored, whole) = layout.filled.unwrap_or((cols, cols));
    let packed = QuantLayout { bits: layout.bits, ..*q };
    let (mut codes, mut filled) = (vec![0; cols], vec![0; columns]);
    let stored_bytes = q.row_bytes(cols);
    let rows =
        some.data.chunks_exact(stored_bytes.max(1)).zip(out.chunks_exact_mut(row_bytes.max(1)));
    for (from, to) in rows {
        q.unpack_row(from, &mut codes);
        for (from, to) in codes.chunks_exact(stored).zip(filled.chunks_exact_mut(whole)) {
            to[..stored].copy_from_slice(from);
        }
        packed.pack_row(&filled, to);
    }
}

/// The scales or the biases of rows, nesting resolved.
fn factors_of(some: &Weight<'_>, q: &QuantLayout, [part, above]: [Part; 2]) -> Vec<f32> {
    let decode = |dtype: DType, bytes: &[u8]| {
        let mut out = vec![0.0; bytes.len() / dtype.size_bytes()];
        dtype.decode_f32(bytes, &mut out);
        out
    };
    match q.scale {
        ScaleFormat::Plain { dtype } => decode(dtype, some.part(part)),
        ScaleFormat::Nested { per, sub, dtype } => {
            let mut own = decode(sub, some.part(part));
            let above = decode(dtype, some.part(above));
            for (own, above) in own.chunks_mut(per as usize).zip(above) {
                own.iter_mut().for_each(|x| *x *= above);
            }
            own
        }
    }
}

fn stored(dtype: DType) -> Option<Dtype> {
    match dtype {
        DType::F32 => Some(Dtype::F32),
        DType::F16 => Some(Dtype::F16),
        DType::Bf16 => Some(Dtype::Bf16),
        _ => None,
    }
}

/// Memory for a weight while it is copied.
fn room<T: Clone>(name: &str, n: usize, zero: T) -> Result<Vec<T>> {
    let mut room = Vec::new();
    room.try_reserve_exact(n).map_err(|_| {
        Error::OutOfMemory(format!("not enough memory for {n} numbers of weight `{name}`"))
    })?;
    room.resize(n, zero);
    Ok(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bits: u8, group: u32) -> Option<Layout> {
        Layout::of(&QuantLayout::symmetric(bits, group, DType::F16))
    }

    #[test]
    fn groups_become_those_that_mlx_has() {
        let of = |group, filled| Some(Layout { bits: 4, group, filled });
        assert_eq!(layout(4, 32), of(32, None));
        assert_eq!(layout(4, 64), of(64, None));
        assert_eq!(layout(4, 640), of(128, None), "five of 128");
        assert_eq!(layout(4, 96), of(32, None), "three of 32");
        assert_eq!(layout(4, 16), of(32, Some((16, 32))));
        assert_eq!(layout(4, 40), of(64, Some((40, 64))));
        assert_eq!(layout(4, 8), None);
        assert_eq!(layout(7, 32).map(|l| l.bits), Some(8));
    }

    #[test]
    fn bytes_are_those_of_codes_and_two_floats_a_group() {
        let decl = WeightDecl::quant([3, 64], QuantLayout::symmetric(4, 32, DType::F16));
        assert_eq!(layout(4, 32).map(|l| l.size_bytes(&decl)), Some(3 * (32 + 2 * 8)));
        let short = WeightDecl::quant([3, 64], QuantLayout::symmetric(6, 16, DType::F16));
        assert_eq!(layout(6, 16).map(|l| l.size_bytes(&short)), Some(3 * (96 + 4 * 8)));
    }
}
