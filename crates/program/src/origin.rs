//! Where each index comes from: an op is given its own kind of index and no other.
//!
//! Shapes do not tell `tokens` from `soft_index`, yet one is a row of a table and the other may be
//! −1. Numbers of an input are checked by its name when a call is made; this file sees to it that
//! whoever reads them relies on that very check.

use crate::graph::{Graph, ValueType};
use crate::op::{Op, input};
use crate::rules::Context;

/// What a value is as an index.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin<'a> {
    /// An input of the method, by its name.
    Fed(&'a str),
    /// Experts that a router chose among so many.
    Chosen(u64),
    /// No index.
    Other,
}

/// Rows of tables: token ids, and the places of patches.
const ROWS_OF_TABLES: &[&str] =
    &[input::TOKENS, input::PATCH_INDEX, input::PATCH_X, input::PATCH_Y];

/// Checks every node of a graph whose types are known; the error names the node.
pub(crate) fn check(g: &Graph, cx: &Context<'_>) -> Result<(), (String, String)> {
    let mut origins: Vec<Origin<'_>> = g
        .inputs
        .iter()
        .map(|i| match i.value_type {
            ValueType::I32(_) => Origin::Fed(&i.name),
            ValueType::F32(_) => Origin::Other,
        })
        .collect();
    for node in &g.nodes {
        let of = |i: usize| {
            let id = node.inputs.get(i)?;
            origins.get(id.index()).copied()
        };
        node_takes(&node.op, &of, cx).map_err(|what| (node.name.clone(), what))?;
        match &node.op {
            Op::Router { weight, .. } => {
                let experts = cx.weights.get(weight).and_then(|w| w.shape.first()).copied();
                origins.extend([Origin::Chosen(experts.unwrap_or(0)), Origin::Other]);
            }
            op => origins.extend((0..op.n_outputs()).map(|_| Origin::Other)),
        }
    }
    Ok(())
}

fn node_takes<'a>(
    op: &Op,
    of: &dyn Fn(usize) -> Option<Origin<'a>>,
    cx: &Context<'_>,
) -> Result<(), String> {
    let fed = |i: usize, names: &[&str]| match of(i) {
        Some(Origin::Fed(name)) if names.contains(&name) => Ok(()),
        _ => Err(format!("its input {i} is not the method's `{}`", names.join("` or `"))),
    };
    match op {
        Op::Embed { soft_id, .. } => {
            fed(0, ROWS_OF_TABLES)?;
            if soft_id.is_some() { fed(1, &[input::SOFT_INDEX]) } else { Ok(()) }
        }
        Op::SoftMerge => fed(1, &[input::SOFT_INDEX]),
        Op::GatherRows => fed(1, &[input::ROWS]),
        Op::AxialRope(_) => {
            fed(1, &[input::PATCH_X])?;
            fed(2, &[input::PATCH_Y])
        }
        Op::Experts { gate_up, .. } => {
            let have = cx.weights.get(gate_up).and_then(|w| w.shape.first()).copied();
            match (of(1), have) {
                (Some(Origin::Chosen(n)), Some(have)) if n <= have => Ok(()),
                (Some(Origin::Chosen(n)), Some(have)) => {
                    Err(format!("the router chooses among {n} experts, there are {have}"))
                }
                _ => Err("its input 1 is not what a router chose".into()),
            }
        }
        _ => Ok(()),
    }
}
