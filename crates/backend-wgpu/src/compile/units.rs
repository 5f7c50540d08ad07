//! Compiles nodes, alone or fused.

use lapidary_program::{Op, ValueId, ValueType};

use super::lengths;
use super::method::MethodCompiler;
use crate::fuse::{HeadNodes, Linears, Unit, weight_of};
use crate::host::{HostFeed, TableRows};
use crate::linear::PackedForm;
use crate::ops;
use crate::step::{Step, Value};

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
        match &node.op {
            Op::KvWrite { state } => _ = self.written.insert(state),
            Op::Attention { spec, .. }
                if spec.head_dim.is_multiple_of(32) && spec.head_dim <= 512 =>
            {
                self.keep_bytes(first);
            }
            _ => {}
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
        let table = ops::rope::table(self, spec, turn.inputs[1].index(), x);
        ops::rms_norm::rms_norm(self, &norm.op, Some((table, spec.rotated_pairs)), x, y);
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

    /// The queries that it makes.
    fn heads(&mut self, nodes: &HeadNodes) -> usize {
        let graph = &self.method.graph;
        let heads = nodes.heads(graph);
        let [q, k] = [nodes.q_norm, nodes.k_norm].map(|i| graph.nodes[i].inputs[0]);
        let write = &graph.nodes[nodes.write].inputs;
        let v = nodes.v_norm.map_or(write[1], |i| graph.nodes[i].inputs[0]);
        let x = [q, k, v, write[2], write[3]].map(|id| self.value(id));
        let positions = graph.nodes[nodes.q_rope].inputs[1].index();
        let table = ops::rope::table(self, heads.rope, positions, x[0]);
        let made = self.first(nodes.q_rope);
        let y = self.make(made);
        if let Op::KvWrite { state } = &graph.nodes[nodes.write].op {
            self.written.insert(state);
        }
        ops::heads::heads(self, &heads, x, table, y);
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
            self.keep_bytes(made[1]);
        }
        let parts = [op(pre), op(scale), op(post)];
        ops::residual::residual(self, parts, operands, values[0], values.get(1).copied());
        made
    }

    /// What the host makes in the place of a kernel, if it does.
    fn fed(&mut self, op: &Op, inputs: &[ValueId]) -> Option<HostFeed> {
        let Op::Embed { weight, scale, start, stride, soft_id } = op else { return None };
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
