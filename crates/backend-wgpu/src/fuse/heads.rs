//! What is done with queries, keys and values before attention, as one kernel.

use lapidary_program::{Graph, Op, ValueId};

use super::{Readers, Unit};
use crate::adapter::Abilities;
use crate::ops::heads::{Heads, fits};

/// The nodes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadNodes {
    pub q_norm: usize,
    pub q_rope: usize,
    pub k_norm: usize,
    pub k_rope: usize,
    pub v_norm: Option<usize>,
    /// What writes the cache.
    pub write: usize,
}

impl HeadNodes {
    /// In the order in which they are done.
    pub(super) fn nodes(&self) -> Vec<usize> {
        let HeadNodes { q_norm, q_rope, k_norm, k_rope, v_norm, write } = *self;
        let mut nodes = vec![q_norm, q_rope, k_norm, k_rope];
        nodes.extend(v_norm);
        nodes.push(write);
        nodes
    }

    /// What they do.
    pub(crate) fn heads<'a>(&self, graph: &'a Graph) -> Heads<'a> {
        let op = |i: usize| &graph.nodes[i].op;
        let (Op::Rope(rope), Op::KvWrite { state }) = (op(self.q_rope), op(self.write)) else {
            unreachable!("found as a rope and a write")
        };
        let norms = [Some(op(self.q_norm)), Some(op(self.k_norm)), self.v_norm.map(op)];
        Heads { norms, rope, state }
    }
}

/// Units of which some have become one.
pub(super) fn fused(graph: &Readers<'_>, abilities: &Abilities, units: Vec<Unit>) -> Vec<Unit> {
    let mut units = units;
    let mut at = 0;
    while at < units.len() {
        let found = match units[at] {
            Unit::Node(write) => find(graph, abilities, &units, at, write),
            _ => None,
        };
        if let Some((heads, parts)) = found {
            // All is done where the last of them was; nothing before needs what they make.
            let last = parts.iter().copied().max().unwrap_or(at);
            units[last] = Unit::Heads(heads);
            let mut i = 0;
            units.retain(|_| {
                i += 1;
                i - 1 == last || !parts.contains(&(i - 1))
            });
            at -= parts.iter().filter(|part| **part < at).count();
        } else {
            at += 1;
        }
    }
    units
}

/// The nodes that can be done at once with `write`, and the units that they are.
fn find(
    graph: &Readers<'_>,
    abilities: &Abilities,
    units: &[Unit],
    at: usize,
    write: usize,
) -> Option<(HeadNodes, Vec<usize>)> {
    let node = graph.node(write);
    let Op::KvWrite { state } = &node.op else { return None };
    let [k, v] = [node.inputs[0], node.inputs[1]];
    let turned = |value: ValueId| {
        units.iter().position(|unit| match unit {
            Unit::NormRope { rope, .. } => graph.firsts[*rope] == value,
            _ => false,
        })
    };
    let k_at = turned(k).filter(|_| graph.has_one_reader(k))?;
    let reads_cache = |i: &usize| match &graph.node(*i).op {
        Op::Attention { state: own, .. } => own == state,
        _ => false,
    };
    // The queries of this layer: those of the next to read the cache.
    let behind = &units[at + 1..];
    let q = behind.iter().find_map(|unit| match unit {
        Unit::Node(i) if reads_cache(i) => Some(graph.node(*i).inputs[0]),
        _ => None,
    })?;
    let q_at = turned(q).filter(|_| graph.has_one_reader(q))?;
    let v_at = units.iter().position(|unit| match unit {
        Unit::Node(i) => matches!(graph.node(*i).op, Op::RmsNorm { .. }) && graph.firsts[*i] == v,
        _ => false,
    });
    let v_at = v_at.filter(|_| graph.has_one_reader(v));
    let (
        Unit::NormRope { norm: q_norm, rope: q_rope },
        Unit::NormRope { norm: k_norm, rope: k_rope },
    ) = (&units[q_at], &units[k_at])
    else {
        return None;
    };
    let v_norm = v_at.and_then(|i| match units[i] {
        Unit::Node(norm) => Some(norm),
        _ => None,
    });
    let (q_rope, k_rope) = (*q_rope, *k_rope);
    let heads = HeadNodes { q_norm: *q_norm, q_rope, k_norm: *k_norm, k_rope, v_norm, write };
    let [q_turn, k_turn] = [q_rope, k_rope].map(|i| graph.node(i));
    let fits = q_turn.op == k_turn.op && fits(abilities, &heads.heads(&graph.method.graph));
    let parts = [Some(q_at), Some(k_at), v_at, Some(at)];
    fits.then(|| (heads, parts.into_iter().flatten().collect()))
}
