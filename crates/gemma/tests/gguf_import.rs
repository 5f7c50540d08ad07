//! Whole files: the table of values, the weights, and what is refused.

mod gguf_writer;

use std::collections::HashSet;
use std::path::Path;
use std::time::Instant;

use gguf_writer::{Writer, gemma3_270m, testdata};
use lapidary_gemma::hf_config::{self, HfConfig};
use lapidary_gemma::{
    EmbedScale, Imported, LayerKind, OpenOptions, TextConfig, assemble, gguf, open,
};
use lapidary_program::{Blob, FileBytes, RopeSpec, Weight, blob};

const TINY: [&str; 4] = ["gemma3_text", "gemma4_text_dense", "gemma4_text_e", "gemma4_text_moe"];

fn read(path: &Path) -> Result<Imported, lapidary_gemma::Error> {
    gguf::read_model(path, FileBytes::open(path, true).unwrap())
}

fn refused(writer: &Writer) -> String {
    match gguf::read_model(Path::new("model.gguf"), writer.file()) {
        Ok(_) => panic!("the file was accepted"),
        Err(e) => e.to_string(),
    }
}

/// The configuration that the Hugging Face side would give, with what a GGUF stores differently.
fn expected(family: &str) -> TextConfig {
    let json = std::fs::read(testdata().join("gguf").join(family).join("config.json")).unwrap();
    let HfConfig::Model(config) = hf_config::parse(&json).unwrap() else { panic!("a drafter") };
    let mut text = config.text;
    text.architecture = family[..6].to_string();
    text.norm_offset = 0.0;
    text.embed_scale = EmbedScale::Exact;
    text
}

#[test]
fn the_metadata_of_every_tiny_model_says_what_its_config_json_says() {
    for family in TINY {
        let imported = read(&testdata().join("gguf").join(family).join("model.gguf")).unwrap();
        let mut want = expected(family);
        let mut got = imported.text;
        assert_eq!(got.layers.len(), want.layers.len());
        for (i, (got, want)) in got.layers.iter_mut().zip(&mut want.layers).enumerate() {
            // Soft positions are a matter of the towers, which are another file.
            want.bidirectional_blocks = false;
            // A layer that shares another's values has none of its own to compare with its keys.
            if want.kv_source != i {
                got.k_eq_v = want.k_eq_v;
            }
            assert_eq!(got, want, "{family} layer {i}");
        }
        assert_eq!(got, want, "{family}");
    }
}

#[test]
fn every_tiny_model_becomes_a_program() {
    for family in TINY {
        let path = testdata().join("gguf").join(family).join("model.gguf");
        let imported = read(&path).unwrap();
        assert_eq!(imported.metadata.name, format!("tiny random {family}"));
        assert_eq!(imported.metadata.bos_id, Some(2));
        assert_eq!(imported.metadata.eos_ids, [1, 6]);
        assert_eq!(imported.metadata.max_context_len, 512);
        let template =
            std::str::from_utf8(imported.blobs[blob::CHAT_TEMPLATE].bytes().unwrap()).unwrap();
        assert!(template.starts_with("{{ bos_token }}"));
        for (name, decl) in &imported.weights {
            let weight = Weight::fetch(name, decl, imported.store.as_ref()).unwrap();
            assert!(weight.to_f32().iter().all(|x| x.is_finite()), "{family} {name}");
        }
        let program = assemble(imported, None).unwrap();
        assert!(program.method("forward").is_ok());
        assert!(open(&path, &OpenOptions::default()).is_ok());
        assert!(open(&path, &OpenOptions { mmap: false, ..OpenOptions::default() }).is_ok());
    }
}

