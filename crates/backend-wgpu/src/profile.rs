//! What each kernel takes: `LAPIDARY_GPU_PROFILE=1` has every kernel timed by the GPU, and a table
//! written to standard error when the engine is dropped. Kernels then run one after another, each in
//! a pass of its own, so a whole call takes longer than without it. `LAPIDARY_GPU_PROFILE=host` has
//! the host's part of calls timed instead, and nothing slowed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use lapidary_backend::Result;

use crate::device::Gpu;
use crate::step::{Binding, Dispatch};

/// Asks for times.
pub(crate) const VARIABLE: &str = "LAPIDARY_GPU_PROFILE";
/// Kernels that are timed before their times are read.
const MOST: u32 = 2048;

/// Asks for the times of the host.
const HOST: &str = "host";

/// Whether the environment asks for times of kernels.
pub(crate) fn is_wanted() -> bool {
    std::env::var(VARIABLE).is_ok_and(|value| !value.is_empty() && value != "0" && value != HOST)
}

/// What the host did in calls of one token, and in longer ones.
#[derive(Debug, Default)]
pub(crate) struct HostTimes {
    one: Spent,
    more: Spent,
}

/// What the host did in some calls.
#[derive(Debug, Default)]
pub(crate) struct Spent {
    n_calls: u32,
    times: [Duration; 4],
}

/// What the host does in a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Doing {
    Feeding,
    /// With recording, if that was not done ahead.
    Submitting,
    RecordingAhead,
    Waiting,
}

impl HostTimes {
    /// If the environment asks for them.
    pub(crate) fn wanted() -> Option<Self> {
        std::env::var(VARIABLE).is_ok_and(|value| value == HOST).then(Self::default)
    }

    /// Where calls of so many tokens are counted.
    pub(crate) fn of(&mut self, tokens: usize) -> &mut Spent {
        if tokens == 1 { &mut self.one } else { &mut self.more }
    }

    /// Averages, for people.
    pub(crate) fn lines(&self) -> String {
        self.one.line("calls of one token") + &self.more.line("calls of more")
    }
}

impl Spent {
    /// Adds what was done since.
    pub(crate) fn add(&mut self, doing: Doing, since: Instant) {
        self.n_calls += u32::from(matches!(doing, Doing::Submitting));
        self.times[doing as usize] += since.elapsed();
    }

    fn line(&self, what: &str) -> String {
        let [feed, submit, ahead, wait] =
            self.times.map(|time| time.as_secs_f64() * 1e6 / f64::from(self.n_calls.max(1)));
        format!(
            "{} {what}, us each: feeds {feed:.1}, submit {submit:.1}, record ahead {ahead:.1}, \
             wait {wait:.1}\n",
            self.n_calls
        )
    }
}

/// Times of kernels, by kernel and tokens.
pub(crate) struct Profile {
    queries: wgpu::QuerySet,
    ticks: wgpu::Buffer,
    readback: wgpu::Buffer,
    /// Kernels whose times are not read yet.
    pending: Vec<(Key, Share)>,
    shares: BTreeMap<Key, Share>,
}

/// A kernel, and rows of the call.
type Key = (String, usize);

/// What kernels of one kind took and did.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    n: u64,
    nanoseconds: f64,
    /// Bytes of weights.
    bytes: u64,
    multiplications: u64,
}

impl Profile {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        let queries = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("times"),
            ty: wgpu::QueryType::Timestamp,
            count: 2 * MOST,
        });
        let bytes = u64::from(2 * MOST) * 8;
        let resolve = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let read = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        Ok(Profile {
            queries,
            ticks: gpu.buffer("times", bytes, resolve)?,
            readback: gpu.buffer("times", bytes, read)?,
            pending: Vec::new(),
            shares: BTreeMap::new(),
        })
    }

    /// Whether times must be read before another kernel is timed.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() >= MOST as usize
    }

    /// A pass that is timed, for one kernel.
    pub(crate) fn pass<'a>(
        &mut self,
        encoder: &'a mut wgpu::CommandEncoder,
        kernel: &Dispatch,
        rows: usize,
        multiplications: u64,
    ) -> wgpu::ComputePass<'a> {
        let bytes = kernel.bindings.iter().map(|(binding, _)| match binding {
            Binding::Section(_, _, size) => *size,
            _ => 0,
        });
        let share = Share { n: 1, nanoseconds: 0.0, bytes: bytes.sum(), multiplications };
        let at = 2 * self.pending.len() as u32;
        self.pending.push(((kernel.shader.label(), rows), share));
        encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: None,
            timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                query_set: &self.queries,
                beginning_of_pass_write_index: Some(at),
                end_of_pass_write_index: Some(at + 1),
            }),
        })
    }

    /// Waits for the kernels so far and adds their times.
    pub(crate) fn collect(&mut self, gpu: &Gpu) -> Result<()> {
        let n = 2 * self.pending.len() as u32;
        if n == 0 {
            return Ok(());
        }
        let mut encoder = gpu.encoder();
        encoder.resolve_query_set(&self.queries, 0..n, &self.ticks, 0);
        let bytes = u64::from(n) * 8;
        encoder.copy_buffer_to_buffer(&self.ticks, 0, &self.readback, 0, bytes);
        gpu.queue.submit([encoder.finish()]);
        let period = f64::from(gpu.queue.get_timestamp_period());
        let mut took = Vec::with_capacity(self.pending.len());
        gpu.map(&self.readback, bytes).wait(gpu, &mut |bytes| {
            let ticks = bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b));
            let ticks: Vec<u64> = ticks.collect();
            let pairs = ticks.as_chunks::<2>().0.iter();
            took.extend(pairs.map(|[a, b]| b.saturating_sub(*a) as f64 * period));
        })?;
        for ((key, share), nanoseconds) in self.pending.drain(..).zip(took) {
            let sum = self.shares.entry(key).or_default();
            sum.n += share.n;
            sum.bytes += share.bytes;
            sum.multiplications += share.multiplications;
            sum.nanoseconds += nanoseconds;
        }
        Ok(())
    }

    /// Kernels by the time that they took in all.
    pub(crate) fn table(&self) -> String {
        let mut rows: Vec<_> = self.shares.iter().collect();
        rows.sort_by(|a, b| b.1.nanoseconds.total_cmp(&a.1.nanoseconds));
        let mut out =
            String::from("   total ms      runs   each us  weights GB/s  Gmul/s  rows  kernel\n");
        for ((label, n_rows), s) in rows {
            let ns = s.nanoseconds.max(1.0);
            let _ = writeln!(
                out,
                "{:>11.3} {:>9} {:>9.2} {:>13.0} {:>7.0} {:>5}  {label}",
                ns / 1e6,
                s.n,
                ns / 1e3 / s.n as f64,
                s.bytes as f64 / ns,
                s.multiplications as f64 / ns,
                n_rows,
            );
        }
        out
    }
}
