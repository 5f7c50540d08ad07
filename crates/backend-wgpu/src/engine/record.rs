//! Commands: kernels of a window and the copies of its outputs, recorded now or ahead.
//!
//! Nothing in them depends on the numbers of a call, only on its method and lengths, on what becomes
//! of its outputs, and on whether its keys are many. So while the device works on one token, the host
//! records the commands of the next.

use std::ops::Range;
use std::time::Instant;

use lapidary_backend::{Error, Result, Sizes, StopFlag};
use lapidary_backend_kit::Purposes;

use super::Plan;
use super::buffers::Buffers;
use super::feed::{LONG, n_bytes};
use super::top::{Top, TopKey, TopUse};
use super::upload::Upload;
use crate::arena::{Arena, BoundMethod, Resources, is_close};
use crate::device::Gpu;
use crate::profile::Doing;
use crate::speed::Planned;
use crate::step::{CompiledMethod, Place, Step, Value, is_asked};

/// Tokens of the calls whose commands are recorded ahead: answers, one token of each.
const MOST_TOKENS: usize = 8;

/// Keys more than commands were recorded for, with which they are still about as much work.
const ALIKE: u64 = 256;

/// What becomes of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputUse {
    Skip,
    Whole,
    Keep,
    Top(TopUse),
}

/// What commands depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallShape {
    pub method: String,
    /// The lengths of this window.
    pub sizes: Sizes,
    pub spans: usize,
    /// By output.
    pub uses: Vec<OutputUse>,
    /// Inputs that come from earlier calls, a bit for each.
    pub of: u64,
}

/// A call that is likely to come next.
#[derive(Clone, Debug)]
pub(super) struct NextCall {
    pub shape: CallShape,
    /// Keys that a query may see, at most.
    pub keys: u64,
}

/// Commands that wait to be submitted.
pub(super) struct Recorded {
    shape: CallShape,
    /// How many of the method's limits its keys are beyond.
    stage: usize,
    /// The keys that it was recorded for.
    keys: u64,
    pub commands: Commands,
}

/// Commands of one submission.
pub(super) struct Commands {
    /// `None` once they were submitted.
    raw: Option<wgpu::CommandBuffer>,
    pub readback: Readback,
    pub kept: Vec<KeptRows>,
    planned: Planned,
    /// Multiplications of all.
    pub work: u64,
    /// Where they take feeds from, if those are not written otherwise.
    pub upload: Option<Upload>,
}

/// What commands leave for the host.
#[derive(Clone, Debug, Default)]
pub(super) struct Readback {
    /// `None` if nothing comes back.
    pub buffer: Option<wgpu::Buffer>,
    pub parts: Vec<Part>,
    /// Bytes that come back.
    pub size_bytes: u64,
}

/// What comes back of one output, or nothing if the host has it already.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub output: usize,
    pub place: Place,
    /// Rows of this window, and where they begin among all that the caller gets.
    pub rows: usize,
    pub from: usize,
    pub channels: usize,
    /// If not all of it comes.
    pub top: Option<TopUse>,
}

/// Rows of an output that stay on the device.
#[derive(Clone, Debug)]
pub(super) struct KeptRows {
    pub output: usize,
    pub buffer: wgpu::Buffer,
    pub rows: usize,
    /// Numbers of a row.
    pub channels: usize,
    /// Whether they are drawn tokens.
    pub drawn: bool,
}

impl Part {
    /// Bytes that come back for it.
    pub(super) fn size_bytes(&self) -> u64 {
        let words = match (self.top, self.place) {
            (Some(top), _) => 2 * top.k + usize::from(top.logsumexp) + usize::from(top.draws),
            (None, Place::Feed(_)) => 0,
            (None, Place::Buffer(_)) => self.channels,
        };
        (self.rows * words * 4) as u64
    }
}

