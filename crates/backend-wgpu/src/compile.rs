//! Methods as lists of kernels: weights by number, activations in buffers that are reused.
//!
//! Compiling needs declarations and what a GPU can do, but no memory of it, so that `plan` knows to
//! the byte what `load` will take. Methods that will not be called are not compiled.

use std::collections::{BTreeMap, HashSet};

use lapidary_backend::{LoadOptions, Sizes};
use lapidary_program::{Dim, Method, Op, Program, ValueId, ValueType};

use crate::adapter::Abilities;
use crate::cache::CacheShape;
use crate::derived::{Derived, Form};
use crate::fuse::{Fuser, Linears, Unit, weight_of};
use crate::host::HostFeed;
use crate::linear::PackedForm;
use crate::ops;
use crate::step::{
    Bound, CompiledMethod, Dispatch, FeedSpec, Output, Place, Step, Value, is_asked,
};
use crate::weights::{MatrixId, ShardId, Span, Wanted};

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

/// What one method's nodes are compiled with.
pub(crate) struct MethodCompiler<'a> {
    pub program: &'a Program,
    pub method: &'a Method,
    pub options: &'a LoadOptions,
    pub abilities: &'a Abilities,
    out: &'a mut Compiled,
    /// Where each value is; `None` before it is made.
    values: Vec<Option<Value>>,
    /// The first value that each node makes.
    firsts: Vec<ValueId>,
    /// The last step that reads each value; outputs are read at the end.
    last_use: Vec<usize>,
    free: Vec<usize>,
    feeds: Vec<FeedSpec>,
    dims: Vec<Dim>,
    written: HashSet<&'a str>,
    /// Of the node that is being compiled.
    dispatches: Vec<Dispatch>,
    scratch: Vec<usize>,
}

impl<'a> MethodCompiler<'a> {
    fn new(
        program: &'a Program,
        method: &'a Method,
        options: &'a LoadOptions,
        abilities: &'a Abilities,
        out: &'a mut Compiled,
    ) -> Self {
        let mut values = vec![None; method.types().len()];
        let mut feeds = Vec::new();
        for (i, input) in method.graph.inputs.iter().enumerate() {
            let (rows, channels) = lengths(&input.value_type);
            feeds.push(FeedSpec { rows, channels, source: HostFeed::Input(i) });
            values[i] = Some(Value { place: Place::Feed(i), rows, channels });
        }
        MethodCompiler {
            program,
            method,
            options,
            abilities,
            // Methods do not run at the same time: each may use all buffers.
            free: (0..out.room.buffers.len()).collect(),
            out,
            values,
            firsts: method.graph.first_outputs().0,
            last_use: Vec::new(),
            feeds,
            dims: Vec::new(),
            written: HashSet::new(),
            dispatches: Vec::new(),
            scratch: Vec::new(),
        }
    }

    fn compile(mut self, fusing: Fusing) -> CompiledMethod {
        let windows = can_window(self.method);
        let order = order(self.method, windows);
        let wanted = &self.out.weights;
        let fuser =
            Fuser { program: self.program, method: self.method, options: self.options, wanted };
        let units = match fusing {
            Fusing::On => fuser.fused(&order),
            Fusing::Off => fuser.shown(&order),
        };
        let is_once = |unit: &&Unit| unit.is(|node| !(windows && makes_asked(self.method, node)));
        let n_once = units.iter().take_while(is_once).count();
        self.last_use = last_uses(self.method, &units, n_once);
        let steps = units.iter().enumerate().map(|(at, unit)| self.unit(at, unit)).collect();
        let outputs = self.method.graph.outputs.iter().map(|o| Output {
            name: o.name.clone(),
            value: self.value(o.value),
            indices: matches!(self.method.types()[o.value.index()], ValueType::I32(_)),
        });
        let outputs = outputs.collect();
        CompiledMethod { feeds: self.feeds, steps, n_once, outputs, dims: self.dims, windows }
    }

    fn value(&self, id: ValueId) -> Value {
        self.values[id.index()].expect("validation has values made before they are read")
    }

    /// Compiles nodes as step number `at`.
    fn unit(&mut self, at: usize, unit: &Unit) -> Step {
        let nodes = unit.nodes();
        let made = match unit {
            Unit::Node(i) => self.node(*i),
            Unit::Linears(linears) => self.linears(linears),
            Unit::NormRope { norm, rope } => vec![self.norm_rope(*norm, *rope)],
            Unit::SliceGate { slice, gate } => vec![self.slice_gate(*slice, *gate)],
            Unit::Residual { pre, add, scale, post } => self.residual(*pre, *add, *scale, *post),
        };
        for buffer in std::mem::take(&mut self.scratch) {
            self.free.push(buffer);
        }
        let method = self.method;
        let read = nodes.iter().flat_map(|i| &method.graph.nodes[*i].inputs).map(|id| id.index());
        self.release(at, read.chain(made.iter().copied()));
        let is_f32 = |v: &usize| matches!(self.method.types()[*v], ValueType::F32(_));
        let shown = made.into_iter().filter(is_f32).filter_map(|v| self.values[v]).collect();
        let dispatches = std::mem::take(&mut self.dispatches);
        Step { nodes, dispatches, shown }
    }

