//! Tests that every kernel is valid and can be translated to what Metal, Vulkan and DX12 take, and
//! that clang takes the Metal text for well typed.

use std::io::Write as _;
use std::process::{Command, Stdio};

use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};

use crate::linear::kernels::tests as linear;
use crate::ops::attention_few::{Few, join, together};
use crate::ops::attention_many::tests as attention_many;
use crate::ops::attention_one::Variant as One;
use crate::shader::{FILES, Shader};

/// Every variant that ops ask for, with heads of up to 1024 channels.
fn variants() -> Vec<Shader> {
    let switches: &[(&'static str, &[&[&'static str]])] = &[
        ("activate", &[&["GELU"], &["SILU"], &["RELU"]]),
        ("experts_down", &[&[], &["MORE"]]),
        ("embed", &[&[], &["SOFT"]]),
        ("kv_write", &[&[], &["HALVES"]]),
        ("largest", &[&[], &["SHARES"]]),
        ("layer_norm", &[&[], &["BIAS"]]),
        ("linear_plain", &[&[], &["BIAS"]]),
        ("logsumexp", &[&[], &["FIRST"], &["FIRST", "MASK"]]),
    ];
    let mut all = attention_many::variants();
    all.extend(linear::variants());
    for (k, first) in [(1, true), (1, false), (128, true), (128, false)] {
        all.push(Shader::new("top").with("FIRST", first).constant("K", k));
        all.push(Shader::new("top").with("FIRST", true).with("MASK", true).constant("K", k));
        all.push(Shader::new("draw").constant("K", k));
    }
    let is_main = |text: &str| text.contains("fn main(");
    let known = ["attention_coop", "attention_many", "draw", "top"];
    let unrolled = |stem: &str| {
        ["linear/", "experts/"].iter().any(|folder| stem.starts_with(folder))
            || known.contains(&stem)
    };
    for (stem, text) in FILES.iter().filter(|(stem, text)| is_main(text) && !unrolled(stem)) {
        if text.contains("ACC") || stem.starts_with("attention") {
            all.extend(of_heads(stem));
            continue;
        }
        if text.contains("#include vectors") {
            all.extend(of_rows(stem));
            continue;
        }
        let known = switches.iter().find(|(name, _)| name == stem);
        for on in known.map_or(&[[].as_slice()] as &[_], |(_, sets)| sets) {
            all.push(Shader { on: on.to_vec(), ..Shader::new(stem) });
        }
    }
    all
}

/// Kernels that hold a row in registers, with and without subgroups.
fn of_rows(stem: &'static str) -> Vec<Shader> {
    let switches: &[&[&'static str]] = match stem {
        "residual" => &[
            &["PRE", "PRE_WEIGHT", "SCALE", "POST", "POST_WEIGHT"],
            &["PRE", "SCALE", "SCALAR", "POST", "BYTES"],
            &["POST"],
            &["PRE"],
        ],
        "rms_norm" => &[&[], &["WEIGHT", "ROPE"], &["ROPE"]],
        _ => &[&[], &["HALVES", "V_NORM"]],
    };
    let mut all = Vec::new();
    for (vector, subgroup) in [(1, 0), (4, 0), (4, 32)] {
        // Caches come in quads.
        if stem == "heads" && vector == 1 {
            continue;
        }
        for on in switches.iter().filter(|on| subgroup > 0 || !on.contains(&"BYTES")) {
            let shader = Shader { on: on.to_vec(), ..Shader::new(stem) };
            let shader = shader.with("SUBGROUPS", subgroup > 0).constant("V", vector);
            let shader = shader.constant("WG", 64).constant("N", 2).constant("HD", 512);
            let shader = shader.constant("WIDTH", 240 * vector);
            let shader = shader.constant("CHANNELS", 480);
            let shader = shader.constant("PARTS", 1 + u32::from(on.contains(&"ROPE")));
            all.push(if subgroup > 0 { shader.constant("SG", subgroup) } else { shader });
        }
    }
    all
}

/// The least of `attention_one`.
const ONE: One = One {
    head_dim: 0,
    writes: false,
    v_norm: false,
    halves: false,
    horizons: false,
    bytes: None,
    subgroup: 0,
    invocations: 128,
    at_once: 2,
};

fn of_heads(stem: &'static str) -> Vec<Shader> {
    let mut all = Vec::new();
    for quads in [1, 2, 4] {
        let of = |stem| Shader::new(stem).constant("ACC", quads);
        match stem {
            "attention_few" if quads == 1 => {
                for (head_dim, halves) in [(7, false), (72, true), (256, true), (512, false)] {
                    let together = together(8, head_dim / 4, 16 << 10);
                    let horizons = halves;
                    let subgroup = if head_dim == 256 { 32 } else { 0 };
                    let few = Few { head_dim, together, halves, horizons, subgroup };
                    all.push(few.shader(16 << 10));
                }
            }
            "attention_few_join" => {
                all.push(join(64 * quads + 3, quads == 1, None));
                all.push(join(64 * quads, quads == 1, Some(512)));
            }
            "attention_few" => {}
            "attention_one" if quads == 1 => {
                for (head_dim, subgroup, on) in [(8, 8, false), (256, 32, true), (512, 32, false)] {
                    all.push(One { head_dim, subgroup, ..ONE }.shader());
                    let bytes = (head_dim > 8).then_some(2 * head_dim);
                    let (writes, v_norm) = (true, on);
                    let (halves, horizons) = (on, !on);
                    let one = One { head_dim, subgroup, writes, v_norm, halves, horizons, ..ONE };
                    all.push(One { bytes, ..one }.shader());
                }
            }
            "attention_one" => {}
            "self_attention" => all.push(of(stem).constant("GT", if quads > 2 { 1 } else { 4 })),
            _ => all.push(of(stem)),
        }
    }
    all
}

/// A kernel as `naga` has it.
fn parse(shader: &Shader) -> (naga::Module, ModuleInfo) {
    let label = shader.label();
    let text = shader.text().unwrap();
    let module = naga::front::wgsl::parse_str(&text)
        .unwrap_or_else(|e| panic!("{label}: {}", e.emit_to_string(&text)));
    // Half floats in words, which every device has but those of WebGL.
    let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    capabilities.set(Capabilities::SHADER_FLOAT16, shader.on.contains(&"F16"));
    capabilities.set(Capabilities::SUBGROUP, shader.on.contains(&"SUBGROUPS"));
    capabilities.set(Capabilities::COOPERATIVE_MATRIX, shader.on.contains(&"MATRICES"));
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .unwrap_or_else(|e| panic!("{label}: {}", e.emit_to_string(&text)));
    (module, info)
}

/// The Metal text of a kernel.
fn metal(shader: &Shader) -> String {
    let (module, info) = parse(shader);
    let options = msl::Options { lang_version: (2, 3), ..Default::default() };
    let made = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default());
    made.unwrap_or_else(|e| panic!("{}: {e}", shader.label())).0
}

