//! Programs whose weights are quantised, or dequantised, when they are asked for.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use lapidary_program::{
    Access, DType, Description, Encoding, Part, Program, QuantLayout, Weight, WeightDecl,
    WeightStore,
};
use rayon::prelude::*;

use crate::error::Result;
use crate::min_max::Grid;
use crate::recipe::{Action, Quantise, Recipe};
use crate::row::RowQuantiser;

/// Numbers of a weight that are worked on at once. Sources that make their bytes are asked for no
/// more than this.
const BLOCK: usize = 8 << 20;

/// The program under a recipe. Nothing is computed before a weight is asked for.
pub fn quantise(program: &Program, recipe: &Recipe) -> Result<Program> {
    changed(program, |name, decl| recipe.of(name, decl))
}

/// The program with the numbers of its quantised weights in f32, so that a recipe can be applied to
/// a checkpoint that is quantised already. Nothing is computed before a weight is asked for.
pub fn dequantise(program: &Program) -> Result<Program> {
    changed(program, |_, decl| match decl.encoding {
        Encoding::Dense(_) => (Action::Keep, decl.clone()),
        Encoding::Quant(_) => {
            (Action::Dense(DType::F32), WeightDecl::dense(decl.shape.clone(), DType::F32))
        }
    })
}

fn changed(
    program: &Program,
    to: impl Fn(&str, &WeightDecl) -> (Action, WeightDecl),
) -> Result<Program> {
    let mut description: Description = program.description().clone();
    let mut planned = HashMap::new();
    for (name, decl) in &mut description.weights {
        let (action, new) = to(name, decl);
        if action != Action::Keep {
            planned.insert(name.clone(), Planned { action, old: decl.clone(), new: new.clone() });
            *decl = new;
        }
    }
    let store = ChangedStore { source: program.store().clone(), planned };
    Ok(Program::new(description, program.blobs().clone(), Arc::new(store))?)
}

struct ChangedStore {
    source: Arc<dyn WeightStore>,
    planned: HashMap<String, Planned>,
}

/// What is done to a weight, what it was, and what it becomes.
struct Planned {
    action: Action,
    old: WeightDecl,
    new: WeightDecl,
}

type Parts = Vec<(Part, Vec<u8>)>;

impl ChangedStore {
    fn make(
        &self,
        weight: &str,
        plan: &Planned,
        rows: Range<usize>,
    ) -> lapidary_program::Result<Parts> {
        let source = Weight::fetch_rows(weight, &plan.old, self.source.as_ref(), rows)?;
        Ok(match (&plan.action, plan.new.encoding) {
            (Action::Quantise(q), Encoding::Quant(layout)) => codes(&source, q, &layout),
            (Action::Dense(dtype), _) => vec![(Part::Data, dense(&source, *dtype))],
            _ => vec![],
        })
    }

    /// Whether the source gives some rows without making all of them.
    fn has_rows(&self, weight: &str) -> bool {
        self.source.access(weight) != Access::Whole
    }
}

