//! Full validation, always on: whatever passes here, a backend may use without asking again.

use std::collections::{BTreeMap, HashSet};

use crate::answer::AnswerFormat;
use crate::dtype::DType;
use crate::encoding::{Encoding, QuantLayout, ScaleFormat};
use crate::error::{Error, Result};
use crate::graph::ValueType;
use crate::media_rules as media;
use crate::metadata::Metadata;
use crate::op::{Op, input, output};
use crate::origin;
use crate::program::{Description, Method, StateDecl, method};
use crate::rules::{Context, infer};
use crate::shape::{Dim, Sym};
use crate::weights::WeightDecl;

/// Lengths of a weight or a value stay below this, so that products of two fit in an `i64`.
const MAX_LEN: u64 = 1 << 31;
/// A weight's lengths.
const MAX_RANK: usize = 4;
/// The most bytes of one weight: far above any real one, far below overflow.
const MAX_WEIGHT_BYTES: u64 = 1 << 42;
/// Methods, inputs and outputs of one program are few.
const MAX_FEW: usize = 64;

pub(crate) fn description(d: &mut Description) -> Result<()> {
    for (name, decl) in &d.weights {
        weight(name, decl)?;
    }
    states(&d.states)?;
    if d.methods.is_empty() || d.methods.len() > MAX_FEW {
        return Err(Error::Program(format!("it has {} methods", d.methods.len())));
    }
    let cx = Context { weights: &d.weights, states: &d.states };
    for (name, m) in &mut d.methods {
        let types = graph(name, m, &cx)?;
        m.types = types;
    }
    metadata(&d.metadata)?;
    windows(&d.metadata, &d.states)?;
    for name in [method::FORWARD, method::DRAFT] {
        if let Some(m) = d.methods.get(name) {
            signature(name, m)?;
        }
    }
    media::check(d)?;
    if let Some(forward) = d.methods.get(method::FORWARD) {
        vocabulary(&d.metadata, forward, &d.weights)?;
    }
    Ok(())
}

pub(crate) fn weight(name: &str, decl: &WeightDecl) -> Result<()> {
    let fail = |what: String| Err(Error::weight(name, what));
    if name.is_empty() || name.len() > 512 {
        return fail(format!("its name has {} bytes", name.len()));
    }
    if decl.shape.is_empty() || decl.shape.len() > MAX_RANK {
        return fail(format!("rank {} is not between 1 and {MAX_RANK}", decl.shape.len()));
    }
    if let Some(bad) = decl.shape.iter().find(|n| **n == 0 || **n >= MAX_LEN) {
        return fail(format!("length {bad} in shape {:?}", decl.shape));
    }
    match decl.checked_elements() {
        Some(n) if n <= MAX_WEIGHT_BYTES.div_euclid(8) => {}
        _ => return fail(format!("shape {:?} is too large", decl.shape)),
    }
    match decl.encoding {
        Encoding::Dense(_) => Ok(()),
        Encoding::Quant(q) => {
            let cols = decl.shape.last().copied().unwrap_or(1);
            quant(&q, cols).map_err(|what| Error::weight(name, what))
        }
    }
}

fn quant(q: &QuantLayout, cols: u64) -> std::result::Result<(), String> {
    if !(2..=8).contains(&q.bits) {
        return Err(format!("{} bits", q.bits));
    }
    if q.bits < 8 && u16::from(q.offset) >= 1u16.wrapping_shl(u32::from(q.bits)) {
        return Err(format!("offset {} with {} bits", q.offset, q.bits));
    }
    if q.group == 0 || !cols.is_multiple_of(u64::from(q.group)) {
        return Err(format!("group {} does not divide the row of {cols}", q.group));
    }
    let float = |d: DType| {
        if d.is_float() { Ok(()) } else { Err(format!("scales in {}", d.name())) }
    };
    match q.scale {
        ScaleFormat::Plain { dtype } => float(dtype),
        ScaleFormat::Nested { per, sub, dtype } => {
            float(dtype)?;
            if !matches!(sub, DType::I8 | DType::U8) {
                return Err(format!("nested scales in {}", sub.name()));
            }
            let groups = cols.div_euclid(u64::from(q.group));
            if per == 0 || !groups.is_multiple_of(u64::from(per)) {
                return Err(format!("{per} groups per scale do not divide {groups}"));
            }
            Ok(())
        }
    }
}

