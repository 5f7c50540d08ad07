//! Starts the kernels of one node of a method.

use lapidary_backend::{KvType, Result, Sizes};
use lapidary_program::{Activation, Method, Op, Program, ValueId};

use crate::cache::Cache;
use crate::compile::{CompiledMethod, MOST_PARTS, Need, Place, Step};
use crate::driver::{Args, Memory, Stream, args};
use crate::engine::feeds::FeedLayout;
use crate::fuse::Unit;
use crate::gpu::Gpu;
use crate::weights::{Matrix, MatrixForm, Weights};

/// Threads of a block over single numbers.
const EACH: u32 = 256;
/// Rows up to which a warp makes one output of all of them.
const FEW_ROWS: usize = 16;
/// Keys that one block should have at least.
const LEAST_KEYS: usize = 64;

/// What the kernels of a call work on.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub gpu: &'a Gpu,
    pub stream: &'a Stream,
    pub weights: &'a Weights,
    pub caches: &'a [Cache],
    pub program: &'a Program,
    pub method: &'a Method,
    pub compiled: &'a CompiledMethod,
    pub arena: &'a [Memory],
    /// Where feeds stand.
    pub feeds: u64,
    pub layout: &'a FeedLayout,
    pub sizes: Sizes,
    /// The most keys that a token sees.
    pub most_keys: usize,
}

