//! Methods as lists of kernels: weights by number, activations in buffers that are reused.
//!
//! Compiling needs declarations and what a GPU can do, but no memory of it, so that `plan` knows to
//! the byte what `load` will take. Methods that will not be called are not compiled.

mod method;
mod units;

use std::collections::{BTreeMap, HashSet};

use lapidary_backend::{LoadOptions, Sizes};
use lapidary_backend_kit::{Buffers, GroupTables};
use lapidary_program::{Dim, Method, Op, Program, ValueId, ValueType};

pub(crate) use self::method::MethodCompiler;
use crate::adapter::Abilities;
use crate::cache::CacheShape;
use crate::step::{CompiledMethod, is_asked};
use crate::weights::WeightPlan;

/// Asked rows that are worked on at once, if there are not more sequences.
const WINDOW: usize = 32;

/// A program made ready for this backend, but for the bytes of its weights.
pub(crate) struct Compiled {
    pub methods: BTreeMap<String, CompiledMethod>,
    pub weights: WeightPlan,
    pub caches: Vec<CacheShape>,
    pub groups: Vec<GroupTables>,
    /// Buffers that all methods share.
    pub arena: Buffers,
    /// The lengths that room is kept for; asked rows are those of one window.
    pub planned: Sizes,
    /// The spans that room is kept for.
    pub spans: usize,
    pub tables: Tables,
}

/// Where tables of embeddings are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tables {
    /// On the device: rows are gathered there, by tokens that may have been drawn there.
    Device,
    /// In the program's store: the host gathers rows.
    Host,
}

impl Compiled {
    /// Compiles the methods that will be called. Weights that are `known` keep their numbers.
    pub(crate) fn new(
        program: &Program,
        options: &LoadOptions,
        abilities: &Abilities,
        (fusing, tables): (Fusing, Tables),
        known: Option<WeightPlan>,
    ) -> Self {
        let methods = || program.methods().iter().filter(|(name, _)| options.wants(name));
        let used = used_states(methods().map(|(_, method)| method));
        let group_of = |state: usize| {
            program.kv_groups().iter().position(|group| group.states.contains(&state)).unwrap_or(0)
        };
        let caches = program.states().iter().enumerate().map(|(i, state)| {
            let shape = CacheShape::of(state, group_of(i), options);
            let n_pages = if used.contains(state.name.as_str()) { shape.n_pages } else { 0 };
            CacheShape { n_pages, ..shape }
        });
        let mut planned = Sizes::planned(options);
        planned.rows = window(methods().map(|(_, m)| m), planned, abilities);
        let mut compiled = Compiled {
            methods: BTreeMap::new(),
            weights: known.unwrap_or_else(|| WeightPlan::new(abilities.max_shard)),
            caches: caches.collect(),
            groups: GroupTables::of(program, options),
            arena: Buffers::new(planned),
            planned,
            spans: (options.n_sequences as usize).clamp(1, planned.tokens.max(1)),
            tables,
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