impl WeightStore for ChangedStore {
    fn part(&self, weight: &str, part: Part) -> lapidary_program::Result<Cow<'_, [u8]>> {
        let Some(plan) = self.planned.get(weight) else {
            return self.source.part(weight, part);
        };
        let made = self.parts(weight, &plan.new)?;
        let found = made.into_iter().find(|(p, _)| *p == part).map(|(_, bytes)| bytes);
        found.ok_or_else(|| lapidary_program::Error::Weight {
            weight: weight.to_string(),
            what: format!("{part:?} is not stored"),
        })
    }

    fn parts(
        &self,
        weight: &str,
        decl: &WeightDecl,
    ) -> lapidary_program::Result<Vec<(Part, Cow<'_, [u8]>)>> {
        let Some(plan) = self.planned.get(weight) else {
            return self.source.parts(weight, decl);
        };
        let rows = plan.old.rows();
        let at_once = if self.has_rows(weight) { rows_at_once(&plan.old) } else { rows.max(1) };
        let mut whole: Parts = Part::ALL
            .into_iter()
            .map(|part| (part, plan.new.part_bytes(part) as usize))
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(part, bytes)| (part, Vec::with_capacity(bytes)))
            .collect();
        for first in (0..rows).step_by(at_once) {
            let made = self.make(weight, plan, first..rows.min(first + at_once))?;
            for ((_, all), (_, some)) in whole.iter_mut().zip(made) {
                all.extend_from_slice(&some);
            }
        }
        Ok(whole.into_iter().map(|(part, bytes)| (part, Cow::Owned(bytes))).collect())
    }

    fn access(&self, weight: &str) -> Access {
        let source = self.source.access(weight);
        // Rows are made from rows.
        let is_made = self.planned.contains_key(weight);
        if is_made && source == Access::Lent { Access::Rows } else { source }
    }

    fn make_rows(&self, weight: &str, part: Part, rows: Range<usize>) -> Option<Vec<u8>> {
        let Some(plan) = self.planned.get(weight) else {
            return self.source.make_rows(weight, part, rows);
        };
        let made = self.make(weight, plan, rows).ok()?;
        made.into_iter().find(|(p, _)| *p == part).map(|(_, bytes)| bytes)
    }

    fn make_row_parts(&self, weight: &str, decl: &WeightDecl, rows: Range<usize>) -> Option<Parts> {
        match self.planned.get(weight) {
            None => self.source.make_row_parts(weight, decl, rows),
            // What fails here fails again, and says why, when the whole weight is asked for.
            Some(plan) if self.has_rows(weight) => self.make(weight, plan, rows).ok(),
            Some(_) => None,
        }
    }

    fn forget(&self, weight: &str) {
        self.source.forget(weight);
    }
}

fn rows_at_once(decl: &WeightDecl) -> usize {
    (BLOCK / decl.cols().max(1)).max(1)
}

/// All rows rounded to a float type.
fn dense(source: &Weight<'_>, dtype: DType) -> Vec<u8> {
    let cols = source.decl.cols();
    let row_bytes = cols * dtype.size_bytes();
    let mut out = vec![0; source.decl.rows() * row_bytes];
    out.par_chunks_mut(row_bytes).enumerate().for_each_init(
        || vec![0.0; cols],
        |values, (row, out)| {
            source.row_f32(row, values);
            write_floats(values.iter().copied(), dtype, out);
        },
    );
    out
}

fn write_floats(values: impl Iterator<Item = f32>, dtype: DType, out: &mut [u8]) {
    for (x, out) in values.zip(out.chunks_mut(dtype.size_bytes())) {
        match dtype {
            DType::F16 => out.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
            DType::Bf16 => out.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
            _ => out.copy_from_slice(&x.to_le_bytes()),
        }
    }
}

/// Codes, scales and biases of all rows, each row on its own.
fn codes(source: &Weight<'_>, q: &Quantise, layout: &QuantLayout) -> Parts {
    let (rows, cols) = (source.decl.rows(), source.decl.cols());
    let row_bytes = layout.row_bytes(cols);
    let scale_bytes = layout.groups(cols) * q.scale.size_bytes();
    let mut data = vec![0; rows * row_bytes];
    let mut scales = vec![0; rows * scale_bytes];
    // One byte a row where there is no bias, so that rows can be walked together.
    let bias_bytes = if layout.affine { scale_bytes } else { 1 };
    let mut biases = vec![0; rows * bias_bytes];
    data.par_chunks_mut(row_bytes)
        .zip(scales.par_chunks_mut(scale_bytes))
        .zip(biases.par_chunks_mut(bias_bytes))
        .enumerate()
        .for_each_init(
            || (vec![0.0; cols], vec![0; cols], RowQuantiser::new(*q, layout.group as usize)),
            |(values, codes, quantiser), (row, ((data, scales), biases))| {
                source.row_f32(row, values);
                let grids: &[Grid] = quantiser.row(values, codes);
                layout.pack_row(codes, data);
                write_floats(grids.iter().map(|g| g.scale), q.scale, scales);
                if layout.affine {
                    write_floats(grids.iter().map(|g| g.bias), q.scale, biases);
                }
            },
        );
    let mut parts = vec![(Part::Data, data), (Part::Scale, scales)];
    if layout.affine {
        parts.push((Part::Bias, biases));
    }
    parts
}
