//! The runner over real engines with images and audio clips in the prompt: chunks, turns and slots
//! change nothing, and one image is never taken for another.

mod backends;

use std::path::Path;
use std::sync::Arc;

use lapidary_backend::{Backend, LoadOptions, Precision};
use lapidary_conformance::{limits, load};
use lapidary_gemma::OpenOptions;
use lapidary_program::{ImageSpec, Program, input, method};
use lapidary_runner::{CancelToken, Error, Event, Finish, Request, Rows, Runner, SamplingParams};
use lapidary_text::{Prompt, SoftInput, SoftRun};

/// With image blocks in both directions on all layers, on some, and on none.
const MODELS: &[&str] = &["gemma3_mm", "gemma4_mm_large", "gemma4_mm_e", "gemma4_unified"];

fn open(family: &str) -> Arc<Program> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny").join(family);
    Arc::new(lapidary_gemma::open(&folder, &OpenOptions::default()).unwrap())
}

fn runner(
    backend: &dyn Backend,
    program: &Arc<Program>,
    max_chunk: u32,
    n_sequences: u32,
) -> Runner {
    let options = LoadOptions {
        max_context: 128,
        n_sequences,
        limits: limits(max_chunk as usize, n_sequences),
        threads: Some(2),
        precision: Precision::Exact,
        ..LoadOptions::default()
    };
    let engine = load(backend, program, &options).unwrap();
    Runner::with_parts(engine, None, None).unwrap()
}

