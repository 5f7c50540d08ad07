//! MLX as this backend uses it: every unsafe call of it is here.
//!
//! The functions are those of mlx-c. It and MLX are loaded when they are first asked for, once for the
//! process, and never unloaded. An array is a handle to a node of a graph that is evaluated when its
//! numbers are asked for; to build one costs a microsecond or so.
//!
//! mlx-c reports an error twice: as a code, and as words to a handler, which by default ends the
//! process. Ours keeps the words for the thread that made the call.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use lapidary_backend::{Error, Result};
use libloading::Library;

use crate::NAME;
pub(crate) use crate::dtype::Dtype;
use crate::find::{self, VERSION};

/// What mlx-c hands out: an array, a stream, a device, a string or a list of arrays.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle(*mut c_void);

const NONE: Handle = Handle(null_mut());

#[repr(C)]
#[derive(Clone, Copy)]
struct OptionalInt {
    value: c_int,
    has_value: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct OptionalDtype {
    value: Dtype,
    has_value: bool,
}

macro_rules! functions {
    ($($name:ident($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// Functions of mlx-c.
        struct Functions {
            $($name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Functions {
            fn load(library: &Library) -> std::result::Result<Self, String> {
                $(
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    // SAFETY: the types are those of the headers of mlx-c 0.7.
                    let $name = unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) $(-> $ret)?>(name)
                    };
                    let $name = *$name.map_err(|_| cannot_find(stringify!($name)))?;
                )*
                Ok(Functions { $($name,)* })
            }
        }
    };
}

type Out = *mut Handle;
type Ints = *const c_int;
type Handler = unsafe extern "C" fn(*const c_char, *mut c_void);
type Destructor = unsafe extern "C" fn(*mut c_void);

functions! {
    mlx_set_error_handler(Option<Handler>, *mut c_void, Option<Destructor>);
    mlx_version(Out) -> c_int;
    mlx_string_new() -> Handle;
    mlx_string_data(Handle) -> *const c_char;
    mlx_string_free(Handle) -> c_int;
    mlx_device_new_type(c_int, c_int) -> Handle;
    mlx_device_free(Handle) -> c_int;
    mlx_device_count(*mut c_int, c_int) -> c_int;
    mlx_device_info_new() -> Handle;
    mlx_device_info_get(Out, Handle) -> c_int;
    mlx_device_info_free(Handle) -> c_int;
    mlx_device_info_has_key(*mut bool, Handle, *const c_char) -> c_int;
    mlx_device_info_get_string(*mut *const c_char, Handle, *const c_char) -> c_int;
    mlx_device_info_get_size(*mut usize, Handle, *const c_char) -> c_int;
    mlx_stream_new_thread_unsafe(Handle) -> Handle;
    mlx_clear_cache() -> c_int;
    mlx_get_active_memory(*mut usize) -> c_int;
    mlx_set_memory_limit(*mut usize, usize) -> c_int;
    mlx_array_new_float32(f32) -> Handle;
    mlx_array_new_data(*const c_void, Ints, c_int, Dtype) -> Handle;
    mlx_array_set(Out, Handle) -> c_int;
    mlx_array_free(Handle) -> c_int;
    mlx_array_ndim(Handle) -> usize;
    mlx_array_nbytes(Handle) -> usize;
    mlx_array_shape(Handle) -> Ints;
    mlx_array_dtype(Handle) -> Dtype;
    mlx_array_eval(Handle) -> c_int;
    mlx_array_data_uint8(Handle) -> *const u8;
    _mlx_array_is_available(*mut bool, Handle) -> c_int;
    mlx_vector_array_new_data(*const Handle, usize) -> Handle;
    mlx_vector_array_free(Handle) -> c_int;
    mlx_eval(Handle) -> c_int;
    mlx_async_eval(Handle) -> c_int;
    mlx_add(Out, Handle, Handle, Handle) -> c_int;
    mlx_subtract(Out, Handle, Handle, Handle) -> c_int;
    mlx_multiply(Out, Handle, Handle, Handle) -> c_int;
    mlx_divide(Out, Handle, Handle, Handle) -> c_int;
    mlx_matmul(Out, Handle, Handle, Handle) -> c_int;
    mlx_less(Out, Handle, Handle, Handle) -> c_int;
    mlx_less_equal(Out, Handle, Handle, Handle) -> c_int;
    mlx_logical_and(Out, Handle, Handle, Handle) -> c_int;
    mlx_bitwise_and(Out, Handle, Handle, Handle) -> c_int;
    mlx_bitwise_xor(Out, Handle, Handle, Handle) -> c_int;
    mlx_right_shift(Out, Handle, Handle, Handle) -> c_int;
    mlx_exp(Out, Handle, Handle) -> c_int;
    mlx_log(Out, Handle, Handle) -> c_int;
    mlx_log1p(Out, Handle, Handle) -> c_int;
    mlx_tanh(Out, Handle, Handle) -> c_int;
    mlx_sigmoid(Out, Handle, Handle) -> c_int;
    mlx_negative(Out, Handle, Handle) -> c_int;
    mlx_softmax_axis(Out, Handle, c_int, bool, Handle) -> c_int;
    mlx_argsort_axis(Out, Handle, c_int, Handle) -> c_int;
    mlx_argpartition_axis(Out, Handle, c_int, c_int, Handle) -> c_int;
    mlx_cumsum_axis(Out, Handle, c_int, bool, bool, OptionalDtype, Handle) -> c_int;
    mlx_argmax_axis(Out, Handle, c_int, bool, Handle) -> c_int;
    mlx_mean_axis(Out, Handle, c_int, bool, Handle) -> c_int;
    mlx_sum_axis(Out, Handle, c_int, bool, Handle) -> c_int;
    mlx_min_axis(Out, Handle, c_int, bool, Handle) -> c_int;
    mlx_where(Out, Handle, Handle, Handle, Handle) -> c_int;
    mlx_take_axis(Out, Handle, Handle, c_int, Handle) -> c_int;
    mlx_take_along_axis(Out, Handle, Handle, c_int, Handle) -> c_int;
    mlx_put_along_axis(Out, Handle, Handle, Handle, c_int, Handle) -> c_int;
    mlx_slice(Out, Handle, Ints, usize, Ints, usize, Ints, usize, Handle) -> c_int;
    mlx_slice_update(Out, Handle, Handle, Ints, usize, Ints, usize, Ints, usize, Handle) -> c_int;
    mlx_concatenate_axis(Out, Handle, c_int, Handle) -> c_int;
    mlx_reshape(Out, Handle, Ints, usize, Handle) -> c_int;
    mlx_broadcast_to(Out, Handle, Ints, usize, Handle) -> c_int;
    mlx_transpose_axes(Out, Handle, Ints, usize, Handle) -> c_int;
    mlx_contiguous(Out, Handle, bool, Handle) -> c_int;
    mlx_astype(Out, Handle, Dtype, Handle) -> c_int;
    mlx_zeros(Out, Ints, usize, Dtype, Handle) -> c_int;
    mlx_conv2d(Out, Handle, Handle, c_int, c_int, c_int, c_int, c_int, c_int, c_int, Handle) -> c_int;
    mlx_dequantize(Out, Handle, Handle, Handle, OptionalInt, OptionalInt, *const c_char, Handle, OptionalDtype, Handle) -> c_int;
    mlx_quantized_matmul(Out, Handle, Handle, Handle, Handle, bool, OptionalInt, OptionalInt, *const c_char, Handle) -> c_int;
    mlx_gather_qmm(Out, Handle, Handle, Handle, Handle, Handle, Handle, bool, OptionalInt, OptionalInt, *const c_char, bool, Handle) -> c_int;
    mlx_gather_mm(Out, Handle, Handle, Handle, Handle, bool, Handle) -> c_int;
    mlx_fast_rms_norm(Out, Handle, Handle, f32, Handle) -> c_int;
    mlx_fast_layer_norm(Out, Handle, Handle, Handle, f32, Handle) -> c_int;
    mlx_fast_scaled_dot_product_attention(Out, Handle, Handle, Handle, f32, *const c_char, Handle, Handle, bool, Handle) -> c_int;
}

thread_local! {
    /// What the last error on this thread said.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps what mlx-c says of an error.
unsafe extern "C" fn keep_words(text: *const c_char, _: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: mlx-c gives a string that lives through this call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    SAID.with(|said| *said.borrow_mut() = Some(text));
}

/// The error that was just told of.
fn error(what: &str) -> Error {
    let said = SAID.with(|said| said.borrow_mut().take()).unwrap_or_default();
    // mlx-c adds the place in its own source.
    let said = said.split(" at /").next().unwrap_or_default().trim();
    let is_memory = ["allocate", "out of memory", "Out of memory", "bad_alloc"];
    if is_memory.iter().any(|word| said.contains(word)) {
        return Error::OutOfMemory(format!(
            "MLX has no memory left to {what} ({said}); try a shorter context, fewer sequences at \
             once, or close what else uses the memory"
        ));
    }
    Error::Device(format!("MLX could not {what}: {said}"))
}

fn check(what: &str, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(error(what)) }
}

/// Loads the libraries, once; else says why they can't be used.
fn functions() -> Result<&'static Functions> {
    static LOADED: OnceLock<std::result::Result<Functions, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(load);
    loaded.as_ref().map_err(|reason| Error::Unavailable { backend: NAME, reason: reason.clone() })
}

fn load() -> std::result::Result<Functions, String> {
    let found = find::find()?;
    if let Some(mlx) = &found.mlx {
        // mlx-c asks for MLX by its name alone, and is given what is loaded under that name.
        std::mem::forget(open(mlx)?);
    }
    let mlxc = open(&found.mlxc)?;
    let functions = Functions::load(&mlxc)?;
    // Its functions are called until the process ends.
    std::mem::forget(mlxc);
    // SAFETY: the handler takes what mlx-c's header says, and needs no data.
    unsafe { (functions.mlx_set_error_handler)(Some(keep_words), null_mut(), None) };
    let version = version(&functions)?;
    find::check_version(&version, found.mlx.as_ref().unwrap_or(&found.mlxc))?;
    Ok(functions)
}

#[cfg(unix)]
fn open(path: &std::path::Path) -> std::result::Result<Library, String> {
    use libloading::os::unix::{Library as Unix, RTLD_GLOBAL, RTLD_NOW};

    // SAFETY: what these libraries do when they are loaded is to fill tables of their own.
    let library = unsafe { Unix::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    library.map(Library::from).map_err(|e| cannot_load(path, &e))
}

#[cfg(not(unix))]
fn open(path: &std::path::Path) -> std::result::Result<Library, String> {
    // SAFETY: what these libraries do when they are loaded is to fill tables of their own.
    unsafe { Library::new(path) }.map_err(|e| cannot_load(path, &e))
}

fn cannot_find(name: &str) -> String {
    format!("mlx-c has no `{name}`: mlx-c 0.7, built with MLX {VERSION}, is needed")
}

fn cannot_load(path: &std::path::Path, e: &libloading::Error) -> String {
    use std::error::Error as _;

    let why = e.source().map_or_else(|| e.to_string(), ToString::to_string);
    format!("{} can't be loaded (MLX {VERSION} with mlx-c 0.7 is needed): {why}", path.display())
}

fn version(functions: &Functions) -> std::result::Result<String, String> {
    // SAFETY: mlx-c fills a string that it made, which is read before it is freed.
    unsafe {
        let mut text = (functions.mlx_string_new)();
        let code = (functions.mlx_version)(&mut text);
        let data = (functions.mlx_string_data)(text);
        let version = (code == 0 && !data.is_null())
            .then(|| CStr::from_ptr(data).to_string_lossy().into_owned());
        (functions.mlx_string_free)(text);
        version.ok_or_else(|| "MLX does not tell its version".to_string())
    }
}

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Cpu,
    Gpu,
}

/// A device that MLX knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub kind: Kind,
    pub index: i32,
}

impl Place {
    fn open(self, functions: &Functions) -> Handle {
        // SAFETY: the numbers are those of mlx-c's types of devices.
        unsafe { (functions.mlx_device_new_type)(self.kind as c_int, self.index) }
    }
}

/// All devices: GPUs first.
pub(crate) fn places() -> Result<Vec<Place>> {
    let functions = functions()?;
    let mut places = Vec::new();
    for kind in [Kind::Gpu, Kind::Cpu] {
        let mut n = 0;
        // SAFETY: mlx-c writes a number.
        check("count devices", unsafe { (functions.mlx_device_count)(&mut n, kind as c_int) })?;
        places.extend((0..n).map(|index| Place { kind, index }));
    }
    Ok(places)
}

/// What MLX says of a device: its name, and a size under the first name that it knows.
pub(crate) fn describe(place: Place, sizes: &[&CStr]) -> Result<(Option<String>, Option<u64>)> {
    let functions = functions()?;
    let device = place.open(functions);
    // SAFETY: the names are strings; what is found is read before the description is freed.
    unsafe {
        let mut info = (functions.mlx_device_info_new)();
        let known = (functions.mlx_device_info_get)(&mut info, device) == 0;
        let has = |key: &CStr| {
            let mut has = false;
            known && (functions.mlx_device_info_has_key)(&mut has, info, key.as_ptr()) == 0 && has
        };
        let mut name = null();
        let named = has(c"device_name")
            && (functions.mlx_device_info_get_string)(&mut name, info, c"device_name".as_ptr())
                == 0
            && !name.is_null();
        let name = named.then(|| CStr::from_ptr(name).to_string_lossy().into_owned());
        let size = sizes.iter().find(|key| has(key)).and_then(|key| {
            let mut size = 0;
            let code = (functions.mlx_device_info_get_size)(&mut size, info, key.as_ptr());
            (code == 0).then_some(size as u64)
        });
        (functions.mlx_device_info_free)(info);
        (functions.mlx_device_free)(device);
        Ok((name, size))
    }
}

/// Bytes that arrays of this process take.
pub(crate) fn active_bytes() -> Result<u64> {
    let (get, mut n) = (functions()?.mlx_get_active_memory, 0);
    // SAFETY: mlx-c writes a number.
    check("tell its memory", unsafe { get(&mut n) })?;
    Ok(n as u64)
}

/// Has MLX wait for work to end before it takes more than so many bytes.
pub(crate) fn limit_memory(bytes: u64) -> Result<()> {
    let (limit, mut before) = (functions()?.mlx_set_memory_limit, 0);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: mlx-c writes a number.
    check("limit its memory", unsafe { limit(&mut before, bytes) })
}

/// A queue of work on a device. A stream of the CPU is a thread that is never ended, so streams are
/// used again.
struct Stream {
    handle: Handle,
    place: Place,
}

// SAFETY: such a stream may be used on any thread, though on one at a time: an engine has its own.
unsafe impl Send for Stream {}
// SAFETY: as above; the handle itself is never written.
unsafe impl Sync for Stream {}

/// Streams that nobody uses.
static SPARE: Mutex<Vec<(Place, StreamHandle)>> = Mutex::new(Vec::new());

struct StreamHandle(Handle);

// SAFETY: see `Stream`.
unsafe impl Send for StreamHandle {}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        spare.push((self.place, StreamHandle(self.handle)));
    }
}

