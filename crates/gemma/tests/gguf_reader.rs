//! The container: what is read, and what every kind of damage is answered with.

mod gguf_writer;

use std::time::Instant;

use gguf_writer::{ARRAY, BOOL, TEXT, U32, Writer, gemma3_270m, text};
use lapidary_gemma::Error;
use lapidary_gemma::gguf::{Array, GgmlType, Gguf, Value};
use lapidary_program::FileBytes;

fn small() -> Writer {
    Writer::default()
        .text("general.architecture", "gemma3")
        .u32("answer", 42)
        .f32("half", 0.5)
        .flag("yes", true)
        .raw("signed", 11, &(-7i64).to_le_bytes())
        .texts("words", &["one", "", "drei"])
        .i32s("numbers", &[1, -2, 3])
        .floats("a.weight", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        .tensor("b.weight", &[32, 2, 3], 8, vec![7; 34 * 6])
}

fn parse(bytes: Vec<u8>) -> Result<Gguf, Error> {
    Gguf::parse(FileBytes::from_vec(bytes))
}

/// The message of a file that must be refused, after checking that refusing it was quick.
fn refused(bytes: Vec<u8>) -> String {
    let timed = || {
        let bytes = bytes.clone();
        let started = Instant::now();
        match parse(bytes) {
            Ok(_) => panic!("the file was accepted"),
            Err(e) => (started.elapsed(), e.to_string()),
        }
    };
    // The quickest of three: a machine that does something else for a moment is no fault of ours.
    let (took, error) = [timed(), timed(), timed()].into_iter().min().unwrap();
    assert!(took.as_millis() < 500, "took {took:?}: {error}");
    error
}

#[test]
fn values_and_tensors_are_found() {
    let file = parse(small().bytes()).unwrap();
    assert_eq!(file.text("general.architecture").unwrap(), Some("gemma3"));
    assert_eq!(file.u32("answer").unwrap(), Some(42));
    assert_eq!(file.float("half").unwrap(), Some(0.5));
    assert_eq!(file.flag("yes").unwrap(), Some(true));
    assert_eq!(file.get("signed"), Some(&Value::Signed(-7)));
    assert_eq!(file.text("absent").unwrap(), None);
    assert!(matches!(file.get("words"), Some(Value::Array(a @ Array::Texts(_))) if a.len() == 3));
    let numbers = [Value::Signed(1), Value::Signed(-2), Value::Signed(3)];
    assert_eq!(file.scalars("numbers").unwrap().unwrap(), numbers);
    assert_eq!(file.keys().count(), 7);

    let a = file.tensor("a.weight").unwrap();
    assert_eq!((a.shape.as_slice(), a.ggml_type), (&[2, 3][..], GgmlType::F32));
    assert_eq!(file.tensor_bytes(a).len(), 24);
    assert_eq!(&file.tensor_bytes(a)[4..8], 2f32.to_le_bytes());
    let b = file.tensor("b.weight").unwrap();
    assert_eq!((b.shape.as_slice(), b.ggml_type), (&[3, 2, 32][..], GgmlType::Q8_0));
    assert_eq!(file.tensor_bytes(b), [7; 204]);
}

#[test]
fn a_value_of_the_wrong_type_is_named() {
    let file = parse(small().bytes()).unwrap();
    let messages = [
        file.u32("half").unwrap_err().to_string(),
        file.uint("signed").unwrap_err().to_string(),
        file.text("answer").unwrap_err().to_string(),
        file.flag("words").unwrap_err().to_string(),
        file.scalars("words").unwrap_err().to_string(),
        file.float("yes").unwrap_err().to_string(),
    ];
    let expected = [
        "config: `half` is a float, not an integer of 0 or more",
        "config: `signed` is a negative integer, not an integer of 0 or more",
        "config: `answer` is an integer, not text",
        "config: `words` is an array, not a flag",
        "config: `words` is an array, not an array of numbers",
        "config: `yes` is a flag, not a float",
    ];
    assert_eq!(messages, expected);
}

#[test]
fn alignment_is_honoured_and_order_is_free() {
    let mut writer = small().u32("general.alignment", 64);
    writer.alignment = 64;
    let file = parse(writer.bytes()).unwrap();
    for t in file.tensors() {
        assert_eq!(t.range.start % 64, 0);
    }
    assert_eq!(file.tensor_bytes(file.tensor("b.weight").unwrap()), [7; 204]);

    // The table may list tensors in another order than the data.
    let mut writer =
        Writer::default().floats("second", &[8], &[2.0; 8]).floats("first", &[8], &[1.0; 8]);
    writer.tensors[0].offset = Some(32);
    writer.tensors[1].offset = Some(0);
    let file = parse(writer.bytes()).unwrap();
    assert!(file.tensor("first").unwrap().range.start < file.tensor("second").unwrap().range.start);
}

#[test]
fn the_last_tensor_needs_no_padding() {
    let writer = Writer::default().floats("a", &[3], &[1.0, 2.0, 3.0]);
    let mut bytes = writer.bytes();
    bytes.truncate(bytes.len() - 20);
    let file = parse(bytes).unwrap();
    assert_eq!(file.tensor_bytes(file.tensor("a").unwrap()).len(), 12);
}

#[test]
fn truncation_anywhere_is_refused() {
    let bytes = small().bytes();
    let data_end = bytes.len() - (204usize.next_multiple_of(32) - 204);
    for n in 0..data_end {
        let error = refused(bytes[..n].to_vec());
        assert!(error.starts_with("damaged GGUF at byte "), "{n}: {error}");
    }
    assert!(parse(bytes[..data_end].to_vec()).is_ok());
}

#[test]
fn what_is_no_gguf_is_named() {
    for (bytes, expected) in [
        (&b""[..], "the file ends inside its first four bytes"),
        (b"GG", "the file ends inside its first four bytes"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"PK\x03\x04aaaaaaaaaaaaaaaaa", "pickle"),
        (b"ggml, from long ago", "does not begin with `GGUF`"),
    ] {
        let error = refused(bytes.to_vec());
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn versions_that_are_not_read_say_what_to_do() {
    let with = |version: u32| {
        let mut w = small();
        w.version = version;
        w
    };
    assert!(parse(with(2).bytes()).is_ok());
    for (version, expected) in [
        (0, "GGUF version 0; this build reads 2 and 3; convert it again"),
        (1, "convert it again"),
        (4, "upgrade lapidary"),
        (u32::MAX, "upgrade lapidary"),
        (3u32.swap_bytes(), "big-endian"),
        (2u32.swap_bytes(), "big-endian"),
    ] {
        let error = refused(with(version).bytes());
        assert!(error.contains(expected), "{version}: {error}");
    }
}

#[test]
fn counts_that_the_file_cannot_hold_are_refused_unallocated() {
    for count in [1 << 20, u64::from(u32::MAX), 1 << 40, u64::MAX / 33, u64::MAX] {
        for at in [8, 16] {
            let mut bytes = small().bytes();
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            let error = refused(bytes);
            assert!(error.contains("tensors and"), "{count} at {at}: {error}");
        }
        // A key, a text value, an array, an array of text, an array of arrays.
        let len = count.to_le_bytes();
        let array = |id: u32| [&id.to_le_bytes()[..], &len].concat();
        for (name, writer) in [
            ("text", small().raw("k", TEXT, &len)),
            ("numbers", small().raw("k", ARRAY, &array(U32))),
            ("texts", small().raw("k", ARRAY, &array(TEXT))),
            ("arrays", small().raw("k", ARRAY, &array(ARRAY))),
        ] {
            let error = refused(writer.bytes());
            assert!(error.contains("left in the file"), "{name} {count}: {error}");
        }
    }
}

#[test]
fn damage_in_the_metadata_is_named() {
    let twice = small().u32("answer", 1);
    let empty_key = small().u32("", 1);
    let flag = small().raw("k", BOOL, &[2]);
    let unknown = small().raw("k", 13, &[0; 16]);
    let unknown_element = small().array("k", 99, &[]);
    let mut not_utf8 = small();
    not_utf8.entries.push([&text([0xff, 0xfe])[..], &U32.to_le_bytes(), &[0; 4]].concat());
    for (writer, expected) in [
        (twice, "the metadata key `answer` stands there twice"),
        (empty_key, "a metadata key is empty"),
        (flag, "the flag `k` is neither 0 nor 1"),
        (unknown, "`k` has the unknown type 13"),
        (unknown_element, "`k` has the unknown type 99"),
        (not_utf8, "a metadata key is not UTF-8"),
        (small().u32("general.alignment", 0), "`general.alignment` is 0, not a power of two"),
        (small().u32("general.alignment", 24), "`general.alignment` is 24, not a power of two"),
        (small().flag("general.alignment", true), "`general.alignment` is a flag"),
    ] {
        let error = refused(writer.bytes());
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn arrays_of_arrays_nest_a_little() {
    let nested = |depth: usize| {
        let mut value = [&U32.to_le_bytes()[..], &1u64.to_le_bytes(), &5u32.to_le_bytes()].concat();
        for _ in 1..depth {
            value = [&ARRAY.to_le_bytes()[..], &1u64.to_le_bytes(), &value].concat();
        }
        small().raw("k", ARRAY, &value).bytes()
    };
    assert!(matches!(
        parse(nested(2)).unwrap().get("k"),
        Some(Value::Array(Array::Nested(inner))) if inner.len() == 1
    ));
    assert!(parse(nested(4)).is_ok());
    for depth in [5, 6, 1000] {
        assert!(refused(nested(depth)).contains("deeper than 4"));
    }
}

#[test]
fn text_that_is_not_utf8_is_refused_where_it_is_read() {
    let file = parse(small().raw("k", TEXT, &text([b'a', 0xc3])).bytes()).unwrap();
    assert!(file.text("k").unwrap_err().to_string().contains("`k` is not UTF-8"));
}

#[test]
fn damage_in_the_tensor_table_is_named() {
    let with = |f: fn(&mut Writer)| {
        let mut w = small();
        f(&mut w);
        w
    };
    for (writer, expected) in [
        (with(|w| w.tensors[1].name = "a.weight".into()), "tensor `a.weight` stands there twice"),
        (with(|w| w.tensors[0].name = String::new()), "a tensor's name is empty"),
        (with(|w| w.tensors[0].dims = vec![]), "`a.weight`: rank 0"),
        (with(|w| w.tensors[0].dims = vec![1; 5]), "`a.weight`: rank 5"),
        (with(|w| w.tensors[0].dims = vec![3, 0]), "holds nothing"),
        (with(|w| w.tensors[0].dims = vec![u64::MAX, 2]), "too large"),
        (with(|w| w.tensors[0].dims = vec![1 << 62, 2]), "too large"),
        (with(|w| w.tensors[0].dims = vec![1 << 31; 4]), "too large"),
        (with(|w| w.tensors[0].dims = vec![1 << 40, 1]), "the file ends inside tensor `a.weight`"),
        (with(|w| w.tensors[1].dims = vec![33, 2, 3]), "rows of 33 are not a whole number of Q8_0"),
        (with(|w| w.tensors[1].type_id = 12), "rows of 32 are not a whole number of Q4_K"),
        (with(|w| w.tensors[0].type_id = 4), "`a.weight`: type 4 is not known"),
        (with(|w| w.tensors[0].type_id = 1000), "type 1000 is not known"),
        (with(|w| w.tensors[0].type_id = u32::MAX), "is not known"),
        (with(|w| w.tensors[1].offset = Some(0)), "offset 0 lies inside another tensor"),
        (with(|w| w.tensors[1].offset = Some(64)), "offset 64 leaves a gap; 32 is expected"),
        (with(|w| w.tensors[1].offset = Some(33)), "offset 33 is not aligned to 32"),
        (with(|w| w.tensors[1].offset = Some(u64::MAX - 31)), "leaves a gap"),
        (with(|w| w.tensors[0].offset = Some(1 << 63)), "offset"),
        (with(|w| w.tail = vec![1; 10]), "10 bytes stand after the last tensor"),
        (with(|w| w.tail = vec![0; 32]), "32 bytes stand after the last tensor"),
    ] {
        let error = refused(writer.bytes());
        assert!(error.contains(expected), "expected `{expected}`, got `{error}`");
    }
}

#[test]
fn offsets_near_the_end_of_all_addresses_do_not_wrap() {
    for offset in [!31, 1 << 63, !63] {
        let mut w = Writer::default().floats("only", &[8], &[0.0; 8]);
        w.tensors[0].offset = Some(offset);
        assert!(refused(w.bytes()).contains("tensor `only`"));
    }
    let huge = Writer::default().tensor("x", &[1 << 61], 0, vec![]);
    assert!(refused(huge.bytes()).contains("tensor `x`"));
    let mut aligned = Writer::default().u32("general.alignment", 1 << 31);
    aligned.tensors = small().tensors;
    assert!(refused(aligned.bytes()).contains("the file ends inside tensor"));
}

#[test]
fn a_file_without_tensors_is_a_file() {
    let file = parse(Writer::default().text("general.architecture", "gemma3").bytes()).unwrap();
    assert!(file.tensors().is_empty());
}

/// Every single-byte mutation of the header that matters, and pairs of them, must be answered with
/// a result, quickly; what is accepted must have all its tensors inside the file.
#[test]
fn mutations_never_panic() {
    let bytes = small().bytes();
    let header = small().header().len();
    let check = |mutant: Vec<u8>| {
        let len = mutant.len();
        if let Ok(file) = parse(mutant) {
            for t in file.tensors() {
                assert!(t.range.end <= len);
                assert_eq!(file.tensor_bytes(t).len(), t.range.len());
            }
            for key in file.keys() {
                let _ = (file.text(key), file.scalars(key), file.uint(key));
            }
        }
    };
    for at in 0..header {
        for value in [0, 1, 8, 9, 0x7f, 0x80, 0xff, bytes[at] ^ 1, bytes[at] ^ 0x80] {
            let mut mutant = bytes.clone();
            mutant[at] = value;
            check(mutant);
        }
    }
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for _ in 0..4000 {
        let mut mutant = bytes.clone();
        for _ in 0..1 + random(3) {
            let at = random(header);
            mutant[at] = random(256) as u8;
        }
        if random(4) == 0 {
            mutant.truncate(random(mutant.len()));
        }
        check(mutant);
    }
}

#[test]
fn the_real_270m_parses_at_once() {
    let Some(path) = gemma3_270m() else { return };
    let bytes = FileBytes::open(&path, true).unwrap();
    let started = Instant::now();
    let file = Gguf::parse(bytes).unwrap();
    let took = started.elapsed();
    eprintln!("parsed in {took:?}");
    assert_eq!(file.tensors().len(), 236);
    assert_eq!(file.text("general.name").unwrap(), Some("Gemma 3 270m"));
    let embedding = file.tensor("token_embd.weight").unwrap();
    assert_eq!(
        (embedding.shape.as_slice(), embedding.ggml_type),
        (&[262144, 640][..], GgmlType::Q8_0)
    );
    assert!(took.as_millis() < 100, "{took:?}");
}
