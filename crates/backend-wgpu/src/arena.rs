//! Buffers for the values of one call, and the kernels bound to them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use lapidary_backend::{Result, Sizes};
use lapidary_backend_kit::Buffers;

use crate::cache::Cache;
use crate::device::{Access, Gpu, Pipeline};
use crate::step::{Binding, CompiledMethod, Dispatch, Place};
use crate::weights::Weights;

/// Where bindings may begin.
const ALIGN: u64 = 256;
/// Bytes of one kernel's `Params`.
pub(crate) const PARAMS_BYTES: u64 = 128;
/// Lengths of one call, as `prelude.wgsl` has them.
pub(crate) const MAX_LENS: usize = 32;

/// Buffers of all methods, for calls of certain sizes at most.
pub(crate) struct Arena {
    pub sizes: Sizes,
    /// The most spans of a call.
    pub spans: usize,
    pub buffers: Vec<wgpu::Buffer>,
    pub feeds: wgpu::Buffer,
    pub methods: BTreeMap<String, BoundMethod>,
}

/// A method whose kernels are compiled and bound.
pub(crate) struct BoundMethod {
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
    pub steps: Vec<Vec<BoundKernel>>,
}

/// A kernel that is compiled and bound.
pub(crate) struct BoundKernel {
    pub pipeline: Pipeline,
    group: wgpu::BindGroup,
    /// For calls of one token, if it reads feeds.
    close: Option<wgpu::BindGroup>,
}

impl BoundMethod {
    /// Where a feed stands in long calls, and in calls of one token.
    pub(crate) fn both_places(&self, feed: usize) -> [Range<u64>; 2] {
        [self.places[feed].clone(), self.close[feed].clone()]
    }

    /// Where feeds stand in a call of such sizes.
    pub(crate) fn places(&self, sizes: Sizes) -> &[Range<u64>] {
        if is_close(sizes) { &self.close } else { &self.places }
    }
}

impl BoundKernel {
    /// What it is bound to in a call of such sizes.
    pub(crate) fn group(&self, sizes: Sizes) -> &wgpu::BindGroup {
        self.close.as_ref().filter(|_| is_close(sizes)).unwrap_or(&self.group)
    }
}

/// The lengths of a call of one token, at most.
const CLOSE: Sizes = Sizes { tokens: 1, rows: 1, soft: 1, patches: 1, frames: 1 };

/// Whether a call's feeds stand close together.
pub(crate) fn is_close(sizes: Sizes) -> bool {
    let Sizes { tokens, rows, soft, patches, frames } = sizes;
    [tokens, rows, soft, patches, frames].into_iter().all(|len| len <= 1)
}

/// What kernels are bound to besides the arena: what does not depend on a call.
pub(crate) struct Resources {
    pub gpu: Arc<Gpu>,
    pub weights: Weights,
    pub caches: Vec<Cache>,
}

/// Bytes for the feeds of any method.
fn feed_bytes(methods: &BTreeMap<String, CompiledMethod>, sizes: Sizes, spans: usize) -> u64 {
    let sizes = [(sizes, spans), (CLOSE, 1)];
    let both = methods.values().flat_map(|m| sizes.map(|(s, n)| feed_places(m, s, n).1));
    both.max().unwrap_or(0)
}

/// Where each feed of a method stands, and the bytes of all.
fn feed_places(method: &CompiledMethod, sizes: Sizes, spans: usize) -> (Vec<Range<u64>>, u64) {
    let mut at = 0;
    let places = method.feeds.iter().map(|feed| {
        let len = feed.len(sizes, spans);
        let place = at..at + (len as u64 * 4).max(16);
        at = place.end.next_multiple_of(ALIGN);
        place
    });
    (places.collect(), at)
}

impl Arena {
    /// Bytes that an arena takes.
    pub(crate) fn size_bytes(
        shape: &Buffers,
        methods: &BTreeMap<String, CompiledMethod>,
        sizes: Sizes,
        spans: usize,
    ) -> u64 {
        let feeds = feed_bytes(methods, sizes, spans);
        let kernels = methods.values().flat_map(|m| &m.steps).map(|s| s.dispatches.len() as u64);
        shape.size_bytes(sizes) + feeds + kernels.sum::<u64>() * ALIGN
    }

