//! An opened GPU: its queue, its pipelines, and what went wrong with it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lapidary_backend::{Error, Result};

use crate::adapter::{Abilities, Adapter, Api};
use crate::pipeline_cache::PipelineCache;
use crate::shader::Shader;
use crate::speed::Speed;

/// How long the host looks for outputs around the time when they are due; else it sleeps.
const AWAKE: Duration = Duration::from_micros(200);

/// How long it sleeps at once before that, least and most: what came early is not left waiting.
const NAP: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(2)];

/// How long outputs may stay away when all work is done.
const SILENT: Duration = Duration::from_secs(10);

/// A GPU, shared by all engines of this process.
pub(crate) struct Gpu {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub abilities: Abilities,
    /// `vulkan · llvmpipe (LLVM 15.0.6, 256 bits)`.
    pub name: String,
    pub speed: Speed,
    /// Nanoseconds that the host last waited for outputs.
    waited: AtomicU64,
    faults: Arc<Faults>,
    pipelines: Mutex<HashMap<(Shader, Vec<Access>), Pipeline>>,
    cache: Option<PipelineCache>,
}

/// A compiled kernel.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    pub raw: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// What a kernel does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    Read,
    Write,
}

/// What the device told since it was last asked.
#[derive(Default)]
struct Faults {
    /// Why the device is gone, once it is.
    lost: Mutex<Option<String>>,
    /// The first error that nobody waited for.
    error: Mutex<Option<Error>>,
}

/// A GPU, the system that reaches it, its number there, and what kernels may use of it.
type Open = (Api, u32, Abilities, Arc<Gpu>);

/// GPUs that were opened; one that was lost is opened anew.
static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

impl Gpu {
    /// The GPU behind an adapter. What it compiles is kept in the folder that the first to open it
    /// gives.
    pub(crate) fn open(api: Api, adapter: &Adapter, folder: Option<&Path>) -> Result<Arc<Self>> {
        let index = adapter.index;
        let mut open = lock(&OPEN);
        open.retain(|(.., gpu)| !gpu.is_lost());
        let known = |(a, n, abilities, _): &&Open| {
            *a == api && *n == index && *abilities == adapter.abilities
        };
        if let Some((.., gpu)) = open.iter().find(known) {
            return Ok(gpu.clone());
        }
        let gpu = Arc::new(Self::new(api, adapter, folder)?);
        open.push((api, index, adapter.abilities, gpu.clone()));
        Ok(gpu)
    }

