//! Builds the graph of each call and has it computed.
//!
//! A call's graph is made of the arrays that calls before it made, so it can be built, and its
//! computation begun, before those have been computed. Whoever takes the results waits for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_backend::{
    Abilities, Bound, Call, Draw, DrawRule, Engine, Error, Fed, LoadOptions, PageId, Result,
    Results, Ticket, TicketRows, TopK, Want, bind,
};
use lapidary_backend_kit::{Purposes, answer, last_uses};
use lapidary_program::{Input, Method, Op, Program, ValueType};

use crate::attention::Shared;
use crate::cache::{self, Cache, CacheShape};
use crate::draw;
use crate::ffi::{Array, Dtype, Mlx};
use crate::ops::{Value, Work};
use crate::weights::{WeightPlan, Weights};

/// Calls that may be submitted before the first of them is waited for.
const IN_FLIGHT: usize = 2;
/// Calls with more tokens leave so much freed memory that it is given back after them.
const LONG: usize = 32;

/// A program on a device.
pub(crate) struct MlxEngine {
    machine: Machine,
    options: LoadOptions,
    about: String,
    next: u64,
    calls: BTreeMap<u64, Submitted>,
    /// Numbers on their way to a caller.
    scratch: Vec<f32>,
    /// Why no call can be answered any more: what one left in the caches can't be computed.
    lost: Option<String>,
}

/// What calls work with.
struct Machine {
    program: Arc<Program>,
    mlx: Mlx,
    weights: Weights,
    caches: Vec<Cache>,
    methods: BTreeMap<String, Prepared>,
}

/// What is known of a method before a call.
struct Prepared {
    purposes: Vec<Purposes>,
    last_use: Vec<Option<usize>>,
}

/// A call that was submitted.
struct Submitted {
    /// What comes to the host; `None` once it was taken.
    coming: Option<Vec<Coming>>,
    /// What stays for calls to come.
    kept: Vec<Kept>,
    is_long: bool,
}

/// An output that comes to the host.
struct Coming {
    name: String,
    channels: usize,
    rows: usize,
    array: Array,
    want: OwnedWant,
    /// The tokens that were drawn from it.
    drawn: Option<Array>,
}

/// Sees what each node makes, by its number.
type Watcher<'a> = dyn FnMut(&Mlx, usize, &[Value]) -> Result<()> + 'a;

/// What becomes of it, with nothing borrowed.
struct OwnedWant {
    /// `None` for all of it.
    top: Option<(usize, bool)>,
    masks: Vec<Option<Vec<u32>>>,
    rules: Vec<DrawRule>,
}

/// An output that stays.
struct Kept {
    output: String,
    rows: usize,
    channels: usize,
    array: Array,
}

impl OwnedWant {
    fn of(want: &Want<'_>) -> Self {
        let (top, rules) = match want {
            Want::TopK(top) => (Some(top), &[][..]),
            Want::Draw(draw) => (Some(&draw.top), draw.rules),
            _ => (None, &[][..]),
        };
        let masks = top.map_or(&[][..], |top| top.masks);
        OwnedWant {
            top: top.map(|top| (top.k, top.logsumexp)),
            masks: masks.iter().map(|mask| mask.map(<[u32]>::to_vec)).collect(),
            rules: rules.to_vec(),
        }
    }

    /// Gives the caller what it wants of an output; with rules, tokens are drawn from it as well.
    fn answer(
        &self,
        results: &mut Results,
        about: (&str, usize),
        data: &[f32],
        rules: Option<&[DrawRule]>,
    ) {
        let masks: Vec<Option<&[u32]>> = self.masks.iter().map(Option::as_deref).collect();
        let want = match self.top {
            None => Want::Whole,
            Some((k, logsumexp)) => {
                let top = TopK { k, masks: &masks, logsumexp };
                rules.map_or(Want::TopK(top), |rules| Want::Draw(Draw { top, rules }))
            }
        };
        answer(results, about, data, &want);
    }
}

impl MlxEngine {
    pub(crate) fn new(
        program: Arc<Program>,
        options: LoadOptions,
        (mlx, about): (Mlx, String),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        // Caches first: what does not fit should fail before minutes of reading.
        let shapes = CacheShape::of(&program, &options).into_iter();
        let caches = shapes.map(|shape| shape.open(&mlx)).collect::<Result<_>>()?;
        let weights = WeightPlan::new(&program, &options).load(&program, &mlx, progress)?;
        mlx.clear_cache()?;
        let wanted = program.methods().iter().filter(|(name, _)| options.wants(name));
        let methods = wanted.map(|(name, method)| {
            let prepared = Prepared { purposes: Purposes::of(method), last_use: last_uses(method) };
            (name.clone(), prepared)
        });
        let methods = methods.collect();
        let machine = Machine { program, mlx, weights, caches, methods };
        Ok(MlxEngine {
            machine,
            options,
            about,
            next: 0,
            calls: BTreeMap::new(),
            scratch: Vec::new(),
            lost: None,
        })
    }

