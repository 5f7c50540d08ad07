//! Which nodes one kernel does together.
//!
//! Values between them are never stored, so only those are left out that nothing else reads. What a
//! trace shows is every value, so it runs methods of which only linears are grouped.

use lapidary_program::{Method, Node, Op, ValueId};

/// The widest rows of `residual` in `rows.cu`.
const MOST_CHANNELS: usize = 8 << 10;
/// The widest heads.
const MOST_HEAD: u32 = 512;

/// Nodes that are done at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A node by itself.
    Node(usize),
    /// Products of the same rows with packed weights.
    Together(Vec<usize>),
    /// A node that an earlier unit has done.
    Done(usize),
    /// `(x + norm(a)) · s`, and the norm of that; all but the sum may be left out.
    Residual(ResidualNodes),
    /// Queries and keys normed and turned, values normed perhaps, and the cache written.
    Heads(HeadNodes),
}

/// The nodes of a residual sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResidualNodes {
    pub pre: Option<usize>,
    pub add: usize,
    /// What the sum adds to: `x`.
    pub to: ValueId,
    pub scale: Option<usize>,
    pub post: Option<usize>,
}

/// The nodes before attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadNodes {
    pub q_norm: usize,
    pub q_rope: usize,
    /// Of a layer that writes its cache.
    pub write: Option<WriteNodes>,
}

/// The nodes that make keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteNodes {
    pub k_norm: usize,
    pub k_rope: usize,
    pub v_norm: Option<usize>,
    pub write: usize,
}

impl Unit {
    /// Its nodes.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        match self {
            Unit::Node(i) => vec![*i],
            Unit::Together(nodes) => nodes.clone(),
            Unit::Done(_) => vec![],
            Unit::Residual(r) => {
                [r.pre, Some(r.add), r.scale, r.post].into_iter().flatten().collect()
            }
            Unit::Heads(h) => {
                let write =
                    h.write.map(|w| [Some(w.k_norm), Some(w.k_rope), w.v_norm, Some(w.write)]);
                let write = write.into_iter().flatten().flatten();
                write.chain([h.q_norm, h.q_rope]).collect()
            }
        }
    }

    /// The node in whose place it is done.
    pub(crate) fn place(&self) -> usize {
        match self {
            Unit::Node(i) | Unit::Done(i) => *i,
            Unit::Together(nodes) => nodes[0],
            Unit::Residual(r) => r.add,
            Unit::Heads(h) => h.q_rope,
        }
    }
}

/// Who makes and who reads each value.
struct Readers<'a> {
    method: &'a Method,
    firsts: Vec<ValueId>,
    /// By value the node that makes it.
    makers: Vec<Option<usize>>,
    readers: Vec<Vec<usize>>,
    is_output: Vec<bool>,
}

/// Nodes in order, linears in `groups`; others together too, if they may be.
pub(crate) fn units(method: &Method, groups: &[Vec<usize>], fuses: bool) -> Vec<Unit> {
    let graph = Readers::new(method);
    let mut taken = vec![false; method.graph.nodes.len()];
    let mut units: Vec<Unit> = Vec::new();
    for group in groups {
        group.iter().for_each(|i| taken[*i] = true);
        units.push(Unit::Together(group.clone()));
        if !fuses {
            units.extend(group[1..].iter().map(|i| Unit::Done(*i)));
        }
    }
    if fuses {
        for i in 0..method.graph.nodes.len() {
            let unit = match &method.graph.nodes[i].op {
                Op::Attention { .. } => graph.heads(i, &taken).map(Unit::Heads),
                Op::Add => graph.residual(i, &taken).map(Unit::Residual),
                _ => None,
            };
            if let Some(unit) = unit {
                unit.nodes().into_iter().for_each(|node| taken[node] = true);
                units.push(unit);
            }
        }
    }
    units.extend((0..taken.len()).filter(|i| !taken[*i]).map(Unit::Node));
    units.sort_by_key(Unit::place);
    units
}

