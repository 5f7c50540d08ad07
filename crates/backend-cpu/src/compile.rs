//! Methods as lists of steps: weights by number, activations in buffers that are reused.
//!
//! Compiling needs declarations only, so that `plan` knows to the byte what `load` will take.
//! Methods that will not be called are not compiled, and what only they need is not taken.

mod tower;

use std::collections::{BTreeMap, HashMap, HashSet};

use lapidary_backend::{LoadOptions, Sizes};
use lapidary_backend_kit::{Liveness, Purposes, rope_frequencies};
use lapidary_program::{Dim, Method, Node, Op, Program, RopeSpec, Sym, ValueId, ValueType};

use crate::cache::CacheShape;
use crate::matrix::PackedWeight;
use crate::ops::embed::Picked;
use crate::ops::{attention, experts};
use crate::step::{CompiledMethod, Place, RoomShape, Step, StepOp, Value};
use crate::threads_of;
use crate::weights::{MatrixId, Wanted, matrix_shape};

/// A program made ready for this backend, but for the bytes of its weights.
pub(crate) struct Compiled {
    pub methods: BTreeMap<String, CompiledMethod>,
    pub weights: Wanted,
    pub caches: Vec<CacheShape>,
    pub room: RoomShape,
}

impl Compiled {
    pub(crate) fn new(program: &Program, options: &LoadOptions) -> Self {
        let methods = || program.methods().iter().filter(|(name, _)| options.wants(name));
        let used = used_states(methods().map(|(_, method)| method));
        let caches = program.states().iter().enumerate().map(|(i, state)| {
            let group = program.kv_groups().iter().position(|group| group.states.contains(&i));
            let shape = CacheShape::of(state, group.expect("every state is in a group"), options);
            let n_pages = if used.contains(state.name.as_str()) { shape.n_pages } else { 0 };
            CacheShape { n_pages, ..shape }
        });
        let mut compiled = Compiled {
            methods: BTreeMap::new(),
            weights: Wanted::default(),
            caches: caches.collect(),
            room: RoomShape::new(Sizes::planned(options)),
        };
        let planned = Planned {
            sizes: Sizes::planned(options),
            n_threads: threads_of(options),
            max_context: options.max_context,
        };
        for (name, method) in methods() {
            let method = MethodCompiler::new(program, method, planned, &mut compiled).compile();
            compiled.methods.insert(name.clone(), method);
        }
        compiled
    }
}

/// What buffers are made for. They grow when a call is longer.
#[derive(Clone, Copy)]
struct Planned {
    sizes: Sizes,
    n_threads: usize,
    max_context: u32,
}

struct MethodCompiler<'a> {
    program: &'a Program,
    method: &'a Method,
    planned: Planned,
    out: &'a mut Compiled,
    /// Where each value is; `None` before it is made.
    values: Vec<Option<Value>>,
    live: Liveness,
    /// By node.
    purposes: Vec<Purposes>,
    rope_tables: HashMap<RopeKey, Value>,
    axial_tables: HashMap<AxialKey, Value>,
    steps: Vec<Step>,
}

/// A rope spec as a key: equal bits turn alike.
type RopeKey = (u32, u64, u32, u64);
/// Columns, rows, and an axial rope's spec as a key.
type AxialKey = (ValueId, ValueId, u32, u64);

impl<'a> MethodCompiler<'a> {
    fn new(
        program: &'a Program,
        method: &'a Method,
        planned: Planned,
        out: &'a mut Compiled,
    ) -> Self {
        let fed = method.graph.inputs.iter().enumerate();
        let values = fed.map(|(i, input)| Some(value(&input.value_type, Place::Feed(i)))).collect();
        out.room.floats.free_all();
        out.room.ids.free_all();
        MethodCompiler {
            program,
            method,
            planned,
            out,
            values,
            live: Liveness::of_nodes(method),
            purposes: Purposes::of(method),
            rope_tables: HashMap::new(),
            axial_tables: HashMap::new(),
            steps: Vec::new(),
        }
    }

    fn compile(mut self) -> CompiledMethod {
        for (i, node) in self.method.graph.nodes.iter().enumerate() {
            self.node(i, node);
        }
        let outputs = self.method.graph.outputs.iter();
        let outputs = outputs.map(|o| (o.name.clone(), self.value(o.value))).collect();
        CompiledMethod { steps: self.steps, outputs }
    }

    fn value(&self, id: ValueId) -> Value {
        self.values[id.index()].expect("validation has values made before they are read")
    }