    /// Rows of an output that an earlier call kept, for an input of a method.
    fn of_ticket(&self, method: &str, input: &Input, wanted: &TicketRows<'_>) -> Result<Array> {
        let fail = |what: String| Error::Feed { method: method.to_string(), what };
        let call = self.calls.get(&wanted.ticket.0);
        let call = call.ok_or(Error::UnknownTicket(wanted.ticket.0))?;
        let kept = call.kept.iter().find(|kept| kept.output == wanted.output);
        let kept = kept.ok_or_else(|| {
            fail(format!("an earlier call did not keep output `{}`", wanted.output))
        })?;
        if let Some(row) = wanted.rows.iter().find(|row| **row as usize >= kept.rows) {
            return Err(fail(format!("row {row} of {} was asked for", kept.rows)));
        }
        let fits = match (&input.value_type, kept.array.dtype()) {
            // Drawn from as many logits as there are tokens at most.
            (ValueType::I32(_), Dtype::I32) => {
                kept.channels <= self.machine.program.metadata().vocab_size as usize
            }
            (ValueType::F32(_), Dtype::F32) => kept.channels == input.value_type.channels(),
            _ => false,
        };
        if !fits {
            let (output, name) = (wanted.output, &input.name);
            return Err(fail(format!("output `{output}` of an earlier call is no `{name}`")));
        }
        let rows: Vec<i32> = wanted.rows.iter().map(|row| row.cast_signed()).collect();
        let mlx = &self.machine.mlx;
        mlx.take(&kept.array, &mlx.indices(&rows, &[rows.len()])?, 0)
    }

    /// The inputs of a call, in the order of the graph.
    fn feeds(&self, method: &str, of: &Method, bound: &Bound<'_>) -> Result<Vec<Value>> {
        let mlx = &self.machine.mlx;
        let feed = |(input, fed): (&Input, &Fed<'_>)| {
            let channels = input.value_type.channels().max(1);
            Ok(match fed {
                Fed::I32(data) => Value::Ids {
                    array: mlx.indices(data, &[data.len()])?,
                    known: Some(data.to_vec()),
                },
                Fed::F32(data) => {
                    Value::Rows(mlx.floats(data, &[data.len() / channels, channels])?)
                }
                Fed::Of(rows) => {
                    let array = self.of_ticket(method, input, rows)?;
                    match input.value_type {
                        ValueType::I32(_) => Value::Ids { array, known: None },
                        ValueType::F32(_) => Value::Rows(array),
                    }
                }
            })
        };
        of.graph.inputs.iter().zip(&bound.feeds).map(feed).collect()
    }

    /// Builds the graph of a call; `each` sees what a node makes. The values of outputs that are
    /// wanted.
    fn walk(
        &mut self,
        call: &Call<'_>,
        bound: &Bound<'_>,
        wanted: Purposes,
        each: &mut Watcher<'_>,
    ) -> Result<Vec<Option<Value>>> {
        let program = self.machine.program.clone();
        let method = program.method(call.method)?;
        let feeds = self.feeds(call.method, method, bound)?;
        let Machine { mlx, weights, caches, methods, .. } = &mut self.machine;
        let prepared = methods.get(call.method).ok_or_else(|| Error::Feed {
            method: call.method.to_string(),
            what: "it was not loaded".to_string(),
        })?;
        let mut values: Vec<Option<Value>> = feeds.into_iter().map(Some).collect();
        let shared = Shared::default();
        let mut work = Work { mlx, program: &program, weights, caches, bound, shared };
        let mut next = values.len();
        for (i, node) in method.graph.nodes.iter().enumerate() {
            if call.is_stopped() {
                return Err(Error::Stopped);
            }
            let first = next;
            next += node.op.n_outputs();
            if prepared.purposes[i].serves(wanted) {
                let types = &method.types()[first..next];
                let empty = types.first().is_some_and(|t| bound.sizes.len_of(t) == 0);
                let made = match empty {
                    true => nothing(work.mlx, types)?,
                    false => {
                        let input = |id: &lapidary_program::ValueId| {
                            values[id.index()].as_ref().expect("alive until its last use")
                        };
                        let inputs: Vec<&Value> = node.inputs.iter().map(input).collect();
                        work.op(&node.op, &inputs)?
                    }
                };
                each(work.mlx, i, &made)?;
                values.extend(made.into_iter().map(Some));
            }
            values.resize_with(next, || None);
            for id in &node.inputs {
                if prepared.last_use[id.index()] == Some(i) {
                    values[id.index()] = None;
                }
            }
        }
        Ok(values)
    }

