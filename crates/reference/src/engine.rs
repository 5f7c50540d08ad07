//! The interpreter: walks a method's nodes in order, each op by its meaning in `ops/`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use lapidary_backend::{
    Abilities, Bound, Call, Engine, Error, Fed, LoadOptions, PAGE, PageId, Result, Results, Sizes,
    Span, Ticket, Want, bind,
};
use lapidary_backend_kit::{TicketData, Tickets, answer, last_uses};
use lapidary_program::{Op, Program, StateDecl};
use rayon::ThreadPool;

use crate::ops;

/// A program with the pages of its KV caches.
pub(crate) struct ReferenceEngine {
    program: Arc<Program>,
    options: LoadOptions,
    caches: HashMap<String, Cache>,
    tickets: Tickets,
    /// `None` where threads can't be had; rayon then runs everything on the caller's thread.
    pool: Option<ThreadPool>,
    threads: usize,
}

/// Keys and values of one state: `[n_pages, PAGE, 2, channels]`.
pub(crate) struct Cache {
    data: Vec<f32>,
    channels: usize,
    /// The group that its pages belong to.
    pub(crate) group: usize,
}

/// Where the tokens of a call stand.
pub(crate) struct Places<'a> {
    spans: &'a [Span<'a>],
    sequences: &'a [u32],
    pub(crate) positions: &'a [i32],
    pub(crate) horizons: &'a [i32],
}

