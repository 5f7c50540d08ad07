//! The CUDA driver as this backend uses it: every unsafe call of it is here.
//!
//! The driver's library is loaded when it is first asked for. Functions that a driver lacks can't be
//! called, so its version is asked for before anything else.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{self, CUresult};
use lapidary_backend::{Error, Result};

use crate::NAME;

/// The least version of the driver: what the kernels were compiled for.
const LEAST_VERSION: i32 = 13000;

/// A GPU that the driver knows.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub index: u32,
    pub name: String,
    pub bus: Option<String>,
    pub total_bytes: u64,
    /// Major and minor.
    pub capability: (i32, i32),
    raw: i32,
}

/// Fails with what a call of the driver said.
pub(crate) fn check(what: &str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = null();
    // SAFETY: the driver writes a pointer to a string that it keeps for ever.
    let said = unsafe {
        match sys::cuGetErrorString(result, &mut text) {
            CUresult::CUDA_SUCCESS if !text.is_null() => {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
            _ => format!("{result:?}"),
        }
    };
    match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::OutOfMemory(format!(
            "CUDA has no memory left to {what}; try a shorter context, fewer sequences at once, or \
             close what else uses the GPU"
        ))),
        _ => Err(Error::Device(format!("CUDA could not {what}: {said}"))),
    }
}

/// Loads the driver, once, and says its version; else why it can't be used.
pub(crate) fn version() -> Result<i32> {
    static KNOWN: OnceLock<std::result::Result<i32, String>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        // SAFETY: a library is looked for by the names that NVIDIA gives it.
        if !unsafe { sys::is_culib_present() } {
            return Err("no NVIDIA driver is installed (libcuda was not found)".into());
        }
        let mut version = 0;
        // SAFETY: the library is there, and every version of it has this function.
        let result = unsafe { sys::cuDriverGetVersion(&mut version) };
        check("tell its version", result).map_err(|e| e.to_string())?;
        if version < LEAST_VERSION {
            let tell = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
            return Err(format!(
                "the NVIDIA driver supports CUDA {}, and {} is needed: install driver 580 or later",
                tell(version),
                tell(LEAST_VERSION)
            ));
        }
        // SAFETY: as above; it may be called again.
        check("start", unsafe { sys::cuInit(0) }).map_err(|e| e.to_string())?;
        Ok(version)
    });
    known.clone().map_err(|reason| Error::Unavailable { backend: NAME, reason })
}

/// All GPUs, in the driver's order.
pub(crate) fn found() -> Result<Vec<Found>> {
    version()?;
    let mut n = 0;
    // SAFETY: the driver writes a number.
    check("count GPUs", unsafe { sys::cuDeviceGetCount(&mut n) })?;
    (0..n).map(one).collect()
}

fn one(index: i32) -> Result<Found> {
    let (mut raw, mut total) = (0, 0);
    let mut text = [0 as std::ffi::c_char; 256];
    let mut bus = [0 as std::ffi::c_char; 32];
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: the driver writes a number.
        let result = unsafe { sys::cuDeviceGetAttribute(&mut value, which, raw_of(index)) };
        check("describe a GPU", result).map(|()| value)
    };
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let capability = (attribute(MAJOR)?, attribute(MINOR)?);
    // SAFETY: the driver writes numbers, and strings that end within the lengths it is given.
    let (name, bus) = unsafe {
        check("find a GPU", sys::cuDeviceGet(&mut raw, index))?;
        check("name a GPU", sys::cuDeviceGetName(text.as_mut_ptr(), 255, raw))?;
        check("measure a GPU", sys::cuDeviceTotalMem_v2(&mut total, raw))?;
        let at = sys::cuDeviceGetPCIBusId(bus.as_mut_ptr(), 31, raw);
        let is_known = at == CUresult::CUDA_SUCCESS;
        let read = |text: &[std::ffi::c_char]| {
            CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
        };
        (read(&text), is_known.then(|| read(&bus)))
    };
    Ok(Found { index: index as u32, name, bus, total_bytes: total as u64, capability, raw })
}

fn raw_of(index: i32) -> i32 {
    let mut raw = index;
    // SAFETY: the driver writes a number.
    let _ = unsafe { sys::cuDeviceGet(&mut raw, index) };
    raw
}

/// A context on a GPU: what is made in it is of no use outside.
pub(crate) struct Context {
    raw: sys::CUcontext,
    pub found: Found,
    /// Multiprocessors.
    pub n_processors: u32,
    /// The most bytes of shared memory of a block.
    pub most_shared: u32,
    /// Whether a kernel went wrong: nothing can be done in it any more.
    lost: AtomicBool,
}

