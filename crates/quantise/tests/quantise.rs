//! Whole weights through a recipe, against what others compute.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use half::f16;
use lapidary_program::{
    DType, Description, Encoding, GraphBuilder, MemoryStore, Metadata, Method, Op, Part, Program,
    SamplingDefaults, Sym, ValueType, WeightDecl, input, lap, method,
};
use lapidary_quantise::{
    Action, Group, Method as Codes, Quantise, Recipe, dequantise, quantise, synthetic,
};
use safetensors::SafeTensors;

/// A program of one embedding and one head, the weights `embed_tokens.weight` and
/// `layers.0.mlp.down_proj.weight`.
fn program(rows: u64, cols: u64, values: &[f32], dtype: DType) -> Program {
    let table = "embed_tokens.weight";
    let head = "layers.0.mlp.down_proj.weight";
    let decl = WeightDecl::dense([rows, cols], dtype);
    let weights: BTreeMap<String, WeightDecl> =
        [(table.to_string(), decl.clone()), (head.to_string(), decl)].into();
    let mut g = GraphBuilder::new(&weights, &[]);
    let tokens = g.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let asked = g.input(input::ROWS, ValueType::indices(Sym::Rows));
    let embed = Op::embed(table, 1.0);
    let x = g.node("embed", embed, &[tokens]).unwrap();
    let x = g.node("rows", Op::GatherRows, &[x, asked]).unwrap();
    let linear = Op::Linear { weight: head.into(), bias: None };
    let logits = g.node("head", linear, &[x]).unwrap();
    g.output("logits", logits);
    let graph = g.finish();
    let mut store = MemoryStore::new();
    for name in [table, head] {
        let bytes = values
            .iter()
            .flat_map(|x| match dtype {
                DType::Bf16 => half::bf16::from_f32(*x).to_le_bytes().to_vec(),
                _ => x.to_le_bytes().to_vec(),
            })
            .collect();
        store.insert(name, Part::Data, bytes);
    }
    let metadata = Metadata {
        name: "sample".into(),
        architecture: "sample".into(),
        made_by: "test".into(),
        vocab_size: rows as u32,
        max_context_len: 8,
        bos_id: None,
        pad_id: None,
        eos_ids: vec![],
        suppress_ids: vec![],
        add_bos: false,
        sampling: SamplingDefaults::default(),
        media: Default::default(),
        answer: None,
    };
    let methods = [(method::FORWARD.to_string(), Method::new(8, graph))].into();
    let description = Description { metadata, states: vec![], methods, weights };
    Program::new(description, BTreeMap::new(), Arc::new(store)).unwrap()
}

/// One rule for all weights: symmetric codes by min-max, or affine ones by a method.
fn recipe(bits: u8, group: Group, affine: Option<Codes>) -> Recipe {
    let (symmetric, method) = (affine.is_none(), affine.unwrap_or(Codes::MinMax));
    let q = Quantise { bits, group, symmetric, scale: DType::F16, method };
    Recipe::new("test", [(".*".to_string(), Action::Quantise(q))]).unwrap()
}

/// Rules of every kind, with the bits of a number under each.
fn recipes() -> Vec<(Recipe, usize)> {
    let bf16 = [(".*".to_string(), Action::Dense(DType::Bf16))];
    vec![
        (Recipe::new("bf16", bf16).unwrap(), 16),
        (recipe(8, Group::Row, None), 8),
        (recipe(4, Group::Size(32), None), 4),
        (recipe(4, Group::Size(32), Some(Codes::MinMax)), 4),
        (recipe(4, Group::Size(32), Some(Codes::Hqq)), 4),
    ]
}

struct Fixture(Vec<u8>);

