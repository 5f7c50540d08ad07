//! How much work one submission may have, so that no system takes a GPU for hung and a screen that
//! the same GPU draws stays alive.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lapidary_backend::Result;

use crate::arena::{MAX_LENS, PARAMS_BYTES};
use crate::device::{Access, Gpu};
use crate::shader::Shader;

/// What one submission should take.
const AIM: Duration = Duration::from_millis(100);
/// What a measurement should take at least to be worth something.
const MEASURED: Duration = Duration::from_millis(4);
/// Kernels reach some part of the speed of a loop of multiplications.
const PART: f64 = 1.0 / 8.0;
/// Work below which a call's time says little.
const LEAST_WORK: u64 = 1 << 28;

/// Multiplications in a second, about.
#[derive(Debug, Default)]
pub(crate) struct Speed {
    rate: AtomicU64,
    /// What each submission had, and was allowed to have.
    #[cfg(test)]
    pub noted: std::sync::Mutex<Vec<(Planned, u64)>>,
}

/// What is in one submission.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planned {
    pub work: u64,
    pub kernels: u32,
}

impl Planned {
    /// Whether a kernel may join. One that alone is too much stands alone.
    pub(crate) fn takes(&self, work: u64, budget: u64) -> bool {
        self.work == 0 || self.work.saturating_add(work) <= budget
    }

    /// Adds a kernel.
    pub(crate) fn add(&mut self, work: u64) {
        self.work = self.work.saturating_add(work);
        self.kernels += 1;
    }
}

impl Speed {
    /// Multiplications that one submission may have.
    pub(crate) fn per_submission(&self) -> u64 {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 { u64::MAX } else { ((rate as f64 * AIM.as_secs_f64()) as u64).max(1) }
    }

    /// Learns from a call. One that was over soon may show that the device is faster than was
    /// thought, but not that it is slower: single tokens wait for memory and for the host.
    pub(crate) fn learn(&self, work: u64, took: Duration) {
        let old = self.rate.load(Ordering::Relaxed) as f64;
        let new = work as f64 / took.as_secs_f64().max(1e-6);
        if work >= LEAST_WORK && (new > old || took > AIM) {
            self.rate.store((0.5 * old + 0.5 * new) as u64, Ordering::Relaxed);
        }
    }

    /// Notes a submission, for tests.
    pub(crate) fn note(&self, _planned: Planned, _budget: u64) {
        #[cfg(test)]
        if let Ok(mut noted) = self.noted.lock() {
            noted.push((_planned, _budget));
        }
    }

    /// Whether nothing is known yet.
    pub(crate) fn is_unknown(&self) -> bool {
        self.rate.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn set(&self, rate: f64) {
        self.rate.store((rate as u64).max(1), Ordering::Relaxed);
    }
}

/// Measures a GPU, once.
pub(crate) fn measure(gpu: &Gpu) -> Result<()> {
    if !gpu.speed.is_unknown() {
        return Ok(());
    }
    let pipeline = gpu.pipeline(&Shader::new("speed"), &[Access::Write])?;
    let uniform = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
    let params = gpu.buffer("params", PARAMS_BYTES, uniform)?;
    let call = gpu.buffer("lengths of a call", MAX_LENS as u64 * 4, uniform)?;
    let y = gpu.buffer("numbers", 4096 * 4, wgpu::BufferUsages::STORAGE)?;
    let buffers = [&params, &call, &y];
    let entries: Vec<_> = (0..)
        .zip(buffers)
        .map(|(binding, b)| wgpu::BindGroupEntry { binding, resource: b.as_entire_binding() })
        .collect();
    let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some("speed"),
        layout: &pipeline.layout,
        entries: &entries,
    });
    let (mut groups, rounds) = (64u32, 256u32);
    gpu.queue.write_buffer(&params, 0, &rounds.to_le_bytes());
    loop {
        let start = Instant::now();
        let mut encoder = gpu.encoder();
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline.raw);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(groups, 1, 1);
        drop(pass);
        gpu.queue.submit([encoder.finish()]);
        gpu.wait()?;
        let took = start.elapsed();
        if took >= MEASURED || groups >= 32768 {
            let work = f64::from(groups) * 256.0 * f64::from(rounds) * 4.0;
            gpu.speed.set(work / took.as_secs_f64().max(1e-6) * PART);
            return Ok(());
        }
        groups *= 8;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{LEAST_WORK, Speed};

    #[test]
    fn a_slow_call_means_smaller_submissions() {
        let speed = Speed::default();
        assert_eq!(speed.per_submission(), u64::MAX);
        speed.set(1e12);
        let before = speed.per_submission();
        assert_eq!(before, 100_000_000_000);
        speed.learn(LEAST_WORK - 1, Duration::from_secs(1));
        assert_eq!(speed.per_submission(), before);
        speed.learn(LEAST_WORK, Duration::from_secs(1));
        assert!(speed.per_submission() < before);
        // A single token is no measure.
        let before = speed.per_submission();
        speed.learn(LEAST_WORK, Duration::from_millis(99));
        assert_eq!(speed.per_submission(), before);
        speed.learn(1 << 40, Duration::from_millis(99));
        assert!(speed.per_submission() > before);
    }
}