impl Work<'_> {
    /// Where a value is.
    pub(crate) fn at(&self, value: ValueId) -> u64 {
        match self.compiled.values[value.index()] {
            Place::Feed(input) => self.feeds + self.layout.inputs[input] as u64,
            Place::Buffer(buffer) => self.arena[buffer].at(),
        }
    }

    /// Where a value is, or 0 if it is not stored.
    pub(crate) fn at_if_stored(&self, value: ValueId) -> u64 {
        match self.compiled.values[value.index()] {
            Place::Feed(input) if input >= self.layout.inputs.len() => 0,
            _ => self.at(value),
        }
    }

    pub(crate) fn rows(&self, value: ValueId) -> usize {
        self.sizes.len(self.compiled.lens[value.index()].0)
    }

    pub(crate) fn channels(&self, value: ValueId) -> usize {
        self.compiled.lens[value.index()].1
    }

    pub(crate) fn numbers(&self, value: ValueId) -> usize {
        self.rows(value) * self.channels(value)
    }

    pub(crate) fn launch(&self, name: &str, grid: ([u32; 3], u32, u32), args: Args) -> Result<()> {
        self.gpu.launch(self.stream, name, grid, args)
    }

    /// A kernel over `n` numbers.
    pub(crate) fn each(&self, name: &str, n: usize, args: Args) -> Result<()> {
        let blocks = n.div_ceil(EACH as usize).min(1 << 16) as u32;
        self.launch(name, ([blocks, 1, 1], EACH, 0), args)
    }

    pub(crate) fn vector(&self, need: Need) -> u64 {
        match need {
            Need::Vector(id) => self.weights.vector(id),
            Need::Scratch(buffer) => self.arena[buffer].at(),
            Need::Rope(rope) => self.arena[self.compiled.ropes[rope].buffer].at(),
            _ => 0,
        }
    }

    pub(crate) fn matrix(&self, need: Need) -> &Matrix {
        let Need::Matrix(id) = need else { unreachable!("compiled as a matrix") };
        self.weights.matrix(id)
    }

    pub(crate) fn cache(&self, need: Need) -> (&Cache, usize) {
        let Need::Cache(i) = need else { unreachable!("compiled as a cache") };
        (&self.caches[i], self.caches[i].shape.group)
    }

    /// Angles of all positions of the call.
    pub(crate) fn ropes(&self) -> Result<()> {
        for (i, rope) in self.compiled.ropes.iter().enumerate() {
            let n = self.sizes.tokens * rope.pairs;
            let positions = self.feeds + self.layout.positions as u64;
            let frequencies = self.weights.vector(rope.frequencies);
            let to = self.vector(Need::Rope(i));
            self.each("angles", n, args![positions, frequencies, to, n, rope.pairs as u32])?;
        }
        Ok(())
    }

    /// The kernels of a node.
    pub(crate) fn step(&self, step: &Step) -> Result<()> {
        match &step.unit {
            Unit::Node(_) => {}
            Unit::Done(_) => return Ok(()),
            Unit::Together(group) => return self.together(step, group),
            Unit::Residual(nodes) => return self.residual(step, nodes),
            Unit::Heads(nodes) => return self.heads(step, nodes),
        }
        let node = &self.method.graph.nodes[step.node];
        let x = |i: usize| self.at(node.inputs[i]);
        let wide = |i: usize| self.channels(node.inputs[i]) as u32;
        let need = |i: usize| step.needs[i];
        let (y, n, channels) = match node.op {
            Op::KvWrite { .. } => (0, 0, 0),
            _ => (self.at(step.makes), self.numbers(step.makes), self.channels(step.makes) as u32),
        };
        match &node.op {
            Op::Embed { scale, start, stride, soft_id, .. } => {
                let soft = if soft_id.is_some() { x(1) } else { 0 };
                let (matrix, soft_id) = (self.matrix(need(0)), soft_id.unwrap_or(0));
                let (raw, packed) = (matrix.raw, matrix.packed);
                if matrix.form == MatrixForm::Raw {
                    let args = args![raw, x(0), soft, y, n, *scale, *start, *stride, soft_id];
                    return self.each("embed_raw", n, args);
                }
                let args = args![packed, x(0), soft, y, n, *scale, *start, *stride, soft_id];
                self.each("embed_packed", n, args)
            }
            Op::SoftMerge => self.each("soft_merge", n, args![x(0), x(1), x(2), y, n, channels]),
            Op::Linear { .. } => {
                let rows = self.rows(step.makes);
                self.linear(self.matrix(need(0)), x(0), self.vector(need(1)), y, rows)
            }
            Op::RmsNorm { eps, offset, width, .. } => {
                let args = args![x(0), self.vector(need(0)), y, *width, *eps, *offset];
                self.launch("rms_norm", self.runs(n, *width), args)
            }
            Op::LayerNorm { eps, width, .. } => {
                let (w, b) = (self.vector(need(0)), self.vector(need(1)));
                let args = args![x(0), w, b, y, *width, *eps];
                self.launch("layer_norm", self.runs(n, *width), args)
            }
            Op::Rope(spec) => {
                let args = args![
                    x(0),
                    self.vector(need(0)),
                    y,
                    n,
                    channels,
                    spec.head_dim,
                    spec.rotated_pairs
                ];
                self.each("rope", n, args)
            }
            Op::AxialRope(spec) => {
                let frequencies = self.vector(need(0));
                let args = args![x(0), x(1), x(2), frequencies, y, n, channels, spec.head_dim];
                self.each("axial_rope", n, args)
            }
            Op::KvWrite { .. } => {
                let (cache, group) = self.cache(need(0));
                let tokens = self.sizes.tokens as u32;
                let args = args![x(0), x(1), cache.arg(), self.places(group)];
                self.launch("kv_write", ([tokens, cache.shape.n_heads as u32, 1], 32, 0), args)
            }
            Op::Attention { .. } => self.attention(step),
            Op::SelfAttention { n_heads, head_dim, scale } => {
                let rows = self.rows(step.makes) as u32;
                let args = args![x(0), x(1), x(2), y, rows, *n_heads, *head_dim, *scale];
                self.launch("self_attention", ([rows, *n_heads, 1], 128, 0), args)
            }
            Op::LocalAttention(spec) => {
                let rows = self.rows(step.makes) as u32;
                let (by_dim, by_distance) = (self.vector(need(0)), self.vector(need(1)));
                let args = args![
                    x(0),
                    x(1),
                    x(2),
                    by_dim,
                    by_distance,
                    y,
                    spec.n_heads,
                    spec.head_dim,
                    spec.window,
                    spec.cap,
                    spec.k_scale
                ];
                self.launch("local_attention", ([rows, spec.n_heads, 1], 128, 0), args)
            }
            Op::Conv2d { width, .. } => {
                let rows = self.rows(node.inputs[0]) as u32;
                let (n_in, n_out) = (wide(0) / width, channels / width.div_ceil(2));
                let w = self.vector(need(0));
                self.each("conv2d", n, args![x(0), w, y, n, rows, *width, n_in, n_out])
            }
            Op::CausalConv1d { weight } => {
                let taps = self.taps(weight);
                let w = self.vector(need(0));
                self.each("causal_conv1d", n, args![x(0), w, y, n, channels, taps])
            }
            Op::PoolRows { size } => self.each("pool_rows", n, args![x(0), y, n, channels, *size]),
            Op::GeluGate => match self.bytes_of(step.makes) {
                Some(bytes) => self.gelu_bytes((x(0), x(1)), step.makes, bytes),
                None => self.each("gelu_gate", n, args![x(0), x(1), y, n]),
            },
            Op::SigmoidGate => self.each("sigmoid_gate", n, args![x(0), x(1), y, n]),
            Op::Activate { function } => {
                let function = match function {
                    Activation::GeluTanh => 0u32,
                    Activation::Silu => 1,
                    Activation::Relu => 2,
                };
                self.each("activate", n, args![x(0), y, n, function])
            }
            Op::Clamp { .. } => {
                let (low, high) = (self.vector(need(0)), self.vector(need(1)));
                self.each("clamp", n, args![x(0), low, high, y, n])
            }
            Op::Standardise { .. } => {
                let (bias, scale) = (self.vector(need(0)), self.vector(need(1)));
                self.each("standardise", n, args![x(0), bias, scale, y, n, channels])
            }
            Op::Add => self.each("add", n, args![x(0), x(1), y, n]),
            Op::Scale { factor } => self.each("scale", n, args![x(0), y, n, *factor]),
            Op::ScaleBy { weight } => {
                let width = self.program_width(weight, channels);
                let w = self.vector(need(0));
                self.each("scale_by", n, args![x(0), w, y, n, width])
            }
            Op::SoftCap { cap } => self.each("soft_cap", n, args![x(0), y, n, *cap]),
            Op::Slice { start, len } => {
                self.each("slice", n, args![x(0), y, n, wide(0), *start, *len])
            }
            Op::Concat => self.each("concat", n, args![x(0), x(1), y, n, wide(0), wide(1)]),
            Op::GatherRows => self.each("gather_rows", n, args![x(0), x(1), y, n, channels]),
            Op::Router { top_k, .. } => {
                let (matrix, scores) = (self.matrix(need(0)), self.vector(need(2)));
                let rows = self.rows(step.makes);
                self.linear(matrix, x(0), 0, scores, rows)?;
                let n_experts = matrix.rows as u32;
                let weights = self.at(ValueId(step.makes.0 + 1));
                let shared = 4 * n_experts.div_ceil(32);
                let args = args![scores, self.vector(need(1)), y, weights, n_experts, *top_k];
                self.launch("router", ([rows as u32, 1, 1], 128, shared), args)
            }
            Op::Experts { .. } => self.experts(step),
            Op::CentroidHead { top, .. } => self.centroid_head(step, *top),
        }
    }

    /// A block for each run of `width` numbers.
    fn runs(&self, n: usize, width: u32) -> ([u32; 3], u32, u32) {
        let threads = width.div_ceil(32).clamp(1, 32) * 32;
        ([(n / width.max(1) as usize) as u32, 1, 1], threads, 0)
    }

    pub(crate) fn places(&self, group: usize) -> u64 {
        self.feeds + self.layout.places[group] as u64
    }

    fn taps(&self, weight: &str) -> u32 {
        self.program.weights()[weight].cols() as u32
    }

    /// Numbers of a factor: one, or one for each channel.
    pub(crate) fn program_width(&self, weight: &str, channels: u32) -> u32 {
        let n = self.program.weights()[weight].n_elements() as u32;
        if n == 1 { 1 } else { channels }
    }

    fn linear(&self, matrix: &Matrix, x: u64, bias: u64, y: u64, rows: usize) -> Result<()> {
        let n_out = matrix.rows as u32;
        let args = args![matrix.raw, x, bias, y, rows as u32, n_out];
        if rows <= FEW_ROWS {
            let grid = [n_out.div_ceil(8), rows.div_ceil(8) as u32, 1];
            return self.launch("linear_few", (grid, 256, 0), args);
        }
        let grid = [n_out.div_ceil(64), rows.div_ceil(64) as u32, 1];
        self.launch("linear_many", (grid, 256, 0), args)
    }

    fn attention(&self, step: &Step) -> Result<()> {
        let node = &self.method.graph.nodes[step.node];
        let Op::Attention { spec, .. } = &node.op else { unreachable!("a node of attention") };
        let (cache, group) = self.cache(step.needs[0]);
        let (y, parts) = (self.at(step.makes), self.vector(step.needs[1]));
        let (tokens, heads) = (self.sizes.tokens, spec.n_heads as usize);
        let most = spec.window.map_or(self.most_keys, |w| self.most_keys.min(w as usize));
        let fill = 4 * self.gpu.context.n_processors as usize / (tokens * heads).max(1);
        let n_parts = fill.min(most.div_ceil(LEAST_KEYS)).min(MOST_PARTS / (tokens * heads).max(1));
        let n_parts = n_parts.max(1) as u32;
        let args = args![
            self.at(node.inputs[0]),
            cache.arg(),
            self.places(group),
            self.feeds + self.layout.pages[group] as u64,
            y,
            parts,
            spec.n_heads,
            spec.scale,
            spec.window.unwrap_or(0),
            u32::from(spec.bidirectional),
            u32::from(spec.own_key)
        ];
        let name = match (cache.shape.kind, spec.head_dim) {
            (KvType::Bf16, 128) => "attention_128",
            (KvType::Bf16, 256) => "attention_256",
            (KvType::Bf16, 512) => "attention_512",
            _ => "attention",
        };
        self.launch(name, ([tokens as u32, spec.n_heads, n_parts], 128, 0), args)?;
        let bytes = self.bytes_of(step.makes);
        if n_parts == 1 {
            return match bytes {
                Some(bytes) => self.quantise(y, bytes, tokens, heads as u32 * spec.head_dim),
                None => Ok(()),
            };
        }
        let bytes = bytes.unwrap_or_default();
        let args = args![parts, y, bytes, n_parts, spec.head_dim];
        self.launch("attention_join", ([(tokens * heads) as u32, 1, 1], 128, 0), args)
    }

    fn centroid_head(&self, step: &Step, top: u32) -> Result<()> {
        let node = &self.method.graph.nodes[step.node];
        let (x, y) = (self.at(node.inputs[0]), self.at(step.makes));
        let rows = self.rows(step.makes);
        let [centroids, embedding] = [0, 1].map(|i| self.matrix(step.needs[i]));
        let [ordering, scores, chosen, found] = [2, 3, 4, 5].map(|i| self.vector(step.needs[i]));
        let (n, vocab) = (centroids.rows as u32, self.channels(step.makes) as u32);
        let per = vocab / n.max(1);
        self.linear(centroids, x, 0, scores, rows)?;
        let shared = 4 * n.div_ceil(32);
        let args = args![scores, chosen, n, top];
        self.launch("centroid_choose", ([rows as u32, 1, 1], 256, shared), args)?;
        let args = args![embedding.raw, x, chosen, ordering, found, top, per];
        let grid = [(top * per).div_ceil(8), rows as u32, 1];
        self.launch("centroid_logits", (grid, 256, 0), args)?;
        let args = args![found, chosen, ordering, y, vocab, top, per];
        self.launch("centroid_fill", ([rows as u32, 1, 1], 1024, 0), args)
    }
}
