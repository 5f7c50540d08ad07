//! Which nodes one kernel does together.
//!
//! Values between them are never stored, so only those are left out that nothing else reads. What
//! `trace` shows is every value, so it runs methods that are not fused.

mod attended;
mod heads;
mod linears;

use lapidary_backend::LoadOptions;
use lapidary_program::{Method, Node, Op, Program, ValueId};

pub(crate) use self::attended::{Attended, Queries};
pub(crate) use self::heads::HeadNodes;
pub(crate) use self::linears::{Linears, weight_of};
use crate::adapter::Abilities;
use crate::linear::PackedForm;
use crate::weights::WeightPlan;

/// One or more nodes that are done at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A node by itself.
    Node(usize),
    /// Products of the same rows with several matrices.
    Linears(Linears),
    /// A norm whose runs are then turned.
    NormRope { norm: usize, rope: usize },
    /// `(x + norm(a)) · s`, and the norm of that; all but the sum may be left out.
    Residual { pre: Option<usize>, add: usize, scale: Option<usize>, post: Option<usize> },
    /// A gate over some channels of a wider value, and the linear that is gated alone.
    SliceGate { slice: usize, gate: usize, linear: Option<(usize, PackedForm)> },
    /// Queries and keys normed and turned, values normed perhaps, and the cache written.
    Heads(HeadNodes),
    /// Attention, and what is done before it.
    Attended(Attended),
}

impl Unit {
    /// Its nodes, in the order in which they are done.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        match self {
            Unit::Node(node) => vec![*node],
            Unit::Linears(linears) => linears.nodes.iter().copied().chain(linears.gate).collect(),
            Unit::NormRope { norm, rope } => vec![*norm, *rope],
            Unit::SliceGate { slice, gate, linear } => {
                linear.iter().map(|(i, _)| *i).chain([*slice, *gate]).collect()
            }
            Unit::Heads(heads) => heads.nodes(),
            Unit::Attended(attended) => attended.nodes(),
            Unit::Residual { pre, add, scale, post } => {
                [*pre, Some(*add), *scale, *post].into_iter().flatten().collect()
            }
        }
    }

    /// The node in whose place it is done.
    fn main(&self) -> usize {
        match self {
            Unit::Node(node) => *node,
            Unit::Linears(linears) => linears.nodes[0],
            Unit::NormRope { rope, .. } => *rope,
            Unit::SliceGate { gate, .. } => *gate,
            Unit::Heads(heads) => heads.q_rope,
            Unit::Attended(attended) => attended.attention,
            Unit::Residual { add, .. } => *add,
        }
    }
}

/// What nodes are grouped by.
pub(crate) struct Fuser<'a> {
    pub program: &'a Program,
    pub method: &'a Method,
    pub options: &'a LoadOptions,
    pub wanted: &'a WeightPlan,
    pub abilities: &'a Abilities,
}

impl Fuser<'_> {
    /// Nodes in an order, such that every value is stored. Linears that share a matrix still do.
    pub(crate) fn shown(&self, order: &[usize]) -> Vec<Unit> {
        let groups = self.groups();
        let groups = groups.into_iter().map(|group| Linears { gate: None, ..group }).collect();
        self.units(order, groups, |i, _| Unit::Node(i))
    }

    /// Nodes in an order, together where one kernel can do them.
    pub(crate) fn fused(&self, order: &[usize]) -> Vec<Unit> {
        let graph = Readers::new(self.method);
        let alone = |i: usize| linears::alone(self.program, self.options, self.method, i);
        let units = self.units(order, self.groups(), |i, done| graph.unit(i, done, &alone));
        let units = heads::fused(&graph, self.abilities, units);
        attended::fused(&graph, self.abilities, units)
    }

    fn groups(&self) -> Vec<Linears> {
        linears::groups(self.program, self.method, self.options, self.wanted)
    }

    fn units(
        &self,
        order: &[usize],
        groups: Vec<Linears>,
        other: impl Fn(usize, &[Done]) -> Unit,
    ) -> Vec<Unit> {
        let n_nodes = self.method.graph.nodes.len();
        let mut leads: Vec<Option<Linears>> = vec![None; n_nodes];
        for group in groups {
            let first = group.nodes[0];
            leads[first] = Some(group);
        }
        let mut done = vec![Done::No; n_nodes];
        let mut units = Vec::new();
        for &i in order {
            if done[i] != Done::No {
                continue;
            }
            let unit = match leads[i].take() {
                Some(group) => Unit::Linears(group),
                None => other(i, &done),
            };
            let nodes = unit.nodes();
            if nodes.len() > 1 {
                // What was to be done by itself is now done here.
                units.retain(|u| !matches!(u, Unit::Node(n) if nodes.contains(n)));
            }
            let how = if nodes.len() > 1 { Done::Together } else { Done::Alone };
            nodes.into_iter().for_each(|node| done[node] = how);
            units.push(unit);
        }
        units
    }
}

