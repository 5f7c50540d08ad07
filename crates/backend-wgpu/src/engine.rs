//! Runs compiled methods: feeds in, kernels in one or few submissions, outputs back or kept.

mod buffers;
mod feed;
mod in_flight;
mod record;
mod submit;
mod top;
mod upload;

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_backend::{
    Abilities, Bound, Call, Engine, Error, KvType, LoadOptions, PageId, Result, Results, Sizes,
    Ticket, bind,
};
use lapidary_backend_kit::GroupTables;
use lapidary_program::{Program, input};

use self::buffers::Buffers;
use self::in_flight::{InFlight, decode};
use self::record::{CallShape, OutputUse, Recorder};
use self::top::{MOST, Rows, Top, TopKey};
use crate::arena::{Arena, MAX_LENS, Resources};
use crate::cache;
use crate::compile::{Compiled, Fusing, Tables};
use crate::device::Gpu;
use crate::host::{HostFeed, Source};
use crate::speed;
use crate::step::{CompiledMethod, Place, Value};
use crate::weights;

/// Calls that may be submitted before the first of them is waited for.
const IN_FLIGHT: usize = 2;

/// A program on a GPU.
pub(crate) struct WgpuEngine {
    program: Arc<Program>,
    options: LoadOptions,
    resources: Resources,
    weight_plan: weights::WeightPlan,
    tables: Tables,
    groups: Vec<GroupTables>,
    fast: Plan,
    /// The same without fused ops, made when a trace is asked for.
    traced: Option<Plan>,
    buffers: Buffers,
    in_flight: InFlight,
}

/// Compiled methods with room for their values.
struct Plan {
    methods: BTreeMap<String, CompiledMethod>,
    shape: lapidary_backend_kit::Buffers,
    arena: Arena,
    /// What is made of outputs on the device, as far as it was asked for.
    tops: Vec<Top>,
}

impl WgpuEngine {
    pub(crate) fn new(
        program: Arc<Program>,
        options: LoadOptions,
        gpu: Arc<Gpu>,
        tables: Tables,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let fusing = (Fusing::On, tables);
        let compiled = Compiled::new(&program, &options, &gpu.abilities, fusing, None);
        speed::measure(&gpu)?;
        // Caches first: what does not fit should fail before minutes of reading.
        let caches = compiled.caches.iter().map(|shape| shape.open(&gpu)).collect::<Result<_>>()?;
        let weights = compiled.weights.load(&program, &gpu, progress)?;
        let resources = Resources { gpu, weights, caches };
        let n_kernels = resources.gpu.n_pipelines();
        let groups = compiled.groups.clone();
        let (fast, weight_plan) = Plan::new(&resources, compiled)?;
        resources.gpu.keep_pipelines(n_kernels);
        let buffers = Buffers::new(&resources.gpu)?;
        Ok(WgpuEngine {
            program,
            options,
            resources,
            weight_plan,
            tables,
            groups,
            fast,
            traced: None,
            buffers,
            in_flight: InFlight::default(),
        })
    }

    /// Makes methods ready whose every value can be shown.
    fn make_traced(&mut self) -> Result<()> {
        if self.traced.is_none() {
            let abilities = &self.resources.gpu.abilities;
            let plan = self.weight_plan.clone();
            let fusing = (Fusing::Off, self.tables);
            let compiled =
                Compiled::new(&self.program, &self.options, abilities, fusing, Some(plan));
            let (plan, weight_plan) = Plan::new(&self.resources, compiled)?;
            if weight_plan != self.weight_plan {
                return Err(Error::Device("a trace asks for other weights".to_string()));
            }
            self.traced = Some(plan);
        }
        Ok(())
    }
}

/// Bytes for what is made of asked rows on the device.
pub(crate) fn top_bytes(compiled: &Compiled) -> u64 {
    let outputs = compiled.methods.values().flat_map(|method| &method.outputs);
    let drawn = outputs.filter(|out| out.is_drawn_from());
    let rows = |value: &Value| compiled.planned.len(value.rows);
    drawn.map(|out| top::size_bytes(rows(&out.value), out.value.channels)).sum()
}

impl Plan {
    /// Room for compiled methods, and the weights that they want.
    fn new(resources: &Resources, compiled: Compiled) -> Result<(Self, weights::WeightPlan)> {
        let Compiled { methods, weights, arena: shape, planned, spans, .. } = compiled;
        if let Some((name, _)) = methods.iter().find(|(_, m)| m.dims.len() > MAX_LENS) {
            let what = format!("method `{name}` has more than {MAX_LENS} lengths");
            return Err(Error::Device(what));
        }
        let arena = Arena::new(resources, &shape, &methods, planned, spans)?;
        Ok((Plan { methods, shape, arena, tops: Vec::new() }, weights))
    }

