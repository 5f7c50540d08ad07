//! What tells whether tiles are there.

use std::arch::asm;
use std::sync::atomic::Ordering;

use super::super::Tiles;
use super::{FROM, announced, says_tiles, survives};

#[test]
fn every_bit_is_needed() {
    let (osxsave, amx, saved) = (1 << 27, 3 << 24, 3u64 << 17);
    assert!(says_tiles(osxsave, amx, || saved));
    assert!(says_tiles(u32::MAX, u32::MAX, || u64::MAX));
    for missing in [24, 25] {
        assert!(!says_tiles(u32::MAX, !(1 << missing), || u64::MAX), "{missing}");
    }
    for missing in [17, 18] {
        assert!(!says_tiles(u32::MAX, u32::MAX, || !(1 << missing)), "{missing}");
    }
    // Without `xsave` there is nothing that could be asked.
    assert!(!says_tiles(!osxsave, u32::MAX, || unreachable!("`xgetbv` would trap")));
}

#[test]
fn a_trap_is_survived_and_handlers_are_as_before() {
    // Detection comes first, so that it does not meet this test's handler.
    let found = Tiles::detect().is_some();
    assert!(!found || announced());
    let handler = || {
        // SAFETY: reads what is done about the signal.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            assert_eq!(libc::sigaction(libc::SIGILL, std::ptr::null(), &mut now), 0);
            now.sa_sigaction
        }
    };
    let before = handler();
    for trap in [true, false, true] {
        // SAFETY: the code changes nothing but registers that it names, wherever it stops, and
        // detection is done.
        let ran = unsafe {
            survives(|from, to| {
                let mut ran = 0u32;
                asm!(
                    "lea {t}, [rip + 2f]",
                    "mov [{from}], {t}",
                    "lea {t}, [rip + 3f]",
                    "mov [{to}], {t}",
                    "test {trap:e}, {trap:e}",
                    "jz 4f",
                    "2:",
                    "ud2",
                    "4:",
                    "mov {ran:e}, 1",
                    "3:",
                    t = out(reg) _,
                    from = in(reg) from.as_ptr(),
                    to = in(reg) to.as_ptr(),
                    trap = in(reg) u32::from(trap),
                    ran = inout(reg) ran,
                );
                ran == 1
            })
        };
        assert_eq!(ran, !trap);
        assert_eq!(handler(), before);
        assert_eq!(FROM.load(Ordering::Relaxed), 0);
    }
}
