//! Attention with what is done to its queries, and to the keys and values of the same layer, before
//! it: for a single token one kernel does all.

use lapidary_program::{Graph, Op, ValueId};

use super::{HeadNodes, Readers, Unit};
use crate::adapter::Abilities;
use crate::ops::attention_one::One;

/// The nodes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attended {
    pub queries: Queries,
    pub attention: usize,
}

/// How queries come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queries {
    /// With keys and values.
    Heads(HeadNodes),
    /// By themselves: another layer has written the cache.
    Turned { norm: usize, rope: usize },
}

impl Attended {
    /// In the order in which they are done.
    pub(super) fn nodes(&self) -> Vec<usize> {
        let mut nodes = match self.queries {
            Queries::Heads(heads) => heads.nodes(),
            Queries::Turned { norm, rope } => vec![norm, rope],
        };
        nodes.push(self.attention);
        nodes
    }

    /// What they do.
    pub(crate) fn one<'a>(&self, graph: &'a Graph) -> One<'a> {
        let op = |i: usize| &graph.nodes[i].op;
        let (norm, rope, kv_norms) = match self.queries {
            Queries::Heads(h) => (h.q_norm, h.q_rope, Some((op(h.k_norm), h.v_norm.map(op)))),
            Queries::Turned { norm, rope } => (norm, rope, None),
        };
        let (Op::Rope(rope), Op::Attention { state, spec }) = (op(rope), op(self.attention)) else {
            unreachable!("found as a rope and attention")
        };
        One { spec, rope, q_norm: op(norm), kv_norms, state }
    }
}

/// Units of which some have become one.
pub(super) fn fused(graph: &Readers<'_>, abilities: &Abilities, units: Vec<Unit>) -> Vec<Unit> {
    let mut out: Vec<Unit> = Vec::with_capacity(units.len());
    for unit in units {
        let found = match unit {
            Unit::Node(i) => find(graph, abilities, &out, i),
            _ => None,
        };
        match found {
            Some((at, attended)) => {
                out.remove(at);
                out.push(Unit::Attended(attended));
            }
            None => out.push(unit),
        }
    }
    out
}

/// Where the queries of attention are made, and all of it, if that can be done at once.
fn find(
    graph: &Readers<'_>,
    abilities: &Abilities,
    before: &[Unit],
    attention: usize,
) -> Option<(usize, Attended)> {
    let node = graph.node(attention);
    let Op::Attention { state, spec } = &node.op else { return None };
    let made = |rope: usize, value: ValueId| graph.firsts[rope] == value;
    let q = node.inputs[0];
    let found = before.iter().enumerate().rev().find_map(|(at, unit)| match unit {
        Unit::Heads(heads) if made(heads.q_rope, q) => Some((at, Queries::Heads(*heads))),
        Unit::NormRope { norm, rope } if made(*rope, q) => {
            Some((at, Queries::Turned { norm: *norm, rope: *rope }))
        }
        _ => None,
    });
    let (at, queries) = found.filter(|_| graph.has_one_reader(q))?;
    if let Queries::Heads(heads) = queries {
        // What it writes must be what is read, the token's own key with it, and nobody in between may
        // need it.
        let write = graph.node(heads.write);
        let own = matches!(&write.op, Op::KvWrite { state: s } if s == state) && spec.own_key;
        let reads = |i: usize| match &graph.node(i).op {
            Op::Attention { state: s, .. } => s == state,
            _ => false,
        };
        let needed = before[at + 1..].iter().any(|unit| unit.nodes().into_iter().any(reads));
        if !own || needed {
            return None;
        }
    }
    let attended = Attended { queries, attention };
    attended.one(&graph.method.graph).fits(abilities).then_some((at, attended))
}