    pub(crate) fn new(
        resources: &Resources,
        shape: &Buffers,
        methods: &BTreeMap<String, CompiledMethod>,
        sizes: Sizes,
        spans: usize,
    ) -> Result<Self> {
        let gpu = &resources.gpu;
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let buffer = |b: usize| {
            let bytes = shape.len(b, sizes) as u64 * 4;
            gpu.buffer("activations", bytes, usage | wgpu::BufferUsages::COPY_SRC)
        };
        let buffers = (0..shape.count()).map(buffer).collect::<Result<_>>()?;
        let feed_usage = usage | wgpu::BufferUsages::COPY_SRC;
        let feeds = gpu.buffer("feeds", feed_bytes(methods, sizes, spans), feed_usage)?;
        let mut arena = Arena { sizes, spans, buffers, feeds, methods: BTreeMap::new() };
        for (name, method) in methods {
            let bound = arena.bind_method(resources, method)?;
            arena.methods.insert(name.clone(), bound);
        }
        Ok(arena)
    }

    fn bind_method(&self, resources: &Resources, method: &CompiledMethod) -> Result<BoundMethod> {
        let gpu = &resources.gpu;
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
        let (places, _) = feed_places(method, self.sizes, self.spans);
        let (close, _) = feed_places(method, CLOSE, 1);
        let mut at = 0;
        let mut steps = Vec::with_capacity(method.steps.len());
        for step in &method.steps {
            let mut kernels = Vec::with_capacity(step.dispatches.len());
            for kernel in &step.dispatches {
                let own = (&params, at);
                let (pipeline, group) = self.bind(resources, kernel, own, &call, &places)?;
                let is_fed =
                    |(b, _): &(Binding, Access)| matches!(b, Binding::Value(Place::Feed(_)));
                let close = kernel.bindings.iter().any(is_fed).then(|| {
                    self.bind(resources, kernel, own, &call, &close).map(|(_, group)| group)
                });
                kernels.push(BoundKernel { pipeline, group, close: close.transpose()? });
                at += ALIGN;
            }
            steps.push(kernels);
        }
        gpu.check()?;
        let (read, lengths) = (method.read_feeds(), RefCell::default());
        let key_limits = method.key_limits();
        Ok(BoundMethod { places, close, read, call, lengths, key_limits, steps })
    }

    fn bind(
        &self,
        resources: &Resources,
        kernel: &Dispatch,
        (params, at): (&wgpu::Buffer, u64),
        call: &wgpu::Buffer,
        places: &[Range<u64>],
    ) -> Result<(Pipeline, wgpu::BindGroup)> {
        let accesses: Vec<_> = kernel.bindings.iter().map(|(_, access)| *access).collect();
        let pipeline = resources.gpu.pipeline(&kernel.shader, &accesses)?;
        let part = |buffer, at: u64, size: u64| {
            wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset: at,
                size: wgpu::BufferSize::new(size),
            })
        };
        let mut bound = vec![part(params, at, PARAMS_BYTES), call.as_entire_binding()];
        for (binding, _) in &kernel.bindings {
            bound.push(match *binding {
                Binding::Value(Place::Buffer(b)) => self.buffers[b].as_entire_binding(),
                Binding::Value(Place::Feed(f)) => {
                    part(&self.feeds, places[f].start, places[f].end - places[f].start)
                }
                Binding::Vector(id) => resources.weights.vector(id),
                Binding::Shard(id) => resources.weights.shard(id),
                Binding::Section(id, at, size) => resources.weights.section(id, at, size),
                Binding::Keys(c) => resources.caches[c].keys.as_entire_binding(),
                Binding::Values(c) => resources.caches[c].values.as_entire_binding(),
            });
        }
        let entries: Vec<_> = (0..)
            .zip(bound)
            .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource })
            .collect();
        let group = resources.gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(kernel.shader.stem),
            layout: &pipeline.layout,
            entries: &entries,
        });
        Ok((pipeline, group))
    }
}