/// Every value of a tiny file is the value of the checkpoint it was made from, rounded to its
/// format; names that were swapped would show here.
#[test]
fn weights_stand_under_the_right_names() {
    for family in ["gemma4_text_dense", "gemma4_text_e", "gemma4_text_moe"] {
        let imported = read(&testdata().join("gguf").join(family).join("model.gguf")).unwrap();
        let original =
            lapidary_gemma::hf::read_model(&testdata().join("tiny").join(family), true).unwrap();
        assert_eq!(
            imported.weights.keys().collect::<Vec<_>>(),
            original.weights.keys().collect::<Vec<_>>()
        );
        for (name, decl) in &imported.weights {
            let theirs = &original.weights[name];
            assert_eq!(decl.shape, theirs.shape, "{name}");
            let got = Weight::fetch(name, decl, imported.store.as_ref()).unwrap().to_f32();
            let want = Weight::fetch(name, theirs, original.store.as_ref()).unwrap().to_f32();
            let size = want.iter().fold(0f32, |m, x| m.max(x.abs()));
            for (g, w) in got.iter().zip(&want) {
                assert!((g - w).abs() <= size / 7.0, "{family} {name}: {g} is not {w}");
            }
        }
    }
}

/// A mixture whose gate and up projections are two tensors gives the same weight as one that has
/// them in one.
#[test]
fn split_experts_are_joined() {
    let path = testdata().join("gguf/gemma4_text_moe/model.gguf");
    let whole = read(&path).unwrap();
    let file = gguf::Gguf::parse(FileBytes::open(&path, true).unwrap()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let ids = [("F32", 0), ("F16", 1), ("Q4_0", 2), ("Q8_0", 8)];
    let mut writer = Writer::default();
    let n_entries = file.keys().count();
    let head = metadata_bytes(&bytes, &file);
    for t in file.tensors() {
        let id = ids.iter().find(|(name, _)| *name == t.ggml_type.name()).unwrap().1;
        let dims: Vec<u64> = t.shape.iter().rev().copied().collect();
        let data = file.tensor_bytes(t);
        let Some(stem) = t.name.strip_suffix("ffn_gate_up_exps.weight") else {
            writer = writer.tensor(&t.name, &dims, id, data.to_vec());
            continue;
        };
        let half = [dims[0], dims[1] / 2, dims[2]];
        let matrices = data.chunks_exact(data.len() / dims[2] as usize);
        let split = |second: bool| -> Vec<u8> {
            let pick = |m: &[u8]| {
                let (a, b) = m.split_at(m.len() / 2);
                if second { b.to_vec() } else { a.to_vec() }
            };
            matrices.clone().flat_map(pick).collect()
        };
        writer = writer
            .tensor(&format!("{stem}ffn_gate_exps.weight"), &half, id, split(false))
            .tensor(&format!("{stem}ffn_up_exps.weight"), &half, id, split(true));
    }
    // The entries as they were, as one run of bytes.
    writer.entries = vec![head];
    writer.entries.resize(n_entries, vec![]);
    let joined = gguf::read_model(&path, writer.file()).unwrap();
    assert_eq!(joined.weights, whole.weights);
    for (name, decl) in &whole.weights {
        let get = |i: &Imported| Weight::fetch(name, decl, i.store.as_ref()).unwrap().to_f32();
        assert_eq!(get(&joined), get(&whole), "{name}");
    }
}

/// The bytes of all metadata entries: from the end of the header to the name of the first tensor.
fn metadata_bytes(bytes: &[u8], file: &gguf::Gguf) -> Vec<u8> {
    let first = gguf_writer::text(&file.tensors()[0].name);
    let end = bytes.windows(first.len()).position(|w| w == first).unwrap();
    bytes[24..end].to_vec()
}

#[test]
fn other_models_are_refused_by_name() {
    for (architecture, expected) in [
        ("llama", "`llama` models are not run here; this program runs Gemma 3 and Gemma 4"),
        ("gemma2", "`gemma2` models are not run here"),
        ("gemma3n", "Gemma 3n is not supported yet"),
        ("gemma-embedding", "it makes embeddings, not text"),
        ("clip", "give the model's own GGUF file"),
        ("gemma4-assistant", "it is a drafter"),
    ] {
        let error = refused(&Writer::default().text("general.architecture", architecture));
        assert!(error.contains(expected), "{error}");
    }
    assert!(refused(&Writer::default()).contains("`general.architecture` is missing"));
    let split = gemma3().u32("split.count", 3);
    assert!(refused(&split).contains("one of 3 parts"));
    let ollama = gemma3().f32("gemma3.rope.global.freq_base", 1e6);
    assert!(refused(&ollama).contains("Ollama"));
    let draft = gguf::read_draft(Path::new("x"), gemma3().file()).err().unwrap().to_string();
    assert!(draft.contains("not a drafter"), "{draft}");
}

/// A Gemma 3 of `n` layers without a tokenizer: hidden 64, two heads of 16, one of keys.
fn layers(n: u32) -> Writer {
    let mut w = Writer::default()
        .text("general.architecture", "gemma3")
        .u32("gemma3.context_length", 128)
        .u32("gemma3.embedding_length", 64)
        .u32("gemma3.block_count", n)
        .u32("gemma3.feed_forward_length", 32)
        .u32("gemma3.attention.head_count", 2)
        .u32("gemma3.attention.head_count_kv", 1)
        .u32("gemma3.attention.key_length", 16)
        .u32("gemma3.attention.value_length", 16)
        .u32("gemma3.attention.sliding_window", 8)
        .floats("token_embd.weight", &[64, 10], &[0.5; 640])
        .floats("output_norm.weight", &[64], &[1.0; 64]);
    for i in 0..n {
        for (name, dims) in [
            ("attn_norm", &[64][..]),
            ("post_attention_norm", &[64]),
            ("ffn_norm", &[64]),
            ("post_ffw_norm", &[64]),
            ("attn_q", &[64, 32]),
            ("attn_k", &[64, 16]),
            ("attn_v", &[64, 16]),
            ("attn_output", &[32, 64]),
            ("attn_q_norm", &[16]),
            ("attn_k_norm", &[16]),
            ("ffn_gate", &[64, 32]),
            ("ffn_up", &[64, 32]),
            ("ffn_down", &[32, 64]),
        ] {
            let n = dims.iter().product::<u64>() as usize;
            w = w.floats(&format!("blk.{i}.{name}.weight"), dims, &vec![0.1; n]);
        }
    }
    w
}

fn gemma3() -> Writer {
    layers(2)
}

fn config(writer: &Writer) -> TextConfig {
    gguf::read_model(Path::new("model.gguf"), writer.file()).unwrap().text
}

/// Replaces a metadata entry.
fn set(mut writer: Writer, entry: Writer) -> Writer {
    let new = &entry.entries[0];
    let key_len = 8 + u64::from_le_bytes(*new.first_chunk().unwrap()) as usize;
    let key = &new[..key_len];
    let old = writer.entries.iter_mut().find(|e| e.starts_with(key)).expect("an entry to replace");
    old.clone_from(new);
    writer
}

#[test]
fn keys_that_are_absent_have_their_usual_values() {
    let c = config(&layers(7));
    assert_eq!((c.vocab_size, c.norm_offset, c.rms_norm_eps), (10, 0.0, 1e-6));
    assert_eq!((c.final_logit_softcapping, c.tie_word_embeddings), (None, true));
    assert!(!c.v_norm && !c.layer_scalar);
    let full: Vec<bool> = c.layers.iter().map(|l| l.kind == LayerKind::Full).collect();
    assert_eq!(full, [false, false, false, false, false, true, false]);
    let rope = |theta| RopeSpec { head_dim: 16, theta, rotated_pairs: 8, factor: 1.0 };
    assert_eq!((c.layers[0].rope, c.layers[5].rope), (rope(1e4), rope(1e6)));
    assert_eq!((c.layers[0].window, c.layers[5].window), (Some(8), None));
    assert_eq!(c.layers[0].attention_scale, 0.25);
}

#[test]
fn keys_that_are_there_are_heeded() {
    let c = config(
        &layers(4)
            .u32("gemma3.attention.sliding_window_pattern", 2)
            .f32("gemma3.rope.freq_base", 5e5)
            .f32("gemma3.rope.freq_base_swa", 2e4)
            .text("gemma3.rope.scaling.type", "linear")
            .f32("gemma3.rope.scaling.factor", 8.0)
            .f32("gemma3.attention.layer_norm_rms_epsilon", 1e-5)
            .f32("gemma3.final_logit_softcapping", 30.0)
            .floats("output.weight", &[64, 10], &[0.0; 640]),
    );
    assert_eq!(c.layers[1].kind, LayerKind::Full);
    assert_eq!((c.layers[1].rope.theta, c.layers[1].rope.factor), (5e5, 8.0));
    assert_eq!((c.layers[0].rope.theta, c.layers[0].rope.factor), (2e4, 1.0));
    assert_eq!((c.rms_norm_eps, c.final_logit_softcapping), (1e-5, Some(30.0)));
    assert!(!c.tie_word_embeddings);

    let pattern = layers(3).flags("gemma3.attention.sliding_window_pattern", &[true, false, true]);
    assert_eq!(config(&pattern).layers[1].kind, LayerKind::Full);
}

#[test]
fn the_27b_is_told_by_its_layers() {
    let scale = |n| config(&layers(n)).layers[0].attention_scale;
    // Two heads over 64 channels: 32 to a head, though heads have 16.
    assert_eq!(scale(62), 32f32.powf(-0.5));
    assert_eq!(scale(61), 0.25);
}

#[test]
fn metadata_that_lies_is_refused() {
    let w = Writer::default;
    for (writer, expected) in [
        (set(gemma3(), w().u32("gemma3.block_count", 0)), "`gemma3.block_count`: it is 0"),
        (set(gemma3(), w().u32("gemma3.block_count", 4096)), "over 1024"),
        (
            set(gemma3(), w().u32("gemma3.block_count", 3)),
            "`blk.2.attn_norm.weight`: it is missing",
        ),
        (
            set(gemma3(), w().u32("gemma3.block_count", 1)),
            "`blk.1.attn_norm.weight`: it is not part",
        ),
        (set(gemma3(), w().u32("gemma3.context_length", 0)), "it is 0"),
        (set(gemma3(), w().u32("gemma3.context_length", 1 << 31)), "over 134217728"),
        (set(gemma3(), w().text("gemma3.context_length", "many")), "is text, not an integer"),
        (
            set(gemma3(), w().u32("gemma3.embedding_length", 32)),
            "the configuration asks for [10, 32]",
        ),
        (set(gemma3(), w().u32("gemma3.attention.head_count_kv", 2)), "asks for [32, 64]"),
        (
            set(gemma3(), w().u32("gemma3.attention.head_count_kv", 3)),
            "layer 0: 2 attention heads do not divide among 3 key-value heads",
        ),
        (set(gemma3(), w().u32("gemma3.attention.head_count_kv", 0)), "it is 0"),
        (
            set(gemma3(), w().i32s("gemma3.attention.head_count_kv", &[1])),
            "it has 1 values for 2 layers",
        ),
        (
            set(gemma3(), w().i32s("gemma3.attention.head_count_kv", &[1, -1])),
            "a value is not a positive integer",
        ),
        (set(gemma3(), w().u32("gemma3.attention.value_length", 8)), "it is 8, but keys have 16"),
        (set(gemma3(), w().u32("gemma3.attention.sliding_window", 0)), "it is 0"),
        (
            set(gemma3(), w().u32("gemma3.attention.sliding_window", 200)),
            "it is 200, larger than the context length 128",
        ),
        (gemma3().u32("gemma3.rope.dimension_count", 8), "it is 8, but heads have 16"),
        (gemma3().f32("gemma3.rope.freq_base", 0.0), "it is 0"),
        (gemma3().f32("gemma3.rope.freq_base", f32::NAN), "is NaN"),
        (gemma3().text("gemma3.rope.scaling.type", "yarn"), "`yarn` is not run here"),
        (gemma3().f32("gemma3.rope.scaling.factor", -1.0), "it is -1"),
        (gemma3().f32("gemma3.final_logit_softcapping", -1.0), "it is negative"),
        (gemma3().f32("general.sampling.top_p", 2.0), "`general.sampling.top_p` is 2"),
        (
            gemma3().floats("blk.0.attn_q.scale", &[1], &[2.0]),
            "`blk.0.attn_q.scale`: it is not part",
        ),
        (
            gemma3().tensor("output.weight", &[64, 10], 20, vec![0; 18 * 20]),
            "`output.weight`: its type IQ4_NL is not read",
        ),
    ] {
        let error = refused(&writer);
        assert!(error.contains(expected), "expected `{expected}`, got `{error}`");
    }
}

/// A Gemma 4 with one sliding and one full layer, full heads of 16.
fn gemma4(freqs: &[f32]) -> Writer {
    Writer::default()
        .text("general.architecture", "gemma4")
        .u32("gemma4.context_length", 128)
        .u32("gemma4.embedding_length", 64)
        .u32("gemma4.block_count", 2)
        .u32("gemma4.feed_forward_length", 32)
        .u32("gemma4.attention.head_count", 2)
        .u32("gemma4.attention.key_length", 16)
        .u32("gemma4.attention.key_length_swa", 8)
        .u32("gemma4.attention.sliding_window", 8)
        .flags("gemma4.attention.sliding_window_pattern", &[true, false])
        .floats("rope_freqs.weight", &[freqs.len() as u64], freqs)
        .floats("token_embd.weight", &[64, 10], &[0.5; 640])
}

#[test]
fn frequency_factors_must_be_a_step() {
    let huge = 1e30;
    for freqs in [
        &[1.0, 1.0, huge, 1.0, huge, huge, huge, huge][..],
        &[1.0, 2.0, huge, huge, huge, huge, huge, huge],
        &[f32::NAN; 8],
        &[0.0; 8],
        &[1.0, f32::NAN, huge, huge, huge, huge, huge, huge],
    ] {
        let error = refused(&gemma4(freqs));
        assert!(error.contains("`rope_freqs.weight`: it is not one factor"), "{freqs:?}: {error}");
    }
    assert!(refused(&gemma4(&[1.0; 4])).contains("it is F32 [4], not F32 [8]"));
    let mut without = gemma4(&[1.0; 8]);
    without.tensors.remove(0);
    assert!(refused(&without).contains("`rope_freqs.weight`: it is missing"));
    // A step is accepted, and the next thing that is wrong is found.
    let step = gemma4(&[1.0, 1.0, huge, huge, huge, huge, huge, huge]);
    assert!(refused(&step).contains("`output_norm.weight`: it is missing"));
    let shared = step.u32("gemma4.attention.shared_kv_layers", 2);
    assert!(refused(&shared).contains("it is 2 of 2 layers"));
}

/// Whatever stands in the metadata of a whole small model, the answer is a model or an error.
#[test]
fn mutations_of_a_model_never_panic() {
    let bytes = std::fs::read(testdata().join("gguf/gemma4_text_e/model.gguf")).unwrap();
    let header = 15_000;
    let mut state = 1u64;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    let mut accepted = 0;
    for _ in 0..1500 {
        let mut mutant = bytes.clone();
        for _ in 0..1 + random(2) {
            mutant[random(header)] = random(256) as u8;
        }
        if gguf::read_model(Path::new("x"), FileBytes::from_vec(mutant)).is_ok() {
            accepted += 1;
        }
    }
    // Most bytes are letters of tokens.
    assert!((100..1500).contains(&accepted), "{accepted}");
}

#[test]
fn the_real_270m_is_read() {
    let Some(path) = gemma3_270m() else { return };
    let started = Instant::now();
    let imported = read(&path).unwrap();
    eprintln!("read in {:?}", started.elapsed());
    let c = &imported.text;
    assert_eq!((c.vocab_size, c.hidden_size, c.layers.len()), (262_144, 640, 18));
    assert_eq!(c.max_position_embeddings, 32_768);
    let l = &c.layers[17];
    assert_eq!(l.kind, LayerKind::Full);
    assert_eq!((l.n_heads, l.n_kv_heads, l.head_dim, l.intermediate_size), (4, 1, 256, 2048));
    assert_eq!(l.attention_scale, 1.0 / 16.0);
    assert_eq!((l.rope.theta, l.rope.rotated_pairs, l.rope.factor), (1e6, 128, 1.0));
    assert_eq!((c.layers[0].window, c.layers[0].rope.theta), (Some(512), 1e4));
    let m = &imported.metadata;
    assert_eq!((m.name.as_str(), m.architecture.as_str()), ("Gemma 3 270m", "gemma3"));
    assert_eq!((m.bos_id, m.pad_id, m.eos_ids.as_slice()), (Some(2), Some(0), &[1, 106][..]));
    assert!(m.add_bos);
    assert!(imported.blobs.contains_key(blob::TOKENIZER));
    assert!(!imported.blobs.contains_key(blob::CHAT_TEMPLATE));
    let program = assemble(imported, None).unwrap();
    assert_eq!(program.n_params(), 268_098_176);
}

/// The tiny drafter, written as llama.cpp's converter writes it.
#[test]
fn a_drafter_is_read() {
    let original =
        lapidary_gemma::hf::read_draft(&testdata().join("tiny/gemma4_assistant"), true).unwrap();
    let c = &original.config;
    let full = c.text.layers.iter().find(|l| l.kind == LayerKind::Full).unwrap();
    let sliding = c.text.layers.iter().find(|l| l.kind == LayerKind::Sliding).unwrap();
    let kv_heads: Vec<i32> = c.text.layers.iter().map(|l| l.n_kv_heads as i32).collect();
    let is_sliding: Vec<bool> = c.text.layers.iter().map(|l| l.window.is_some()).collect();
    let n_pairs = full.head_dim as usize / 2;
    let freqs: Vec<f32> = (0..n_pairs)
        .map(|i| if i < full.rope.rotated_pairs as usize { 1.0 } else { 1e30 })
        .collect();
    let mut w = Writer::default()
        .text("general.architecture", "gemma4-assistant")
        .u32("gemma4-assistant.context_length", c.text.max_position_embeddings)
        .u32("gemma4-assistant.embedding_length", c.text.hidden_size)
        .u32("gemma4-assistant.embedding_length_out", c.backbone_hidden_size)
        .u32("gemma4-assistant.block_count", c.text.layers.len() as u32)
        .u32("gemma4-assistant.nextn_predict_layers", c.text.layers.len() as u32)
        .u32("gemma4-assistant.feed_forward_length", full.intermediate_size)
        .u32("gemma4-assistant.attention.head_count", full.n_heads)
        .i32s("gemma4-assistant.attention.head_count_kv", &kv_heads)
        .u32("gemma4-assistant.attention.key_length", full.head_dim)
        .u32("gemma4-assistant.attention.value_length", full.head_dim)
        .u32("gemma4-assistant.attention.key_length_swa", sliding.head_dim)
        .u32("gemma4-assistant.attention.value_length_swa", sliding.head_dim)
        .u32("gemma4-assistant.attention.sliding_window", sliding.window.unwrap())
        .u32("gemma4-assistant.attention.shared_kv_layers", c.text.layers.len() as u32)
        .flags("gemma4-assistant.attention.sliding_window_pattern", &is_sliding)
        .floats("rope_freqs.weight", &[n_pairs as u64], &freqs);
    for (name, decl) in &original.weights {
        let values = Weight::fetch(name, decl, original.store.as_ref()).unwrap().to_f32();
        let dims: Vec<u64> = decl.shape.iter().rev().copied().collect();
        w = w.floats(&renamed(name), &dims, &values);
    }
    let draft = gguf::read_draft(Path::new("x"), w.file()).unwrap();
    let mut want = original.config.clone();
    want.text.architecture = "gemma4-assistant".into();
    want.text.embed_scale = EmbedScale::Exact;
    want.text.layers.iter_mut().for_each(|l| l.k_eq_v = false);
    assert_eq!(draft.config, want);
    assert_eq!(draft.weights, original.weights);
    for (name, decl) in &draft.weights {
        let got = Weight::fetch(name, decl, draft.store.as_ref()).unwrap().to_f32();
        let want = Weight::fetch(name, decl, original.store.as_ref()).unwrap().to_f32();
        assert_eq!(got, want, "{name}");
    }
}

/// The drafter's names, by replacement of their parts.
fn renamed(canonical: &str) -> String {
    let mut name = canonical.replace("model.layers.", "blk.");
    for (hf, gguf) in [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("pre_projection", "nextn.pre_projection"),
        ("post_projection", "nextn.post_projection"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("layer_scalar", "layer_output_scale.weight"),
    ] {
        name = name.replace(hf, gguf);
    }
    name
}

/// `a`, `b` and `ab` for a model of ten rows.
fn with_vocabulary(pieces: [&str; 3], scores: [f32; 3]) -> Writer {
    gemma3()
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &pieces)
        .f32s("tokenizer.ggml.scores", &scores)
        .i32s("tokenizer.ggml.token_type", &[1; 3])
}

fn tokenizer(writer: &Writer) -> Blob {
    let imported = gguf::read_model(Path::new("model.gguf"), writer.file()).unwrap();
    imported.blobs[blob::TOKENIZER].clone()
}

/// Working a vocabulary out takes longer than all else, so it waits until it is wanted.
#[test]
fn a_broken_vocabulary_is_refused_when_its_tokenizer_is_made() {
    let good = tokenizer(&with_vocabulary(["a", "b", "ab"], [0.0; 3]));
    assert!(good.bytes().unwrap().starts_with(b"{"));
    for (pieces, scores, expected) in [
        (["a", "b", "a"], [0.0; 3], "tokens 0 and 2 are both `a`"),
        (["a", "b", ""], [0.0; 3], "token 2 has 0 bytes"),
        (["a", "b", "ab"], [0.0, f32::NAN, 0.0], "the score of token 1 is not a number"),
    ] {
        let writer = with_vocabulary(pieces, scores);
        let said = tokenizer(&writer).bytes().unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
        let file = gguf::Gguf::parse(writer.file()).unwrap();
        assert_eq!(gguf::vocabulary(&file, 10).unwrap_err().to_string(), said);
    }
    // What costs nothing to see is refused at once.
    let bos = with_vocabulary(["a", "b", "ab"], [0.0; 3]).u32("tokenizer.ggml.bos_token_id", 3);
    assert!(refused(&bos).contains("there are 3 tokens"));
}

#[test]
fn a_vocabulary_is_known_by_everything_that_its_tokenizer_follows_from() {
    let same = || with_vocabulary(["a", "b", "ab"], [0.0; 3]);
    let files = [
        same(),
        with_vocabulary(["a", "c", "ab"], [0.0; 3]),
        with_vocabulary(["a", "b", "ab"], [0.0, 0.0, 1.0]),
        with_vocabulary(["ab", "a", "b"], [0.0; 3]),
        set(same(), Writer::default().i32s("tokenizer.ggml.token_type", &[1, 1, 4])),
        set(same(), Writer::default().text("tokenizer.ggml.model", "gemma4")),
        same().flag("tokenizer.ggml.add_space_prefix", true),
        same().u32("tokenizer.ggml.unknown_token_id", 0),
    ];
    let identities: HashSet<[u8; 32]> = files.iter().map(|w| tokenizer(w).identity()).collect();
    assert_eq!(identities.len(), files.len());
    // What has nothing to do with it changes nothing.
    let renamed = same().text("general.name", "another");
    assert_eq!(tokenizer(&renamed).identity(), tokenizer(&same()).identity());
}