/// Numbers between −1 and 1, other ones for each seed.
fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mix = |i: u32| (i ^ seed.wrapping_mul(0x9E37_79B9)).wrapping_mul(2_654_435_761);
    (0..n as u32).map(|i| (mix(mix(i)) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// An image of `width × height` soft tokens.
fn image(spec: &ImageSpec, (width, height): (u32, u32), seed: u32) -> SoftInput {
    let (mut x, mut y) = (vec![], vec![]);
    for cell in 0..width * height {
        for patch in 0..spec.patches_per_soft() {
            x.push((cell % width * spec.pool + patch % spec.pool) as i32);
            y.push((cell / width * spec.pool + patch / spec.pool) as i32);
        }
    }
    let across = (width * spec.pool) as i32;
    let index = x.iter().zip(&y).map(|(x, y)| y * across + x).collect();
    SoftInput {
        method: method::VISION,
        rows: (input::PATCHES, numbers(x.len() * spec.channels() as usize, seed)),
        indices: vec![(input::PATCH_INDEX, index), (input::PATCH_X, x), (input::PATCH_Y, y)],
        n_soft: (width * height) as usize,
        block: true,
        hash: [seed as u8; 32],
    }
}

/// Text, an image of four soft tokens, text, an image of four, text.
fn prompt(program: &Program, first: u32, second: u32) -> Prompt {
    let spec = program.metadata().media.image.as_ref().unwrap();
    let mut tokens: Vec<u32> = vec![2, 11, 12];
    let mut soft = Vec::new();
    for (seed, after) in [(first, [13, 14]), (second, [15, 16])] {
        let input = Arc::new(image(spec, (2, 2), seed));
        soft.push(SoftRun { start: tokens.len(), input: input.clone() });
        tokens.extend(std::iter::repeat_n(0, input.n_soft));
        tokens.extend(after);
    }
    Prompt { tokens, soft }
}

fn logits(runner: &mut Runner, prompt: &Prompt, chunk: Option<usize>) -> Vec<f32> {
    let mut all = Vec::new();
    let Prompt { tokens, soft } = prompt;
    runner.logits_with(tokens, soft, Rows::All, chunk, &mut |_, l| all.extend(l)).unwrap();
    all
}

fn answer(runner: &mut Runner, prompt: Prompt, n: usize) -> (Vec<u32>, Finish) {
    let mut answer = Vec::new();
    let request =
        Request { max_new: n, ignore_eos: true, ..Request::new(prompt, SamplingParams::greedy()) };
    let finish = runner.generate(request, &CancelToken::new(), |event| {
        if let Event::Token { id, .. } = event {
            answer.push(id);
        }
    });
    (answer, finish.unwrap())
}

fn each(mut check: impl FnMut(&str, &dyn Backend, &Arc<Program>)) {
    for family in MODELS {
        let program = open(family);
        for backend in backends::each() {
            check(&format!("{family} on {}", backend.name()), backend, &program);
        }
    }
}

#[test]
fn chunks_change_nothing_and_never_split_a_block() {
    each(|what, backend, program| {
        let prompt = prompt(program, 1, 2);
        let whole = logits(&mut runner(backend, program, 64, 1), &prompt, None);
        let mut runner = runner(backend, program, 5, 1);
        for chunk in [4, 5] {
            let parts = logits(&mut runner, &prompt, Some(chunk));
            let worst = whole.iter().zip(&parts).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= 2e-5, "{what}, chunks of {chunk}: {worst}");
        }
    });
}

#[test]
fn every_image_counts() {
    each(|what, backend, program| {
        let mut runner = runner(backend, program, 64, 1);
        let vocab = program.metadata().vocab_size as usize;
        let last = |l: Vec<f32>| l[l.len() - vocab..].to_vec();
        let seen = last(logits(&mut runner, &prompt(program, 1, 2), None));
        for other in [prompt(program, 3, 2), prompt(program, 1, 3)] {
            let changed = last(logits(&mut runner, &other, None));
            let most = seen.iter().zip(&changed).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(most > 1e-3, "{what}: another image changes nothing");
        }
    });
}

#[test]
fn turns_reuse_the_same_image_and_no_other() {
    each(|what, backend, program| {
        let fresh = |prompt: Prompt| answer(&mut runner(backend, program, 64, 1), prompt, 6).0;
        let mut runner = runner(backend, program, 64, 1);
        let first = prompt(program, 1, 2);
        let (said, _) = answer(&mut runner, first.clone(), 6);
        assert_eq!(said, fresh(first.clone()), "{what}");

        let mut longer = first.clone();
        longer.tokens.extend(&said);
        longer.tokens.push(17);
        let (next, finish) = answer(&mut runner, longer.clone(), 6);
        assert_eq!(next, fresh(longer.clone()), "{what}: the next turn");
        assert!(finish.stats.reused_tokens >= first.tokens.len(), "{what}");
        assert_eq!(finish.stats.encode_s, 0.0, "{what}: images were encoded again");

        let mut swapped = longer;
        swapped.soft = prompt(program, 2, 1).soft;
        let (other, finish) = answer(&mut runner, swapped.clone(), 6);
        assert_eq!(other, fresh(swapped.clone()), "{what}: other images");
        assert!(finish.stats.reused_tokens <= swapped.soft[0].start, "{what}");
    });
}

#[test]
fn slots_do_not_mix_images() {
    each(|what, backend, program| {
        let prompts = [prompt(program, 1, 2), prompt(program, 3, 4), prompt(program, 5, 1)];
        let alone: Vec<Vec<u32>> = prompts
            .iter()
            .map(|p| answer(&mut runner(backend, program, 16, 1), p.clone(), 5).0)
            .collect();
        let mut runner = runner(backend, program, 16, 3);
        let ids: Vec<_> = prompts
            .iter()
            .map(|p| {
                let params = SamplingParams::greedy();
                let request =
                    Request { max_new: 5, ignore_eos: true, ..Request::new(p.clone(), params) };
                runner.submit(request, &CancelToken::new()).unwrap()
            })
            .collect();
        let mut together = vec![Vec::new(); prompts.len()];
        let mut failed = None;
        while runner.step(&mut |id, event| match event {
            Event::Token { id: token, .. } => {
                together[ids.iter().position(|i| *i == id).unwrap()].push(token);
            }
            Event::Failed(e) => failed = Some(e.to_string()),
            _ => {}
        }) {}
        assert_eq!(failed, None, "{what}");
        assert_eq!(together, alone, "{what}");
    });
}

#[test]
fn what_cannot_be_shown_is_refused() {
    let blocks = open("gemma3_mm");
    let mut small = runner(backends::each()[0], &blocks, 3, 1);
    let request = Request::new(prompt(&blocks, 1, 2), SamplingParams::greedy());
    let refused = small.submit(request, &CancelToken::new()).unwrap_err();
    assert!(matches!(refused, Error::BlockLength { block: 4, chunk: 3 }), "{refused}");

    let text = open("gemma3_text");
    let mut runner = runner(backends::each()[0], &text, 64, 1);
    let shown = Prompt { tokens: vec![2; 20], soft: prompt(&blocks, 1, 2).soft };
    let request = Request::new(shown, SamplingParams::greedy());
    let refused = runner.submit(request, &CancelToken::new()).unwrap_err();
    assert_eq!(refused.to_string(), "this model takes text only, not image");

    let media = &open("gemma4_mm_large").metadata().media.clone();
    let audio =
        SoftInput { method: method::AUDIO, ..image(media.image.as_ref().unwrap(), (1, 1), 1) };
    let refused = lapidary_text::Medium::audio(media, audio).unwrap_err();
    assert_eq!(refused.to_string(), "this model takes text, image and video, not audio");
}