    /// The tokens that a call draws: on the device, or here where a mask leaves tokens out.
    fn drawn(&mut self, coming: &Coming) -> Result<Array> {
        let mlx = &self.machine.mlx;
        let want = &coming.want;
        let k = want.top.map_or(1, |(k, _)| k);
        if coming.rows > 0 && want.masks.iter().all(Option::is_none) {
            return draw::draw(mlx, &coming.array, k, &want.rules);
        }
        let mut results = Results::default();
        mlx.read_floats(&coming.array, &mut self.scratch)?;
        let rules = Some(&want.rules[..]);
        want.answer(&mut results, (&coming.name, coming.channels), &self.scratch, rules);
        let drawn = results.get(&coming.name).map_or(&[][..], |out| &out.drawn);
        let ids: Vec<i32> = drawn.iter().map(|id| id.cast_signed()).collect();
        mlx.indices(&ids, &[ids.len()])
    }

    /// Has the machine compute what a call makes, keys and values included.
    fn begin(&mut self, call: &Call<'_>) -> Result<Submitted> {
        let program = self.machine.program.clone();
        let bound = bind(&program, call, &self.options)?;
        let method = program.method(call.method)?;
        let outputs = &method.graph.outputs;
        let wants: Vec<Want<'_>> = outputs.iter().map(|out| call.want(&out.name)).collect();
        let is_wanted = |want: &Want<'_>| want.is_read() || want.is_kept();
        let wanted = Purposes::wanted(wants.iter().map(is_wanted));
        let values = self.walk(call, &bound, wanted, &mut |_, _, _| Ok(()))?;
        let (mut coming, mut kept) = (Vec::new(), Vec::new());
        for (out, want) in outputs.iter().zip(&wants).filter(|(_, want)| is_wanted(want)) {
            let value = values[out.value.index()].as_ref();
            let array = value.expect("what is wanted was made").array();
            let array = self.machine.mlx.cast(array, Dtype::F32)?;
            let kind = &method.types()[out.value.index()];
            let (rows, channels) = (bound.sizes.len_of(kind), kind.channels().max(1));
            let output = out.name.clone();
            if let Want::Keep = want {
                kept.push(Kept { output, rows, channels, array });
                continue;
            }
            let want_owned = OwnedWant::of(want);
            let name = output.clone();
            let mut one = Coming { name, channels, rows, array, want: want_owned, drawn: None };
            if want.is_kept() {
                let array = self.drawn(&one)?;
                one.drawn = Some(array.share()?);
                kept.push(Kept { output, rows, channels, array });
            }
            coming.push(one);
        }
        drop(values);
        let caches = self.machine.caches.iter_mut().flat_map(Cache::unbegun);
        let made = coming.iter().map(|one| &one.array);
        let stays = kept.iter().map(|kept| &kept.array);
        let all: Vec<&Array> = made.chain(stays).chain(caches).collect();
        self.machine.mlx.start(&all)?;
        let is_long = bound.sizes.tokens.max(bound.sizes.patches).max(bound.sizes.frames) > LONG;
        Ok(Submitted { coming: Some(coming), kept, is_long })
    }

    /// Notes an error after which the caches can't be trusted.
    fn note<T>(&mut self, done: Result<T>) -> Result<T> {
        if let Err(Error::Device(why) | Error::OutOfMemory(why)) = &done {
            self.lost.get_or_insert_with(|| why.clone());
        }
        done
    }

    fn check_lost(&self) -> Result<()> {
        match &self.lost {
            Some(why) => Err(Error::Device(format!(
                "an earlier call failed, so the model must be loaded again ({why})"
            ))),
            None => Ok(()),
        }
    }

    fn take(&mut self, ticket: Ticket, results: &mut Results) -> Result<()> {
        let unknown = || Error::UnknownTicket(ticket.0);
        let call = self.calls.get_mut(&ticket.0).ok_or_else(unknown)?;
        let coming = call.coming.take().ok_or_else(unknown)?;
        let is_long = call.is_long;
        if call.kept.is_empty() {
            self.calls.remove(&ticket.0);
        }
        results.clear();
        for one in &coming {
            self.machine.mlx.read_floats(&one.array, &mut self.scratch)?;
            debug_assert_eq!(self.scratch.len(), one.rows * one.channels);
            one.want.answer(results, (&one.name, one.channels), &self.scratch, None);
            if let (Some(drawn), Some(out)) = (&one.drawn, results.get_mut(&one.name)) {
                self.machine.mlx.read(drawn, |bytes| {
                    let ids = bytes.as_chunks::<4>().0.iter();
                    out.drawn.extend(ids.map(|id| u32::from_ne_bytes(*id)));
                })?;
            }
        }
        if coming.is_empty()
            && let Some(cache) = self.machine.caches.last()
        {
            // A part of a prompt: there is nothing to read, but it may still fail.
            cache.wait()?;
        }
        drop(coming);
        if is_long {
            self.machine.mlx.clear_cache()?;
        }
        Ok(())
    }
}