fn states(states: &[StateDecl]) -> Result<()> {
    let mut names = HashSet::new();
    for s in states {
        let fail = |what: String| Err(Error::Program(format!("state `{}`: {what}", s.name)));
        if s.name.is_empty() || !names.insert(s.name.as_str()) {
            return fail("its name is empty or not unique".into());
        }
        let too_long = |n: u32| n == 0 || n >= (1 << 16);
        if too_long(s.n_kv_heads) || too_long(s.head_dim) {
            return fail(format!("{} heads of {}", s.n_kv_heads, s.head_dim));
        }
        if s.window == Some(0) {
            return fail("window 0 keeps nothing".into());
        }
    }
    Ok(())
}

fn graph(name: &str, m: &Method, cx: &Context<'_>) -> Result<Vec<ValueType>> {
    let g = &m.graph;
    let fail = |what: String| Err(Error::Program(format!("method `{name}`: {what}")));
    if m.max_chunk == 0 || u64::from(m.max_chunk) >= MAX_LEN {
        return fail(format!("max_chunk {}", m.max_chunk));
    }
    if g.inputs.len() > MAX_FEW || g.outputs.is_empty() || g.outputs.len() > MAX_FEW {
        return fail(format!("{} inputs, {} outputs", g.inputs.len(), g.outputs.len()));
    }
    let mut names = HashSet::new();
    let mut types: Vec<ValueType> = Vec::new();
    for input in &g.inputs {
        if input.name.is_empty() || !names.insert(input.name.as_str()) {
            return fail(format!("input name `{}` is empty or not unique", input.name));
        }
        let shape = input.value_type.shape();
        let first_is_sym = matches!(shape.first(), Some(Dim::Sym(_)));
        let rest_fixed =
            shape.iter().skip(1).all(|d| matches!(d, Dim::Fixed(n) if (1..MAX_LEN).contains(n)));
        if !first_is_sym || !rest_fixed || shape.len() > 2 {
            return fail(format!("input `{}` has shape {shape:?}", input.name));
        }
        types.push(input.value_type.clone());
    }
    let mut node_names = HashSet::new();
    let mut written: HashSet<&str> = HashSet::new();
    for node in &g.nodes {
        let fail =
            |what: String| Err(Error::Op { method: name.to_string(), op: node.name.clone(), what });
        if node.name.is_empty() || !node_names.insert(node.name.as_str()) {
            return fail("its name is empty or not unique".into());
        }
        let mut inputs = Vec::with_capacity(node.inputs.len().min(8));
        for id in &node.inputs {
            match types.get(id.index()) {
                Some(t) => inputs.push(t),
                None => return fail(format!("reads value {} before it is made", id.0)),
            }
        }
        let made = match infer(&node.op, &inputs, cx) {
            Ok(made) => made,
            Err(what) => return fail(what),
        };
        match &node.op {
            Op::KvWrite { state } if !written.insert(state) => {
                return fail(format!("writes cache `{state}` a second time"));
            }
            Op::Attention { state, spec } if spec.own_key && !written.contains(state.as_str()) => {
                return fail(format!("reads its own key of cache `{state}`, which is not written"));
            }
            _ => {}
        }
        for t in &made {
            if t.shape().iter().any(|d| matches!(d, Dim::Fixed(n) if *n == 0 || *n >= MAX_LEN)) {
                return fail(format!("makes a value of shape {:?}", t.shape()));
            }
        }
        types.extend(made);
    }
    if let Err((op, what)) = origin::check(g, cx) {
        return Err(Error::Op { method: name.to_string(), op, what });
    }
    let mut out_names = HashSet::new();
    for out in &g.outputs {
        if out.name.is_empty() || !out_names.insert(out.name.as_str()) {
            return fail(format!("output name `{}` is empty or not unique", out.name));
        }
        if types.get(out.value.index()).is_none() {
            return fail(format!(
                "output `{}` is value {}, which is not made",
                out.name, out.value.0
            ));
        }
    }
    Ok(types)
}

