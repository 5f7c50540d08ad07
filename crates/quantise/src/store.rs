//! A program whose weights are quantised when they are asked for.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use lapidary_program::{
    DType, Description, Encoding, Part, Program, QuantLayout, Weight, WeightDecl, WeightStore,
};
use rayon::prelude::*;

use crate::error::Result;
use crate::hqq::hqq;
use crate::min_max::{Grid, affine, symmetric};
use crate::recipe::{Action, Method, Quantise, Recipe};

/// The program under a recipe. Nothing is computed before a weight is asked for.
pub fn quantise(program: &Program, recipe: &Recipe) -> Result<Program> {
    let mut description: Description = program.description().clone();
    let mut planned = HashMap::new();
    for (name, decl) in &mut description.weights {
        let (action, new) = recipe.of(name, decl);
        if action != Action::Keep {
            planned.insert(name.clone(), (action, decl.clone(), new.clone()));
            *decl = new;
        }
    }
    let store = QuantisedStore { source: program.store().clone(), planned };
    Ok(Program::new(description, program.blobs().clone(), Arc::new(store))?)
}

struct QuantisedStore {
    source: Arc<dyn WeightStore>,
    /// What is done to a weight, what it was, and what it becomes.
    planned: HashMap<String, (Action, WeightDecl, WeightDecl)>,
}

impl WeightStore for QuantisedStore {
    fn part(&self, weight: &str, part: Part) -> lapidary_program::Result<Cow<'_, [u8]>> {
        let Some((_, _, new)) = self.planned.get(weight) else {
            return self.source.part(weight, part);
        };
        let made = self.parts(weight, new)?;
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
        let Some((action, old, new)) = self.planned.get(weight) else {
            return self.source.parts(weight, decl);
        };
        let source = Weight::fetch(weight, old, self.source.as_ref())?;
        Ok(make(&source, action, new))
    }

    fn is_at_hand(&self, weight: &str) -> bool {
        !self.planned.contains_key(weight) && self.source.is_at_hand(weight)
    }

    fn make_rows(&self, weight: &str, part: Part, rows: Range<usize>) -> Option<Vec<u8>> {
        let Some((action, old, new)) = self.planned.get(weight) else {
            return self.source.make_rows(weight, part, rows);
        };
        let source = Weight::fetch_rows(weight, old, self.source.as_ref(), rows).ok()?;
        let made = make(&source, action, new);
        made.into_iter().find(|(p, _)| *p == part).map(|(_, bytes)| bytes.into_owned())
    }
}

/// The parts of what a recipe makes of some numbers.
fn make(source: &Weight<'_>, action: &Action, new: &WeightDecl) -> Vec<(Part, Cow<'static, [u8]>)> {
    match (action, new.encoding) {
        (Action::Quantise(q), Encoding::Quant(layout)) => codes(source, q, &layout),
        (Action::Dense(dtype), _) => vec![(Part::Data, Cow::Owned(dense(source, *dtype)))],
        _ => vec![],
    }
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
            write_floats(values, dtype, out);
        },
    );
    out
}

fn write_floats(values: &[f32], dtype: DType, out: &mut [u8]) {
    for (x, out) in values.iter().zip(out.chunks_mut(dtype.size_bytes())) {
        match dtype {
            DType::F16 => out.copy_from_slice(&f16::from_f32(*x).to_le_bytes()),
            DType::Bf16 => out.copy_from_slice(&bf16::from_f32(*x).to_le_bytes()),
            _ => out.copy_from_slice(&x.to_le_bytes()),
        }
    }
}

/// Codes, scales and biases of all rows, each row on its own.
fn codes(
    source: &Weight<'_>,
    q: &Quantise,
    layout: &QuantLayout,
) -> Vec<(Part, Cow<'static, [u8]>)> {
    let (rows, cols) = (source.decl.rows(), source.decl.cols());
    let groups = layout.groups(cols);
    let row_bytes = layout.row_bytes(cols);
    let scale_bytes = groups * q.scale.size_bytes();
    let mut data = vec![0; rows * row_bytes];
    let mut scales = vec![0; rows * scale_bytes];
    let mut biases = vec![0; rows * scale_bytes];
    data.par_chunks_mut(row_bytes)
        .zip(scales.par_chunks_mut(scale_bytes))
        .zip(biases.par_chunks_mut(scale_bytes))
        .enumerate()
        .for_each_init(
            || Scratch { values: vec![0.0; cols], codes: vec![0; cols], grids: vec![] },
            |scratch, (row, ((data, scales), biases))| {
                source.row_f32(row, &mut scratch.values);
                scratch.quantise(q, layout.group as usize);
                layout.pack_row(&scratch.codes, data);
                let of = |f: fn(&Grid) -> f32| scratch.grids.iter().map(f).collect::<Vec<_>>();
                write_floats(&of(|g| g.scale), q.scale, scales);
                write_floats(&of(|g| g.bias), q.scale, biases);
            },
        );
    let mut parts = vec![(Part::Data, Cow::Owned(data)), (Part::Scale, Cow::Owned(scales))];
    if layout.affine {
        parts.push((Part::Bias, Cow::Owned(biases)));
    }
    parts
}

struct Scratch {
    values: Vec<f32>,
    codes: Vec<u8>,
    grids: Vec<Grid>,
}

impl Scratch {
    fn quantise(&mut self, q: &Quantise, group: usize) {
        self.grids.clear();
        for (values, codes) in self.values.chunks(group).zip(self.codes.chunks_mut(group)) {
            self.grids.push(match (q.symmetric, q.method) {
                (true, _) => symmetric(values, q.bits, q.scale, codes),
                (false, Method::MinMax) => affine(values, q.bits, q.scale, codes),
                (false, Method::Hqq) => hqq(values, q.bits, q.scale, codes),
            });
        }
    }
}
