//! Methods that are not for text: which of them are loaded, what they take, and that their results
//! depend on nothing but their inputs.

mod sample;

use std::sync::Arc;

use lapidary_backend::{
    Backend, Call, CallLimits, Device, DeviceId, Engine, Error, Feed, LoadOptions, MemoryPlan,
    PageId, PageTable, Results, Span, Wanted,
};
use lapidary_backend_cpu::CpuBackend;
use lapidary_program::{Program, input};
use sample::{HEAD_DIM, HIDDEN, MELS, PATCH, program};

fn options() -> LoadOptions {
    LoadOptions {
        max_context: 100,
        n_sequences: 2,
        limits: CallLimits { chunk: 16, tokens: 17, block: 1 },
        pages: vec![2],
        threads: Some(2),
        ..LoadOptions::default()
    }
}

fn only(methods: &[&str]) -> LoadOptions {
    LoadOptions { methods: methods.iter().map(|m| m.to_string()).collect(), ..options() }
}

fn device() -> Box<dyn Device> {
    CpuBackend.open(&DeviceId::new("cpu", 0)).unwrap()
}

fn load(program: &Arc<Program>, options: &LoadOptions) -> Box<dyn Engine> {
    device().load(program, options, &mut |_, _| {}).unwrap()
}

fn plan(options: &LoadOptions) -> MemoryPlan {
    device().plan(&program(), options).unwrap()
}

/// All of the output of a method.
fn run(
    engine: &mut dyn Engine,
    method: &str,
    feeds: &[Feed<'_>],
    spans: &[Span<'_>],
) -> Result<Vec<f32>, Error> {
    let wants = [Wanted::whole("y")];
    let mut results = Results::default();
    let call = Call { method, feeds, spans, wants: &wants, ..Call::default() };
    engine.run(&call, &mut results)?;
    Ok(results.get("y").unwrap().data.clone())
}

fn numbers(n: u64) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37).sin() * 2.0).collect()
}

fn see(engine: &mut dyn Engine, n_patches: usize) -> Result<Vec<f32>, Error> {
    let patches = numbers(n_patches as u64 * PATCH);
    let columns: Vec<i32> = (0..n_patches as i32).map(|i| i % 20).collect();
    let rows: Vec<i32> = (0..n_patches as i32).map(|i| i / 20).collect();
    let feeds = [
        Feed::f32(input::PATCHES, &patches),
        Feed::i32(input::PATCH_X, &columns),
        Feed::i32(input::PATCH_Y, &rows),
    ];
    run(engine, "look", &feeds, &[])
}

fn hear(engine: &mut dyn Engine, n_frames: usize) -> Result<Vec<f32>, Error> {
    let frames = numbers(n_frames as u64 * MELS);
    run(engine, "listen", &[Feed::f32("frames", &frames)], &[])
}

fn say(engine: &mut dyn Engine) -> Result<Vec<f32>, Error> {
    let tables = [PageTable { first: 0, pages: &[PageId(1)] }];
    let spans = [Span { start: 0, len: 2, tables: &tables }];
    run(engine, "say", &[Feed::i32(input::TOKENS, &[5, 63])], &spans)
}

#[test]
fn a_method_that_is_not_wanted_takes_nothing() {
    let all = plan(&options());
    let text = plan(&only(&["say"]));
    let image = plan(&only(&["look"]));
    assert_eq!(text.kv, all.kv);
    assert!(text.weights < all.weights);
    assert_eq!((image.kv, image.activations), (0, 0));
    // Two matrices in panels of 16 rows, two vectors, and two bounds.
    let want = 4 * (48 * (PATCH + HIDDEN) + 2 * HIDDEN + 2);
    assert_eq!(image.weights, want);
}

#[test]
fn a_method_that_was_not_loaded_can_not_be_run() {
    let program = program();
    let mut engine = load(&program, &only(&["look", "listen"]));
    assert!(see(&mut *engine, 8).is_ok());
    assert!(hear(&mut *engine, 8).is_ok());
    let said = say(&mut *engine).unwrap_err();
    assert!(matches!(&said, Error::Feed { method, .. } if method == "say"), "{said}");
    assert!(said.to_string().contains("loaded"), "{said}");
    let mut engine = load(&program, &only(&["say"]));
    assert!(say(&mut *engine).is_ok());
    assert!(matches!(see(&mut *engine, 8), Err(Error::Feed { .. })));
}

#[test]
fn results_do_not_depend_on_what_else_is_loaded() {
    let program = program();
    let mut all = load(&program, &options());
    let mut one = load(&program, &only(&["look"]));
    assert_eq!(see(&mut *all, 60).unwrap(), see(&mut *one, 60).unwrap());
}

/// Patches of whole tiles and blocks, and of parts of them.
#[test]
fn m8_threads_change_no_bit() {
    let program = program();
    for n in [4, 20, 44, 52, 300, 1028] {
        let run = |threads| {
            let mut engine = load(&program, &LoadOptions { threads: Some(threads), ..options() });
            (see(&mut *engine, n).unwrap(), hear(&mut *engine, n).unwrap())
        };
        let truth = run(1);
        assert!(truth.0.iter().chain(&truth.1).all(|x| x.is_finite()));
        for threads in [2, 3, 5, 8] {
            assert!(run(threads) == truth, "{n} rows, {threads} threads");
        }
    }
}

#[test]
fn room_for_images_is_kept_only_when_it_is_asked_for() {
    let none = plan(&only(&["look"]));
    assert_eq!(none.activations, 0);
    let n = 100;
    let some = plan(&LoadOptions { max_patches: n, ..only(&["look"]) });
    assert_eq!((some.weights, some.kv), (none.weights, 0));
    let (n, hidden, head_dim) = (u64::from(n), HIDDEN, u64::from(HEAD_DIM));
    // Patches, normalised patches (which become queries), keys, and angles; the pooled rows find
    // room in one of them.
    let values = n * (3 * hidden + head_dim);
    // Keys and values of two heads as panels of 16, values of 20 channels padded to 32.
    let panels = 2 * n.next_multiple_of(16) * (head_dim + 32);
    // For each of two threads: 48 queries with their scores, sums, weights and largest.
    let tiles = 2 * 48 * (head_dim + 256 + 32 + 16 + 1);
    assert_eq!(some.activations, 4 * (values + panels + tiles));
}

#[test]
fn a_larger_image_than_planned_is_seen_all_the_same() {
    let program = program();
    let with = |max_patches, max_frames| {
        load(&program, &LoadOptions { max_patches, max_frames, ..options() })
    };
    let (mut planned, mut unplanned) = (with(600, 600), with(0, 0));
    for n in [40, 600, 8] {
        assert_eq!(see(&mut *planned, n).unwrap(), see(&mut *unplanned, n).unwrap());
        assert_eq!(hear(&mut *planned, n).unwrap(), hear(&mut *unplanned, n).unwrap());
    }
    assert_eq!(say(&mut *planned).unwrap(), say(&mut *unplanned).unwrap());
}