    fn method(&self, name: &str) -> Result<&CompiledMethod> {
        self.methods.get(name).ok_or_else(|| Error::Feed {
            method: name.to_string(),
            what: "it is not among the methods that were loaded".to_string(),
        })
    }

    /// Makes room for a call whose windows have such sizes; whether there was too little.
    fn make_room(&mut self, resources: &Resources, sizes: Sizes, spans: usize) -> Result<bool> {
        let have = self.arena.sizes;
        let need = Sizes {
            tokens: have.tokens.max(sizes.tokens),
            rows: have.rows.max(sizes.rows),
            soft: have.soft.max(sizes.soft),
            patches: have.patches.max(sizes.patches),
            frames: have.frames.max(sizes.frames),
        };
        let is_short = need != have || spans > self.arena.spans;
        if is_short {
            self.tops.clear();
            let spans = spans.max(self.arena.spans);
            self.arena = Arena::new(resources, &self.shape, &self.methods, need, spans)?;
        }
        Ok(is_short)
    }

    /// Makes ready what is made of outputs on the device.
    fn make_tops(&mut self, resources: &Resources, shape: &CallShape) -> Result<()> {
        for (output, what) in shape.uses.iter().enumerate() {
            let OutputUse::Top(what) = what else { continue };
            let key = TopKey { method: shape.method.clone(), output, what: *what };
            if self.tops.iter().any(|top| top.key == key) {
                continue;
            }
            let method = &self.methods[&shape.method];
            let Value { rows, channels, place } = method.outputs[output].value;
            let Place::Buffer(buffer) = place else {
                let what = "an output that is fed has no candidates".to_string();
                return Err(Error::Feed { method: shape.method.clone(), what });
            };
            let is_rule = |feed: &HostFeed| *feed == HostFeed::Rules { output };
            let rules = method.feeds.iter().position(|feed| is_rule(&feed.source));
            let bound_method = &self.arena.methods[&shape.method];
            let rows = Rows {
                numbers: &self.arena.buffers[buffer],
                n_rows: self.arena.sizes.len(rows),
                channels,
                feeds: &self.arena.feeds,
                rules: rules.map_or([0..16, 0..16], |feed| bound_method.both_places(feed)),
            };
            self.tops.push(Top::new(&resources.gpu, key, &rows)?);
        }
        Ok(())
    }
}

impl Engine for WgpuEngine {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn options(&self) -> &LoadOptions {
        &self.options
    }

    fn describe(&self) -> String {
        let kv = if self.options.kv_type() == KvType::F32 { "f32" } else { "bf16" };
        let methods = self.fast.methods.iter().map(|(name, method)| {
            let n = grouped(method.steps.iter().map(|step| step.nodes.len()).sum());
            let one = Sizes { tokens: 1, rows: 1, soft: 1, patches: 1, frames: 1 };
            let kernels = method.n_kernels(one, 1, self.resources.gpu.abilities.max_groups);
            format!(" · {name}: {n} of {n} ops in {} kernels", grouped(kernels))
        });
        format!("{} · KV {kv}{}", self.resources.gpu.name, methods.collect::<String>())
    }

    fn abilities(&self) -> Abilities {
        let max_in_flight = if self.tables == Tables::Device { IN_FLIGHT } else { 1 };
        Abilities { max_top_k: MOST, prefers_top_k: true, max_in_flight }
    }

    fn submit(&mut self, call: &Call<'_>) -> Result<Ticket> {
        self.submit_call(call)
    }

    fn poll(&mut self, ticket: Ticket, results: &mut Results) -> Result<bool> {
        let gpu = &self.resources.gpu;
        gpu.look()?;
        let is_done = self.in_flight.take(gpu, &mut self.buffers, ticket, results, false)?;
        if !is_done {
            self.record_ahead()?;
        }
        Ok(is_done)
    }

    fn wait(&mut self, ticket: Ticket, results: &mut Results) -> Result<()> {
        self.record_ahead()?;
        self.wait_for(ticket, results)
    }

    fn release(&mut self, ticket: Ticket) {
        self.in_flight.release(&mut self.buffers, ticket);
    }

    fn copy_pages(&mut self, group: usize, pairs: &[(PageId, PageId)]) -> Result<()> {
        cache::copy_pages(&self.resources.gpu, &self.resources.caches, group, pairs)
    }

    fn page_bytes(&self, group: usize) -> usize {
        cache::page_bytes(&self.resources.caches, group) as usize
    }

