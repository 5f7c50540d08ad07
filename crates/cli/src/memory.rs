//! What happens when memory runs out where nothing could be done about it: a sentence and the exit
//! code of that, instead of an abort.
//!
//! Whatever takes much memory asks first, and says what it needs. What is left is small or inside a
//! library, and ends the process; here, so that it ends as `--help` says.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, which remembers what it refused this thread of late.
pub struct Watched;

/// Pieces of memory after which a refusal is forgotten: whoever met it went on. Between a refusal and
/// the end that it leads to, the standard library takes some itself, for what it says and for a
/// backtrace.
const FORGET_AFTER: u32 = 1 << 22;

thread_local! {
    /// Bytes that this thread asked for and did not get, 0 if there are none, and the pieces that it
    /// got since.
    static REFUSED: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

fn note(size: usize, pointer: *mut u8) -> *mut u8 {
    // A thread that ends may have no such note any more.
    let _ = REFUSED.try_with(|noted| match (pointer.is_null(), noted.get()) {
        (true, (0, _)) => noted.set((size.max(1), 0)),
        // What was refused first is what the process ends for.
        (true, _) | (false, (0, _)) => {}
        (false, (_, FORGET_AFTER)) => noted.set((0, 0)),
        (false, (refused, since)) => noted.set((refused, since + 1)),
    });
    pointer
}

// SAFETY: everything is passed on to the system's allocator; a note of a number is taken, which
// allocates nothing. A refusal that a test asks for is a null pointer, as the system's is.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if asked_to_fail::now(layout.size()) {
            return note(layout.size(), std::ptr::null_mut());
        }
        // SAFETY: the caller's promises are passed on.
        note(layout.size(), unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if asked_to_fail::now(layout.size()) {
            return note(layout.size(), std::ptr::null_mut());
        }
        // SAFETY: as above.
        note(layout.size(), unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > layout.size() && asked_to_fail::now(size) {
            return note(size, std::ptr::null_mut());
        }
        // SAFETY: as above.
        note(size, unsafe { System.realloc(pointer, layout, size) })
    }
}

/// In builds for tests, `LAPIDARY_FAIL_ALLOCATION=N` refuses the Nth large thing that is asked for.
mod asked_to_fail {
    /// What counts as large.
    #[cfg(debug_assertions)]
    const LARGE: usize = 64 << 10;

    #[cfg(debug_assertions)]
    pub static LEFT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

    #[cfg(debug_assertions)]
    pub fn now(size: usize) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        if size < LARGE || LEFT.load(Relaxed) == 0 {
            return false;
        }
        LEFT.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) == Ok(1)
    }

    #[cfg(not(debug_assertions))]
    pub fn now(_size: usize) -> bool {
        false
    }
}

/// From here on, memory that is not to be had ends the process with a sentence and exit code 4.
pub fn explain() {
    #[cfg(debug_assertions)]
    if let Some(n) = std::env::var("LAPIDARY_FAIL_ALLOCATION").ok().and_then(|n| n.parse().ok()) {
        asked_to_fail::LEFT.store(n, std::sync::atomic::Ordering::Relaxed);
    }
    #[cfg(target_os = "linux")]
    listen();
}

#[cfg(target_os = "linux")]
fn listen() {
    // SAFETY: the structure is all zeros and then filled in as `sigaction` wants it; the handler
    // only calls functions that a handler may call.
    #[allow(unsafe_code)]
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        // Without a handler the signal ends the process as ever.
        let _ = libc::sigaction(libc::SIGABRT, &action, std::ptr::null_mut());
    }
}

/// Runs on the thread that aborts. Whatever else aborts goes on to do so when this returns.
#[cfg(target_os = "linux")]
extern "C" fn handler(_signal: libc::c_int) {
    let (refused, _) = REFUSED.try_with(Cell::get).unwrap_or((0, 0));
    if refused == 0 {
        return;
    }
    const SAID: &[u8] = b"error: out of memory: the system has no ";
    const REMEDIES: &[u8] = b" bytes more; try a shorter context (--ctx), fewer --threads, or a \
        model or recipe (--quant) that takes less\n";
    let mut digits = [b'0'; 20];
    let mut rest = refused;
    let mut first = digits.len();
    while rest > 0 && first > 0 {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // SAFETY: `write` and `_exit` may be called in a handler; the bytes outlive the calls.
    #[allow(unsafe_code)]
    unsafe {
        for part in [SAID, &digits[first..], REMEDIES] {
            let _ = libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len());
        }
        libc::_exit(4);
    }
}
