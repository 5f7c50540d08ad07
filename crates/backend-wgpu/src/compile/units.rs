//! Compiles nodes, alone or fused.

use lapidary_backend_kit::Purposes;
use lapidary_program::{AttentionSpec, Op, ValueId, ValueType};

use super::lengths;
use super::method::MethodCompiler;
use crate::fuse::{Attended, HeadNodes, Linears, Queries, Unit, weight_of};
use crate::host::{HostFeed, TableRows};
use crate::linear::PackedForm;
use crate::ops;
use crate::ops::attention_one::Operands;
use crate::step::{Keys, Step, Value};

impl MethodCompiler<'_> {
    /// Compiles nodes as step number `at`.
    pub(super) fn unit(&mut self, at: usize, unit: &Unit) -> Step {
        let nodes = unit.nodes();
        let made = match unit {
            Unit::Node(i) => self.node(*i),
            Unit::Linears(linears) => self.linears(linears),
            Unit::NormRope { norm, rope } => vec![self.norm_rope(*norm, *rope)],
            Unit::SliceGate { slice, gate, linear } => {
                vec![self.slice_gate(*slice, *gate, linear.as_ref())]
            }
            Unit::Heads(heads) => vec![self.heads(heads)],
            Unit::Attended(attended) => vec![self.attended(attended)],
            Unit::Residual { pre, add, scale, post } => self.residual(*pre, *add, *scale, *post),
        };
        for buffer in std::mem::take(&mut self.scratch) {
            self.out.arena.give_back(buffer);
        }
        let method = self.method;
        let read = nodes.iter().flat_map(|i| &method.graph.nodes[*i].inputs).map(|id| id.index());
        self.release(at, read.chain(made.iter().copied()));
        let is_f32 = |v: &usize| matches!(self.method.types()[*v], ValueType::F32(_));
        let shown = made.into_iter().filter(is_f32).filter_map(|v| self.values[v]).collect();
        let dispatches = std::mem::take(&mut self.dispatches);
        let purposes = Purposes::of_all(nodes.iter().map(|i| self.purposes[*i]));
        Step { nodes, purposes, dispatches, shown }
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
        if let Op::Attention { spec, .. } = &node.op {
            self.keep_attended(spec, first);
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
        if ops::takes_bytes(self, &linears.form) {
            self.keep_bytes(made[0], Some(1));
        }
        // What only the gate reads is no value of the graph here.
        let mut factors = Vec::with_capacity(linears.nodes.len());
        for i in &linears.nodes {
            let (rows, channels) = lengths(&self.method.types()[self.first(*i)]);
            factors.push(self.scratch(rows, channels));
        }
        let gate = outputs.first().map(|y| ops::Gate { y: *y, up: None });
        ops::linears(self, &weights, linears.form, x, &factors, gate);
        made
    }

    fn norm_rope(&mut self, norm: usize, rope: usize) -> usize {
        let [norm, turn] = [norm, rope].map(|i| &self.method.graph.nodes[i]);
        let Op::Rope(spec) = &turn.op else { unreachable!("fused with a rope") };
        let x = self.value(norm.inputs[0]);
        let v = self.first(rope);
        let y = self.make(v);
        let table = ops::rope::table(self, spec, x);
        let rope = Some((table, spec.rotated_pairs));
        ops::rms_norm::rms_norm(self, &norm.op, rope, x, y, Keys::Any);
        v
    }

    fn slice_gate(
        &mut self,
        slice: usize,
        gate: usize,
        linear: Option<&(usize, PackedForm)>,
    ) -> usize {
        let [slice, gated] = [slice, gate].map(|i| &self.method.graph.nodes[i]);
        let Op::Slice { start, .. } = slice.op else { unreachable!("fused with a slice") };
        let up = self.value(slice.inputs[0]);
        let v = self.first(gate);
        if let Some((i, form)) = linear {
            let node = &self.method.graph.nodes[*i];
            let (rows, channels) = lengths(&self.method.types()[self.first(*i)]);
            let x = self.value(node.inputs[0]);
            let y = self.make(v);
            let factor = self.scratch(rows, channels);
            let gate = ops::Gate { y, up: Some((up, start)) };
            ops::linears(
                self,
                &weight_of(node).into_iter().collect::<Vec<_>>(),
                *form,
                x,
                &[factor],
                Some(gate),
            );
            return v;
        }
        let x = self.value(gated.inputs[0]);
        let y = self.make(v);
        ops::gelu_gate::gelu_gate(self, x, (up, start), y);
        v
    }

    /// Values of attention may be kept in bytes beside.
    fn keep_attended(&mut self, spec: &AttentionSpec, v: usize) {
        if spec.head_dim.is_multiple_of(32) && spec.head_dim <= 512 {
            self.keep_bytes(v, None);
        }
    }

    /// Queries, keys and values before what is done to them, slots and positions.
    fn head_values(&self, nodes: &HeadNodes) -> [Value; 3] {
        let graph = &self.method.graph;
        let [q, k] = [nodes.q_norm, nodes.k_norm].map(|i| graph.nodes[i].inputs[0]);
        let write = &graph.nodes[nodes.write].inputs;
        let v = nodes.v_norm.map_or(write[1], |i| graph.nodes[i].inputs[0]);
        [q, k, v].map(|id| self.value(id))
    }

    /// The angles of some queries.
    fn angles(&mut self, rope: usize, x: Value) -> (Value, u32) {
        let turn = &self.method.graph.nodes[rope];
        let Op::Rope(spec) = &turn.op else { unreachable!("found as a rope") };
        (ops::rope::table(self, spec, x), spec.rotated_pairs)
    }

    /// The queries that it makes.
    fn heads(&mut self, nodes: &HeadNodes) -> usize {
        let made = self.first(nodes.q_rope);
        let x = self.head_values(nodes);
        let y = self.make(made);
        self.heads_of(nodes, x, y, Keys::Any);
        made
    }

    fn heads_of(&mut self, nodes: &HeadNodes, x: [Value; 3], y: Value, keys: Keys) {
        let heads = nodes.heads(&self.method.graph);
        let (table, _) = self.angles(nodes.q_rope, x[0]);
        ops::heads::heads(self, &heads, x, table, y, keys);
    }

    /// Attention and what comes before it: by one kernel for a token that sees few keys, by several
    /// for all else.
    fn attended(&mut self, nodes: &Attended) -> usize {
        let graph = &self.method.graph;
        let one = nodes.one(graph);
        let made = self.first(nodes.attention);
        let (rope, heads) = match nodes.queries {
            Queries::Heads(heads) => (heads.q_rope, Some(self.head_values(&heads))),
            Queries::Turned { rope, .. } => (rope, None),
        };
        let q = match (nodes.queries, heads) {
            (Queries::Turned { norm, .. }, _) => self.value(graph.nodes[norm].inputs[0]),
            (_, Some([q, ..])) => q,
            (Queries::Heads(_), None) => unreachable!("heads have values"),
        };
        let y = self.make(made);
        self.keep_attended(one.spec, made);
        let turned = self.scratch(q.rows, q.channels);
        let (table, pairs) = self.angles(rope, q);
        let operands = Operands { q, kv: heads.map(|[_, k, v]| [k, v]), table, y };
        one.compile(self, &operands);
        let (_, cache) = self.cache(one.state);
        let keys = Keys::Beyond(one.most_keys(self.abilities, &cache));
        match (nodes.queries, heads) {
            (Queries::Heads(own), Some(values)) => self.heads_of(&own, values, turned, keys),
            _ => ops::rms_norm::rms_norm(self, one.q_norm, Some((table, pairs)), q, turned, keys),
        }
        ops::attention::attention(self, one.state, one.spec, turned, y, keys);
        made
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
        if post.is_some() {
            self.keep_bytes(made[1], None);
        }
        let parts = [op(pre), op(scale), op(post)];
        ops::residual::residual(self, parts, operands, values[0], values.get(1).copied());
        made
    }

    /// What the host makes in the place of a kernel, if it does.
    fn fed(&mut self, op: &Op, inputs: &[ValueId]) -> Option<HostFeed> {
        let Op::Embed { weight, scale, start, stride, soft_id } = op else { return None };
        if self.has_tables() {
            return None;
        }
        let mut inputs = inputs.iter().map(|id| id.index());
        Some(HostFeed::Rows(TableRows {
            table: self.out.weights.table(weight),
            ids: inputs.next()?,
            scale: *scale,
            start: *start as usize,
            stride: *stride as usize,
            soft: soft_id.map(|id| id as usize).zip(inputs.next()),
        }))
    }
}
