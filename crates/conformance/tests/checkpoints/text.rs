//! Tiny random checkpoints of every text family, against the logits that transformers computed.
//!
//! `testdata/make.py` writes them. Each is loaded in both spellings of its configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lapidary_backend::{Backend, Feed, KvType, LoadOptions, Precision, Results};
use lapidary_conformance::harness::Test;
use lapidary_conformance::{Class, Paged, Place, limits, properties};
use lapidary_gemma::OpenOptions;
use lapidary_program::{Program, input, method, output};
use safetensors::SafeTensors;

use super::{Extent, On, test, testdata, tiny};

/// The most that a logit may differ from transformers', both in f32.
const TOLERANCE: f32 = 1e-4;
/// The same where activations may be rounded to half floats, as a GPU may do with dense weights.
const HALF_TOLERANCE: f32 = 2e-3;

const TEXT: &[&str] = &[
    "gemma3_text",
    "gemma3_text_sharded",
    "gemma4_text_plain",
    "gemma4_text_dense",
    "gemma4_text_e",
    "gemma4_text_moe",
];
const TEXT_OF_MULTIMODAL: &[&str] =
    &["gemma3_mm", "gemma4_mm_large", "gemma4_mm_e", "gemma4_unified"];

/// A folder like `family`'s whose `config.json` is the one that hub files have.
fn in_hub_style(family: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(tiny(family)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let to = match name.as_str() {
            "config.json" | "reference.safetensors" => continue,
            "config_hub_style.json" => "config.json",
            other => other,
        };
        std::fs::copy(entry.path(), folder.path().join(to)).unwrap();
    }
    folder
}

struct Expected(Vec<u8>);

impl Expected {
    fn read(family: &str) -> Self {
        Self::beside(&tiny(family))
    }

    fn beside(folder: &Path) -> Self {
        Expected(std::fs::read(folder.join("reference.safetensors")).unwrap())
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).data().to_vec()
    }

    fn f32(&self, name: &str) -> Vec<f32> {
        self.bytes(name).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    fn ids(&self, name: &str) -> Vec<i32> {
        let narrow = |b: &[u8; 8]| i32::try_from(i64::from_le_bytes(*b)).unwrap();
        self.bytes(name).as_chunks::<8>().0.iter().map(narrow).collect()
    }
}

fn load(backend: &dyn Backend, program: Program) -> Paged {
    load_as(backend, program, Precision::Exact)
}

fn load_as(backend: &dyn Backend, program: Program, precision: Precision) -> Paged {
    let options = LoadOptions {
        max_context: 256,
        n_sequences: 1,
        limits: limits(256, 1),
        threads: None,
        precision,
        // What caches round is no matter of precision here.
        kv: Some(KvType::F32),
        ..LoadOptions::default()
    };
    Paged::load(backend, &Arc::new(program), &options).unwrap()
}

/// Feeds tokens from a position on and returns logits and hidden rows of all of them.
fn forward(engine: &mut Paged, tokens: &[i32], start: usize) -> (Vec<f32>, Vec<f32>) {
    let places: Vec<Place> =
        (start..start + tokens.len()).map(|p| Place::new(0, p as i32)).collect();
    let rows: Vec<i32> = (0..tokens.len()).map(|r| r as i32).collect();
    let no_soft = vec![-1; tokens.len()];
    let mut out = Results::default();
    let feeds = [
        Feed::i32(input::TOKENS, tokens),
        Feed::i32(input::ROWS, &rows),
        Feed::i32(input::SOFT_INDEX, &no_soft),
        Feed::f32(input::SOFT, &[]),
    ];
    engine.run(method::FORWARD, &feeds, &places, &mut out).unwrap();
    (out.get(output::LOGITS).unwrap().data.clone(), out.get(output::HIDDEN).unwrap().data.clone())
}

fn argmax(row: &[f32]) -> i32 {
    let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|x| *x == best).unwrap() as i32
}

fn assert_close(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance, "{what}: differs by {worst}");
}

fn check(backend: &dyn Backend, folder: &Path, expected: &Expected, prefix: &str) {
    let what = format!("{} on {}", folder.display(), backend.name());
    let program = lapidary_gemma::open(folder, &OpenOptions::default())
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut engine = load(backend, program);
    let mut tokens = expected.ids(&format!("{prefix}input_ids"));
    let (logits, _) = forward(&mut engine, &tokens, 0);
    assert_close(&what, &logits, &expected.f32(&format!("{prefix}logits")), TOLERANCE);

    let vocab = logits.len() / tokens.len();
    let mut last = logits[logits.len() - vocab..].to_vec();
    let want = expected.ids(&format!("{prefix}greedy"));
    let mut got = Vec::new();
    for _ in &want {
        let next = argmax(&last);
        got.push(next);
        last = forward(&mut engine, &[next], tokens.len()).0;
        tokens.push(next);
    }
    assert_eq!(got, want, "{what}: greedy tokens");
}