/// MLX on one device, with a stream.
#[derive(Clone)]
pub(crate) struct Mlx {
    functions: &'static Functions,
    stream: Arc<Stream>,
}

/// Numbers, or what they will be computed from.
pub(crate) struct Array {
    handle: Handle,
    functions: &'static Functions,
}

// SAFETY: an array counts its references atomically, and this handle is used by one thread at a time.
unsafe impl Send for Array {}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: the handle is this array's own.
        unsafe { (self.functions.mlx_array_free)(self.handle) };
    }
}

impl Array {
    /// Another handle to the same numbers.
    pub(crate) fn share(&self) -> Result<Array> {
        let mut handle = NONE;
        // SAFETY: mlx-c makes a new handle where there was none.
        let code = unsafe { (self.functions.mlx_array_set)(&mut handle, self.handle) };
        check("share an array", code)?;
        Ok(Array { handle, functions: self.functions })
    }

    /// Lengths, outermost first.
    pub(crate) fn shape(&self) -> Vec<usize> {
        // SAFETY: mlx-c tells how many lengths there are, and they live as long as the array.
        unsafe {
            let n = (self.functions.mlx_array_ndim)(self.handle);
            let shape = (self.functions.mlx_array_shape)(self.handle);
            (0..n).map(|i| *shape.add(i) as usize).collect()
        }
    }

