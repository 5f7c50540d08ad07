//! The towers of GGUF models: which file is taken, what it becomes, and what is refused.

mod gguf_writer;

use std::fs;
use std::path::{Path, PathBuf};

use gguf_writer::{Writer, testdata};
use lapidary_gemma::{Error, Notice, OpenOptions, Opened, gguf, open, open_noticing};
use lapidary_program::{Access, FileBytes, Program, Weight, method};
use tempfile::TempDir;

const FAMILIES: [&str; 4] = ["gemma3_mm", "gemma4_mm_large", "gemma4_mm_e", "gemma4_unified"];

fn folder(family: &str) -> PathBuf {
    testdata().join("gguf").join(family)
}

/// A folder with a model, and with these files beside it.
fn with_beside(family: &str, beside: &[(&str, Vec<u8>)]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.gguf");
    fs::copy(folder(family).join("model.gguf"), &model).unwrap();
    for (name, bytes) in beside {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    (dir, model)
}

fn mmproj(family: &str) -> Vec<u8> {
    fs::read(folder(family).join("mmproj.gguf")).unwrap()
}

fn opened(model: &Path) -> Opened {
    open_noticing(model, &OpenOptions::default()).unwrap()
}

fn sees(program: &Program) -> bool {
    program.method(method::VISION).is_ok()
}

fn with_mmproj(model: &Path, mmproj: &Path) -> Result<Program, Error> {
    open(model, &OpenOptions { mmproj: Some(mmproj.to_path_buf()), ..OpenOptions::default() })
}

/// What is said when this file is given as the towers of a model.
fn refused(family: &str, bytes: &[u8]) -> String {
    let (dir, model) = with_beside(family, &[]);
    let given = dir.path().join("towers.gguf");
    fs::write(&given, bytes).unwrap();
    with_mmproj(&model, &given).err().expect("a bad file was accepted").to_string()
}

/// A file taken apart, so that a test may change it.
struct Parts {
    file: gguf::Gguf,
    bytes: Vec<u8>,
}

impl Parts {
    fn of(family: &str) -> Self {
        let bytes = mmproj(family);
        Parts { file: gguf::Gguf::parse(FileBytes::from_vec(bytes.clone())).unwrap(), bytes }
    }

    /// The file with each tensor renamed, or left out where there is no name.
    fn renamed(&self, rename: impl Fn(&str) -> Option<String>) -> Writer {
        let first = gguf_writer::text(&self.file.tensors()[0].name);
        let end = self.bytes.windows(first.len()).position(|w| w == first).unwrap();
        let mut writer =
            Writer { entries: vec![self.bytes[24..end].to_vec()], ..Writer::default() };
        writer.entries.resize(self.file.keys().count(), vec![]);
        for t in self.file.tensors() {
            let Some(name) = rename(&t.name) else { continue };
            let ids = [("F32", 0), ("F16", 1), ("BF16", 30)];
            let id = ids.iter().find(|(name, _)| *name == t.ggml_type.name()).unwrap().1;
            let dims: Vec<u64> = t.shape.iter().rev().copied().collect();
            writer = writer.tensor(&name, &dims, id, self.file.tensor_bytes(t).to_vec());
        }
        writer
    }

    fn without(&self, tensor: &str) -> Vec<u8> {
        assert!(self.file.tensor(tensor).is_some(), "{tensor}");
        self.renamed(|name| (name != tensor).then(|| name.to_string())).bytes()
    }
}

/// Every weight of the towers has the values of the checkpoint that they were made from, or what
/// the converter makes of them.
#[test]
fn weights_stand_under_the_right_names() {
    for family in FAMILIES {
        let original =
            lapidary_gemma::hf::read_model(&testdata().join("tiny").join(family), true).unwrap();
        let path = folder(family).join("mmproj.gguf");
        let read = gguf::read_towers(&path, FileBytes::open(&path, true).unwrap()).unwrap();
        let (mut same, mut other) = (0, 0);
        for (name, decl) in &read.weights {
            let theirs = &original.weights[name];
            assert_eq!(decl.shape, theirs.shape, "{family} {name}");
            let got = Weight::fetch(name, decl, read.store.as_ref()).unwrap().to_f32();
            let want = Weight::fetch(name, theirs, original.store.as_ref()).unwrap().to_f32();
            // Added to, taken the softplus of, or put in another order.
            let changed = ["mm_soft_emb_norm", "per_dim_scale", "input_proj.weight"];
            let moved = ["patch_ln1", "patch_dense.weight", "pos_embedding"];
            if changed.iter().chain(&moved).any(|n| name.contains(n)) {
                assert_ne!(got, want, "{family} {name}");
                other += 1;
                continue;
            }
            let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-6, "{family} {name}: differs by {worst}");
            same += 1;
        }
        let towers = original.weights.keys().filter(|n| lapidary_gemma::towers::is_tower_weight(n));
        assert_eq!(same + other, towers.count(), "{family}");
        assert!(other <= 4, "{family}");
    }
}

