//! One run of a method: feeds in, kernels, outputs back.

use std::time::Instant;

use lapidary_backend::{Error, FeedData, Largest, Outputs, Result, Sizes};
use lapidary_program::{Program, input};

use super::record::{Commands, Recorded, Returned};
use super::top::Top;
use super::upload::Uploads;
use crate::device::Gpu;
use crate::host::{HostFeed, Out};
use crate::profile::{Doing, Profile, Spent};
use crate::room::{Ready, Room};
use crate::speed::Running;
use crate::step::{CompiledMethod, FeedSpec, Place, Value, is_asked};
use crate::weights::Weights;

/// Bytes between feeds that are rather skipped than written.
const FAR: u64 = 4096;

/// Bytes of feeds from which on they are written where the device reads them.
pub(super) const LONG: usize = 1 << 18;

/// A feed of a call.
pub(super) struct Fed<'a> {
    feed: &'a FeedSpec,
    /// Where it stands among the bytes of all feeds.
    start: u64,
    /// Numbers of it.
    len: usize,
    /// Its first row.
    from: usize,
    /// Whether it is written.
    is_wanted: bool,
}

/// One run of a method.
pub(super) struct Call<'a> {
    pub name: &'a str,
    pub program: &'a Program,
    pub gpu: &'a Gpu,
    pub weights: &'a Weights,
    pub method: &'a CompiledMethod,
    pub ready: &'a Ready,
    pub room: &'a Room,
    pub readback: &'a mut wgpu::Buffer,
    pub bytes: &'a mut Vec<u8>,
    /// Memory for long feeds, and for those of commands that were recorded ahead.
    pub long: &'a mut Uploads,
    pub short: &'a mut Uploads,
    pub profile: Option<&'a mut Profile>,
    pub times: Option<&'a mut Spent>,
    /// Finds the largest numbers of an output, if only those are wanted.
    pub top: Option<&'a Top>,
    /// Commands that were recorded ahead, and those of them that this call is fed for.
    pub ahead: &'a mut Option<Recorded>,
    pub chosen: Option<Commands>,
    pub fed: &'a [FeedData<'a>],
    /// The lengths of this window.
    pub sizes: Sizes,
    /// Whether this window is all, and its commands may serve again.
    pub is_whole: bool,
    /// Keys that a query may see, at most.
    pub keys: u64,
    /// What the device was given and may not have done yet.
    pub running: &'a mut Running,
}

impl<'a> Call<'a> {
    /// What kernels read of this window, and what of it is to be written; asked rows begin at `from`.
    pub(super) fn feeds(&self, wanted: impl Fn(&FeedSpec) -> bool, from: usize) -> Vec<Fed<'a>> {
        let (method, ready) = (self.method, self.ready);
        let feeds = method.feeds.iter().zip(ready.places(self.sizes)).zip(&ready.read);
        let feeds = feeds.filter(|(_, is_read)| **is_read).map(|((feed, place), _)| Fed {
            feed,
            start: place.start,
            len: self.sizes.len(feed.rows) * feed.channels,
            from: if is_asked(feed.rows) { from } else { 0 },
            is_wanted: wanted(feed),
        });
        feeds.filter(|fed| fed.len > 0).collect()
    }
}

