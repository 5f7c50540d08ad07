//! What many long sequences of a large model take, by the plans of the backends: nothing is loaded.

use lapidary_backend::{
    Backend, CallLimits, DeviceId, Error, KvType, LoadOptions, MemoryPlan, PAGE, Wishes,
};
use lapidary_backend_cpu::CpuBackend;
use lapidary_backend_wgpu::WgpuBackend;
use lapidary_gemma::{RELEASED, Released, recipes};
use lapidary_program::{Program, method};

const SEQUENCES: u32 = 8;
const CONTEXT: u32 = 8192;

/// The shape of Gemma 4 31B in four bits, without weights.
fn program() -> Program {
    let released = RELEASED.iter().find(|released| released.name == "gemma-4-31b").unwrap();
    let program = Released { draft_config: None, ..*released }.skeleton().unwrap();
    let recipe = recipes::built_in("int4", &program).unwrap();
    lapidary_quantise::synthetic(&program, Some(&recipe)).unwrap()
}

/// Text alone, or images of the longest block as well.
fn wishes(block: Option<u32>) -> Wishes {
    Wishes { max_context: CONTEXT, n_sequences: SEQUENCES, chunk: None, block }
}

fn options(program: &Program, limits: CallLimits) -> LoadOptions {
    LoadOptions {
        max_context: CONTEXT,
        n_sequences: SEQUENCES,
        limits,
        pages: limits.pages(program, CONTEXT, SEQUENCES),
        methods: vec![method::FORWARD.into()],
        threads: Some(2),
        ..LoadOptions::default()
    }
}

/// Bytes of every position of the group without a window, and of a window for each sequence.
fn needed(program: &Program) -> u64 {
    let bytes = |group: &lapidary_program::KvGroup| {
        let channels: u64 = group.states.iter().map(|s| program.states()[*s].channels()).sum();
        let positions = u64::from(SEQUENCES) * u64::from(group.window.unwrap_or(CONTEXT));
        // Keys and values of two bytes.
        positions * channels * 2 * 2
    };
    assert_eq!(LoadOptions::default().kv_type(), KvType::Bf16);
    program.kv_groups().iter().map(bytes).sum()
}

fn check(program: &Program, plan: &MemoryPlan, what: &str) {
    let need = needed(program);
    let more = |have: u64, need: u64| have as f64 / need as f64 - 1.0;
    assert!(more(plan.kv, need) <= 0.1, "{what}: {plan}, and sequences need {need} bytes of KV");
    let all = plan.weights + need;
    assert!(more(plan.total(), all) <= 0.1, "{what}: {plan}, {} bytes and not {all}", plan.total());
    assert!(plan.weights > 10 << 30 && plan.kv >= need, "{what}: {plan}");
}

#[test]
fn eight_times_8k_of_the_largest_model_take_what_they_need_and_a_tenth() {
    let program = program();
    let cpu = CpuBackend.open(&DeviceId::new("cpu", 0)).unwrap();
    for block in [Some(0), None] {
        let limits = cpu.limits(&program, &wishes(block));
        let plan = cpu.plan(&program, &options(&program, limits)).unwrap();
        check(&program, &plan, "cpu");
        let options = |limits| options(&program, limits);
        let plan = WgpuBackend::plan_large(&program, &wishes(block), options).unwrap();
        check(&program, &plan, "a large GPU");
    }
}

/// A pool is as large as a buffer may be, and that is said before anything is loaded.
#[test]
fn a_pool_that_no_buffer_holds_is_refused_by_the_plan() {
    let program = program();
    let planned = |full: u32| {
        WgpuBackend::plan_large(&program, &wishes(Some(0)), |limits| {
            let mut options = options(&program, limits);
            let group = program.kv_groups().iter().position(|group| group.window.is_none());
            options.pages[group.unwrap()] = full;
            options
        })
    };
    // Keys of four heads of 512 channels, of two bytes.
    let most = ((1u64 << 31) - 256) / (PAGE * 4 * 512 * 2) as u64;
    assert_eq!(most, 4095);
    assert!(planned(most as u32).is_ok());
    let e = planned(most as u32 + 1).unwrap_err();
    assert!(matches!(&e, Error::OutOfMemory(what) if what.contains("4096 KV pages")), "{e}");
    assert!(e.to_string().contains("fewer sequences"), "{e}");
}

/// Where there is a device, it says how many pages it takes, and takes those.
#[test]
fn a_device_plans_the_pages_that_it_says_it_takes() {
    let backend = WgpuBackend::VULKAN;
    let device = match backend.devices() {
        Ok(devices) => backend.open(&devices[0].id).unwrap(),
        Err(e) => return eprintln!("SKIPPED: {e}"),
    };
    let program = program();
    let limits = device.limits(&program, &wishes(Some(0)));
    let mut options = options(&program, limits);
    options.pages = device.max_pages(&program, &options).unwrap();
    assert!(options.pages.iter().all(|n| *n > 0));
    device.plan(&program, &options).unwrap();
    options.pages[0] += 1;
    let e = device.plan(&program, &options).unwrap_err();
    assert!(matches!(e, Error::OutOfMemory(_)), "{e}");
    let e = device.load(&std::sync::Arc::new(program), &options, &mut |_, _| {}).err().unwrap();
    assert!(matches!(e, Error::OutOfMemory(_)), "{e}");
}