impl Commands {
    /// Gives back what they had, if they are not submitted.
    pub(super) fn give_back(self, buffers: &mut Buffers) {
        if let Some(upload) = self.upload {
            buffers.short.give_back(upload);
        }
        if let Some(readback) = self.readback.buffer {
            buffers.readbacks.give_back(readback);
        }
        self.kept.into_iter().for_each(|kept| buffers.kept.give_back(kept.buffer));
    }
}

/// Kernels on their way into commands.
struct Passage {
    encoder: wgpu::CommandEncoder,
    pass: wgpu::ComputePass<'static>,
    planned: Planned,
    last: Option<wgpu::ComputePipeline>,
}

impl Passage {
    fn new(mut encoder: wgpu::CommandEncoder) -> Self {
        let pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        let pass = pass.forget_lifetime();
        Passage { encoder, pass, planned: Planned::default(), last: None }
    }

    fn end(self) -> (wgpu::CommandEncoder, Planned) {
        drop(self.pass);
        (self.encoder, self.planned)
    }
}

/// Makes commands of one window of a call.
pub(super) struct Recorder<'a> {
    pub plan: &'a Plan,
    pub resources: &'a Resources,
    pub buffers: &'a mut Buffers,
    pub shape: CallShape,
    /// Keys that a query may see, at most.
    pub keys: u64,
    pub stop: Option<&'a StopFlag>,
}

