//! Faults that public runs of these models had, one test each, for a backend that could have them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lapidary_backend::{
    Backend, Call, Draw, DrawRule, Feed, LoadOptions, Precision, Results, TopK, Want, Wanted,
};
use lapidary_conformance::harness::{Checked, Test};
use lapidary_conformance::{Paged, Place, limits};
use lapidary_gemma::OpenOptions;
use lapidary_program::{
    Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Program, RopeSpec,
    SamplingDefaults, Sym, ValueType, input, method, output,
};
use lapidary_reference::ReferenceBackend;

/// How far logits of the tiny models may be apart, as for checkpoints.
const TOLERANCE: f32 = 1e-4;
/// Tokens of a prompt that is many windows long: the tiny model's have 8 positions.
const LONG: usize = 96;

/// Every test.
pub fn tests(backend: &'static dyn Backend) -> Vec<Test> {
    let test = |name: &str, check: fn(&dyn Backend) -> Checked| {
        Test::new(&["faults", name], move || check(backend))
    };
    vec![
        test("rope pairs i with i + d/2 at a distance of 64", rope_pairs_halves),
        test("a chunk may be longer than the window", long_chunks),
        test("tokens are drawn as on every backend", same_draws),
    ]
}

/// A rope of which a quarter of the pairs turn: pair `i` is `i` and `i + head_dim / 2`, not
/// `i + rotated_pairs`, and not neighbours. At the position of the first token nothing turns, so that
/// short tests do not see the difference.
fn rope_pairs_halves(backend: &dyn Backend) -> Checked {
    const DIM: usize = 64;
    const TURNING: usize = 16;
    const AT: usize = 64;
    let spec =
        RopeSpec { head_dim: DIM as u32, theta: 1e6, rotated_pairs: TURNING as u32, factor: 1.0 };
    let options = options(1, 2 * AT);
    let mut engine = Paged::load(backend, &rope_program(spec), &options)?;
    let x: Vec<f32> = (0..DIM).map(|i| ((i * 7 + 3) % 11) as f32 / 5.0 - 1.0).collect();
    let mut results = Results::default();
    let place = Place::new(0, AT as i32);
    engine.run("op", &[Feed::f32("x", &x)], &[place], &mut results)?;
    let got = &results.get("y").ok_or("no output")?.data;
    let angle = |i: usize| AT as f64 * 1e6f64.powf(-2.0 * i as f64 / DIM as f64);
    let turned = |partner: &dyn Fn(usize) -> usize| {
        let mut y: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for i in 0..TURNING {
            let (a, b) = (f64::from(x[i]), f64::from(x[partner(i)]));
            let (sin, cos) = angle(i).sin_cos();
            (y[i], y[partner(i)]) = (a * cos - b * sin, b * cos + a * sin);
        }
        y
    };
    let apart = |want: &[f64]| {
        got.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
    };
    let right = apart(&turned(&|i| i + DIM / 2));
    let wrong = apart(&turned(&|i| i + TURNING));
    if right < 1e-4 && wrong > 0.1 {
        return Ok(());
    }
    Err(format!("{right:.1e} from pairs of i and i + d/2, {wrong:.1e} from others"))
}

/// The same logits whether a prompt of many windows comes at once, in chunks that are longer than a
/// window, or in short ones, and those of the reference: no key that a query sees is overwritten.
fn long_chunks(backend: &dyn Backend) -> Checked {
    let program = tiny("gemma3_text");
    let truth = logits(&ReferenceBackend, &program, LONG)?;
    for chunk in [LONG, 40, 13, 5] {
        let got = logits(backend, &program, chunk)?;
        let apart = got.iter().zip(&truth).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        if got.len() != truth.len() || apart > TOLERANCE {
            return Err(format!("chunks of {chunk}: differs by {apart}"));
        }
    }
    Ok(())
}

/// A device draws the token that the reference draws, with every seed and rule.
fn same_draws(backend: &dyn Backend) -> Checked {
    let program = tiny("gemma3_text");
    let ours = drawn(backend, &program)?;
    let theirs = drawn(&ReferenceBackend, &program)?;
    let distinct = theirs.iter().collect::<std::collections::BTreeSet<_>>().len();
    if distinct < 10 {
        return Err(format!("the reference draws only {distinct} different tokens"));
    }
    if ours == theirs { Ok(()) } else { Err(format!("drew {ours:?}, not {theirs:?}")) }
}