    fn new(api: Api, adapter: &Adapter, folder: Option<&Path>) -> Result<Self> {
        let abilities = adapter.abilities;
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("lapidary"),
            required_features: abilities.features(),
            required_limits: abilities.limits(&adapter.raw.limits()),
            experimental_features: experimental(&abilities),
            memory_hints: wgpu::MemoryHints::Performance,
            trace: wgpu::Trace::Off,
        };
        let opened = pollster::block_on(adapter.raw.request_device(&descriptor));
        let (device, queue) = opened.map_err(|e| Error::Unavailable {
            backend: api.name(),
            reason: format!("{} can't be opened: {e}", adapter.info(api).name),
        })?;
        let faults = Arc::new(Faults::default());
        let told = faults.clone();
        device.on_uncaptured_error(Arc::new(move |e| {
            lock(&told.error).get_or_insert(error_of(e));
        }));
        let told = faults.clone();
        device.set_device_lost_callback(move |reason, message| {
            lock(&told.lost).get_or_insert(format!("{reason:?}: {message}"));
        });
        let name = format!("{} · {}", api.name(), adapter.info(api).name);
        let cache = PipelineCache::open(&device, &adapter.raw.get_info(), folder);
        let (speed, waited, pipelines) = Default::default();
        Ok(Gpu { device, queue, abilities, name, speed, waited, faults, pipelines, cache })
    }

    /// Whether the device is gone.
    pub(crate) fn is_lost(&self) -> bool {
        lock(&self.faults.lost).is_some()
    }

    /// Fails if the device is gone or has told of an error since.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(why) = &*lock(&self.faults.lost) {
            return Err(Error::Device(format!("{} was lost ({why})", self.name)));
        }
        match lock(&self.faults.error).take() {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    /// Does something and fails with the first error that the device tells of it.
    pub(crate) fn guarded<T>(&self, what: &str, act: impl FnOnce() -> T) -> Result<T> {
        self.check()?;
        let filters = [
            wgpu::ErrorFilter::OutOfMemory,
            wgpu::ErrorFilter::Validation,
            wgpu::ErrorFilter::Internal,
        ];
        let scopes = filters.map(|filter| self.device.push_error_scope(filter));
        let made = act();
        let mut first = None;
        for scope in scopes.into_iter().rev() {
            if let Some(e) = pollster::block_on(scope.pop()) {
                first.get_or_insert(e);
            }
        }
        match first {
            Some(wgpu::Error::OutOfMemory { .. }) => Err(Error::OutOfMemory(format!(
                "{} has no memory left for {what}; try a shorter context or a smaller model",
                self.name
            ))),
            Some(e) => Err(Error::Device(format!("{what}: {}", one_line(&e.to_string())))),
            None => self.check().map(|()| made),
        }
    }

    /// A kernel, compiled now if it was not before.
    pub(crate) fn pipeline(&self, shader: &Shader, accesses: &[Access]) -> Result<Pipeline> {
        let key = (shader.clone(), accesses.to_vec());
        if let Some(known) = lock(&self.pipelines).get(&key) {
            return Ok(known.clone());
        }
        let text = shader.text().map_err(Error::Device)?;
        let label = shader.label();
        let made = self.guarded(&format!("kernel `{label}`"), || {
            let layout = self.layout(&label, accesses);
            let module = self.module(&label, text, shader.unchecked);
            let layouts = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some(&label),
                bind_group_layouts: &[Some(&layout)],
                immediate_size: 0,
            });
            let raw = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(&label),
                layout: Some(&layouts),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: self.cache.as_ref().map(|cache| &cache.raw),
            });
            Pipeline { raw, layout }
        })?;
        lock(&self.pipelines).insert(key, made.clone());
        Ok(made)
    }

    /// Keeps compiled kernels on disk, if that is wanted and there are more than `before`.
    pub(crate) fn keep_pipelines(&self, before: usize) {
        if let Some(cache) = self.cache.as_ref().filter(|_| self.n_pipelines() > before) {
            cache.keep();
        }
    }

    /// Kernels that were compiled.
    pub(crate) fn n_pipelines(&self) -> usize {
        lock(&self.pipelines).len()
    }

    /// A shader with or without checks of its bounds.
    #[allow(unsafe_code)]
    fn module(&self, label: &str, text: String, unchecked: bool) -> wgpu::ShaderModule {
        let source = wgpu::ShaderSource::Wgsl(text.into());
        let descriptor = wgpu::ShaderModuleDescriptor { label: Some(label), source };
        if !unchecked {
            return self.device.create_shader_module(descriptor);
        }
        // SAFETY: only kernels of this crate are marked so. Their loops end, their indices into
        // workgroup memory follow from constants, and those into buffers from the shapes that the
        // buffers were made for; each of them is tested against the reference.
        unsafe {
            let checks = wgpu::ShaderRuntimeChecks::unchecked();
            self.device.create_shader_module_trusted(descriptor, checks)
        }
    }

    /// Two uniform buffers (a kernel's own numbers and the call's), then storage buffers.
    fn layout(&self, label: &str, accesses: &[Access]) -> wgpu::BindGroupLayout {
        let entry = |binding: usize, ty: wgpu::BufferBindingType| wgpu::BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
            count: None,
        };
        let uniform = wgpu::BufferBindingType::Uniform;
        let mut entries = vec![entry(0, uniform), entry(1, uniform)];
        entries.extend(accesses.iter().enumerate().map(|(i, access)| {
            let read_only = *access == Access::Read;
            entry(i + 2, wgpu::BufferBindingType::Storage { read_only })
        }));
        self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(label),
            entries: &entries,
        })
    }

    /// A buffer of zeros, not empty.
    pub(crate) fn buffer(
        &self,
        what: &str,
        size_bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer> {
        let size = size_bytes.max(16).next_multiple_of(16);
        let limits = self.device.limits();
        let most = if usage.contains(wgpu::BufferUsages::STORAGE) {
            self.abilities.max_binding
        } else {
            limits.max_buffer_size
        };
        if size > most {
            return Err(Error::OutOfMemory(format!(
                "{what} takes {size} bytes in one piece, {} has pieces of {most} at most",
                self.name
            )));
        }
        self.guarded(what, || {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(what),
                size,
                usage,
                mapped_at_creation: false,
            })
        })
    }

    /// A buffer that the host fills and the device copies from, mapped.
    pub(crate) fn upload_buffer(&self, size_bytes: u64) -> Result<wgpu::Buffer> {
        self.guarded("feeds on their way", || {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("feeds on their way"),
                size: size_bytes.next_multiple_of(4096),
                usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: true,
            })
        })
    }

    pub(crate) fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    /// Asks for a buffer's first bytes.
    pub(crate) fn map(&self, buffer: &wgpu::Buffer, size_bytes: u64) -> Mapping {
        let done = Arc::new(Mutex::new(None));
        let told = done.clone();
        let slice = buffer.slice(..size_bytes);
        slice.map_async(wgpu::MapMode::Read, move |mapped| *lock(&told) = Some(mapped));
        Mapping { buffer: buffer.clone(), size_bytes, done }
    }

    /// Tells when all that was submitted is done.
    pub(crate) fn mark(&self) -> Arc<AtomicBool> {
        let done = Arc::new(AtomicBool::new(false));
        let told = done.clone();
        self.queue.on_submitted_work_done(move || told.store(true, Ordering::Release));
        done
    }

    /// Hears what the device has done, without waiting.
    pub(crate) fn look(&self) -> Result<()> {
        self.poll(wgpu::PollType::Poll)
    }

    /// Waits until all that was submitted is done.
    pub(crate) fn wait(&self) -> Result<()> {
        self.poll(wgpu::PollType::wait_indefinitely())
    }

    /// Waits until a submission and all before it are done.
    pub(crate) fn wait_for(&self, last: wgpu::SubmissionIndex) -> Result<()> {
        self.poll(wgpu::PollType::Wait { submission_index: Some(last), timeout: None })
    }

    fn poll(&self, how: wgpu::PollType) -> Result<()> {
        let done = self.device.poll(how);
        self.check()?;
        done.map(|_| ()).map_err(|e| Error::Device(format!("{}: {e}", self.name)))
    }
}

