//! Runs compiled methods: feeds in, kernels in one or few submissions, outputs back.

mod call;
mod record;
mod top;
mod upload;

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_backend::{
    Engine, Error, Feed, FeedData, KvType, Largest, LoadOptions, Outputs, Result, Sizes, bind,
};
use lapidary_program::Program;

use self::call::{Call, is_asked_feed, newest_key, readback_buffer};
use self::record::Recorded;
use self::top::{MOST, Sought, Top};
use self::upload::Uploads;
use crate::cache::Cache;
use crate::compile::{Compiled, Fusing, RoomShape};
use crate::device::Gpu;
use crate::profile::{HostTimes, Profile};
use crate::room::{Lasting, MAX_LENS, Room};
use crate::speed::{self, Running};
use crate::step::{CompiledMethod, Place, Value, is_asked};
use crate::weights::{self, Weights};

/// A program on a GPU.
pub(crate) struct WgpuEngine {
    program: Arc<Program>,
    options: LoadOptions,
    lasting: Kept,
    wanted: weights::Wanted,
    fast: Plan,
    /// The same without fused ops, made when a trace is asked for.
    traced: Option<Plan>,
    buffers: Buffers,
}

/// What does not depend on a call.
struct Kept {
    gpu: Arc<Gpu>,
    weights: Weights,
    caches: Vec<Cache>,
}

/// Compiled methods with room for their values.
struct Plan {
    methods: BTreeMap<String, CompiledMethod>,
    shape: RoomShape,
    room: Room,
    /// What finds the largest numbers of outputs, as far as it was asked for.
    tops: Vec<Top>,
}

