//! Linears that one kernel can make together.
//!
//! Those that read the same value become one matrix of more rows: a decode step is bound by how
//! many dispatches it has as much as by the bytes that it reads. A gate and its other factor become
//! one with the activation between them, and are then no values of their own.

use std::collections::{HashMap, HashSet};

use lapidary_backend::LoadOptions;
use lapidary_program::{Method, Node, Op, Program, ValueId};

use crate::linear::PackedForm;
use crate::weights::WeightPlan;

/// Matrices that may stand together: a kernel binds so many outputs.
const MOST: usize = 3;

/// Linears that are made together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Linears {
    /// In the order of the graph.
    pub nodes: Vec<usize>,
    pub form: PackedForm,
    /// The gate that the two of them feed alone.
    pub gate: Option<usize>,
}

/// All linears of a method that are made together.
pub(super) fn groups(
    program: &Program,
    method: &Method,
    options: &LoadOptions,
    wanted: &WeightPlan,
) -> Vec<Linears> {
    let uses = weight_uses(program, options);
    let nodes = &method.graph.nodes;
    let mut taken = HashSet::new();
    let mut groups = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        if taken.contains(&i) {
            continue;
        }
        let Some((_, form)) = packable(program, options, &uses, node) else { continue };
        let alike = |(j, other): (usize, &Node)| {
            let (_, own) = packable(program, options, &uses, other)?;
            let free = !taken.contains(&j);
            (free && other.inputs == node.inputs && own == form).then_some(j)
        };
        let mut linears = vec![i];
        linears.extend(nodes.iter().enumerate().skip(i + 1).filter_map(alike).take(MOST - 1));
        let gate = gate_of(method, &linears);
        if gate.is_some() {
            linears.truncate(2);
        }
        let names: Vec<&str> = linears.iter().filter_map(|j| weight_of(&nodes[*j])).collect();
        if linears.len() > 1 && wanted.fit_together(program, &names, &form) {
            taken.extend(linears.iter().copied().chain(gate));
            groups.push(Linears { nodes: linears, form, gate });
        }
    }
    groups
}

/// The form of a linear that may be gated where it is made.
pub(super) fn alone(
    program: &Program,
    options: &LoadOptions,
    method: &Method,
    i: usize,
) -> Option<PackedForm> {
    let weight = weight_of(&method.graph.nodes[i])?;
    PackedForm::of(&program.weights()[weight], options.precision)
}

/// The gate that is all that two linears are for, the first of which goes through the activation.
fn gate_of(method: &Method, linears: &[usize]) -> Option<usize> {
    let (firsts, _) = method.graph.first_outputs();
    let [a, b] = [firsts[*linears.first()?], firsts[*linears.get(1)?]];
    let nodes = &method.graph.nodes;
    let at = nodes.iter().position(|n| matches!(n.op, Op::GeluGate) && n.inputs == [a, b])?;
    let read = |id: ValueId| {
        let inputs = nodes.iter().flat_map(|n| &n.inputs).filter(|input| **input == id).count();
        inputs + method.graph.outputs.iter().filter(|out| out.value == id).count()
    };
    let same = method.types()[a.index()] == method.types()[b.index()];
    (same && read(a) == 1 && read(b) == 1).then_some(at)
}

/// The weight of a linear without a bias.
pub(crate) fn weight_of(node: &Node) -> Option<&str> {
    match &node.op {
        Op::Linear { weight, bias: None } => Some(weight),
        _ => None,
    }
}

/// The weight and the form of a linear that may stand with others: one that nobody else reads.
fn packable<'a>(
    program: &Program,
    options: &LoadOptions,
    uses: &HashMap<&str, usize>,
    node: &'a Node,
) -> Option<(&'a str, PackedForm)> {
    let weight = weight_of(node)?;
    let form = PackedForm::of(&program.weights()[weight], options.precision)?;
    (uses.get(weight) == Some(&1)).then_some((weight, form))
}

/// How many nodes multiply with each weight.
fn weight_uses<'a>(program: &'a Program, options: &LoadOptions) -> HashMap<&'a str, usize> {
    let mut uses = HashMap::new();
    for (_, method) in program.methods().iter().filter(|(name, _)| options.wants(name)) {
        for node in &method.graph.nodes {
            if let Op::Linear { weight, .. } = &node.op {
                *uses.entry(weight.as_str()).or_default() += 1;
            }
        }
    }
    uses
}
