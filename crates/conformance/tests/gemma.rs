//! Tiny random checkpoints of every text family, against the logits that transformers computed.
//!
//! `testdata/make.py` writes them. Each is loaded in both spellings of its configuration and run
//! on every backend.

mod backends;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lapidary_backend::{Backend, Engine, Feed, KvType, LoadOptions, Outputs, Precision};
use lapidary_conformance::suite;
use lapidary_gemma::OpenOptions;
use lapidary_program::{Program, input, method};
use safetensors::SafeTensors;

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

fn tiny(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny").join(family)
}

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

fn load(backend: &dyn Backend, program: Program) -> Box<dyn Engine> {
    load_as(backend, program, Precision::Exact)
}

fn load_as(backend: &dyn Backend, program: Program, precision: Precision) -> Box<dyn Engine> {
    let options = LoadOptions {
        max_context: 256,
        max_chunk: 256,
        n_slots: 1,
        threads: None,
        precision,
        // What caches round is no matter of precision here.
        kv: Some(KvType::F32),
        ..LoadOptions::default()
    };
    let device = backend.probe().unwrap().remove(0);
    backend.load(&Arc::new(program), &device, &options, &mut |_, _| {}).unwrap()
}

/// Feeds tokens from a position on and returns logits and hidden rows of all of them.
fn forward(engine: &mut dyn Engine, tokens: &[i32], start: usize) -> (Vec<f32>, Vec<f32>) {
    let positions: Vec<i32> = (start..start + tokens.len()).map(|p| p as i32).collect();
    let slots = vec![0; tokens.len()];
    let rows: Vec<i32> = (0..tokens.len()).map(|r| r as i32).collect();
    let no_soft = vec![-1; tokens.len()];
    let mut out = Outputs::default();
    let feeds = [
        Feed::i32(input::TOKENS, tokens),
        Feed::i32(input::SLOTS, &slots),
        Feed::i32(input::POSITIONS, &positions),
        Feed::i32(input::HORIZONS, &positions),
        Feed::i32(input::ROWS, &rows),
        Feed::i32(input::SOFT_INDEX, &no_soft),
        Feed::f32(input::SOFT, &[]),
    ];
    engine.run(method::FORWARD, &feeds, &mut out).unwrap();
    (out.get("logits").unwrap().data.clone(), out.get("hidden").unwrap().data.clone())
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
    let (logits, _) = forward(engine.as_mut(), &tokens, 0);
    assert_close(&what, &logits, &expected.f32(&format!("{prefix}logits")), TOLERANCE);

    let vocab = logits.len() / tokens.len();
    let mut last = logits[logits.len() - vocab..].to_vec();
    let want = expected.ids(&format!("{prefix}greedy"));
    let mut got = Vec::new();
    for _ in &want {
        let next = argmax(&last);
        got.push(next);
        last = forward(engine.as_mut(), &[next], tokens.len()).0;
        tokens.push(next);
    }
    assert_eq!(got, want, "{what}: greedy tokens");
}

fn every_text_family(backend: &dyn Backend) {
    let all = TEXT.iter().map(|f| (*f, "")).chain(TEXT_OF_MULTIMODAL.iter().map(|f| (*f, "text.")));
    for (family, prefix) in all {
        let expected = Expected::read(family);
        check(backend, &tiny(family), &expected, prefix);
        if !backends::is_gpu(backend) {
            check(backend, in_hub_style(family).path(), &expected, prefix);
        }
    }
}

/// Random configurations of `testdata/fuzz_configs.py`: those that are kept, and any number more in
/// a folder that the environment names.
fn every_random_configuration(backend: &dyn Backend, folder: &Path) -> usize {
    let mut n = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let folder = entry.unwrap().path();
        if folder.is_dir() {
            check(backend, &folder, &Expected::beside(&folder), "");
            n += 1;
        }
    }
    n
}

