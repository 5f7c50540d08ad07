//! The shape rule of each op: what it takes, and what it makes.

use std::collections::BTreeMap;

use crate::dtype::DType;
use crate::encoding::Encoding;
use crate::graph::ValueType;
use crate::op::{AttentionSpec, AxialRopeSpec, Op, RopeSpec};
use crate::program::StateDecl;
use crate::shape::{Dim, Sym};
use crate::weights::WeightDecl;

/// What a rule may look at besides its inputs.
pub(crate) struct Context<'a> {
    pub weights: &'a BTreeMap<String, WeightDecl>,
    pub states: &'a [StateDecl],
}

type Rule<T> = Result<T, String>;

/// The types of the values that `op` makes from inputs of the given types.
pub(crate) fn infer(op: &Op, inputs: &[&ValueType], cx: &Context<'_>) -> Rule<Vec<ValueType>> {
    let args = Args { inputs };
    let one = |t: ValueType| Ok(vec![t]);
    match op {
        Op::Embed { weight, scale, start, stride, soft_id } => {
            finite(*scale, "scale")?;
            if *stride == 0 {
                return Err("stride 0 has one row for every id".into());
            }
            args.count(if soft_id.is_some() { 2 } else { 1 })?;
            let len = args.indices(0)?;
            if soft_id.is_some() {
                args.same_indices(1, len)?;
            }
            let [rows, cols] = cx.matrix(weight)?;
            if let Some(id) = soft_id
                && u64::from(*id) >= rows
            {
                return Err(format!("soft_id {id} is outside the table's {rows} rows"));
            }
            if u64::from(*start) >= rows {
                return Err(format!("start {start} is outside the table's {rows} rows"));
            }
            one(ValueType::F32(vec![len, Dim::Fixed(cols)]))
        }
        Op::SoftMerge => {
            args.count(3)?;
            let (len, channels) = args.rows(0)?;
            args.same_indices(1, len)?;
            let (soft_len, soft) = args.rows(2)?;
            same("channels of soft rows", soft, channels)?;
            same_len("soft rows", soft_len, Sym::Soft)?;
            one(args.same_as(0)?)
        }
        Op::Linear { weight, bias } => {
            args.count(1)?;
            let (len, channels) = args.rows(0)?;
            let [rows, cols] = cx.matrix(weight)?;
            same("input channels", channels, cols)?;
            if let Some(bias) = bias {
                same("bias length", cx.vector(bias)?, rows)?;
            }
            one(ValueType::F32(vec![len, Dim::Fixed(rows)]))
        }
        Op::RmsNorm { weight, eps, offset, width } => {
            args.count(1)?;
            finite(*offset, "offset")?;
            small(*eps, "eps")?;
            let (_, channels) = args.rows(0)?;
            divides("width", u64::from(*width), channels)?;
            if let Some(weight) = weight {
                same("weight length", cx.vector(weight)?, u64::from(*width))?;
            }
            one(args.same_as(0)?)
        }
        Op::LayerNorm { weight, bias, eps, width } => {
            args.count(1)?;
            small(*eps, "eps")?;
            let (_, channels) = args.rows(0)?;
            divides("width", u64::from(*width), channels)?;
            same("weight length", cx.vector(weight)?, u64::from(*width))?;
            if let Some(bias) = bias {
                same("bias length", cx.vector(bias)?, u64::from(*width))?;
            }
            one(args.same_as(0)?)
        }
        Op::AxialRope(AxialRopeSpec { head_dim, theta }) => {
            args.count(3)?;
            let (len, channels) = args.rows(0)?;
            args.same_indices(1, len)?;
            args.same_indices(2, len)?;
            divides("head_dim", u64::from(*head_dim), channels)?;
            if !head_dim.is_multiple_of(4) {
                return Err(format!("head_dim {head_dim} has no two halves of pairs"));
            }
            positive(*theta, "theta")?;
            one(args.same_as(0)?)
        }
        Op::Rope(spec) => {
            args.count(1)?;
            let (_, channels) = args.tokens(0)?;
            rope(spec, channels)?;
            one(args.same_as(0)?)
        }
        Op::KvWrite { state } => {
            args.count(2)?;
            let state = cx.state(state)?;
            let (len, k) = args.tokens(0)?;
            let (v_len, v) = args.rows(1)?;
            if v_len != len {
                return Err("keys and values differ in length".into());
            }
            same("key channels", k, state.channels())?;
            same("value channels", v, state.channels())?;
            Ok(vec![])
        }
        Op::Attention { state, spec } => {
            args.count(1)?;
            let state = cx.state(state)?;
            let (_, channels) = args.tokens(0)?;
            attention(spec, channels, state)?;
            one(args.same_as(0)?)
        }
        Op::SelfAttention { n_heads, head_dim, scale } => {
            finite(*scale, "scale")?;
            args.heads_of_qkv(*n_heads, *head_dim)?;
            one(args.same_as(0)?)
        }
        Op::LocalAttention(spec) => {
            let channels = args.heads_of_qkv(spec.n_heads, spec.head_dim)?;
            finite(spec.q_scale, "q_scale")?;
            finite(spec.k_scale, "k_scale")?;
            positive(f64::from(spec.cap), "cap")?;
            if spec.window == 0 {
                return Err("window 0 sees nothing".into());
            }
            let scale = cx.vector(&spec.per_dim_scale)?;
            same("per_dim_scale length", scale, u64::from(spec.head_dim))?;
            let [rows, cols] = cx.matrix(&spec.relative)?;
            same("rows of relative", rows, channels)?;
            if cols < 4 || !cols.is_multiple_of(2) {
                return Err(format!("{cols} columns of relative are not sines and cosines"));
            }
            one(args.same_as(0)?)
        }
        Op::Conv2d { weight, width } => {
            args.count(1)?;
            let (len, channels) = args.rows(0)?;
            let [made, taken, 3, 3] = cx.dense(weight)? else {
                return Err(format!("weight `{weight}` is not [O, I, 3, 3]"));
            };
            let want = u64::from(*width).checked_mul(*taken).ok_or("size overflows")?;
            same("input channels", channels, want)?;
            let made = u64::from(width.div_ceil(2)).checked_mul(*made).ok_or("size overflows")?;
            let half = len.divided(2).ok_or("length overflows")?;
            one(ValueType::F32(vec![half, Dim::Fixed(made)]))
        }
        Op::CausalConv1d { weight } => {
            args.count(1)?;
            let (_, channels) = args.rows(0)?;
            let [rows, _] = cx.dense(weight)? else {
                return Err(format!("weight `{weight}` is not a matrix"));
            };
            same("rows of weight", *rows, channels)?;
            one(args.same_as(0)?)
        }
        Op::PoolRows { size } => {
            args.count(1)?;
            let (len, channels) = args.rows(0)?;
            let part = len.divided(*size).ok_or_else(|| format!("runs of {size} rows"))?;
            one(ValueType::F32(vec![part, Dim::Fixed(channels)]))
        }
        Op::Activate { .. } => {
            args.count(1)?;
            args.rows(0)?;
            one(args.same_as(0)?)
        }
        Op::Clamp { low, high } => {
            args.count(1)?;
            args.rows(0)?;
            same("length of low", cx.vector(low)?, 1)?;
            same("length of high", cx.vector(high)?, 1)?;
            one(args.same_as(0)?)
        }
        Op::Standardise { bias, scale } => {
            args.count(1)?;
            let (_, channels) = args.rows(0)?;
            same("bias length", cx.vector(bias)?, channels)?;
            same("scale length", cx.vector(scale)?, channels)?;
            one(args.same_as(0)?)
        }
        Op::GeluGate | Op::SigmoidGate | Op::Add => {
            args.count(2)?;
            let (a_len, a) = args.rows(0)?;
            let (b_len, b) = args.rows(1)?;
            same("channels of the second operand", b, a)?;
            if a_len != b_len {
                return Err(format!("operands have lengths {a_len} and {b_len}"));
            }
            one(args.same_as(0)?)
        }
        Op::Scale { factor } => {
            args.count(1)?;
            finite(*factor, "factor")?;
            args.rows(0)?;
            one(args.same_as(0)?)
        }
        Op::ScaleBy { weight } => {
            args.count(1)?;
            let (_, channels) = args.rows(0)?;
            let n = cx.vector(weight)?;
            if n != 1 {
                same("weight length", n, channels)?;
            }
            one(args.same_as(0)?)
        }
        Op::SoftCap { cap } => {
            args.count(1)?;
            positive(f64::from(*cap), "cap")?;
            args.rows(0)?;
            one(args.same_as(0)?)
        }
        Op::Slice { start, len } => {
            args.count(1)?;
            let (rows, channels) = args.rows(0)?;
            let end = u64::from(*start).saturating_add(u64::from(*len));
            if *len == 0 || end > channels {
                return Err(format!("channels {start}..{end} of {channels}"));
            }
            one(ValueType::F32(vec![rows, Dim::Fixed(u64::from(*len))]))
        }
        Op::Concat => {
            args.count(2)?;
            let (a_len, a) = args.rows(0)?;
            let (b_len, b) = args.rows(1)?;
            if a_len != b_len {
                return Err(format!("operands have lengths {a_len} and {b_len}"));
            }
            let channels = a.checked_add(b).ok_or("channel count overflows")?;
            one(ValueType::F32(vec![a_len, Dim::Fixed(channels)]))
        }
        Op::GatherRows => {
            args.count(2)?;
            let (_, channels) = args.tokens(0)?;
            let len = args.indices(1)?;
            one(ValueType::F32(vec![len, Dim::Fixed(channels)]))
        }
        Op::Router { weight, expert_scale, top_k } => {
            args.count(1)?;
            let (len, channels) = args.rows(0)?;
            let [experts, cols] = cx.matrix(weight)?;
            same("input channels", channels, cols)?;
            same("expert_scale length", cx.vector(expert_scale)?, experts)?;
            if *top_k == 0 || u64::from(*top_k) > experts {
                return Err(format!("top_k {top_k} of {experts} experts"));
            }
            let shape = vec![len, Dim::Fixed(u64::from(*top_k))];
            Ok(vec![ValueType::I32(shape.clone()), ValueType::F32(shape)])
        }
        Op::Experts { gate_up, down } => {
            args.count(3)?;
            let (len, channels) = args.rows(0)?;
            let [experts, double, cols] = cx.cube(gate_up)?;
            let [down_experts, down_rows, inner] = cx.cube(down)?;
            same("input channels", channels, cols)?;
            same("experts of down", down_experts, experts)?;
            same("rows of down", down_rows, channels)?;
            same("rows of gate_up", double, inner.checked_mul(2).ok_or("size overflows")?)?;
            let chosen = args.get(1)?;
            let weights = args.get(2)?;
            match (chosen, weights) {
                (ValueType::I32(a), ValueType::F32(b))
                    if a == b && a.len() == 2 && a.first() == Some(&len) => {}
                _ => return Err("expert choices and weights are not a router's".into()),
            }
            one(args.same_as(0)?)
        }
        Op::CentroidHead { centroids, ordering, embedding, top } => {
            args.count(1)?;
            let (len, channels) = args.rows(0)?;
            let [n_centroids, cols] = cx.matrix(centroids)?;
            let [vocab, embed_cols] = cx.matrix(embedding)?;
            same("centroid channels", cols, channels)?;
            same("embedding channels", embed_cols, channels)?;
            same("ordering length", cx.index_vector(ordering)?, vocab)?;
            divides("number of centroids", n_centroids, vocab)?;
            if *top == 0 || u64::from(*top) > n_centroids {
                return Err(format!("top {top} of {n_centroids} centroids"));
            }
            one(ValueType::F32(vec![len, Dim::Fixed(vocab)]))
        }
    }
}

