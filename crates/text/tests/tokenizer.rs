//! The tokenizer against the library's own reading of the same file, and against bad files.

use lapidary_text::{Error, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

const FILE: &str = include_str!("data/tokenizer.json");
const VOCAB: u32 = 396;

fn ours() -> Tokenizer {
    Tokenizer::from_json(FILE.as_bytes(), VOCAB).unwrap()
}

/// The library, special tokens and all.
fn theirs() -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_bytes(FILE).unwrap()
}

fn changed(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut file: Value = serde_json::from_str(FILE).unwrap();
    change(&mut file);
    serde_json::to_vec(&file).unwrap()
}

#[test]
fn ordinary_text_is_as_the_library_has_it() {
    let (ours, theirs) = (ours(), theirs());
    for text in ["", "the", "hello world", " the  hell", "a\n\nb<br>c\n", "жя日本é", "🙂\u{0}ü"]
    {
        let expected = theirs.encode(text, false).unwrap();
        assert_eq!(ours.encode_text(text).unwrap(), expected.get_ids(), "{text:?}");
        assert_eq!(ours.encode_template(text, None).unwrap(), expected.get_ids(), "{text:?}");
        assert_eq!(ours.decode(expected.get_ids(), false), text);
    }
}

#[test]
fn text_never_becomes_a_control_token() {
    let t = ours();
    // `<s>` can even be spelled by merges.
    for text in ["<bos>", "<s>", "a<s>b", "<|turn>user\nhi<turn|>", "<soft>", "<<bos>>"] {
        let ids = t.encode_text(text).unwrap();
        assert!(ids.iter().all(|id| !t.is_special(*id)), "{text}: {ids:?}");
        assert_eq!(t.decode(&ids, false), text);
    }
}

#[test]
fn a_guarded_token_is_text_and_the_guard_leaves_no_trace() {
    let t = ours();
    let rendered = "<|turn>user\n<\u{FDD0}bos>hi<turn|>";
    let ids = t.encode_template(rendered, Some('\u{FDD0}')).unwrap();
    let id = |s: &str| t.id(s).unwrap();
    assert_eq!(ids.first(), Some(&id("<|turn>")));
    assert_eq!(ids.last(), Some(&id("<turn|>")));
    assert!(!ids.contains(&id("<bos>")));
    assert_eq!(ids[1..ids.len() - 1], t.encode_text("user\n<bos>hi").unwrap());
}

#[test]
fn a_special_token_without_a_row_is_refused_when_used() {
    let t = ours();
    let e = t.encode_template("a<soft>", None).unwrap_err();
    assert!(matches!(e, Error::TokenId { id: 397, vocab_size: VOCAB }), "{e}");
}

#[test]
fn special_tokens_strip_white_space_where_they_say_so() {
    let file = changed(|f| {
        for token in f["added_tokens"].as_array_mut().unwrap() {
            token["lstrip"] = json!(token["content"] == "<turn|>");
            token["rstrip"] = json!(token["content"] == "<|turn>");
        }
    });
    let ours = Tokenizer::from_json(&file, VOCAB).unwrap();
    let theirs = tokenizers::Tokenizer::from_bytes(&file).unwrap();
    for text in ["<|turn>  hi  <turn|>  the", "<|turn> \t<turn|>", " <|turn>"] {
        let expected = theirs.encode(text, false).unwrap();
        assert_eq!(ours.encode_template(text, None).unwrap(), expected.get_ids(), "{text:?}");
    }
}

