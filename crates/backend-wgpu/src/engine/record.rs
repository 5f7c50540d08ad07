//! Commands: kernels of a window and the copies of its outputs, recorded now or ahead.
//!
//! Nothing in them depends on the numbers of a call, only on its method and lengths, and on whether
//! its keys are many. So while the device works on one token, the host records the commands of the
//! next.

use std::ops::Range;
use std::time::Instant;

use lapidary_backend::{Result, Sizes};

use super::call::{Call, LONG, n_bytes, readback_buffer};
use super::top::{Sought, Top};
use super::upload::Upload;
use crate::profile::Doing;
use crate::speed::Planned;
use crate::step::{Place, Value, is_asked};

/// Tokens of the calls whose commands are recorded ahead: answers, one token of each.
const MOST_TOKENS: usize = 8;

/// Keys more than commands were recorded for, with which they are still about as much work.
const ALIKE: u64 = 256;

/// Commands that wait to be submitted.
pub(super) struct Recorded {
    method: String,
    sizes: Sizes,
    /// How many of the method's limits its keys are beyond.
    stage: usize,
    /// The keys that it was recorded for.
    keys: u64,
    sought: Option<Sought>,
    commands: Commands,
}

/// Commands of one submission.
pub(super) struct Commands {
    raw: wgpu::CommandBuffer,
    returned: Returned,
    planned: Planned,
    /// Multiplications of all.
    work: u64,
    /// Where they take feeds from, if those are not written otherwise.
    pub upload: Option<Upload>,
}

/// What commands leave for the host.
#[derive(Clone, Debug)]
pub(super) struct Returned {
    pub readback: wgpu::Buffer,
    /// Of outputs; empty if only the largest numbers of one are looked for.
    pub parts: Vec<Part>,
    /// Bytes that come back.
    pub size_bytes: u64,
}

/// Numbers of one output, or none if the host has them already.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub output: usize,
    pub place: Place,
    /// Where they stand among all that the caller gets of this output.
    pub range: Range<usize>,
}