/// Tokens drawn with each of some rules and seeds.
fn drawn(backend: &dyn Backend, program: &Arc<Program>) -> Result<Vec<u32>, String> {
    let mut engine = Paged::load(backend, program, &options(8, 64))?;
    // So high a temperature that the tiny model has a choice.
    let plain =
        DrawRule { temperature: 8.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, position: 8 };
    let rules = [
        plain,
        DrawRule { top_k: 20, ..plain },
        DrawRule { top_p: 0.6, ..plain },
        DrawRule { min_p: 0.7, ..plain },
        DrawRule { temperature: 4.0, top_k: 50, top_p: 0.9, min_p: 0.01, ..plain },
        DrawRule { temperature: 0.0, ..plain },
    ];
    let tokens = prompt(program, 8);
    let mut all = Vec::new();
    for seed in 0..24 {
        let rules: Vec<DrawRule> = rules
            .iter()
            .map(|rule| DrawRule { seed: seed << 31 | seed, position: 8 + seed as u32, ..*rule })
            .collect();
        // A row for each rule, all of the last token.
        let rows = vec![7; rules.len()];
        let want = Want::Draw(Draw { top: TopK::of(64), rules: &rules });
        let feeds = feeds(&tokens, &rows);
        let places: Vec<Place> = (0..8).map(|p| Place::new(0, p)).collect();
        let placed = engine.paging.place(&places);
        let mut results = Results::default();
        let ran = placed.with(|spans| {
            let call = Call {
                method: method::FORWARD,
                feeds: &feeds,
                spans,
                horizons: &placed.horizons,
                wants: &[Wanted { output: output::LOGITS, want }],
                stop: None,
            };
            engine.engine.run(&call, &mut results)
        });
        ran.map_err(|e| e.to_string())?;
        all.extend(&results.get(output::LOGITS).ok_or("no logits")?.drawn);
    }
    Ok(all)
}

/// Logits of all tokens of a long prompt.
fn logits(backend: &dyn Backend, program: &Arc<Program>, chunk: usize) -> Result<Vec<f32>, String> {
    let mut engine = Paged::load(backend, program, &options(chunk, LONG))?;
    let tokens = prompt(program, LONG);
    let mut all = Vec::new();
    for start in (0..LONG).step_by(chunk) {
        let end = LONG.min(start + chunk);
        let rows: Vec<i32> = (0..(end - start) as i32).collect();
        let places: Vec<Place> = (start..end).map(|p| Place::new(0, p as i32)).collect();
        let mut results = Results::default();
        engine.run(method::FORWARD, &feeds(&tokens[start..end], &rows), &places, &mut results)?;
        all.extend(&results.get(output::LOGITS).ok_or("no logits")?.data);
    }
    Ok(all)
}

fn feeds<'a>(tokens: &'a [i32], rows: &'a [i32]) -> Vec<Feed<'a>> {
    static NO_SOFT: [i32; LONG] = [-1; LONG];
    vec![
        Feed::i32(input::TOKENS, tokens),
        Feed::i32(input::ROWS, rows),
        Feed::i32(input::SOFT_INDEX, &NO_SOFT[..tokens.len()]),
        Feed::f32(input::SOFT, &[]),
    ]
}

fn prompt(program: &Program, n: usize) -> Vec<i32> {
    let vocab = program.metadata().vocab_size as usize;
    (0..n).map(|i| ((i * 37 + 11) % vocab) as i32).collect()
}

fn options(chunk: usize, max_context: usize) -> LoadOptions {
    LoadOptions {
        max_context: max_context as u32,
        n_sequences: 1,
        limits: limits(chunk, 1),
        precision: Precision::Exact,
        ..LoadOptions::default()
    }
}

fn tiny(family: &str) -> Arc<Program> {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny");
    let opened = lapidary_gemma::open(&testdata.join(family), &OpenOptions::default());
    Arc::new(opened.expect("the tiny checkpoints can be opened"))
}

/// A program of one rope.
fn rope_program(spec: RopeSpec) -> Arc<Program> {
    let weights = BTreeMap::new();
    let mut graph = GraphBuilder::new(&weights, &[]);
    let x = graph.input("x", ValueType::rows(Sym::Tokens, spec.head_dim.into()));
    let y = graph.node("rope", Op::Rope(spec), &[x]).expect("the op is valid");
    graph.output("y", y);
    let metadata = Metadata {
        name: "rope".into(),
        architecture: "rope".into(),
        made_by: "tests".into(),
        vocab_size: 1,
        max_context_len: 1 << 20,
        bos_id: None,
        pad_id: None,
        eos_ids: vec![],
        suppress_ids: vec![],
        add_bos: false,
        sampling: SamplingDefaults::default(),
        media: Default::default(),
        answer: None,
    };
    let methods = BTreeMap::from([("op".to_string(), Method::new(1, graph.finish()))]);
    let description = Description { metadata, states: vec![], methods, weights };
    let made = Program::new(description, BTreeMap::new(), Arc::new(MemoryStore::new()));
    Arc::new(made.expect("the program is valid"))
}
