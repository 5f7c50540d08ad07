//! The interpreter: walks a method's nodes in order, each op by its meaning in `ops/`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lapidary_backend::{Engine, Error, Feed, FeedData, LoadOptions, Outputs, Result, Sizes, bind};
use lapidary_program::{Method, Op, Program, StateDecl};
use rayon::ThreadPool;

use crate::ops;

/// A program with the KV state of all its slots.
pub(crate) struct ReferenceEngine {
    program: Arc<Program>,
    options: LoadOptions,
    caches: HashMap<String, Cache>,
    /// `None` where threads can't be had; rayon then runs everything on the caller's thread.
    pool: Option<ThreadPool>,
    threads: usize,
}

/// Keys and values of one state: `[n_slots, capacity, 2, channels]`.
///
/// Position `p` of a slot stands at `p % capacity`. Without a window the capacity is the whole
/// context, so that the ring never wraps.
pub(crate) struct Cache {
    data: Vec<f32>,
    capacity: usize,
    channels: usize,
}

/// The numbers of one value.
enum Value<'a> {
    F32(Vec<f32>),
    I32(Vec<i32>),
    Fed(FeedData<'a>),
}

impl ReferenceEngine {
    pub(crate) fn new(program: Arc<Program>, options: LoadOptions) -> Result<Self> {
        let threads = options
            .threads
            .or_else(|| std::thread::available_parallelism().ok().map(usize::from))
            .unwrap_or(1)
            .max(1);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().ok();
        let caches = program
            .states()
            .iter()
            .map(|state| Ok((state.name.clone(), Cache::new(state, &options)?)))
            .collect::<Result<_>>()?;
        Ok(ReferenceEngine { program, options, caches, pool, threads })
    }

    /// Runs the nodes of a method and returns the numbers of its outputs.
    fn walk(
        &mut self,
        name: &str,
        feeds: &[Feed<'_>],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(Sizes, Vec<Vec<f32>>)> {
        let ReferenceEngine { program, options, caches, pool, .. } = self;
        let (sizes, fed) = bind(program, name, feeds, options)?;
        let method = program.method(name)?;
        let last_use = last_uses(method);
        let written = written_states(method);
        let mut values: Vec<Option<Value<'_>>> =
            fed.into_iter().map(|data| Some(Value::Fed(data))).collect();
        for (i, node) in method.graph.nodes.iter().enumerate() {
            let args: Vec<Arg<'_, '_>> = node
                .inputs
                .iter()
                .map(|id| Arg {
                    value: values[id.index()].as_ref().expect("alive until its last use"),
                    channels: method.types()[id.index()].channels(),
                })
                .collect();
            let mut step = || apply(&node.op, &args, program, caches, &written);
            let made = match pool {
                Some(pool) => pool.install(&mut step),
                None => step(),
            }?;
            for value in &made {
                if let Value::F32(data) = value {
                    sink(i, data);
                }
            }
            values.extend(made.into_iter().map(Some));
            for (value, last) in values.iter_mut().zip(&last_use) {
                if *last == Some(i) {
                    *value = None;
                }
            }
        }
        let outputs = method.graph.outputs.iter().map(|out| {
            values[out.value.index()].as_ref().expect("outputs are never freed").to_f32()
        });
        Ok((sizes, outputs.collect()))
    }
}

impl Engine for ReferenceEngine {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn options(&self) -> &LoadOptions {
        &self.options
    }

    fn describe(&self) -> String {
        let plural = if self.threads == 1 { "" } else { "s" };
        format!("reference · scalar f32 · {} thread{plural}", self.threads)
    }

