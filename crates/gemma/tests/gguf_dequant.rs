//! Every number format, bit for bit as gguf-py reads it.

mod gguf_writer;

use std::time::Instant;

use gguf_writer::{Writer, gemma3_270m, testdata};
use lapidary_gemma::gguf::{GgmlType, Gguf, GgufStore};
use lapidary_program::{DType, Encoding, FileBytes, Part, Weight, WeightDecl, WeightStore};
use safetensors::SafeTensors;

/// The formats that are read, with their numbers in the file.
const FORMATS: [(u32, &str); 12] = [
    (1, "F16"),
    (30, "BF16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (8, "Q8_0"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
];

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn values(store: &GgufStore, name: &str, decl: &WeightDecl) -> Vec<f32> {
    Weight::fetch(name, decl, store).unwrap().to_f32()
}

/// Equal bits, but for the many ways to write a NaN.
fn assert_same(name: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{name}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let same = g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan();
        assert!(same, "{name}[{i}]: {g:?} is not {w:?}");
    }
}

#[test]
fn every_format_gives_the_numbers_that_gguf_py_gives() {
    let bytes = std::fs::read(testdata().join("gguf/dequant.safetensors")).unwrap();
    let fixture = SafeTensors::deserialize(&bytes).unwrap();
    for (id, name) in FORMATS {
        assert_eq!(GgmlType::from_id(id).unwrap().name(), name);
        let raw = fixture.tensor(&format!("{name}.raw")).unwrap();
        let want = floats(fixture.tensor(&format!("{name}.f32")).unwrap().data());
        let file = Writer::default().tensor("t", &[512, 3], id, raw.data().to_vec()).file();
        let mut store = GgufStore::new(Gguf::parse(file).unwrap());
        let decl = store.bind("w", "t").unwrap();
        assert_eq!(decl.shape, [3, 512]);
        assert_same(name, &values(&store, "w", &decl), &want);
        for part in Part::ALL {
            match decl.part_bytes(part) {
                0 => assert!(store.part("w", part).is_err(), "{name} {part:?}"),
                n => assert_eq!(store.part("w", part).unwrap().len() as u64, n, "{name} {part:?}"),
            }
        }
        // What is stored is no larger than it was, but for scales of 4 or 6 bits that become bytes.
        assert!(decl.size_bytes() <= raw.data().len() as u64 * 6 / 5, "{name}");
    }
}

#[test]
fn dense_weights_are_borrowed() {
    let file = Writer::default().floats("t", &[4, 2], &[0.5; 8]).file();
    let mut store = GgufStore::new(Gguf::parse(file).unwrap());
    let decl = store.bind("w", "t").unwrap();
    assert_eq!(decl.encoding, Encoding::Dense(DType::F32));
    assert!(matches!(store.part("w", Part::Data), Ok(std::borrow::Cow::Borrowed(_))));
    assert!(store.part("w", Part::Scale).is_err());
    assert!(store.part("t", Part::Data).is_err());
}

#[test]
fn formats_that_are_not_read_are_named_with_their_tensor() {
    for (id, bytes, name) in [(20, 18, "IQ4_NL"), (39, 17, "MXFP4"), (26, 128, "I32")] {
        let file =
            Writer::default().tensor("blk.0.attn_q.weight", &[32], id, vec![0; bytes]).file();
        let mut store = GgufStore::new(Gguf::parse(file).unwrap());
        let error = store.bind("w", "blk.0.attn_q.weight").unwrap_err().to_string();
        assert!(error.contains("tensor `blk.0.attn_q.weight`: its type"), "{error}");
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn stacks_of_matrices_are_joined_matrix_by_matrix() {
    let blocks = |seed: u8, n: usize| -> Vec<u8> {
        (0..n * 34).map(|i| if i % 34 == 1 { 0x3c } else { (i as u8).wrapping_mul(seed) }).collect()
    };
    // Three experts, two gate rows and two up rows each, 32 columns.
    let file = Writer::default()
        .tensor("gate", &[32, 2, 3], 8, blocks(3, 6))
        .tensor("up", &[32, 2, 3], 8, blocks(5, 6))
        .tensor("other", &[32, 2, 3], 2, vec![0; 18 * 6])
        .tensor("narrow", &[32, 2, 2], 8, blocks(5, 4))
        .file();
    let mut store = GgufStore::new(Gguf::parse(file).unwrap());
    let gate = store.bind("g", "gate").unwrap();
    let up = store.bind("u", "up").unwrap();
    let both = store.bind_joined("gu", ["gate", "up"]).unwrap();
    assert_eq!((both.shape.as_slice(), both.encoding), (&[3, 4, 32][..], gate.encoding));
    let gate = values(&store, "g", &gate);
    let up = values(&store, "u", &up);
    let both = values(&store, "gu", &both);
    for expert in 0..3 {
        let rows = |x: &[f32]| x[expert * 64..][..64].to_vec();
        assert_same("expert", &both[expert * 128..][..128], &[rows(&gate), rows(&up)].concat());
    }
    let error = store.bind_joined("x", ["gate", "other"]).unwrap_err().to_string();
    assert!(error.contains("tensor `other`: it is Q4_0, but `gate`"), "{error}");
    let error = store.bind_joined("x", ["gate", "narrow"]).unwrap_err().to_string();
    assert!(error.contains("can't be joined"), "{error}");
}

#[test]
fn any_bits_in_a_block_are_numbers() {
    for (id, name) in FORMATS {
        let (len, bytes) = GgmlType::from_id(id).unwrap().block();
        for fill in [0u8, 0x55, 0x7f, 0xff] {
            let raw = vec![fill; (bytes * 4) as usize];
            let file = Writer::default().tensor("t", &[u64::from(len) * 2, 2], id, raw).file();
            let mut store = GgufStore::new(Gguf::parse(file).unwrap());
            let decl = store.bind("w", "t").unwrap();
            assert_eq!(values(&store, "w", &decl).len(), 4 * len as usize, "{name} {fill:#x}");
        }
    }
}

#[test]
fn the_real_embedding_is_repacked_quickly() {
    let Some(path) = gemma3_270m() else { return };
    let file = Gguf::parse(FileBytes::open(&path, true).unwrap()).unwrap();
    let mut store = GgufStore::new(file);
    let decl = store.bind("e", "token_embd.weight").unwrap();
    // Once to bring the file into memory.
    assert_eq!(store.part("e", Part::Scale).unwrap().len(), 262144 * 20 * 2);
    let started = Instant::now();
    let data = store.part("e", Part::Data).unwrap();
    let took = started.elapsed();
    eprintln!("{} MB repacked in {took:?}", data.len() / 1_000_000);
    assert_eq!(data.len() as u64, decl.part_bytes(Part::Data));
    assert!(took.as_secs() < 5, "{took:?}");
}
