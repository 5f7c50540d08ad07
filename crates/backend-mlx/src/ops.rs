//! Each op as a graph of MLX's.

use lapidary_backend::{Bound, Error, Result};
use lapidary_backend_kit::Derived;
use lapidary_program::{Activation, LocalAttentionSpec, Op, Program};

use crate::attention::{self, Shared};
use crate::cache::Cache;
use crate::ffi::{Array, Dtype, Mlx, Sees};
use crate::weights::{Weights, distances, factors};

/// What a node reads or makes.
pub(crate) enum Value {
    /// Activations `[length, channels]`.
    Rows(Array),
    /// Indices, with their numbers if the host knows them.
    Ids { array: Array, known: Option<Vec<i32>> },
}

/// What ops of one call work with.
pub(crate) struct Work<'a> {
    pub mlx: &'a Mlx,
    pub program: &'a Program,
    pub weights: &'a Weights,
    pub caches: &'a mut [Cache],
    pub bound: &'a Bound<'a>,
    pub shared: Shared,
}

impl Value {
    pub(crate) fn array(&self) -> &Array {
        match self {
            Value::Rows(array) | Value::Ids { array, .. } => array,
        }
    }

    fn known(&self) -> Result<&[i32]> {
        match self {
            Value::Ids { known: Some(known), .. } => Ok(known),
            _ => Err(Error::Device("an op needs indices that the host does not know".into())),
        }
    }
}