/// Bytes of the feeds that are to be written.
pub(super) fn n_bytes(feeds: &[Fed<'_>]) -> usize {
    feeds.iter().filter(|fed| fed.is_wanted).map(|fed| 4 * fed.len).sum()
}

impl Call<'_> {
    /// Writes the lengths of this window, and some feeds; those of asked rows begin at `from`.
    pub(super) fn feed(&mut self, wanted: impl Fn(&FeedSpec) -> bool, from: usize) -> Result<()> {
        let since = Instant::now();
        let feeds = self.feeds(wanted, from);
        let n_bytes = n_bytes(&feeds);
        if from == 0 {
            self.choose();
        }
        let upload = self.chosen.as_ref().and_then(|commands| commands.upload.as_ref());
        match upload.map(|upload| upload.buffer.clone()) {
            Some(buffer) => self.fill(&buffer, &feeds, n_bytes)?,
            None if n_bytes >= LONG => self.feed_long(&feeds, n_bytes)?,
            None => self.feed_short(&feeds)?,
        }
        self.bytes.clear();
        let lengths = self.method.dims.iter().map(|dim| self.sizes.len(*dim) as u32);
        self.bytes.extend(lengths.flat_map(u32::to_le_bytes));
        // Answers have the same lengths token after token.
        let mut known = self.ready.lengths.borrow_mut();
        if *known != *self.bytes {
            self.gpu.queue.write_buffer(&self.ready.call, 0, self.bytes);
            known.clone_from(self.bytes);
        }
        drop(known);
        self.did(Doing::Feeding, since);
        Ok(())
    }

    /// Feeds that stand close together are one write.
    fn feed_short(&mut self, feeds: &[Fed<'_>]) -> Result<()> {
        let (mut start, mut is_open) = (0, false);
        self.bytes.clear();
        for fed in feeds {
            if !fed.is_wanted {
                // It stays as it is.
                is_open = false;
                continue;
            }
            let end = start + self.bytes.len() as u64;
            if is_open && fed.start - end <= FAR {
                self.bytes.resize((fed.start - start) as usize, 0);
            } else {
                self.write(start);
                (start, is_open) = (fed.start, true);
            }
            let at = self.bytes.len();
            self.bytes.resize(at + 4 * fed.len, 0);
            let mut bytes = std::mem::take(self.bytes);
            let made = self.make(fed, Out::Here(&mut bytes[at..]));
            *self.bytes = bytes;
            made?;
        }
        self.write(start);
        Ok(())
    }

    /// Feeds go through memory that the device reads by itself, and are not copied on the way.
    fn feed_long(&mut self, feeds: &[Fed<'_>], n_bytes: usize) -> Result<()> {
        let upload = self.long.take(self.gpu, n_bytes as u64)?;
        self.fill(&upload.buffer, feeds, n_bytes)?;
        let mut encoder = self.gpu.encoder();
        self.record_feeds(&mut encoder, &upload.buffer, feeds);
        self.gpu.queue.submit([encoder.finish()]);
        self.long.keep(upload);
        Ok(())
    }

    /// Writes feeds one behind another to a mapped buffer.
    fn fill(&self, buffer: &wgpu::Buffer, feeds: &[Fed<'_>], n_bytes: usize) -> Result<()> {
        let fail = |e: wgpu::MapRangeError| Error::Device(format!("{}: {e}", self.gpu.name));
        let mut view = buffer.get_mapped_range_mut(..n_bytes as u64).map_err(fail)?;
        let mut at = 0;
        for fed in feeds.iter().filter(|fed| fed.is_wanted) {
            self.make(fed, Out::mapped(view.slice(at..at + 4 * fed.len)))?;
            at += 4 * fed.len;
        }
        drop(view);
        buffer.unmap();
        Ok(())
    }

    /// Records that feeds are taken from where [`Call::fill`] has written them.
    pub(super) fn record_feeds(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        buffer: &wgpu::Buffer,
        feeds: &[Fed<'_>],
    ) {
        let mut at = 0;
        for fed in feeds.iter().filter(|fed| fed.is_wanted) {
            let size = 4 * fed.len as u64;
            encoder.copy_buffer_to_buffer(buffer, at, &self.room.feeds, fed.start, size);
            at += size;
        }
    }

    /// Makes the numbers of a feed.
    fn make(&self, fed: &Fed<'_>, out: Out<'_>) -> Result<()> {
        let channels = fed.feed.channels;
        fed.feed.source.make(
            (self.program, self.weights.tables.as_slice(), self.fed),
            (fed.from, channels),
            out,
        )
    }

    /// Notes what the host did since, if that is asked for.
    pub(super) fn did(&mut self, doing: Doing, since: Instant) {
        if let Some(times) = self.times.as_deref_mut() {
            times.add(doing, since);
        }
    }

    /// Writes the bytes at hand to the feeds.
    fn write(&mut self, start: u64) {
        if !self.bytes.is_empty() {
            self.gpu.queue.write_buffer(&self.room.feeds, start, self.bytes);
            self.bytes.clear();
        }
    }

    /// Reads the outputs of this window.
    pub(super) fn read(
        &mut self,
        returned: &Returned,
        outputs: &mut Outputs,
        whole: Sizes,
    ) -> Result<()> {
        let method = self.method;
        for (i, out) in method.outputs.iter().enumerate() {
            outputs.prepare(i, &out.name, whole.len(out.value.rows), out.value.channels);
        }
        for part in &returned.parts {
            if let Place::Feed(feed) = part.place {
                let channels = method.outputs[part.output].value.channels.max(1);
                let from = part.range.start / channels;
                self.show_feed(feed, from, &mut outputs.data(part.output)[part.range.clone()])?;
            }
        }
        self.waited(&returned.readback, returned.size_bytes, &mut |bytes| {
            let mut rest = bytes;
            for part in &returned.parts {
                let (words, behind) = rest.split_at(part.size_bytes() as usize);
                rest = behind;
                if !words.is_empty() {
                    let out = &mut outputs.data(part.output)[part.range.clone()];
                    decode(words, method.outputs[part.output].indices, out);
                }
            }
        })
    }

    /// Reads the `k` largest numbers of each row of this window.
    pub(super) fn read_largest(
        &mut self,
        returned: &Returned,
        k: usize,
        largest: &mut Largest,
    ) -> Result<()> {
        let Some(top) = self.top else { return Ok(()) };
        self.waited(&returned.readback, returned.size_bytes, &mut |bytes| {
            largest.extend(top.found(bytes, k));
        })
    }

    /// Shows the first bytes of a buffer once all that was submitted is done; records ahead while
    /// the device works. If there are none, waits for what was submitted before this call at most,
    /// so that the host can make the feeds of the next.
    fn waited(
        &mut self,
        buffer: &wgpu::Buffer,
        size_bytes: u64,
        show: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        if size_bytes == 0 {
            return self.running.next(self.gpu);
        }
        let coming = self.gpu.map(buffer, size_bytes);
        let since = Instant::now();
        let ahead = if self.is_whole { self.record_ahead() } else { Ok(()) };
        self.did(Doing::RecordingAhead, since);
        let since = Instant::now();
        coming.wait(self.gpu, show)?;
        self.did(Doing::Waiting, since);
        self.running.end(self.gpu);
        ahead
    }

    /// The numbers of one value.
    pub(super) fn value(&mut self, value: Value) -> Result<Vec<f32>> {
        let len = value.len(self.sizes);
        let mut out = vec![0.0; len];
        match value.place {
            Place::Feed(feed) => self.show_feed(feed, 0, &mut out)?,
            Place::Buffer(b) => {
                self.download(b, len, &mut |words| decode(words, false, &mut out))?;
            }
        }
        Ok(out)
    }

    /// What the host fed.
    fn show_feed(&self, feed: usize, from: usize, out: &mut [f32]) -> Result<()> {
        let spec = &self.method.feeds[feed];
        if let HostFeed::Input(i) = spec.source
            && let FeedData::I32(data) = self.fed[i]
        {
            let data = &data[from * spec.channels..];
            out.iter_mut().zip(data).for_each(|(o, x)| *o = *x as f32);
            return Ok(());
        }
        let mut bytes = vec![0; 4 * out.len()];
        let source = (self.program, self.weights.tables.as_slice(), self.fed);
        spec.source.make(source, (from, spec.channels), Out::Here(&mut bytes))?;
        decode(&bytes, false, out);
        Ok(())
    }

    /// Waits for all that was submitted and shows the first words of a buffer.
    fn download(&mut self, buffer: usize, len: usize, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let bytes = len as u64 * 4;
        if bytes == 0 {
            return Ok(());
        }
        if self.readback.size() < bytes {
            *self.readback = readback_buffer(self.gpu, bytes)?;
        }
        let mut encoder = self.gpu.encoder();
        let buffer = &self.room.buffers[buffer];
        encoder.copy_buffer_to_buffer(buffer, 0, self.readback, 0, bytes);
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.map(self.readback, bytes).wait(self.gpu, take)
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

fn decode(words: &[u8], indices: bool, out: &mut [f32]) {
    let words = words.as_chunks::<4>().0;
    if indices {
        out.iter_mut().zip(words).for_each(|(o, w)| *o = i32::from_le_bytes(*w) as f32);
    } else {
        out.iter_mut().zip(words).for_each(|(o, w)| *o = f32::from_le_bytes(*w));
    }
}
