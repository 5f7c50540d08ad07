//! Buffers for the values of one call, and the kernels bound to them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use lapidary_backend::{Result, Sizes};

use crate::cache::Cache;
use crate::compile::RoomShape;
use crate::device::{Access, Gpu, Pipeline};
use crate::step::{Bound, CompiledMethod, Dispatch, Place};
use crate::weights::Weights;

/// Where bindings may begin.
const ALIGN: u64 = 256;
/// Bytes of one kernel's `Params`.
pub(crate) const PARAMS_BYTES: u64 = 128;
/// Lengths of one call, as `prelude.wgsl` has them.
pub(crate) const MAX_LENS: usize = 32;

/// Buffers of all methods, for calls of certain sizes at most.
pub(crate) struct Room {
    pub sizes: Sizes,
    pub buffers: Vec<wgpu::Buffer>,
    pub feeds: wgpu::Buffer,
    pub methods: BTreeMap<String, Ready>,
}

/// A method whose kernels are compiled and bound.
pub(crate) struct Ready {
    /// Where each feed stands.
    places: Vec<Range<u64>>,
    /// The same for calls of one token, whose feeds then stand close enough for one write.
    close: Vec<Range<u64>>,
    /// Whether a kernel reads it.
    pub read: Vec<bool>,
    /// The lengths of a call.
    pub call: wgpu::Buffer,
    /// What was last written there.
    pub lengths: RefCell<Vec<u8>>,
    /// Where calls begin to have other kernels.
    pub key_limits: Vec<u64>,
    /// By step, and then by kernel.
    pub steps: Vec<Vec<ReadyKernel>>,
}

/// A kernel that is compiled and bound.
pub(crate) struct ReadyKernel {
    pub pipeline: Pipeline,
    group: wgpu::BindGroup,
    /// For calls of one token, if it reads feeds.
    close: Option<wgpu::BindGroup>,
}

impl Ready {
    /// Where feeds stand in a call of such sizes.
    pub(crate) fn places(&self, sizes: Sizes) -> &[Range<u64>] {
        if is_close(sizes) { &self.close } else { &self.places }
    }
}

impl ReadyKernel {
    /// What it is bound to in a call of such sizes.
    pub(crate) fn group(&self, sizes: Sizes) -> &wgpu::BindGroup {
        self.close.as_ref().filter(|_| is_close(sizes)).unwrap_or(&self.group)
    }
}

/// The lengths of a call of one token, at most.
const CLOSE: Sizes = Sizes { tokens: 1, rows: 1, soft: 1, patches: 1, frames: 1 };

/// Whether a call's feeds stand close together.
fn is_close(sizes: Sizes) -> bool {
    let Sizes { tokens, rows, soft, patches, frames } = sizes;
    [tokens, rows, soft, patches, frames].into_iter().all(|len| len <= 1)
}

/// What kernels are bound to besides the room.
#[derive(Clone, Copy)]
pub(crate) struct Lasting<'a> {
    pub gpu: &'a Gpu,
    pub weights: &'a Weights,
    pub caches: &'a [Cache],
}

/// Bytes for the feeds of any method.
fn feed_bytes(methods: &BTreeMap<String, CompiledMethod>, sizes: Sizes) -> u64 {
    let both = methods.values().flat_map(|m| [sizes, CLOSE].map(|s| feed_places(m, s).1));
    both.max().unwrap_or(0)
}

/// Where each feed of a method stands, and the bytes of all.
pub(crate) fn feed_places(method: &CompiledMethod, sizes: Sizes) -> (Vec<Range<u64>>, u64) {
    let mut at = 0;
    let places = method.feeds.iter().map(|feed| {
        let len = sizes.len(feed.rows) * feed.channels;
        let place = at..at + (len as u64 * 4).max(16);
        at = place.end.next_multiple_of(ALIGN);
        place
    });
    (places.collect(), at)
}

impl Room {
    /// Bytes that a room takes.
    pub(crate) fn size_bytes(
        shape: &RoomShape,
        methods: &BTreeMap<String, CompiledMethod>,
        sizes: Sizes,
    ) -> u64 {
        let feeds = feed_bytes(methods, sizes);
        let kernels = methods.values().flat_map(|m| &m.steps).map(|s| s.dispatches.len() as u64);
        shape.size_bytes(sizes) + feeds + kernels.sum::<u64>() * ALIGN
    }