impl Work<'_> {
    /// Adds an op to the graph; the values that it makes, of which each has at least one row.
    pub(crate) fn op(&mut self, op: &Op, inputs: &[&Value]) -> Result<Vec<Value>> {
        let mlx = self.mlx;
        let x = |i: usize| inputs[i].array();
        let made = match op {
            Op::Embed { weight, scale, start, stride, soft_id } => {
                let rows = (*start as i32, *stride as i32);
                let soft = soft_id.map(|id| inputs[1].known().map(|soft| (id as i32, soft)));
                self.embed(weight, *scale, rows, inputs[0], soft.transpose()?)?
            }
            Op::SoftMerge => self.soft_merge(x(0), inputs[1].known()?, x(2))?,
            Op::Linear { weight, bias } => {
                let made = self.weights.matrix(weight)?.linear(mlx, x(0))?;
                match bias {
                    Some(bias) => mlx.add(&made, self.weights.vector(bias)?)?,
                    None => made,
                }
            }
            Op::RmsNorm { weight, eps, offset, width } => {
                let weight = weight.as_deref().map(|w| self.weights.raised(w, *offset));
                let weight = weight.transpose()?;
                in_runs(mlx, x(0), *width as usize, |x| mlx.rms_norm(x, weight, *eps))?
            }
            Op::LayerNorm { weight, bias, eps, width } => {
                let weight = self.weights.vector(weight)?;
                let bias = bias.as_deref().map(|bias| self.weights.vector(bias)).transpose()?;
                let axis = if lengths(x(0)).1 == *width as usize { 1 } else { 2 };
                in_runs(mlx, x(0), *width as usize, |x| {
                    mlx.layer_norm(&centred(mlx, x, *width, axis)?, weight, bias, *eps)
                })?
            }
            Op::Rope(spec) => {
                attention::rope(mlx, spec, x(0), &self.bound.positions, &mut self.shared)?
            }
            Op::AxialRope(spec) => {
                let places = [inputs[1].known()?, inputs[2].known()?];
                attention::axial_rope(mlx, spec, x(0), places)?
            }
            Op::KvWrite { state } => {
                let spans = self.bound.spans;
                attention::kv_write(mlx, cache(self.caches, state)?, [x(0), x(1)], spans)?;
                return Ok(Vec::new());
            }
            Op::Attention { state, spec } => {
                let cache = cache(self.caches, state)?;
                attention::attention(mlx, spec, cache, x(0), self.bound, &mut self.shared)?
            }
            Op::SelfAttention { n_heads, head_dim, scale } => {
                let heads = (*n_heads as usize, *head_dim as usize);
                self_attention(mlx, [x(0), x(1), x(2)], heads, *scale)?
            }
            Op::LocalAttention(spec) => self.local_attention(spec, [x(0), x(1), x(2)])?,
            Op::Conv2d { weight, width } => self.conv2d(x(0), weight, *width as usize)?,
            Op::CausalConv1d { weight } => self.causal_conv1d(x(0), weight)?,
            Op::PoolRows { size } => {
                let (rows, channels) = lengths(x(0));
                let size = *size as usize;
                mlx.mean(&mlx.reshape(x(0), &[rows / size, size, channels])?, 1)?
            }
            Op::GeluGate => mlx.multiply(&gelu_tanh(mlx, x(0))?, x(1))?,
            Op::SigmoidGate => mlx.multiply(x(0), &mlx.sigmoid(x(1))?)?,
            Op::Activate { function } => match function {
                Activation::GeluTanh => gelu_tanh(mlx, x(0))?,
                Activation::Silu => mlx.multiply(x(0), &mlx.sigmoid(x(0))?)?,
                Activation::Relu => {
                    let zero = mlx.number(0.0)?;
                    mlx.choose(&mlx.less(x(0), &zero)?, &zero, x(0))?
                }
            },
            Op::Clamp { low, high } => {
                // As two choices, so that what is not a number stays so.
                let (low, high) = (self.weights.vector(low)?, self.weights.vector(high)?);
                let raised = mlx.choose(&mlx.less(x(0), low)?, low, x(0))?;
                mlx.choose(&mlx.less(high, &raised)?, high, &raised)?
            }
            Op::Standardise { bias, scale } => {
                let moved = mlx.subtract(x(0), self.weights.vector(bias)?)?;
                mlx.multiply(&moved, self.weights.vector(scale)?)?
            }
            Op::Add => mlx.add(x(0), x(1))?,
            Op::Scale { factor } => mlx.multiply(x(0), &mlx.number(*factor)?)?,
            Op::ScaleBy { weight } => mlx.multiply(x(0), self.weights.vector(weight)?)?,
            Op::SoftCap { cap } => soft_cap(mlx, x(0), *cap)?,
            Op::Slice { start, len } => {
                let start = *start as usize;
                mlx.slice(x(0), 1, start..start + *len as usize)?
            }
            Op::Concat => mlx.concat(&[x(0), x(1)], 1)?,
            Op::GatherRows => mlx.take(x(0), x(1), 0)?,
            Op::Router { weight, expert_scale, top_k } => {
                return self.router(x(0), weight, expert_scale, *top_k as usize);
            }
            Op::Experts { gate_up, down } => self.experts([x(0), x(1), x(2)], gate_up, down)?,
            Op::CentroidHead { centroids, ordering, embedding, top } => {
                self.centroid_head(x(0), [centroids, ordering, embedding], *top as usize)?
            }
        };
        Ok(vec![Value::Rows(made)])
    }

    fn embed(
        &self,
        table: &str,
        scale: f32,
        (start, stride): (i32, i32),
        ids: &Value,
        soft: Option<(i32, &[i32])>,
    ) -> Result<Array> {
        let mlx = self.mlx;
        let Value::Ids { array, known } = ids else {
            return Err(Error::Device("rows of a table are looked up by indices".into()));
        };
        let rows = match known {
            Some(known) => {
                let row = |(t, id): (usize, &i32)| match soft {
                    Some((soft_id, soft)) if soft[t] >= 0 => soft_id,
                    _ => start + stride * id,
                };
                let rows: Vec<i32> = known.iter().enumerate().map(row).collect();
                mlx.indices(&rows, &[rows.len()])?
            }
            None => {
                let int = |x: i32| mlx.indices(&[x], &[1]);
                let rows = mlx.add(&mlx.multiply(array, &int(stride)?)?, &int(start)?)?;
                match soft {
                    Some((soft_id, soft)) => {
                        let soft = mlx.indices(soft, &[soft.len()])?;
                        mlx.choose(&mlx.less(&soft, &int(0)?)?, &rows, &int(soft_id)?)?
                    }
                    None => rows,
                }
            }
        };
        let rows = self.weights.matrix(table)?.rows(mlx, &rows)?;
        mlx.multiply(&rows, &mlx.number(scale)?)
    }

    fn soft_merge(&self, x: &Array, soft_index: &[i32], soft: &Array) -> Result<Array> {
        let mlx = self.mlx;
        if soft_index.iter().all(|index| *index < 0) {
            return x.share();
        }
        let n = soft_index.len();
        let rows: Vec<i32> = soft_index.iter().map(|index| (*index).max(0)).collect();
        let taken = mlx.take(soft, &mlx.indices(&rows, &[n])?, 0)?;
        let index = mlx.indices(soft_index, &[n, 1])?;
        mlx.choose(&mlx.less(&index, &mlx.indices(&[0], &[1])?)?, x, &taken)
    }

    /// With `W = window`, each row's scores are a row of `W`, by distance.
    fn local_attention(&self, spec: &LocalAttentionSpec, [q, k, v]: [&Array; 3]) -> Result<Array> {
        let mlx = self.mlx;
        let (heads, dim) = (spec.n_heads as usize, spec.head_dim as usize);
        let (n, window) = (q.shape()[0], spec.window as usize);
        let per_dim = self.weights.derived(&factors(spec))?;
        let q = mlx.multiply(&mlx.reshape(q, &[n, heads, dim])?, per_dim)?;
        // The rows that each sees, nearest first; those before the first are not seen.
        let seen: Vec<i32> =
            (0..n).flat_map(|t| (0..window).map(move |d| t as i32 - d as i32)).collect();
        let rows: Vec<i32> = seen.iter().map(|row| (*row).max(0)).collect();
        let rows = mlx.indices(&rows, &[n, window])?;
        let near = |x: &Array| mlx.take(&mlx.reshape(x, &[n, heads, dim])?, &rows, 0);
        // [n, heads, 1, dim] · [n, heads, dim, W]
        let keys = mlx.transpose(&near(k)?, &[0, 2, 3, 1])?;
        let content = mlx.matmul(&mlx.reshape(&q, &[n, heads, 1, dim])?, &keys)?;
        let content = mlx.multiply(&content, &mlx.number(spec.k_scale)?)?;
        // [heads, n, dim] · [heads, dim, W]
        let by_distance = self.weights.derived(&distances(spec))?;
        let by_distance = mlx.reshape(by_distance, &[window, heads, dim])?;
        let by_distance = mlx.transpose(&by_distance, &[1, 2, 0])?;
        let relative = mlx.matmul(&mlx.transpose(&q, &[1, 0, 2])?, &by_distance)?;
        let relative = mlx.transpose(&relative, &[1, 0, 2])?;
        let relative = mlx.reshape(&relative, &[n, heads, 1, window])?;
        let scores = soft_cap(mlx, &mlx.add(&content, &relative)?, spec.cap)?;
        let seen = mlx.indices(&seen, &[n, 1, 1, window])?;
        let unseen = mlx.less(&seen, &mlx.indices(&[0], &[1])?)?;
        let scores = mlx.choose(&unseen, &mlx.number(f32::NEG_INFINITY)?, &scores)?;
        let weights = mlx.softmax(&scores, 3)?;
        // [n, heads, 1, W] · [n, heads, W, dim]
        let values = mlx.transpose(&near(v)?, &[0, 2, 1, 3])?;
        mlx.reshape(&mlx.matmul(&weights, &values)?, &[n, heads * dim])
    }

    fn conv2d(&self, x: &Array, weight: &str, width: usize) -> Result<Array> {
        let mlx = self.mlx;
        let shape = &self.program.weights()[weight].shape;
        let [n_out, n_in] = [shape[0] as usize, shape[1] as usize];
        // By row, column and input channel, and then by output.
        let kernel =
            self.weights.derived(&Derived::new(weight, lapidary_backend_kit::Form::Kernel))?;
        let kernel = mlx.transpose(&mlx.reshape(kernel, &[3, 3, n_in, n_out])?, &[3, 0, 1, 2])?;
        let rows = x.shape()[0];
        let made = mlx.conv2d(&mlx.reshape(x, &[1, rows, width, n_in])?, &kernel)?;
        mlx.reshape(&made, &[rows.div_ceil(2), width.div_ceil(2) * n_out])
    }

    fn causal_conv1d(&self, x: &Array, weight: &str) -> Result<Array> {
        let mlx = self.mlx;
        let (rows, channels) = lengths(x);
        let form = lapidary_backend_kit::Form::Transposed;
        let taps = self.weights.derived(&Derived::new(weight, form))?;
        let n_taps = taps.shape()[0] / channels;
        let taps = mlx.reshape(taps, &[n_taps, channels])?;
        let padded = mlx.concat(&[&mlx.zeros(&[n_taps - 1, channels], Dtype::F32)?, x], 0)?;
        let mut sum: Option<Array> = None;
        for k in 0..n_taps {
            let tap = mlx.slice(&taps, 0, k..k + 1)?;
            let part = mlx.multiply(&mlx.slice(&padded, 0, k..k + rows)?, &tap)?;
            sum = Some(match sum {
                Some(sum) => mlx.add(&sum, &part)?,
                None => part,
            });
        }
        sum.map_or_else(|| mlx.zeros(&[rows, channels], Dtype::F32), Ok)
    }

    fn router(&self, x: &Array, weight: &str, scale: &str, top_k: usize) -> Result<Vec<Value>> {
        let mlx = self.mlx;
        let scores = self.weights.matrix(weight)?.linear(mlx, x)?;
        let all = mlx.softmax(&scores, 1)?;
        let experts = self.best(&all, top_k)?;
        let chosen = mlx.take_along(&all, &experts, 1)?;
        let shares = mlx.divide(&chosen, &mlx.sum(&chosen, 1, true)?)?;
        let scales = mlx.take(self.weights.vector(scale)?, &experts, 0)?;
        let weights = mlx.multiply(&shares, &scales)?;
        Ok(vec![Value::Ids { array: experts, known: None }, Value::Rows(weights)])
    }

    /// Places of the largest numbers of each row, largest first, lowest place first among equals.
    fn best(&self, x: &Array, n: usize) -> Result<Array> {
        let order = self.mlx.argsort(&self.mlx.negative(x)?, 1)?;
        self.mlx.cast(&self.mlx.slice(&order, 1, 0..n)?, Dtype::I32)
    }

    fn experts(
        &self,
        [x, experts, weights]: [&Array; 3],
        gate_up: &str,
        down: &str,
    ) -> Result<Array> {
        let mlx = self.mlx;
        let (rows, channels) = lengths(x);
        let (_, k) = lengths(weights);
        let x = mlx.reshape(x, &[rows, 1, 1, channels])?;
        let both = self.weights.matrix(gate_up)?.chosen(mlx, &x, experts)?;
        let inner = both.shape()[3] / 2;
        let gate = mlx.slice(&both, 3, 0..inner)?;
        let up = mlx.slice(&both, 3, inner..2 * inner)?;
        let gated = mlx.multiply(&gelu_tanh(mlx, &gate)?, &up)?;
        let made = self.weights.matrix(down)?.chosen(mlx, &gated, experts)?;
        let made = mlx.reshape(&made, &[rows, k, channels])?;
        let weighted = mlx.multiply(&made, &mlx.reshape(weights, &[rows, k, 1])?)?;
        mlx.sum(&weighted, 1, false)
    }

    /// All logits are computed, and those that nobody looks into are replaced.
    fn centroid_head(
        &self,
        x: &Array,
        [centroids, ordering, embedding]: [&str; 3],
        top: usize,
    ) -> Result<Array> {
        let mlx = self.mlx;
        let scores = self.weights.matrix(centroids)?.linear(mlx, x)?;
        let (rows, n_centroids) = lengths(&scores);
        let best = self.best(&scores, top)?;
        let ordering = self.weights.ordering(ordering)?;
        let vocab = ordering.shape()[0];
        let by_centroid = mlx.reshape(ordering, &[n_centroids, vocab / n_centroids])?;
        let tokens = mlx.take(&by_centroid, &best, 0)?;
        let tokens = mlx.reshape(&tokens, &[rows, top * (vocab / n_centroids)])?;
        let all = self.weights.matrix(embedding)?.linear(mlx, x)?;
        let found = mlx.take_along(&all, &tokens, 1)?;
        let least = mlx.subtract(&mlx.least(&found, 1)?, &mlx.number(1.0)?)?;
        mlx.put_along(&mlx.broadcast(&least, &[rows, vocab])?, &tokens, &found, 1)
    }
}

