//! Small random decoders, built by hand from ops: between them they have every op of `forward`,
//! sliding and full layers, caches that several layers read, and dense and quantised weights.

use std::sync::Arc;

use lapidary_program::{
    AttentionSpec, DType, Encoding, GraphBuilder, Op, Program, QuantLayout, Result, RopeSpec, Sym,
    ValueId, ValueType, input, method, output,
};

use crate::lab::{Lab, indices};
use crate::random::Random;

const VOCAB: usize = 101;
const HIDDEN: usize = 48;
const INNER: usize = 80;
const HEADS: usize = 4;
const CONTEXT: u32 = 256;
/// Tokens of a prompt: many windows, and no multiple of anything.
const PROMPT: usize = 83;
/// The same for the first decoder: more than a page.
const LONG_PROMPT: usize = 149;

/// A decoder with a prompt.
pub(crate) struct Model {
    pub name: &'static str,
    pub program: Arc<Program>,
    pub tokens: Vec<i32>,
}

/// One decoder.
struct Decoder {
    name: &'static str,
    seed: u64,
    encoding: Encoding,
    /// For each layer: whether it sees everything, and the earlier layer whose cache it reads
    /// instead of one of its own.
    layers: &'static [(bool, Option<usize>)],
    kv_heads: usize,
    window: u32,
    /// Added to norm weights.
    offset: f32,
    soft_cap: Option<f32>,
    /// Per-layer embeddings, soft tokens and a scale at the end of each layer.
    per_layer: Option<usize>,
    n_experts: Option<usize>,
}

/// All decoders, each with a prompt.
pub(crate) fn all() -> Vec<Model> {
    let quantised = QuantLayout::affine(4, 16, DType::Bf16);
    let decoders = [
        Decoder {
            name: "dense",
            seed: 1,
            encoding: Encoding::Dense(DType::Bf16),
            layers: &[(false, None), (false, None), (true, None), (false, None)],
            kv_heads: 1,
            window: 7,
            offset: 1.0,
            soft_cap: None,
            per_layer: None,
            n_experts: None,
        },
        Decoder {
            name: "quantised",
            seed: 2,
            encoding: Encoding::Quant(quantised),
            layers: &[(false, None), (true, None), (false, Some(0)), (true, Some(1))],
            kv_heads: 2,
            window: 16,
            offset: 0.0,
            soft_cap: Some(30.0),
            per_layer: Some(16),
            n_experts: None,
        },
        Decoder {
            name: "experts",
            seed: 3,
            encoding: Encoding::Dense(DType::F32),
            layers: &[(false, None), (true, None)],
            kv_heads: 4,
            window: 1,
            offset: 0.0,
            soft_cap: None,
            per_layer: None,
            n_experts: Some(6),
        },
    ];
    let model = |d: &Decoder| {
        let len = if d.seed == 1 { LONG_PROMPT } else { PROMPT };
        let tokens = Random::new(d.seed).indices(len, VOCAB);
        Model { name: d.name, program: d.program(), tokens }
    };
    decoders.iter().map(model).collect()
}

impl Decoder {
    fn head_dim(&self, full: bool) -> usize {
        if full { 32 } else { 16 }
    }

    fn program(&self) -> Arc<Program> {
        let mut lab = Lab::new(self.seed);
        self.weights(&mut lab);
        for (i, (full, source)) in self.layers.iter().enumerate() {
            if source.is_none() {
                let window = (!full).then_some(self.window);
                lab.state(&cache(i), self.kv_heads, self.head_dim(*full), window);
            }
        }
        lab.method(method::FORWARD, CONTEXT, |graph| self.forward(graph));
        lab.finish(VOCAB as u32, CONTEXT)
    }