// SAFETY: a context may be made current in any thread.
unsafe impl Send for Context {}
// SAFETY: the driver locks what it must.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn new(found: &Found) -> Result<Self> {
        let mut raw = null_mut();
        let (mut n, mut shared) = (0, 0);
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as SHARED,
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as COUNT,
        };
        // SAFETY: the driver writes a handle and a number; without parameters it is a plain context.
        unsafe {
            check("open the GPU", sys::cuCtxCreate_v4(&mut raw, null_mut(), 0, found.raw))?;
            check("describe a GPU", sys::cuDeviceGetAttribute(&mut n, COUNT, found.raw))?;
            check("describe a GPU", sys::cuDeviceGetAttribute(&mut shared, SHARED, found.raw))?;
        }
        // Kernels declare a little besides what they are started with.
        let most_shared = shared.max(48 << 10) as u32 - (1 << 10);
        let n_processors = n.max(1) as u32;
        let (found, lost) = (found.clone(), AtomicBool::new(false));
        Ok(Context { raw, found, n_processors, most_shared, lost })
    }

    /// Makes this the context of the calling thread.
    pub(crate) fn enter(&self) -> Result<()> {
        if self.is_lost() {
            let name = &self.found.name;
            return Err(Error::Device(format!("{name} failed earlier; load the model again")));
        }
        // SAFETY: the context lives as long as `self`.
        check("enter its context", unsafe { sys::cuCtxSetCurrent(self.raw) })
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// As [`check`], and remembers errors after which a context is of no use.
    pub(crate) fn check(&self, what: &str, result: CUresult) -> Result<()> {
        use CUresult as R;
        let is_passing = matches!(
            result,
            R::CUDA_SUCCESS
                | R::CUDA_ERROR_OUT_OF_MEMORY
                | R::CUDA_ERROR_NOT_READY
                | R::CUDA_ERROR_INVALID_VALUE
                | R::CUDA_ERROR_NOT_FOUND
        );
        if !is_passing {
            self.lost.store(true, Ordering::Relaxed);
        }
        check(what, result)
    }

    /// Bytes that are free.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two numbers.
        let result = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        self.check("tell how much memory is free", result)?;
        Ok(free as u64)
    }

    /// Loads compiled kernels.
    pub(crate) fn module(&self, image: &[u8]) -> Result<Module> {
        self.enter()?;
        let mut raw = null_mut();
        // SAFETY: `image` is a whole fat binary, which says its own length.
        let result = unsafe { sys::cuModuleLoadData(&mut raw, image.as_ptr().cast()) };
        self.check("load kernels", result)?;
        Ok(Module { raw })
    }

    /// A kernel by its name, allowed to use so many bytes of shared memory.
    pub(crate) fn function(&self, module: Module, name: &str, shared: u32) -> Result<Function> {
        let text = CString::new(name).map_err(|e| Error::Device(e.to_string()))?;
        let mut raw = null_mut();
        // SAFETY: the module lives as long as its context.
        let result = unsafe { sys::cuModuleGetFunction(&mut raw, module.raw, text.as_ptr()) };
        self.check(&format!("find kernel `{name}`"), result)?;
        let shared = shared.min(self.most_shared);
        if shared > 48 << 10 {
            use sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as MOST;
            // SAFETY: as above.
            let result = unsafe { sys::cuFuncSetAttribute(raw, MOST, shared as i32) };
            self.check(&format!("give kernel `{name}` shared memory"), result)?;
        }
        use sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as CARVE;
        // The same for all, so that a multiprocessor can have the next kernel beside the last.
        // SAFETY: as above.
        let result = unsafe { sys::cuFuncSetAttribute(raw, CARVE, 100) };
        self.check(&format!("give kernel `{name}` shared memory"), result)?;
        Ok(Function { raw })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: nothing that was made in it is left, since all of that holds an `Arc` of it.
        let _ = unsafe { sys::cuCtxDestroy_v2(self.raw) };
    }
}

/// Kernels that were loaded. They go with their context.
#[derive(Clone, Copy)]
pub(crate) struct Module {
    raw: sys::CUmodule,
}

/// A kernel. It goes with its context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    raw: sys::CUfunction,
}

// SAFETY: a handle, which the driver may be given in any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// Memory of the GPU.
pub(crate) struct Memory {
    at: u64,
    pub bytes: usize,
    context: Arc<Context>,
}