fn cache<'a>(caches: &'a mut [Cache], state: &str) -> Result<&'a mut Cache> {
    let found = caches.iter_mut().find(|cache| cache.shape.name == state);
    found.ok_or_else(|| Error::Device(format!("cache `{state}` was not made")))
}

/// Rows and channels.
fn lengths(x: &Array) -> (usize, usize) {
    let shape = x.shape();
    (shape[0], shape[1])
}

/// Does the same to each run of `width` channels.
fn in_runs(
    mlx: &Mlx,
    x: &Array,
    width: usize,
    each: impl FnOnce(&Array) -> Result<Array>,
) -> Result<Array> {
    let (rows, channels) = lengths(x);
    if channels == width {
        return each(x);
    }
    let runs = mlx.reshape(x, &[rows, channels / width, width])?;
    mlx.reshape(&each(&runs)?, &[rows, channels])
}

/// Numbers less their mean along an axis of so many. Where they differ by much less than they are
/// large, as in a flat picture, a mean in f32 is as far off as they are apart; what is left of it has
/// a mean that MLX's own norm then finds exactly.
fn centred(mlx: &Mlx, x: &Array, width: u32, axis: usize) -> Result<Array> {
    let mean = mlx.divide(&mlx.sum(x, axis, true)?, &mlx.number(width as f32)?)?;
    mlx.subtract(x, &mean)
}