    pub(crate) fn dtype(&self) -> Dtype {
        // SAFETY: mlx-c gives one of the numbers of its types.
        unsafe { (self.functions.mlx_array_dtype)(self.handle) }
    }

    /// Whether its numbers have been computed.
    pub(crate) fn is_ready(&self) -> Result<bool> {
        let mut is_ready = false;
        // SAFETY: mlx-c writes a flag.
        let code = unsafe { (self.functions._mlx_array_is_available)(&mut is_ready, self.handle) };
        check("look at an array", code).map(|()| is_ready)
    }

    /// Computes the numbers, or waits for them.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the handle is this array's own.
        check("compute", unsafe { (self.functions.mlx_array_eval)(self.handle) })
    }
}

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) = $function:ident($($given:expr),*);)*) => {
        impl Mlx {
            $($(#[$doc])* pub(crate) fn $name(&self, $($arg: $type),*) -> Result<Array> {
                // SAFETY: all handles are alive, or none where none is allowed; mlx-c makes a new
                // array.
                self.made(stringify!($name), |out| unsafe {
                    (self.functions.$function)(out, $($given,)* self.stream.handle)
                })
            })*
        }
    };
}

ops! {
    add(a: &Array, b: &Array) = mlx_add(a.handle, b.handle);
    subtract(a: &Array, b: &Array) = mlx_subtract(a.handle, b.handle);
    multiply(a: &Array, b: &Array) = mlx_multiply(a.handle, b.handle);
    divide(a: &Array, b: &Array) = mlx_divide(a.handle, b.handle);
    /// Products of the last two lengths; those before go along.
    matmul(a: &Array, b: &Array) = mlx_matmul(a.handle, b.handle);
    less(a: &Array, b: &Array) = mlx_less(a.handle, b.handle);
    less_equal(a: &Array, b: &Array) = mlx_less_equal(a.handle, b.handle);
    and(a: &Array, b: &Array) = mlx_logical_and(a.handle, b.handle);
    bits(a: &Array, b: &Array) = mlx_bitwise_and(a.handle, b.handle);
    xor(a: &Array, b: &Array) = mlx_bitwise_xor(a.handle, b.handle);
    shift_right(a: &Array, b: &Array) = mlx_right_shift(a.handle, b.handle);
    exp(x: &Array) = mlx_exp(x.handle);
    log(x: &Array) = mlx_log(x.handle);
    /// `ln(1 + x)`.
    log1p(x: &Array) = mlx_log1p(x.handle);
    tanh(x: &Array) = mlx_tanh(x.handle);
    sigmoid(x: &Array) = mlx_sigmoid(x.handle);
    negative(x: &Array) = mlx_negative(x.handle);
    /// `a` where the condition holds, else `b`.
    choose(condition: &Array, a: &Array, b: &Array)
        = mlx_where(condition.handle, a.handle, b.handle);
    /// Numbers that lie one after another.
    contiguous(x: &Array) = mlx_contiguous(x.handle, false);
    cast(x: &Array, dtype: Dtype) = mlx_astype(x.handle, dtype);
    /// Rows by their numbers.
    take(x: &Array, indices: &Array, axis: usize)
        = mlx_take_axis(x.handle, indices.handle, axis as c_int);
    /// For each row along an axis, its numbers at some places.
    take_along(x: &Array, indices: &Array, axis: usize)
        = mlx_take_along_axis(x.handle, indices.handle, axis as c_int);
    /// The same with other numbers at some places of each row along an axis.
    put_along(x: &Array, indices: &Array, values: &Array, axis: usize)
        = mlx_put_along_axis(x.handle, indices.handle, values.handle, axis as c_int);
    softmax(x: &Array, axis: usize) = mlx_softmax_axis(x.handle, axis as c_int, true);
    /// Places of the numbers of each row in rising order; equal ones stay in their order.
    argsort(x: &Array, axis: usize) = mlx_argsort_axis(x.handle, axis as c_int);
    /// Places of the numbers of each row, those of the `n + 1` least first, in no order.
    partition(x: &Array, n: usize, axis: usize)
        = mlx_argpartition_axis(x.handle, n as c_int, axis as c_int);
    /// The place of the largest number of each row, the first among equals.
    argmax(x: &Array, axis: usize) = mlx_argmax_axis(x.handle, axis as c_int, false);
    mean(x: &Array, axis: usize) = mlx_mean_axis(x.handle, axis as c_int, false);
    sum(x: &Array, axis: usize, keep: bool) = mlx_sum_axis(x.handle, axis as c_int, keep);
    /// For each number the sum of those up to it along an axis.
    running_sum(x: &Array, axis: usize)
        = mlx_cumsum_axis(x.handle, axis as c_int, false, true, AS_IT_IS);
    /// The least number of each row, the axis kept.
    least(x: &Array, axis: usize) = mlx_min_axis(x.handle, axis as c_int, true);
    /// A 3×3 convolution of stride 2 with a border of one zero: `x [1, rows, columns, I]`,
    /// `weight [O, 3, 3, I]`.
    conv2d(x: &Array, weight: &Array)
        = mlx_conv2d(x.handle, weight.handle, 2, 2, 1, 1, 1, 1, 1);
    /// Codes as numbers.
    dequantize(codes: &Codes<'_>) = mlx_dequantize(
        codes.words.handle, codes.scales.handle, codes.biases.handle,
        some(codes.group), some(codes.bits.into()), AFFINE.as_ptr(), NONE, AS_F32
    );
    /// `x · Wᵀ`.
    quantized_matmul(x: &Array, codes: &Codes<'_>) = mlx_quantized_matmul(
        x.handle, codes.words.handle, codes.scales.handle, codes.biases.handle,
        true, some(codes.group), some(codes.bits.into()), AFFINE.as_ptr()
    );
    /// `x · Wᵀ` with the matrices that are chosen for each row.
    gather_qmm(x: &Array, codes: &Codes<'_>, chosen: &Array) = mlx_gather_qmm(
        x.handle, codes.words.handle, codes.scales.handle, codes.biases.handle, NONE, chosen.handle,
        true, some(codes.group), some(codes.bits.into()), AFFINE.as_ptr(), false
    );
    /// `x · W` with the matrices that are chosen for each row.
    gather_mm(x: &Array, w: &Array, chosen: &Array)
        = mlx_gather_mm(x.handle, w.handle, NONE, chosen.handle, false);
    rms_norm(x: &Array, weight: Option<&Array>, eps: f32)
        = mlx_fast_rms_norm(x.handle, or_none(weight), eps);
    layer_norm(x: &Array, weight: &Array, bias: Option<&Array>, eps: f32)
        = mlx_fast_layer_norm(x.handle, weight.handle, or_none(bias), eps);
    /// `q [1, heads, queries, D]`, `k` and `v` `[1, KV heads, keys, D]`.
    attention(q: &Array, k: &Array, v: &Array, scale: f32, sees: &Sees<'_>)
        = mlx_fast_scaled_dot_product_attention(
            q.handle, k.handle, v.handle, scale, sees.mode().as_ptr(), sees.mask(), NONE, false
        );
}

fn or_none(array: Option<&Array>) -> Handle {
    array.map_or(NONE, |array| array.handle)
}

/// Codes as MLX multiplies with them.
pub(crate) struct Codes<'a> {
    /// Packed, low-first, as 32-bit words.
    pub words: &'a Array,
    pub scales: &'a Array,
    pub biases: &'a Array,
    pub bits: u8,
    pub group: usize,
}