/// Rows of a weight that is turned are those of the whole.
#[test]
fn rows_of_a_turned_weight_are_made_alone() {
    let model = folder("gemma3_mm").join("model.gguf");
    let program = open(&model, &OpenOptions::default()).unwrap();
    let name = "multi_modal_projector.mm_input_projection_weight";
    let whole = program.weight(name).unwrap().to_f32();
    assert_eq!(program.store().access(name), Access::Rows);
    let some = program.weight_rows(name, 5..9).unwrap().to_f32();
    assert_eq!(some, whole[5 * 40..9 * 40]);
}

#[test]
fn the_only_file_that_fits_is_taken() {
    let (dir, model) = with_beside("gemma3_mm", &[]);
    let alone = opened(&model);
    assert!(!sees(&alone.program) && alone.notices.is_empty());
    assert!(alone.program.metadata().media.is_empty());

    let name = "some-model-mmproj-F16.gguf";
    let path = dir.path().join(name);
    fs::write(&path, mmproj("gemma3_mm")).unwrap();
    let found = opened(&model);
    assert!(sees(&found.program));
    assert_eq!(found.notices, [Notice::MmprojTaken(path.clone())]);

    // A broken one, one of another size and one of another family are passed over.
    fs::write(dir.path().join("mmproj-broken.GGUF"), &mmproj("gemma3_mm")[..500]).unwrap();
    fs::write(dir.path().join("mmproj-e.gguf"), mmproj("gemma4_mm_e")).unwrap();
    fs::write(dir.path().join("mmproj-notes.txt"), "no model").unwrap();
    let found = opened(&model);
    assert!(sees(&found.program));
    let skipped = |n: &&Notice| matches!(n, Notice::MmprojSkipped { .. });
    assert_eq!(found.notices.iter().filter(skipped).count(), 1, "{:?}", found.notices);
    let damaged = |n: &&Notice| matches!(n, Notice::MmprojDamaged { .. });
    assert_eq!(found.notices.iter().filter(damaged).count(), 1, "{:?}", found.notices);
    assert_eq!(found.notices.last(), Some(&Notice::MmprojTaken(path.clone())));

    // Of two that fit, the user must choose.
    let second = dir.path().join("mmproj-BF16.gguf");
    fs::write(&second, mmproj("gemma3_mm")).unwrap();
    let found = opened(&model);
    assert!(!sees(&found.program));
    let several = Notice::SeveralMmproj(vec![second.clone(), path.clone()]);
    assert_eq!(found.notices.last(), Some(&several));
    let said = several.to_string();
    assert!(said.contains("--mmproj") && said.contains(name), "{said}");
    assert!(sees(&with_mmproj(&model, &second).unwrap()));
}

#[test]
fn one_file_may_see_and_hear() {
    let (_dir, model) = with_beside("gemma4_mm_e", &[("MMPROJ.gguf", mmproj("gemma4_mm_e"))]);
    let program = opened(&model).program;
    assert!(sees(&program) && program.method(method::AUDIO).is_ok());
}

