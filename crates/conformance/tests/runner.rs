//! Conversations on real engines: what the runner promises must hold on every backend.

mod backends;

use std::path::Path;
use std::sync::Arc;

use lapidary_backend::{Backend, LoadOptions, Precision};
use lapidary_conformance::{limits, load};
use lapidary_gemma::OpenOptions;
use lapidary_program::{FileBytes, Program, lap};
use lapidary_runner::{
    CancelToken, Drafter, Drafting, Event, Lookup, Request, Rows, Runner, SamplingParams,
};

const FAMILIES: &[&str] = &[
    "gemma3_text",
    "gemma3_mm",
    "gemma4_text_plain",
    "gemma4_text_dense",
    "gemma4_text_e",
    "gemma4_text_moe",
];

fn program(family: &str) -> Arc<Program> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny").join(family);
    Arc::new(lapidary_gemma::open(&folder, &OpenOptions::default()).unwrap())
}

fn runner(backend: &dyn Backend, program: &Arc<Program>, chunk: u32, n_sequences: u32) -> Runner {
    let options = LoadOptions {
        max_context: 160,
        n_sequences,
        limits: limits(chunk as usize, n_sequences),
        threads: None,
        // Backends are compared with each other here.
        precision: Precision::Exact,
        ..LoadOptions::default()
    };
    let engine = load(backend, program, &options).unwrap();
    Runner::new(engine).unwrap()
}

/// A prompt of `n` ordinary tokens.
fn prompt(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| 10 + (i * 37 + seed * 101 + i * i % 13) % 200).collect()
}

fn sampled(tokens: Vec<u32>, seed: u64, max_new: usize) -> Request {
    let params = SamplingParams {
        temperature: 0.9,
        top_k: 40,
        top_p: 0.95,
        seed: Some(seed),
        ..SamplingParams::greedy()
    };
    Request { max_new, ignore_eos: true, ..Request::new(tokens, params) }
}

fn generate(runner: &mut Runner, request: Request) -> Vec<u32> {
    let mut ids = Vec::new();
    let finish = runner.generate(request, &CancelToken::new(), |event| {
        if let Event::Token { id, .. } = event {
            ids.push(id);
        }
    });
    assert_eq!(finish.unwrap().stats.new_tokens, ids.len());
    ids
}