/// Values without rows.
fn nothing(mlx: &Mlx, types: &[ValueType]) -> Result<Vec<Value>> {
    let none = |t: &ValueType| {
        Ok(match t {
            ValueType::F32(_) => Value::Rows(mlx.zeros(&[0, t.channels()], Dtype::F32)?),
            ValueType::I32(_) => {
                let shape = [0, t.channels()];
                let array = mlx.zeros(&shape[..t.shape().len().min(2)], Dtype::I32)?;
                Value::Ids { array, known: Some(Vec::new()) }
            }
        })
    };
    types.iter().map(none).collect()
}

impl Engine for MlxEngine {
    fn program(&self) -> &Arc<Program> {
        &self.machine.program
    }

    fn options(&self) -> &LoadOptions {
        &self.options
    }

    fn describe(&self) -> String {
        self.about.clone()
    }

    fn abilities(&self) -> Abilities {
        Abilities { max_top_k: usize::MAX, prefers_top_k: false, max_in_flight: IN_FLIGHT }
    }

    fn submit(&mut self, call: &Call<'_>) -> Result<Ticket> {
        self.check_lost()?;
        let begun = self.begin(call);
        let begun = self.note(begun)?;
        let ticket = self.next;
        self.next += 1;
        self.calls.insert(ticket, begun);
        Ok(Ticket(ticket))
    }

    fn poll(&mut self, ticket: Ticket, results: &mut Results) -> Result<bool> {
        let call = self.calls.get(&ticket.0).ok_or(Error::UnknownTicket(ticket.0))?;
        for one in call.coming.iter().flatten() {
            if !one.array.is_ready()? {
                return Ok(false);
            }
        }
        self.wait(ticket, results).map(|()| true)
    }

    fn wait(&mut self, ticket: Ticket, results: &mut Results) -> Result<()> {
        let taken = self.take(ticket, results);
        self.note(taken)
    }

    fn release(&mut self, ticket: Ticket) {
        self.calls.remove(&ticket.0);
    }

    fn copy_pages(&mut self, group: usize, pairs: &[(PageId, PageId)]) -> Result<()> {
        let copied = cache::copy_pages(&self.machine.mlx, &mut self.machine.caches, group, pairs);
        self.note(copied)
    }

    fn page_bytes(&self, group: usize) -> usize {
        cache::page_bytes(&self.machine.caches, group)
    }

    fn read_page(&mut self, group: usize, page: PageId, bytes: &mut Vec<u8>) -> Result<()> {
        cache::read_page(&self.machine.mlx, &self.machine.caches, group, page, bytes)
    }

    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<()> {
        let need = self.page_bytes(group);
        if bytes.len() != need {
            return Err(Error::Device(format!("a page of {} bytes, not {need}", bytes.len())));
        }
        let machine = &mut self.machine;
        let written = cache::write_page(&machine.mlx, &mut machine.caches, group, page, bytes);
        self.note(written)
    }

    fn trace(&mut self, call: &Call<'_>, sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        self.check_lost()?;
        let program = self.machine.program.clone();
        let bound = bind(&program, call, &self.options)?;
        let mut numbers = Vec::new();
        let mut show = |mlx: &Mlx, node: usize, made: &[Value]| {
            for value in made {
                if let Value::Rows(array) = value {
                    mlx.read_floats(array, &mut numbers)?;
                    sink(node, &numbers);
                }
            }
            Ok(())
        };
        let walked = self.walk(call, &bound, Purposes::ALL, &mut show);
        self.note(walked.map(|_| ()))
    }
}

/// Bytes of what one call computes with besides the values that are alive: scores of attention, of
/// which MLX makes a matrix where it has no kernel that does without.
pub(crate) fn score_bytes(program: &Program, options: &LoadOptions) -> u64 {
    let wanted = program.methods().iter().filter(|(name, _)| options.wants(name));
    let nodes = wanted.flat_map(|(_, method)| &method.graph.nodes);
    let (chunk, context) = (u64::from(options.limits.chunk), u64::from(options.max_context));
    let bytes = |op: &Op| match op {
        Op::Attention { spec, .. } => {
            let seen = spec.window.map_or(context, |window| context.min(chunk + u64::from(window)));
            2 * 4 * u64::from(spec.n_heads) * chunk * seen
        }
        _ => 0,
    };
    nodes.map(|node| bytes(&node.op)).max().unwrap_or(0)
}
