//! Feeds of a call: made by the host, or copied from what an earlier call has left on the device.

use std::time::Instant;

use lapidary_backend::{Error, Fed, Result, TicketRows};

use super::record::{KeptRows, OutputUse, Recorder};
use crate::arena::Resources;
use crate::host::{HostFeed, Out, Source};
use crate::profile::Doing;
use crate::step::FeedSpec;

/// Bytes between feeds that are rather skipped than written.
const FAR: u64 = 4096;

/// Bytes of feeds from which on they are written where the device reads them.
pub(super) const LONG: usize = 1 << 18;

/// A feed of a call.
pub(super) struct FeedPart<'a> {
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

/// Bytes of the feeds that are to be written.
pub(super) fn n_bytes(feeds: &[FeedPart<'_>]) -> usize {
    feeds.iter().filter(|part| part.is_wanted).map(|part| 4 * part.len).sum()
}

impl<'a> Recorder<'a> {
    /// What kernels read of this window, and what of it is to be written; asked rows begin at `from`.
    pub(super) fn feeds(
        &self,
        wanted: impl Fn(&FeedSpec) -> bool,
        from: usize,
    ) -> Vec<FeedPart<'a>> {
        let (method, bound_method) = (self.method(), self.bound_method());
        let places = bound_method.places(self.shape.sizes);
        let feeds = method.feeds.iter().zip(places).zip(&bound_method.read);
        let feeds = feeds.filter(|((feed, _), is_read)| **is_read || self.is_drawn_by(feed));
        let feeds = feeds.map(|((feed, place), _)| FeedPart {
            feed,
            start: place.start,
            len: feed.len(self.shape.sizes, self.shape.spans),
            from: if feed.is_asked() { from } else { 0 },
            is_wanted: wanted(feed) && !self.is_of(feed),
        });
        feeds.filter(|part| part.len > 0).collect()
    }

    /// Whether a feed is the rule of an output that tokens are drawn from.
    fn is_drawn_by(&self, feed: &FeedSpec) -> bool {
        let HostFeed::Rules { output } = feed.source else { return false };
        matches!(self.shape.uses[output], OutputUse::Top(what) if what.draws)
    }

    /// Whether a feed comes from an earlier call.
    fn is_of(&self, feed: &FeedSpec) -> bool {
        matches!(feed.source, HostFeed::Input(i) if i < 64 && self.shape.of >> i & 1 == 1)
    }

    /// Writes the lengths of this window, and some feeds, to a mapped buffer if there is one for them;
    /// those of asked rows begin at `from`.
    pub(super) fn feed(
        &mut self,
        source: Source<'_>,
        mapped: Option<&wgpu::Buffer>,
        wanted: impl Fn(&FeedSpec) -> bool,
        from: usize,
    ) -> Result<()> {
        let since = Instant::now();
        let feeds = self.feeds(wanted, from);
        let n_bytes = n_bytes(&feeds);
        match mapped {
            Some(buffer) => fill(self.resources, source, buffer, &feeds, n_bytes)?,
            None if n_bytes >= LONG => self.feed_long(source, &feeds, n_bytes)?,
            None => self.feed_short(source, &feeds)?,
        }
        let bytes = &mut self.buffers.bytes;
        bytes.clear();
        let lengths = self.plan.methods[&self.shape.method].dims.iter();
        let lengths = lengths.map(|dim| self.shape.sizes.len(*dim) as u32);
        bytes.extend(lengths.flat_map(u32::to_le_bytes));
        // Answers have the same lengths token after token.
        let bound_method = &self.plan.arena.methods[&self.shape.method];
        let mut known = bound_method.lengths.borrow_mut();
        if *known != *bytes {
            self.resources.gpu.queue.write_buffer(&bound_method.call, 0, bytes);
            known.clone_from(bytes);
        }
        drop(known);
        self.did(Doing::Feeding, since);
        Ok(())
    }

    /// Feeds that stand close together are one write.
    fn feed_short(&mut self, source: Source<'_>, feeds: &[FeedPart<'_>]) -> Result<()> {
        let (mut start, mut is_open) = (0, false);
        let gpu = self.gpu();
        let write = |start: u64, bytes: &mut Vec<u8>| {
            if !bytes.is_empty() {
                gpu.queue.write_buffer(&self.plan.arena.feeds, start, bytes);
                bytes.clear();
            }
        };
        let bytes = &mut self.buffers.bytes;
        bytes.clear();
        for part in feeds {
            if !part.is_wanted {
                // It stays as it is.
                is_open = false;
                continue;
            }
            let end = start + bytes.len() as u64;
            if is_open && part.start - end <= FAR {
                bytes.resize((part.start - start) as usize, 0);
            } else {
                write(start, bytes);
                (start, is_open) = (part.start, true);
            }
            let at = bytes.len();
            bytes.resize(at + 4 * part.len, 0);
            part.make(source, Out::Here(&mut bytes[at..]))?;
        }
        write(start, bytes);
        Ok(())
    }

    /// Feeds go through memory that the device reads by itself, and are not copied on the way.
    fn feed_long(
        &mut self,
        source: Source<'_>,
        feeds: &[FeedPart<'_>],
        n_bytes: usize,
    ) -> Result<()> {
        let gpu = self.gpu();
        let upload = self.buffers.long.take(gpu, n_bytes as u64)?;
        fill(self.resources, source, &upload.buffer, feeds, n_bytes)?;
        let mut encoder = gpu.encoder();
        self.record_feeds(&mut encoder, &upload.buffer, feeds);
        gpu.queue.submit([encoder.finish()]);
        self.buffers.long.keep(upload);
        Ok(())
    }

    /// Records that feeds are taken from where [`fill`] has written them.
    pub(super) fn record_feeds(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        buffer: &wgpu::Buffer,
        feeds: &[FeedPart<'_>],
    ) {
        let mut at = 0;
        for part in feeds.iter().filter(|part| part.is_wanted) {
            let size = 4 * part.len as u64;
            encoder.copy_buffer_to_buffer(buffer, at, &self.plan.arena.feeds, part.start, size);
            at += size;
        }
    }

    /// Records that feeds of this window are copied from what earlier calls have kept.
    pub(super) fn record_of(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        source: Source<'_>,
        from: usize,
        kept_of: &dyn Fn(&TicketRows<'_>) -> Result<KeptRows>,
    ) -> Result<()> {
        for part in self.feeds(|_| true, from).iter().filter(|part| self.is_of(part.feed)) {
            let HostFeed::Input(i) = part.feed.source else { continue };
            let Fed::Of(wanted) = source.bound.feeds[i] else { continue };
            let kept = kept_of(&wanted)?;
            let row_bytes = (kept.channels * 4) as u64;
            let rows = &wanted.rows[part.from..part.from + part.len / part.feed.channels.max(1)];
            let mut to = part.start;
            // Rows that follow each other are one copy.
            for run in rows.chunk_by(|a, b| a + 1 == *b) {
                let (start, size) = (u64::from(run[0]) * row_bytes, run.len() as u64 * row_bytes);
                encoder.copy_buffer_to_buffer(
                    &kept.buffer,
                    start,
                    &self.plan.arena.feeds,
                    to,
                    size,
                );
                to += size;
            }
        }
        Ok(())
    }
}

impl FeedPart<'_> {
    /// Makes its numbers.
    fn make(&self, source: Source<'_>, out: Out<'_>) -> Result<()> {
        self.feed.source.make(source, (self.from, self.feed.channels), out)
    }
}

/// Writes feeds one after another to a mapped buffer.
fn fill(
    resources: &Resources,
    source: Source<'_>,
    buffer: &wgpu::Buffer,
    feeds: &[FeedPart<'_>],
    n_bytes: usize,
) -> Result<()> {
    let fail = |e: wgpu::MapRangeError| Error::Device(format!("{}: {e}", resources.gpu.name));
    if n_bytes > 0 {
        let mut view = buffer.get_mapped_range_mut(..n_bytes as u64).map_err(fail)?;
        let mut at = 0;
        for part in feeds.iter().filter(|part| part.is_wanted) {
            part.make(source, Out::mapped(view.slice(at..at + 4 * part.len)))?;
            at += 4 * part.len;
        }
    }
    buffer.unmap();
    Ok(())
}