/// Bytes that were asked for.
pub(crate) struct Mapping {
    buffer: wgpu::Buffer,
    size_bytes: u64,
    done: Arc<Mutex<Option<Result<(), wgpu::BufferAsyncError>>>>,
}

impl Mapping {
    /// Whether they are there, or will never be.
    pub(crate) fn is_done(&self) -> bool {
        lock(&self.done).is_some()
    }

    /// Waits for them and shows them.
    pub(crate) fn wait(self, gpu: &Gpu, show: &mut dyn FnMut(&[u8])) -> Result<()> {
        let start = Instant::now();
        // A thread that sleeps is woken late, so it is awake when a token is due: after as long as
        // for the one before. (`wgpu` can be told how long to wait at most, but panics if another
        // thread then finds all work done.)
        let due = Duration::from_nanos(gpu.waited.load(Ordering::Relaxed));
        while !self.is_done() && start.elapsed() < due + AWAKE {
            let early = due.saturating_sub(start.elapsed() + AWAKE);
            if early > NAP[0] {
                std::thread::sleep((start.elapsed() / 4).clamp(NAP[0], NAP[1]).min(early));
            }
            gpu.look()?;
            std::hint::spin_loop();
        }
        if !self.is_done() {
            gpu.wait()?;
        }
        gpu.waited.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        // Another thread that polls the same device may have taken it upon itself to tell us.
        let silent = Instant::now();
        while !self.is_done() && silent.elapsed() < SILENT {
            std::thread::yield_now();
            gpu.wait()?;
        }
        self.read(gpu, show)
    }

    /// Shows them, once they are there.
    pub(crate) fn read(self, gpu: &Gpu, show: &mut dyn FnMut(&[u8])) -> Result<()> {
        let fail = |why: String| Error::Device(format!("{}: {why}", gpu.name));
        let told = lock(&self.done).take();
        if !matches!(told, Some(Ok(()))) {
            // Why the device is lost says more than that nothing came.
            gpu.wait()?;
        }
        match told {
            Some(Ok(())) => {}
            Some(Err(e)) => return Err(fail(e.to_string())),
            None => return Err(fail("outputs did not come".to_string())),
        }
        let slice = self.buffer.slice(..self.size_bytes);
        let view = slice.get_mapped_range().map_err(|e| fail(e.to_string()))?;
        show(&view);
        drop(view);
        self.buffer.unmap();
        Ok(())
    }
}

/// Opts in to what `wgpu` calls experimental, if it is used.
#[allow(unsafe_code)]
fn experimental(abilities: &Abilities) -> wgpu::ExperimentalFeatures {
    if abilities.matrices {
        // SAFETY: `wgpu` asks that the user knows that these may have bugs. Only kernels of this
        // crate use them, and each of them is tested against the reference.
        unsafe { wgpu::ExperimentalFeatures::enabled() }
    } else {
        wgpu::ExperimentalFeatures::disabled()
    }
}

fn error_of(e: wgpu::Error) -> Error {
    match e {
        wgpu::Error::OutOfMemory { .. } => {
            Error::OutOfMemory("the GPU has no memory left; try a shorter context".to_string())
        }
        e => Error::Device(one_line(&e.to_string())),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
