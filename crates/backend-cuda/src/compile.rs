//! From methods to steps: which weights, caches and memory each node of a method needs.
//!
//! This needs no device, so that a plan takes no memory.

use std::collections::{BTreeMap, HashSet};

use lapidary_backend::{LoadOptions, Precision, Sizes};
use lapidary_backend_kit::{
    Buffers, Derived, Form, GroupTables, Liveness, Purposes, axial_frequencies, rope_frequencies,
};
use lapidary_program::{Dim, Graph, Method, Node, Op, Program, ValueId, ValueType};

use crate::cache::CacheShape;
use crate::fuse::{self, Unit};
use crate::packed::{BLOCK_COLS, Bytes, MOST_OUTS, PackedForm};
use crate::products::FEW_ROWS;
use crate::weights::{MatrixForm, MatrixId, Vector, VectorId, WeightPlan};

/// The most blocks that share the keys of tokens: room for their parts is kept.
pub(crate) const MOST_PARTS: usize = 1024;

/// A program made ready for this backend, but for the bytes of its weights.
pub(crate) struct Compiled {
    pub methods: BTreeMap<String, CompiledMethod>,
    pub weights: WeightPlan,
    pub caches: Vec<CacheShape>,
    pub groups: Vec<GroupTables>,
    /// Buffers that all methods share.
    pub arena: Buffers,
    /// The lengths that room is kept for.
    pub planned: Sizes,
}

/// A method as a list of steps.
pub(crate) struct CompiledMethod {
    pub steps: Vec<Step>,
    /// Where each value is.
    pub values: Vec<Place>,
    /// The rows and channels of each value.
    pub lens: Vec<(Dim, usize)>,
    /// Angles of positions, made once for a call.
    pub ropes: Vec<RopeTable>,
    /// The first value that each node makes.
    pub firsts: Vec<ValueId>,
    /// By value: the buffer that has it as bytes, too, if it is made so.
    pub bytes: Vec<Option<usize>>,
    /// What the outputs are needed for, in their order.
    pub n_outputs: usize,
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The caller feeds it.
    Feed(usize),
    Buffer(usize),
}

/// Cosines and sines of the positions of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RopeTable {
    pub frequencies: VectorId,
    pub pairs: usize,
    pub buffer: usize,
}

/// Nodes that are done at once, with what they need besides values.
pub(crate) struct Step {
    pub unit: Unit,
    /// The node in whose place it is done.
    pub node: usize,
    /// The first value that this node makes.
    pub makes: ValueId,
    pub purposes: Purposes,
    pub needs: Vec<Need>,
}

/// What a node needs besides values, in the order of its kind (`ops.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Matrix(MatrixId),
    Vector(VectorId),
    /// A weight that the op can do without is not there.
    Nothing,
    Cache(usize),
    /// Memory while the node is worked on.
    Scratch(usize),
    /// Angles.
    Rope(usize),
}

impl Compiled {
    /// Compiles the methods that will be called. Weights that are `known` keep their numbers.
    pub(crate) fn new(
        program: &Program,
        options: &LoadOptions,
        fuses: bool,
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
        let planned = Sizes::planned(options);
        let mut compiled = Compiled {
            methods: BTreeMap::new(),
            weights: known.unwrap_or_default(),
            caches: caches.collect(),
            groups: GroupTables::of(program, options),
            arena: Buffers::new(planned),
            planned,
        };
        for (name, method) in methods() {
            let mut compiler = MethodCompiler {
                program,
                method,
                options,
                weights: &mut compiled.weights,
                arena: &mut compiled.arena,
                fuses,
                ropes: Vec::new(),
                scratch: Vec::new(),
            };
            let method = compiler.compile();
            compiled.methods.insert(name.clone(), method);
        }
        compiled
    }
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

/// Whether a unit can make a value as bytes, besides as numbers.
fn makes_bytes(unit: &Unit, value: usize, firsts: &[ValueId], graph: &Graph) -> bool {
    match unit {
        Unit::Residual(r) => r.post.is_some_and(|i| firsts[i].index() == value),
        Unit::Node(i) => match &graph.nodes[*i].op {
            Op::GeluGate => true,
            Op::Attention { spec, .. } => (spec.head_dim as usize).is_multiple_of(BLOCK_COLS),
            _ => false,
        },
        _ => false,
    }
}

/// The weight of a linear.
fn linear_weight(node: &Node) -> Option<&str> {
    match &node.op {
        Op::Linear { weight, .. } => Some(weight),
        _ => None,
    }
}

/// How a weight is packed, if it is: only where activations may be rounded.
fn form_of(program: &Program, options: &LoadOptions, weight: &str) -> Option<PackedForm> {
    let is_fast = options.precision == Precision::Fast;
    is_fast.then(|| PackedForm::of(&program.weights()[weight])).flatten()
}

/// Rows and channels of a value.
pub(crate) fn lengths(value_type: &ValueType) -> (Dim, usize) {
    let rows = value_type.shape().first().copied().unwrap_or(Dim::Fixed(1));
    (rows, value_type.channels())
}

struct MethodCompiler<'a> {
    program: &'a Program,
    method: &'a Method,
    options: &'a LoadOptions,
    weights: &'a mut WeightPlan,
    arena: &'a mut Buffers,
    fuses: bool,
    ropes: Vec<RopeTable>,
    /// Buffers of the node that is being compiled.
    scratch: Vec<usize>,
}

