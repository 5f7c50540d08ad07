//! Tests of what goes wrong with GPUs: the process lives, and errors say what happened.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;

use lapidary_backend::{
    Backend as _, Call, CallLimits, Device, Engine, Error, Feed, LoadOptions, PAGE, PageId,
    PageTable, Results, Span, Wanted,
};
use lapidary_program::{
    DType, Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Program, SamplingDefaults,
    StateDecl, Sym, ValueType, WeightDecl,
};

use crate::WgpuBackend;
use crate::adapter::{Adapter, Api};
use crate::compile::Tables;
use crate::device::Gpu;
use crate::engine::WgpuEngine;

const CHANNELS: usize = 8;

/// A program of one linear, whose weight is ones, and a cache.
fn program() -> Arc<Program> {
    let weights: BTreeMap<String, WeightDecl> =
        [("w".to_string(), WeightDecl::dense([4, CHANNELS as u64], DType::F32))].into();
    let heads = StateDecl { name: "kv".into(), n_kv_heads: 1, head_dim: 8, window: None };
    let states = vec![heads];
    let mut store = MemoryStore::new();
    store.insert_f32("w", &[1.0; 4 * CHANNELS]);
    let mut graph = GraphBuilder::new(&weights, &states);
    let x = graph.input("x", ValueType::rows(Sym::Tokens, CHANNELS as u64));
    let linear = Op::Linear { weight: "w".into(), bias: None };
    let y = graph.node("y", linear, &[x]).unwrap();
    graph.node("kv", Op::KvWrite { state: "kv".into() }, &[x, x]).unwrap();
    graph.output("y", y);
    let methods = [("op".to_string(), Method::new(1 << 16, graph.finish()))].into();
    let metadata = Metadata {
        name: "faults".into(),
        architecture: "none".into(),
        made_by: "a test".into(),
        vocab_size: 8,
        max_context_len: 1 << 30,
        bos_id: None,
        pad_id: None,
        eos_ids: vec![],
        suppress_ids: vec![],
        add_bos: false,
        sampling: SamplingDefaults::default(),
        media: Default::default(),
        answer: None,
    };
    let description = Description { metadata, states, methods, weights };
    Arc::new(Program::new(description, BTreeMap::new(), Arc::new(store)).unwrap())
}

fn options(max_context: u32) -> LoadOptions {
    let limits = CallLimits { chunk: 4, tokens: 4, block: 1 };
    let pages = vec![max_context.div_ceil(PAGE as u32)];
    LoadOptions { max_context, n_sequences: 1, limits, pages, ..LoadOptions::default() }
}

fn run(engine: &mut dyn Engine) -> lapidary_backend::Result<Vec<f32>> {
    let x = [0.5f32; CHANNELS];
    let tables = [PageTable { first: 0, pages: &[PageId(0)] }];
    let call = Call {
        method: "op",
        feeds: &[Feed::f32("x", &x)],
        spans: &[Span { start: 0, len: 1, tables: &tables }],
        wants: &[Wanted::whole("y")],
        ..Call::default()
    };
    let mut results = Results::default();
    engine.run(&call, &mut results)?;
    Ok(results.get("y").unwrap().data.clone())
}

fn open(backend: WgpuBackend) -> Box<dyn Device> {
    backend.open(&backend.devices().unwrap()[0].id).unwrap()
}

/// A GPU, or word that there is none.
fn adapter() -> Option<Adapter> {
    match Api::Vulkan.adapters(None) {
        Ok(mut adapters) => Some(adapters.remove(0)),
        Err(e) => {
            _ = writeln!(std::io::stderr(), "SKIPPED: {e}");
            None
        }
    }
}

#[test]
fn m4_a_lost_device_is_an_error_and_can_be_opened_again() {
    let Some(adapter) = adapter() else { return };
    let gpu = Gpu::open(Api::Vulkan, &adapter, None).unwrap();
    let load = |gpu| WgpuEngine::new(program(), options(64), gpu, Tables::Host, &mut |_, _| {});
    let mut engine = load(gpu.clone()).unwrap();
    assert_eq!(run(&mut engine).unwrap(), [4.0; 4]);
    gpu.device.destroy();
    for _ in 0..2 {
        let lost = run(&mut engine).unwrap_err();
        assert!(matches!(&lost, Error::Device(why) if why.contains("lost")), "{lost}");
    }
    let lost = load(gpu);
    assert!(matches!(lost.err(), Some(Error::Device(_))));
    // The next to load gets a new one.
    let device = open(WgpuBackend::VULKAN);
    let loaded = device.load(&program(), &options(64), &mut |_, _| {});
    assert_eq!(run(loaded.unwrap().as_mut()).unwrap(), [4.0; 4]);
}

#[test]
fn m5_what_does_not_fit_is_an_error_and_harms_nothing() {
    if adapter().is_none() {
        return;
    }
    let device = open(WgpuBackend::VULKAN.with_least());
    // The plan says so already, and what would help.
    let planned = device.plan(&program(), &options(1 << 30)).err().unwrap();
    let loaded = device.load(&program(), &options(1 << 30), &mut |_, _| {}).err().unwrap();
    for refused in [planned, loaded] {
        let helps = |why: &str| why.contains("a shorter context");
        assert!(matches!(&refused, Error::OutOfMemory(why) if helps(why)), "{refused}");
    }
    let loaded = device.load(&program(), &options(64), &mut |_, _| {});
    assert_eq!(run(loaded.unwrap().as_mut()).unwrap(), [4.0; 4]);
}

#[test]
fn errors_that_nobody_waits_for_do_not_end_the_process() {
    let Some(adapter) = adapter() else { return };
    let gpu = Gpu::open(Api::Vulkan, &adapter, None).unwrap();
    // A copy from a buffer that is not meant for it.
    let buffer = gpu.buffer("wrong", 16, wgpu::BufferUsages::COPY_DST).unwrap();
    let mut encoder = gpu.encoder();
    encoder.copy_buffer_to_buffer(&buffer, 0, &buffer, 0, 16);
    gpu.queue.submit([encoder.finish()]);
    assert!(matches!(gpu.check(), Err(Error::Device(_))));
    assert!(gpu.check().is_ok(), "it is told once");
}

/// The environment names the drivers, so this gets a process of its own.
#[test]
fn m7_a_machine_without_drivers_says_so() {
    let alone = "m7_in_a_process_of_its_own";
    let test = format!("faults::{alone}");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &test])
        .envs([("VK_DRIVER_FILES", "/nowhere"), ("VK_ICD_FILENAMES", "/nowhere")])
        .env("LAPIDARY_TEST_ALONE", "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}

#[test]
fn m7_in_a_process_of_its_own() {
    let probed = WgpuBackend::VULKAN.devices();
    if std::env::var_os("LAPIDARY_TEST_ALONE").is_some() {
        let missing = probed.err().unwrap();
        assert!(matches!(missing, Error::Unavailable { backend: "vulkan", .. }), "{missing}");
    } else {
        assert!(probed.is_ok_and(|d| !d.is_empty()) || adapter().is_none());
    }
}
