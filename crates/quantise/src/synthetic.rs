//! Programs of the right shape with random weights, made when they are asked for: speed can be
//! measured without a checkpoint, at any size and in any encoding.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use lapidary_program::{
    Access, DType, Encoding, Part, Program, ScaleFormat, WeightDecl, WeightStore,
};
use rayon::prelude::*;

use crate::error::Result;
use crate::recipe::Recipe;

/// The program under a recipe, with random weights of a sane size instead of its own.
pub fn synthetic(program: &Program, recipe: Option<&Recipe>) -> Result<Program> {
    let mut description = program.description().clone();
    for (name, decl) in &mut description.weights {
        if let Some(recipe) = recipe {
            *decl = recipe.of(name, decl).1;
        }
    }
    let store = Synthetic { decls: description.weights.clone() };
    Ok(Program::new(description, program.blobs().clone(), Arc::new(store))?)
}

/// Bytes that are worth waking other threads for: a row of an embedding table is not, and is asked
/// for with every token.
const LEAST_SHARED: usize = 1 << 18;

struct Synthetic {
    decls: BTreeMap<String, WeightDecl>,
}

impl Synthetic {
    /// Rows of one part; each row depends on its number alone, so that rows can be made one by one.
    fn rows(&self, weight: &str, part: Part, rows: Option<Range<usize>>) -> Option<Vec<u8>> {
        let decl = self.decls.get(weight)?;
        let (dtype, shape) = decl.part_layout(part)?;
        let row_len = shape.last().map_or(1, |n| *n as usize);
        let rows = rows.unwrap_or(0..decl.rows());
        let row_bytes = row_len * dtype.size_bytes();
        let mut out = vec![0u8; rows.len() * row_bytes];
        let seed = weight
            .bytes()
            .fold(part as u64 + 1, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
        let fill = Fill::of(decl, part, dtype);
        let fill_row = |(out, row): (&mut [u8], usize)| {
            let row_seed = seed ^ (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            fill.row(out, dtype, row_seed);
        };
        if out.len() < LEAST_SHARED {
            out.chunks_mut(row_bytes.max(1)).zip(rows).for_each(fill_row);
        } else {
            out.par_chunks_mut(row_bytes.max(1)).zip(rows.into_par_iter()).for_each(fill_row);
        }
        Some(out)
    }
}

impl WeightStore for Synthetic {
    fn part(&self, weight: &str, part: Part) -> lapidary_program::Result<Cow<'_, [u8]>> {
        self.rows(weight, part, None).map(Cow::Owned).ok_or_else(|| {
            let what = format!("{part:?} is not stored");
            lapidary_program::Error::Weight { weight: weight.to_string(), what }
        })
    }

    fn access(&self, _weight: &str) -> Access {
        Access::Rows
    }

    fn make_rows(&self, weight: &str, part: Part, rows: Range<usize>) -> Option<Vec<u8>> {
        self.rows(weight, part, Some(rows))
    }
}

/// What a part is filled with.
enum Fill {
    /// Any bytes: codes.
    Bytes,
    /// Numbers between −x and x.
    Around(f32),
    /// The same number everywhere.
    Constant(f32),
    /// 0, 1, 2 …: an ordering.
    Counting,
}

impl Fill {
    fn of(decl: &WeightDecl, part: Part, dtype: DType) -> Fill {
        // Activations keep their size through a product whose weights have this deviation.
        let deviation = 1.0 / (decl.cols() as f32).sqrt();
        match (decl.encoding, part) {
            (Encoding::Dense(DType::I64), _) => Fill::Counting,
            (Encoding::Dense(_), _) if decl.shape.len() < 2 => Fill::Constant(0.5),
            (Encoding::Dense(_), _) => Fill::Around(deviation * 1.7),
            (Encoding::Quant(_), Part::Data) => Fill::Bytes,
            (Encoding::Quant(q), _) => {
                let step = deviation * 3.4 / (1u32 << q.bits) as f32;
                let lowest = if q.affine { -deviation * 1.7 } else { 0.0 };
                let value =
                    if matches!(part, Part::Scale | Part::SuperScale) { step } else { lowest };
                match q.scale {
                    ScaleFormat::Plain { .. } => Fill::Constant(value),
                    // Nested: the byte is 1, and the float is the value.
                    ScaleFormat::Nested { .. } if !dtype.is_float() => Fill::Constant(1.0),
                    ScaleFormat::Nested { .. } => Fill::Constant(value),
                }
            }
        }
    }

    fn row(&self, out: &mut [u8], dtype: DType, seed: u64) {
        let mut state = seed | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        if let Fill::Bytes = self {
            for chunk in out.chunks_mut(8) {
                chunk.copy_from_slice(&next().to_le_bytes()[..chunk.len()]);
            }
            return;
        }
        for (i, out) in out.chunks_mut(dtype.size_bytes()).enumerate() {
            let value = match self {
                Fill::Around(x) => ((next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0) * x,
                Fill::Constant(x) => *x,
                Fill::Bytes | Fill::Counting => i as f32,
            };
            match dtype {
                DType::F32 => out.copy_from_slice(&value.to_le_bytes()),
                DType::F16 => out.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                DType::Bf16 => out.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                DType::I8 | DType::U8 => out.fill(value as u8),
                DType::I64 => out.copy_from_slice(&(i as i64).to_le_bytes()),
            }
        }
    }
}
