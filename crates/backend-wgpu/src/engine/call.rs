//! One run of a method: feeds in, kernels, outputs back.

use std::ops::Range;

use lapidary_backend::{FeedData, Outputs, Result, Sizes};
use lapidary_program::{Program, input};

use crate::device::Gpu;
use crate::host::HostFeed;
use crate::profile::Profile;
use crate::room::{Ready, Room};
use crate::step::{CompiledMethod, FeedSpec, Place, Value, is_asked};
use crate::weights::Weights;

/// One run of a method.
pub(super) struct Call<'a> {
    pub program: &'a Program,
    pub gpu: &'a Gpu,
    pub weights: &'a Weights,
    pub method: &'a CompiledMethod,
    pub ready: &'a Ready,
    pub room: &'a Room,
    pub readback: &'a mut wgpu::Buffer,
    pub bytes: &'a mut Vec<u8>,
    pub floats: &'a mut Vec<f32>,
    pub profile: Option<&'a mut Profile>,
    pub fed: &'a [FeedData<'a>],
    /// The lengths of this window.
    pub sizes: Sizes,
    /// Keys that a query may see, at most.
    pub keys: u64,
    /// Multiplications so far.
    pub work: u64,
}

impl Call<'_> {
    /// Writes the lengths of this window, and some feeds; those of asked rows begin at `from`.
    pub(super) fn feed(&mut self, wanted: impl Fn(&FeedSpec) -> bool, from: usize) -> Result<()> {
        let places = self.ready.places.iter().zip(&self.ready.read);
        for (feed, (place, is_read)) in self.method.feeds.iter().zip(places) {
            let len = self.sizes.len(feed.rows) * feed.channels;
            if !is_read || !wanted(feed) || len == 0 {
                continue;
            }
            let from = if is_asked(feed.rows) { from } else { 0 };
            self.bytes.clear();
            match feed.source {
                HostFeed::Input(i) => {
                    let part = from * feed.channels..from * feed.channels + len;
                    extend(self.bytes, self.fed[i], part);
                }
                _ => {
                    self.floats.resize(len, 0.0);
                    let tables = &self.weights.tables;
                    feed.source.make(
                        self.program,
                        tables,
                        self.fed,
                        from,
                        &mut self.floats[..len],
                    )?;
                    extend(self.bytes, FeedData::F32(self.floats), 0..len);
                }
            }
            self.gpu.queue.write_buffer(&self.room.feeds, place.start, self.bytes);
        }
        self.bytes.clear();
        for dim in &self.method.dims {
            self.bytes.extend((self.sizes.len(*dim) as u32).to_le_bytes());
        }
        if !self.bytes.is_empty() {
            self.gpu.queue.write_buffer(&self.ready.call, 0, self.bytes);
        }
        Ok(())
    }

    /// Records and submits some steps; the work of one submission is bounded.
    pub(super) fn record(&mut self, steps: Range<usize>) -> Result<()> {
        if self.profile.is_some() {
            return self.record_timed(steps);
        }
        let budget = self.gpu.speed.per_submission();
        let mut encoder = self.gpu.encoder();
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        let mut work = 0u64;
        for i in steps {
            let kernels = self.method.steps[i].dispatches.iter().zip(&self.ready.steps[i]);
            for (kernel, (pipeline, group)) in kernels {
                if !kernel.is_meant(self.sizes) {
                    continue;
                }
                let most = self.gpu.abilities.max_groups;
                let Some([x, y, z]) = kernel.grid.groups(self.sizes, most) else { continue };
                let own = kernel.work.of(self.sizes, self.keys);
                if work > 0 && work.saturating_add(own) > budget {
                    drop(pass);
                    self.gpu.queue.submit([encoder.finish()]);
                    encoder = self.gpu.encoder();
                    pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                    work = 0;
                }
                work = work.saturating_add(own);
                self.work = self.work.saturating_add(own);
                pass.set_pipeline(&pipeline.raw);
                pass.set_bind_group(0, group, &[]);
                pass.dispatch_workgroups(x, y, z);
            }
        }
        drop(pass);
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.check()
    }

    /// The same with the time of each kernel taken.
    fn record_timed(&mut self, steps: Range<usize>) -> Result<()> {
        let Some(profile) = self.profile.as_deref_mut() else { return Ok(()) };
        let mut encoder = self.gpu.encoder();
        for i in steps {
            let kernels = self.method.steps[i].dispatches.iter().zip(&self.ready.steps[i]);
            for (kernel, (pipeline, group)) in kernels {
                let groups = kernel.grid.groups(self.sizes, self.gpu.abilities.max_groups);
                let Some([x, y, z]) = groups.filter(|_| kernel.is_meant(self.sizes)) else {
                    continue;
                };
                if profile.is_full() {
                    self.gpu.queue.submit([encoder.finish()]);
                    profile.collect(self.gpu)?;
                    encoder = self.gpu.encoder();
                }
                let work = kernel.work.of(self.sizes, self.keys);
                let mut pass = profile.pass(&mut encoder, kernel, self.sizes.tokens, work);
                pass.set_pipeline(&pipeline.raw);
                pass.set_bind_group(0, group, &[]);
                pass.dispatch_workgroups(x, y, z);
            }
        }
        self.gpu.queue.submit([encoder.finish()]);
        profile.collect(self.gpu)
    }

    /// Reads the outputs of this window. Those that are not of asked rows come with the first.
    pub(super) fn read(&mut self, outputs: &mut Outputs, whole: Sizes, from: usize) -> Result<()> {
        let method = self.method;
        let mut wanted = Vec::with_capacity(method.outputs.len());
        for (i, out) in method.outputs.iter().enumerate() {
            let Value { rows, channels, place } = out.value;
            outputs.prepare(i, &out.name, whole.len(rows), channels);
            if !is_asked(rows) && from > 0 {
                continue;
            }
            let start = if is_asked(rows) { from * channels } else { 0 };
            let part = start..start + self.sizes.len(rows) * channels;
            match place {
                Place::Buffer(buffer) => wanted.push((i, buffer, part)),
                Place::Feed(feed) => {
                    let data = outputs.prepare(i, &out.name, whole.len(rows), channels);
                    self.show_feed(feed, part.start / channels.max(1), &mut data[part])?;
                }
            }
        }
        let lens: Vec<(usize, usize)> =
            wanted.iter().map(|(_, b, part)| (*b, part.len())).collect();
        let mut parts = wanted.into_iter();
        self.download(&lens, &mut |words| {
            let Some((i, _, part)) = parts.next() else { return };
            let out = &method.outputs[i];
            let rows = whole.len(out.value.rows);
            let data = outputs.prepare(i, &out.name, rows, out.value.channels);
            decode(words, out.indices, &mut data[part]);
        })
    }

    /// The numbers of one value.
    pub(super) fn value(&mut self, value: Value) -> Result<Vec<f32>> {
        let len = value.len(self.sizes);
        let mut out = vec![0.0; len];
        match value.place {
            Place::Feed(feed) => self.show_feed(feed, 0, &mut out)?,
            Place::Buffer(b) => {
                self.download(&[(b, len)], &mut |words| decode(words, false, &mut out))?;
            }
        }
        Ok(out)
    }

    /// What the host fed.
    fn show_feed(&self, feed: usize, from: usize, out: &mut [f32]) -> Result<()> {
        let spec = &self.method.feeds[feed];
        match spec.source {
            HostFeed::Input(i) => {
                let start = from * spec.channels;
                match self.fed[i] {
                    FeedData::F32(data) => out.copy_from_slice(&data[start..start + out.len()]),
                    FeedData::I32(data) => {
                        out.iter_mut().zip(&data[start..]).for_each(|(o, x)| *o = *x as f32);
                    }
                }
                Ok(())
            }
            _ => spec.source.make(self.program, &self.weights.tables, self.fed, from, out),
        }
    }

    /// Waits for all that was submitted and hands out the first words of some buffers.
    fn download(&mut self, parts: &[(usize, usize)], take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let total: u64 = parts.iter().map(|(_, len)| *len as u64 * 4).sum();
        if total == 0 {
            parts.iter().for_each(|_| take(&[]));
            return Ok(());
        }
        if self.readback.size() < total {
            *self.readback = readback_buffer(self.gpu, total)?;
        }
        let mut encoder = self.gpu.encoder();
        let mut at = 0;
        for (buffer, len) in parts.iter().filter(|(_, len)| *len > 0) {
            let bytes = *len as u64 * 4;
            encoder.copy_buffer_to_buffer(&self.room.buffers[*buffer], 0, self.readback, at, bytes);
            at += bytes;
        }
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.map(self.readback, total, &mut |bytes| {
            let mut rest = bytes;
            for (_, len) in parts {
                let (part, behind) = rest.split_at(len * 4);
                take(part);
                rest = behind;
            }
        })
    }
}