/// Which queries see which keys.
pub(crate) enum Sees<'a> {
    /// Each sees all.
    All,
    /// The last query sees all, and each before it one fewer.
    Causal,
    /// `[queries, keys]`.
    Mask(&'a Array),
}

impl Sees<'_> {
    fn mode(&self) -> &'static CStr {
        match self {
            Sees::All => c"",
            Sees::Causal => c"causal",
            Sees::Mask(_) => c"array",
        }
    }

    fn mask(&self) -> Handle {
        match self {
            Sees::Mask(mask) => mask.handle,
            Sees::All | Sees::Causal => NONE,
        }
    }
}

const AFFINE: &CStr = c"affine";
const AS_F32: OptionalDtype = OptionalDtype { value: Dtype::F32, has_value: true };
const AS_IT_IS: OptionalDtype = OptionalDtype { value: Dtype::F32, has_value: false };

fn some(value: usize) -> OptionalInt {
    OptionalInt { value: value as c_int, has_value: true }
}

/// Lengths as MLX has them.
fn ints(numbers: &[usize]) -> Result<Vec<c_int>> {
    let int = |n: &usize| {
        c_int::try_from(*n).map_err(|_| Error::Device(format!("MLX has no arrays of {n} rows")))
    };
    numbers.iter().map(int).collect()
}

