//! Whether a machine has tiles of bytes.
//!
//! A machine has it if four things hold. The processor says so (`cpuid`). The system saves the
//! registers when it switches threads (`xgetbv`). The kernel gives this process leave to use them
//! (`arch_prctl`): the first use by a thread makes its saved state 8 KiB larger, so it must be asked.
//! And a product comes out right: a virtual machine may announce the instructions and trap on them.
//!
//! That trap is survived without a second process. While the one product is tried, a handler of
//! `SIGILL` continues after it, if the instruction that trapped is one of the product's; any other
//! is left to the handler that was there before.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{LINE, PRODUCT, Shapes, TILE_ROWS};
use crate::simd::Avx512;

/// Looks, asks and tries.
pub(super) fn has_tiles() -> bool {
    announced() && permitted() && works()
}

/// Whether the processor and the system say that tiles of bytes are there.
fn announced() -> bool {
    if Avx512::<true>::detect().is_none() || __cpuid(0).eax < 7 {
        return false;
    }
    let xcr0 = || {
        let (low, high): (u32, u32);
        // SAFETY: asked only if the system uses `xsave`, and reads nothing but a register.
        unsafe {
            asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nostack, nomem));
        }
        u64::from(high) << 32 | u64::from(low)
    };
    says_tiles(__cpuid(1).ecx, __cpuid_count(7, 0).edx, xcr0)
}

/// The same of what leaves 1 and 7 of `cpuid` say, and of what the system saves.
fn says_tiles(leaf_1_ecx: u32, leaf_7_edx: u32, xcr0: impl Fn() -> u64) -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;
    const TILE_CONFIG_AND_DATA: u64 = 1 << 17 | 1 << 18;
    leaf_1_ecx & OSXSAVE != 0
        && leaf_7_edx & (AMX_TILE | AMX_INT8) == AMX_TILE | AMX_INT8
        && xcr0() & TILE_CONFIG_AND_DATA == TILE_CONFIG_AND_DATA
}

/// Asks the kernel for leave, for all threads of the process.
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 }
}

/// Whether a product of tiles comes out right. Only if the kernel has given leave.
fn works() -> bool {
    const DEPTH: usize = 32;
    #[repr(align(64))]
    struct Room {
        x: [i8; TILE_ROWS * DEPTH],
        codes: [i8; DEPTH * LINE / 4],
        product: [i32; PRODUCT],
    }
    let mut room = Room {
        x: std::array::from_fn(|i| (i * 53 + i / 7) as i8),
        codes: std::array::from_fn(|i| (i * 89 + i / 5) as i8),
        product: [0; PRODUCT],
    };
    let (x, codes) = (room.x.as_ptr(), room.codes.as_ptr());
    // SAFETY: tiles are loaded and stored within `room`. Whichever instruction traps, nothing but
    // tiles and `product` has changed.
    let ran = unsafe {
        survives(|from, to| {
            let shapes = Shapes::new(DEPTH);
            let mut ran = 0u32;
            asm!(
                "lea {t}, [rip + 2f]",
                "mov [{from}], {t}",
                "lea {t}, [rip + 3f]",
                "mov [{to}], {t}",
                "2:",
                "ldtilecfg [{shapes}]",
                "tileloadd tmm0, [{x} + {depth}]",
                "tileloadd tmm1, [{codes} + {line}]",
                "tilezero tmm4",
                "tdpbssd tmm4, tmm0, tmm1",
                "tilestored [{product} + {line}], tmm4",
                "tilerelease",
                "mov {ran:e}, 1",
                "3:",
                t = out(reg) _,
                from = in(reg) from.as_ptr(),
                to = in(reg) to.as_ptr(),
                shapes = in(reg) &raw const shapes,
                x = in(reg) x,
                depth = in(reg) DEPTH,
                codes = in(reg) codes,
                line = in(reg) LINE,
                product = in(reg) room.product.as_mut_ptr(),
                ran = inout(reg) ran,
            );
            ran == 1
        })
    };
    let right = |(at, got): (usize, &i32)| {
        let (token, output) = (at / 16, at % 16);
        let byte = |k: usize| room.codes[k / 4 * LINE + output * 4 + k % 4];
        let products =
            (0..DEPTH).map(|k| i32::from(room.x[token * DEPTH + k]) * i32::from(byte(k)));
        products.sum::<i32>() == *got
    };
    ran && room.product.iter().enumerate().all(right)
}

/// The instructions that may trap, and where to go on; nothing if both are 0.
static FROM: AtomicUsize = AtomicUsize::new(0);
static TO: AtomicUsize = AtomicUsize::new(0);
/// What was done about illegal instructions before, for those that are not ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Runs code that may trap. It writes the address of its first instruction that may, and that of
/// where to go on if one does, to the places it is given. Whether it could be tried and what it said.
///
/// # Safety
/// The code may go on at that address from each of its instructions. Once per process: only
/// [`Tiles::detect`] comes here, in its lock.
unsafe fn survives(code: impl FnOnce(&AtomicUsize, &AtomicUsize) -> bool) -> bool {
    // SAFETY: these are plain structures of numbers, for which zeros are a value; the handler is of
    // the type that `SA_SIGINFO` asks for, and calls nothing but `sigaction`, which handlers may.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGILL, std::ptr::null(), &mut before) != 0 {
            return false;
        }
        BEFORE.get_or_init(|| before);
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = go_on as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut ours.sa_mask);
        // A blocked signal that is a trap ends the process.
        let (mut traps, mut mask): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&mut traps);
        libc::sigaddset(&mut traps, libc::SIGILL);
        if libc::pthread_sigmask(libc::SIG_UNBLOCK, &traps, &mut mask) != 0 {
            return false;
        }
        let installed = libc::sigaction(libc::SIGILL, &ours, std::ptr::null_mut()) == 0;
        let said = installed && code(&FROM, &TO);
        if installed {
            libc::sigaction(libc::SIGILL, &before, std::ptr::null_mut());
        }
        FROM.store(0, Ordering::Relaxed);
        TO.store(0, Ordering::Relaxed);
        libc::pthread_sigmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
        said
    }
}

/// The handler: goes on after our code, or leaves an instruction that is not ours to whoever was
/// there before, since it is tried again when this returns.
extern "C" fn go_on(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let (from, to) = (FROM.load(Ordering::Relaxed), TO.load(Ordering::Relaxed));
    // SAFETY: the system gives a handler of `SA_SIGINFO` the context of the trap, and `BEFORE` was
    // written before the handler was installed.
    unsafe {
        let at =
            &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize];
        if (from..to).contains(&(*at as usize)) {
            *at = to as i64;
        } else if let Some(before) = BEFORE.get() {
            libc::sigaction(libc::SIGILL, before, std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests;
