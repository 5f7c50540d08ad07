//! What is made of the rows of an output without bringing them to the host: the largest numbers, the
//! logarithm of the sum of all exponentials, a drawn token. A few kernels after those of a method.

use std::ops::Range;

use lapidary_backend::{Candidate, Mask, Result};

use crate::arena::{MAX_LENS, PARAMS_BYTES};
use crate::device::{Access, Gpu, Pipeline};
use crate::shader::Shader;

/// The most candidates of a row.
pub(crate) const MOST: usize = 128;
/// Numbers that one workgroup looks at, as `top.wgsl` and `logsumexp.wgsl` have it.
const STRETCH: usize = 2048;

/// What is made of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TopUse {
    /// Candidates: 1 or [`MOST`].
    pub k: usize,
    /// Whether some numbers do not count.
    pub masks: bool,
    pub logsumexp: bool,
    /// Whether a token is drawn.
    pub draws: bool,
}

/// Of which output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TopKey {
    pub method: String,
    pub output: usize,
    pub what: TopUse,
}

/// The numbers of an output on the device.
pub(super) struct Rows<'a> {
    pub numbers: &'a wgpu::Buffer,
    pub n_rows: usize,
    pub channels: usize,
    /// The feeds, and where rules stand in long calls and in calls of one token.
    pub feeds: &'a wgpu::Buffer,
    pub rules: [Range<u64>; 2],
}

/// Kernels that make it.
pub(super) struct Top {
    pub key: TopKey,
    /// Those of candidates.
    top: Vec<Stage>,
    logsumexp: Vec<Stage>,
    /// In long calls, and in calls of one token.
    draw: Option<[Stage; 2]>,
    /// What the last of each writes.
    pub best: wgpu::Buffer,
    pub sums: Option<wgpu::Buffer>,
    pub drawn: Option<wgpu::Buffer>,
    masks: Option<wgpu::Buffer>,
    /// Words of one row's mask.
    mask_words: usize,
}

/// One kernel.
struct Stage {
    pipeline: Pipeline,
    group: wgpu::BindGroup,
    /// Workgroups for each row.
    stretches: u32,
}

impl TopUse {
    /// What finds at least `k`.
    pub(super) fn class(k: usize) -> usize {
        if k == 1 { 1 } else { MOST }
    }
}

/// Bytes that all this takes for some rows of so many numbers, at most.
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
    let others = channels.div_ceil(STRETCH) * 8 + 8 + channels.div_ceil(32) * 4;
    of(1) + of(MOST) + (rows.max(1) * others) as u64
}

impl Top {
    /// Kernels over some rows at most.
    pub(super) fn new(gpu: &Gpu, key: TopKey, rows: &Rows<'_>) -> Result<Self> {
        let TopUse { k, masks, logsumexp, draws } = key.what;
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        let of_rows = |what: &str, bytes: usize| {
            let bytes = (rows.n_rows.max(1) * bytes) as u64;
            gpu.buffer(what, bytes, usage | wgpu::BufferUsages::COPY_DST)
        };
        let mask_words = rows.channels.div_ceil(32);
        let masks = masks.then(|| of_rows("masks", mask_words * 4)).transpose()?;
        let mut top = Vec::new();
        let (mut from, mut n) = (rows.numbers.clone(), rows.channels);
        loop {
            let stretches = n.div_ceil(STRETCH).max(1);
            let best = of_rows("candidates", stretches * k * 8)?;
            let first = top.is_empty();
            let mask = masks.as_ref().filter(|_| first);
            let shader = Shader::new("top").with("FIRST", first).with("MASK", mask.is_some());
            let shader = shader.constant("K", k as u32);
            let buffers: Vec<_> = [&from, &best].into_iter().chain(mask).map(whole).collect();
            let stage = Stage::new(gpu, &shader, &buffers, [n, mask_words], stretches)?;
            top.push(stage);
            (from, n) = (best, stretches * k);
            if stretches == 1 {
                break;
            }
        }
        let mut made = Top {
            key,
            top,
            logsumexp: Vec::new(),
            draw: None,
            best: from,
            sums: None,
            drawn: None,
            masks,
            mask_words,
        };
        if logsumexp {
            let stretches = rows.channels.div_ceil(STRETCH).max(1);
            let parts = of_rows("parts of sums", stretches * 8)?;
            let sums = of_rows("sums", 4)?;
            let mask = made.masks.as_ref();
            let shader = Shader::new("logsumexp").with("FIRST", true).with("MASK", mask.is_some());
            let first: Vec<_> = [rows.numbers, &parts].into_iter().chain(mask).map(whole).collect();
            let last = [whole(&parts), whole(&sums)];
            made.logsumexp = vec![
                Stage::new(gpu, &shader, &first, [rows.channels, mask_words], stretches)?,
                Stage::new(gpu, &Shader::new("logsumexp"), &last, [stretches, 0], 1)?,
            ];
            made.sums = Some(sums);
        }
        if draws {
            let drawn = of_rows("drawn tokens", 4)?;
            let shader = Shader::new("draw").constant("K", k as u32);
            let stage = |place: &Range<u64>| {
                let rules = wgpu::BufferBinding {
                    buffer: rows.feeds,
                    offset: place.start,
                    size: wgpu::BufferSize::new(place.end - place.start),
                };
                let rules = wgpu::BindingResource::Buffer(rules);
                let buffers = [whole(&made.best), whole(&drawn), rules];
                Stage::new(gpu, &shader, &buffers, [0, 0], 1)
            };
            let [long, close] = &rows.rules;
            made.draw = Some([stage(long)?, stage(close)?]);
            made.drawn = Some(drawn);
        }
        Ok(made)
    }

