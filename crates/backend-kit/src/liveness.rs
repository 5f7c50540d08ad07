//! Which values of a method are needed until when, and what for.

use lapidary_backend::{LoadOptions, Sizes};
use lapidary_program::{Method, Op, Program};

/// The last step that needs each value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Liveness {
    last: Vec<usize>,
}

impl Liveness {
    /// Steps are the nodes, in order.
    pub fn of_nodes(method: &Method) -> Self {
        let nodes: Vec<[usize; 1]> = (0..method.graph.nodes.len()).map(|i| [i]).collect();
        Self::of_steps(method, &nodes, |_, _| false)
    }

    /// Steps are groups of nodes, in the order in which they run. `lasts` says of a step and a
    /// value that it reads or makes whether the value is needed to the end from then on.
    pub fn of_steps(
        method: &Method,
        steps: &[impl AsRef<[usize]>],
        lasts: impl Fn(usize, usize) -> bool,
    ) -> Self {
        let graph = &method.graph;
        let (firsts, n_values) = graph.first_outputs();
        let mut last = vec![0; n_values];
        for (at, nodes) in steps.iter().enumerate() {
            for i in nodes.as_ref() {
                let made = firsts[*i].index()..firsts[*i].index() + graph.nodes[*i].op.n_outputs();
                let read = graph.nodes[*i].inputs.iter().map(|id| id.index());
                for value in read.chain(made) {
                    let until = if lasts(at, value) { usize::MAX } else { at };
                    last[value] = last[value].max(until);
                }
            }
        }
        for out in &graph.outputs {
            last[out.value.index()] = usize::MAX;
        }
        Liveness { last }
    }

    /// Whether nobody needs a value after a step.
    pub fn ends(&self, value: usize, step: usize) -> bool {
        self.last[value] <= step
    }

    /// Those of some values that nobody needs after a step, each once.
    pub fn ended(&self, step: usize, values: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut ended: Vec<usize> = Vec::new();
        for value in values {
            if self.ends(value, step) && !ended.contains(&value) {
                ended.push(value);
            }
        }
        ended
    }
}

/// The last node that reads each value, or that makes it if none does; `None` for outputs, which
/// are needed after all nodes.
pub fn last_uses(method: &Method) -> Vec<Option<usize>> {
    let live = Liveness::of_nodes(method);
    live.last.into_iter().map(|node| (node != usize::MAX).then_some(node)).collect()
}

/// What a node is needed for: outputs by their number, and keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purposes(u64);

/// The bit of keys and values, and of outputs that have no bit of their own.
const ALWAYS: u64 = 1 << 63;

impl Purposes {
    /// Every call has need of it.
    pub const ALL: Purposes = Purposes(u64::MAX);

    /// What each node of a method is needed for.
    pub fn of(method: &Method) -> Vec<Purposes> {
        let graph = &method.graph;
        let (firsts, n_values) = graph.first_outputs();
        let mut values = vec![0u64; n_values];
        for (i, out) in graph.outputs.iter().enumerate() {
            values[out.value.index()] |= Self::output(i).0;
        }
        let mut nodes = vec![Purposes(0); graph.nodes.len()];
        for (i, node) in graph.nodes.iter().enumerate().rev() {
            let made = firsts[i].index()..firsts[i].index() + node.op.n_outputs();
            let writes = if matches!(node.op, Op::KvWrite { .. }) { ALWAYS } else { 0 };
            nodes[i].0 = values[made].iter().fold(writes, |all, bits| all | bits);
            for id in &node.inputs {
                values[id.index()] |= nodes[i].0;
            }
        }
        nodes
    }

    /// That of a call for some outputs: `true` for those that are wanted, in the order of the graph.
    pub fn wanted(outputs: impl IntoIterator<Item = bool>) -> Purposes {
        let wanted = outputs.into_iter().enumerate().filter(|(_, wanted)| *wanted);
        Purposes(wanted.fold(ALWAYS, |all, (i, _)| all | Self::output(i).0))
    }

    fn output(i: usize) -> Purposes {
        Purposes(if i < 63 { 1 << i } else { ALWAYS })
    }

    /// Those of several nodes that are done together.
    pub fn of_all(nodes: impl IntoIterator<Item = Purposes>) -> Purposes {
        Purposes(nodes.into_iter().fold(0, |all, node| all | node.0))
    }

    /// Whether a node with these purposes serves a call.
    pub fn serves(self, call: Purposes) -> bool {
        self.0 & call.0 != 0
    }
}

/// An upper bound of the activations of one call: the most bytes of values that are alive at once,
/// in the method that needs most.
pub fn activation_bytes(program: &Program, options: &LoadOptions) -> u64 {
    let sizes = Sizes::planned(options);
    let wanted = program.methods().iter().filter(|(name, _)| options.wants(name));
    wanted.map(|(_, method)| peak_bytes(method, sizes)).max().unwrap_or(0)
}

fn peak_bytes(m: &Method, sizes: Sizes) -> u64 {
    let bytes = |v: usize| {
        let t = &m.types()[v];
        let len = sizes.len_of(t) as u64;
        len.saturating_mul(t.channels() as u64).saturating_mul(4)
    };
    let live = Liveness::of_nodes(m);
    let (firsts, _) = m.graph.first_outputs();
    let mut alive: u64 = (0..m.graph.inputs.len()).map(bytes).sum();
    let mut peak = alive;
    for (i, node) in m.graph.nodes.iter().enumerate() {
        let made = firsts[i].index()..firsts[i].index() + node.op.n_outputs();
        alive = alive.saturating_add(made.clone().map(bytes).sum());
        peak = peak.max(alive);
        let ended = live.ended(i, node.inputs.iter().map(|v| v.index()).chain(made));
        alive = alive.saturating_sub(ended.into_iter().map(bytes).sum());
    }
    peak
}