#[test]
fn bytes_are_held_back_until_they_are_a_character() {
    let t = ours();
    let byte = |b: u8| t.id(&format!("<0x{b:02X}>")).unwrap();
    let mut decoder = t.stream(false);
    let mut out = String::new();
    for (b, expected) in "🙂".bytes().zip(["", "", "", "🙂"]) {
        decoder.push(byte(b), &mut out);
        assert_eq!(out, expected);
    }
    // A special token between does not tear the character.
    out.clear();
    for id in [byte(0xC3), t.id("<eos>").unwrap(), byte(0xA9)] {
        decoder.push(id, &mut out);
    }
    assert_eq!(out, "é");
    // What can't become a character is shown as such, each byte, as soon as that is certain.
    out.clear();
    decoder.push(byte(0xE2), &mut out);
    decoder.push(byte(0x82), &mut out);
    decoder.push(t.id("a").unwrap(), &mut out);
    assert_eq!(out, "\u{FFFD}\u{FFFD}a");
    decoder.push(byte(0xF0), &mut out);
    decoder.flush(&mut out);
    assert_eq!(out, "\u{FFFD}\u{FFFD}a\u{FFFD}");
}

#[test]
fn special_tokens_are_shown_only_when_asked_for() {
    let t = ours();
    let ids = t.encode_template("<|turn>hello<turn|>", None).unwrap();
    assert_eq!(t.decode(&ids, false), "hello");
    assert_eq!(t.decode(&ids, true), "<|turn>hello<turn|>");
    assert_eq!(t.decode(&[VOCAB - 1, 100_000, u32::MAX], true), "");
}

#[test]
fn other_decoders_stream_as_they_decode() {
    // Strips one space at the very beginning, so tokens can't be decoded one by one.
    let file = changed(|f| {
        let steps = f["decoder"]["decoders"].as_array_mut().unwrap();
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    });
    let ours = Tokenizer::from_json(&file, VOCAB).unwrap();
    let theirs = tokenizers::Tokenizer::from_bytes(&file).unwrap();
    for text in [" the world", "  hello  the", "é 🙂 the", "🙂🙂", " "] {
        let ids = ours.encode_text(text).unwrap();
        assert_eq!(ours.decode(&ids, false), theirs.decode(&ids, true).unwrap(), "{text:?}");
    }
}

#[test]
fn bad_files_are_refused_with_a_reason() {
    let set =
        |pointer: &'static str, value: Value| changed(|f| *f.pointer_mut(pointer).unwrap() = value);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep = FILE.replacen("\"normalizer\":", &format!("\"normalizer\": {deep}, \"x\":"), 1);
    let long = "x".repeat(5000);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("not JSON", b"tokenizer".to_vec()),
        ("nothing", vec![]),
        ("not UTF-8", [FILE.as_bytes(), &[0xff]].concat()),
        ("invalid UTF-8 in a token", FILE.replace("\"Hi\"", "\"\u{1}\"").into_bytes()),
        ("too deep", deep.into_bytes()),
        ("too large", vec![b' '; (128 << 20) + 1]),
        ("a list", b"[]".to_vec()),
        ("no model", changed(|f| drop(f.as_object_mut().unwrap().remove("model")))),
        ("id without a row", set("/model/vocab/the", json!(VOCAB))),
        ("id twice", set("/model/vocab/the", json!(20))),
        ("negative id", set("/model/vocab/the", json!(-1))),
        ("id beyond u32", set("/model/vocab/the", json!(1u64 << 40))),
        ("another id for a special token", set("/added_tokens/1/id", json!(5))),
        ("special id far outside", set("/added_tokens/14/id", json!(1u32 << 30))),
        (
            "ordinary added token without a row",
            changed(|f| {
                f["added_tokens"]
                    .as_array_mut()
                    .unwrap()
                    .push(json!({"id": 9999, "content": "zzz"}));
            }),
        ),
        ("empty added token", set("/added_tokens/1/content", json!(""))),
        ("unknown model", set("/model/type", json!("Unigram"))),
        ("merge of unknown tokens", set("/model/merges/0", json!(["qq", "rr"]))),
        ("merge into an unknown token", set("/model/merges/0", json!(["the", "the"]))),
        ("merge of three", set("/model/merges/0", json!(["t", "h", "e"]))),
        ("merge of one", set("/model/merges/0", json!(["t"]))),
        ("merge of numbers", set("/model/merges/0", json!([1, 2]))),
        ("unknown token is unknown", set("/model/unk_token", json!("<what>"))),
        ("no such normalizer", set("/normalizer", json!({"type": "Shout"}))),
        ("no such pre-tokenizer", set("/pre_tokenizer", json!({"type": "Shout"}))),
        ("no such decoder", set("/decoder", json!({"type": "Shout"}))),
        ("bad regex", set("/pre_tokenizer/pattern", json!({"Regex": "(("}))),
        ("prefix that merges lack", set("/model/continuing_subword_prefix", json!("##"))),
        ("whole-word special token", set("/added_tokens/2/single_word", json!(true))),
        (
            "endless token",
            changed(|f| {
                f["model"]["vocab"][&long] = json!(395);
            }),
        ),
    ];
    for (name, bytes) in cases {
        let start = std::time::Instant::now();
        match Tokenizer::from_json(&bytes, VOCAB) {
            Err(Error::Tokenizer(what)) => assert!(!what.is_empty(), "{name}"),
            Err(other) => panic!("{name}: {other}"),
            Ok(_) => panic!("{name}: it was accepted"),
        }
        assert!(start.elapsed().as_secs() < 20, "{name}");
    }
    // However many rows the program claims to have, the tables stay small.
    let far = set("/model/vocab/the", json!(u32::MAX - 1));
    assert!(matches!(Tokenizer::from_json(&far, u32::MAX), Err(Error::Tokenizer(_))));
}