    fn weights(&self, lab: &mut Lab) {
        let mut matrix = |name: &str, shape: &[usize]| {
            let cols = shape[shape.len() - 1] as f32;
            lab.weight(name, shape, self.encoding, 1.0 / cols.sqrt());
        };
        matrix("embed", &[VOCAB, HIDDEN]);
        if let Some(p) = self.per_layer {
            matrix("ple", &[VOCAB, p * self.layers.len()]);
            matrix("ple_project", &[p * self.layers.len(), HIDDEN]);
        }
        for (i, (full, source)) in self.layers.iter().enumerate() {
            let (q, kv) = (HEADS * self.head_dim(*full), self.kv_heads * self.head_dim(*full));
            matrix(&weight(i, "q"), &[q, HIDDEN]);
            matrix(&weight(i, "o"), &[HIDDEN, q]);
            if source.is_none() {
                matrix(&weight(i, "k"), &[kv, HIDDEN]);
                matrix(&weight(i, "v"), &[kv, HIDDEN]);
            }
            matrix(&weight(i, "gate"), &[INNER, HIDDEN]);
            matrix(&weight(i, "up"), &[INNER, HIDDEN]);
            matrix(&weight(i, "down"), &[HIDDEN, INNER]);
            if let Some(p) = self.per_layer {
                matrix(&weight(i, "ple_gate"), &[p, HIDDEN]);
                matrix(&weight(i, "ple_up"), &[HIDDEN, p]);
            }
            if let Some(n) = self.n_experts {
                matrix(&weight(i, "router"), &[n, HIDDEN]);
                matrix(&weight(i, "experts"), &[n, 32, HIDDEN]);
                matrix(&weight(i, "experts_down"), &[n, HIDDEN, 16]);
            }
        }
        let mut vector = |name: &str, len: usize| {
            let near_one = |x: f32| 1.0 - self.offset + 0.2 * x;
            let values: Vec<f32> = lab.random.normals(len, 1.0).into_iter().map(near_one).collect();
            lab.dense(name, &[len], DType::Bf16, &values);
        };
        vector("norm", HIDDEN);
        for (i, (full, _)) in self.layers.iter().enumerate() {
            for name in ["norm_in", "norm_attn", "norm_mlp", "norm_out"] {
                vector(&weight(i, name), HIDDEN);
            }
            vector(&weight(i, "norm_q"), self.head_dim(*full));
            vector(&weight(i, "norm_k"), self.head_dim(*full));
            vector(&weight(i, "scalar"), 1);
            if let Some(n) = self.n_experts {
                vector(&weight(i, "expert_scale"), n);
            }
        }
    }

    fn forward(&self, graph: &mut GraphBuilder<'_>) -> Result<()> {
        let tokens = graph.input(input::TOKENS, indices());
        let rows = graph.input(input::ROWS, ValueType::indices(Sym::Rows));
        let soft = self.per_layer.map(|_| {
            let index = graph.input(input::SOFT_INDEX, indices());
            (index, graph.input(input::SOFT, ValueType::rows(Sym::Soft, HIDDEN as u64)))
        });
        let mut b = Builder { decoder: self, graph };
        let scale = (HIDDEN as f32).sqrt();
        let embed = |weight: &str, soft_id| Op::Embed {
            weight: weight.into(),
            scale,
            start: 0,
            stride: 1,
            soft_id,
        };
        let mut x = b.node("embed", embed("embed", None), &[tokens])?;
        let mut per_layer = None;
        if let Some((index, soft)) = soft {
            x = b.node("soft", Op::SoftMerge, &[x, index, soft])?;
            let ids = b.node("ple", embed("ple", Some(0)), &[tokens, index])?;
            let context = b.linear("ple_project", x)?;
            let sum = b.node("ple_sum", Op::Add, &[context, ids])?;
            per_layer = Some(b.node("ple_scale", Op::Scale { factor: 0.7 }, &[sum])?);
        }
        for i in 0..self.layers.len() {
            x = b.layer(i, x, per_layer)?;
        }
        let x = b.node("rows", Op::GatherRows, &[x, rows])?;
        let x = b.norm("norm", x, HIDDEN)?;
        let op = Op::Linear { weight: "embed".into(), bias: None };
        let mut logits = b.node("head", op, &[x])?;
        if let Some(cap) = self.soft_cap {
            logits = b.node("cap", Op::SoftCap { cap }, &[logits])?;
        }
        graph.output(output::LOGITS, logits);
        Ok(())
    }
}

struct Builder<'a, 'g, 'w> {
    decoder: &'a Decoder,
    graph: &'g mut GraphBuilder<'w>,
}