fn rope(spec: &RopeSpec, channels: u64) -> Rule<()> {
    let RopeSpec { head_dim, theta, rotated_pairs, factor } = *spec;
    divides("head_dim", u64::from(head_dim), channels)?;
    if !head_dim.is_multiple_of(2) {
        return Err(format!("head_dim {head_dim} is odd"));
    }
    if rotated_pairs > head_dim.div_euclid(2) {
        return Err(format!("{rotated_pairs} rotated pairs in a head of {head_dim}"));
    }
    if !(theta.is_finite() && theta > 0.0 && factor.is_finite() && factor > 0.0) {
        return Err(format!("theta {theta} and factor {factor} must be positive"));
    }
    Ok(())
}

fn attention(spec: &AttentionSpec, channels: u64, state: &StateDecl) -> Rule<()> {
    let AttentionSpec { n_heads, n_kv_heads, head_dim, scale, window, .. } = *spec;
    finite(scale, "scale")?;
    if n_kv_heads == 0 || n_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
        return Err(format!("{n_heads} heads do not divide among {n_kv_heads} KV heads"));
    }
    let want = u64::from(n_heads).checked_mul(u64::from(head_dim)).ok_or("size overflows")?;
    same("query channels", channels, want)?;
    if n_kv_heads != state.n_kv_heads || head_dim != state.head_dim {
        return Err(format!(
            "{n_kv_heads} KV heads of {head_dim}, but cache `{}` has {} of {}",
            state.name, state.n_kv_heads, state.head_dim
        ));
    }
    if spec.bidirectional && !spec.own_key {
        return Err("sees a block in both directions, but not its own key".into());
    }
    match (window, state.window) {
        (Some(0), _) => Err("window 0 sees nothing".into()),
        (None, Some(kept)) => {
            Err(format!("sees every key, but cache `{}` keeps only {kept}", state.name))
        }
        (Some(seen), Some(kept)) if seen > kept => {
            Err(format!("window {seen}, but cache `{}` keeps only {kept}", state.name))
        }
        _ => Ok(()),
    }
}

