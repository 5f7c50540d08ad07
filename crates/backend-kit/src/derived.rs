//! Small weights that ops read as `f32`, in an order or as a function of their own; made once, at
//! load.

use lapidary_backend::{Error, Result};
use lapidary_program::{Program, Weight, WeightDecl};

/// The base of the angles of distances.
const BASE: f64 = 1e4;

/// What is made of a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Derived {
    /// The weight.
    pub weight: String,
    /// How it is made.
    pub form: Form,
}

/// How it is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// As it is.
    Plain,
    /// `[C, K]` as `[K, C]`.
    Transposed,
    /// `[O, I, 3, 3]` as `[3, 3, I, O]`: by row, column and input channel, then by output.
    Kernel,
    /// The same in panels of so many outputs, `[O / lanes][9·I][lanes]`; what is after the last
    /// output is 0.
    KernelPanels(usize),
    /// `W [N, C]` as `[n, N]`: `W · [sin(d·τ), cos(d·τ)]` for each distance `d` below `n`.
    Distances(usize),
    /// Each number, or its softplus, times a factor.
    Factors {
        /// Whether it is the softplus.
        softplus: bool,
        /// The factor.
        factor: f32,
    },
}

impl Derived {
    /// What is made of a weight.
    pub fn new(weight: &str, form: Form) -> Self {
        Derived { weight: weight.to_string(), form }
    }

    /// A weight as it is.
    pub fn plain(weight: &str) -> Self {
        Self::new(weight, Form::Plain)
    }

    /// Numbers that it has.
    fn len(&self, decl: &WeightDecl) -> usize {
        match self.form {
            Form::Plain | Form::Transposed | Form::Kernel | Form::Factors { .. } => {
                decl.n_elements()
            }
            Form::KernelPanels(lanes) => {
                let [n_out, n_in] = kernel_shape(decl);
                n_out.next_multiple_of(lanes) * 9 * n_in
            }
            Form::Distances(n) => n.saturating_mul(decl.rows()),
        }
    }

    /// Bytes that it takes as `f32`.
    pub fn size_bytes(&self, program: &Program) -> u64 {
        (self.len(&program.weights()[&self.weight]) as u64).saturating_mul(4)
    }

    /// Makes it.
    pub fn make(&self, program: &Program) -> Result<Vec<f32>> {
        let weight = program.weight(&self.weight)?;
        let len = self.len(&weight.decl);
        let mut out = Vec::new();
        out.try_reserve_exact(len).map_err(|_| {
            Error::OutOfMemory(format!("not enough memory for {len} numbers of `{}`", self.weight))
        })?;
        out.resize(len, 0.0);
        match self.form {
            Form::Plain => copy(&weight, &mut out),
            Form::Transposed => transpose(&weight, &mut out),
            Form::Kernel => kernel(&weight, kernel_shape(&weight.decl)[0].max(1), &mut out),
            Form::KernelPanels(lanes) => kernel(&weight, lanes, &mut out),
            Form::Distances(n) => distances(&weight, n, &mut out),
            Form::Factors { softplus: soft, factor } => {
                copy(&weight, &mut out);
                out.iter_mut().for_each(|x| *x = factor * if soft { softplus(*x) } else { *x });
            }
        }
        Ok(out)
    }
}

/// Reads an `i64` table of token ids. It comes from a file: an id outside the table is an error.
pub fn token_ids(program: &Program, name: &str) -> Result<Vec<u32>> {
    let weight = program.weight(name)?;
    let (ids, _) = weight.data.as_chunks::<8>();
    ids.iter()
        .map(|bytes| {
            let id = i64::from_le_bytes(*bytes);
            u32::try_from(id).ok().filter(|id| (*id as usize) < ids.len()).ok_or_else(|| {
                let what = format!("token id {id} is outside its {} tokens", ids.len());
                lapidary_program::Error::Weight { weight: name.to_string(), what }.into()
            })
        })
        .collect()
}

/// `ln(1 + eˣ)`, without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Outputs and inputs of a weight `[O, I, 3, 3]`.
fn kernel_shape(decl: &WeightDecl) -> [usize; 2] {
    [decl.shape[0] as usize, decl.shape[1] as usize]
}

fn copy(weight: &Weight<'_>, out: &mut [f32]) {
    for (r, row) in out.chunks_exact_mut(weight.decl.cols().max(1)).enumerate() {
        weight.row_f32(r, row);
    }
}

