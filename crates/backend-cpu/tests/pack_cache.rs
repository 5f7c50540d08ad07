//! Packed weights that are kept on disk, and what happens when they are not what they should be.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lapidary_backend::{Backend, Call, CallLimits, DeviceId, Feed, LoadOptions, Results, Wanted};
use lapidary_backend_cpu::CpuBackend;
use lapidary_program::{
    DType, Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Part, Program,
    QuantLayout, SamplingDefaults, Sym, ValueType, WeightDecl, lap,
};

const ROWS: u64 = 40;
const COLS: u64 = 96;

/// A file with one quantised and one dense linear, and a folder for its packed weights.
struct Scene {
    _folder: tempfile::TempDir,
    model: PathBuf,
    packs: PathBuf,
}

impl Scene {
    fn new(seed: u8) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model.lap");
        let packs = folder.path().join("cache/packs");
        lap::write(&two_linears(seed), &model, &mut |_, _| true).unwrap();
        Scene { _folder: folder, model, packs }
    }

    /// Loads the model and runs it once.
    fn run(&self, pack_cache: Option<&Path>) -> Vec<f32> {
        let program = Arc::new(lap::open(&self.model, true).unwrap());
        let options = LoadOptions {
            max_context: 8,
            n_sequences: 1,
            limits: CallLimits { chunk: 4, tokens: 4, block: 1 },
            threads: Some(2),
            pack_cache: pack_cache.map(Path::to_path_buf),
            ..LoadOptions::default()
        };
        let device = CpuBackend.open(&DeviceId::new("cpu", 0)).unwrap();
        let mut engine = device.load(&program, &options, &mut |_, _| {}).unwrap();
        let x: Vec<f32> = (0..2 * COLS).map(|i| (i as f32 * 0.37).sin()).collect();
        let (feeds, wants) = ([Feed::f32("x", &x)], [Wanted::whole("y")]);
        let call = Call { method: "op", feeds: &feeds, wants: &wants, ..Call::default() };
        let mut results = Results::default();
        engine.run(&call, &mut results).unwrap();
        results.get("y").unwrap().data.clone()
    }

    /// The one pack that is there.
    fn pack(&self) -> PathBuf {
        let mut packs = fs::read_dir(&self.packs).unwrap();
        let found = packs.next().expect("there is a pack").unwrap().path();
        assert!(packs.next().is_none(), "there is one pack, and nothing half written");
        found
    }
}

fn two_linears(seed: u8) -> Program {
    let q4 = WeightDecl::quant([ROWS, COLS], QuantLayout::symmetric(4, 32, DType::F16));
    let dense = WeightDecl::dense([ROWS, ROWS], DType::F32);
    let mut store = MemoryStore::new();
    let bytes = |n: u64| (0..n).map(|i| (i as u8).wrapping_mul(37).wrapping_add(seed)).collect();
    store.insert("q", Part::Data, bytes(q4.part_bytes(Part::Data)));
    let scale = half::f16::from_f32(0.01).to_le_bytes();
    let n_scales = q4.part_bytes(Part::Scale) as usize / 2;
    store.insert("q", Part::Scale, scale.repeat(n_scales));
    store.insert_f32("d", &(0..ROWS * ROWS).map(|i| (i as f32).cos()).collect::<Vec<_>>());
    let weights = BTreeMap::from([("q".to_string(), q4), ("d".to_string(), dense)]);
    let mut graph = GraphBuilder::new(&weights, &[]);
    let x = graph.input("x", ValueType::rows(Sym::Tokens, COLS));
    let linear = |weight: &str| Op::Linear { weight: weight.into(), bias: None };
    let h = graph.node("q", linear("q"), &[x]).unwrap();
    let y = graph.node("d", linear("d"), &[h]).unwrap();
    graph.output("y", y);
    let methods = BTreeMap::from([("op".to_string(), Method::new(64, graph.finish()))]);
    let metadata = Metadata {
        name: "two linears".into(),
        architecture: "test".into(),
        made_by: "test".into(),
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
    Program::new(description, BTreeMap::new(), Arc::new(store)).unwrap()
}

/// Tells a file from another under the same name.
fn number(path: &Path) -> u64 {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(path).unwrap().ino()
    }
    #[cfg(not(unix))]
    {
        fs::metadata(path).unwrap().len()
    }
}

#[test]
fn a_second_start_reads_what_the_first_has_packed() {
    let scene = Scene::new(1);
    let plain = scene.run(None);
    assert!(!scene.packs.exists(), "nothing is kept unless a folder is given");
    assert_eq!(scene.run(Some(&scene.packs)), plain);
    let (written, first) = (fs::read(scene.pack()).unwrap(), number(&scene.pack()));
    assert_eq!(scene.run(Some(&scene.packs)), plain);
    assert!(fs::read(scene.pack()).unwrap() == written);
    assert_eq!(number(&scene.pack()), first, "it was not written again");
}

#[test]
fn f17_a_damaged_pack_is_found_out_and_made_anew() {
    let scene = Scene::new(2);
    let plain = scene.run(Some(&scene.packs));
    let path = scene.pack();
    let sound = fs::read(&path).unwrap();
    let flipped = |at: usize| {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let damages: Vec<(&str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("half", sound[..sound.len() / 2].to_vec()),
        ("one byte short", sound[..sound.len() - 1].to_vec()),
        ("one byte long", [sound.as_slice(), b"x"].concat()),
        ("a byte of a weight", flipped(sound.len() - 100)),
        ("the last byte", flipped(sound.len() - 1)),
        ("the magic", flipped(0)),
        ("the length of the head", flipped(11)),
        ("the key in the head", flipped(60)),
        ("something else", b"not a pack at all".repeat(100)),
    ];
    for (what, bytes) in damages {
        fs::write(&path, bytes).unwrap();
        assert_eq!(scene.run(Some(&scene.packs)), plain, "{what}");
        assert!(fs::read(scene.pack()).unwrap() == sound, "{what}: it was made anew");
    }
}

#[test]
fn f17_a_pack_of_another_model_is_not_used() {
    let (one, other) = (Scene::new(3), Scene::new(4));
    let truth = one.run(None);
    assert_ne!(truth, other.run(Some(&other.packs)), "the models differ");
    one.run(Some(&one.packs));
    fs::copy(other.pack(), one.pack()).unwrap();
    assert_eq!(one.run(Some(&one.packs)), truth);
}

#[test]
fn f17_a_model_that_changed_in_place_is_packed_again() {
    let scene = Scene::new(5);
    scene.run(Some(&scene.packs));
    let old = scene.pack();
    lap::write(&two_linears(6), &scene.model, &mut |_, _| true).unwrap();
    let new = Scene::new(6).run(None);
    assert_eq!(scene.run(Some(&scene.packs)), new);
    assert_eq!(fs::read_dir(old.parent().unwrap()).unwrap().count(), 2, "each has its own pack");
}

#[test]
fn a_folder_that_cannot_be_made_is_no_error() {
    let scene = Scene::new(7);
    let blocked = scene.model.join("packs");
    assert_eq!(scene.run(Some(&blocked)), scene.run(None));
}

#[test]
fn threads_that_start_at_once_all_get_the_right_weights() {
    let scene = Scene::new(8);
    let truth = scene.run(None);
    std::thread::scope(|threads| {
        let runs: Vec<_> =
            (0..6).map(|_| threads.spawn(|| scene.run(Some(&scene.packs)))).collect();
        for run in runs {
            assert_eq!(run.join().unwrap(), truth);
        }
    });
    scene.pack();
}
