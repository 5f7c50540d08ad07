//! Folders that MLX and torchao quantised, against what their own code says their weights are.
//!
//! `testdata/make_quantised.py` writes them, and the last row of every quantised weight in `f32`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use lapidary_gemma::{Error, Imported, OpenOptions, TextConfig, hf, open};
use lapidary_program::{Access, DType, Encoding, Op, QuantLayout, Weight, WeightDecl, method};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use tempfile::TempDir;

const FOLDERS: &[&str] = &["mlx_gemma3_text", "mlx_gemma4", "torchao_gemma3_text"];

fn quantised(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/quantised").join(folder)
}

fn read(path: &Path) -> Imported {
    hf::read_model(path, true).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn layout(decl: &WeightDecl) -> Option<QuantLayout> {
    match decl.encoding {
        Encoding::Quant(layout) => Some(layout),
        Encoding::Dense(_) => None,
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Every weight that the oracle dequantised, with the last rows of its matrices.
fn expected(folder: &str) -> BTreeMap<String, Vec<f32>> {
    let bytes = fs::read(quantised(folder).join("reference.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let rows = file.tensors().into_iter().filter_map(|(name, tensor)| {
        Some((name.strip_prefix("dequantised.")?.to_string(), floats(tensor.data())))
    });
    rows.collect()
}

#[test]
fn every_weight_has_the_values_of_its_makers_bit_for_bit() {
    for folder in FOLDERS {
        let imported = read(&quantised(folder));
        let expected = expected(folder);
        let ours: BTreeSet<_> = imported
            .weights
            .iter()
            .filter(|(_, decl)| layout(decl).is_some())
            .map(|(name, _)| name.clone())
            .collect();
        assert_eq!(ours, expected.keys().cloned().collect(), "{folder}: quantised weights");
        for (name, want) in expected {
            let decl = &imported.weights[&name];
            let rows_of_one = decl.shape[decl.shape.len() - 2] as usize;
            let weight = Weight::fetch(&name, decl, imported.store.as_ref()).unwrap();
            let mut got = vec![0.0; want.len()];
            let mut alone = vec![0.0; decl.cols()];
            for (i, got) in got.chunks_mut(decl.cols()).enumerate() {
                let row = (i + 1) * rows_of_one - 1;
                weight.row_f32(row, got);
                let one = Weight::fetch_rows(&name, decl, imported.store.as_ref(), row..row + 1);
                one.unwrap().row_f32(0, &mut alone);
                assert_eq!(bits(got), bits(&alone), "{folder}: {name} row {row} alone");
            }
            let label = decl.encoding.label();
            assert_eq!(bits(&got), bits(&want), "{folder}: {name} ({label})");
        }
    }
}

#[test]
fn mlx_folders_cover_every_width_and_group_and_are_used_in_place() {
    let mut pairs = BTreeSet::new();
    for folder in ["mlx_gemma3_text", "mlx_gemma4"] {
        let imported = read(&quantised(folder));
        for (name, decl) in &imported.weights {
            let Some(layout) = layout(decl) else { continue };
            let in_place = layout.affine && !name.ends_with("gate_up_proj");
            assert_eq!(imported.store.access(name) == Access::Lent, in_place, "{name}");
            if layout.affine {
                pairs.insert((layout.bits, layout.group));
            }
        }
    }
    let all: BTreeSet<_> =
        [2, 3, 4, 5, 6, 8].iter().flat_map(|b| [32, 64, 128].map(|g| (*b, g))).collect();
    assert_eq!(pairs, all);
}

#[test]
fn torchao_weights_keep_their_width_unless_zeros_need_room() {
    let imported = read(&quantised("torchao_gemma3_text"));
    let of = |name: &str| layout(&imported.weights[&format!("model.{name}.weight")]).unwrap();
    let symmetric = QuantLayout::symmetric;
    assert_eq!(of("embed_tokens"), symmetric(8, 64, DType::Bf16));
    assert_eq!(of("layers.0.mlp.down_proj"), symmetric(4, 32, DType::Bf16));
    assert_eq!(of("layers.0.self_attn.k_proj"), symmetric(2, 32, DType::Bf16));
    assert_eq!(of("layers.2.mlp.up_proj"), symmetric(8, 64, DType::F32));
    // Zeros are taken off the codes, which then span more.
    let asymmetric = of("layers.0.self_attn.q_proj");
    assert_eq!((asymmetric.bits, asymmetric.group, asymmetric.affine), (5, 32, false));
    // 8 bits have no room: the zeros become biases, in f32.
    let wide = of("layers.0.self_attn.v_proj");
    assert_eq!(wide, QuantLayout { offset: 128, ..QuantLayout::affine(8, 64, DType::F32) });
    let nibbles = QuantLayout { offset: 8, ..QuantLayout::affine(4, 32, DType::Bf16) };
    assert_eq!(of("layers.1.self_attn.q_proj"), nibbles);
    assert_eq!(of("layers.2.self_attn.k_proj"), nibbles);
}

fn embed_scale(folder: &Path) -> f32 {
    let program = open(folder, &OpenOptions::default()).unwrap();
    let nodes = &program.method(method::FORWARD).unwrap().graph.nodes;
    let scale = nodes.iter().find_map(|node| match node.op {
        Op::Embed { scale, .. } => Some(scale),
        _ => None,
    });
    scale.unwrap()
}

/// Scales in F32, which are bf16 scales widened: the values stay.
#[test]
fn mlx_scales_may_be_f32() {
    let mut folder = Folder::of("mlx_gemma3_text");
    let name = format!("{Q}.weight");
    let row = |imported: &Imported| {
        let decl = &imported.weights[&name];
        let weight = Weight::fetch(&name, decl, imported.store.as_ref()).unwrap();
        (decl.encoding, bits(&weight.to_f32()))
    };
    let (_, before) = row(&folder.read());
    for part in ["scales", "biases"] {
        let (dtype, _, data) = folder.tensors.get_mut(&format!("{Q}.{part}")).unwrap();
        *dtype = Dtype::F32;
        *data = data.as_chunks::<2>().0.iter().flat_map(|b| [0, 0, b[0], b[1]]).collect();
    }
    let (encoding, after) = row(&folder.read());
    assert_eq!(encoding, Encoding::Quant(QuantLayout::affine(2, 32, DType::F32)));
    assert_eq!(before, after);
}

/// √128 is 11.3137…; those who quantised the table multiply in bf16.
#[test]
fn the_factor_of_a_quantised_embedding_is_rounded_as_its_makers_do() {
    assert_eq!(embed_scale(&quantised("mlx_gemma3_text")), 11.3125);
}

/// A folder whose tensors, notes and configuration a test may change.
struct Folder {
    home: TempDir,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    notes: std::collections::HashMap<String, String>,
    config: Value,
}

impl Folder {
    fn of(name: &str) -> Self {
        let bytes = fs::read(quantised(name).join("model.safetensors")).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let tensors = SafeTensors::deserialize(&bytes)
            .unwrap()
            .tensors()
            .into_iter()
            .map(|(n, t)| (n, (t.dtype(), t.shape().to_vec(), t.data().to_vec())))
            .collect();
        let config = fs::read(quantised(name).join("config.json")).unwrap();
        Folder {
            home: tempfile::tempdir().unwrap(),
            tensors,
            notes: header.metadata().clone().unwrap_or_default(),
            config: serde_json::from_slice(&config).unwrap(),
        }
    }

    fn rename(&mut self, rename: impl Fn(&str) -> String) {
        let old = std::mem::take(&mut self.tensors);
        self.tensors = old.into_iter().map(|(name, t)| (rename(&name), t)).collect();
    }

    fn note(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut note: Value = serde_json::from_str(&self.notes[name]).unwrap();
        change(&mut note);
        self.notes.insert(name.into(), note.to_string());
    }

    fn try_read(&self) -> Result<Imported, Error> {
        let views = self.tensors.iter().map(|(name, (dtype, shape, data))| {
            (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        let file = safetensors::serialize(views, Some(self.notes.clone())).unwrap();
        fs::write(self.home.path().join("model.safetensors"), file).unwrap();
        fs::write(self.home.path().join("config.json"), self.config.to_string()).unwrap();
        hf::read_model(self.home.path(), false)
    }

    fn read(&self) -> Imported {
        self.try_read().unwrap_or_else(|e| panic!("{e}"))
    }

    /// The tensor that a refusal names, and what it says.
    fn refused(&self) -> (String, String) {
        match self.try_read() {
            Ok(_) => panic!("a bad folder was accepted"),
            Err(Error::Tensor { tensor, what }) => (tensor, what),
            Err(e) => (String::new(), e.to_string()),
        }
    }
}

fn text(imported: &Imported) -> &TextConfig {
    &imported.text
}

const Q: &str = "model.layers.0.self_attn.q_proj";

#[test]
fn names_of_mlx_vlm_are_known() {
    let mut folder = Folder::of("mlx_gemma3_text");
    folder.rename(|n| format!("language_model.{n}"));
    let renamed = folder.read();
    let plain = read(&quantised("mlx_gemma3_text"));
    assert_eq!(renamed.weights, plain.weights);
    assert!(text(&renamed).tie_word_embeddings);

    // mlx-vlm gives every Gemma 3 a head of its own, which may have other bits.
    for part in ["weight", "scales", "biases"] {
        let like = folder.tensors[&format!("language_model.model.embed_tokens.{part}")].clone();
        folder.tensors.insert(format!("language_model.lm_head.{part}"), like);
    }
    let untied = folder.read();
    assert!(!text(&untied).tie_word_embeddings);
    assert_eq!(untied.weights["lm_head.weight"], untied.weights["model.embed_tokens.weight"]);
}

#[test]
fn mlx_modules_may_be_left_alone_or_said_to_be_like_the_rest() {
    let mut folder = Folder::of("mlx_gemma3_text");
    let quantization = &mut folder.config["quantization"];
    quantization["model.layers.2.self_attn.o_proj"] = json!(false);
    quantization["model.layers.2.mlp.down_proj"] = json!(true);
    assert_eq!(folder.read().weights, read(&quantised("mlx_gemma3_text")).weights);
    folder.config.as_object_mut().unwrap().remove("quantization");
    assert_eq!(folder.read().weights, read(&quantised("mlx_gemma3_text")).weights);
}

/// Gives the module `Q` of a folder byte scales for groups of this length, and no biases.
fn with_byte_scales(folder: &mut Folder, words: usize, group: usize) {
    folder.config["quantization"].as_object_mut().unwrap().remove(Q);
    folder.tensors.remove(&format!("{Q}.biases"));
    let scales = (Dtype::U8, vec![32, 128 / group], vec![120; 32 * 128 / group]);
    folder.tensors.insert(format!("{Q}.scales"), scales);
    let codes = (Dtype::U32, vec![32, words], vec![0x5a; 32 * words * 4]);
    folder.tensors.insert(format!("{Q}.weight"), codes);
}

#[test]
fn other_modes_of_mlx_are_refused_by_name() {
    for (mode, words, group) in [("mxfp8", 32, 32), ("an unknown mode", 12, 32)] {
        let mut folder = Folder::of("mlx_gemma3_text");
        with_byte_scales(&mut folder, words, group);
        let (tensor, said) = folder.refused();
        assert_eq!(tensor, format!("{Q}.weight"));
        assert!(said.contains(mode) && said.contains("affine"), "{said}");
    }
    let mut folder = Folder::of("mlx_gemma3_text");
    with_byte_scales(&mut folder, 16, 16);
    assert_eq!(layout(&folder.read().weights[&format!("{Q}.weight")]).unwrap().bits, 5);
    folder.tensors.insert(format!("{Q}.global_scale"), (Dtype::F32, vec![1], vec![0; 4]));
    assert!(folder.refused().1.contains("nvfp4"));
    folder.tensors.remove(&format!("{Q}.global_scale"));
    folder.config["quantization"][Q] = json!({"mode": "mxfp4", "bits": 4, "group_size": 16});
    let (_, said) = folder.refused();
    assert!(said.contains("nvfp4") && said.contains("not what"), "{said}");
    folder.config["quantization"][Q] = json!({"mode": "affine"});
    assert!(folder.refused().1.contains("not what"));
}

/// A power of two.
fn e8m0(byte: u8) -> f64 {
    2f64.powi(i32::from(byte) - 127)
}

/// A float with four bits of exponent and three of fraction.
fn e4m3(byte: u8) -> f64 {
    let (exponent, fraction) = (i32::from((byte >> 3) & 15), f64::from(byte & 7));
    let sign = if byte < 128 { 1.0 } else { -1.0 };
    let size = if exponent == 0 { fraction } else { 8.0 + fraction };
    sign * size * 2f64.powi(exponent.max(1) - 10)
}

/// Codes that share a scale, the first scale, and what a scale means.
type Case = (usize, u8, fn(u8) -> f64);

/// Every scale and every code of MLX's four-bit floats, against their definition. (That MLX gives
/// the same numbers is checked by a folder above.)
#[test]
fn small_floats_have_their_values() {
    let codes = [0.0f32, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let name = format!("{Q}.weight");
    let cases: [Case; 3] = [(32, 0, e8m0), (32, 128, e8m0), (16, 0, e4m3)];
    for (group, first, scale_of) in cases {
        let mut folder = Folder::of("mlx_gemma3_text");
        with_byte_scales(&mut folder, 16, group);
        let all_codes = [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe].repeat(32 * 8);
        folder.tensors.get_mut(&name).unwrap().2 = all_codes;
        let n_scales = 32 * 128 / group;
        let scales: Vec<u8> = (0..n_scales).map(|i| first + i as u8).collect();
        folder.tensors.get_mut(&format!("{Q}.scales")).unwrap().2 = scales.clone();
        let imported = folder.read();
        let (decl, store) = (&imported.weights[&name], imported.store.as_ref());
        for (row, scales) in scales.chunks(128 / group).enumerate() {
            let weight = Weight::fetch_rows(&name, decl, store, row..row + 1);
            if scales.contains(&255) || (scales.contains(&127) && group == 16) {
                assert!(weight.is_err_and(|e| e.to_string().contains("not a number")));
                continue;
            }
            let mut values = vec![0.0; 128];
            weight.unwrap().row_f32(0, &mut values);
            for (i, got) in values.iter().enumerate() {
                let sign = if i % 16 < 8 { 1.0 } else { -1.0 };
                let scale = scales[i / group];
                let want = (sign * f64::from(codes[i % 8]) * scale_of(scale)) as f32;
                assert_eq!(*got, want, "code {} with scale {scale}, group {group}", i % 16);
            }
        }
    }
}

#[test]
fn damaged_mlx_folders_are_refused_with_the_tensors_name() {
    let mut folder = Folder::of("mlx_gemma3_text");
    folder.tensors.remove(&format!("{Q}.scales"));
    assert_eq!(folder.refused(), (format!("{Q}.scales"), "it is missing".into()));

    let mut folder = Folder::of("mlx_gemma3_text");
    folder.tensors.remove(&format!("{Q}.biases"));
    assert_eq!(folder.refused(), (format!("{Q}.biases"), "it is missing".into()));

    // Words of a row, then rows, scales, and biases that do not fit.
    type Damage = (&'static str, fn(&mut Vec<usize>), &'static str);
    let damages: [Damage; 6] = [
        ("weight", |s| s[1] -= 1, "7 words"),
        ("weight", |s| s[1] = 28, "28 words are not"),
        ("weight", |s| s[0] -= 1, "asks for [32, 128]"),
        ("weight", |s| s.push(1), "asks for [32, 128]"),
        ("scales", |s| s[1] -= 1, "3 scales are not groups"),
        ("biases", |s| s[0] -= 1, "must be alike"),
    ];
    for (part, damage, says) in damages {
        let mut folder = Folder::of("mlx_gemma3_text");
        let (dtype, shape, data) = folder.tensors.get_mut(&format!("{Q}.{part}")).unwrap();
        damage(shape);
        data.resize(shape.iter().product::<usize>() * dtype.bitsize() / 8, 0);
        let (tensor, said) = folder.refused();
        assert_eq!(tensor, format!("{Q}.weight"), "{part}: {said}");
        assert!(said.contains(says), "{part}: {said}");
    }

    let mut folder = Folder::of("mlx_gemma3_text");
    let scales = folder.tensors.get_mut(&format!("{Q}.scales")).unwrap();
    scales.0 = Dtype::I16;
    let biases = folder.tensors.get_mut(&format!("{Q}.biases")).unwrap();
    biases.0 = Dtype::I16;
    assert!(folder.refused().1.contains("I16"));
}

#[test]
fn mlx_configurations_that_lie_are_refused() {
    for (key, value, says) in [
        ("bits", json!(7), "bits is 7"),
        ("bits", json!("four"), "bits is \"four\""),
        ("group_size", json!(48), "group_size is 48"),
        ("mode", json!(3), "mode is 3"),
    ] {
        let mut folder = Folder::of("mlx_gemma3_text");
        folder.config["quantization"][key] = value;
        let (_, said) = folder.refused();
        assert!(said.contains(says), "{said}");
    }
    for (value, says) in [
        (json!({"bits": 4, "group_size": 32}), "2 bits in groups of 32"),
        (json!({"bits": 2, "group_size": 64}), "2 bits in groups of 32"),
        (json!(false), "not quantised"),
    ] {
        let mut folder = Folder::of("mlx_gemma3_text");
        folder.config["quantization"][Q] = value;
        let (tensor, said) = folder.refused();
        assert_eq!(tensor, format!("{Q}.weight"));
        assert!(said.contains(says), "{said}");
    }
    let mut folder = Folder::of("mlx_gemma3_text");
    folder.config["quantization"] = json!([4, 32]);
    assert!(folder.refused().1.contains("not an object"));
}

#[test]
fn experts_that_mlx_quantised_differently_are_refused() {
    let mut folder = Folder::of("mlx_gemma4");
    let up = "language_model.model.layers.0.experts.switch_glu.up_proj";
    for part in ["scales", "biases"] {
        folder.tensors.get_mut(&format!("{up}.{part}")).unwrap().0 = Dtype::BF16;
    }
    let (tensor, said) = folder.refused();
    assert_eq!(tensor, format!("{up}.weight"));
    assert!(said.contains("in the same way"), "{said}");
    folder.tensors.remove(&format!("{up}.weight"));
    let (tensor, said) = folder.refused();
    assert!(tensor.ends_with("layers.0.experts.gate_up_proj") && said.contains("missing"));
}

#[test]
fn other_classes_of_torchao_are_refused_by_name() {
    let name = format!("{Q}.weight");
    for class in ["Int4PreshuffledTensor", "Int4PlainInt32Tensor", "Float8Tensor", "NVFP4Tensor"] {
        let mut folder = Folder::of("torchao_gemma3_text");
        folder.note(&name, |note| note["_type"] = json!(class));
        let (tensor, said) = folder.refused();
        assert_eq!(tensor, name);
        assert!(said.contains(class), "{said}");
    }
    let mut folder = Folder::of("torchao_gemma3_text");
    folder.note(&name, |note| {
        note["_tensor_data_names"].as_array_mut().unwrap().push(json!("act_pre_scale"));
    });
    let (tensor, said) = folder.refused();
    assert_eq!(tensor, name);
    assert!(said.contains("act_pre_scale"), "{said}");
}

#[test]
fn damaged_torchao_folders_are_refused_with_the_tensors_name() {
    let nibbles = "model.layers.1.self_attn.q_proj";
    let tiles = "model.layers.2.self_attn.k_proj";
    for (module, part) in [
        (Q, "qdata"),
        (Q, "scale"),
        (Q, "zero_point"),
        (nibbles, "qdata"),
        (nibbles, "zero_point"),
        (tiles, "qdata"),
        (tiles, "scale_and_zero"),
    ] {
        let part = format!("{module}._weight_{part}");
        let mut folder = Folder::of("torchao_gemma3_text");
        let (dtype, shape, data) = folder.tensors[&part].clone();

        folder.tensors.remove(&part);
        assert_eq!(folder.refused(), (part.clone(), "it is missing".into()));

        let mut longer = shape.clone();
        longer[1] += 1;
        let size = longer.iter().product::<usize>() * dtype.bitsize() / 8;
        folder.tensors.insert(part.clone(), (dtype, longer, vec![0; size]));
        let (tensor, said) = folder.refused();
        assert_eq!(tensor, format!("{module}.weight"), "{part}: {said}");
        assert!(said.contains("shape"), "{part}: {said}");

        let other = if dtype.bitsize() == 16 { Dtype::I16 } else { Dtype::BOOL };
        let data = vec![0; data.len() * 8 / dtype.bitsize() * other.bitsize() / 8];
        folder.tensors.insert(part.clone(), (other, shape, data));
        let (tensor, said) = folder.refused();
        assert_eq!(tensor, part, "{said}");
        assert!(said.contains("not one of"), "{said}");
    }
}

#[test]
fn torchao_notes_that_lie_are_refused() {
    type Lie = (&'static str, fn(&mut Value), &'static str);
    let lies: [Lie; 7] = [
        (Q, |n| n["_data"]["block_size"] = json!([1, 24]), "blocks of [1, 24]"),
        (Q, |n| n["_data"]["block_size"] = json!([0, 0]), "blocks of [0, 0]"),
        (Q, |n| n["_data"]["block_size"] = json!("many"), "no block_size"),
        (Q, |n| n["_data"]["target_dtype"]["_data"] = json!("int9"), "int1 to int8"),
        (Q, |n| n["_data"] = json!(null), "no block_size"),
        ("model.layers.1.self_attn.q_proj", |n| n["_data"]["shape"] = json!([1, 64]), "[1, 64]"),
        (
            "model.layers.1.self_attn.q_proj",
            |n| n["_data"]["block_size"] = json!([2, 32]),
            "blocks",
        ),
    ];
    for (module, lie, says) in lies {
        let mut folder = Folder::of("torchao_gemma3_text");
        folder.note(&format!("{module}.weight"), lie);
        let (tensor, said) = folder.refused();
        assert_eq!(tensor, format!("{module}.weight"), "{said}");
        assert!(said.contains(says), "{said}");
    }
    let mut folder = Folder::of("torchao_gemma3_text");
    folder.notes.clear();
    let (_, said) = folder.refused();
    assert!(said.contains("no note"), "{said}");
}

/// transformers does this to a multimodal Gemma 3.
#[test]
fn torchao_notes_may_have_another_prefix_than_the_tensors() {
    let mut folder = Folder::of("torchao_gemma3_text");
    folder.rename(|n| match n.strip_prefix("model.") {
        Some(_) => format!("language_model.{n}"),
        None => n.into(),
    });
    let notes = std::mem::take(&mut folder.notes).into_iter();
    folder.notes =
        notes.map(|(n, note)| (n.replacen("model.", "model.language_model.", 1), note)).collect();
    assert_eq!(folder.read().weights, read(&quantised("torchao_gemma3_text")).weights);
}

#[test]
fn torchao_zeros_that_have_no_exact_form_are_refused() {
    let v = "model.layers.0.self_attn.v_proj";
    // Fractions.
    let mut folder = Folder::of("torchao_gemma3_text");
    let zeros = folder.tensors.get_mut(&format!("{v}._weight_zero_point")).unwrap();
    let halves = zeros.2.iter().flat_map(|_| 0.5f32.to_le_bytes()).collect();
    *zeros = (Dtype::F32, zeros.1.clone(), halves);
    let (tensor, said) = folder.refused();
    assert_eq!(tensor, format!("{v}.weight"));
    assert!(said.contains("0.5"), "{said}");
    // 8 bits with zeros and scales of 24 bits.
    let mut folder = Folder::of("torchao_gemma3_text");
    let scales = folder.tensors.get_mut(&format!("{v}._weight_scale")).unwrap();
    let wide = scales.2.chunks(2).flat_map(|_| 0.1f32.to_le_bytes()).collect();
    *scales = (Dtype::F32, scales.1.clone(), wide);
    let (tensor, said) = folder.refused();
    assert_eq!(tensor, format!("{v}.weight"));
    assert!(said.contains("symmetric"), "{said}");
}

/// Codes are looked at when they are asked for: a weight is never read whole at import.
#[test]
fn torchao_codes_outside_their_type_are_an_error_not_another_number() {
    let mut folder = Folder::of("torchao_gemma3_text");
    let codes = folder.tensors.get_mut(&format!("{Q}._weight_qdata")).unwrap();
    codes.2[70] = 8;
    let imported = folder.read();
    let name = format!("{Q}.weight");
    let said = match Weight::fetch(&name, &imported.weights[&name], imported.store.as_ref()) {
        Ok(_) => panic!("a code outside int4 was accepted"),
        Err(e) => e.to_string(),
    };
    assert!(said.contains(&name) && said.contains("row 1") && said.contains("8"), "{said}");
}

#[test]
fn folders_of_other_methods_are_refused_by_name() {
    let mut folder = Folder::of("torchao_gemma3_text");
    folder.notes.clear();
    folder.config["quantization_config"] = json!({"quant_method": "gptq", "bits": 4});
    folder.rename(|n| n.replace("_weight_qdata", "qweight"));
    let (tensor, said) = folder.refused();
    assert_eq!(tensor, "model.embed_tokens.weight");
    assert!(said.contains("gptq"), "{said}");
    folder.rename(|n| n.replace("qweight", "weight"));
    assert!(folder.refused().1.contains("gptq"));
}