/// Whether a node has a place already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Done {
    No,
    Alone,
    Together,
}

/// Who makes and who reads each value.
pub(super) struct Readers<'a> {
    method: &'a Method,
    firsts: Vec<ValueId>,
    readers: Vec<Vec<usize>>,
    is_output: Vec<bool>,
}

impl<'a> Readers<'a> {
    fn new(method: &'a Method) -> Self {
        let (firsts, n_values) = method.graph.first_outputs();
        let mut readers = vec![Vec::new(); n_values];
        for (i, node) in method.graph.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|id| readers[id.index()].push(i));
        }
        let mut is_output = vec![false; n_values];
        method.graph.outputs.iter().for_each(|out| is_output[out.value.index()] = true);
        Readers { method, firsts, readers, is_output }
    }

    fn node(&self, i: usize) -> &'a Node {
        &self.method.graph.nodes[i]
    }

    /// Whether nothing but one node reads a value.
    fn has_one_reader(&self, value: ValueId) -> bool {
        self.readers[value.index()].len() == 1 && !self.is_output[value.index()]
    }

    /// The node that makes a value which nothing but one node reads, if it can be done later.
    fn only_for(&self, value: ValueId, done: &[Done]) -> Option<usize> {
        let makes = |i: &usize| self.node(*i).op.n_outputs() == 1 && self.firsts[*i] == value;
        let made = (0..self.firsts.len()).find(makes)?;
        (self.has_one_reader(value) && done[made] == Done::Alone).then_some(made)
    }

    /// What a node is done with.
    fn unit(&self, i: usize, done: &[Done], alone: &dyn Fn(usize) -> Option<PackedForm>) -> Unit {
        let node = self.node(i);
        match &node.op {
            Op::Rope(spec) => match self.only_for(node.inputs[0], done) {
                Some(norm) if self.width(norm) == Some(spec.head_dim as usize) => {
                    Unit::NormRope { norm, rope: i }
                }
                _ => Unit::Node(i),
            },
            Op::GeluGate => match self.only_for(node.inputs[1], done) {
                Some(slice) if matches!(self.node(slice).op, Op::Slice { .. }) => {
                    let linear = self.only_for(node.inputs[0], done);
                    let linear = linear.and_then(|at| Some((at, alone(at)?)));
                    Unit::SliceGate { slice, gate: i, linear }
                }
                _ => Unit::Node(i),
            },
            Op::Add => self.residual(i, done),
            _ => Unit::Node(i),
        }
    }

    /// The channels of a norm's runs.
    fn width(&self, i: usize) -> Option<usize> {
        match &self.node(i).op {
            Op::RmsNorm { width, .. } => Some(*width as usize),
            _ => None,
        }
    }

    fn residual(&self, add: usize, done: &[Done]) -> Unit {
        let channels = self.method.types()[self.firsts[add].index()].channels();
        let of_rows = |norm: &usize| self.width(*norm) == Some(channels);
        let inputs = self.node(add).inputs.iter().rev();
        let pre = inputs.filter_map(|id| self.only_for(*id, done)).find(of_rows);
        // Later nodes that can be done now.
        let readers = |i: usize| {
            let readers = self.readers[self.firsts[i].index()].iter().copied();
            readers.filter(|i| done[*i] == Done::No)
        };
        let is_scale = |i: &usize| matches!(self.node(*i).op, Op::ScaleBy { .. });
        let scale = readers(add).find(is_scale).filter(|_| self.has_one_reader(self.firsts[add]));
        let post = readers(scale.unwrap_or(add)).find(of_rows);
        if pre.is_none() && post.is_none() {
            return Unit::Node(add);
        }
        Unit::Residual { pre, add, scale, post }
    }
}

impl Unit {
    /// Whether something holds of the node in whose place it is done.
    pub(crate) fn is(&self, holds: impl Fn(usize) -> bool) -> bool {
        holds(self.main())
    }
}
