//! `lapidary inspect`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Result;
use lapidary::Program;
use lapidary::program::{Method, ValueType, method};
use serde_json::{Value, json};

use crate::args::{DraftArg, InspectArgs};
use crate::{model, screen};

/// Prints what a model is.
pub fn run(args: &InspectArgs) -> Result<()> {
    let model = match &args.draft {
        Some(path) => model::open(&args.model.drafting(&DraftArg::At(path.clone())))?,
        None => model::open(&args.model)?,
    };
    let program = model.program();
    let mut out = crate::screen::out();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &as_json(program)?)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", as_text(program)?)?;
    }
    Ok(out.flush()?)
}

/// Weights and bytes by encoding.
fn encodings(program: &Program) -> BTreeMap<String, (u64, u64, u64)> {
    let mut by_label: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    for decl in program.weights().values() {
        let entry = by_label.entry(decl.encoding.label()).or_default();
        entry.0 += 1;
        entry.1 += decl.checked_elements().unwrap_or(0);
        entry.2 += decl.size_bytes();
    }
    by_label
}

fn ops(method: &Method) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for node in &method.graph.nodes {
        *counts.entry(node.op.kind()).or_default() += 1;
    }
    counts
}

fn type_text(t: &ValueType) -> String {
    let dims: Vec<String> = t.shape().iter().map(ToString::to_string).collect();
    let dtype = if matches!(t, ValueType::F32(_)) { "f32" } else { "i32" };
    format!("{dtype} [{}]", dims.join(", "))
}

fn as_json(program: &Program) -> Result<Value> {
    let methods: serde_json::Map<String, Value> = program
        .methods()
        .iter()
        .map(|(name, m)| {
            let inputs: Vec<Value> = m
                .graph
                .inputs
                .iter()
                .map(|i| json!({"name": i.name, "type": type_text(&i.value_type)}))
                .collect();
            let outputs: Vec<Value> = m
                .graph
                .outputs
                .iter()
                .map(|o| json!({"name": o.name, "type": type_text(&m.types()[o.value.index()])}))
                .collect();
            let value = json!({
                "max_chunk": m.max_chunk,
                "inputs": inputs,
                "outputs": outputs,
                "n_ops": m.graph.nodes.len(),
                "ops": ops(m),
            });
            (name.clone(), value)
        })
        .collect();
    let quantisation: Vec<Value> = encodings(program)
        .into_iter()
        .map(|(label, (weights, params, bytes))| {
            json!({"encoding": label, "weights": weights, "params": params, "size_bytes": bytes})
        })
        .collect();
    let mut blobs = serde_json::Map::new();
    for (name, blob) in program.blobs() {
        blobs.insert(name.clone(), json!(blob.bytes()?.len()));
    }
    Ok(json!({
        "metadata": program.metadata(),
        "n_params": program.n_params(),
        "weight_bytes": program.weight_bytes(),
        "methods": methods,
        "states": program.states(),
        "quantisation": quantisation,
        "blobs": blobs,
    }))
}

fn as_text(program: &Program) -> Result<String> {
    let mut s = String::new();
    let meta = program.metadata();
    let mut line = |text: String| {
        let _ = writeln!(s, "{text}");
    };
    let [name, made_by] = [&meta.name, &meta.made_by].map(|text| screen::name(text));
    line(format!("{name} ({}), made by {made_by}", meta.architecture));
    line(format!(
        "{} parameters, {} of weights, vocabulary {}, context {}",
        count(program.n_params()),
        size(program.weight_bytes()),
        meta.vocab_size,
        meta.max_context_len
    ));
    let takes = meta.media.modalities();
    let takes = std::iter::once("text").chain(takes.iter().map(|m| m.name()));
    line(format!("takes {}", takes.collect::<Vec<_>>().join(", ")));
    let ids = |v: &[u32]| v.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let one = |v: Option<u32>| v.map_or("none".to_string(), |id| id.to_string());
    line(format!(
        "bos {}, pad {}, eos {}{}",
        one(meta.bos_id),
        one(meta.pad_id),
        ids(&meta.eos_ids),
        if meta.suppress_ids.is_empty() {
            String::new()
        } else {
            format!(", never sampled: {}", ids(&meta.suppress_ids))
        }
    ));
    let sampling = meta.sampling;
    line(format!(
        "sampling: temperature {}, top-k {}, top-p {}",
        sampling.temperature, sampling.top_k, sampling.top_p
    ));
    line(String::new());
    line("weights".into());
    for (label, (n, params, bytes)) in encodings(program) {
        line(format!("  {label:<22} {n:>5} tensors {:>9} {:>10}", count(params), size(bytes)));
    }
    line(String::new());
    for (name, m) in program.methods() {
        let what = match name.as_str() {
            method::VISION => "patches",
            method::AUDIO => "frames",
            _ => "tokens",
        };
        line(format!(
            "method {name}: {} ops, at most {} {what} a call",
            m.graph.nodes.len(),
            m.max_chunk
        ));
        for i in &m.graph.inputs {
            line(format!("  in  {:<10} {}", i.name, type_text(&i.value_type)));
        }
        for o in &m.graph.outputs {
            line(format!("  out {:<10} {}", o.name, type_text(&m.types()[o.value.index()])));
        }
        let counts: Vec<String> = ops(m).iter().map(|(op, n)| format!("{op} {n}")).collect();
        line(format!("  ops {}", counts.join(", ")));
    }
    line(String::new());
    let flat = program.states().iter().filter(|s| s.window.is_none()).count();
    let rings = program.states().len() - flat;
    line(format!("caches: {flat} flat, {rings} rings"));
    for (kind, s) in distinct(program) {
        line(format!("  {kind} × {} heads of {}{}", s.0, s.1, s.2));
    }
    if !program.blobs().is_empty() {
        line(String::new());
        for (name, blob) in program.blobs() {
            line(format!("{name}: {}", size(blob.bytes()?.len() as u64)));
        }
    }
    Ok(s)
}

/// Caches of the same form, counted.
fn distinct(program: &Program) -> Vec<(usize, (u32, u32, String))> {
    let mut forms: Vec<(usize, (u32, u32, String))> = Vec::new();
    for state in program.states() {
        let window = state.window.map_or(String::new(), |w| format!(", window {w}"));
        let form = (state.n_kv_heads, state.head_dim, window);
        match forms.iter_mut().find(|(_, f)| *f == form) {
            Some((n, _)) => *n += 1,
            None => forms.push((1, form)),
        }
    }
    forms
}

fn count(n: u64) -> String {
    match n {
        0..1_000_000 => n.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}

fn size(n: u64) -> String {
    indicatif::HumanBytes(n).to_string()
}
