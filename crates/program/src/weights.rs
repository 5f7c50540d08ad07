//! Weight declarations, the bytes behind them, and what those bytes mean.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::encoding::{Encoding, QuantLayout, ScaleFormat, unpack_codes};
use crate::error::{Error, Result};

/// The stored pieces of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The numbers of a dense weight, or the packed codes of a quantised one.
    Data,
    /// Scales, one per group.
    Scale,
    /// Biases, one per group.
    Bias,
    /// Floats over nested scales.
    SuperScale,
    /// Floats over nested biases.
    SuperBias,
}

/// Shape and encoding of one weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightDecl {
    /// Lengths, outermost first; a linear is `[out, in]`.
    pub shape: Vec<u64>,
    /// How its numbers are written.
    pub encoding: Encoding,
}

/// How a store comes by the bytes of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// They are at hand, in a mapped file or in memory, and cost nothing to ask for.
    Lent,
    /// They are made anew each time, but no more rows than are asked for.
    Rows,
    /// They are made anew each time, all of them.
    Whole,
}

/// Where the bytes of weights come from.
///
/// A store may borrow from a mapped file or make the bytes when asked; it must not keep what it
/// makes, so that a loader which asks for one weight at a time never holds two.
pub trait WeightStore: Send + Sync {
    /// The bytes of one part of one weight.
    fn part(&self, weight: &str, part: Part) -> Result<Cow<'_, [u8]>>;

    /// All parts that a weight's declaration asks for, at once: a store that computes them together
    /// should override this.
    fn parts(&self, weight: &str, decl: &WeightDecl) -> Result<Vec<(Part, Cow<'_, [u8]>)>> {
        Part::ALL
            .into_iter()
            .filter(|part| decl.part_bytes(*part) > 0)
            .map(|part| Ok((part, self.part(weight, part)?)))
            .collect()
    }

    /// How this store comes by the bytes of a weight. It tells what asking costs: what is asked
    /// for comes in any case.
    fn access(&self, _weight: &str) -> Access {
        Access::Lent
    }

    /// Some rows of one part, if this store makes its bytes and can make just those. Embedding
    /// tables are read a row at a time and never made whole.
    fn make_rows(&self, _weight: &str, _part: Part, _rows: Range<usize>) -> Option<Vec<u8>> {
        None
    }

    /// Some rows of all parts that a declaration asks for, if this store makes each of them: one
    /// that computes them together should override this.
    fn make_row_parts(
        &self,
        weight: &str,
        decl: &WeightDecl,
        rows: Range<usize>,
    ) -> Option<Vec<(Part, Vec<u8>)>> {
        Part::ALL
            .into_iter()
            .filter(|part| decl.part_bytes(*part) > 0)
            .map(|part| Some((part, self.make_rows(weight, part, rows.clone())?)))
            .collect()
    }

    /// Hears that a weight has been packed and will not be read soon: a store that maps a file
    /// gives its pages back, so that a loader's memory does not hold everything twice.
    fn forget(&self, _weight: &str) {}

    /// A hash that changes when the bytes may have changed, if that can be told cheaply: the key
    /// under which what is made of them may be kept. `None` if it can't.
    fn fingerprint(&self) -> Option<[u8; 32]> {
        None
    }
}

/// Weights held in memory: for tests, and for what a quantiser has just made.
#[derive(Default)]
pub struct MemoryStore {
    parts: HashMap<(String, Part), Vec<u8>>,
}

/// One weight with its bytes at hand.
pub struct Weight<'a> {
    /// Shape and encoding.
    pub decl: Cow<'a, WeightDecl>,
    /// The `Data` part.
    pub data: Cow<'a, [u8]>,
    scale: Cow<'a, [u8]>,
    bias: Cow<'a, [u8]>,
    super_scale: Cow<'a, [u8]>,
    super_bias: Cow<'a, [u8]>,
}

