//! A run takes what was planned, and not a buffer more: the allocator is watched.
//!
//! The only test of its binary, since the allocator counts what all threads take.
#![allow(unsafe_code)]

#[path = "towers/sample.rs"]
mod sample;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

use lapidary_backend::{Backend, Feed, LoadOptions, Outputs};
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

/// What a call may take besides its results: lists of its feeds.
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
    let see =
        [Feed::f32(input::PATCHES, &patches), Feed::i32("x", &places), Feed::i32("y", &places)];
    let frames = vec![0.5; n * MELS as usize];
    let hear = [Feed::f32("frames", &frames)];
    let device = CpuBackend.probe().unwrap().remove(0);
    let options = LoadOptions {
        max_context: 100,
        max_chunk: 16,
        n_slots: 2,
        threads: Some(1),
        max_patches: n as u32,
        max_frames: n as u32,
        ..LoadOptions::default()
    };
    let plan = CpuBackend.plan(&program, &options).unwrap();
    assert!(plan.total() < 1 << 18, "large arrays do not come from this allocator");
    let mut engine = None;
    let load = |options: &LoadOptions| {
        CpuBackend.load(&program, &device, options, &mut |_, _| {}).unwrap()
    };
    let loaded = most_taken(|| engine = Some(load(&options)));
    let planned = plan.total() as i64;
    // Steps, names and threads take some besides.
    assert!((planned..planned + 64 * 1024).contains(&loaded), "{loaded} of {planned}");
    let mut engine = engine.unwrap();
    let mut outputs = Outputs::default();
    let soft = (n as i64 / i64::from(POOL)) * HIDDEN as i64 * 4;
    let heard = n as i64 / 2 * HIDDEN as i64 * 4;
    let seen = most_taken(|| engine.run("look", &see, &mut outputs).unwrap());
    assert!(seen < soft + LITTLE, "a picture took {seen} besides what was planned");
    let sound = most_taken(|| engine.run("listen", &hear, &mut outputs).unwrap());
    assert!(sound < heard + LITTLE, "a sound took {sound} besides what was planned");
    let again = most_taken(|| engine.run("look", &see, &mut outputs).unwrap());
    assert!(again < LITTLE, "{again}");
    // Where no room was asked for, none is kept, and the first picture makes it.
    drop(engine);
    let options = LoadOptions { max_patches: 0, max_frames: 0, ..options };
    let small = CpuBackend.plan(&program, &options).unwrap();
    assert!(small.activations < plan.activations / 2);
    let mut engine = load(&options);
    let grown = most_taken(|| engine.run("look", &see, &mut outputs).unwrap());
    assert!(grown > (plan.activations - small.activations) as i64 / 2, "{grown}");
}