impl Memory {
    /// Its content is not defined.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        context.enter()?;
        let (mut at, bytes) = (0, bytes.max(16));
        // SAFETY: the driver writes an address.
        let result = unsafe { sys::cuMemAlloc_v2(&mut at, bytes) };
        context.check(&format!("hold {bytes} bytes"), result)?;
        Ok(Memory { at, bytes, context: context.clone() })
    }

    /// Where it begins.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was allocated in this context; the driver waits for kernels that use it.
            let _ = unsafe { sys::cuMemFree_v2(self.at) };
        }
    }
}

/// Memory of the host that the GPU reads and writes by itself.
pub(crate) struct Pinned {
    at: *mut u8,
    bytes: usize,
    context: Arc<Context>,
}

// SAFETY: memory that is owned.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        context.enter()?;
        let (mut at, bytes) = (null_mut(), bytes.max(16));
        // SAFETY: the driver writes an address.
        let result = unsafe { sys::cuMemAllocHost_v2(&mut at, bytes) };
        context.check(&format!("hold {bytes} bytes of the host"), result)?;
        // SAFETY: the memory is fresh and as long as this.
        unsafe { std::ptr::write_bytes(at.cast::<u8>(), 0, bytes) };
        Ok(Pinned { at: at.cast(), bytes, context: context.clone() })
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Its bytes. Whoever reads them waits for the GPU before.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: it is owned, initialised and as long as this.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }

    /// Its bytes, to be written. Whoever writes them waits for the GPU before.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was allocated in this context.
            let _ = unsafe { sys::cuMemFreeHost(self.at.cast()) };
        }
    }
}

/// A moment in a stream.
pub(crate) struct Event {
    raw: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: a handle, which the driver may be given in any thread.
unsafe impl Send for Event {}

impl Event {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        context.enter()?;
        let mut raw = null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the driver writes a handle.
        context.check("make an event", unsafe { sys::cuEventCreate(&mut raw, flags) })?;
        Ok(Event { raw, context: context.clone() })
    }

    /// Whether all that was in the stream before it has ended.
    pub(crate) fn is_over(&self) -> Result<bool> {
        self.context.enter()?;
        // SAFETY: the event lives.
        match unsafe { sys::cuEventQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => self.context.check("compute", result).map(|()| true),
        }
    }