impl Part {
    /// All parts, in the order they are written.
    pub const ALL: [Part; 5] =
        [Part::Data, Part::Scale, Part::Bias, Part::SuperScale, Part::SuperBias];
}

impl WeightDecl {
    /// A dense weight.
    pub fn dense(shape: impl Into<Vec<u64>>, dtype: DType) -> Self {
        WeightDecl { shape: shape.into(), encoding: Encoding::Dense(dtype) }
    }

    /// A quantised weight.
    pub fn quant(shape: impl Into<Vec<u64>>, layout: QuantLayout) -> Self {
        WeightDecl { shape: shape.into(), encoding: Encoding::Quant(layout) }
    }

    /// Number of elements; `None` on overflow.
    pub fn checked_elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d))
    }

    /// Number of elements of a validated weight.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product::<u64>() as usize
    }

    /// Length of a row: the innermost length.
    pub fn cols(&self) -> usize {
        self.shape.last().map_or(1, |d| *d as usize)
    }

    /// Number of rows: the product of all other lengths.
    pub fn rows(&self) -> usize {
        let outer = self.shape.len().saturating_sub(1);
        self.shape.iter().take(outer).product::<u64>() as usize
    }

    /// The element type and the shape of one part, or `None` if this encoding has no such part.
    ///
    /// The answer describes a validated weight; `validate` uses checked arithmetic first.
    pub fn part_layout(&self, part: Part) -> Option<(DType, Vec<u64>)> {
        let with_last = |n: usize| {
            let mut shape = self.shape.clone();
            if let Some(last) = shape.last_mut() {
                *last = n as u64;
            }
            shape
        };
        let cols = self.cols();
        match (self.encoding, part) {
            (Encoding::Dense(dtype), Part::Data) => Some((dtype, self.shape.clone())),
            (Encoding::Dense(_), _) => None,
            (Encoding::Quant(q), Part::Data) => Some((DType::U8, with_last(q.row_bytes(cols)))),
            (Encoding::Quant(q), Part::Bias | Part::SuperBias) if !q.affine => None,
            (Encoding::Quant(q), Part::Scale | Part::Bias) => {
                let dtype = match q.scale {
                    ScaleFormat::Plain { dtype } => dtype,
                    ScaleFormat::Nested { sub, .. } => sub,
                };
                Some((dtype, with_last(q.groups(cols))))
            }
            (Encoding::Quant(q), Part::SuperScale | Part::SuperBias) => match q.scale {
                ScaleFormat::Plain { .. } => None,
                ScaleFormat::Nested { dtype, .. } => Some((dtype, with_last(q.super_groups(cols)))),
            },
        }
    }

    /// The same for a declaration that comes from a file and has not been checked yet.
    pub(crate) fn checked_part_layout(
        &self,
        name: &str,
        part: Part,
    ) -> Result<Option<(DType, Vec<u64>)>> {
        crate::validate::weight(name, self)?;
        Ok(self.part_layout(part))
    }

    /// Bytes of one part; 0 if there is none.
    pub fn part_bytes(&self, part: Part) -> u64 {
        self.part_layout(part)
            .map_or(0, |(dtype, shape)| shape.iter().product::<u64>() * dtype.size_bytes() as u64)
    }

    /// Bytes of all parts.
    pub fn size_bytes(&self) -> u64 {
        Part::ALL.iter().map(|p| self.part_bytes(*p)).sum()
    }

    /// The name under which a part stands in a `.lap` file.
    pub fn part_name(&self, weight: &str, part: Part) -> String {
        match (self.encoding, part) {
            (Encoding::Dense(_), _) => weight.to_string(),
            (Encoding::Quant(q), Part::Data) => format!("{weight}:q{}", q.bits),
            (_, Part::Scale) => format!("{weight}:scale"),
            (_, Part::Bias) => format!("{weight}:bias"),
            (_, Part::SuperScale) => format!("{weight}:super_scale"),
            (_, Part::SuperBias) => format!("{weight}:super_bias"),
        }
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces one part.
    pub fn insert(&mut self, weight: impl Into<String>, part: Part, bytes: Vec<u8>) {
        self.parts.insert((weight.into(), part), bytes);
    }

    /// Adds a dense `f32` weight.
    pub fn insert_f32(&mut self, weight: impl Into<String>, values: &[f32]) {
        self.insert(weight, Part::Data, values.iter().flat_map(|v| v.to_le_bytes()).collect());
    }
}

