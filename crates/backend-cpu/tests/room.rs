//! A run takes what was planned, and not a buffer more: the allocator is watched.
//!
//! The only test of its binary, since the allocator counts what all threads take.
#![allow(unsafe_code)]

#[path = "towers/sample.rs"]
mod sample;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

use lapidary_backend::{Backend, Call, CallLimits, DeviceId, Feed, LoadOptions, Results, Wanted};
use lapidary_backend_cpu::CpuBackend;
use lapidary_program::input;
use sample::{HIDDEN, MELS, PATCH, POOL, program};

/// Bytes that are taken now, and the most that were.
static TAKEN: AtomicI64 = AtomicI64::new(0);
static MOST: AtomicI64 = AtomicI64::new(0);

struct Watched;

// SAFETY: everything is passed on to the system's allocator; only sizes are counted.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = TAKEN.fetch_add(layout.size() as i64, Ordering::Relaxed) + layout.size() as i64;
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        TAKEN.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// What a call may take besides its results: lists of its feeds, positions and tickets.
const LITTLE: i64 = 4 << 10;

/// The most bytes that were taken at once while `f` ran, above those that were before.
fn most_taken(f: impl FnOnce()) -> i64 {
    let before = TAKEN.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    f();
    MOST.load(Ordering::Relaxed) - before
}

#[test]
fn a_run_takes_what_was_planned() {
    let (n, program) = (64usize, program());
    let patches = vec![0.5; n * PATCH as usize];
    let places = vec![3; n];
    let see = [
        Feed::f32(input::PATCHES, &patches),
        Feed::i32(input::PATCH_X, &places),
        Feed::i32(input::PATCH_Y, &places),
    ];
    let frames = vec![0.5; n * MELS as usize];
    let hear = [Feed::f32("frames", &frames)];
    let wants = [Wanted::whole("y")];
    let look = Call { method: "look", feeds: &see, wants: &wants, ..Call::default() };
    let listen = Call { method: "listen", feeds: &hear, wants: &wants, ..Call::default() };
    let device = CpuBackend.open(&DeviceId::new("cpu", 0)).unwrap();
    let options = LoadOptions {
        max_context: 100,
        n_sequences: 2,
        limits: CallLimits { chunk: 16, tokens: 17, block: 1 },
        pages: vec![1],
        threads: Some(1),
        max_patches: n as u32,
        max_frames: n as u32,
        ..LoadOptions::default()
    };
    let plan = device.plan(&program, &options).unwrap();
    assert!(plan.total() < 1 << 18, "large arrays do not come from this allocator");
    let mut engine = None;
    let load = |options: &LoadOptions| device.load(&program, options, &mut |_, _| {}).unwrap();
    let loaded = most_taken(|| engine = Some(load(&options)));
    let planned = plan.total() as i64;
    // Steps, names and threads take some besides.
    assert!((planned..planned + 64 * 1024).contains(&loaded), "{loaded} of {planned}");
    let mut engine = engine.unwrap();
    let mut results = Results::default();
    let soft = (n as i64 / i64::from(POOL)) * HIDDEN as i64 * 4;
    let heard = n as i64 / 2 * HIDDEN as i64 * 4;
    let seen = most_taken(|| engine.run(&look, &mut results).unwrap());
    assert!(seen < soft + LITTLE, "an image took {seen} besides what was planned");
    let audio = most_taken(|| engine.run(&listen, &mut results).unwrap());
    assert!(audio < heard + LITTLE, "audio took {audio} besides what was planned");
    let again = most_taken(|| engine.run(&look, &mut results).unwrap());
    assert!(again < LITTLE, "{again}");
    // What nobody wants is not even copied.
    let unwanted = Call { wants: &[], ..look };
    let mut nothing = Results::default();
    let skipped = most_taken(|| engine.run(&unwanted, &mut nothing).unwrap());
    assert!(skipped < LITTLE && nothing.outputs().is_empty(), "{skipped}");
    // Where no room was asked for, none is kept, and the first image makes it.
    drop(engine);
    let options = LoadOptions { max_patches: 0, max_frames: 0, ..options };
    let small = device.plan(&program, &options).unwrap();
    assert!(small.activations < plan.activations / 2);
    let mut engine = load(&options);
    let grown = most_taken(|| engine.run(&look, &mut results).unwrap());
    assert!(grown > (plan.activations - small.activations) as i64 / 2, "{grown}");
}