fn gelu_tanh(mlx: &Mlx, x: &Array) -> Result<Array> {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let times = |x: &Array, by: f32| mlx.multiply(x, &mlx.number(by)?);
    let cube = mlx.multiply(&mlx.multiply(x, x)?, x)?;
    let inner = times(&mlx.add(x, &times(&cube, 0.044715)?)?, SQRT_2_OVER_PI)?;
    let gate = mlx.add(&mlx.tanh(&inner)?, &mlx.number(1.0)?)?;
    mlx.multiply(&times(x, 0.5)?, &gate)
}

fn soft_cap(mlx: &Mlx, x: &Array, cap: f32) -> Result<Array> {
    let cap = mlx.number(cap)?;
    mlx.multiply(&mlx.tanh(&mlx.divide(x, &cap)?)?, &cap)
}

fn self_attention(
    mlx: &Mlx,
    qkv: [&Array; 3],
    (heads, dim): (usize, usize),
    scale: f32,
) -> Result<Array> {
    let n = qkv[0].shape()[0];
    let by_head = |x: &Array| mlx.transpose(&mlx.reshape(x, &[1, n, heads, dim])?, &[0, 2, 1, 3]);
    let [q, k, v] = [by_head(qkv[0])?, by_head(qkv[1])?, by_head(qkv[2])?];
    let made = mlx.attention(&q, &k, &v, scale, &Sees::All)?;
    mlx.reshape(&mlx.transpose(&made, &[0, 2, 1, 3])?, &[n, heads * dim])
}