struct Args<'a> {
    inputs: &'a [&'a ValueType],
}

impl Args<'_> {
    fn count(&self, n: usize) -> Rule<()> {
        if self.inputs.len() == n {
            Ok(())
        } else {
            Err(format!("takes {n} inputs, has {}", self.inputs.len()))
        }
    }

    fn get(&self, i: usize) -> Rule<&ValueType> {
        self.inputs.get(i).copied().ok_or_else(|| format!("input {i} is missing"))
    }

    fn same_as(&self, i: usize) -> Rule<ValueType> {
        self.get(i).cloned()
    }

    /// Length of an index vector.
    fn indices(&self, i: usize) -> Rule<Dim> {
        match self.get(i)? {
            ValueType::I32(shape) => match shape.as_slice() {
                [len] => Ok(*len),
                _ => Err(format!("input {i} is not a vector")),
            },
            ValueType::F32(_) => Err(format!("input {i} is not indices")),
        }
    }

    fn same_indices(&self, i: usize, len: Dim) -> Rule<()> {
        let got = self.indices(i)?;
        if got == len { Ok(()) } else { Err(format!("input {i} has length {got}, not {len}")) }
    }

    /// Length and channels of an activation.
    fn rows(&self, i: usize) -> Rule<(Dim, u64)> {
        match self.get(i)? {
            ValueType::F32(shape) => match shape.as_slice() {
                [len, Dim::Fixed(channels)] => Ok((*len, *channels)),
                _ => Err(format!("input {i} is not [length, channels]")),
            },
            ValueType::I32(_) => Err(format!("input {i} is not activations")),
        }
    }
}