pub(super) fn readback_buffer(gpu: &Gpu, bytes: u64) -> Result<wgpu::Buffer> {
    gpu.buffer("outputs", bytes, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST)
}

pub(super) fn is_asked_feed(feed: &FeedSpec) -> bool {
    is_asked(feed.rows)
}

/// One more than the newest position of a call.
pub(super) fn newest_key(program: &Program, method: &str, fed: &[FeedData<'_>]) -> Result<u64> {
    let inputs = program.method(method)?.graph.inputs.iter().zip(fed);
    let newest =
        inputs.filter(|(i, _)| i.name == input::POSITIONS).find_map(|(_, data)| match data {
            FeedData::I32(positions) => positions.iter().max(),
            FeedData::F32(_) => None,
        });
    Ok(newest.map_or(1, |p| *p as u64 + 1))
}

fn extend(bytes: &mut Vec<u8>, data: FeedData<'_>, part: Range<usize>) {
    match data {
        FeedData::F32(data) => bytes.extend(data[part].iter().flat_map(|x| x.to_le_bytes())),
        FeedData::I32(data) => bytes.extend(data[part].iter().flat_map(|x| x.to_le_bytes())),
    }
}

fn decode(words: &[u8], indices: bool, out: &mut [f32]) {
    let words = words.as_chunks::<4>().0;
    if indices {
        out.iter_mut().zip(words).for_each(|(o, w)| *o = i32::from_le_bytes(*w) as f32);
    } else {
        out.iter_mut().zip(words).for_each(|(o, w)| *o = f32::from_le_bytes(*w));
    }
}