    fn node(&mut self, i: usize, node: &'a Node) {
        let mut inputs: Vec<Value> = node.inputs.iter().map(|id| self.value(*id)).collect();
        if let Op::Rope(spec) = &node.op {
            inputs.push(self.rope_table(spec));
        }
        if let Op::AxialRope(spec) = &node.op {
            inputs = vec![inputs[0], self.axial_table(spec, [node.inputs[1], node.inputs[2]])];
        }
        let op = self.resolve(&node.op, &inputs);
        let in_place = self.can_be_in_place(i, node);
        let first = self.values.len();
        let mut outputs = Vec::with_capacity(node.op.n_outputs());
        for value_type in &self.method.types()[first..first + node.op.n_outputs()] {
            let made = match value_type {
                ValueType::F32(_) if in_place => inputs[0],
                ValueType::F32(_) => self.take_floats(value_type),
                ValueType::I32(_) => self.take_ids(value_type),
            };
            outputs.push(made);
            self.values.push(Some(made));
        }
        let made = first..first + outputs.len();
        let kept = if in_place { Some(node.inputs[0].index()) } else { None };
        self.release(i, node.inputs.iter().map(|id| id.index()).chain(made), kept);
        let purposes = self.purposes[i];
        self.steps.push(Step { node: Some(i), purposes, op, inputs, outputs, in_place });
    }

    /// Adds a step that is no node.
    fn extra(&mut self, op: StepOp, inputs: Vec<Value>, made: Value) {
        let (purposes, outputs) = (Purposes::ALL, vec![made]);
        self.steps.push(Step { node: None, purposes, op, inputs, outputs, in_place: false });
    }

    /// Whether a node's result may take the place of its first input.
    fn can_be_in_place(&self, i: usize, node: &Node) -> bool {
        let can = matches!(
            node.op,
            Op::SoftMerge
                | Op::RmsNorm { .. }
                | Op::LayerNorm { .. }
                | Op::Rope(_)
                | Op::AxialRope(_)
                | Op::SelfAttention { .. }
                | Op::LocalAttention(_)
                | Op::GeluGate
                | Op::SigmoidGate
                | Op::Activate { .. }
                | Op::Clamp { .. }
                | Op::Standardise { .. }
                | Op::Add
                | Op::Scale { .. }
                | Op::ScaleBy { .. }
                | Op::SoftCap { .. }
        );
        let Some((first, rest)) = node.inputs.split_first() else { return false };
        can && matches!(self.value(*first).place, Place::Floats(_))
            && self.live.ends(first.index(), i)
            && !rest.contains(first)
    }

    /// Gives back the buffers of values that node `i` was the last to need.
    fn release(&mut self, i: usize, values: impl Iterator<Item = usize>, kept: Option<usize>) {
        for v in self.live.ended(i, values).into_iter().filter(|v| kept != Some(*v)) {
            match self.values[v].map(|value| value.place) {
                Some(Place::Floats(buffer)) => self.out.room.floats.give_back(buffer),
                Some(Place::Ids(buffer)) => self.out.room.ids.give_back(buffer),
                _ => {}
            }
        }
    }

    fn take_floats(&mut self, value_type: &ValueType) -> Value {
        let mut made = value(value_type, Place::Floats(0));
        made.place = Place::Floats(self.out.room.floats.take(made.rows, made.channels));
        made
    }

    fn take_ids(&mut self, value_type: &ValueType) -> Value {
        let mut made = value(value_type, Place::Ids(0));
        made.place = Place::Ids(self.out.room.ids.take(made.rows, made.channels));
        made
    }

    /// The table of a rope's angles, made where it is first needed and kept to the end.
    fn rope_table(&mut self, spec: &RopeSpec) -> Value {
        let bits = f64::to_bits;
        let key = (spec.head_dim, bits(spec.theta), spec.rotated_pairs, bits(spec.factor));
        if let Some(table) = self.rope_tables.get(&key) {
            return *table;
        }
        let channels = 2 * u64::from(spec.rotated_pairs);
        let table = self.take_floats(&ValueType::rows(Sym::Tokens, channels));
        self.rope_tables.insert(key, table);
        self.extra(StepOp::RopeTable { frequencies: rope_frequencies(spec) }, vec![], table);
        table
    }

    fn cache(&self, state: &str) -> usize {
        let mut states = self.program.states().iter();
        states.position(|s| s.name == state).expect("validation knows the state")
    }

    /// A matrix that is multiplied with so many rows.
    fn matrix(&mut self, weight: &str, n_rows: usize) -> MatrixId {
        let decl = &self.program.weights()[weight];
        let room = &mut self.out.room;
        let need = PackedWeight::activation_bytes(decl, n_rows);
        room.activation_bytes = room.activation_bytes.max(need);
        room.rounded_bytes = room.rounded_bytes.max(PackedWeight::rounded_bytes(decl, n_rows));
        self.out.weights.matrix(weight)
    }

