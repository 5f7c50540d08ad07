//! Caches: packed weights and compiled tokenizers that somebody changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use lapidary_backend::{Backend, Call, CallLimits, DeviceId, Feed, LoadOptions, Results, Wanted};
use lapidary_backend_cpu::CpuBackend;
use lapidary_program::cache_file::CacheFolder;
use lapidary_program::{
    Blob, DType, Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Part, Program,
    QuantLayout, SamplingDefaults, Sym, ValueType, WeightDecl, lap,
};
use lapidary_text::Tokenizer;
use tempfile::TempDir;

const ROWS: u64 = 8;
const COLS: u64 = 32;
const TOKENIZER: &[u8] = include_bytes!("../../crates/text/tests/data/tokenizer.json");

/// A folder with a model, a pack of it and a compiled tokenizer, and what they give.
struct Scene {
    folder: TempDir,
    pack: (PathBuf, Vec<u8>),
    tokenizer: (PathBuf, Vec<u8>),
    numbers: Vec<f32>,
    ids: Vec<u32>,
}

/// Changes cached files as the bytes say, and loads what they are of: it is what it was, since what
/// was changed is found out and made anew.
pub fn pack_cache(data: &[u8]) {
    static SCENE: OnceLock<Option<Scene>> = OnceLock::new();
    let scene = SCENE.get_or_init(Scene::new).as_ref().expect("a sound model is packed and kept");
    let Some((which, data)) = data.split_first() else { return };
    let (path, sound) = if which & 1 == 0 { &scene.pack } else { &scene.tokenizer };
    let bytes = match which & 2 {
        0 => data.to_vec(),
        _ => changed(sound, data),
    };
    if fs::write(path, bytes).is_err() {
        return;
    }
    let root = scene.folder.path();
    if which & 1 == 0 {
        assert_eq!(numbers(root).as_ref(), Some(&scene.numbers));
    } else {
        assert_eq!(ids(root).as_ref(), Some(&scene.ids));
    }
}

/// Bytes at places, or an end: four bytes each.
fn changed(sound: &[u8], edits: &[u8]) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    for [low, high, kind, value] in edits.as_chunks::<4>().0 {
        let at = usize::from(u16::from_le_bytes([*low, *high])) % bytes.len().max(1);
        match kind % 4 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, *value),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= value),
        }
    }
    bytes
}

impl Scene {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().ok()?;
        let root = folder.path();
        lap::write(&program()?, &root.join("model.lap"), &mut |_, _| true).ok()?;
        let (numbers, ids) = (numbers(root)?, ids(root)?);
        let only = |folder: &str| {
            let path = fs::read_dir(root.join(folder)).ok()?.next()?.ok()?.path();
            let bytes = fs::read(&path).ok()?;
            Some((path, bytes))
        };
        let (pack, tokenizer) = (only("packs")?, only("tokenizers")?);
        Some(Scene { pack, tokenizer, folder, numbers, ids })
    }
}

/// What the model computes.
fn numbers(root: &Path) -> Option<Vec<f32>> {
    let program = Arc::new(lap::open(&root.join("model.lap"), true).ok()?);
    let options = LoadOptions {
        max_context: 8,
        n_sequences: 1,
        limits: CallLimits { chunk: 4, tokens: 4, block: 1 },
        threads: Some(1),
        pack_cache: Some(root.join("packs")),
        ..LoadOptions::default()
    };
    let device = CpuBackend.open(&DeviceId::new("cpu", 0)).ok()?;
    let mut engine = device.load(&program, &options, &mut |_, _| {}).ok()?;
    let x: Vec<f32> = (0..COLS).map(|i| (i as f32 * 0.37).sin()).collect();
    let (feeds, wants) = ([Feed::f32("x", &x)], [Wanted::whole("y")]);
    let call = Call { method: "op", feeds: &feeds, wants: &wants, ..Call::default() };
    let mut results = Results::default();
    engine.run(&call, &mut results).ok()?;
    results.get("y").map(|y| y.data.clone())
}

/// What the tokenizer makes of a text.
fn ids(root: &Path) -> Option<Vec<u32>> {
    let blob: Blob = TOKENIZER.to_vec().into();
    let folder = CacheFolder(root.to_path_buf());
    let (tokenizer, _) = Tokenizer::from_blob(&blob, 396, Some((&folder, "a model"))).ok()?;
    tokenizer.encode_text("the  hello world\n\n<bos>a<s>b жя").ok()
}

fn program() -> Option<Program> {
    let q4 = WeightDecl::quant([ROWS, COLS], QuantLayout::symmetric(4, 32, DType::F32));
    let mut store = MemoryStore::new();
    let codes = (0..q4.part_bytes(Part::Data)).map(|i| (i as u8).wrapping_mul(37)).collect();
    store.insert("q", Part::Data, codes);
    let scale = 0.01f32.to_le_bytes();
    store.insert("q", Part::Scale, scale.repeat(q4.part_bytes(Part::Scale) as usize / 4));
    let weights = BTreeMap::from([("q".to_string(), q4)]);
    let mut graph = GraphBuilder::new(&weights, &[]);
    let x = graph.input("x", ValueType::rows(Sym::Tokens, COLS));
    let y = graph.node("q", Op::Linear { weight: "q".into(), bias: None }, &[x]).ok()?;
    graph.output("y", y);
    let methods = BTreeMap::from([("op".to_string(), Method::new(64, graph.finish()))]);
    let metadata = Metadata {
        name: "a linear".into(),
        architecture: "test".into(),
        made_by: "fuzz".into(),
        vocab_size: 1,
        max_context_len: 64,
        bos_id: None,
        pad_id: None,
        eos_ids: vec![],
        suppress_ids: vec![],
        add_bos: false,
        sampling: SamplingDefaults::default(),
        media: Default::default(),
        answer: None,
    };
    let description = Description { metadata, states: vec![], methods, weights };
    Program::new(description, BTreeMap::new(), Arc::new(store)).ok()
}
