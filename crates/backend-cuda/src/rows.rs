//! What stands between products: residual sums with the norms around them, heads, gates.

use lapidary_backend::Result;
use lapidary_program::{Op, ValueId};

use crate::compile::{Need, Step};
use crate::driver::{Arg, args};
use crate::fuse::{HeadNodes, ResidualNodes};
use crate::ops::Work;
use crate::packed::Bytes;

/// `Residual` of `rows.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ResidualArg {
    x: u64,
    a: u64,
    pre: u64,
    scale: u64,
    post: u64,
    sum: u64,
    y: u64,
    pre_eps: f32,
    pre_offset: f32,
    post_eps: f32,
    post_offset: f32,
    channels: u32,
    scale_width: u32,
    has_pre: u32,
    has_post: u32,
}

/// `Heads` of `attention.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct HeadsArg {
    q: u64,
    k: u64,
    v: u64,
    y: u64,
    q_weight: u64,
    k_weight: u64,
    angles: u64,
    places: u64,
    eps: f32,
    q_offset: f32,
    k_offset: f32,
    n_q: u32,
    n_kv: u32,
    head_dim: u32,
    pairs: u32,
    norms_v: u32,
}

// SAFETY: as `rows.cu` declares it; eight words after seven addresses leave no padding.
#[allow(unsafe_code)]
unsafe impl Arg for ResidualArg {}
// SAFETY: as `attention.cu` declares it; eight words after eight addresses leave no padding.
#[allow(unsafe_code)]
unsafe impl Arg for HeadsArg {}

impl Work<'_> {
    /// The numbers of a norm: what is added under the root, and to the weight.
    fn norm(&self, node: Option<usize>) -> (f32, f32) {
        match node.map(|i| &self.method.graph.nodes[i].op) {
            Some(Op::RmsNorm { eps, offset, .. }) => (*eps, *offset),
            _ => (0.0, 0.0),
        }
    }

    fn input(&self, node: usize, i: usize) -> u64 {
        self.at(self.method.graph.nodes[node].inputs[i])
    }

    pub(crate) fn residual(&self, step: &Step, nodes: &ResidualNodes) -> Result<()> {
        let firsts = &self.compiled.firsts;
        let inputs = &self.method.graph.nodes[nodes.add].inputs;
        let other = if inputs[0] == nodes.to { inputs[1] } else { inputs[0] };
        let a = nodes.pre.map_or_else(|| self.at(other), |pre| self.input(pre, 0));
        let channels = self.channels(step.makes) as u32;
        let scale_width = match nodes.scale.map(|i| &self.method.graph.nodes[i].op) {
            Some(Op::ScaleBy { weight }) => self.program_width(weight, channels),
            _ => 0,
        };
        let sum = firsts[nodes.scale.unwrap_or(nodes.add)];
        let post = nodes.post.map(|i| firsts[i]);
        let (pre_eps, pre_offset) = self.norm(nodes.pre);
        let (post_eps, post_offset) = self.norm(nodes.post);
        let arg = ResidualArg {
            x: self.at(nodes.to),
            a,
            pre: self.vector(step.needs[0]),
            scale: self.vector(step.needs[1]),
            post: self.vector(step.needs[2]),
            sum: self.at_if_stored(sum),
            y: post.map_or(0, |value| self.at(value)),
            pre_eps,
            pre_offset,
            post_eps,
            post_offset,
            channels,
            scale_width,
            has_pre: nodes.pre.is_some().into(),
            has_post: nodes.post.is_some().into(),
        };
        let bytes = post.and_then(|value| self.bytes_of(value)).unwrap_or_default();
        let rows = self.rows(step.makes) as u32;
        let threads = channels.div_ceil(32).clamp(1, 32) * 32;
        self.launch("residual", ([rows, 1, 1], threads, 4 * channels), args![arg, bytes])
    }

    pub(crate) fn heads(&self, step: &Step, nodes: &HeadNodes) -> Result<()> {
        let Op::Rope(rope) = &self.method.graph.nodes[nodes.q_rope].op else {
            unreachable!("queries are turned")
        };
        let (eps, q_offset) = self.norm(Some(nodes.q_norm));
        let q = self.method.graph.nodes[nodes.q_norm].inputs[0];
        let n_q = self.channels(q) as u32 / rope.head_dim;
        let mut arg = HeadsArg {
            q: self.at(q),
            k: 0,
            v: 0,
            y: self.at(step.makes),
            q_weight: self.vector(step.needs[0]),
            k_weight: 0,
            angles: self.vector(step.needs[1]),
            places: 0,
            eps,
            q_offset,
            k_offset: 0.0,
            n_q,
            n_kv: 0,
            head_dim: rope.head_dim,
            pairs: rope.rotated_pairs,
            norms_v: 0,
        };
        let mut cache = crate::cache::CacheArg::default();
        if let (Some(write), Some(Need::Cache(_))) = (&nodes.write, step.needs.get(3)) {
            let (own, group) = self.cache(step.needs[3]);
            cache = own.arg();
            arg.k = self.input(write.k_norm, 0);
            arg.v = match write.v_norm {
                Some(norm) => self.input(norm, 0),
                None => self.input(write.write, 1),
            };
            arg.norms_v = write.v_norm.is_some().into();
            arg.k_weight = self.vector(step.needs[2]);
            arg.k_offset = self.norm(Some(write.k_norm)).1;
            arg.places = self.places(group);
            arg.n_kv = own.shape.n_heads as u32;
        }
        let grid = [self.sizes.tokens as u32, n_q + 2 * arg.n_kv, 1];
        self.launch("heads", (grid, 32, 0), args![arg, cache])
    }

    /// `gelu(gate) · up` of few rows, as numbers and as bytes.
    pub(crate) fn gelu_bytes(
        &self,
        (gate, up): (u64, u64),
        made: ValueId,
        bytes: Bytes,
    ) -> Result<()> {
        let (rows, channels) = (self.rows(made) as u32, self.channels(made) as u32);
        let blocks = (rows * channels.div_ceil(64)).div_ceil(4);
        let args = args![gate, up, self.at(made), bytes, rows, channels];
        self.launch("gelu_bytes", ([blocks, 1, 1], 128, 0), args)
    }
}
