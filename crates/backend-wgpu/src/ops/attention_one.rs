//! Attention of a single token over few keys, with all that comes before it: one kernel in the place
//! of three.

use lapidary_program::{AttentionSpec, Dim, Op, RopeSpec};

use super::attention::has_horizons;
use super::kernel::Kernel;
use crate::adapter::Abilities;
use crate::cache::CacheShape;
use crate::compile::MethodCompiler;
use crate::linear::Tuning;
use crate::shader::Shader;
use crate::step::{Binding, Count, Keys, Value, When, Work};

/// Buffers that the kernel binds at most.
const BUFFERS: u32 = 13;
/// Numbers of the keys that one workgroup goes over at most: what two kernels more would take.
const MOST_NUMBERS: u64 = 1024 * 256;
/// Invocations of a workgroup at most.
const WORKGROUP: u32 = 512;

/// A query's norm and turn, and what it is compared with.
pub(crate) struct One<'a> {
    pub spec: &'a AttentionSpec,
    pub rope: &'a RopeSpec,
    pub q_norm: &'a Op,
    /// The norm of keys, and of values if they have one, where those are written here.
    pub kv_norms: Option<(&'a Op, Option<&'a Op>)>,
    pub state: &'a str,
}

/// What the kernel reads and makes.
pub(crate) struct Operands {
    pub q: Value,
    /// Keys and values before their norms, where they are written here.
    pub kv: Option<[Value; 2]>,
    /// Angles.
    pub table: Value,
    pub y: Value,
}

impl One<'_> {
    /// Whether one kernel can do it.
    pub(crate) fn fits(&self, abilities: &Abilities) -> bool {
        let width = self.spec.head_dim;
        let is_norm = |norm: &Op, weighs: bool| match norm {
            Op::RmsNorm { weight, width: own, .. } => *own == width && weight.is_some() == weighs,
            _ => false,
        };
        abilities.max_buffers >= BUFFERS
            && Tuning { abilities }.subgroup() >= 8
            && self.rope.head_dim == width
            && width.is_multiple_of(8)
            && width <= 512
            && self.rope.rotated_pairs.is_multiple_of(4)
            && self.rope.rotated_pairs > 0
            && is_norm(self.q_norm, true)
            && self
                .kv_norms
                .is_none_or(|(k, v)| is_norm(k, true) && v.is_none_or(|v| is_norm(v, false)))
            && shape(abilities, width).is_some()
    }

    /// The most keys of a token for which it is better than several kernels.
    pub(crate) fn most_keys(&self, abilities: &Abilities, cache: &CacheShape) -> u64 {
        let most = MOST_NUMBERS / u64::from(self.spec.head_dim);
        let most = abilities.max_keys.unwrap_or(most);
        let seen = self.spec.window.map_or(cache.most_seen as u64, u64::from);
        // Who never sees more needs no others.
        if seen <= most { u64::MAX } else { most }
    }

    /// The kernel, for calls of one token that sees `most_keys` at most.
    pub(crate) fn compile(&self, cx: &mut MethodCompiler<'_>, x: &Operands) {
        let (id, cache) = cx.cache(self.state);
        let (spec, y) = (self.spec, x.y);
        let Some((invocations, at_once)) = shape(cx.abilities, spec.head_dim) else {
            unreachable!("whether it fits was asked before")
        };
        let kv_norms = self.kv_norms.map_or([None; 2], |(k, v)| [Some(k), v]);
        let (mut eps, mut offsets) = ([0; 4], [0; 4]);
        let mut weights = Vec::new();
        for (i, norm) in [Some(self.q_norm), kv_norms[0], kv_norms[1]].into_iter().enumerate() {
            let Some(Op::RmsNorm { weight, eps: own, offset, .. }) = norm else { continue };
            eps[i] = own.to_bits();
            offsets[i] = offset.to_bits();
            weights.extend(weight.as_deref().map(|w| cx.vector(w)));
        }
        let bytes = cx.bytes(y);
        let variant = Variant {
            head_dim: spec.head_dim,
            writes: x.kv.is_some(),
            v_norm: kv_norms[1].is_some(),
            halves: cache.halves,
            horizons: has_horizons(spec),
            bytes: bytes.map(|_| y.channels as u32),
            subgroup: Tuning { abilities: cx.abilities }.subgroup() as u32,
            invocations,
            at_once,
        };
        let len = cx.len(y.rows);
        let (places, pages) = (cx.places(&cache, y.rows), cx.pages(&cache));
        let mut kernel = Kernel::new(variant.shader())
            .words(&[len, spec.n_heads, spec.n_kv_heads, spec.scale.to_bits()])
            .words(&[spec.window.unwrap_or(0), spec.own_key.into()])
            .words(&[self.rope.rotated_pairs, 0])
            .words(&eps)
            .words(&offsets)
            .read(x.q)
            .reads(weights[0])
            .read(x.table)
            .read(places)
            .reads(pages)
            .write(y);
        kernel = match x.kv {
            Some([k, v]) => kernel
                .writes(Binding::Keys(id))
                .writes(Binding::Values(id))
                .read(k)
                .reads(weights[1])
                .read(v),
            None => kernel.reads(Binding::Keys(id)).reads(Binding::Values(id)),
        };
        kernel = bytes.into_iter().flatten().fold(kernel, Kernel::write);
        let keys = Keys::Most(self.most_keys(cx.abilities, &cache));
        let work = Work::Keys(y.rows, 2 * y.channels as u64, cache.most_seen as u64);
        kernel.when(When { rows: y.rows, least: 1, most: 1, keys }).groups(
            cx,
            Count::of(Dim::Fixed(1), spec.n_heads as usize, 1),
            work,
        );
    }
}

/// What the kernel depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub head_dim: u32,
    pub writes: bool,
    pub v_norm: bool,
    pub halves: bool,
    pub horizons: bool,
    /// The channels of a row that is also made in bytes.
    pub bytes: Option<u32>,
    pub subgroup: u32,
    pub invocations: u32,
    /// Keys that a subgroup goes over at once.
    pub at_once: u32,
}

impl Variant {
    pub(crate) fn shader(&self) -> Shader {
        Shader::new("attention_one")
            .unchecked()
            .with("SUBGROUPS", true)
            .with("WRITES", self.writes)
            .with("V_NORM", self.v_norm)
            .with("HALVES", self.halves)
            .with("HORIZONS", self.horizons)
            .with("BYTES", self.bytes.is_some())
            .constant("HD", self.head_dim)
            .constant("SG", self.subgroup)
            .constant("WG", self.invocations)
            .constant("UN", self.at_once)
            .constant("J", (self.head_dim / 8).div_ceil(self.subgroup))
            .constant("WR", self.writes.into())
            .constant("CHANNELS", self.bytes.unwrap_or(0))
    }
}

/// Invocations of a workgroup, as many as the sums of its subgroups have room for, and the keys that
/// each subgroup goes over at once, as many as there are registers for.
pub(crate) fn shape(abilities: &Abilities, head_dim: u32) -> Option<(u32, u32)> {
    let subgroup = Tuning { abilities }.subgroup() as u32;
    let fits = |invocations: &u32| {
        let subgroups = invocations / subgroup.max(1);
        let bytes = subgroups * (4 * head_dim + 8);
        *invocations <= abilities.max_invocations
            && (1..=subgroup).contains(&subgroups)
            && bytes <= abilities.max_workgroup_bytes
    };
    let invocations = [WORKGROUP, 256, 128, 64, 32].into_iter().find(fits)?;
    let pairs = (head_dim / 8).div_ceil(subgroup);
    Some((invocations, (4 / pairs).clamp(1, 4)))
}