impl Builder<'_, '_, '_> {
    fn node(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> Result<ValueId> {
        self.graph.node(name, op, inputs)
    }

    fn linear(&mut self, weight: &str, x: ValueId) -> Result<ValueId> {
        self.node(weight, Op::Linear { weight: weight.into(), bias: None }, &[x])
    }

    fn norm(&mut self, weight: &str, x: ValueId, width: usize) -> Result<ValueId> {
        let (offset, width) = (self.decoder.offset, width as u32);
        let op = Op::RmsNorm { weight: Some(weight.into()), eps: 1e-6, offset, width };
        self.node(weight, op, &[x])
    }

    fn layer(&mut self, i: usize, x: ValueId, per_layer: Option<ValueId>) -> Result<ValueId> {
        let h = self.norm(&weight(i, "norm_in"), x, HIDDEN)?;
        let a = self.attention(i, h)?;
        let a = self.norm(&weight(i, "norm_attn"), a, HIDDEN)?;
        let x = self.node(&weight(i, "add_attn"), Op::Add, &[x, a])?;
        let h = self.norm(&weight(i, "norm_mlp"), x, HIDDEN)?;
        let gate = self.linear(&weight(i, "gate"), h)?;
        let up = self.linear(&weight(i, "up"), h)?;
        let h2 = self.node(&weight(i, "gelu"), Op::GeluGate, &[gate, up])?;
        let mut m = self.linear(&weight(i, "down"), h2)?;
        if self.decoder.n_experts.is_some() {
            m = self.experts(i, h, m)?;
        }
        let m = self.norm(&weight(i, "norm_out"), m, HIDDEN)?;
        let mut x = self.node(&weight(i, "add_mlp"), Op::Add, &[x, m])?;
        if let (Some(all), Some(p)) = (per_layer, self.decoder.per_layer) {
            let op = Op::Slice { start: (i * p) as u32, len: p as u32 };
            let mine = self.node(&weight(i, "ple_slice"), op, &[all])?;
            let gate = self.linear(&weight(i, "ple_gate"), x)?;
            let gated = self.node(&weight(i, "ple_gelu"), Op::GeluGate, &[gate, mine])?;
            let added = self.linear(&weight(i, "ple_up"), gated)?;
            x = self.node(&weight(i, "ple_add"), Op::Add, &[x, added])?;
        }
        self.node(&weight(i, "scaled"), Op::ScaleBy { weight: weight(i, "scalar") }, &[x])
    }

    fn experts(&mut self, i: usize, h: ValueId, m: ValueId) -> Result<ValueId> {
        let op = Op::Router {
            weight: weight(i, "router"),
            expert_scale: weight(i, "expert_scale"),
            top_k: 2,
        };
        let chosen = self.node(&weight(i, "router"), op, &[h])?;
        let weights = ValueId(chosen.0 + 1);
        let op = Op::Experts { gate_up: weight(i, "experts"), down: weight(i, "experts_down") };
        let e = self.node(&weight(i, "experts"), op, &[h, chosen, weights])?;
        self.node(&weight(i, "add_experts"), Op::Add, &[m, e])
    }

    fn attention(&mut self, i: usize, h: ValueId) -> Result<ValueId> {
        let (full, source) = self.decoder.layers[i];
        let head_dim = self.decoder.head_dim(full);
        let rope = Op::Rope(RopeSpec {
            head_dim: head_dim as u32,
            theta: if full { 1e6 } else { 1e4 },
            rotated_pairs: (if full { head_dim / 8 } else { head_dim / 2 }) as u32,
            factor: 1.0,
        });
        let state = cache(source.unwrap_or(i));
        if source.is_none() {
            let k = self.linear(&weight(i, "k"), h)?;
            let k = self.norm(&weight(i, "norm_k"), k, head_dim)?;
            let k = self.node(&weight(i, "rope_k"), rope.clone(), &[k])?;
            let v = self.linear(&weight(i, "v"), h)?;
            let op = Op::KvWrite { state: state.clone() };
            self.node(&weight(i, "write"), op, &[k, v])?;
        }
        let q = self.linear(&weight(i, "q"), h)?;
        let q = self.norm(&weight(i, "norm_q"), q, head_dim)?;
        let q = self.node(&weight(i, "rope_q"), rope, &[q])?;
        let spec = AttentionSpec {
            n_heads: HEADS as u32,
            n_kv_heads: self.decoder.kv_heads as u32,
            head_dim: head_dim as u32,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: (!full).then_some(self.decoder.window),
            bidirectional: false,
            own_key: true,
        };
        let op = Op::Attention { state, spec };
        let a = self.node(&weight(i, "attention"), op, &[q])?;
        self.linear(&weight(i, "o"), a)
    }
}

fn weight(layer: usize, name: &str) -> String {
    format!("{layer}.{name}")
}

fn cache(layer: usize) -> String {
    format!("{layer}.kv")
}
