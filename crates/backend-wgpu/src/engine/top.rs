//! The largest numbers of each row of an output, found on the device: a few kernels behind those of
//! a method, each of which leaves the best of every stretch of a row.

use lapidary_backend::{Found, Result};

use crate::device::{Access, Gpu, Pipeline};
use crate::room::{MAX_LENS, PARAMS_BYTES};
use crate::shader::Shader;

/// The most that is found in a row.
pub(crate) const MOST: usize = 128;
/// Numbers that one workgroup looks at, as `top.wgsl` has it.
const STRETCH: usize = 2048;

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sought {
    pub method: String,
    /// The number of an output.
    pub output: usize,
    /// How many of each row: 1 or [`MOST`].
    pub k: usize,
}

/// Kernels that find them.
pub(super) struct Top {
    pub sought: Sought,
    stages: Vec<Stage>,
    /// What the last of them writes.
    pub best: wgpu::Buffer,
}

/// One kernel.
struct Stage {
    pipeline: Pipeline,
    group: wgpu::BindGroup,
    /// Stretches of a row.
    stretches: u32,
}

impl Sought {
    /// What finds at least `k`.
    pub(super) fn new(method: &str, output: usize, k: usize) -> Self {
        Sought { method: method.to_string(), output, k: if k == 1 { 1 } else { MOST } }
    }
}

/// Bytes that finding takes in some rows of so many numbers.
pub(crate) fn size_bytes(rows: usize, channels: usize) -> u64 {
    let of = |k: usize| {
        let (mut n, mut bytes) = (channels, 0);
        loop {
            let stretches = n.div_ceil(STRETCH).max(1);
            n = stretches * k;
            bytes += (rows.max(1) * n * 8) as u64;
            if stretches == 1 {
                return bytes;
            }
        }
    };
    of(1) + of(MOST)
}

impl Top {
    /// Kernels over some rows of `channels` numbers at most.
    pub(super) fn new(
        gpu: &Gpu,
        sought: Sought,
        numbers: &wgpu::Buffer,
        (rows, channels): (usize, usize),
    ) -> Result<Self> {
        let mut stages = Vec::new();
        let (mut from, mut n, k) = (numbers.clone(), channels, sought.k);
        loop {
            let stretches = n.div_ceil(STRETCH).max(1);
            let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
            let best =
                gpu.buffer("largest numbers", (rows.max(1) * stretches * k * 8) as u64, usage)?;
            let shader = Shader::new("top").with("FIRST", stages.is_empty());
            let shader = shader.constant("K", k as u32);
            stages.push(Stage::new(gpu, &shader, [&from, &best], (n, stretches))?);
            (from, n) = (best, stretches * k);
            if stretches == 1 {
                return Ok(Top { sought, stages, best: from });
            }
        }
    }

    /// Records the kernels for so many rows, at least one.
    pub(super) fn record(&self, encoder: &mut wgpu::CommandEncoder, rows: usize) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        for stage in &self.stages {
            pass.set_pipeline(&stage.pipeline.raw);
            pass.set_bind_group(0, &stage.group, &[]);
            pass.dispatch_workgroups(stage.stretches, rows as u32, 1);
        }
    }

    /// Bytes that come back for so many rows.
    pub(super) fn size_bytes(&self, rows: usize) -> u64 {
        (rows * self.sought.k * 8) as u64
    }

    /// The `k` best of each row.
    pub(super) fn found<'a>(&self, bytes: &'a [u8], k: usize) -> impl Iterator<Item = Found> + 'a {
        let rows = bytes.chunks_exact(self.sought.k * 8);
        rows.flat_map(move |row| row.as_chunks::<8>().0.iter().take(k).map(found))
    }
}

impl Stage {
    fn new(
        gpu: &Gpu,
        shader: &Shader,
        [from, to]: [&wgpu::Buffer; 2],
        (n, stretches): (usize, usize),
    ) -> Result<Self> {
        let pipeline = gpu.pipeline(shader, &[Access::Read, Access::Write])?;
        let uniform = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let params = gpu.buffer("params", PARAMS_BYTES, uniform)?;
        gpu.queue.write_buffer(&params, 0, &(n as u32).to_le_bytes());
        let call = gpu.buffer("lengths of a call", MAX_LENS as u64 * 4, uniform)?;
        let entries: Vec<_> = (0..)
            .zip([&params, &call, from, to])
            .map(|(binding, b)| wgpu::BindGroupEntry { binding, resource: b.as_entire_binding() })
            .collect();
        let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("top"),
            layout: &pipeline.layout,
            entries: &entries,
        });
        gpu.check()?;
        Ok(Stage { pipeline, group, stretches: stretches as u32 })
    }
}

/// A number from its order and its place.
fn found(bytes: &[u8; 8]) -> Found {
    let [a, b, c, d, index @ ..] = *bytes;
    let order = u32::from_le_bytes([a, b, c, d]);
    let bits = match order {
        u32::MAX => f32::NAN.to_bits(),
        0x8000_0000.. => order & 0x7fff_ffff,
        _ => !order,
    };
    Found { value: f32::from_bits(bits), index: u32::from_le_bytes(index) }
}

#[cfg(test)]
mod tests;