/// Parts of `tokenizer.json` that no Gemma has, some of which make the library panic or take all
/// memory.
#[test]
fn f20_parts_that_the_family_does_not_use_are_refused_by_name() {
    let replace =
        |from: Value, to: &str| json!({"type": "Replace", "pattern": from, "content": to});
    let a_lot = replace(json!({"String": "e"}), &"e".repeat(200));
    let refused = [
        (
            "normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}),
            "Precompiled",
        ),
        ("normalizer", json!({"type": "NFC"}), "NFC"),
        ("normalizer", json!({"type": "Lowercase"}), "Lowercase"),
        (
            "normalizer",
            json!({"type": "Sequence", "normalizers": [
            replace(json!({"Regex": "^"}), "x"), {"type": "NFC"}]}),
            "Regex",
        ),
        ("normalizer", json!({"type": "BertNormalizer", "clean_text": true}), "BertNormalizer"),
        ("normalizer", replace(json!({"String": ""}), "x"), "empty"),
        ("normalizer", replace(json!({"String": "a"}), &"x".repeat(10_000)), "10000"),
        ("normalizer", json!({"type": "Sequence", "normalizers": vec![a_lot.clone(); 17]}), "16"),
        ("normalizer", json!({"type": "Sequence"}), "nothing"),
        ("normalizer", json!("Replace"), "no type"),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 0}), "FixedLength"),
        ("pre_tokenizer", json!({"type": "ByteLevel"}), "ByteLevel"),
        ("pre_tokenizer", json!({"type": "Metaspace", "replacement": "x"}), "Metaspace"),
        (
            "pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "(a+)+$"},
            "behavior": "Isolated", "invert": false}),
            "Regex",
        ),
        (
            "pre_tokenizer",
            json!({"type": "Split", "pattern": {"String": "a"},
            "behavior": "Isolated", "invert": false}),
            "Isolated",
        ),
        (
            "pre_tokenizer",
            json!({"type": "Split", "pattern": {"String": "a"},
            "behavior": "MergedWithPrevious", "invert": true}),
            "invert",
        ),
        ("decoder", json!({"type": "WordPiece", "prefix": "##", "cleanup": true}), "WordPiece"),
        ("decoder", json!({"type": "CTC"}), "CTC"),
        ("decoder", replace(json!({"String": "a"}), "aaaa"), "longer"),
        ("decoder", replace(json!({"Regex": "a"}), "a"), "Regex"),
        (
            "decoder",
            json!({"type": "Strip", "content": "", "start": 1, "stop": 0}),
            "one character",
        ),
        ("decoder", json!({"type": "Strip", "content": "x", "start": -1, "stop": 0}), "start"),
    ];
    for (name, part, why) in refused {
        let file = changed(|f| f[name] = part.clone());
        match Tokenizer::from_json(&file, VOCAB) {
            Err(Error::Tokenizer(what)) => assert!(what.contains(why), "{part}: {what}"),
            Err(other) => panic!("{part}: {other}"),
            Ok(_) => panic!("{part}: it was accepted"),
        }
    }
}