/// What a caller wants of a call.
enum Asked<'a> {
    Outputs(&'a mut Outputs),
    /// The largest numbers of one output, so many of each row.
    Largest(Sought, usize, &'a mut Largest),
}

/// What grows with calls and is then kept.
struct Buffers {
    /// What the host reads outputs from.
    readback: wgpu::Buffer,
    /// Bytes on their way to the device, and buffers for many of them and for few.
    bytes: Vec<u8>,
    long: Uploads,
    short: Uploads,
    /// What kernels took, if that is asked for.
    profile: Option<Profile>,
    times: Option<HostTimes>,
    /// Commands of the call that is likely to come next.
    ahead: Option<Recorded>,
    running: Running,
}

impl WgpuEngine {
    pub(crate) fn new(
        program: Arc<Program>,
        options: LoadOptions,
        gpu: Arc<Gpu>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let compiled = Compiled::new(&program, &options, &gpu.abilities, Fusing::On, None);
        speed::measure(&gpu)?;
        // Caches first: what does not fit should fail before minutes of reading.
        let caches = compiled.caches.iter().map(|shape| shape.open(&gpu)).collect::<Result<_>>()?;
        let weights = compiled.weights.load(&program, &gpu, progress)?;
        let lasting = Kept { gpu, weights, caches };
        let n_kernels = lasting.gpu.n_pipelines();
        let (fast, wanted) = Plan::new(&lasting, compiled)?;
        lasting.gpu.keep_pipelines(n_kernels);
        let readback = readback_buffer(&lasting.gpu, 4)?;
        let profile = lasting.gpu.abilities.times.then(|| Profile::new(&lasting.gpu));
        let profile = profile.transpose()?;
        let (bytes, long, short, ahead, running) = Default::default();
        let times = HostTimes::wanted();
        let buffers = Buffers { readback, bytes, long, short, profile, times, ahead, running };
        Ok(WgpuEngine { program, options, lasting, wanted, fast, traced: None, buffers })
    }

    /// Runs a method, in as many windows as its asked rows need.
    fn run_for(&mut self, method: &str, feeds: &[Feed<'_>], mut asked: Asked<'_>) -> Result<()> {
        let (sizes, fed) = bind(&self.program, method, feeds, &self.options)?;
        let compiled = self.fast.method(method)?;
        self.lasting.gpu.check()?;
        let planned = self.fast.room.sizes.rows;
        let window = if compiled.windows { sizes.rows.min(planned) } else { sizes.rows };
        let first = Sizes { rows: window, ..sizes };
        if self.fast.make_room(&self.lasting, first)? {
            self.buffers.ahead = None;
        }
        let top = match &asked {
            Asked::Largest(sought, ..) => Some(self.fast.make_top(&self.lasting, sought.clone())?),
            Asked::Outputs(_) => None,
        };
        let source = (&*self.program, &self.lasting);
        let mut call = self.fast.call(source, method, &fed, first, &mut self.buffers)?;
        call.top = top.map(|i| &self.fast.tops[i]);
        call.is_whole = window == sizes.rows;
        let (mut from, mut steps) = (0, 0..call.method.steps.len());
        call.feed(|_| true, 0)?;
        loop {
            let returned = call.submit(steps.clone(), from)?;
            match &mut asked {
                Asked::Outputs(outputs) => call.read(&returned, outputs, sizes)?,
                Asked::Largest(_, k, largest) => call.read_largest(&returned, *k, largest)?,
            }
            from += call.sizes.rows;
            if from >= sizes.rows {
                break;
            }
            call.sizes.rows = window.min(sizes.rows - from);
            call.feed(is_asked_feed, from)?;
            steps.start = call.method.n_once;
        }
        if let Asked::Outputs(outputs) = asked {
            outputs.truncate(call.method.outputs.len());
        }
        Ok(())
    }

    /// Makes methods ready whose every value can be shown.
    fn make_traced(&mut self) -> Result<()> {
        if self.traced.is_none() {
            let abilities = &self.lasting.gpu.abilities;
            let wanted = self.wanted.clone();
            let compiled =
                Compiled::new(&self.program, &self.options, abilities, Fusing::Off, Some(wanted));
            let (plan, wanted) = Plan::new(&self.lasting, compiled)?;
            if wanted != self.wanted {
                return Err(Error::Device("a trace asks for other weights".to_string()));
            }
            self.traced = Some(plan);
        }
        Ok(())
    }
}

/// Bytes for the largest numbers of asked rows.
pub(crate) fn largest_bytes(compiled: &Compiled) -> u64 {
    let outputs = compiled.methods.values().flat_map(|method| &method.outputs);
    let asked = outputs.filter(|out| is_asked(out.value.rows) && !out.indices);
    let rows = |value: &Value| compiled.planned.len(value.rows);
    asked.map(|out| top::size_bytes(rows(&out.value), out.value.channels)).sum()
}

impl Kept {
    fn lent(&self) -> Lasting<'_> {
        Lasting { gpu: &self.gpu, weights: &self.weights, caches: &self.caches }
    }
}

impl Plan {
    /// Room for compiled methods, and the weights that they want.
    fn new(lasting: &Kept, compiled: Compiled) -> Result<(Self, weights::Wanted)> {
        let Compiled { methods, weights, room: shape, planned, .. } = compiled;
        if let Some((name, _)) = methods.iter().find(|(_, m)| m.dims.len() > MAX_LENS) {
            let what = format!("method `{name}` has more than {MAX_LENS} lengths");
            return Err(Error::Device(what));
        }
        let room = Room::new(lasting.lent(), &shape, &methods, planned)?;
        Ok((Plan { methods, shape, room, tops: Vec::new() }, weights))
    }

    fn method(&self, name: &str) -> Result<&CompiledMethod> {
        self.methods.get(name).ok_or_else(|| Error::Feed {
            method: name.to_string(),
            what: "it is not among the methods that were loaded".to_string(),
        })
    }

    /// Makes room for a call whose windows have so many asked rows; whether there was too little.
    fn make_room(&mut self, lasting: &Kept, sizes: Sizes) -> Result<bool> {
        let have = self.room.sizes;
        let need = Sizes {
            tokens: have.tokens.max(sizes.tokens),
            rows: have.rows.max(sizes.rows),
            soft: have.soft.max(sizes.soft),
            patches: have.patches.max(sizes.patches),
            frames: have.frames.max(sizes.frames),
        };
        if need != have {
            self.tops.clear();
            self.room = Room::new(lasting.lent(), &self.shape, &self.methods, need)?;
        }
        Ok(need != have)
    }

    /// Makes ready what finds the largest numbers of an output; says which it is.
    fn make_top(&mut self, lasting: &Kept, sought: Sought) -> Result<usize> {
        if let Some(known) = self.tops.iter().position(|top| top.sought == sought) {
            return Ok(known);
        }
        let Value { rows, channels, place } =
            self.methods[&sought.method].outputs[sought.output].value;
        let Place::Buffer(buffer) = place else {
            let what = "an output that is fed has no largest numbers".to_string();
            return Err(Error::Feed { method: sought.method, what });
        };
        let size = (self.room.sizes.len(rows), channels);
        self.tops.push(Top::new(&lasting.gpu, sought, &self.room.buffers[buffer], size)?);
        Ok(self.tops.len() - 1)
    }

    /// A call with room for it.
    fn call<'a>(
        &'a self,
        (program, lasting): (&'a Program, &'a Kept),
        name: &'a str,
        fed: &'a [FeedData<'a>],
        sizes: Sizes,
        buffers: &'a mut Buffers,
    ) -> Result<Call<'a>> {
        Ok(Call {
            name,
            program,
            gpu: &lasting.gpu,
            weights: &lasting.weights,
            method: self.method(name)?,
            ready: &self.room.methods[name],
            room: &self.room,
            readback: &mut buffers.readback,
            bytes: &mut buffers.bytes,
            long: &mut buffers.long,
            short: &mut buffers.short,
            profile: buffers.profile.as_mut(),
            times: buffers.times.as_mut().map(|times| times.of(sizes.tokens)),
            ahead: &mut buffers.ahead,
            chosen: None,
            top: None,
            fed,
            sizes,
            is_whole: false,
            keys: newest_key(program, name, fed)?,
            running: &mut buffers.running,
        })
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
            let kernels = method.n_kernels(one, 1, self.lasting.gpu.abilities.max_groups);
            format!(" · {name}: {n} of {n} ops in {} kernels", grouped(kernels))
        });
        format!("{} · KV {kv}{}", self.lasting.gpu.name, methods.collect::<String>())
    }

    fn run(&mut self, method: &str, feeds: &[Feed<'_>], outputs: &mut Outputs) -> Result<()> {
        self.run_for(method, feeds, Asked::Outputs(outputs))
    }

    fn max_largest(&self) -> usize {
        MOST
    }

    fn run_largest(
        &mut self,
        method: &str,
        feeds: &[Feed<'_>],
        output: &str,
        k: usize,
        largest: &mut Largest,
    ) -> Result<()> {
        let outputs = &self.fast.method(method)?.outputs;
        let fail = |what: String| Error::Feed { method: method.to_string(), what };
        let found = outputs.iter().position(|out| out.name == output && !out.indices);
        let i = found.ok_or_else(|| fail(format!("it has no numbers `{output}`")))?;
        if !(1..=MOST).contains(&k) {
            return Err(fail(format!("{k} numbers of a row were asked for, not 1 to {MOST}")));
        }
        let k_of_row = k.min(outputs[i].value.channels);
        largest.clear(k_of_row);
        self.run_for(method, feeds, Asked::Largest(Sought::new(method, i, k), k_of_row, largest))
    }

    fn trace(
        &mut self,
        method: &str,
        feeds: &[Feed<'_>],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        let (sizes, fed) = bind(&self.program, method, feeds, &self.options)?;
        self.fast.method(method)?;
        self.lasting.gpu.check()?;
        self.make_traced()?;
        let Some(plan) = &mut self.traced else { return Ok(()) };
        plan.make_room(&self.lasting, sizes)?;
        let source = (&*self.program, &self.lasting);
        let mut call = plan.call(source, method, &fed, sizes, &mut self.buffers)?;
        call.feed(|_| true, 0)?;
        // Steps run in an order of their own; what comes too early waits.
        let mut early: BTreeMap<usize, Option<Vec<f32>>> = BTreeMap::new();
        let mut next = 0;
        for (i, step) in call.method.steps.iter().enumerate() {
            call.submit_only(i..i + 1)?;
            let mut shown = step.shown.iter();
            for node in &step.nodes {
                let values = shown.next().map(|value| call.value(*value)).transpose()?;
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