impl MethodCompiler<'_> {
    fn compile(&mut self) -> CompiledMethod {
        let method = self.method;
        let graph = &method.graph;
        let groups = self.groups();
        let units = fuse::units(method, &groups, self.fuses);
        let nodes: Vec<Vec<usize>> = units.iter().map(Unit::nodes).collect();
        let live = Liveness::of_steps(method, &nodes, |_, _| false);
        let purposes = Purposes::of(method);
        let (firsts, n_values) = graph.first_outputs();
        let lens: Vec<(Dim, usize)> = method.types().iter().map(lengths).collect();
        let mut values: Vec<Place> = (0..n_values).map(Place::Feed).collect();
        let mut bytes = vec![None; n_values];
        let mut steps = Vec::new();
        self.arena.free_all();
        // Angles are made before the first node, so no value may have their buffers before.
        for node in &graph.nodes {
            if let Op::Rope(spec) = &node.op {
                self.rope(rope_frequencies(spec));
            }
        }
        for (at, (unit, nodes)) in units.into_iter().zip(&nodes).enumerate() {
            let made: Vec<usize> = nodes
                .iter()
                .flat_map(|i| {
                    let first = firsts[*i].index();
                    first..first + graph.nodes[*i].op.n_outputs()
                })
                .collect();
            let is_read_inside = |value: usize| {
                let reads = |i: &usize| graph.nodes[*i].inputs.iter().any(|id| id.index() == value);
                nodes.iter().any(reads)
            };
            for value in &made {
                // What is read only inside is not stored.
                if is_read_inside(*value) && live.ends(*value, at) {
                    continue;
                }
                let (rows, channels) = lens[*value];
                values[*value] = Place::Buffer(self.arena.take(rows, channels));
                if self.fuses && makes_bytes(&unit, *value, &firsts, graph) {
                    bytes[*value] = self.bytes_of(*value, &groups);
                }
            }
            let needs = self.unit_needs(&unit);
            let node = unit.place();
            let purposes = Purposes::of_all(nodes.iter().map(|n| purposes[*n]));
            steps.push(Step { unit, node, makes: firsts[node], purposes, needs });
            self.scratch.drain(..).for_each(|buffer| self.arena.give_back(buffer));
            let read = nodes.iter().flat_map(|i| &graph.nodes[*i].inputs).map(|id| id.index());
            for value in live.ended(at, read.chain(made.iter().copied())) {
                if let Place::Buffer(buffer) = values[value] {
                    self.arena.give_back(buffer);
                }
                if let Some(buffer) = bytes[value] {
                    self.arena.give_back(buffer);
                }
            }
        }
        let ropes = std::mem::take(&mut self.ropes);
        let n_outputs = graph.outputs.len();
        CompiledMethod { steps, values, lens, ropes, firsts, bytes, n_outputs }
    }

    /// Room for a value as bytes, if products with packed weights read it.
    fn bytes_of(&mut self, value: usize, groups: &[Vec<usize>]) -> Option<usize> {
        let nodes = &self.method.graph.nodes;
        let reads = |group: &Vec<usize>| nodes[group[0]].inputs[0].index() == value;
        groups.iter().find(|group| reads(group))?;
        let channels = self.method.types()[value].channels();
        let words = Bytes::row_words(channels.div_ceil(BLOCK_COLS));
        Some(self.arena.take(Dim::Fixed(FEW_ROWS as u64), words))
    }

    /// What a unit needs besides values.
    fn unit_needs(&mut self, unit: &Unit) -> Vec<Need> {
        let method = self.method;
        let node = |i: usize| &method.graph.nodes[i];
        match unit {
            Unit::Node(i) => self.needs(node(*i)),
            Unit::Done(_) => vec![],
            Unit::Together(group) => self.together(group),
            Unit::Residual(r) => {
                let all = [r.pre, r.scale, r.post];
                all.map(|i| i.map_or(Need::Nothing, |i| self.needs(node(i))[0])).to_vec()
            }
            Unit::Heads(h) => {
                let mut needs = vec![self.needs(node(h.q_norm))[0], self.needs(node(h.q_rope))[0]];
                if let Some(write) = &h.write {
                    needs.push(self.needs(node(write.k_norm))[0]);
                    needs.push(self.needs(node(write.write))[0]);
                }
                needs
            }
        }
    }

    fn raw(&mut self, name: &str) -> Need {
        Need::Matrix(self.weights.matrix(&[name], MatrixForm::Raw))
    }

    /// How a linear's weight is packed, if it is: only where activations may be rounded.
    fn packed_form(&self, node: &Node) -> Option<PackedForm> {
        let Op::Linear { weight, bias: None } = &node.op else { return None };
        form_of(self.program, self.options, weight)
    }

    /// Linears with packed weights, those together that read the same rows.
    fn groups(&self) -> Vec<Vec<usize>> {
        let nodes = &self.method.graph.nodes;
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (i, node) in nodes.iter().enumerate() {
            let Some(form) = self.packed_form(node) else { continue };
            let fits = |group: &&mut Vec<usize>| {
                let first = &nodes[group[0]];
                group.len() < MOST_OUTS
                    && first.inputs == node.inputs
                    && self.packed_form(first) == Some(form)
                    // A table that is looked up stands alone.
                    && !group.iter().chain([&i]).any(|n| self.is_looked_up(&nodes[*n]))
            };
            match groups.iter_mut().find(fits) {
                Some(group) => group.push(i),
                None => groups.push(vec![i]),
            }
        }
        groups
    }

    /// Whether rows of a linear's weight are looked up, too.
    fn is_looked_up(&self, node: &Node) -> bool {
        let Op::Linear { weight, .. } = &node.op else { return false };
        let mut nodes = self.program.methods().values().flat_map(|method| &method.graph.nodes);
        nodes.any(|other| matches!(&other.op, Op::Embed { weight: table, .. } if table == weight))
    }

    /// What products with packed weights need: the matrix, and room for activations as bytes and as
    /// halves.
    fn together(&mut self, group: &[usize]) -> Vec<Need> {
        let method = self.method;
        let first = &method.graph.nodes[group[0]];
        let names: Vec<&str> =
            group.iter().filter_map(|i| linear_weight(&method.graph.nodes[*i])).collect();
        let Some(form) = self.packed_form(first) else { unreachable!("a group is packed") };
        let matrix = self.weights.matrix(&names, MatrixForm::Packed(form));
        let n_blocks = PackedForm::n_blocks(&self.program.weights()[names[0]]);
        let rows = self.rows(first, 0);
        vec![
            Need::Matrix(matrix),
            self.scratch(Dim::Fixed(FEW_ROWS as u64), Bytes::row_words(n_blocks)),
            self.scratch(rows, n_blocks * 32 + 1),
        ]
    }

    /// A table: packed if a linear multiplies with it as well.
    fn table(&mut self, name: &str) -> Need {
        let form = form_of(self.program, self.options, name);
        let methods = self.program.methods().iter().filter(|(name, _)| self.options.wants(name));
        let mut nodes = methods.flat_map(|(_, method)| &method.graph.nodes);
        let is_same = |op: &Op| matches!(op, Op::Linear { weight, bias: None } if weight == name);
        match form {
            Some(form) if nodes.any(|node| is_same(&node.op)) => {
                Need::Matrix(self.weights.matrix(&[name], MatrixForm::Packed(form)))
            }
            _ => self.raw(name),
        }
    }

    fn vector(&mut self, name: &str) -> Need {
        self.derived(name, Form::Plain)
    }

    fn derived(&mut self, name: &str, form: Form) -> Need {
        Need::Vector(self.weights.vector(Vector::Derived(Derived::new(name, form))))
    }

    fn optional(&mut self, name: Option<&String>) -> Need {
        name.map_or(Need::Nothing, |name| self.vector(name))
    }

    fn scratch(&mut self, rows: Dim, channels: usize) -> Need {
        let buffer = self.arena.take(rows, channels);
        self.scratch.push(buffer);
        Need::Scratch(buffer)
    }

    fn cache(&self, state: &str) -> Need {
        let found = self.program.states().iter().position(|s| s.name == state);
        Need::Cache(found.unwrap_or(0))
    }

    /// A table of angles, the same for all nodes that turn alike. Its buffer is taken for good.
    fn rope(&mut self, frequencies: Vec<f32>) -> Need {
        let pairs = frequencies.len();
        let frequencies = self.weights.vector(Vector::Numbers(frequencies));
        let known = self.ropes.iter().position(|rope| rope.frequencies == frequencies);
        Need::Rope(known.unwrap_or_else(|| {
            let tokens = Dim::Sym(lapidary_program::Sym::Tokens);
            let buffer = self.arena.take(tokens, 2 * pairs.max(1));
            self.ropes.push(RopeTable { frequencies, pairs, buffer });
            self.ropes.len() - 1
        }))
    }

    fn rows(&self, node: &Node, input: usize) -> Dim {
        lengths(&self.method.types()[node.inputs[input].index()]).0
    }

    fn shape(&self, name: &str) -> Vec<usize> {
        self.program.weights()[name].shape.iter().map(|n| *n as usize).collect()
    }

    /// What a node needs besides values.
    fn needs(&mut self, node: &Node) -> Vec<Need> {
        match &node.op {
            Op::Embed { weight, .. } => vec![self.table(weight)],
            Op::Linear { weight, bias } => vec![self.raw(weight), self.optional(bias.as_ref())],
            Op::RmsNorm { weight, .. } => vec![self.optional(weight.as_ref())],
            Op::LayerNorm { weight, bias, .. } => {
                vec![self.vector(weight), self.optional(bias.as_ref())]
            }
            Op::Rope(spec) => vec![self.rope(rope_frequencies(spec))],
            Op::AxialRope(spec) => {
                let frequencies = Vector::Numbers(axial_frequencies(spec));
                vec![Need::Vector(self.weights.vector(frequencies))]
            }
            Op::KvWrite { state } => vec![self.cache(state)],
            Op::Attention { state, spec } => {
                let part = spec.head_dim as usize + 2;
                vec![self.cache(state), self.scratch(Dim::Fixed(MOST_PARTS as u64), part)]
            }
            Op::LocalAttention(spec) => {
                let (softplus, factor) = (spec.softplus, spec.q_scale);
                let by_dim = Form::Factors { softplus, factor };
                vec![
                    self.derived(&spec.per_dim_scale, by_dim),
                    self.derived(&spec.relative, Form::Distances(spec.window as usize)),
                ]
            }
            Op::Conv2d { weight, .. } => vec![self.derived(weight, Form::Kernel)],
            Op::CausalConv1d { weight } => vec![self.derived(weight, Form::Transposed)],
            Op::Clamp { low, high } => vec![self.vector(low), self.vector(high)],
            Op::Standardise { bias, scale } => vec![self.vector(bias), self.vector(scale)],
            Op::ScaleBy { weight } => vec![self.vector(weight)],
            Op::Router { weight, expert_scale, .. } => {
                let n_experts = self.shape(weight)[0];
                let scores = self.scratch(self.rows(node, 0), n_experts);
                vec![self.raw(weight), self.vector(expert_scale), scores]
            }
            Op::Experts { gate_up, down } => {
                let (rows, inner) = (self.rows(node, 0), *self.shape(down).last().unwrap_or(&0));
                let channels = self.shape(down).get(1).copied().unwrap_or(0);
                let types = self.method.types();
                let per = node.inputs.get(1).map_or(1, |id| types[id.index()].channels());
                let both = self.scratch(rows, per * 2 * inner);
                let gated = self.scratch(rows, per * inner);
                let made = self.scratch(rows, per * channels);
                let mut needs = vec![Need::Nothing, Need::Nothing, both, gated, made];
                for (i, name) in [gate_up, down].into_iter().enumerate() {
                    let n_blocks = PackedForm::n_blocks(&self.program.weights()[name]);
                    let (form, words) = match form_of(self.program, self.options, name) {
                        Some(form) => (MatrixForm::Packed(form), Bytes::row_words(n_blocks)),
                        None => (MatrixForm::Raw, 1),
                    };
                    needs[i] = Need::Matrix(self.weights.matrix(&[name], form));
                    let times = if i == 0 { 1 } else { per };
                    needs.push(self.scratch(rows, times * words));
                }
                needs
            }
            Op::CentroidHead { centroids, ordering, embedding, top } => {
                let (rows, n) = (self.rows(node, 0), self.shape(centroids)[0]);
                let (vocab, top) = (self.shape(ordering)[0], *top as usize);
                let ids = self.weights.vector(Vector::TokenIds(ordering.clone()));
                let scores = self.scratch(rows, n);
                let chosen = self.scratch(rows, top);
                let found = self.scratch(rows, top * (vocab / n.max(1)));
                let (centroids, embedding) = (self.raw(centroids), self.raw(embedding));
                vec![centroids, embedding, Need::Vector(ids), scores, chosen, found]
            }
            _ => vec![],
        }
    }
}
