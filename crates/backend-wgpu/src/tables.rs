//! Tests that rows of tables on the device are those that the host reads, to the bit.

use std::collections::BTreeMap;
use std::sync::Arc;

use half::f16;
use lapidary_backend::{
    Backend as _, Call, CallLimits, DeviceId, Feed, LoadOptions, Results, Wanted,
};
use lapidary_program::{
    DType, Description, Encoding, GraphBuilder, MemoryStore, Metadata, Method, Op, Part, Program,
    QuantLayout, SamplingDefaults, ScaleFormat, Sym, ValueType, WeightDecl, input,
};

use crate::WgpuBackend;

const ROWS: usize = 50;
const COLS: usize = 512;

/// Bytes that look random.
fn noise(n: usize, seed: u32) -> Vec<u8> {
    let byte = |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 40_503) >> 13) as u8;
    (0..n as u32).map(byte).collect()
}

/// Numbers of a type that look random and are neither large nor subnormal.
fn numbers(dtype: DType, bytes: usize, seed: u32) -> Vec<u8> {
    let n = bytes / dtype.size_bytes();
    let noise = noise(4 * n, seed);
    let number = |w: &[u8; 4]| (u32::from_le_bytes(*w) as f32 / 2f32.powi(32) - 0.5) * 0.3 + 1e-3;
    let numbers = noise.as_chunks::<4>().0.iter().map(number);
    match dtype {
        DType::F32 => numbers.flat_map(|x| x.to_le_bytes()).collect(),
        DType::F16 => numbers.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
        DType::Bf16 => numbers.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        _ => noise.into_iter().take(bytes).collect(),
    }
}

/// A program that looks rows up: every second row from the third on, and row 7 where a token is soft.
fn program(encoding: Encoding) -> Arc<Program> {
    let decl = WeightDecl { shape: vec![ROWS as u64, COLS as u64], encoding };
    let mut store = MemoryStore::new();
    for (seed, part) in (0..).zip(Part::ALL) {
        if let Some((dtype, _)) = decl.part_layout(part) {
            let bytes = decl.part_bytes(part) as usize;
            store.insert("table", part, numbers(dtype, bytes, seed));
        }
    }
    let weights: BTreeMap<String, WeightDecl> = [("table".to_string(), decl)].into();
    let mut graph = GraphBuilder::new(&weights, &[]);
    let tokens = graph.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let soft = graph.input(input::SOFT_INDEX, ValueType::indices(Sym::Tokens));
    graph.input(input::SOFT, ValueType::rows(Sym::Soft, 1));
    let scale = 33.941_124;
    let embed = |start, stride, soft_id| Op::Embed {
        weight: "table".into(),
        scale,
        start,
        stride,
        soft_id,
    };
    let plain = graph.node("plain", embed(0, 1, None), &[tokens]).unwrap();
    let strided = graph.node("strided", embed(2, 2, Some(7)), &[tokens, soft]).unwrap();
    graph.output("plain", plain);
    graph.output("strided", strided);
    let methods = [("op".to_string(), Method::new(64, graph.finish()))].into();
    let metadata = Metadata {
        name: "tables".into(),
        architecture: "none".into(),
        made_by: "a test".into(),
        vocab_size: 24,
        max_context_len: 64,
        bos_id: None,
        pad_id: None,
        eos_ids: vec![],
        suppress_ids: vec![],
        add_bos: false,
        sampling: SamplingDefaults::default(),
        media: Default::default(),
        answer: None,
    };
    let description = Description { metadata, states: vec![], methods, weights };
    Arc::new(Program::new(description, BTreeMap::new(), Arc::new(store)).unwrap())
}

fn rows(backend: WgpuBackend, program: &Arc<Program>) -> Option<Vec<Vec<f32>>> {
    let device = backend.open(&DeviceId::new("vulkan", 0)).ok()?;
    let limits = CallLimits { chunk: 24, tokens: 24, block: 1 };
    let options = LoadOptions { max_context: 64, n_sequences: 1, limits, ..LoadOptions::default() };
    let mut engine = device.load(program, &options, &mut |_, _| {}).unwrap();
    let ids: Vec<i32> = (0..24).collect();
    let soft: Vec<i32> = ids.iter().map(|id| id % 3 - 1).collect();
    let call = Call {
        method: "op",
        feeds: &[
            Feed::i32(input::TOKENS, &ids),
            Feed::i32(input::SOFT_INDEX, &soft),
            Feed::f32(input::SOFT, &[0.0; 2]),
        ],
        wants: &[Wanted::whole("plain"), Wanted::whole("strided")],
        ..Call::default()
    };
    let mut results = Results::default();
    engine.run(&call, &mut results).unwrap();
    let out = ["plain", "strided"].map(|name| results.get(name).unwrap().data.clone());
    Some(out.into())
}

#[test]
fn rows_of_tables_on_the_device_are_the_hosts() {
    let nested = |bits, group, offset, affine, sub| {
        let scale = ScaleFormat::Nested { per: 8, sub, dtype: DType::F16 };
        Encoding::Quant(QuantLayout { bits, group, offset, scale, affine })
    };
    let encodings = [
        Encoding::Dense(DType::F32),
        Encoding::Dense(DType::F16),
        Encoding::Dense(DType::Bf16),
        Encoding::Quant(QuantLayout::symmetric(4, 32, DType::F16)),
        Encoding::Quant(QuantLayout::symmetric(8, COLS as u32, DType::F32)),
        Encoding::Quant(QuantLayout::affine(4, 64, DType::F32)),
        Encoding::Quant(QuantLayout::affine(3, 32, DType::Bf16)),
        nested(6, 16, 32, false, DType::I8),
        nested(4, 32, 0, true, DType::U8),
        nested(5, 32, 0, true, DType::U8),
        nested(2, 16, 0, true, DType::U8),
    ];
    let gpu = WgpuBackend::VULKAN;
    for encoding in encodings {
        let program = program(encoding);
        let Some(wanted) = rows(gpu.with_host_tables(), &program) else { return };
        assert!(wanted.iter().flatten().any(|x| x.abs() > 1e-3), "{}", encoding.label());
        // Whole, and in several parts.
        for backend in [gpu, gpu.with_shards(8 << 10)] {
            let made = rows(backend, &program).unwrap();
            assert_eq!(made, wanted, "{}", encoding.label());
        }
    }
}
