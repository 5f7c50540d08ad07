//! Methods as lists of kernels: weights by number, activations in buffers that are reused.
//!
//! Compiling needs declarations and what a GPU can do, but no memory of it, so that `plan` knows to
//! the byte what `load` will take. Methods that will not be called are not compiled.

mod method;
mod units;

use std::collections::{BTreeMap, HashSet};

use lapidary_backend::{LoadOptions, Sizes};
use lapidary_program::{Dim, Method, Op, Program, ValueId, ValueType};

pub(crate) use self::method::MethodCompiler;
use crate::adapter::Abilities;
use crate::cache::CacheShape;
use crate::fuse::Unit;
use crate::step::{CompiledMethod, is_asked};
use crate::weights::Wanted;

/// Asked rows that are worked on at once, if there are not more slots.
const WINDOW: usize = 32;

/// A program made ready for this backend, but for the bytes of its weights.
pub(crate) struct Compiled {
    pub methods: BTreeMap<String, CompiledMethod>,
    pub weights: Wanted,
    pub caches: Vec<CacheShape>,
    pub room: RoomShape,
    /// The lengths that room is kept for; asked rows are those of one window.
    pub planned: Sizes,
}

/// Buffers that all methods share: the values that each may hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoomShape {
    pub buffers: Vec<Vec<(Dim, usize)>>,
}

impl RoomShape {
    /// Numbers of a buffer in a call of such sizes.
    pub(crate) fn len(&self, buffer: usize, sizes: Sizes) -> usize {
        let values = self.buffers[buffer].iter();
        values.map(|(rows, channels)| sizes.len(*rows) * channels).max().unwrap_or(0)
    }

    /// Bytes of all buffers.
    pub(crate) fn size_bytes(&self, sizes: Sizes) -> u64 {
        (0..self.buffers.len()).map(|b| self.len(b, sizes) as u64 * 4).sum()
    }
}

impl Compiled {
    /// Compiles the methods that will be called. Weights that are `known` keep their numbers.
    pub(crate) fn new(
        program: &Program,
        options: &LoadOptions,
        abilities: &Abilities,
        fusing: Fusing,
        known: Option<Wanted>,
    ) -> Self {
        let methods = || program.methods().iter().filter(|(name, _)| options.wants(name));
        let used = used_states(methods().map(|(_, method)| method));
        let caches = program.states().iter().map(|state| {
            let shape = CacheShape::of(state, options);
            let n_slots = if used.contains(state.name.as_str()) { shape.n_slots } else { 0 };
            CacheShape { n_slots, ..shape }
        });
        let mut planned = Sizes::planned(options);
        planned.rows = window(methods().map(|(_, m)| m), planned, abilities);
        let mut compiled = Compiled {
            methods: BTreeMap::new(),
            weights: known.unwrap_or_else(|| Wanted::new(abilities.max_shard)),
            caches: caches.collect(),
            room: RoomShape::default(),
            planned,
        };
        for (name, method) in methods() {
            let method = MethodCompiler::new(program, method, options, abilities, &mut compiled)
                .compile(fusing);
            compiled.methods.insert(name.clone(), method);
        }
        compiled
    }
}

/// Whether several nodes may be one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fusing {
    On,
    /// Every value is stored.
    Off,
}

fn lengths(value_type: &ValueType) -> (Dim, usize) {
    let rows = value_type.shape().first().copied().unwrap_or(Dim::Fixed(1));
    (rows, value_type.channels())
}

/// The caches that some methods read or write.
fn used_states<'a>(methods: impl Iterator<Item = &'a Method>) -> HashSet<&'a str> {
    let nodes = methods.flat_map(|method| &method.graph.nodes);
    nodes
        .filter_map(|node| match &node.op {
            Op::KvWrite { state } | Op::Attention { state, .. } => Some(state.as_str()),
            _ => None,
        })
        .collect()
}

/// Asked rows that are worked on at once: no value of them is larger than a binding.
fn window<'a>(
    methods: impl Iterator<Item = &'a Method>,
    planned: Sizes,
    abilities: &Abilities,
) -> usize {
    let asked = methods.flat_map(|m| m.types()).filter(|t| is_asked(lengths(t).0));
    let widest = asked.map(|t| lengths(t).1).max().unwrap_or(1).max(1) as u64;
    let fit = (abilities.max_binding / 4 / widest) as usize;
    planned.rows.max(WINDOW).min(planned.tokens).min(fit).max(1)
}

/// Whether each asked row is made from tokens and itself alone.
fn can_window(method: &Method) -> bool {
    let rows_of = |id: &ValueId| lengths(&method.types()[id.index()]).0;
    let (firsts, _) = method.graph.first_outputs();
    method.graph.nodes.iter().zip(firsts).all(|(node, first)| {
        let makes_asked = node.op.n_outputs() > 0 && is_asked(rows_of(&first));
        let reads_asked = node.inputs.iter().any(|id| is_asked(rows_of(id)));
        match &node.op {
            Op::GatherRows => !is_asked(rows_of(&node.inputs[0])),
            Op::KvWrite { .. } => !reads_asked,
            Op::Attention { .. } | Op::SelfAttention { .. } | Op::LocalAttention(_) => !makes_asked,
            Op::Conv2d { .. } | Op::CausalConv1d { .. } | Op::PoolRows { .. } => !reads_asked,
            Op::SoftMerge => !makes_asked,
            _ => true,
        }
    })
}

/// Nodes in the order in which they run: with windows, those that make asked rows come last.
fn order(method: &Method, windows: bool) -> Vec<usize> {
    let all = 0..method.graph.nodes.len();
    let (last, mut order): (Vec<usize>, Vec<usize>) =
        all.partition(|i| windows && makes_asked(method, *i));
    order.extend(last);
    order
}

/// Whether a node makes asked rows.
fn makes_asked(method: &Method, i: usize) -> bool {
    let made = method.graph.first_outputs().0[i].index();
    let node = &method.graph.nodes[i];
    node.op.n_outputs() > 0 && is_asked(lengths(&method.types()[made]).0)
}

/// The last step that reads each value, or that makes it if none does; past the end for outputs, and
/// for what every window of asked rows reads again.
fn last_uses(method: &Method, units: &[Unit], n_once: usize) -> Vec<usize> {
    let graph = &method.graph;
    let (firsts, n_values) = graph.first_outputs();
    let mut last = vec![0; n_values];
    for (at, unit) in units.iter().enumerate() {
        for i in unit.nodes() {
            let node = &graph.nodes[i];
            let made = firsts[i].index()..firsts[i].index() + node.op.n_outputs();
            for value in node.inputs.iter().map(|id| id.index()).chain(made) {
                let again = at >= n_once && !is_asked(lengths(&method.types()[value]).0);
                last[value] = last[value].max(if again { units.len() } else { at });
            }
        }
    }
    for out in &graph.outputs {
        last[out.value.index()] = units.len();
    }
    last
}