impl<'a> Recorder<'a> {
    pub(super) fn gpu(&self) -> &'a Gpu {
        &self.resources.gpu
    }

    pub(super) fn method(&self) -> &'a CompiledMethod {
        &self.plan.methods[&self.shape.method]
    }

    pub(super) fn bound_method(&self) -> &'a BoundMethod {
        &self.plan.arena.methods[&self.shape.method]
    }

    pub(super) fn arena(&self) -> &'a Arena {
        &self.plan.arena
    }

    /// The kernels that make something of an output.
    pub(super) fn top(&self, output: usize, what: TopUse) -> &'a Top {
        let key = TopKey { method: self.shape.method.clone(), output, what };
        let known = self.plan.tops.iter().find(|top| top.key == key);
        known.expect("made before a call is recorded")
    }

    /// Notes what the host did since, if that is asked for.
    pub(super) fn did(&mut self, doing: Doing, since: Instant) {
        if let Some(times) = &mut self.buffers.times {
            times.of(self.shape.sizes.tokens).add(doing, since);
        }
    }

    /// Takes the commands that were recorded ahead, if they are all of this call.
    pub(super) fn choose(&mut self) -> Option<Commands> {
        let budget = self.gpu().speed.per_submission();
        let recorded = self.buffers.ahead.take()?;
        let is_alike = recorded.shape == self.shape
            && recorded.stage == self.stage()
            && self.keys <= recorded.keys + ALIKE
            && recorded.commands.work <= budget;
        if is_alike {
            return Some(recorded.commands);
        }
        recorded.commands.give_back(self.buffers);
        None
    }

    /// How many of the method's limits the keys of this call are beyond.
    fn stage(&self) -> usize {
        self.bound_method().key_limits.iter().filter(|limit| self.keys > **limit).count()
    }

    /// Records some steps and the copies of outputs after what an encoder has, and submits it all.
    pub(super) fn submit_new(
        &mut self,
        encoder: wgpu::CommandEncoder,
        steps: Range<usize>,
        from: usize,
        kept: Vec<KeptRows>,
    ) -> Result<(Commands, wgpu::SubmissionIndex)> {
        let since = Instant::now();
        let budget = self.gpu().speed.per_submission();
        let mut commands = self.record(encoder, steps, from, budget, kept)?;
        let last = self.submit(None, &mut commands, budget)?;
        self.did(Doing::Submitting, since);
        Ok((commands, last))
    }

    /// Submits commands that were recorded ahead, after others.
    pub(super) fn submit_ahead(
        &mut self,
        first: Option<wgpu::CommandBuffer>,
        commands: &mut Commands,
    ) -> Result<wgpu::SubmissionIndex> {
        let since = Instant::now();
        let budget = self.gpu().speed.per_submission();
        let last = self.submit(first, commands, budget)?;
        self.did(Doing::Submitting, since);
        Ok(last)
    }

    fn submit(
        &mut self,
        first: Option<wgpu::CommandBuffer>,
        commands: &mut Commands,
        budget: u64,
    ) -> Result<wgpu::SubmissionIndex> {
        let gpu = self.gpu();
        gpu.speed.note(commands.planned, budget);
        let last = gpu.queue.submit(first.into_iter().chain(commands.raw.take()));
        if let Some(upload) = commands.upload.take() {
            self.buffers.short.keep(upload);
        }
        gpu.check()?;
        Ok(last)
    }

    /// Runs some steps of which nothing comes back yet.
    pub(super) fn submit_only(&mut self, steps: Range<usize>) -> Result<()> {
        let (gpu, budget) = (self.gpu(), self.gpu().speed.per_submission());
        let (encoder, planned) = match self.buffers.profile {
            Some(_) => (self.record_timed(steps)?, Planned::default()),
            None => self.record_kernels(gpu.encoder(), steps, budget)?,
        };
        gpu.speed.note(planned, budget);
        gpu.queue.submit([encoder.finish()]);
        gpu.check()
    }

    /// Records all steps for later, if they are one submission and few tokens.
    pub(super) fn record_ahead(mut self) -> Result<()> {
        let Sizes { tokens, rows, .. } = self.shape.sizes;
        let most = MOST_TOKENS.min(self.arena().sizes.tokens);
        let is_wanted = tokens > 0 && rows > 0 && rows <= most && self.buffers.profile.is_none();
        let all = 0..self.method().steps.len();
        if !is_wanted || self.work(all.clone()) > self.gpu().speed.per_submission() {
            return Ok(());
        }
        let since = Instant::now();
        let n_bytes = n_bytes(&self.feeds(|_| true, 0));
        let gpu = self.gpu();
        let upload = (n_bytes < LONG).then(|| self.buffers.short.take(gpu, n_bytes.max(4) as u64));
        let upload = upload.transpose()?;
        let mut encoder = gpu.encoder();
        if let Some(Upload { buffer, .. }) = &upload {
            self.record_feeds(&mut encoder, buffer, &self.feeds(|_| true, 0));
        }
        let kept = self.take_kept(self.shape.sizes)?;
        let commands = self.record(encoder, all, 0, u64::MAX, kept)?;
        let recorded = Recorded {
            stage: self.stage(),
            keys: self.keys,
            shape: self.shape.clone(),
            commands: Commands { upload, ..commands },
        };
        self.did(Doing::RecordingAhead, since);
        self.buffers.ahead = Some(recorded);
        Ok(())
    }

    /// Buffers for what stays on the device, of all rows of a call.
    pub(super) fn take_kept(&mut self, whole: Sizes) -> Result<Vec<KeptRows>> {
        let mut kept = Vec::new();
        for (output, what) in self.shape.uses.clone().into_iter().enumerate() {
            let Value { rows, channels, .. } = self.method().outputs[output].value;
            let (channels, drawn) = match what {
                OutputUse::Keep => (channels, false),
                OutputUse::Top(TopUse { draws: true, .. }) => (1, true),
                _ => continue,
            };
            let rows = whole.len(rows);
            let size_bytes = (rows * channels * 4).max(4) as u64;
            let buffer = self.buffers.kept.take(self.gpu(), size_bytes)?;
            kept.push(KeptRows { output, buffer, rows, channels, drawn });
        }
        Ok(kept)
    }

    /// Records some steps and the copies of outputs after what an encoder has. What is more work than
    /// `budget` is submitted on the way.
    fn record(
        &mut self,
        encoder: wgpu::CommandEncoder,
        steps: Range<usize>,
        from: usize,
        budget: u64,
        kept: Vec<KeptRows>,
    ) -> Result<Commands> {
        let (work, readback) = (self.work(steps.clone()), self.readback(from)?);
        let (mut encoder, planned) = match self.buffers.profile {
            Some(_) => {
                self.gpu().queue.submit([encoder.finish()]);
                (self.record_timed(steps)?, Planned::default())
            }
            None => self.record_kernels(encoder, steps, budget)?,
        };
        self.record_tops(&mut encoder);
        self.record_readback(&mut encoder, &readback);
        self.record_kept(&mut encoder, &kept, from);
        let raw = Some(encoder.finish());
        Ok(Commands { raw, readback, kept, planned, work, upload: None })
    }

    /// Whether a step is needed for what is wanted of this call.
    fn is_needed(&self, step: &Step) -> bool {
        let wanted = self.shape.uses.iter().map(|what| *what != OutputUse::Skip);
        step.purposes.serves(Purposes::wanted(wanted))
    }

    /// Records kernels after what an encoder has.
    fn record_kernels(
        &self,
        encoder: wgpu::CommandEncoder,
        steps: Range<usize>,
        budget: u64,
    ) -> Result<(wgpu::CommandEncoder, Planned)> {
        let (gpu, sizes) = (self.gpu(), self.shape.sizes);
        let mut passage = Passage::new(encoder);
        for i in steps {
            let step = &self.method().steps[i];
            if !self.is_needed(step) {
                continue;
            }
            let kernels = step.dispatches.iter().zip(&self.bound_method().steps[i]);
            for (kernel, bound) in kernels {
                let most = gpu.abilities.max_groups;
                let Some([x, y, z]) = kernel.groups(sizes, self.keys, most) else { continue };
                let own = kernel.work.of(sizes, self.keys);
                if !passage.planned.takes(own, budget) {
                    let (encoder, planned) = passage.end();
                    gpu.speed.note(planned, budget);
                    gpu.queue.submit([encoder.finish()]);
                    if self.stop.is_some_and(StopFlag::is_set) {
                        return Err(Error::Stopped);
                    }
                    passage = Passage::new(gpu.encoder());
                }
                passage.planned.add(own);
                let pipeline = &bound.pipeline.raw;
                if passage.last.as_ref() != Some(pipeline) {
                    passage.pass.set_pipeline(pipeline);
                    passage.last = Some(pipeline.clone());
                }
                passage.pass.set_bind_group(0, bound.group(sizes), &[]);
                passage.pass.dispatch_workgroups(x, y, z);
            }
        }
        Ok(passage.end())
    }

    /// The same with the time of each kernel taken; they have run when this returns.
    fn record_timed(&mut self, steps: Range<usize>) -> Result<wgpu::CommandEncoder> {
        let (gpu, sizes, keys) = (self.gpu(), self.shape.sizes, self.keys);
        let (method, bound_method) = (self.method(), self.bound_method());
        let needed: Vec<usize> = steps.filter(|i| self.is_needed(&method.steps[*i])).collect();
        let mut encoder = gpu.encoder();
        let Some(profile) = self.buffers.profile.as_mut() else { return Ok(encoder) };
        for i in needed {
            let kernels = method.steps[i].dispatches.iter().zip(&bound_method.steps[i]);
            for (kernel, bound) in kernels {
                let groups = kernel.groups(sizes, keys, gpu.abilities.max_groups);
                let Some([x, y, z]) = groups else { continue };
                if profile.is_full() {
                    gpu.queue.submit([encoder.finish()]);
                    profile.collect(gpu)?;
                    encoder = gpu.encoder();
                }
                let work = kernel.work.of(sizes, keys);
                let mut pass = profile.pass(&mut encoder, kernel, sizes.tokens, work);
                pass.set_pipeline(&bound.pipeline.raw);
                pass.set_bind_group(0, bound.group(sizes), &[]);
                pass.dispatch_workgroups(x, y, z);
            }
        }
        gpu.queue.submit([encoder.finish()]);
        profile.collect(gpu)?;
        Ok(gpu.encoder())
    }

    /// Records what is made of outputs on the device.
    fn record_tops(&self, encoder: &mut wgpu::CommandEncoder) {
        for (output, what) in self.shape.uses.iter().enumerate() {
            let OutputUse::Top(what) = what else { continue };
            let rows = self.shape.sizes.len(self.method().outputs[output].value.rows);
            if rows > 0 {
                self.top(output, *what).record(encoder, rows, is_close(self.shape.sizes));
            }
        }
    }

    /// Records the copies of what the host reads.
    fn record_readback(&self, encoder: &mut wgpu::CommandEncoder, readback: &Readback) {
        let Some(to) = &readback.buffer else { return };
        let mut at = 0;
        for part in &readback.parts {
            match (part.top, part.place) {
                (Some(what), _) => {
                    for (from, size) in self.top(part.output, what).returned(part.rows) {
                        encoder.copy_buffer_to_buffer(from, 0, to, at, size);
                        at += size;
                    }
                }
                (None, Place::Buffer(b)) => {
                    let size = part.size_bytes();
                    encoder.copy_buffer_to_buffer(&self.arena().buffers[b], 0, to, at, size);
                    at += size;
                }
                (None, Place::Feed(_)) => {}
            }
        }
    }

    /// Records the copies of what stays on the device.
    fn record_kept(&self, encoder: &mut wgpu::CommandEncoder, kept: &[KeptRows], from: usize) {
        for KeptRows { output, buffer, channels, drawn, .. } in kept {
            let Value { rows, place, .. } = self.method().outputs[*output].value;
            let first = if is_asked(rows) { from } else { 0 };
            let size = (self.shape.sizes.len(rows) * channels * 4) as u64;
            if size == 0 || first != from {
                continue;
            }
            let (source, start) = match (self.shape.uses[*output], place) {
                (OutputUse::Top(what), _) if *drawn => {
                    let drawn = self.top(*output, what).drawn.as_ref();
                    (drawn.expect("it draws"), 0)
                }
                (_, Place::Buffer(b)) => (&self.arena().buffers[b], 0),
                (_, Place::Feed(f)) => {
                    let places = self.bound_method().places(self.shape.sizes);
                    (&self.arena().feeds, places[f].start)
                }
            };
            let to = (first * channels * 4) as u64;
            encoder.copy_buffer_to_buffer(source, start, buffer, to, size);
        }
    }

    /// Multiplications of some steps in this window.
    fn work(&self, steps: Range<usize>) -> u64 {
        let (sizes, keys) = (self.shape.sizes, self.keys);
        let steps = steps.map(|i| &self.method().steps[i]).filter(|step| self.is_needed(step));
        let kernels = steps.flat_map(|step| &step.dispatches);
        let meant = kernels.filter(|kernel| kernel.is_meant(sizes, keys));
        meant.map(|kernel| kernel.work.of(sizes, keys)).fold(0, u64::saturating_add)
    }

    /// What comes back of this window. Outputs that are not of asked rows come with the first.
    fn readback(&mut self, from: usize) -> Result<Readback> {
        let outputs = self.method().outputs.iter().enumerate();
        let read = outputs.filter_map(|(output, out)| {
            let top = match self.shape.uses[output] {
                OutputUse::Whole => None,
                OutputUse::Top(what) => Some(what),
                OutputUse::Skip | OutputUse::Keep => return None,
            };
            let Value { rows, channels, place } = out.value;
            let is_first = is_asked(rows) || from == 0;
            let from = if is_asked(rows) { from } else { 0 };
            let rows = self.shape.sizes.len(rows);
            (is_first && rows > 0).then_some(Part { output, place, rows, from, channels, top })
        });
        let parts: Vec<Part> = read.collect();
        let size_bytes = parts.iter().map(Part::size_bytes).sum();
        let gpu = self.gpu();
        let buffer = (size_bytes > 0).then(|| self.buffers.readbacks.take(gpu, size_bytes));
        Ok(Readback { buffer: buffer.transpose()?, parts, size_bytes })
    }
}
