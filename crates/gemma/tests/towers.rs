//! Towers of Hugging Face folders: spellings, what files say of media, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use lapidary_gemma::{Error, OpenOptions, open};
use lapidary_program::{
    AudioFrames, ImageSize, Media, Op, PatchLayout, Program, Resample, Weight, input, method,
};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

fn tiny(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny").join(family)
}

fn copy(family: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(tiny(family).join(file), folder.path().join(file)).unwrap();
    }
    folder
}

fn try_open(path: &Path) -> Result<Program, Error> {
    open(path, &OpenOptions::default())
}

fn refused(path: &Path) -> String {
    try_open(path).err().expect("a bad checkpoint was accepted").to_string()
}

/// One tensor of a file.
#[derive(Clone)]
struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// A copy of a folder whose tensors have been changed.
fn with_tensors(family: &str, change: impl Fn(Tensor) -> Option<Tensor>) -> TempDir {
    let folder = copy(family);
    let path = folder.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let changed: Vec<Tensor> = file
        .tensors()
        .into_iter()
        .filter_map(|(name, view)| {
            change(Tensor {
                name,
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                bytes: view.data().to_vec(),
            })
        })
        .collect();
    let views = changed
        .iter()
        .map(|t| (t.name.clone(), TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &path).unwrap();
    folder
}

fn with_config(family: &str, change: impl FnOnce(&mut Value)) -> TempDir {
    let folder = copy(family);
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(path, serde_json::to_vec(&config).unwrap()).unwrap();
    folder
}

fn with_file(family: &str, name: &str, content: &Value) -> TempDir {
    let folder = copy(family);
    fs::write(folder.path().join(name), serde_json::to_vec(content).unwrap()).unwrap();
    folder
}

fn media(folder: &TempDir) -> Media {
    try_open(folder.path()).unwrap_or_else(|e| panic!("{e}")).metadata().media.clone()
}

/// All weights as numbers.
fn values(path: &Path) -> Vec<(String, Vec<f32>)> {
    let imported = lapidary_gemma::hf::read_model(path, true).unwrap();
    let store = imported.store.as_ref();
    let numbers = |name: &str, decl| Weight::fetch(name, decl, store).unwrap().to_f32();
    imported.weights.iter().map(|(name, decl)| (name.clone(), numbers(name, decl))).collect()
}

/// `[outer, rows, cols]` with rows and columns exchanged.
fn turned(t: &Tensor, rows: usize, cols: usize) -> Vec<u8> {
    let size = t.bytes.len() / t.shape.iter().product::<usize>();
    let mut out = Vec::new();
    for matrix in t.bytes.chunks_exact(rows * cols * size) {
        for col in 0..cols {
            for row in 0..rows {
                out.extend(&matrix[(row * cols + col) * size..][..size]);
            }
        }
    }
    out
}

/// As mlx-vlm writes them: no `model.`, and a convolution's channels last.
#[test]
fn names_and_convolutions_of_mlx_are_read() {
    for family in ["gemma3_mm", "gemma4_mm_e", "gemma4_unified"] {
        let folder = with_tensors(family, |mut t| {
            if !t.name.contains("language_model.") {
                t.name = t.name.strip_prefix("model.").unwrap_or(&t.name).to_string();
            }
            match t.shape[..] {
                [o, i, h, w] => {
                    t.bytes = turned(&t, i, h * w);
                    t.shape = vec![o, h, w, i];
                }
                [c, 1, k] => t.shape = vec![c, k, 1],
                _ => {}
            }
            Some(t)
        });
        assert_eq!(values(folder.path()), values(&tiny(family)), "{family}");
    }
    // As transformers 4.52 saved Gemma 3.
    let folder = with_tensors("gemma3_mm", |mut t| {
        t.name = match t.name.strip_prefix("language_model.model.") {
            Some(rest) => format!("model.language_model.{rest}"),
            None => {
                format!("model.{}", t.name.replace("vision_tower.", "vision_tower.vision_model."))
            }
        };
        Some(t)
    });
    assert_eq!(values(folder.path()), values(&tiny("gemma3_mm")));
}

/// A linear of a tower that MLX quantised: codes of 0, so that its numbers are the biases.
#[test]
fn linears_of_towers_may_be_quantised() {
    let stem = "model.vision_tower.encoder.layers.0.mlp.down_proj.linear";
    let folder = with_tensors("gemma4_mm_large", |t| (!t.name.starts_with(stem)).then_some(t));
    let path = folder.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let floats = |x: f32, n: usize| x.to_le_bytes().repeat(n);
    let (codes, scales, biases) = (vec![0; 48 * 8 * 4], floats(2.0, 48), floats(0.5, 48));
    let view = |dtype, cols, bytes| TensorView::new(dtype, vec![48, cols], bytes).unwrap();
    let parts = [
        (format!("{stem}.weight"), view(Dtype::U32, 8, &codes)),
        (format!("{stem}.scales"), view(Dtype::F32, 1, &scales)),
        (format!("{stem}.biases"), view(Dtype::F32, 1, &biases)),
    ];
    safetensors::serialize_to_file(file.tensors().into_iter().chain(parts), None, &path).unwrap();
    let program = try_open(folder.path()).unwrap();
    let read = program.weight(&format!("{stem}.weight")).unwrap();
    assert!(matches!(read.decl.encoding, lapidary_program::Encoding::Quant(q) if q.bits == 4));
    assert_eq!(read.to_f32(), vec![0.5; 48 * 64]);
}

/// Extracts of the text side keep `vision_config`; there is nothing to see or hear with, and no
/// image whose rows might see each other.
#[test]
fn text_only_extracts_have_no_media() {
    for family in ["gemma3_mm", "gemma4_mm_large", "gemma4_mm_e", "gemma4_unified"] {
        let folder = with_tensors(family, |t| t.name.contains("language_model.").then_some(t));
        let program = try_open(folder.path()).unwrap();
        assert!(program.metadata().media.is_empty(), "{family}");
        assert_eq!(program.methods().keys().collect::<Vec<_>>(), [method::FORWARD]);
        let forward = &program.method(method::FORWARD).unwrap().graph;
        for absent in [input::SOFT, input::SOFT_INDEX] {
            assert!(forward.inputs.iter().all(|i| i.name != absent), "{family} {absent}");
        }
        let sees_blocks = |op: &Op| matches!(op, Op::Attention { spec, .. } if spec.bidirectional);
        assert!(!forward.nodes.iter().any(|node| sees_blocks(&node.op)), "{family}");
    }
    // One without the other.
    let folder = with_tensors("gemma4_mm_e", |t| (!t.name.contains("audio")).then_some(t));
    let program = try_open(folder.path()).unwrap();
    assert!(program.method(method::VISION).is_ok() && program.method(method::AUDIO).is_err());
    let without = with_config("gemma4_mm_e", |c| c["vision_config"] = Value::Null);
    let program = try_open(without.path()).unwrap();
    assert!(program.method(method::VISION).is_err() && program.method(method::AUDIO).is_ok());
    assert!(program.metadata().media.video.is_none());
}

#[test]
fn tensors_that_are_missing_or_misshapen_are_named() {
    for (family, tensor) in [
        ("gemma3_mm", "multi_modal_projector.mm_input_projection_weight"),
        ("gemma3_mm", "vision_tower.vision_model.post_layernorm.bias"),
        ("gemma4_mm_large", "model.vision_tower.std_scale"),
        ("gemma4_mm_large", "model.vision_tower.encoder.layers.1.mlp.up_proj.linear.weight"),
        ("gemma4_mm_e", "model.audio_tower.output_proj.bias"),
        ("gemma4_unified", "model.embed_audio.embedding_projection.weight"),
    ] {
        let stored = tensor.replace("vision_tower.vision_model.", "vision_tower.");
        let folder = with_tensors(family, |t| (t.name != stored).then_some(t));
        let alone = ["model.embed_audio.embedding_projection.weight"];
        if family == "gemma4_unified" && alone.contains(&tensor) {
            // Nothing else hears in this model.
            assert!(try_open(folder.path()).unwrap().metadata().media.audio.is_none());
            continue;
        }
        let said = refused(folder.path());
        assert!(said.contains(tensor) && said.contains("missing"), "{family}: {said}");
        let folder = with_tensors(family, |mut t| {
            if t.name == stored {
                let n = t.shape.iter().product();
                t.shape = vec![n, 1, 1];
            }
            Some(t)
        });
        let said = refused(folder.path());
        assert!(said.contains("it has shape"), "{family}: {said}");
    }
    let bound = "model.vision_tower.encoder.layers.0.mlp.up_proj.output_min";
    let folder = with_tensors("gemma4_mm_e", |t| (t.name != bound).then_some(t));
    let said = refused(folder.path());
    assert!(said.contains(bound) && said.contains("output_max"), "{said}");
}

#[test]
fn configurations_that_lie_are_refused() {
    for (family, side, key, value, says) in [
        ("gemma3_mm", "vision_config", "num_attention_heads", json!(7), "7 heads"),
        ("gemma3_mm", "vision_config", "hidden_act", json!("relu"), "relu"),
        ("gemma3_mm", "vision_config", "patch_size", json!(7), "mm_tokens_per_image"),
        ("gemma3_mm", "vision_config", "image_size", json!(96), "it has shape"),
        ("gemma3_mm", "vision_config", "num_hidden_layers", json!(1 << 20), "num_hidden_layers"),
        ("gemma4_mm_large", "vision_config", "num_key_value_heads", json!(2), "key-value heads"),
        (
            "gemma4_mm_large",
            "vision_config",
            "pooling_kernel_size",
            json!(0),
            "pooling_kernel_size",
        ),
        ("gemma4_mm_large", "vision_config", "hidden_size", json!(0), "hidden_size"),
        ("gemma4_mm_large", "vision_config", "head_dim", json!(13), "it has shape"),
        ("gemma4_mm_e", "audio_config", "attention_chunk_size", json!(6), "chunks of 6"),
        ("gemma4_mm_e", "audio_config", "attention_context_right", json!(1), "1 after"),
        ("gemma4_mm_e", "audio_config", "attention_logit_cap", json!(-1.0), "attention_logit_cap"),
        ("gemma4_mm_e", "audio_config", "subsampling_conv_channels", json!([1]), "two positive"),
        ("gemma4_mm_e", "audio_config", "hidden_act", json!("gelu"), "gelu"),
        ("gemma4_unified", "vision_config", "output_proj_dims", json!(7), "mm_embed_dim"),
        ("gemma4_unified", "vision_config", "patch_size", json!(1 << 30), "pixels"),
    ] {
        let said = refused(with_config(family, |c| c[side][key] = value).path());
        assert!(said.contains(says), "{family} {key}: {said}");
    }
    let said = refused(with_config("gemma3_mm", |c| c["mm_tokens_per_image"] = json!(10)).path());
    assert!(said.contains("mm_tokens_per_image 10"), "{said}");
    let said = refused(with_config("gemma3_mm", |c| c["vision_config"] = json!([1])).path());
    assert!(said.contains("vision_config"), "{said}");
}

/// Any value anywhere in the towers' configuration gives an answer.
#[test]
fn configurations_never_panic() {
    let mut refused = 0;
    for family in ["gemma3_mm", "gemma4_mm_e", "gemma4_unified"] {
        let good = fs::read(tiny(family).join("config.json")).unwrap();
        let good: Value = serde_json::from_slice(&good).unwrap();
        for side in ["vision_config", "audio_config"] {
            let Some(fields) = good[side].as_object() else { continue };
            for key in fields.keys() {
                for bad in [
                    json!(null),
                    json!(-1),
                    json!(0),
                    json!(1e300),
                    json!(2147483647),
                    json!("x"),
                    json!([]),
                ] {
                    let mut changed = good.clone();
                    changed[side][key] = bad;
                    let bytes = serde_json::to_vec(&changed).unwrap();
                    refused += usize::from(lapidary_gemma::hf_config::parse(&bytes).is_err());
                }
            }
        }
    }
    assert!(refused > 100);
}

#[test]
fn a_folder_without_processor_files_has_the_released_numbers() {
    let image = media(&copy("gemma3_mm")).image.unwrap();
    assert_eq!(image.size, ImageSize::Fixed { width: 48, height: 48 });
    assert_eq!((image.patch, image.pool, image.max_soft()), (8, 2, 9));
    assert_eq!((image.scale, image.shift), (2.0, -1.0));
    assert_eq!((image.resample, image.layout), (Resample::Bilinear, PatchLayout::Planar));
    let crops = image.pan_and_scan.unwrap();
    assert_eq!((crops.min_crop, crops.max_crops, crops.min_ratio), (256, 4, 1.2));
    assert_eq!(image.tokens.before, "\n\n<start_of_image>");
    assert_eq!(image.tokens.id, 301);

    let both = media(&copy("gemma4_mm_e"));
    let image = both.image.unwrap();
    let choices = vec![70, 140, 280, 560, 1120];
    assert_eq!(image.size, ImageSize::Budget { choices, default: 280 });
    assert_eq!((image.scale, image.shift), (2.0, -1.0));
    assert_eq!((image.resample, image.layout), (Resample::Bicubic, PatchLayout::Interleaved));
    assert_eq!((image.tokens.placeholder.as_str(), image.tokens.id), ("<|image|>", 283));
    let video = both.video.unwrap();
    assert_eq!((video.max_frames, video.budget, video.tokens.id), (32, 70, 284));
    let audio = both.audio.unwrap();
    assert_eq!((audio.sample_rate, audio.max_samples, audio.stride), (16_000, 480_000, 4));
    assert!(matches!(&audio.frames, AudioFrames::LogMel(mel) if mel.n_mels == 16));
    assert_eq!((audio.tokens.after.as_str(), audio.tokens.id), ("<audio|>", 287));

    let unified = media(&copy("gemma4_unified"));
    let image = unified.image.unwrap();
    assert_eq!((image.patch, image.pool, image.scale, image.shift), (12, 1, 1.0, 0.0));
    assert_eq!(unified.audio.unwrap().frames, AudioFrames::Raw { len: 40 });
}

#[test]
fn processor_files_are_heeded() {
    // As published with Gemma 3.
    let flat = json!({
        "do_convert_rgb": null, "do_normalize": true, "do_pan_and_scan": null, "do_rescale": true,
        "do_resize": true, "image_mean": [0.25, 0.25, 0.25], "image_std": [0.5, 0.5, 0.5],
        "pan_and_scan_max_num_crops": 3, "pan_and_scan_min_crop_size": null, "resample": 3,
        "rescale_factor": 0.00392156862745098, "size": {"height": 48, "width": 48},
    });
    let image = media(&with_file("gemma3_mm", "preprocessor_config.json", &flat)).image.unwrap();
    assert_eq!((image.scale, image.shift), (2.0, -0.5));
    assert_eq!(image.resample, Resample::Bicubic);
    let crops = image.pan_and_scan.unwrap();
    assert_eq!((crops.min_crop, crops.max_crops), (256, 3));

    // As published with Gemma 4, with other numbers.
    let nested = json!({
        "image_processor": {"max_soft_tokens": 7, "patch_size": 4, "pooling_kernel_size": 3,
            "do_normalize": false, "image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]},
        "video_processor": {"num_frames": 5, "max_soft_tokens": 3},
        "feature_extractor": {"feature_size": 16, "sampling_rate": 8000, "frame_length": 200,
            "hop_length": 80, "fft_length": 256, "min_frequency": 10.0, "max_frequency": 4000.0,
            "mel_floor": 0.01, "per_bin_mean": null, "dither": 0.0},
        "audio_seq_length": 100,
    });
    let all = media(&with_file("gemma4_mm_e", "processor_config.json", &nested));
    let image = all.image.unwrap();
    let choices = vec![7, 70, 140, 280, 560, 1120];
    assert_eq!(image.size, ImageSize::Budget { choices, default: 7 });
    let video = all.video.unwrap();
    assert_eq!((video.max_frames, video.budget), (5, 3));
    let audio = all.audio.unwrap();
    assert_eq!((audio.sample_rate, audio.max_samples), (8000, 100 * 4 * 80));
    let AudioFrames::LogMel(mel) = audio.frames else { panic!("a mel spectrum") };
    assert_eq!((mel.window, mel.hop, mel.fft, mel.pad_left), (200, 80, 256, 100));
    assert_eq!((mel.low, mel.high, mel.floor), (10.0, 4000.0, 0.01));
}

#[test]
fn processors_that_the_towers_contradict_are_refused() {
    for (family, part, key, value, says) in [
        ("gemma3_mm", "image_processor", "size", json!({"height": 224, "width": 224}), "224"),
        ("gemma3_mm", "image_processor", "resample", json!(1), "resample is 1"),
        ("gemma3_mm", "image_processor", "image_mean", json!([0.1, 0.2, 0.3]), "three channels"),
        ("gemma3_mm", "image_processor", "image_std", json!([0, 0, 0]), "image_std 0"),
        ("gemma3_mm", "image_processor", "do_resize", json!(false), "do_resize"),
        ("gemma4_mm_e", "image_processor", "patch_size", json!(16), "patch_size is 16"),
        ("gemma4_mm_e", "image_processor", "max_soft_tokens", json!(0), "max_soft_tokens"),
        ("gemma4_mm_e", "feature_extractor", "feature_size", json!(128), "feature_size is 128"),
        ("gemma4_mm_e", "feature_extractor", "preemphasis", json!(0.97), "preemphasis 0.97"),
        ("gemma4_mm_e", "feature_extractor", "per_bin_mean", json!([0.0]), "per_bin_mean"),
        ("gemma4_mm_e", "feature_extractor", "hop_length", json!("x"), "hop_length"),
        ("gemma4_mm_e", "feature_extractor", "frame_length", json!(4000), "window of 4000"),
        ("gemma4_unified", "feature_extractor", "audio_samples_per_token", json!(640), "640"),
    ] {
        let file = json!({part: {key: value}});
        let said = refused(with_file(family, "processor_config.json", &file).path());
        assert!(said.contains(says), "{family} {key}: {said}");
    }
    let said = refused(with_file("gemma3_mm", "preprocessor_config.json", &json!([])).path());
    assert!(said.contains("preprocessor_config.json"), "{said}");
}

/// Which layers see an image whole.
#[test]
fn images_are_seen_whole_where_transformers_does() {
    // (family, on sliding layers, on full layers)
    for (family, sliding, full) in [
        ("gemma3_mm", true, true),
        ("gemma4_mm_large", true, false),
        ("gemma4_mm_e", false, false),
        ("gemma4_unified", true, false),
    ] {
        let gguf = tiny(family).join("../../gguf").join(family).join("model.gguf");
        for path in [tiny(family), gguf] {
            let program = try_open(&path).unwrap();
            for node in &program.method(method::FORWARD).unwrap().graph.nodes {
                if let Op::Attention { spec, .. } = &node.op {
                    let want = if spec.window.is_some() { sliding } else { full };
                    assert_eq!(spec.bidirectional, want, "{family} {}", node.name);
                }
            }
        }
    }
}