impl WeightStore for MemoryStore {
    fn part(&self, weight: &str, part: Part) -> Result<Cow<'_, [u8]>> {
        self.parts
            .get(&(weight.to_string(), part))
            .map(|b| Cow::Borrowed(b.as_slice()))
            .ok_or_else(|| Error::weight(weight, format!("{part:?} is not stored")))
    }
}

impl<'a> Weight<'a> {
    /// Fetches all parts of a weight and checks their sizes.
    pub fn fetch(name: &str, decl: &'a WeightDecl, store: &'a dyn WeightStore) -> Result<Self> {
        Self::of_parts(name, Cow::Borrowed(decl), store.parts(name, decl)?)
    }

    /// Fetches some rows of a weight, as a matrix of just those.
    pub fn fetch_rows(
        name: &str,
        decl: &WeightDecl,
        store: &'a dyn WeightStore,
        rows: Range<usize>,
    ) -> Result<Self> {
        if rows.start > rows.end || rows.end > decl.rows() {
            return Err(Error::weight(name, format!("rows {rows:?} of {}", decl.rows())));
        }
        let shape = vec![rows.len() as u64, decl.cols() as u64];
        let some = WeightDecl { shape, encoding: decl.encoding };
        if let Some(made) = store.make_row_parts(name, decl, rows.clone()) {
            let parts = made.into_iter().map(|(part, bytes)| (part, Cow::Owned(bytes))).collect();
            return Self::of_parts(name, Cow::Owned(some), parts);
        }
        let mut parts = Vec::new();
        for part in Part::ALL {
            let bytes = some.part_bytes(part) as usize;
            if bytes == 0 {
                continue;
            }
            if let Some(made) = store.make_rows(name, part, rows.clone()) {
                parts.push((part, Cow::Owned(made)));
                continue;
            }
            let row_bytes = bytes / rows.len().max(1);
            let range = rows.start * row_bytes..rows.end * row_bytes;
            let found = match store.part(name, part)? {
                Cow::Borrowed(all) => all.get(range).map(Cow::Borrowed),
                Cow::Owned(all) => all.get(range).map(|some| Cow::Owned(some.to_vec())),
            };
            let missing = || Error::weight(name, format!("{part:?} lacks rows {rows:?}"));
            parts.push((part, found.ok_or_else(missing)?));
        }
        Self::of_parts(name, Cow::Owned(some), parts)
    }