impl Args<'_> {
    /// Channels of an activation that has a row for each token: only those stand at a position.
    fn tokens(&self, i: usize) -> Rule<(Dim, u64)> {
        let (len, channels) = self.rows(i)?;
        same_len("rows", len, Sym::Tokens)?;
        Ok((len, channels))
    }

    /// Queries, keys and values of the same length and of so many heads; their channels.
    fn heads_of_qkv(&self, n_heads: u32, head_dim: u32) -> Rule<u64> {
        self.count(3)?;
        let want = u64::from(n_heads).checked_mul(u64::from(head_dim)).ok_or("size overflows")?;
        if want == 0 {
            return Err(format!("{n_heads} heads of {head_dim}"));
        }
        let (len, channels) = self.rows(0)?;
        same("query channels", channels, want)?;
        for i in 1..3 {
            if self.rows(i)? != (len, channels) {
                return Err("keys and values are not shaped as queries are".into());
            }
        }
        Ok(want)
    }
}

impl Context<'_> {
    fn weight(&self, name: &str) -> Rule<&WeightDecl> {
        self.weights.get(name).ok_or_else(|| format!("weight `{name}` is not declared"))
    }

    fn floats(&self, name: &str) -> Rule<&WeightDecl> {
        let decl = self.weight(name)?;
        match decl.encoding {
            Encoding::Dense(d) if !d.is_float() => {
                Err(format!("weight `{name}` holds {}, not floats", d.name()))
            }
            _ => Ok(decl),
        }
    }

    fn matrix(&self, name: &str) -> Rule<[u64; 2]> {
        let decl = self.floats(name)?;
        <[u64; 2]>::try_from(decl.shape.as_slice())
            .map_err(|_| format!("weight `{name}` has shape {:?}, not a matrix", decl.shape))
    }

    fn cube(&self, name: &str) -> Rule<[u64; 3]> {
        let decl = self.floats(name)?;
        <[u64; 3]>::try_from(decl.shape.as_slice())
            .map_err(|_| format!("weight `{name}` has shape {:?}, not three lengths", decl.shape))
    }

    fn vector(&self, name: &str) -> Rule<u64> {
        let decl = self.floats(name)?;
        match (decl.shape.as_slice(), decl.encoding) {
            ([n], Encoding::Dense(_)) => Ok(*n),
            ([_], Encoding::Quant(_)) => Err(format!("weight `{name}` is a quantised vector")),
            _ => Err(format!("weight `{name}` has shape {:?}, not a vector", decl.shape)),
        }
    }

    /// The lengths of a weight that is not quantised.
    fn dense(&self, name: &str) -> Rule<&[u64]> {
        let decl = self.floats(name)?;
        match decl.encoding {
            Encoding::Dense(_) => Ok(decl.shape.as_slice()),
            Encoding::Quant(_) => Err(format!("weight `{name}` is quantised")),
        }
    }

    fn index_vector(&self, name: &str) -> Rule<u64> {
        let decl = self.weight(name)?;
        match (decl.shape.as_slice(), decl.encoding) {
            ([n], Encoding::Dense(DType::I64)) => Ok(*n),
            _ => Err(format!("weight `{name}` is not a vector of i64")),
        }
    }

    fn state(&self, name: &str) -> Rule<&StateDecl> {
        self.states
            .iter()
            .find(|s| s.name == name)
            .ok_or_else(|| format!("state `{name}` is not declared"))
    }
}

fn small(x: f32, what: &str) -> Rule<()> {
    if x.is_finite() && x >= 0.0 {
        Ok(())
    } else {
        Err(format!("{what} {x} is not a small positive number"))
    }
}

fn positive(x: f64, what: &str) -> Rule<()> {
    if x.is_finite() && x > 0.0 { Ok(()) } else { Err(format!("{what} {x} is not positive")) }
}

fn same(what: &str, got: u64, want: u64) -> Rule<()> {
    if got == want { Ok(()) } else { Err(format!("{what}: {got}, not {want}")) }
}

fn same_len(what: &str, got: Dim, want: Sym) -> Rule<()> {
    if got == Dim::Sym(want) { Ok(()) } else { Err(format!("{what}: {got} of them, not {want}")) }
}

fn divides(what: &str, part: u64, whole: u64) -> Rule<()> {
    if part != 0 && whole.is_multiple_of(part) {
        Ok(())
    } else {
        Err(format!("{what} {part} does not divide {whole}"))
    }
}

fn finite(x: f32, what: &str) -> Rule<()> {
    if x.is_finite() { Ok(()) } else { Err(format!("{what} is {x}")) }
}