#[test]
fn files_that_are_something_else_are_named() {
    let text = fs::read(folder("gemma4_unified").join("model.gguf")).unwrap();
    let said = refused("gemma4_unified", &text);
    assert!(said.contains("`gemma4` model, not an mmproj"), "{said}");

    let model = folder("gemma4_unified").join("mmproj.gguf");
    let said = open(&model, &OpenOptions::default()).err().unwrap().to_string();
    assert!(said.contains("mmproj") && said.contains("--mmproj"), "{said}");

    let said = refused("gemma3_mm", &mmproj("gemma4_mm_large"));
    assert!(said.contains("belongs to a `gemma4` model") && said.contains("gemma3"), "{said}");
    let said = refused("gemma4_mm_large", &mmproj("gemma4_mm_e"));
    assert!(said.contains("hidden size 40") && said.contains("48"), "{said}");
    let said = refused("gemma3_mm", b"just some notes");
    assert!(said.contains("damaged GGUF"), "{said}");

    let clip = Writer::default().text("general.architecture", "clip");
    let said = refused("gemma3_mm", &clip.bytes());
    assert!(said.contains("has_vision_encoder"), "{said}");
    let llava =
        clip.clone().flag("clip.has_vision_encoder", true).text("clip.projector_type", "mlp");
    let said = refused("gemma3_mm", &llava.bytes());
    assert!(said.contains("clip/mlp") && said.contains("Gemma 3 and Gemma 4"), "{said}");
    let split = clip.u32("split.count", 2);
    assert!(refused("gemma3_mm", &split.bytes()).contains("one of 2 parts"));

    let (dir, _) = with_beside("gemma3_mm", &[]);
    let given = dir.path().join("x.gguf");
    let said = with_mmproj(&testdata().join("tiny/gemma3_mm"), &given).err().unwrap().to_string();
    assert!(said.contains("holds its towers itself"), "{said}");
    let said = with_mmproj(&folder("gemma3_mm").join("model.gguf"), &given).err().unwrap();
    assert!(matches!(said, Error::Io { .. } | Error::Program(_)), "{said}");
}

#[test]
fn tensors_that_are_missing_or_not_known_are_named() {
    for (family, tensor) in [
        ("gemma3_mm", "v.blk.1.attn_q.bias"),
        ("gemma3_mm", "mm.soft_emb_norm.weight"),
        ("gemma3_mm", "v.patch_embd.weight"),
        ("gemma4_mm_large", "v.position_embd.weight"),
        ("gemma4_mm_large", "v.std_scale"),
        ("gemma4_mm_large", "v.blk.0.attn_q_norm.weight"),
        ("gemma4_mm_e", "a.blk.1.conv_dw.weight"),
        ("gemma4_mm_e", "a.conv1d.1.weight"),
        ("gemma4_mm_e", "a.blk.0.per_dim_scale.weight"),
        ("gemma4_unified", "v.patch_norm.3.bias"),
        ("gemma4_unified", "mm.a.input_projection.weight"),
    ] {
        let said = refused(family, &Parts::of(family).without(tensor));
        assert!(said.contains(&format!("`{tensor}`: it is missing")), "{family}: {said}");
    }
    let parts = Parts::of("gemma4_mm_e");
    // Bounds come in pairs.
    let said = refused("gemma4_mm_e", &parts.without("v.blk.0.ffn_up.input_max"));
    assert!(said.contains("mlp.up_proj.input_max") && said.contains("input_min"), "{said}");
    let extra = parts.renamed(|name| Some(name.to_string()));
    let extra = extra.floats("v.blk.0.attn_q.bias", &[48], &[0.0; 48]).bytes();
    let said = refused("gemma4_mm_e", &extra);
    assert!(said.contains("`v.blk.0.attn_q.bias`: it is not part"), "{said}");
}