#[test]
fn every_kernel_becomes_spirv_metal_and_hlsl() {
    let all = variants();
    assert!(all.len() > FILES.len(), "{} variants", all.len());
    for shader in &all {
        let (module, info) = parse(shader);
        let words = spv::write_vec(&module, &info, &spv::Options::default(), None);
        assert!(words.is_ok_and(|w| !w.is_empty()), "{}", shader.label());
        let options = hlsl::Options { shader_model: hlsl::ShaderModel::V6_0, ..Default::default() };
        let (mut text, pipeline) = (String::new(), hlsl::PipelineOptions::default());
        let made = hlsl::Writer::new(&mut text, &options, &pipeline).write(&module, &info, None);
        assert!(
            made.is_ok_and(|m| m.entry_point_names.iter().all(Result::is_ok)),
            "{}",
            shader.label()
        );
        assert!(metal(shader).contains("kernel void"), "{}", shader.label());
    }
}

/// Only Vulkan has these.
#[test]
fn kernels_with_matrices_become_spirv() {
    let mut all = linear::matrix_variants();
    all.extend(attention_many::matrix_variants());
    for shader in &all {
        let (module, info) = parse(shader);
        let options = spv::Options { lang_version: (1, 6), ..Default::default() };
        let words = spv::write_vec(&module, &info, &options, None);
        assert!(words.is_ok_and(|w| !w.is_empty()), "{}", shader.label());
    }
    assert!(all.len() > 10, "{} variants", all.len());
}

/// Matrices are read from multiples of 16 bytes, but no type of halves asks for that: drivers put one
/// variable after another.
#[test]
fn what_kernels_with_matrices_share_comes_in_multiples_of_16_bytes() {
    for shader in linear::matrix_variants().into_iter().chain(attention_many::matrix_variants()) {
        let (module, _) = parse(&shader);
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).unwrap();
        for (_, v) in module.global_variables.iter() {
            let size = layouter[v.ty].size;
            let is_shared = v.space == naga::AddressSpace::WorkGroup;
            assert!(!is_shared || size % 16 == 0, "{}: {:?} has {size}", shader.label(), v.name);
        }
    }
}

#[test]
fn m3_no_kernel_shares_more_than_16_kib() {
    for shader in variants() {
        let (module, _) = parse(&shader);
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).unwrap();
        let shared = module.global_variables.iter();
        let shared = shared.filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
        let bytes: u32 = shared.map(|(_, v)| layouter[v.ty].size.next_multiple_of(16)).sum();
        assert!(bytes <= 16 << 10, "{} shares {bytes} bytes", shader.label());
        let bound = module.global_variables.iter();
        let n =
            bound.filter(|(_, v)| matches!(v.space, naga::AddressSpace::Storage { .. })).count();
        // What binds more is asked for where a device has more.
        let most = match shader.stem {
            "attention_one" => 13,
            "heads" | "residual" => 12,
            _ => 8,
        };
        assert!(n <= most, "{} binds {n} buffers", shader.label());
    }
}

/// Whether clang takes a Metal text for well typed, with a header of ours in Apple's place.
fn type_check(text: &str) -> Result<(), String> {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/metal");
    let mut clang = Command::new("clang")
        .args(["-x", "c++", "-std=c++14", "-fsyntax-only", "-Wno-everything", "-nostdinc"])
        // In Metal, 1.0 is a float; and there are halves, which not every processor has.
        .arg("--target=aarch64-unknown-linux-gnu")
        .args(["-Xclang", "-cl-single-precision-constant", "-I", header, "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let mut input = clang.stdin.take().ok_or("clang has no input")?;
    input.write_all(text.as_bytes()).map_err(|e| e.to_string())?;
    drop(input);
    let done = clang.wait_with_output().map_err(|e| e.to_string())?;
    if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into()) }
}

#[test]
fn clang_takes_the_metal_text_for_well_typed() {
    if Command::new("clang").arg("--version").output().is_err() {
        _ = writeln!(std::io::stderr(), "SKIPPED: there is no clang");
        return;
    }
    let planted = metal(&Shader::new("add")).replace("uint lane", "metal::float4 lane");
    assert!(type_check(&planted).is_err(), "a wrong type was not found");
    for shader in variants() {
        if let Err(e) = type_check(&metal(&shader)) {
            panic!("{}: {e}\n{}", shader.label(), metal(&shader));
        }
    }
}