    /// Compiles a node by itself; the values that it makes.
    fn node(&mut self, i: usize) -> Vec<usize> {
        let node = &self.method.graph.nodes[i];
        let first = self.first(i);
        let made: Vec<usize> = (first..first + node.op.n_outputs()).collect();
        let inputs: Vec<Value> = node.inputs.iter().map(|id| self.value(*id)).collect();
        let mut outputs = Vec::with_capacity(made.len());
        for v in &made {
            let value = match self.fed(&node.op, &node.inputs) {
                Some(feed) => {
                    let value = self.feed(lengths(&self.method.types()[*v]), feed);
                    self.values[*v] = Some(value);
                    value
                }
                None => self.make(*v),
            };
            outputs.push(value);
        }
        if let Op::KvWrite { state } = &node.op {
            self.written.insert(state);
        }
        ops::compile(self, &node.op, &node.inputs, &inputs, &outputs);
        made
    }

    /// The first value that a node makes.
    fn first(&self, i: usize) -> usize {
        self.firsts[i].index()
    }

    /// A buffer for a value.
    fn make(&mut self, v: usize) -> Value {
        let value = self.take(lengths(&self.method.types()[v]));
        self.values[v] = Some(value);
        value
    }

    fn linears(&mut self, linears: &Linears) -> Vec<usize> {
        let nodes = &self.method.graph.nodes;
        let x = self.value(nodes[linears.nodes[0]].inputs[0]);
        let weights: Vec<&str> =
            linears.nodes.iter().filter_map(|i| weight_of(&nodes[*i])).collect();
        let made: Vec<usize> = match linears.gate {
            Some(gate) => vec![self.first(gate)],
            None => linears.nodes.iter().map(|i| self.first(*i)).collect(),
        };
        let outputs: Vec<Value> = made.iter().map(|v| self.make(*v)).collect();
        if linears.gate.is_none() {
            ops::linears(self, &weights, linears.form, x, &outputs, None);
            return made;
        }
        // What only the gate reads is no value of the graph here.
        let mut factors = Vec::with_capacity(linears.nodes.len());
        for i in &linears.nodes {
            let (rows, channels) = lengths(&self.method.types()[self.first(*i)]);
            factors.push(self.scratch(rows, channels));
        }
        ops::linears(self, &weights, linears.form, x, &factors, outputs.first().copied());
        made
    }

    fn norm_rope(&mut self, norm: usize, rope: usize) -> usize {
        let [norm, turn] = [norm, rope].map(|i| &self.method.graph.nodes[i]);
        let Op::Rope(spec) = &turn.op else { unreachable!("fused with a rope") };
        let x = self.value(norm.inputs[0]);
        let v = self.first(rope);
        let y = self.make(v);
        let table = ops::rope::table(self, spec, turn.inputs[1].index(), x);
        ops::rms_norm::rms_norm(self, &norm.op, Some((table, spec.rotated_pairs)), x, y);
        v
    }

    fn slice_gate(&mut self, slice: usize, gate: usize) -> usize {
        let [slice, gated] = [slice, gate].map(|i| &self.method.graph.nodes[i]);
        let Op::Slice { start, .. } = slice.op else { unreachable!("fused with a slice") };
        let (x, up) = (self.value(gated.inputs[0]), self.value(slice.inputs[0]));
        let v = self.first(gate);
        let y = self.make(v);
        ops::gelu_gate::gelu_gate(self, x, (up, start), y);
        v
    }

    fn residual(
        &mut self,
        pre: Option<usize>,
        add: usize,
        scale: Option<usize>,
        post: Option<usize>,
    ) -> Vec<usize> {
        let graph = &self.method.graph;
        let op = |i: Option<usize>| i.map(|i| &graph.nodes[i].op);
        let [mut x, mut a] = [0, 1].map(|i| graph.nodes[add].inputs[i]);
        if let Some(pre) = pre {
            // The other operand is what the norm is added to.
            let normed = self.firsts[pre];
            x = if x == normed { a } else { x };
            a = graph.nodes[pre].inputs[0];
        }
        let operands = [self.value(x), self.value(a)];
        let mut made = vec![self.first(scale.unwrap_or(add))];
        made.extend(post.map(|post| self.first(post)));
        let values: Vec<Value> = made.iter().map(|v| self.make(*v)).collect();
        let parts = [op(pre), op(scale), op(post)];
        ops::residual::residual(self, parts, operands, values[0], values.get(1).copied());
        made
    }