/// A checkpoint that bounds nothing has no clamps.
#[test]
fn bounds_that_are_not_there_are_not_applied() {
    let parts = Parts::of("gemma4_mm_e");
    let bound = |name: &str| name.ends_with("_min") || name.ends_with("_max");
    let bytes = parts.renamed(|name| (!bound(name)).then(|| name.to_string())).bytes();
    let (_dir, model) = with_beside("gemma4_mm_e", &[("mmproj.gguf", bytes)]);
    let program = opened(&model).program;
    for name in [method::VISION, method::AUDIO] {
        let nodes = &program.method(name).unwrap().graph.nodes;
        assert!(nodes.iter().all(|n| n.op.kind() != "clamp"), "{name}");
    }
}

/// Early files of Gemma 3 have the names of an MLP's two linears exchanged.
#[test]
fn exchanged_names_are_told_by_shape() {
    let parts = Parts::of("gemma3_mm");
    let exchange = |name: &str| {
        let exchanged = match name {
            n if n.contains("ffn_up") => n.replace("ffn_up", "ffn_down"),
            n => n.replace("ffn_down", "ffn_up"),
        };
        Some(exchanged)
    };
    let path = Path::new("mmproj.gguf");
    let want = gguf::read_towers(path, FileBytes::from_vec(mmproj("gemma3_mm"))).unwrap();
    let got = gguf::read_towers(path, parts.renamed(exchange).file()).unwrap();
    assert_eq!(got.weights, want.weights);
    for (name, decl) in &want.weights {
        let values = |store: &dyn lapidary_program::WeightStore| {
            Weight::fetch(name, decl, store).unwrap().to_f32()
        };
        assert_eq!(values(got.store.as_ref()), values(want.store.as_ref()), "{name}");
    }
}

#[test]
fn truncated_files_are_refused() {
    for family in FAMILIES {
        let whole = mmproj(family);
        for cut in [0, 3, 24, 200, whole.len() / 2, whole.len() - 1] {
            let said = refused(family, &whole[..cut]);
            assert!(
                said.contains("damaged GGUF") || said.contains("ends"),
                "{family} {cut}: {said}"
            );
        }
    }
}

/// Values that metadata must not have never get further than an error.
#[test]
fn metadata_that_lies_is_refused() {
    let base = |heads: u32, blocks: u32, image: u32| {
        Writer::default()
            .text("general.architecture", "clip")
            .flag("clip.has_vision_encoder", true)
            .text("clip.projector_type", "gemma3")
            .u32("clip.vision.projection_dim", 48)
            .u32("clip.vision.embedding_length", 40)
            .u32("clip.vision.feed_forward_length", 72)
            .u32("clip.vision.block_count", blocks)
            .u32("clip.vision.attention.head_count", heads)
            .u32("clip.vision.image_size", image)
            .u32("clip.vision.patch_size", 8)
    };
    for (writer, says) in [
        (base(3, 2, 64), "3 heads do not divide 40"),
        (base(0, 2, 64), "head_count`: it is 0"),
        (base(4, 100_000, 64), "100000"),
        (base(4, u32::MAX, 64), "block_count"),
        (base(4, 2, 50), "in patches of 8"),
        (base(4, 2, 48), "pooled by 4"),
        (base(4, 2, 64).f32s("clip.vision.image_mean", &[0.1, 0.2, 0.3]), "three channels"),
        (
            base(4, 2, 64)
                .f32s("clip.vision.image_mean", &[0.5; 3])
                .f32s("clip.vision.image_std", &[0.0; 3]),
            "image_std",
        ),
        (base(4, 2, 64).f32("clip.vision.attention.layer_norm_epsilon", -1.0), "negative"),
        (base(4, 2, 64), "`v.patch_embd.weight`: it is missing"),
    ] {
        let said = refused("gemma3_mm", &writer.bytes());
        assert!(said.contains(says), "{says}: {said}");
    }
}