fn metadata(m: &Metadata) -> Result<()> {
    let fail = |what: String| Err(Error::Program(what));
    if m.max_context_len == 0 || u64::from(m.max_context_len) >= MAX_LEN {
        return fail(format!("max_context_len {} is not between 1 and 2^31", m.max_context_len));
    }
    if m.vocab_size == 0 || u64::from(m.vocab_size) >= MAX_LEN {
        return fail(format!("vocab_size {} is not between 1 and 2^31", m.vocab_size));
    }
    let ids = m
        .eos_ids
        .iter()
        .map(|id| ("eos", *id))
        .chain(m.suppress_ids.iter().map(|id| ("suppressed", *id)))
        .chain(m.bos_id.map(|id| ("bos", id)))
        .chain(m.pad_id.map(|id| ("pad", id)));
    for (what, id) in ids {
        if id >= m.vocab_size {
            return fail(format!("{what} id {id} is outside the vocabulary of {}", m.vocab_size));
        }
    }
    let s = m.sampling;
    if !(s.temperature.is_finite() && s.temperature >= 0.0 && (0.0..=1.0).contains(&s.top_p)) {
        return fail(format!("sampling: temperature {}, top_p {}", s.temperature, s.top_p));
    }
    m.answer.as_ref().map_or(Ok(()), answer_format)
}

/// Markers are there and short.
pub(crate) fn answer_format(format: &AnswerFormat) -> Result<()> {
    match format.fault() {
        Some(fault) => Err(Error::Program(format!("answer format: {fault}"))),
        None => Ok(()),
    }
}

fn windows(m: &Metadata, states: &[StateDecl]) -> Result<()> {
    for s in states {
        if let Some(window) = s.window
            && window > m.max_context_len
        {
            return Err(Error::Program(format!(
                "state `{}`: window {window} is larger than max_context_len {}",
                s.name, m.max_context_len
            )));
        }
    }
    Ok(())
}

/// The methods that a runner calls take what a runner feeds.
fn signature(name: &str, m: &Method) -> Result<()> {
    let fail = |what: String| Err(Error::Program(format!("method `{name}`: {what}")));
    let mut takes_tokens = false;
    for i in &m.graph.inputs {
        let t = &i.value_type;
        let right = match i.name.as_str() {
            input::TOKENS => {
                takes_tokens = true;
                *t == ValueType::indices(Sym::Tokens)
            }
            input::SOFT_INDEX => *t == ValueType::indices(Sym::Tokens),
            input::ROWS => *t == ValueType::indices(Sym::Rows),
            input::SOFT => {
                matches!(t, ValueType::F32(s) if s.first() == Some(&Dim::Sym(Sym::Soft)))
            }
            input::HIDDEN => {
                matches!(t, ValueType::F32(s) if s.first() == Some(&Dim::Sym(Sym::Tokens)))
            }
            other => return fail(format!("nobody feeds an input `{other}`")),
        };
        if !right {
            return fail(format!("input `{}` is {t:?}", i.name));
        }
    }
    if !takes_tokens {
        return fail(format!("it has no input `{}`", input::TOKENS));
    }
    Ok(())
}

/// The logits and every token embedding agree with the vocabulary that the metadata names.
fn vocabulary(
    m: &Metadata,
    forward: &Method,
    weights: &BTreeMap<String, WeightDecl>,
) -> Result<()> {
    let vocab = u64::from(m.vocab_size);
    let logits = forward.graph.outputs.iter().find(|o| o.name == output::LOGITS);
    let Some(logits) = logits else {
        return Err(Error::Program("method `forward` has no output `logits`".into()));
    };
    let want = ValueType::rows(Sym::Rows, vocab);
    match forward.types.get(logits.value.index()) {
        Some(t) if *t == want => {}
        got => {
            return Err(Error::Program(format!(
                "vocab_size is {vocab}, but logits are {:?}",
                got.map(ValueType::shape)
            )));
        }
    }
    for node in &forward.graph.nodes {
        if let Op::Embed { weight, .. } = &node.op {
            let rows = weights.get(weight).and_then(|w| w.shape.first()).copied();
            if rows.is_none_or(|rows| rows < vocab) {
                return Err(Error::Program(format!(
                    "vocab_size is {vocab}, but `{weight}` has only {} rows",
                    rows.unwrap_or(0)
                )));
            }
        }
    }
    Ok(())
}