    fn of_parts(
        name: &str,
        decl: Cow<'a, WeightDecl>,
        parts: Vec<(Part, Cow<'a, [u8]>)>,
    ) -> Result<Self> {
        let empty = || Cow::Borrowed([].as_slice());
        let mut weight = Weight {
            data: empty(),
            scale: empty(),
            bias: empty(),
            super_scale: empty(),
            super_bias: empty(),
            decl,
        };
        for (part, bytes) in parts {
            match part {
                Part::Data => weight.data = bytes,
                Part::Scale => weight.scale = bytes,
                Part::Bias => weight.bias = bytes,
                Part::SuperScale => weight.super_scale = bytes,
                Part::SuperBias => weight.super_bias = bytes,
            }
        }
        for part in Part::ALL {
            let (got, want) = (weight.part(part).len() as u64, weight.decl.part_bytes(part));
            if got != want {
                let what = format!("{part:?} has {got} bytes, its declaration asks for {want}");
                return Err(Error::weight(name, what));
            }
        }
        Ok(weight)
    }

    /// The bytes of one part; empty if there is none.
    pub fn part(&self, part: Part) -> &[u8] {
        match part {
            Part::Data => &self.data,
            Part::Scale => &self.scale,
            Part::Bias => &self.bias,
            Part::SuperScale => &self.super_scale,
            Part::SuperBias => &self.super_bias,
        }
    }

    /// The numbers of one row. This is the meaning of every encoding.
    pub fn row_f32(&self, row: usize, out: &mut [f32]) {
        let cols = self.decl.cols();
        assert_eq!(out.len(), cols, "row length");
        let q = match self.decl.encoding {
            Encoding::Dense(dtype) => {
                let size = cols * dtype.size_bytes();
                dtype.decode_f32(&self.data[row * size..(row + 1) * size], out);
                return;
            }
            Encoding::Quant(q) => q,
        };
        let row_bytes = q.row_bytes(cols);
        let packed = &self.data[row * row_bytes..(row + 1) * row_bytes];
        let (group, bits) = (q.group as usize, usize::from(q.bits));
        if group % 8 != 0 {
            // Groups that do not begin with a byte are unpacked with their row.
            let mut codes = vec![0u8; cols];
            q.unpack_row(packed, &mut codes);
            for (g, (out, codes)) in out.chunks_mut(group).zip(codes.chunks(group)).enumerate() {
                self.decode_group(&q, (row, g), codes, out);
            }
            return;
        }
        let mut codes = [0u8; 256];
        for (g, out) in out.chunks_mut(group).enumerate() {
            for (i, out) in out.chunks_mut(codes.len()).enumerate() {
                let first = (g * group + i * codes.len()) * bits / 8;
                let codes = &mut codes[..out.len()];
                unpack_codes(q.bits, &packed[first..first + out.len() * bits / 8], codes);
                self.decode_group(&q, (row, g), codes, out);
            }
        }
    }

    fn decode_group(
        &self,
        q: &QuantLayout,
        (row, g): (usize, usize),
        codes: &[u8],
        out: &mut [f32],
    ) {
        // Constants of the group, outside the loop so that it becomes vectors.
        let scale = self.factor(q, (row, g), &self.scale, &self.super_scale);
        let offset = i32::from(q.offset);
        let scaled = |code: &u8| (i32::from(*code) - offset) as f32 * scale;
        if q.affine {
            let bias = self.factor(q, (row, g), &self.bias, &self.super_bias);
            out.iter_mut().zip(codes).for_each(|(o, code)| *o = scaled(code) + bias);
        } else {
            out.iter_mut().zip(codes).for_each(|(o, code)| *o = scaled(code));
        }
    }

    /// The scale or the bias of one group, nesting resolved.
    fn factor(&self, q: &QuantLayout, (row, g): (usize, usize), sub: &[u8], sup: &[u8]) -> f32 {
        let groups = q.groups(self.decl.cols());
        let at = |bytes: &[u8], dtype: DType, i: usize| {
            let size = dtype.size_bytes();
            let mut value = [0.0];
            dtype.decode_f32(&bytes[i * size..(i + 1) * size], &mut value);
            value[0]
        };
        match q.scale {
            ScaleFormat::Plain { dtype } => at(sub, dtype, row * groups + g),
            ScaleFormat::Nested { per, sub: sub_dtype, dtype } => {
                let per = per as usize;
                let own = at(sub, sub_dtype, row * groups + g);
                own * at(sup, dtype, row * (groups / per) + g / per)
            }
        }
    }

    /// All numbers, row after row.
    pub fn to_f32(&self) -> Vec<f32> {
        let cols = self.decl.cols();
        let mut out = vec![0.0; self.decl.n_elements()];
        for (row, chunk) in out.chunks_mut(cols).enumerate() {
            self.row_f32(row, chunk);
        }
        out
    }
}