    pub(crate) fn new(
        lasting: Lasting<'_>,
        shape: &RoomShape,
        methods: &BTreeMap<String, CompiledMethod>,
        sizes: Sizes,
    ) -> Result<Self> {
        let gpu = lasting.gpu;
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let buffer = |b: usize| {
            let bytes = shape.len(b, sizes) as u64 * 4;
            gpu.buffer("activations", bytes, usage | wgpu::BufferUsages::COPY_SRC)
        };
        let buffers = (0..shape.buffers.len()).map(buffer).collect::<Result<_>>()?;
        let feeds = gpu.buffer("feeds", feed_bytes(methods, sizes), usage)?;
        let mut room = Room { sizes, buffers, feeds, methods: BTreeMap::new() };
        for (name, method) in methods {
            let ready = room.ready(lasting, method)?;
            room.methods.insert(name.clone(), ready);
        }
        Ok(room)
    }

    fn ready(&self, lasting: Lasting<'_>, method: &CompiledMethod) -> Result<Ready> {
        let gpu = lasting.gpu;
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let call = gpu.buffer("lengths of a call", MAX_LENS as u64 * 4, usage)?;
        let kernels = method.steps.iter().flat_map(|s| &s.dispatches);
        let mut words = Vec::new();
        for kernel in kernels {
            let start = words.len();
            words.extend(kernel.words.iter().flat_map(|w| w.to_le_bytes()));
            words.resize(start + ALIGN as usize, 0);
        }
        let params = gpu.buffer("params", words.len() as u64, usage)?;
        gpu.queue.write_buffer(&params, 0, &words);
        let [(places, _), (close, _)] = [self.sizes, CLOSE].map(|s| feed_places(method, s));
        let mut at = 0;
        let mut steps = Vec::with_capacity(method.steps.len());
        for step in &method.steps {
            let mut ready = Vec::with_capacity(step.dispatches.len());
            for kernel in &step.dispatches {
                let own = (&params, at);
                let (pipeline, group) = self.bind(lasting, kernel, own, &call, &places)?;
                let is_fed = |(b, _): &(Bound, Access)| matches!(b, Bound::Value(Place::Feed(_)));
                let close = kernel.bound.iter().any(is_fed).then(|| {
                    self.bind(lasting, kernel, own, &call, &close).map(|(_, group)| group)
                });
                ready.push(ReadyKernel { pipeline, group, close: close.transpose()? });
                at += ALIGN;
            }
            steps.push(ready);
        }
        gpu.check()?;
        let (read, lengths) = (method.read_feeds(), RefCell::default());
        let key_limits = method.key_limits();
        Ok(Ready { places, close, read, call, lengths, key_limits, steps })
    }

    fn bind(
        &self,
        lasting: Lasting<'_>,
        kernel: &Dispatch,
        (params, at): (&wgpu::Buffer, u64),
        call: &wgpu::Buffer,
        places: &[Range<u64>],
    ) -> Result<(Pipeline, wgpu::BindGroup)> {
        let accesses: Vec<_> = kernel.bound.iter().map(|(_, access)| *access).collect();
        let pipeline = lasting.gpu.pipeline(&kernel.shader, &accesses)?;
        let part = |buffer, at: u64, size: u64| {
            wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset: at,
                size: wgpu::BufferSize::new(size),
            })
        };
        let mut resources = vec![part(params, at, PARAMS_BYTES), call.as_entire_binding()];
        for (bound, _) in &kernel.bound {
            resources.push(match *bound {
                Bound::Value(Place::Buffer(b)) => self.buffers[b].as_entire_binding(),
                Bound::Value(Place::Feed(f)) => {
                    part(&self.feeds, places[f].start, places[f].end - places[f].start)
                }
                Bound::Vector(id) => lasting.weights.vector(id),
                Bound::Shard(id) => lasting.weights.shard(id),
                Bound::Section(id, at, size) => lasting.weights.section(id, at, size),
                Bound::Keys(c) => lasting.caches[c].keys.as_entire_binding(),
                Bound::Values(c) => lasting.caches[c].values.as_entire_binding(),
            });
        }
        let entries: Vec<_> = (0..)
            .zip(resources)
            .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource })
            .collect();
        let group = lasting.gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(kernel.shader.stem),
            layout: &pipeline.layout,
            entries: &entries,
        });
        Ok((pipeline, group))
    }
}