/// The numbers of one value.
enum Value<'a> {
    F32(Vec<f32>),
    I32(Vec<i32>),
    FedF32(&'a [f32]),
    FedI32(&'a [i32]),
}

impl ReferenceEngine {
    pub(crate) fn new(program: Arc<Program>, options: LoadOptions) -> Result<Self> {
        let threads = options
            .threads
            .or_else(|| std::thread::available_parallelism().ok().map(usize::from))
            .unwrap_or(1)
            .max(1);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().ok();
        let mut caches = HashMap::new();
        for (g, group) in program.kv_groups().iter().enumerate() {
            for state in group.states.iter().map(|s| &program.states()[*s]) {
                let cache = Cache::new(state, g, options.pages_of(g))?;
                caches.insert(state.name.clone(), cache);
            }
        }
        let tickets = Tickets::default();
        Ok(ReferenceEngine { program, options, caches, tickets, pool, threads })
    }

    /// Runs the nodes of a method and returns the numbers of its outputs.
    fn walk(
        &mut self,
        call: &Call<'_>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(Sizes, Vec<Vec<f32>>)> {
        let ReferenceEngine { program, options, caches, tickets, pool, .. } = self;
        let Bound { sizes, feeds, spans, sequences, positions, horizons } =
            bind(program, call, options)?;
        let places =
            Places { spans, sequences: &sequences, positions: &positions, horizons: &horizons };
        let method = program.method(call.method)?;
        let last_use = last_uses(method);
        let mut values: Vec<Option<Value<'_>>> = Vec::new();
        for (input, fed) in method.graph.inputs.iter().zip(feeds) {
            values.push(Some(match fed {
                Fed::I32(data) => Value::FedI32(data),
                Fed::F32(data) => Value::FedF32(data),
                Fed::Of(rows) => match tickets.feed(program, (call.method, input), &rows)? {
                    TicketData::I32(data) => Value::I32(data),
                    TicketData::F32(data) => Value::F32(data),
                },
            }));
        }
        for (i, node) in method.graph.nodes.iter().enumerate() {
            if call.is_stopped() {
                return Err(Error::Stopped);
            }
            let args: Vec<Arg<'_, '_>> = node
                .inputs
                .iter()
                .map(|id| Arg {
                    value: values[id.index()].as_ref().expect("alive until its last use"),
                    channels: method.types()[id.index()].channels(),
                })
                .collect();
            let mut step = || apply(&node.op, &args, program, caches, &places);
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

    fn abilities(&self) -> Abilities {
        Abilities { max_top_k: usize::MAX, prefers_top_k: false, max_in_flight: 1 }
    }

    fn submit(&mut self, call: &Call<'_>) -> Result<Ticket> {
        let (_, made) = self.walk(call, &mut |_, _| {})?;
        let mut results = self.tickets.begin();
        let mut keep = Vec::new();
        let method = self.program.method(call.method)?;
        for (out, data) in method.graph.outputs.iter().zip(made) {
            let channels = method.types()[out.value.index()].channels();
            match call.want(&out.name) {
                Want::Keep => keep.push((out.name.clone(), channels, data)),
                want => answer(&mut results, (&out.name, channels), &data, &want),
            }
        }
        Ok(self.tickets.end(call, results, keep))
    }

    fn poll(&mut self, ticket: Ticket, results: &mut Results) -> Result<bool> {
        self.tickets.take(ticket, results).map(|()| true)
    }

    fn release(&mut self, ticket: Ticket) {
        self.tickets.release(ticket);
    }

    fn copy_pages(&mut self, group: usize, pairs: &[(PageId, PageId)]) -> Result<()> {
        for cache in self.caches.values_mut().filter(|cache| cache.group == group) {
            for (from, to) in pairs {
                let (from, to) = (cache.page(*from), cache.page(*to));
                cache.data.copy_within(from, to.start);
            }
        }
        Ok(())
    }

    fn page_bytes(&self, group: usize) -> usize {
        self.caches_of(group).map(|cache| 4 * cache.page_len()).sum()
    }

    fn read_page(&mut self, group: usize, page: PageId, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.clear();
        for cache in self.caches_of(group) {
            bytes.extend(cache.data[cache.page(page)].iter().flat_map(|x| x.to_le_bytes()));
        }
        Ok(())
    }

    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<()> {
        let (have, need) = (bytes.len(), self.page_bytes(group));
        if have != need {
            return Err(Error::Device(format!("a page of {have} bytes, not {need}")));
        }
        let mut numbers = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
        for name in self.names_of(group) {
            let Some(cache) = self.caches.get_mut(&name) else { continue };
            let range = cache.page(page);
            cache.data[range].iter_mut().zip(&mut numbers).for_each(|(x, n)| *x = n);
        }
        Ok(())
    }

    fn trace(&mut self, call: &Call<'_>, sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        self.walk(call, sink).map(|_| ())
    }
}

impl ReferenceEngine {
    /// The caches of a group, in the order of the program.
    fn caches_of(&self, group: usize) -> impl Iterator<Item = &Cache> {
        self.names_of(group).into_iter().filter_map(|name| self.caches.get(&name))
    }

    fn names_of(&self, group: usize) -> Vec<String> {
        let groups = self.program.kv_groups().get(group).into_iter();
        let states = groups.flat_map(|group| &group.states);
        states.map(|s| self.program.states()[*s].name.clone()).collect()
    }
}

impl Cache {
    fn new(state: &StateDecl, group: usize, n_pages: usize) -> Result<Self> {
        let channels = state.channels() as usize;
        let n = n_pages * PAGE * 2 * channels;
        let mut data = Vec::new();
        data.try_reserve_exact(n).map_err(|_| {
            Error::OutOfMemory(format!(
                "not enough memory for {n} numbers of cache `{}`; try a shorter context or fewer \
                 sequences at once",
                state.name
            ))
        })?;
        data.resize(n, 0.0);
        Ok(Cache { data, channels, group })
    }

    /// Numbers of one page.
    fn page_len(&self) -> usize {
        PAGE * 2 * self.channels
    }

    /// Where a page stands.
    fn page(&self, page: PageId) -> Range<usize> {
        page.index() * self.page_len()..(page.index() + 1) * self.page_len()
    }

    /// The key row and the value row at a position of a sequence.
    pub(crate) fn row(&self, span: &Span<'_>, position: usize) -> (&[f32], &[f32]) {
        let start = self.start(span, position);
        self.data[start..start + 2 * self.channels].split_at(self.channels)
    }

    /// The same, to be written.
    pub(crate) fn row_mut(&mut self, span: &Span<'_>, position: usize) -> (&mut [f32], &mut [f32]) {
        let start = self.start(span, position);
        self.data[start..start + 2 * self.channels].split_at_mut(self.channels)
    }

    fn start(&self, span: &Span<'_>, position: usize) -> usize {
        let held = span.tables[self.group].find(position);
        let (page, place) = held.expect("a call was checked to hold what it sees");
        (page.index() * PAGE + place) * 2 * self.channels
    }
}

impl<'a> Places<'a> {
    /// The span of a token.
    pub(crate) fn span(&self, token: usize) -> &'a Span<'a> {
        &self.spans[self.sequences[token] as usize]
    }
}

impl Value<'_> {
    fn f32(&self) -> &[f32] {
        match self {
            Value::F32(data) => data,
            Value::FedF32(data) => data,
            _ => unreachable!("validation typed this value as f32"),
        }
    }

    fn i32(&self) -> &[i32] {
        match self {
            Value::I32(data) => data,
            Value::FedI32(data) => data,
            _ => unreachable!("validation typed this value as i32"),
        }
    }

    /// As the caller gets it: indices become floats.
    fn to_f32(&self) -> Vec<f32> {
        match self {
            Value::F32(_) | Value::FedF32(_) => self.f32().to_vec(),
            Value::I32(_) | Value::FedI32(_) => self.i32().iter().map(|x| *x as f32).collect(),
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
    places: &Places<'_>,
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
        Op::Rope(spec) => ops::rope(spec, f32(0), places.positions),
        Op::AxialRope(spec) => ops::axial_rope(spec, f32(0), i32(1), i32(2)),
        Op::KvWrite { state } => {
            let cache = caches.get_mut(state).expect("validation knows the state");
            ops::kv_write(cache, f32(0), f32(1), places);
            return Ok(vec![]);
        }
        Op::Attention { state, spec } => ops::attention(spec, &caches[state], f32(0), places),
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