    fn read_page(&mut self, group: usize, page: PageId, bytes: &mut Vec<u8>) -> Result<()> {
        cache::read_page(&self.resources.gpu, &self.resources.caches, group, page, bytes)
    }

    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<()> {
        cache::write_page(&self.resources.gpu, &self.resources.caches, group, page, bytes)
    }

    fn trace(&mut self, call: &Call<'_>, sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        let mut bound = bind(&self.program, call, &self.options)?;
        self.fast.method(call.method)?;
        self.resources.gpu.check()?;
        let tokens = self.tokens_for_host(call.method, &bound)?;
        submit::take_tokens(&mut bound, &tokens);
        self.make_traced()?;
        let Some(plan) = &mut self.traced else { return Ok(()) };
        plan.make_room(&self.resources, bound.sizes, bound.spans.len())?;
        // All outputs, so that every step is run.
        let uses = vec![OutputUse::Whole; plan.methods[call.method].outputs.len()];
        let shape = CallShape {
            method: call.method.to_string(),
            sizes: bound.sizes,
            spans: bound.spans.len(),
            uses,
            of: submit::of_bits(&bound),
        };
        let source = Source {
            program: &self.program,
            tables: &self.resources.weights.tables,
            groups: &self.groups,
            bound: &bound,
            rules: &[],
        };
        let mut recorder = Recorder {
            plan,
            resources: &self.resources,
            buffers: &mut self.buffers,
            shape,
            keys: newest_key(&bound),
            stop: call.stop,
        };
        recorder.feed(source, None, |_| true, 0)?;
        let mut encoder = self.resources.gpu.encoder();
        recorder.record_of(&mut encoder, source, 0, &|rows| self.in_flight.kept(rows))?;
        self.resources.gpu.queue.submit([encoder.finish()]);
        show_steps(&mut recorder, source, sink)
    }
}

/// Runs a call step by step and shows every value, in the order of the nodes.
fn show_steps(
    recorder: &mut Recorder<'_>,
    source: Source<'_>,
    sink: &mut dyn FnMut(usize, &[f32]),
) -> Result<()> {
    // Steps run in an order of their own; what comes too early waits.
    let mut early: BTreeMap<usize, Option<Vec<f32>>> = BTreeMap::new();
    let mut next = 0;
    for (i, step) in recorder.method().steps.iter().enumerate() {
        recorder.submit_only(i..i + 1)?;
        let mut shown = step.shown.iter();
        for node in &step.nodes {
            let values = shown.next().map(|value| recorder.value(source, *value)).transpose()?;
            early.insert(*node, values);
        }
        while let Some(values) = early.remove(&next) {
            if let Some(values) = values {
                sink(next, &values);
            }
            next += 1;
        }
    }
    Ok(())
}

impl Recorder<'_> {
    /// The numbers of one value, once all that was submitted is done.
    fn value(&mut self, source: Source<'_>, value: Value) -> Result<Vec<f32>> {
        let len = value.len(self.shape.sizes);
        let mut out = vec![0.0; len];
        match value.place {
            Place::Feed(feed) => submit::show_feed(self.method(), source, feed, &mut out)?,
            Place::Buffer(b) if len > 0 => {
                let (gpu, bytes) = (self.gpu(), len as u64 * 4);
                let readback = self.buffers.readbacks.take(gpu, bytes)?;
                let mut encoder = gpu.encoder();
                encoder.copy_buffer_to_buffer(&self.arena().buffers[b], 0, &readback, 0, bytes);
                gpu.queue.submit([encoder.finish()]);
                gpu.map(&readback, bytes).wait(gpu, &mut |words| decode(words, false, &mut out))?;
                self.buffers.readbacks.give_back(readback);
            }
            Place::Buffer(_) => {}
        }
        Ok(out)
    }
}

/// One more than the newest position of a call.
fn newest_key(bound: &Bound<'_>) -> u64 {
    bound.positions.iter().chain(&bound.horizons).max().map_or(1, |p| *p as u64 + 1)
}

/// The number of a method's input of tokens.
fn tokens_of(program: &Program, method: &str) -> Option<usize> {
    let inputs = &program.methods().get(method)?.graph.inputs;
    inputs.iter().position(|i| i.name == input::TOKENS)
}

impl Drop for WgpuEngine {
    fn drop(&mut self) {
        if let Some(profile) = &self.buffers.profile {
            eprint!("{}", profile.table());
        }
        if let Some(times) = &self.buffers.times {
            eprint!("{}", times.lines());
        }
    }
}

/// A number with commas between thousands.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands_are_grouped() {
        assert_eq!(
            [7, 999, 1204, 1_000_000].map(super::grouped),
            ["7", "999", "1,204", "1,000,000"]
        );
    }
}
