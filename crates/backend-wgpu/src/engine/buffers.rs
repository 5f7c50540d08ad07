//! What grows with calls and is then kept.

use std::collections::VecDeque;
use std::time::Instant;

use lapidary_backend::Result;

use super::record::{NextCall, Recorded};
use super::upload::Uploads;
use crate::device::Gpu;
use crate::profile::{HostTimes, Profile};

/// Buffers that wait for their next use, at most.
const MOST_SPARE: usize = 8;

/// What grows with calls and is then kept.
pub(super) struct Buffers {
    /// What the host reads outputs from.
    pub readbacks: Pool,
    /// What later calls are fed from.
    pub kept: Pool,
    /// Bytes on their way to the device, and buffers for many of them and for few.
    pub bytes: Vec<u8>,
    pub long: Uploads,
    pub short: Uploads,
    /// What kernels took, if that is asked for.
    pub profile: Option<Profile>,
    pub times: Option<HostTimes>,
    /// The call that is likely to come next, and its commands once they are recorded.
    pub next: Option<NextCall>,
    pub ahead: Option<Recorded>,
    pub running: Running,
}

impl Buffers {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let profile = gpu.abilities.times.then(|| Profile::new(gpu));
        let read = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let keep = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        Ok(Buffers {
            readbacks: Pool::new("outputs", read),
            kept: Pool::new("what later calls are fed with", keep),
            bytes: Vec::new(),
            long: Uploads::new(2),
            // One for each call in flight, one for that which is recorded ahead.
            short: Uploads::new(4),
            profile: profile.transpose()?,
            times: HostTimes::wanted(),
            next: None,
            ahead: None,
            running: Running::default(),
        })
    }

    /// Forgets commands that were recorded ahead, and gives back what they had.
    pub(super) fn forget_ahead(&mut self) {
        if let Some(recorded) = self.ahead.take() {
            recorded.commands.give_back(self);
        }
    }
}

/// Buffers of one usage that are used again.
pub(super) struct Pool {
    what: &'static str,
    usage: wgpu::BufferUsages,
    spare: Vec<wgpu::Buffer>,
}

impl Pool {
    fn new(what: &'static str, usage: wgpu::BufferUsages) -> Self {
        Pool { what, usage, spare: Vec::new() }
    }

    /// A buffer of at least so many bytes.
    pub(super) fn take(&mut self, gpu: &Gpu, size_bytes: u64) -> Result<wgpu::Buffer> {
        let fits = |buffer: &wgpu::Buffer| {
            // What is much too large is left for who needs it.
            let size = buffer.size();
            size >= size_bytes && (size <= 1 << 16 || size / 4 <= size_bytes)
        };
        match self.spare.iter().position(fits) {
            Some(at) => Ok(self.spare.swap_remove(at)),
            None => gpu.buffer(self.what, size_bytes, self.usage),
        }
    }

    /// Takes a buffer back. What the device still does with it comes before its next use.
    pub(super) fn give_back(&mut self, buffer: wgpu::Buffer) {
        if self.spare.len() == MOST_SPARE {
            self.spare.remove(0);
        }
        self.spare.push(buffer);
    }
}

/// Work that the device was given and may not have done yet, call by call.
#[derive(Debug, Default)]
pub(super) struct Running {
    calls: VecDeque<Given>,
    /// When the last call that is known to have ended did.
    ended: Option<Instant>,
}

#[derive(Debug)]
struct Given {
    ticket: u64,
    last: wgpu::SubmissionIndex,
    since: Instant,
    work: u64,
}

impl Running {
    /// All work of a call.
    pub(super) fn add(&mut self, ticket: u64, last: wgpu::SubmissionIndex, work: u64) {
        self.calls.push_back(Given { ticket, last, since: Instant::now(), work });
    }

    /// Waits for the call before this one.
    pub(super) fn wait_before(&mut self, gpu: &Gpu, ticket: u64) -> Result<()> {
        let before = self.calls.iter().filter(|given| given.ticket < ticket);
        if let Some(last) =
            before.map(|given| (given.ticket, given.last.clone())).max_by_key(|g| g.0)
        {
            gpu.wait_for(last.1)?;
            self.end(gpu, last.0);
        }
        Ok(())
    }

    /// A call has ended, and so have all before it.
    pub(super) fn end(&mut self, gpu: &Gpu, ticket: u64) {
        let (mut work, mut first) = (0u64, None);
        while let Some(given) = self.calls.pop_front_if(|given| given.ticket <= ticket) {
            work = work.saturating_add(given.work);
            first.get_or_insert(given.since);
        }
        let now = Instant::now();
        if let Some(first) = first {
            // The device began with it once it was free.
            let since = self.ended.map_or(first, |ended| ended.max(first));
            gpu.speed.learn(work, now - since);
        }
        self.ended = Some(now);
    }
}