    fn run(&mut self, method: &str, feeds: &[Feed<'_>], outputs: &mut Outputs) -> Result<()> {
        let (sizes, made) = self.walk(method, feeds, &mut |_, _| {})?;
        let method = self.program.method(method)?;
        for (i, (out, data)) in method.graph.outputs.iter().zip(&made).enumerate() {
            let value_type = &method.types()[out.value.index()];
            let (rows, channels) = (sizes.len_of(value_type), value_type.channels());
            outputs.prepare(i, &out.name, rows, channels).copy_from_slice(data);
        }
        outputs.truncate(made.len());
        Ok(())
    }

    fn trace(
        &mut self,
        method: &str,
        feeds: &[Feed<'_>],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.walk(method, feeds, sink).map(|_| ())
    }
}

impl Cache {
    fn new(state: &StateDecl, options: &LoadOptions) -> Result<Self> {
        let capacity = state.capacity(options.max_context, options.max_chunk) as usize;
        let channels = state.channels() as usize;
        let n = options.n_slots as usize * capacity * 2 * channels;
        let mut data = Vec::new();
        data.try_reserve_exact(n).map_err(|_| {
            Error::OutOfMemory(format!(
                "can't allocate {n} numbers for cache `{}`; try a shorter context or fewer slots",
                state.name
            ))
        })?;
        data.resize(n, 0.0);
        Ok(Cache { data, capacity, channels })
    }

    /// The key row and the value row at a position of a slot.
    pub(crate) fn row(&self, slot: usize, position: usize) -> (&[f32], &[f32]) {
        let start = self.start(slot, position);
        self.data[start..start + 2 * self.channels].split_at(self.channels)
    }

    /// The same, to be written.
    pub(crate) fn row_mut(&mut self, slot: usize, position: usize) -> (&mut [f32], &mut [f32]) {
        let start = self.start(slot, position);
        self.data[start..start + 2 * self.channels].split_at_mut(self.channels)
    }

    fn start(&self, slot: usize, position: usize) -> usize {
        (slot * self.capacity + position % self.capacity) * 2 * self.channels
    }
}

impl Value<'_> {
    fn f32(&self) -> &[f32] {
        match self {
            Value::F32(data) => data,
            Value::Fed(FeedData::F32(data)) => data,
            _ => unreachable!("validation typed this value as f32"),
        }
    }

    fn i32(&self) -> &[i32] {
        match self {
            Value::I32(data) => data,
            Value::Fed(FeedData::I32(data)) => data,
            _ => unreachable!("validation typed this value as i32"),
        }
    }

    /// As the caller gets it: indices become floats.
    fn to_f32(&self) -> Vec<f32> {
        match self {
            Value::F32(_) | Value::Fed(FeedData::F32(_)) => self.f32().to_vec(),
            Value::I32(_) | Value::Fed(FeedData::I32(_)) => {
                self.i32().iter().map(|x| *x as f32).collect()
            }
        }
    }
}

/// An input of a node.
struct Arg<'v, 'f> {
    value: &'v Value<'f>,
    channels: usize,
}

/// The values that one op makes.
fn apply<'a>(
    op: &Op,
    args: &[Arg<'_, '_>],
    program: &Program,
    caches: &mut HashMap<String, Cache>,
    written: &HashSet<&str>,
) -> Result<Vec<Value<'a>>> {
    let f32 = |i: usize| args[i].value.f32();
    let i32 = |i: usize| args[i].value.i32();
    let channels = |i: usize| args[i].channels;
    let made = match op {
        Op::Embed { weight, scale, start, stride, soft_id } => {
            let soft = soft_id.map(|id| (id as usize, i32(1)));
            let rows = (*start as usize, *stride as usize);
            ops::embed((program, weight), *scale, rows, i32(0), soft)?
        }
        Op::SoftMerge => ops::soft_merge(f32(0), i32(1), f32(2), channels(0)),
        Op::Linear { weight, bias } => {
            let bias = bias.as_deref().map(|b| vector(program, b)).transpose()?;
            ops::linear(&program.weight(weight)?, bias.as_deref(), f32(0))
        }
        Op::RmsNorm { weight, eps, offset, width } => {
            let weight = weight.as_deref().map(|w| vector(program, w)).transpose()?;
            ops::rms_norm(f32(0), weight.as_deref(), *eps, *offset, *width as usize)
        }
        Op::LayerNorm { weight, bias, eps, .. } => {
            let bias = bias.as_deref().map(|b| vector(program, b)).transpose()?;
            ops::layer_norm(f32(0), &vector(program, weight)?, bias.as_deref(), *eps)
        }
        Op::Rope(spec) => ops::rope(spec, f32(0), i32(1)),
        Op::AxialRope(spec) => ops::axial_rope(spec, f32(0), i32(1), i32(2)),
        Op::KvWrite { state } => {
            let cache = caches.get_mut(state).expect("validation knows the state");
            ops::kv_write(cache, f32(0), f32(1), i32(2), i32(3));
            return Ok(vec![]);
        }
        Op::Attention { state, spec } => {
            let queries = ops::Queries {
                q: f32(0),
                slots: i32(1),
                positions: i32(2),
                horizons: spec.bidirectional.then(|| i32(3)),
                own_key_is_cached: written.contains(state.as_str()),
            };
            ops::attention(spec, &caches[state], &queries)
        }
        Op::SelfAttention { n_heads, head_dim, scale } => {
            let qkv = (f32(0), f32(1), f32(2));
            ops::self_attention(qkv, *n_heads as usize, *head_dim as usize, *scale)
        }
        Op::LocalAttention(spec) => {
            let qkv = (f32(0), f32(1), f32(2));
            let per_dim_scale = vector(program, &spec.per_dim_scale)?;
            ops::local_attention(spec, qkv, &per_dim_scale, &program.weight(&spec.relative)?)
        }
        Op::Conv2d { weight, width } => {
            let n_out = program.weights()[weight].shape[0] as usize;
            ops::conv2d(f32(0), &vector(program, weight)?, n_out, *width as usize)
        }
        Op::CausalConv1d { weight } => {
            ops::causal_conv1d(f32(0), &vector(program, weight)?, channels(0))
        }
        Op::PoolRows { size } => ops::pool_rows(f32(0), channels(0), *size as usize),
        Op::GeluGate => ops::gelu_gate(f32(0), f32(1)),
        Op::SigmoidGate => ops::sigmoid_gate(f32(0), f32(1)),
        Op::Activate { function } => ops::activate(f32(0), *function),
        Op::Clamp { low, high } => {
            ops::clamp(f32(0), vector(program, low)?[0], vector(program, high)?[0])
        }
        Op::Standardise { bias, scale } => {
            ops::standardise(f32(0), &vector(program, bias)?, &vector(program, scale)?)
        }
        Op::Add => ops::add(f32(0), f32(1)),
        Op::Scale { factor } => ops::scale(f32(0), *factor),
        Op::ScaleBy { weight } => ops::scale_by(f32(0), &vector(program, weight)?),
        Op::SoftCap { cap } => ops::soft_cap(f32(0), *cap),
        Op::Slice { start, len } => ops::slice(f32(0), channels(0), *start as usize, *len as usize),
        Op::Concat => ops::concat(f32(0), channels(0), f32(1), channels(1)),
        Op::GatherRows => ops::gather_rows(f32(0), channels(0), i32(1)),
        Op::Router { weight, expert_scale, top_k } => {
            let scale = vector(program, expert_scale)?;
            let (experts, weights) =
                ops::router(&program.weight(weight)?, &scale, *top_k as usize, f32(0));
            return Ok(vec![Value::I32(experts), Value::F32(weights)]);
        }
        Op::Experts { gate_up, down } => {
            let (gate_up, down) = (program.weight(gate_up)?, program.weight(down)?);
            ops::experts(&gate_up, &down, f32(0), i32(1), f32(2))
        }
        Op::CentroidHead { centroids, ordering, embedding, top } => {
            let head = ops::CentroidHead {
                centroids: program.weight(centroids)?,
                ordering: ops::token_ordering(ordering, &program.weight(ordering)?)?,
                embedding: program.weight(embedding)?,
                top: *top as usize,
            };
            ops::centroid_head(&head, f32(0))
        }
    };
    Ok(vec![Value::F32(made)])
}

/// The numbers of a weight.
fn vector(program: &Program, name: &str) -> Result<Vec<f32>> {
    Ok(program.weight(name)?.to_f32())
}

/// The last node that reads each value, or that makes it if none does; `None` for outputs.
fn last_uses(method: &Method) -> Vec<Option<usize>> {
    let (firsts, n_values) = method.graph.first_outputs();
    let mut last = vec![Some(0); n_values];
    for (i, node) in method.graph.nodes.iter().enumerate() {
        let made = firsts[i].index()..firsts[i].index() + node.op.n_outputs();
        for value in node.inputs.iter().map(|id| id.index()).chain(made) {
            last[value] = Some(i);
        }
    }
    for out in &method.graph.outputs {
        last[out.value.index()] = None;
    }
    last
}

/// The caches that a method writes. Validation has each of them written before it is read.
fn written_states(method: &Method) -> HashSet<&str> {
    let states = method.graph.nodes.iter().filter_map(|node| match &node.op {
        Op::KvWrite { state } => Some(state.as_str()),
        _ => None,
    });
    states.collect()
}