fn all_logits(runner: &mut Runner, tokens: &[u32]) -> Vec<f32> {
    let mut logits = Vec::new();
    runner.logits(tokens, Rows::All, None, &mut |_, rows| logits.extend_from_slice(rows)).unwrap();
    logits
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// How far two ways to compute the same may be apart. A GPU has other kernels for few tokens than
/// for many, and they sum in another order.
fn tolerance(backend: &dyn Backend) -> f32 {
    if backends::is_gpu(backend) { 1e-4 } else { 1e-5 }
}

#[test]
fn any_chunking_gives_the_logits_of_one_shot_prefill() {
    for family in FAMILIES {
        let program = program(family);
        let tokens = prompt(100, 1);
        for backend in backends::each() {
            let want = all_logits(&mut runner(backend, &program, 128, 1), &tokens);
            let most = tolerance(backend);
            for chunk in [1, 2, 3, 7, 16, 33, 99] {
                let got = all_logits(&mut runner(backend, &program, chunk, 1), &tokens);
                let worst = largest_difference(&got, &want);
                assert!(worst <= most, "{family} on {}, chunk {chunk}: {worst}", backend.name());
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_tokens_on_every_backend() {
    for family in FAMILIES {
        let program = program(family);
        let answers: Vec<Vec<Vec<u32>>> = backends::each()
            .into_iter()
            .map(|backend| {
                let mut runner = runner(backend, &program, 32, 1);
                (0..5).map(|seed| generate(&mut runner, sampled(prompt(30, 2), seed, 24))).collect()
            })
            .collect();
        assert!(answers.iter().all(|a| *a == answers[0]), "{family}: {answers:?}");
        assert_ne!(answers[0][0], answers[0][1], "{family}: the seed matters");
    }
}

/// Targets with their drafters.
const DRAFTED: [(&str, &str); 2] =
    [("gemma4_text_dense", "gemma4_assistant"), ("gemma4_text_e", "gemma4_assistant_e")];

/// Says what it was told follows, but for every so-manieth token.
#[derive(Debug)]
struct Knowing(Vec<Vec<u32>>, usize);

impl Drafter for Knowing {
    fn guess(&self, tokens: &[u32], n: usize, into: &mut Vec<u32>) {
        let known = self.0.iter().find(|text| text.starts_with(tokens));
        let after = known.map_or(&[][..], |text| &text[tokens.len()..]);
        let wrong = |at: usize, id: u32| if (at + 1).is_multiple_of(self.1) { id ^ 1 } else { id };
        into.extend(after.iter().take(n).enumerate().map(|(i, id)| wrong(tokens.len() + i, *id)));
    }
}

/// Answers to prompts of all lengths, greedy and drawn, that run together.
fn together(runner: &mut Runner, requests: &[Request]) -> Vec<Vec<u32>> {
    let cancel = CancelToken::new();
    let ids: Vec<_> = requests.iter().map(|r| runner.submit(r.clone(), &cancel).unwrap()).collect();
    let mut answers = vec![Vec::new(); ids.len()];
    while runner.n_generations() > 0 {
        runner.step(&mut |id, event| match event {
            Event::Token { id: token, .. } => {
                answers[ids.iter().position(|i| *i == id).unwrap()].push(token);
            }
            Event::Failed(e) => panic!("{e}"),
            _ => {}
        });
    }
    answers
}

#[test]
fn answers_are_the_same_whatever_guesses_the_next_tokens() {
    for (target, drafter) in DRAFTED {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny");
        let options = OpenOptions { draft: Some(tiny.join(drafter)), ..OpenOptions::default() };
        let program = Arc::new(lapidary_gemma::open(&tiny.join(target), &options).unwrap());
        let mut requests: Vec<Request> =
            (0..4).map(|i| sampled(prompt(5 + 13 * i, i as u32), i as u64, 20 + i)).collect();
        requests.iter_mut().step_by(2).for_each(|r| r.params.temperature = 0.0);
        for backend in backends::each() {
            let what = format!("{target} on {}", backend.name());
            let mut runner = runner(backend, &program, 16, 4);
            let plain = together(&mut runner, &requests);
            let texts = requests.iter().zip(&plain);
            let texts = texts.map(|(r, answer)| [r.prompt.tokens.as_slice(), answer].concat());
            let texts: Vec<_> = texts.collect();
            let saying = |every| Drafting::ModelSaying(Arc::new(Knowing(texts.clone(), every)));
            for drafting in
                [Drafting::Text(Arc::new(Lookup)), Drafting::Model, saying(usize::MAX), saying(5)]
            {
                runner.set_drafting(drafting.clone()).unwrap();
                assert_eq!(together(&mut runner, &requests), plain, "{what}, {drafting:?}");
                for (request, plain) in requests.iter().zip(&plain) {
                    let alone = generate(&mut runner, request.clone());
                    assert_eq!(alone, *plain, "{what}, alone, {drafting:?}");
                }
            }
            let finish = runner.generate(requests[0].clone(), &CancelToken::new(), |_| {}).unwrap();
            assert!(finish.stats.accepted_tokens > 5, "{what}: {:?}", finish.stats);
            let rates = [Drafting::Model, saying(usize::MAX)].map(|drafting| {
                runner.set_drafting(drafting).unwrap();
                let request = requests[0].clone();
                let stats = runner.generate(request, &CancelToken::new(), |_| {}).unwrap().stats;
                stats.accepted_tokens as f64 / stats.drafted_tokens.max(1) as f64
            });
            // Random weights agree with nobody.
            assert!(rates[0] < 0.2 && rates[1] == 1.0, "{what}: {rates:?}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_tokens_in_any_batch() {
    for family in FAMILIES {
        let program = program(family);
        for backend in backends::each() {
            let requests: Vec<Request> =
                (0..6).map(|i| sampled(prompt(5 + 13 * i, i as u32), i as u64, 10 + i)).collect();
            let alone: Vec<Vec<u32>> = requests
                .iter()
                .map(|r| generate(&mut runner(backend, &program, 16, 1), r.clone()))
                .collect();
            // Three slots for six requests: they arrive, share calls, and leave at different times.
            let mut shared = runner(backend, &program, 16, 3);
            let cancel = CancelToken::new();
            let ids: Vec<_> =
                requests.iter().map(|r| shared.submit(r.clone(), &cancel).unwrap()).collect();
            let mut together = vec![Vec::new(); ids.len()];
            while shared.n_generations() > 0 {
                shared.step(&mut |id, event| {
                    if let Event::Token { id: token, .. } = event {
                        together[ids.iter().position(|i| *i == id).unwrap()].push(token);
                    }
                });
            }
            assert_eq!(together, alone, "{family} on {}", backend.name());
        }
    }
}

#[test]
fn turns_reuse_what_they_can_and_answer_as_a_fresh_run_does() {
    for family in FAMILIES {
        let program = program(family);
        for backend in backends::each() {
            let what = format!("{family} on {}", backend.name());
            let mut kept = runner(backend, &program, 16, 1);
            let mut history = prompt(40, 3);
            for turn in 0..3 {
                let request = sampled(history.clone(), turn, 12);
                let fresh = generate(&mut runner(backend, &program, 16, 1), request.clone());
                let mut reused = 0;
                let mut answer = Vec::new();
                kept.generate(request, &CancelToken::new(), |event| match event {
                    Event::Token { id, .. } => answer.push(id),
                    Event::Finished(f) => reused = f.stats.reused_tokens,
                    _ => {}
                })
                .unwrap();
                assert_eq!(answer, fresh, "{what}, turn {turn}");
                if turn > 0 {
                    // All of the last turn is there but its last token, which was never fed.
                    assert!(
                        reused + 8 >= history.len() - 7,
                        "{what}: {reused} of {}",
                        history.len()
                    );
                }
                history.extend(&answer);
                history.extend(prompt(7, turn as u32));
            }
            // An edit far back can't use rings that have forgotten it; the answer is right anyway.
            let mut edited = history.clone();
            edited[5] += 1;
            let request = sampled(edited, 9, 8);
            let fresh = generate(&mut runner(backend, &program, 16, 1), request.clone());
            assert_eq!(generate(&mut kept, request), fresh, "{what}, edited");
        }
    }
}

#[test]
fn a_lap_file_gives_the_logits_of_its_checkpoint_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    for family in FAMILIES {
        let program = program(family);
        let path = folder.path().join(format!("{family}.lap"));
        lap::write(&program, &path, &mut |_, _| true).unwrap();
        let mapped = Arc::new(lap::open(&path, true).unwrap());
        let read =
            Arc::new(lap::from_bytes(FileBytes::from_vec(std::fs::read(&path).unwrap())).unwrap());
        for backend in backends::each() {
            let want = all_logits(&mut runner(backend, &program, 32, 1), &prompt(50, 4));
            for again in [&mapped, &read] {
                let got = all_logits(&mut runner(backend, again, 32, 1), &prompt(50, 4));
                assert_eq!(got, want, "{family} on {}", backend.name());
            }
        }
    }
}
