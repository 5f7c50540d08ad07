//! Small weights as kernels read them: `f32`, or in an order or as a function of their own.

use lapidary_backend::Result;
use lapidary_program::{Program, Weight, WeightDecl};

use crate::weights::too_large;

/// The base of the angles of distances.
const BASE: f64 = 1e4;

/// What is made of a weight.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Derived {
    pub weight: String,
    pub form: Form,
}

/// How it is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    /// As it is.
    Plain,
    /// `i64` ids as `u32`.
    Ids,
    /// `[C, K]` as `[K, C]`.
    Transposed,
    /// `[O, I, 3, 3]` as `[3, 3, I, O]`.
    Kernel,
    /// `W [N, C]` as `[n, N]`: `W · [sin(d·τ), cos(d·τ)]` for each distance `d` below `n`.
    Distances(usize),
    /// Each number, or its softplus, times a factor.
    Factors { softplus: bool, factor: f32 },
}

impl Derived {
    /// A weight as it is.
    pub(crate) fn plain(weight: &str) -> Self {
        Derived { weight: weight.to_string(), form: Form::Plain }
    }

    fn len(&self, decl: &WeightDecl) -> usize {
        match self.form {
            Form::Distances(n) => n.saturating_mul(decl.rows()),
            _ => decl.n_elements(),
        }
    }

    /// Bytes that it takes.
    pub(crate) fn size_bytes(&self, program: &Program) -> u64 {
        (self.len(&program.weights()[&self.weight]) as u64).saturating_mul(4)
    }

    /// Makes it, as bytes.
    pub(crate) fn make(&self, program: &Program) -> Result<Vec<u8>> {
        let weight = program.weight(&self.weight)?;
        if self.form == Form::Ids {
            return ids(&self.weight, &weight);
        }
        let len = self.len(&weight.decl);
        let mut out = Vec::new();
        out.try_reserve_exact(len).map_err(|_| too_large(&self.weight))?;
        out.resize(len, 0.0);
        match self.form {
            Form::Plain | Form::Ids => out = weight.to_f32(),
            Form::Transposed => transpose(&weight.to_f32(), weight.decl.rows(), &mut out),
            Form::Kernel => {
                // [O, I·9] as [I·9, O], then the nine places before the channels.
                let n_out = weight.decl.shape.first().map_or(1, |n| *n as usize);
                let mut turned = vec![0.0; len];
                transpose(&weight.to_f32(), n_out, &mut turned);
                let n_in = len / n_out.max(1) / 9;
                for (i, row) in turned.chunks_exact(n_out.max(1)).enumerate() {
                    let at = (i % 9 * n_in + i / 9) * n_out;
                    out[at..at + n_out].copy_from_slice(row);
                }
            }
            Form::Distances(n) => distances(&weight, n, &mut out),
            Form::Factors { softplus: soft, factor } => {
                let made = weight.to_f32().into_iter();
                out = made.map(|x| factor * if soft { softplus(x) } else { x }).collect();
            }
        }
        Ok(out.iter().flat_map(|x| x.to_le_bytes()).collect())
    }
}

/// `[rows, cols]` as `[cols, rows]`.
fn transpose(x: &[f32], rows: usize, out: &mut [f32]) {
    let cols = x.len() / rows.max(1);
    for (r, row) in x.chunks_exact(cols.max(1)).enumerate() {
        for (o, x) in out[r..].iter_mut().step_by(rows).zip(row) {
            *o = *x;
        }
    }
}

fn distances(weight: &Weight<'_>, n: usize, out: &mut [f32]) {
    let (rows, cols) = (weight.decl.rows(), weight.decl.cols());
    let half = cols / 2;
    let step = BASE.ln() / (half as f64 - 1.0);
    let wave = |k: usize, d: usize| {
        let angle = |i: usize| d as f64 * (-(i as f64) * step).exp();
        if k < half { angle(k).sin() } else { angle(k - half).cos() }
    };
    let waves: Vec<f64> = (0..n).flat_map(|d| (0..cols).map(move |k| wave(k, d))).collect();
    let mut row = vec![0.0; cols];
    for r in 0..rows {
        weight.row_f32(r, &mut row);
        for (o, wave) in out[r..].iter_mut().step_by(rows).zip(waves.chunks_exact(cols)) {
            *o = row.iter().zip(wave).map(|(w, x)| f64::from(*w) * x).sum::<f64>() as f32;
        }
    }
}

/// `ln(1 + eˣ)`, without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Reads an `i64` table of token ids. It comes from a file: an id outside the table is an error.
fn ids(name: &str, weight: &Weight<'_>) -> Result<Vec<u8>> {
    let (ids, _) = weight.data.as_chunks::<8>();
    let mut out = Vec::with_capacity(ids.len() * 4);
    for bytes in ids {
        let id = i64::from_le_bytes(*bytes);
        let known = u32::try_from(id).ok().filter(|id| (*id as usize) < ids.len());
        let Some(known) = known else {
            let what = format!("token id {id} is outside its {} tokens", ids.len());
            return Err(lapidary_program::Error::Weight { weight: name.to_string(), what }.into());
        };
        out.extend(known.to_le_bytes());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::transpose;

    #[test]
    fn rows_become_columns() {
        let mut out = [0.0; 6];
        transpose(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 3, &mut out);
        assert_eq!(out, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    }
}