fn transpose(weight: &Weight<'_>, out: &mut [f32]) {
    let rows = weight.decl.rows();
    let mut row = vec![0.0; weight.decl.cols()];
    for r in 0..rows {
        weight.row_f32(r, &mut row);
        for (o, x) in out[r..].iter_mut().step_by(rows).zip(&row) {
            *o = *x;
        }
    }
}

fn kernel(weight: &Weight<'_>, lanes: usize, out: &mut [f32]) {
    let [n_out, n_in] = kernel_shape(&weight.decl);
    let depth = 9 * n_in;
    let stored = weight.to_f32();
    for o in 0..n_out {
        let panel = &mut out[o / lanes * lanes * depth..];
        for i in 0..n_in {
            for place in 0..9 {
                let k = place * n_in + i;
                panel[k * lanes + o % lanes] = stored[(o * n_in + i) * 9 + place];
            }
        }
    }
}

fn distances(weight: &Weight<'_>, n: usize, out: &mut [f32]) {
    let (rows, cols) = (weight.decl.rows(), weight.decl.cols());
    let half = cols / 2;
    let step = BASE.ln() / (half as f64 - 1.0);
    // By column and then by distance, so that the sums of all distances grow side by side.
    let wave = |k: usize, d: usize| {
        let angle = |i: usize| d as f64 * (-(i as f64) * step).exp();
        if k < half { angle(k).sin() } else { angle(k - half).cos() }
    };
    let waves: Vec<f64> = (0..cols).flat_map(|k| (0..n).map(move |d| wave(k, d))).collect();
    let (mut row, mut sums) = (vec![0.0; cols], vec![0.0; n]);
    for r in 0..rows {
        weight.row_f32(r, &mut row);
        sums.fill(0.0);
        for (w, waves) in row.iter().zip(waves.chunks_exact(n.max(1))) {
            sums.iter_mut().zip(waves).for_each(|(sum, x)| *sum += f64::from(*w) * x);
        }
        for (o, sum) in out[r..].iter_mut().step_by(rows).zip(&sums) {
            *o = *sum as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use lapidary_program::{DType, MemoryStore, Part, Weight, WeightDecl};

    use super::{distances, kernel, softplus, transpose};

    /// A weight of 0, 1, 2 …, and what `make` makes of it.
    fn made(shape: &[u64], len: usize, make: impl Fn(&Weight<'_>, &mut [f32])) -> Vec<f32> {
        let n: u64 = shape.iter().product();
        let bytes = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let mut store = MemoryStore::new();
        store.insert("w", Part::Data, bytes);
        let decl = WeightDecl::dense(shape.to_vec(), DType::F32);
        let mut out = vec![0.0; len];
        make(&Weight::fetch("w", &decl, &store).unwrap(), &mut out);
        out
    }

    #[test]
    fn rows_become_columns() {
        assert_eq!(made(&[3, 2], 6, transpose), [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    }

    #[test]
    fn a_kernel_goes_by_place_and_then_by_channel() {
        let panels = made(&[17, 2, 3, 3], 32 * 18, |w, out| kernel(w, 16, out));
        let plain = made(&[17, 2, 3, 3], 17 * 18, |w, out| kernel(w, 17, out));
        for o in 0..17 {
            for i in 0..2 {
                for place in 0..9 {
                    let stored = ((o * 2 + i) * 9 + place) as f32;
                    let at = o / 16 * 16 * 18 + (place * 2 + i) * 16 + o % 16;
                    assert_eq!(panels[at], stored);
                    assert_eq!(plain[(place * 2 + i) * 17 + o], stored);
                }
            }
        }
        assert_eq!(panels[16 * 18 + 1..16 * 18 + 16], [0.0; 15]);
    }

    #[test]
    fn distances_are_sines_and_cosines() {
        // One row 0, 1, 2, 3; the angles of distance 2 are 2 and 2e-4.
        let out = made(&[1, 4], 3, |w, out| distances(w, 3, out));
        assert_eq!(out[0], 5.0);
        let want = 2e-4f64.sin() + 2.0 * 2f64.cos() + 3.0 * 2e-4f64.cos();
        assert!((f64::from(out[2]) - want).abs() < 1e-6);
    }

    #[test]
    fn softplus_does_not_overflow() {
        assert_eq!(softplus(200.0), 200.0);
        assert_eq!(softplus(-200.0), 0.0);
        assert!((softplus(0.0) - std::f32::consts::LN_2).abs() < 1e-7);
    }
}