impl Part {
    /// Bytes that come back for it.
    pub(super) fn size_bytes(&self) -> u64 {
        if matches!(self.place, Place::Feed(_)) { 0 } else { self.range.len() as u64 * 4 }
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

impl Call<'_> {
    /// Runs some steps, and says where the outputs of this window will be.
    pub(super) fn submit(&mut self, steps: Range<usize>, from: usize) -> Result<Returned> {
        let since = Instant::now();
        let budget = self.gpu.speed.per_submission();
        let Commands { raw, returned, planned, work, upload } = match self.chosen.take() {
            Some(commands) => commands,
            None => self.record(steps, from, budget, None)?,
        };
        self.gpu.speed.note(planned, budget);
        let last = self.gpu.queue.submit([raw]);
        if let Some(upload) = upload {
            self.short.keep(upload);
        }
        self.running.add(last, work);
        self.did(Doing::Submitting, since);
        self.gpu.check()?;
        Ok(returned)
    }

    /// Takes the commands that were recorded ahead, if they are all of this call.
    pub(super) fn choose(&mut self) {
        let budget = self.gpu.speed.per_submission();
        let Some(recorded) = self.ahead.take() else { return };
        if self.is_whole && self.is_like(&recorded) && recorded.commands.work <= budget {
            self.chosen = Some(recorded.commands);
        } else if let Some(upload) = recorded.commands.upload {
            self.short.give_back(upload);
        }
    }

    /// Whether commands are those of this call.
    fn is_like(&self, recorded: &Recorded) -> bool {
        recorded.method == self.name
            && recorded.sizes == self.sizes
            && recorded.stage == self.stage()
            && self.keys <= recorded.keys + ALIKE
            && recorded.sought.as_ref() == self.top.map(|top| &top.sought)
    }

    /// How many of the method's limits the keys of this call are beyond.
    fn stage(&self) -> usize {
        self.ready.key_limits.iter().filter(|limit| self.keys > **limit).count()
    }

    /// Runs some steps of which nothing comes back yet.
    pub(super) fn submit_only(&mut self, steps: Range<usize>) -> Result<()> {
        let budget = self.gpu.speed.per_submission();
        let (encoder, planned) = match self.profile {
            Some(_) => (self.record_timed(steps)?, Planned::default()),
            None => self.record_kernels(self.gpu.encoder(), steps, budget),
        };
        self.gpu.speed.note(planned, budget);
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.check()
    }

    /// Records the commands of the call that is likely to come next, if they are one submission:
    /// one more token behind each asked row.
    pub(super) fn record_ahead(&mut self) -> Result<()> {
        let Sizes { tokens, rows, .. } = self.sizes;
        let most = MOST_TOKENS.min(self.room.sizes.tokens);
        if tokens == 0 || rows == 0 || rows > most || self.profile.is_some() {
            return Ok(());
        }
        let own = (self.sizes, self.keys);
        self.sizes = Sizes { tokens: rows, rows, ..Sizes::default() };
        self.keys += 1;
        let recorded = self.record_next();
        (self.sizes, self.keys) = own;
        *self.ahead = recorded?;
        Ok(())
    }

    /// Records all steps for later, if they are one submission.
    fn record_next(&mut self) -> Result<Option<Recorded>> {
        let all = 0..self.method.steps.len();
        if self.work(all.clone()) > self.gpu.speed.per_submission() {
            return Ok(None);
        }
        let n_bytes = n_bytes(&self.feeds(|_| true, 0));
        let upload = (n_bytes < LONG).then(|| self.short.take(self.gpu, n_bytes.max(4) as u64));
        let commands = self.record(all, 0, u64::MAX, upload.transpose()?)?;
        let (method, sizes, stage) = (self.name.to_string(), self.sizes, self.stage());
        let keys = self.keys;
        let sought = self.top.map(|top| top.sought.clone());
        Ok(Some(Recorded { method, sizes, stage, keys, sought, commands }))
    }

    /// Records some steps and the copies of outputs, and of feeds that will stand in a buffer. What is
    /// more work than `budget` is submitted on the way.
    fn record(
        &mut self,
        steps: Range<usize>,
        from: usize,
        budget: u64,
        upload: Option<Upload>,
    ) -> Result<Commands> {
        let (work, returned) = (self.work(steps.clone()), self.returned(from)?);
        let mut encoder = self.gpu.encoder();
        if let Some(Upload { buffer, .. }) = &upload {
            self.record_feeds(&mut encoder, buffer, &self.feeds(|_| true, 0));
        }
        let (mut encoder, planned) = match self.profile {
            Some(_) => (self.record_timed(steps)?, Planned::default()),
            None => self.record_kernels(encoder, steps, budget),
        };
        if let Some(top) = self.top {
            self.record_top(top, &mut encoder, &returned);
        }
        let mut at = 0;
        for part in &returned.parts {
            if let Place::Buffer(b) = part.place {
                let bytes = part.size_bytes();
                let buffer = &self.room.buffers[b];
                encoder.copy_buffer_to_buffer(buffer, 0, &returned.readback, at, bytes);
                at += bytes;
            }
        }
        Ok(Commands { raw: encoder.finish(), returned, planned, work, upload })
    }

    /// Records kernels behind what an encoder has.
    fn record_kernels(
        &self,
        encoder: wgpu::CommandEncoder,
        steps: Range<usize>,
        budget: u64,
    ) -> (wgpu::CommandEncoder, Planned) {
        let mut passage = Passage::new(encoder);
        for i in steps {
            let kernels = self.method.steps[i].dispatches.iter().zip(&self.ready.steps[i]);
            for (kernel, ready) in kernels {
                let most = self.gpu.abilities.max_groups;
                let Some([x, y, z]) = kernel.groups(self.sizes, self.keys, most) else { continue };
                let own = kernel.work.of(self.sizes, self.keys);
                if !passage.planned.takes(own, budget) {
                    let (encoder, planned) = passage.end();
                    self.gpu.speed.note(planned, budget);
                    self.gpu.queue.submit([encoder.finish()]);
                    passage = Passage::new(self.gpu.encoder());
                }
                passage.planned.add(own);
                let pipeline = &ready.pipeline.raw;
                if passage.last.as_ref() != Some(pipeline) {
                    passage.pass.set_pipeline(pipeline);
                    passage.last = Some(pipeline.clone());
                }
                passage.pass.set_bind_group(0, ready.group(self.sizes), &[]);
                passage.pass.dispatch_workgroups(x, y, z);
            }
        }
        passage.end()
    }

    /// The same with the time of each kernel taken; they have run when this returns.
    fn record_timed(&mut self, steps: Range<usize>) -> Result<wgpu::CommandEncoder> {
        let mut encoder = self.gpu.encoder();
        let Some(profile) = self.profile.as_deref_mut() else { return Ok(encoder) };
        for i in steps {
            let kernels = self.method.steps[i].dispatches.iter().zip(&self.ready.steps[i]);
            for (kernel, ready) in kernels {
                let groups = kernel.groups(self.sizes, self.keys, self.gpu.abilities.max_groups);
                let Some([x, y, z]) = groups else { continue };
                if profile.is_full() {
                    self.gpu.queue.submit([encoder.finish()]);
                    profile.collect(self.gpu)?;
                    encoder = self.gpu.encoder();
                }
                let work = kernel.work.of(self.sizes, self.keys);
                let mut pass = profile.pass(&mut encoder, kernel, self.sizes.tokens, work);
                pass.set_pipeline(&ready.pipeline.raw);
                pass.set_bind_group(0, ready.group(self.sizes), &[]);
                pass.dispatch_workgroups(x, y, z);
            }
        }
        self.gpu.queue.submit([encoder.finish()]);
        profile.collect(self.gpu)?;
        Ok(self.gpu.encoder())
    }

    /// Records the search for the largest numbers of an output.
    fn record_top(&self, top: &Top, encoder: &mut wgpu::CommandEncoder, returned: &Returned) {
        let rows = self.sizes.len(self.method.outputs[top.sought.output].value.rows);
        if rows == 0 {
            return;
        }
        top.record(encoder, rows);
        encoder.copy_buffer_to_buffer(&top.best, 0, &returned.readback, 0, returned.size_bytes);
    }

    /// Multiplications of some steps in this window.
    fn work(&self, steps: Range<usize>) -> u64 {
        steps.map(|i| self.step_work(i)).fold(0, u64::saturating_add)
    }

    /// Multiplications of a step in this window.
    fn step_work(&self, step: usize) -> u64 {
        let kernels = self.method.steps[step].dispatches.iter();
        let meant = kernels.filter(|kernel| kernel.is_meant(self.sizes, self.keys));
        meant.map(|k| k.work.of(self.sizes, self.keys)).fold(0, u64::saturating_add)
    }

    /// What comes back of this window. Outputs that are not of asked rows come with the first.
    fn returned(&mut self, from: usize) -> Result<Returned> {
        let outputs = self.method.outputs.iter().enumerate().filter(|_| self.top.is_none());
        let parts = outputs.filter(|(_, out)| is_asked(out.value.rows) || from == 0);
        let parts = parts.map(|(output, out)| {
            let Value { rows, channels, place } = out.value;
            let start = if is_asked(rows) { from * channels } else { 0 };
            Part { output, place, range: start..start + self.sizes.len(rows) * channels }
        });
        let parts: Vec<Part> = parts.filter(|part| !part.range.is_empty()).collect();
        let size_bytes = match self.top {
            Some(top) => {
                let value = self.method.outputs[top.sought.output].value;
                top.size_bytes(self.sizes.len(value.rows))
            }
            None => parts.iter().map(Part::size_bytes).sum(),
        };
        if self.readback.size() < size_bytes {
            *self.readback = readback_buffer(self.gpu, size_bytes)?;
        }
        Ok(Returned { readback: self.readback.clone(), parts, size_bytes })
    }
}