/// The drafter reads the caches that its target wrote.
fn drafters(backend: &dyn Backend) {
    for (family, target) in
        [("gemma4_assistant", "gemma4_text_dense"), ("gemma4_assistant_e", "gemma4_text_e")]
    {
        let what = format!("{family} on {}", backend.name());
        let expected = Expected::read(family);
        let options = OpenOptions { draft: Some(tiny(family)), ..OpenOptions::default() };
        let program =
            lapidary_gemma::open(&tiny(target), &options).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut engine = load(backend, program);
        let tokens = expected.ids("input_ids");
        let (_, hidden) = forward(engine.as_mut(), &tokens, 0);
        let width = hidden.len() / tokens.len();
        let last = &hidden[hidden.len() - width..];
        assert_close(&what, last, &expected.f32("target_last_hidden"), TOLERANCE);

        let mut hidden = last.to_vec();
        let mut token = expected.ids("first_token");
        let position = [tokens.len() as i32];
        for step in 0..4 {
            let mut out = Outputs::default();
            let feeds = [
                Feed::i32(input::TOKENS, &token),
                Feed::i32(input::SLOTS, &[0]),
                Feed::i32(input::POSITIONS, &position),
                Feed::f32(input::HIDDEN, &hidden),
            ];
            engine.run(method::DRAFT, &feeds, &mut out).unwrap();
            let logits = &out.get("logits").unwrap().data;
            let what = format!("{what}, step {step}");
            assert_close(&what, logits, &expected.f32(&format!("step{step}.logits")), TOLERANCE);
            token = vec![argmax(logits)];
            hidden = out.get("hidden").unwrap().data.clone();
            assert_close(&what, &hidden, &expected.f32(&format!("step{step}.hidden")), TOLERANCE);
        }
    }
}

#[test]
fn random_configurations_agree_with_transformers() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/random")];
    folders.extend(std::env::var_os("LAPIDARY_RANDOM_CONFIGS").map(PathBuf::from));
    for folder in folders {
        for backend in backends::all() {
            let n = every_random_configuration(backend, &folder);
            assert!(n > 0, "{} holds no configuration", folder.display());
        }
    }
}

#[test]
fn every_text_family_agrees_with_transformers() {
    for backend in backends::all() {
        every_text_family(backend);
    }
}

/// What a user of a GPU gets who says nothing, but for the caches. A CPU rounds to `bf16`.
#[test]
fn every_text_family_agrees_with_transformers_to_half_floats() {
    for backend in backends::all().into_iter().filter(|b| backends::is_gpu(*b)) {
        for family in TEXT {
            let what = format!("{family} on {}", backend.name());
            let program = lapidary_gemma::open(&tiny(family), &OpenOptions::default()).unwrap();
            let mut engine = load_as(backend, program, Precision::Fast);
            let expected = Expected::read(family);
            let (logits, _) = forward(engine.as_mut(), &expected.ids("input_ids"), 0);
            assert_close(&what, &logits, &expected.f32("logits"), HALF_TOLERANCE);
        }
    }
}

#[test]
fn drafters_agree_with_transformers() {
    for backend in backends::all() {
        drafters(backend);
    }
}

/// The same families as GGUF files with some weights quantised; transformers ran the dequantised
/// numbers.
#[test]
fn gguf_files_agree_with_transformers() {
    for family in ["gemma3_text", "gemma4_text_dense", "gemma4_text_e", "gemma4_text_moe"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/gguf").join(family);
        for backend in backends::all() {
            let expected = Expected::beside(&folder);
            check(backend, &folder.join("model.gguf"), &expected, "");
        }
    }
}

/// Folders that MLX and torchao quantised; transformers ran the dequantised numbers.
#[test]
fn quantised_folders_agree_with_transformers() {
    for name in ["mlx_gemma3_text", "mlx_gemma4", "torchao_gemma3_text"] {
        let quantised = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/quantised");
        let folder = quantised.join(name);
        for backend in backends::all() {
            check(backend, &folder, &Expected::beside(&folder), "");
        }
    }
}

/// What must hold whatever the numbers are: chunks, slots, rings, rewinding, traces.
#[test]
fn every_text_family_has_the_properties_of_a_program() {
    for family in TEXT {
        let tokens = Expected::read(family).ids("input_ids");
        let program = lapidary_gemma::open(&tiny(family), &OpenOptions::default()).unwrap();
        let program = Arc::new(program);
        let with_the_least = matches!(*family, "gemma3_text" | "gemma4_text_e");
        for backend in if with_the_least { backends::all() } else { backends::each() } {
            let properties = if backends::is_gpu(backend) {
                suite::unordered_properties
            } else {
                suite::properties
            };
            properties(backend, program.clone(), &tokens).assert(&[]);
        }
    }
}