    /// What the host makes in the place of a kernel, if it does.
    fn fed(&mut self, op: &Op, inputs: &[ValueId]) -> Option<HostFeed> {
        let Op::Embed { weight, scale, start, stride, soft_id } = op else { return None };
        let mut inputs = inputs.iter().map(|id| id.index());
        Some(HostFeed::Rows(crate::host::TableRows {
            table: self.out.weights.table(weight),
            ids: inputs.next()?,
            scale: *scale,
            start: *start as usize,
            stride: *stride as usize,
            soft: soft_id.map(|id| id as usize).zip(inputs.next()),
        }))
    }

    /// Gives back the buffers of values that step `at` was the last to need.
    fn release(&mut self, at: usize, values: impl Iterator<Item = usize>) {
        let mut done = HashSet::new();
        for v in values {
            if self.last_use[v] > at || !done.insert(v) {
                continue;
            }
            if let Some(Place::Buffer(buffer)) = self.values[v].map(|value| value.place) {
                self.free.push(buffer);
            }
        }
    }

    /// A free buffer: the smallest that is large enough, or else the largest, made larger.
    fn take(&mut self, (rows, channels): (Dim, usize)) -> Value {
        let sizes = self.out.planned;
        let need = sizes.len(rows) * channels;
        let room = &mut self.out.room;
        let fit = |b: usize| {
            let len = room.len(b, sizes);
            if len >= need { (0, len) } else { (1, usize::MAX - len) }
        };
        let best = (0..self.free.len()).min_by_key(|at| fit(self.free[*at]));
        let buffer = match best {
            Some(at) => self.free.swap_remove(at),
            None => {
                room.buffers.push(Vec::new());
                room.buffers.len() - 1
            }
        };
        if !room.buffers[buffer].contains(&(rows, channels)) {
            room.buffers[buffer].push((rows, channels));
        }
        Value { place: Place::Buffer(buffer), rows, channels }
    }

    /// Room for what the host makes; what was asked for before is shared.
    pub(crate) fn feed(&mut self, (rows, channels): (Dim, usize), source: HostFeed) -> Value {
        let known = self.feeds.iter().position(|feed| feed.source == source);
        let feed = known.unwrap_or_else(|| {
            self.feeds.push(FeedSpec { rows, channels, source });
            self.feeds.len() - 1
        });
        Value { place: Place::Feed(feed), rows, channels }
    }

    /// Room that the node being compiled needs besides its outputs.
    pub(crate) fn scratch(&mut self, rows: Dim, channels: usize) -> Value {
        let value = self.take((rows, channels));
        if let Place::Buffer(buffer) = value.place {
            self.scratch.push(buffer);
        }
        value
    }

    /// The number under which kernels know a length.
    pub(crate) fn len(&mut self, rows: Dim) -> u32 {
        let known = self.dims.iter().position(|d| *d == rows);
        known.unwrap_or_else(|| {
            self.dims.push(rows);
            self.dims.len() - 1
        }) as u32
    }

    pub(crate) fn push(&mut self, dispatch: Dispatch) {
        self.dispatches.push(dispatch);
    }

    /// A small weight.
    pub(crate) fn vector(&mut self, name: &str) -> Bound {
        Bound::Vector(self.out.weights.vector(Derived::plain(name)))
    }

    /// What is made of a small weight.
    pub(crate) fn derived(&mut self, name: &str, form: Form) -> Bound {
        Bound::Vector(self.out.weights.vector(Derived { weight: name.to_string(), form }))
    }

    /// A matrix whose parts hold whole runs of `unit` rows.
    pub(crate) fn matrix(&mut self, name: &str, unit: usize) -> MatrixId {
        self.out.weights.matrix(self.program, name, unit)
    }

    /// Packed matrices that stand together, and the weights in each of its parts.
    pub(crate) fn packed(
        &mut self,
        names: &[&str],
        form: PackedForm,
    ) -> Vec<(ShardId, std::ops::Range<usize>, Vec<Span>)> {
        let id = self.out.weights.packed(self.program, names, form);
        let shards = self.shards(id).into_iter().enumerate().map(|(shard, tiles)| {
            let id = ShardId { matrix: id.0, shard };
            (id, tiles, self.out.weights.spans(self.program, id))
        });
        shards.collect()
    }

    /// The rows of each part of a matrix.
    pub(crate) fn shards(&self, id: MatrixId) -> Vec<std::ops::Range<usize>> {
        self.out.weights.shards(id).to_vec()
    }

    /// A cache by its name.
    pub(crate) fn cache(&self, state: &str) -> (usize, CacheShape) {
        let mut states = self.program.states().iter();
        let i = states.position(|s| s.name == state).expect("validation knows the state");
        (i, self.out.caches[i])
    }

    /// Whether a step before has written a cache.
    pub(crate) fn is_written(&self, state: &str) -> bool {
        self.written.contains(state)
    }
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