impl Mlx {
    /// Opens a device.
    pub(crate) fn open(place: Place) -> Result<Self> {
        let functions = functions()?;
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = match spare.iter().position(|(of, _)| *of == place) {
            Some(at) => spare.swap_remove(at).1.0,
            None => {
                let device = place.open(functions);
                // SAFETY: the device is one that MLX named.
                let handle = unsafe { (functions.mlx_stream_new_thread_unsafe)(device) };
                // SAFETY: nobody uses the device's handle any more.
                unsafe { (functions.mlx_device_free)(device) };
                handle
            }
        };
        if handle.0.is_null() {
            return Err(error("open a device"));
        }
        Ok(Mlx { functions, stream: Arc::new(Stream { handle, place }) })
    }

    /// Gives the memory of freed arrays back to the system.
    pub(crate) fn clear_cache(&self) -> Result<()> {
        // SAFETY: it takes nothing.
        check("free its cache", unsafe { (self.functions.mlx_clear_cache)() })
    }

    fn made(&self, what: &str, make: impl FnOnce(Out) -> c_int) -> Result<Array> {
        let mut handle = NONE;
        check(what, make(&mut handle))?;
        Ok(Array { handle, functions: self.functions })
    }

    /// One number.
    pub(crate) fn number(&self, x: f32) -> Result<Array> {
        // SAFETY: it takes a number.
        let handle = unsafe { (self.functions.mlx_array_new_float32)(x) };
        if handle.0.is_null() {
            return Err(error("make a number"));
        }
        Ok(Array { handle, functions: self.functions })
    }