impl<'a> Readers<'a> {
    fn new(method: &'a Method) -> Self {
        let (firsts, n_values) = method.graph.first_outputs();
        let (mut readers, mut makers) = (vec![Vec::new(); n_values], vec![None; n_values]);
        for (i, node) in method.graph.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|id| readers[id.index()].push(i));
            let made = firsts[i].index()..firsts[i].index() + node.op.n_outputs();
            makers[made].fill(Some(i));
        }
        let mut is_output = vec![false; n_values];
        method.graph.outputs.iter().for_each(|out| is_output[out.value.index()] = true);
        Readers { method, firsts, makers, readers, is_output }
    }

    fn node(&self, i: usize) -> &'a Node {
        &self.method.graph.nodes[i]
    }

    fn made(&self, i: usize) -> ValueId {
        self.firsts[i]
    }

    /// The node that makes a value which nothing but one node reads, if no unit has it.
    fn only_for(&self, value: ValueId, taken: &[bool]) -> Option<usize> {
        let is_only = self.readers[value.index()].len() == 1 && !self.is_output[value.index()];
        self.makers[value.index()].filter(|i| is_only && !taken[*i])
    }

    fn channels(&self, value: ValueId) -> usize {
        self.method.types()[value.index()].channels()
    }

    /// Whether a node norms runs of so many channels.
    fn is_norm(&self, i: usize, channels: usize) -> bool {
        matches!(&self.node(i).op, Op::RmsNorm { width, .. } if *width as usize == channels)
    }

    fn residual(&self, add: usize, taken: &[bool]) -> Option<ResidualNodes> {
        let made = self.made(add);
        let channels = self.channels(made);
        if taken[add] || channels > MOST_CHANNELS {
            return None;
        }
        let [first, second] = self.node(add).inputs[..] else { return None };
        let norm =
            |value: ValueId| self.only_for(value, taken).filter(|i| self.is_norm(*i, channels));
        let (pre, to) = match (norm(second), norm(first)) {
            (Some(pre), _) => (Some(pre), first),
            (None, Some(pre)) => (Some(pre), second),
            (None, None) => (None, first),
        };
        let free = |value: ValueId| {
            let readers = self.readers[value.index()].iter().copied();
            readers.filter(|i| !taken[*i])
        };
        let is_alone = self.readers[made.index()].len() == 1 && !self.is_output[made.index()];
        let is_scale = |i: &usize| matches!(self.node(*i).op, Op::ScaleBy { .. });
        let scale = free(made).find(is_scale).filter(|_| is_alone);
        let summed = scale.map_or(made, |i| self.made(i));
        let post = free(summed).find(|i| self.is_norm(*i, channels));
        (pre.is_some() || post.is_some()).then_some(ResidualNodes { pre, add, to, scale, post })
    }

    /// A norm of heads and the turn after it that make a value.
    fn turned(&self, value: ValueId, taken: &[bool]) -> Option<(usize, usize)> {
        let rope = self.only_for(value, taken)?;
        let Op::Rope(spec) = &self.node(rope).op else { return None };
        let norm = self.only_for(self.node(rope).inputs[0], taken)?;
        let fits = spec.head_dim <= MOST_HEAD && self.is_norm(norm, spec.head_dim as usize);
        fits.then_some((norm, rope))
    }

    fn heads(&self, attention: usize, taken: &[bool]) -> Option<HeadNodes> {
        let node = self.node(attention);
        let Op::Attention { state, .. } = &node.op else { return None };
        let (q_norm, q_rope) = self.turned(node.inputs[0], taken)?;
        // Keys are written before, if they are.
        let writes =
            |i: &usize| matches!(&self.node(*i).op, Op::KvWrite { state: s } if s == state);
        let write = (0..attention).find(writes).filter(|i| !taken[*i]);
        let write = write.and_then(|write| {
            let [k, v] = self.node(write).inputs[..] else { return None };
            let (k_norm, k_rope) = self.turned(k, taken)?;
            let (Op::Rope(a), Op::Rope(b)) = (&self.node(k_rope).op, &self.node(q_rope).op) else {
                return None;
            };
            let width = a.head_dim as usize;
            let v_norm = self.only_for(v, taken).filter(|i| self.is_norm(*i, width));
            let v_norm =
                v_norm.filter(|i| matches!(&self.node(*i).op, Op::RmsNorm { weight: None, .. }));
            // One kernel, one number under the root.
            let eps = |i: usize| match &self.node(i).op {
                Op::RmsNorm { eps, .. } => eps.to_bits(),
                _ => 0,
            };
            let same = [Some(k_norm), v_norm].into_iter().flatten().all(|i| eps(i) == eps(q_norm));
            (a == b && same).then_some(WriteNodes { k_norm, k_rope, v_norm, write })
        });
        Some(HeadNodes { q_norm, q_rope, write })
    }
}