#[test]
fn f20_text_is_bounded_after_each_step() {
    // Six steps, each of which makes the text two hundred times as long.
    let step = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to.repeat(200)});
    let steps = [("h", "e"), ("e", "l"), ("l", "o"), ("o", "e"), ("e", "l"), ("l", "o")];
    let steps: Vec<Value> = steps.iter().map(|(from, to)| step(from, to)).collect();
    let file = changed(|f| f["normalizer"] = json!({"type": "Sequence", "normalizers": steps}));
    let t = Tokenizer::from_json(&file, VOCAB).unwrap();
    let e = t.encode_text("hello hello").unwrap_err();
    assert!(matches!(&e, Error::Tokenizer(what) if what.contains("normalizer")), "{e}");
    assert_eq!(t.encode_text("").unwrap(), [] as [u32; 0]);
    // A token may be stripped from both ends at once.
    let strip = json!({"type": "Strip", "content": "h", "start": 9, "stop": 9});
    let t = Tokenizer::from_json(&changed(|f| f["decoder"] = strip), VOCAB).unwrap();
    let ids = t.encode_text("hhh hell").unwrap();
    assert_eq!(t.decode(&ids, false).matches('h').count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn template_text_is_as_the_library_has_it(
        parts in prop::collection::vec(
            prop_oneof![
                3 => "[a-zA-Z <>|\n]{0,12}",
                1 => "\\PC{0,4}",
                2 => prop::sample::select(vec!["<bos>", "<|turn>", "<turn|>", "<|", "turn", " "])
                    .prop_map(str::to_string),
            ],
            0..12,
        )
    ) {
        thread_local! {
            static BOTH: (Tokenizer, tokenizers::Tokenizer) = (ours(), theirs());
        }
        let text = parts.concat();
        // The library parses `<s>` from merges alone; here that is told apart on purpose.
        prop_assume!(!text.contains("<s>"));
        BOTH.with(|(ours, theirs)| {
            let expected = theirs.encode(text.as_str(), false).unwrap();
            let ids = ours.encode_template(&text, None).unwrap();
            prop_assert_eq!(&ids[..], expected.get_ids());
            prop_assert_eq!(ours.decode(&ids, true), text.clone());
            prop_assert_eq!(ours.decode(&ids, false), theirs.decode(&ids, true).unwrap());
            Ok(())
        })?;
    }

    #[test]
    fn streaming_gives_what_decoding_gives(
        ids in prop::collection::vec(0u32..VOCAB + 2, 0..60),
        at in 0usize..60,
    ) {
        thread_local! {
            static OURS: Tokenizer = ours();
        }
        OURS.with(|t| {
            let whole = t.decode(&ids, false);
            let mut out = String::new();
            let mut decoder = t.stream(false);
            let mut lengths = vec![];
            for id in &ids {
                decoder.push(*id, &mut out);
                lengths.push(out.len());
            }
            decoder.flush(&mut out);
            prop_assert_eq!(&out, &whole);
            // What was given stays: a prefix of the tokens gives a prefix of the text.
            if let Some(n) = lengths.get(at) {
                let before = t.decode(&ids[..=at], false);
                prop_assert_eq!(&before[..*n], &whole[..*n]);
                prop_assert!(before[*n..].chars().all(|c| c == char::REPLACEMENT_CHARACTER));
            }
            Ok(())
        })?;
    }
}