    /// A copy of bytes, which hold as many numbers as the shape asks for.
    pub(crate) fn bytes(&self, bytes: &[u8], shape: &[usize], dtype: Dtype) -> Result<Array> {
        let n = shape.iter().try_fold(dtype.size(), |n, len| n.checked_mul(*len));
        if n != Some(bytes.len()) {
            let what = format!("{} bytes for an array of {shape:?}", bytes.len());
            return Err(Error::Device(what));
        }
        let shape = ints(shape)?;
        // SAFETY: the bytes are as many as are read, and are copied before this returns.
        let handle = unsafe {
            let data = bytes.as_ptr().cast();
            (self.functions.mlx_array_new_data)(data, shape.as_ptr(), shape.len() as c_int, dtype)
        };
        if handle.0.is_null() {
            return Err(error("copy numbers"));
        }
        Ok(Array { handle, functions: self.functions })
    }

    pub(crate) fn floats(&self, numbers: &[f32], shape: &[usize]) -> Result<Array> {
        // SAFETY: any number is four bytes.
        let bytes =
            unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), 4 * numbers.len()) };
        self.bytes(bytes, shape, Dtype::F32)
    }

    pub(crate) fn indices(&self, numbers: &[i32], shape: &[usize]) -> Result<Array> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
        self.bytes(&bytes, shape, Dtype::I32)
    }

    pub(crate) fn zeros(&self, shape: &[usize], dtype: Dtype) -> Result<Array> {
        let shape = ints(shape)?;
        // SAFETY: the lengths are as many as is said.
        self.made("make zeros", |out| unsafe {
            let stream = self.stream.handle;
            (self.functions.mlx_zeros)(out, shape.as_ptr(), shape.len(), dtype, stream)
        })
    }

    /// Starts to compute arrays; whoever asks for their numbers waits.
    pub(crate) fn start(&self, arrays: &[&Array]) -> Result<()> {
        if arrays.is_empty() {
            return Ok(());
        }
        // SAFETY: the list is alive.
        check(
            "compute",
            self.listed(arrays, |list| unsafe { (self.functions.mlx_async_eval)(list) }),
        )
    }

    /// Computes arrays.
    pub(crate) fn eval(&self, arrays: &[&Array]) -> Result<()> {
        // SAFETY: the list is alive.
        check("compute", self.listed(arrays, |list| unsafe { (self.functions.mlx_eval)(list) }))
    }

    /// Makes a list for a call.
    fn listed(&self, arrays: &[&Array], call: impl FnOnce(Handle) -> c_int) -> c_int {
        let handles: Vec<Handle> = arrays.iter().map(|array| array.handle).collect();
        // SAFETY: all handles are alive, and as many as is said.
        let list =
            unsafe { (self.functions.mlx_vector_array_new_data)(handles.as_ptr(), handles.len()) };
        let code = call(list);
        // SAFETY: the list is this function's own.
        unsafe { (self.functions.mlx_vector_array_free)(list) };
        code
    }

    /// The numbers as bytes, row after row.
    pub(crate) fn read<T>(&self, x: &Array, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let x = self.contiguous(x)?;
        x.wait()?;
        // SAFETY: the numbers were computed, lie one after another, and live as long as the array.
        let bytes = unsafe {
            let n = (self.functions.mlx_array_nbytes)(x.handle);
            let data = (self.functions.mlx_array_data_uint8)(x.handle);
            if n == 0 { &[][..] } else { std::slice::from_raw_parts(data, n) }
        };
        Ok(read(bytes))
    }

    /// Its numbers, which are `f32`.
    pub(crate) fn read_floats(&self, x: &Array, out: &mut Vec<f32>) -> Result<()> {
        debug_assert_eq!(x.dtype(), Dtype::F32);
        self.read(x, |bytes| {
            out.clear();
            out.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)));
        })
    }

    pub(crate) fn reshape(&self, x: &Array, shape: &[usize]) -> Result<Array> {
        let shape = ints(shape)?;
        // SAFETY: the handle is alive, the lengths are as many as is said.
        self.made("reshape", |out| unsafe {
            let stream = self.stream.handle;
            (self.functions.mlx_reshape)(out, x.handle, shape.as_ptr(), shape.len(), stream)
        })
    }

    pub(crate) fn broadcast(&self, x: &Array, shape: &[usize]) -> Result<Array> {
        let shape = ints(shape)?;
        // SAFETY: the handle is alive, the lengths are as many as is said.
        self.made("broadcast", |out| unsafe {
            let stream = self.stream.handle;
            (self.functions.mlx_broadcast_to)(out, x.handle, shape.as_ptr(), shape.len(), stream)
        })
    }

    pub(crate) fn transpose(&self, x: &Array, axes: &[usize]) -> Result<Array> {
        let axes = ints(axes)?;
        // SAFETY: the handle is alive, the axes are as many as is said.
        self.made("transpose", |out| unsafe {
            let stream = self.stream.handle;
            (self.functions.mlx_transpose_axes)(out, x.handle, axes.as_ptr(), axes.len(), stream)
        })
    }

    /// A range along one axis.
    pub(crate) fn slice(
        &self,
        x: &Array,
        axis: usize,
        range: std::ops::Range<usize>,
    ) -> Result<Array> {
        let mut end = x.shape();
        let mut start = vec![0; end.len()];
        (start[axis], end[axis]) = (range.start, range.end);
        let (start, end, steps) = (ints(&start)?, ints(&end)?, vec![1; start.len()]);
        let n = steps.len();
        // SAFETY: the handle is alive, the places are as many as is said.
        self.made("slice", |out| unsafe {
            let (start, end, steps) = (start.as_ptr(), end.as_ptr(), steps.as_ptr());
            (self.functions.mlx_slice)(
                out,
                x.handle,
                start,
                n,
                end,
                n,
                steps,
                n,
                self.stream.handle,
            )
        })
    }

    /// The same array with other numbers in a range along one axis.
    pub(crate) fn with_slice(
        &self,
        x: &Array,
        axis: usize,
        start: usize,
        update: &Array,
    ) -> Result<Array> {
        let mut end = x.shape();
        let mut from = vec![0; end.len()];
        (from[axis], end[axis]) = (start, start + update.shape()[axis]);
        let (from, end, steps) = (ints(&from)?, ints(&end)?, vec![1; from.len()]);
        let n = steps.len();
        // SAFETY: all handles are alive, the places are as many as is said.
        self.made("write a slice", |out| unsafe {
            let (from, end, steps) = (from.as_ptr(), end.as_ptr(), steps.as_ptr());
            let (x, update, stream) = (x.handle, update.handle, self.stream.handle);
            (self.functions.mlx_slice_update)(out, x, update, from, n, end, n, steps, n, stream)
        })
    }

    /// One after another along an axis.
    pub(crate) fn concat(&self, arrays: &[&Array], axis: usize) -> Result<Array> {
        let (axis, stream) = (axis as c_int, self.stream.handle);
        self.made("concatenate", |out| {
            // SAFETY: the list is alive.
            self.listed(arrays, |list| unsafe {
                (self.functions.mlx_concatenate_axis)(out, list, axis, stream)
            })
        })
    }
}