    /// Waits for it.
    pub(crate) fn wait(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the event lives.
        self.context.check("compute", unsafe { sys::cuEventSynchronize(self.raw) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was made in this context.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}

/// Work in order.
pub(crate) struct Stream {
    raw: sys::CUstream,
    pub context: Arc<Context>,
}

// SAFETY: a handle, which the driver may be given in any thread.
unsafe impl Send for Stream {}

/// The most arguments of a kernel, and words of all of them.
const MOST_ARGS: usize = 24;
const ARG_WORDS: usize = 72;

/// The arguments of a kernel, each at a multiple of 8 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Args {
    words: [u64; ARG_WORDS],
    starts: [u8; MOST_ARGS],
    n: usize,
    used: usize,
}

/// What a kernel may be given by value.
///
/// # Safety
/// The type is as the kernel declares it, without padding, and no longer than 128 bytes.
pub(crate) unsafe trait Arg: Copy {}
// SAFETY: a number.
unsafe impl Arg for u32 {}
// SAFETY: a number, or an address.
unsafe impl Arg for u64 {}
// SAFETY: a number.
unsafe impl Arg for usize {}
// SAFETY: a number.
unsafe impl Arg for f32 {}

impl Args {
    pub(crate) fn new() -> Self {
        Args { words: [0; ARG_WORDS], starts: [0; MOST_ARGS], n: 0, used: 0 }
    }

    pub(crate) fn push<T: Arg>(&mut self, value: T) {
        let words = size_of::<T>().div_ceil(8);
        assert!(self.n < MOST_ARGS && self.used + words <= ARG_WORDS, "too many arguments");
        // SAFETY: there is room for it, and its bytes are all defined.
        unsafe {
            let to = self.words.as_mut_ptr().add(self.used).cast::<u8>();
            std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to, size_of::<T>());
        }
        self.starts[self.n] = self.used as u8;
        (self.n, self.used) = (self.n + 1, self.used + words);
    }
}

/// The arguments of a kernel, in order.
macro_rules! args {
    ($($value:expr),* $(,)?) => {{
        let mut args = $crate::driver::Args::new();
        $(args.push($value);)*
        args
    }};
}
pub(crate) use args;

/// How a kernel is spread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub blocks: [u32; 3],
    pub threads: u32,
    /// Bytes of shared memory, besides what the kernel declares.
    pub shared: u32,
    /// Whether it may begin before the kernel before it has ended.
    pub early: bool,
}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        context.enter()?;
        let mut raw = null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the driver writes a handle.
        context.check("make a stream", unsafe { sys::cuStreamCreate(&mut raw, flags) })?;
        Ok(Stream { raw, context: context.clone() })
    }

    /// Starts a kernel.
    pub(crate) fn launch(&self, function: Function, grid: Grid, args: &mut Args) -> Result<()> {
        let mut pointers = [null_mut::<c_void>(); MOST_ARGS];
        for (pointer, start) in pointers.iter_mut().zip(&args.starts[..args.n]) {
            *pointer = (&raw mut args.words[usize::from(*start)]).cast();
        }
        use sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION as EARLY;
        // SAFETY: a union of plain numbers, all zero at first.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = EARLY;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let [x, y, z] = grid.blocks;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: grid.shared,
            hStream: self.raw,
            attrs: &mut attribute,
            numAttrs: u32::from(grid.early),
        };
        // SAFETY: the arguments are as many and as long as the kernel's, which tests of every kernel
        // look at, and addresses among them are of memory that outlives the work of this stream.
        let result = unsafe {
            sys::cuLaunchKernelEx(&config, function.raw, pointers.as_mut_ptr(), null_mut())
        };
        self.context.check("start a kernel", result)
    }

    /// Copies to the GPU; `from` stays as it is until that is done.
    pub(crate) fn upload(&self, from: &Pinned, at: usize, to: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        assert!(at + bytes <= from.bytes, "a copy beyond the end");
        // SAFETY: both sides are as long as this, and pinned memory outlives the work by contract.
        let result = unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, from.at.add(at).cast_const().cast(), bytes, self.raw)
        };
        self.context.check("copy to the GPU", result)
    }

    /// Copies from the GPU; `to` is not to be read before that is done.
    pub(crate) fn download(
        &self,
        from: u64,
        to: &mut Pinned,
        at: usize,
        bytes: usize,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        assert!(at + bytes <= to.bytes, "a copy beyond the end");
        // SAFETY: both sides are as long as this, and pinned memory outlives the work by contract.
        let result =
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.at.add(at).cast(), from, bytes, self.raw) };
        self.context.check("copy from the GPU", result)
    }

    /// Copies on the GPU.
    pub(crate) fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both sides are memory of the GPU that outlives the work by contract.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.raw) };
        self.context.check("copy on the GPU", result)
    }

    /// Fills with zeros.
    pub(crate) fn clear(&self, at: u64, bytes: usize) -> Result<()> {
        // SAFETY: memory of the GPU that outlives the work by contract.
        let result = unsafe { sys::cuMemsetD8Async(at, 0, bytes, self.raw) };
        self.context.check("clear memory", result)
    }

    /// Marks this moment.
    pub(crate) fn record(&self, event: &Event) -> Result<()> {
        // SAFETY: both live.
        let result = unsafe { sys::cuEventRecord(event.raw, self.raw) };
        self.context.check("record an event", result)
    }

    /// Waits for all that was started.
    pub(crate) fn wait(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the stream lives.
        self.context.check("compute", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Collects what `body` starts, instead of starting it.
    pub(crate) fn capture(&self, body: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        let begun = unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) };
        self.context.check("collect kernels", begun)?;
        let made = body();
        let (mut graph, mut raw) = (null_mut(), null_mut());
        // SAFETY: the stream collects, and the driver writes a handle.
        let ended = unsafe { sys::cuStreamEndCapture(self.raw, &mut graph) };
        made?;
        self.context.check("collect kernels", ended)?;
        // SAFETY: the driver writes a handle; what was collected is not needed after that.
        let result = unsafe {
            let result = sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0);
            let _ = sys::cuGraphDestroy(graph);
            result
        };
        self.context.check("make a graph of kernels", result)?;
        Ok(Graph { raw, context: self.context.clone() })
    }

    /// Starts what was collected.
    pub(crate) fn start(&self, graph: &Graph) -> Result<()> {
        // SAFETY: both live, and memory that kernels use is kept by whoever keeps the graph.
        let result = unsafe { sys::cuGraphLaunch(graph.raw, self.raw) };
        self.context.check("start a graph of kernels", result)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.wait().is_ok() {
            // SAFETY: it was made in this context, and nothing of it runs.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// Kernels that were collected, to be started together.
pub(crate) struct Graph {
    raw: sys::CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: a handle, which the driver may be given in any thread.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was made in this context.
            let _ = unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}
