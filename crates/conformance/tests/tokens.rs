//! Token ids of real text with the tokenizer that a real GGUF file carries, against transformers.

use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use lapidary_gemma::OpenOptions;
use lapidary_text::{Tokenizer, load_tokenizer};
use serde_json::Value;

fn fixture() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tokens/gemma3.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The real Gemma 3 270M, where `cargo xtask test` could fetch it.
fn tokenizer() -> Option<Tokenizer> {
    let Some(path) = std::env::var_os("LAPIDARY_GEMMA3_270M") else {
        _ = writeln!(
            std::io::stderr(),
            "SKIPPED: LAPIDARY_GEMMA3_270M does not name the real model's file"
        );
        return None;
    };
    let program = lapidary_gemma::open(Path::new(&path), &OpenOptions::default()).unwrap();
    Some(load_tokenizer(&program).unwrap().unwrap())
}

fn ids(case: &Value) -> Vec<u32> {
    case["ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

#[test]
fn a_real_vocabulary_gives_the_ids_that_transformers_gives() {
    let fixture = fixture();
    let cases = fixture["plain"].as_array().unwrap();
    assert!(cases.len() > 150, "{} texts", cases.len());
    let Some(tokenizer) = tokenizer() else { return };
    for case in cases {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode_text(text).unwrap(), ids(case), "{text:?}");
    }
    // In template text special tokens count; the file has no image token, so such texts are left.
    for case in fixture["with_special"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        if text.contains("image_soft_token") {
            continue;
        }
        assert_eq!(tokenizer.encode_template(text, None).unwrap(), ids(case), "{text:?}");
        // In user text they do not.
        let plain = tokenizer.encode_text(text).unwrap();
        assert!(plain.iter().all(|id| !tokenizer.is_special(*id)), "{text:?}");
    }
}

#[test]
fn a_prompt_of_8000_tokens_takes_well_under_a_second() {
    let Some(tokenizer) = tokenizer() else { return };
    let sentence = "The quick brown fox, aged 12¾, can't jump over 北京's lazy dogs — naïve!\n";
    let text = sentence.repeat(400);
    let timed = || {
        let start = Instant::now();
        (tokenizer.encode_text(&text).unwrap().len(), start.elapsed())
    };
    // The quickest of three: a machine that does something else for a moment is no fault of ours.
    let (n, took) = [timed(), timed(), timed()].into_iter().min_by_key(|(_, took)| *took).unwrap();
    assert!(n > 8000, "{n} tokens");
    assert!(took.as_secs_f64() < 0.5, "{n} tokens took {took:?}");
}