impl Fixture {
    fn read() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/gguf");
        Fixture(std::fs::read(folder.join("dequant.safetensors")).unwrap())
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).unwrap().data().to_vec()
    }

    fn f32(&self, name: &str) -> Vec<f32> {
        self.bytes(name).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

#[test]
fn q4_0_is_what_gguf_makes_of_the_same_numbers() {
    let fixture = Fixture::read();
    let want: Vec<f32> = fixture
        .bytes("Q4_0.quantised")
        .chunks_exact(18)
        .flat_map(|block| {
            let d = half_at(block, 0);
            let low = block[2..].iter().map(|b| i32::from(b & 15));
            let high = block[2..].iter().map(|b| i32::from(b >> 4));
            low.chain(high).map(|q| (q - 8) as f32 * d).collect::<Vec<_>>()
        })
        .collect();
    let source = program(3, 512, &fixture.f32("Q4_0.source"), DType::F32);
    let got = quantise(&source, &recipe(4, Group::Size(32), None)).unwrap();
    assert_eq!(got.weight("layers.0.mlp.down_proj.weight").unwrap().to_f32(), want);
}

#[test]
fn eight_bits_are_what_gguf_makes_of_the_same_numbers() {
    let fixture = Fixture::read();
    let want: Vec<f32> = fixture
        .bytes("Q8_0.quantised")
        .chunks_exact(34)
        .flat_map(|block| {
            let d = half_at(block, 0);
            block[2..].iter().map(|b| f32::from(b.cast_signed()) * d).collect::<Vec<_>>()
        })
        .collect();
    let source = program(3, 512, &fixture.f32("Q8_0.source"), DType::F32);
    let got = quantise(&source, &recipe(8, Group::Size(32), None)).unwrap();
    assert_eq!(got.weight("layers.0.mlp.down_proj.weight").unwrap().to_f32(), want);
}

#[test]
fn a_quantised_program_is_written_and_read_back_exactly() {
    let values: Vec<f32> =
        (0..48 * 96).map(|i| ((i * 7919 % 1009) as f32 - 504.0) / 900.0).collect();
    let source = program(48, 96, &values, DType::Bf16);
    let folder = tempfile::tempdir().unwrap();
    for (name, (recipe, bits)) in recipes().into_iter().enumerate() {
        let quantised = quantise(&source, &recipe).unwrap();
        let path = folder.path().join(format!("{name}.lap"));
        lap::write(&quantised, &path, &mut |_, _| true).unwrap();
        let back = lap::open(&path, true).unwrap();
        let weight = "layers.0.mlp.down_proj.weight";
        let (got, want) = (back.weight(weight).unwrap(), quantised.weight(weight).unwrap());
        assert_eq!(got.to_f32(), want.to_f32(), "{name}");
        match back.weights()[weight].encoding {
            Encoding::Dense(d) => assert_eq!(d.size_bytes() * 8, bits, "{name}"),
            Encoding::Quant(q) => assert_eq!(usize::from(q.bits), bits, "{name}"),
        }
        // No number is further off than half a step of a grid over the whole range.
        let step = 1.2 / ((1 << bits.min(8)) - 1) as f32;
        let worst =
            got.to_f32().iter().zip(&values).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
        assert!(worst <= step, "{name}: {worst} with steps of {step}");
        assert_eq!(recipe.size_bytes(&source), back.weight_bytes(), "{name}");
    }
}

#[test]
fn synthetic_weights_are_the_same_whole_or_row_by_row() {
    let source = program(48, 96, &[0.0; 48 * 96], DType::Bf16);
    for (name, (recipe, _)) in recipes().into_iter().enumerate() {
        let made = synthetic(&source, Some(&recipe)).unwrap();
        let weight = "layers.0.mlp.down_proj.weight";
        let whole = made.weight(weight).unwrap().to_f32();
        let deviation = (whole.iter().map(|x| x * x).sum::<f32>() / whole.len() as f32).sqrt();
        // Products keep the size of what they are applied to.
        assert!((deviation * 96f32.sqrt() - 1.0).abs() < 0.2, "{name}: {deviation}");
        for row in [0, 7, 47] {
            let one = made.weight_rows(weight, row..row + 1).unwrap().to_f32();
            assert_eq!(one, whole[row * 96..(row + 1) * 96], "{name}, row {row}");
        }
        assert_ne!(whole[..96], whole[96..192], "{name}");
    }
}

#[test]
fn what_is_quantised_can_be_quantised_again_from_its_numbers() {
    let values: Vec<f32> =
        (0..48 * 96).map(|i| ((i * 7919 % 1009) as f32 - 504.0) / 900.0).collect();
    let source = program(48, 96, &values, DType::F32);
    let weight = "layers.0.mlp.down_proj.weight";
    let once = quantise(&source, &recipe(4, Group::Size(32), None)).unwrap();
    // A recipe leaves alone what is quantised,
    let kept = quantise(&once, &recipe(8, Group::Row, None)).unwrap();
    assert_eq!(kept.weights()[weight], once.weights()[weight]);
    // unless it is given the numbers.
    let numbers = dequantise(&once).unwrap();
    let want = once.weight(weight).unwrap().to_f32();
    assert_eq!(numbers.weights()[weight].encoding, Encoding::Dense(DType::F32));
    assert_eq!(numbers.weight(weight).unwrap().to_f32(), want);
    let some = numbers.weight_rows(weight, 7..9).unwrap().to_f32();
    assert_eq!(some, want[7 * 96..9 * 96]);
    // The grid that made them is found again.
    let again = quantise(&numbers, &recipe(4, Group::Size(32), None)).unwrap();
    assert_eq!(again.weight(weight).unwrap().to_f32(), want);
    // Nothing is quantised here, so nothing changes.
    let same = dequantise(&source).unwrap();
    assert_eq!(same.weights(), source.weights());
}