    fn need_per_thread(&mut self, len: usize) {
        self.out.room.per_thread = self.out.room.per_thread.max(len);
    }

    fn need_per_call(&mut self, len: usize) {
        self.out.room.per_call = self.out.room.per_call.max(len);
    }

    fn resolve(&mut self, op: &'a Op, inputs: &[Value]) -> StepOp {
        match op {
            Op::Embed { weight, scale, start, stride, soft_id } => StepOp::Embed {
                table: self.out.weights.table(weight),
                picked: Picked { scale: *scale, start: *start as usize, stride: *stride as usize },
                soft_id: soft_id.map(|id| id as usize),
            },
            Op::SoftMerge => StepOp::SoftMerge,
            Op::Linear { weight, bias } => StepOp::Linear {
                matrix: self.matrix(weight, inputs[0].n_rows(self.planned.sizes)),
                bias: bias.as_deref().map(|b| self.out.weights.vector(b)),
            },
            Op::RmsNorm { weight, eps, offset, width } => StepOp::RmsNorm {
                weight: weight.as_deref().map(|w| self.out.weights.vector(w)),
                eps: *eps,
                offset: *offset,
                width: *width as usize,
            },
            Op::Rope(spec) => StepOp::Rope {
                head_dim: spec.head_dim as usize,
                pairs: spec.rotated_pairs as usize,
            },
            Op::KvWrite { state } => StepOp::KvWrite { cache: self.cache(state) },
            Op::Attention { state, spec } => {
                self.need_per_call(attention::split_scratch(spec, self.planned.max_context));
                self.need_per_thread(attention::tile_scratch(spec.head_dim as usize));
                StepOp::Attention { cache: self.cache(state), spec: *spec }
            }
            Op::GeluGate => StepOp::GeluGate,
            Op::Add => StepOp::Add,
            Op::Scale { factor } => StepOp::Scale { factor: *factor },
            Op::ScaleBy { weight } => StepOp::ScaleBy { weight: self.out.weights.vector(weight) },
            Op::SoftCap { cap } => StepOp::SoftCap { cap: *cap },
            Op::Slice { start, len } => {
                StepOp::Slice { start: *start as usize, len: *len as usize }
            }
            Op::Concat => StepOp::Concat,
            Op::GatherRows => StepOp::GatherRows,
            Op::LayerNorm { .. }
            | Op::AxialRope(_)
            | Op::SelfAttention { .. }
            | Op::LocalAttention(_)
            | Op::Conv2d { .. }
            | Op::CausalConv1d { .. }
            | Op::PoolRows { .. }
            | Op::SigmoidGate
            | Op::Activate { .. }
            | Op::Clamp { .. }
            | Op::Standardise { .. } => self.resolve_tower(op, inputs),
            Op::Router { .. } | Op::Experts { .. } | Op::CentroidHead { .. } => {
                self.resolve_choice(op, inputs[0].n_rows(self.planned.sizes))
            }
        }
    }

    /// The ops that choose among weights; they need room for their scores.
    fn resolve_choice(&mut self, op: &Op, n_rows: usize) -> StepOp {
        match op {
            Op::Router { weight, expert_scale, top_k } => {
                self.need_per_call(n_rows * matrix_shape(self.program, weight).rows);
                StepOp::Router {
                    matrix: self.matrix(weight, n_rows),
                    expert_scale: self.out.weights.vector(expert_scale),
                    top_k: *top_k as usize,
                }
            }
            Op::Experts { gate_up, down } => {
                let (channels, inner) = (
                    matrix_shape(self.program, gate_up).cols,
                    matrix_shape(self.program, down).cols,
                );
                self.need_per_call(n_rows * experts::scratch_per_token(channels, inner));
                StepOp::Experts {
                    gate_up: self.matrix(gate_up, n_rows),
                    down: self.matrix(down, n_rows),
                }
            }
            Op::CentroidHead { centroids, ordering, embedding, top } => {
                self.need_per_call(n_rows * matrix_shape(self.program, centroids).rows);
                StepOp::CentroidHead {
                    centroids: self.matrix(centroids, n_rows),
                    ordering: self.out.weights.ordering(ordering),
                    embedding: self.out.weights.table(embedding),
                    top: *top as usize,
                }
            }
            _ => unreachable!("{} chooses nothing", op.kind()),
        }
    }
}

fn value(value_type: &ValueType, place: Place) -> Value {
    let rows = value_type.shape().first().copied().unwrap_or(Dim::Sym(Sym::Tokens));
    Value { place, rows, channels: value_type.channels() }
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