/// The drafter reads the caches that its target wrote.
fn draft(backend: &dyn Backend, family: &str, target: &str) {
    let what = format!("{family} on {}", backend.name());
    let expected = Expected::read(family);
    let options = OpenOptions { draft: Some(tiny(family)), ..OpenOptions::default() };
    let program =
        lapidary_gemma::open(&tiny(target), &options).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut engine = load(backend, program);
    let tokens = expected.ids("input_ids");
    let (_, hidden) = forward(&mut engine, &tokens, 0);
    let width = hidden.len() / tokens.len();
    let last = &hidden[hidden.len() - width..];
    assert_close(&what, last, &expected.f32("target_last_hidden"), TOLERANCE);

    let mut hidden = last.to_vec();
    let mut token = expected.ids("first_token");
    let place = [Place::new(0, tokens.len() as i32)];
    for step in 0..4 {
        let mut out = Results::default();
        let feeds = [Feed::i32(input::TOKENS, &token), Feed::f32(input::HIDDEN, &hidden)];
        engine.run(method::DRAFT, &feeds, &place, &mut out).unwrap();
        let logits = &out.get(output::LOGITS).unwrap().data;
        let what = format!("{what}, step {step}");
        assert_close(&what, logits, &expected.f32(&format!("step{step}.logits")), TOLERANCE);
        token = vec![argmax(logits)];
        hidden = out.get(output::HIDDEN).unwrap().data.clone();
        assert_close(&what, &hidden, &expected.f32(&format!("step{step}.hidden")), TOLERANCE);
    }
}

/// What a user of a GPU gets who says nothing, but for the caches. A CPU rounds to `bf16`.
fn check_halves(backend: &dyn Backend, family: &str) {
    let what = format!("{family} on {}", backend.name());
    let program = lapidary_gemma::open(&tiny(family), &OpenOptions::default()).unwrap();
    let mut engine = load_as(backend, program, Precision::Fast);
    let expected = Expected::read(family);
    let (logits, _) = forward(&mut engine, &expected.ids("input_ids"), 0);
    assert_close(&what, &logits, &expected.f32("logits"), HALF_TOLERANCE);
}

/// Folders of random configurations by `testdata/fuzz_configs.py`: those that are kept, and any
/// number more in a folder that the environment names.
fn random_configurations() -> Vec<PathBuf> {
    let mut all = Vec::new();
    let named = std::env::var_os("LAPIDARY_RANDOM_CONFIGS").map(PathBuf::from);
    for folder in std::iter::once(testdata().join("random")).chain(named) {
        let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let before = all.len();
        all.extend(entries.filter(|path| path.is_dir()));
        assert!(all.len() > before, "{} holds no configuration", folder.display());
    }
    all.sort();
    all
}

pub fn tests(on: On) -> Vec<Test> {
    let backend = on.backend;
    let mut tests = Vec::new();
    let all = TEXT.iter().map(|f| (*f, "")).chain(TEXT_OF_MULTIMODAL.iter().map(|f| (*f, "text.")));
    for (family, prefix) in all {
        tests.push(test(&["text", family], move || {
            check(backend, &tiny(family), &Expected::read(family), prefix);
        }));
        if on.extent == Extent::Everything {
            tests.push(test(&["text", family, "hub style"], move || {
                check(backend, in_hub_style(family).path(), &Expected::read(family), prefix);
            }));
        }
    }
    for (family, target) in
        [("gemma4_assistant", "gemma4_text_dense"), ("gemma4_assistant_e", "gemma4_text_e")]
    {
        tests.push(test(&["draft", family], move || draft(backend, family, target)));
    }
    if on.class == Class::AnyOrder {
        let halves =
            |family: &'static str| test(&["halves", family], move || check_halves(backend, family));
        tests.extend(TEXT.iter().copied().map(halves));
    }
    // Two graphs of one family are much alike; a device that is slow to compile sees one of each.
    let apart: &[&str] = match on.extent {
        Extent::Everything => TEXT,
        Extent::Numbers => &["gemma3_text", "gemma4_text_e", "gemma4_text_moe"],
        Extent::Least => &["gemma3_text", "gemma4_text_e"],
    };
    for family in apart {
        let tokens = Expected::read(family).ids("input_ids");
        let program = lapidary_gemma::open(&tiny(family), &OpenOptions::default()).unwrap();
        let parts = [super::NAME, "properties", family];
        tests.extend(properties(&parts, (backend, on.class), &Arc::new(program), &tokens));
    }
    if on.extent != Extent::Least {
        tests.extend(files(backend));
    }
    tests
}

/// What importers make of files that hold other numbers than the tiny checkpoints. A device sees the
/// same ops with them.
fn files(backend: &'static dyn Backend) -> Vec<Test> {
    let mut tests = Vec::new();
    for folder in random_configurations() {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        tests.push(test(&["random", &name], move || {
            check(backend, &folder, &Expected::beside(&folder), "");
        }));
    }
    // Some weights are quantised; transformers ran the dequantised numbers.
    for family in ["gemma3_text", "gemma4_text_dense", "gemma4_text_e", "gemma4_text_moe"] {
        let folder = testdata().join("gguf").join(family);
        tests.push(test(&["gguf", family], move || {
            check(backend, &folder.join("model.gguf"), &Expected::beside(&folder), "");
        }));
    }
    // MLX and torchao quantised these.
    for name in ["mlx_gemma3_text", "mlx_gemma4", "torchao_gemma3_text"] {
        let folder = testdata().join("quantised").join(name);
        tests.push(test(&["quantised", name], move || {
            check(backend, &folder, &Expected::beside(&folder), "");
        }));
    }
    tests
}