    /// Writes the masks of some rows, if there are any.
    pub(super) fn write_masks(&self, gpu: &Gpu, masks: &[Mask<'_>], rows: Range<usize>) {
        let Some(buffer) = &self.masks else { return };
        let mut words = Vec::with_capacity(rows.len() * self.mask_words);
        for row in rows {
            let start = words.len();
            match masks.get(row).copied().flatten() {
                Some(mask) => words.extend(mask.iter().take(self.mask_words)),
                None => words.resize(start + self.mask_words, u32::MAX),
            }
            words.resize(start + self.mask_words, 0);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if !bytes.is_empty() {
            gpu.queue.write_buffer(buffer, 0, &bytes);
        }
    }

    /// Records the kernels for so many rows, at least one, in a call of one token or a longer one.
    pub(super) fn record(&self, encoder: &mut wgpu::CommandEncoder, rows: usize, is_close: bool) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        let draw = self.draw.as_ref().map(|[long, close]| if is_close { close } else { long });
        for stage in self.top.iter().chain(&self.logsumexp).chain(draw) {
            pass.set_pipeline(&stage.pipeline.raw);
            pass.set_bind_group(0, &stage.group, &[]);
            pass.dispatch_workgroups(stage.stretches, rows as u32, 1);
        }
    }

    /// What comes back for so many rows: candidates, sums, and tokens.
    pub(super) fn returned(&self, rows: usize) -> impl Iterator<Item = (&wgpu::Buffer, u64)> {
        let best = (&self.best, (rows * self.key.what.k * 8) as u64);
        let others = self.sums.iter().chain(&self.drawn);
        std::iter::once(best).chain(others.map(move |buffer| (buffer, (rows * 4) as u64)))
    }
}

/// The first `per_row` candidates of each row, of bytes that have `k` of each.
pub(super) fn candidates(
    bytes: &[u8],
    k: usize,
    per_row: usize,
) -> impl Iterator<Item = Candidate> + '_ {
    let rows = bytes.chunks_exact(k * 8);
    rows.flat_map(move |row| row.as_chunks::<8>().0.iter().take(per_row).map(candidate))
}

impl Stage {
    fn new(
        gpu: &Gpu,
        shader: &Shader,
        buffers: &[wgpu::BindingResource<'_>],
        words: [usize; 2],
        stretches: usize,
    ) -> Result<Self> {
        // The second is what the kernel writes.
        let access = |i: usize| if i == 1 { Access::Write } else { Access::Read };
        let accesses: Vec<_> = (0..buffers.len()).map(access).collect();
        let pipeline = gpu.pipeline(shader, &accesses)?;
        let uniform = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let params = gpu.buffer("params", PARAMS_BYTES, uniform)?;
        let words: Vec<u8> = words.iter().flat_map(|n| (*n as u32).to_le_bytes()).collect();
        gpu.queue.write_buffer(&params, 0, &words);
        let call = gpu.buffer("lengths of a call", MAX_LENS as u64 * 4, uniform)?;
        let resources = [whole(&params), whole(&call)].into_iter().chain(buffers.iter().cloned());
        let entries: Vec<_> = (0..)
            .zip(resources)
            .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource })
            .collect();
        let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(shader.stem),
            layout: &pipeline.layout,
            entries: &entries,
        });
        gpu.check()?;
        Ok(Stage { pipeline, group, stretches: stretches as u32 })
    }
}

fn whole(buffer: &wgpu::Buffer) -> wgpu::BindingResource<'_> {
    buffer.as_entire_binding()
}

/// A number from its order and its place.
fn candidate(bytes: &[u8; 8]) -> Candidate {
    let [a, b, c, d, index @ ..] = *bytes;
    let order = u32::from_le_bytes([a, b, c, d]);
    let bits = match order {
        // Nothing is left for this place.
        0 => return Candidate { value: f32::NEG_INFINITY, index: 0 },
        u32::MAX => f32::NAN.to_bits(),
        0x8000_0000.. => order & 0x7fff_ffff,
        _ => !order,
    };
    Candidate { value: f32::from_bits(bits), index: u32::from_le_bytes(index) }
}

#[cfg(test)]
mod tests;
