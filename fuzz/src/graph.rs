//! Programs that parse but mean something else: a real description, changed in its structure.
//!
//! The first bytes choose a seed program, the rest say how to change it: operands are rewired,
//! lengths and attributes changed, states and weights swapped, nodes moved, copied and dropped.
//! Whatever still opens must run, or be refused, on every backend, without a panic.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use lapidary_backend::{
    Backend, Call, Feed, LoadOptions, PageId, PageTable, Results, Span, Wanted, Wishes, pages_for,
};
use lapidary_backend_cpu::CpuBackend;
use lapidary_gemma::{assemble, hf};
use lapidary_program::{Description, Dim, MemoryStore, Part, Program, Sym, ValueType, method};
use lapidary_reference::ReferenceBackend;
use serde_json::Value;

/// Larger programs open, but are not run.
const MAX_WEIGHT_BYTES: u64 = 1 << 20;

/// Seeds: programs whose `program.json` is changed.
static SEEDS: OnceLock<Vec<Value>> = OnceLock::new();

/// Reads bytes as choices.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        let word = usize::from(self.byte()) << 8 | usize::from(self.byte());
        word % n.max(1)
    }

    fn number(&mut self) -> i64 {
        match self.byte() % 8 {
            0 => 0,
            1 => -1,
            2 => 1,
            3 => i64::from(u32::MAX),
            4 => 1 << 31,
            5 => i64::MAX,
            _ => i64::from(self.byte()),
        }
    }
}

/// Changes a program and, if it still opens, runs it.
pub fn program_graph(data: &[u8]) {
    let mut choices = Choices(data);
    let seeds = SEEDS.get_or_init(seeds);
    let mut changed = seeds[choices.below(seeds.len())].clone();
    for _ in 0..=choices.below(3) {
        change(&mut changed, &mut choices);
    }
    let Ok(description) = serde_json::from_value::<Description>(changed) else { return };
    run(description);
}

/// The tiny checkpoints that other tests use: between them they have every op.
fn seeds() -> Vec<Value> {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/tiny");
    let models = [
        ("gemma3_mm", None),
        ("gemma4_mm_e", None),
        ("gemma4_unified", None),
        ("gemma4_text_moe", None),
        ("gemma4_text_dense", Some("gemma4_assistant")),
        ("gemma4_text_e", Some("gemma4_assistant_e")),
    ];
    let described = models.iter().filter_map(|(target, draft)| {
        let model = hf::read_model(&tiny.join(target), false).ok()?;
        let draft = draft.map(|name| hf::read_draft(&tiny.join(name), false)).transpose().ok()?;
        let program = assemble(model, draft).ok()?;
        serde_json::to_value(program.description()).ok()
    });
    let seeds: Vec<Value> = described.collect();
    assert_eq!(seeds.len(), models.len(), "a tiny checkpoint does not open");
    seeds
}

/// One change of structure.
fn change(program: &mut Value, choices: &mut Choices<'_>) {
    let kind = choices.byte() % 10;
    if kind == 9 {
        return change_anywhere(program, choices);
    }
    if kind == 8 {
        return change_state(program, choices);
    }
    let names: Vec<String> =
        program["methods"].as_object().map_or(vec![], |m| m.keys().cloned().collect());
    if names.is_empty() {
        return;
    }
    let name = &names[choices.below(names.len())];
    let graph = &mut program["methods"][name]["graph"];
    let n_values = graph["nodes"].as_array().map_or(0, Vec::len) + 8;
    let Some(nodes) = graph["nodes"].as_array_mut().filter(|nodes| !nodes.is_empty()) else {
        return;
    };
    let at = choices.below(nodes.len());
    match kind {
        // Rewire an operand, or add or drop one.
        0..=2 => {
            let Some(inputs) = nodes[at]["inputs"].as_array_mut() else { return };
            match choices.byte() % 6 {
                0 => inputs.push(choices.below(n_values).into()),
                1 => drop(inputs.pop()),
                _ if inputs.is_empty() => {}
                _ => {
                    let i = choices.below(inputs.len());
                    // Low numbers are the method's inputs: indices among them.
                    let n = if choices.byte().is_multiple_of(2) { 6 } else { n_values };
                    inputs[i] = choices.below(n).into();
                }
            }
        }
        3 => {
            let other = choices.below(nodes.len());
            let op = nodes[other]["op"].clone();
            nodes[at]["op"] = op;
        }
        4 => {
            let node = nodes.remove(at);
            let to = choices.below(nodes.len() + 1);
            nodes.insert(to, node);
        }
        5 => drop(nodes.remove(at)),
        6 => change_anywhere(&mut nodes[at]["op"], choices),
        _ => {
            let part = if choices.byte().is_multiple_of(2) { "inputs" } else { "outputs" };
            change_anywhere(&mut graph[part], choices);
        }
    }
}

fn change_state(program: &mut Value, choices: &mut Choices<'_>) {
    let Some(states) = program["states"].as_array_mut().filter(|s| !s.is_empty()) else { return };
    let (a, b) = (choices.below(states.len()), choices.below(states.len()));
    match choices.byte() % 3 {
        0 => {
            // Two caches change places, under their old names.
            let (name_a, name_b) = (states[a]["name"].clone(), states[b]["name"].clone());
            (states[a]["name"], states[b]["name"]) = (name_b, name_a);
        }
        1 => change_anywhere(&mut states[a], choices),
        _ => drop(states.remove(a)),
    }
}

/// Changes one number, word or flag somewhere below.
fn change_anywhere(value: &mut Value, choices: &mut Choices<'_>) {
    match value {
        Value::Number(n) => {
            let old = n.as_i64().unwrap_or(1);
            *value = match choices.byte() % 5 {
                0 => old.saturating_add(1).into(),
                1 => old.saturating_sub(1).into(),
                2 => old.saturating_mul(2).into(),
                3 => Value::from(f64::from(choices.byte()) / 16.0),
                _ => choices.number().into(),
            };
        }
        Value::Bool(b) => *b = !*b,
        Value::String(s) => {
            let words = ["T", "R", "S", "tokens", "soft_index", "rows", "soft", "kv.0", "kv.1"];
            *s = words[choices.below(words.len())].to_string();
        }
        Value::Null => *value = choices.number().into(),
        Value::Array(items) if !items.is_empty() => {
            let i = choices.below(items.len());
            change_anywhere(&mut items[i], choices);
        }
        Value::Object(map) if !map.is_empty() => {
            let i = choices.below(map.len());
            if let Some(item) = map.values_mut().nth(i) {
                change_anywhere(item, choices);
            }
        }
        Value::Array(_) | Value::Object(_) => {}
    }
}

/// Opens a description with weights of small numbers and runs it on the backends of every machine.
fn run(description: Description) {
    let mut sizes =
        description.weights.values().map(lapidary_program::WeightDecl::checked_elements);
    let elements = sizes.try_fold(0u64, |sum, n| sum.checked_add(n?));
    let small = elements.is_some_and(|n| n <= MAX_WEIGHT_BYTES);
    let mut store = MemoryStore::new();
    for (name, decl) in description.weights.iter().filter(|_| small) {
        for part in Part::ALL {
            let n = decl.part_bytes(part) as usize;
            if n > 0 && n as u64 <= MAX_WEIGHT_BYTES {
                store.insert(name.as_str(), part, (0..n).map(|i| (i * 13 % 60) as u8).collect());
            }
        }
    }
    let Ok(program) = Program::new(description, Default::default(), Arc::new(store)) else {
        return;
    };
    if !small {
        return;
    }
    let program = Arc::new(program);
    for backend in [&ReferenceBackend as &dyn Backend, &CpuBackend] {
        run_on(backend, &program);
    }
}

fn run_on(backend: &dyn Backend, program: &Arc<Program>) {
    let Ok(devices) = backend.devices() else { return };
    let Some(device) = devices.first().and_then(|d| backend.open(&d.id).ok()) else { return };
    let max_context = program.metadata().max_context_len.min(16);
    let wishes = Wishes { max_context, n_sequences: 1, chunk: Some(4), block: Some(0) };
    let limits = device.limits(program, &wishes);
    let options = LoadOptions {
        max_context,
        n_sequences: 1,
        limits,
        pages: limits.pages(program, max_context, 1),
        threads: Some(1),
        max_patches: 4,
        max_frames: 4,
        ..LoadOptions::default()
    };
    let fits = device.plan(program, &options).is_ok_and(|plan| plan.total() < 64 << 20);
    if !fits {
        return;
    }
    let Ok(mut engine) = device.load(program, &options, &mut |_, _| {}) else { return };
    let pages: Vec<PageId> = (0..pages_for(max_context as usize) as u32).map(PageId).collect();
    let tables: Vec<PageTable<'_>> =
        program.kv_groups().iter().map(|_| PageTable { first: 0, pages: &pages }).collect();
    let mut results = Results::default();
    for (name, m) in program.methods() {
        let n = |t: &ValueType| match t.shape().first() {
            Some(Dim::Sym(Sym::Rows | Sym::Soft)) => 1,
            _ => 2usize,
        };
        let ids = [0; 2];
        let rows: Vec<Vec<f32>> =
            m.graph.inputs.iter().map(|i| feed_rows(&i.value_type, n(&i.value_type))).collect();
        let feeds: Vec<Feed<'_>> = m
            .graph
            .inputs
            .iter()
            .zip(&rows)
            .map(|(i, rows)| match &i.value_type {
                ValueType::I32(_) => Feed::i32(&i.name, &ids[..n(&i.value_type)]),
                ValueType::F32(_) => Feed::f32(&i.name, rows),
            })
            .collect();
        let wants: Vec<Wanted<'_>> =
            m.graph.outputs.iter().map(|o| Wanted::whole(&o.name)).collect();
        let takes_tokens = matches!(name.as_str(), method::FORWARD | method::DRAFT);
        for start in [0, 2] {
            let span = [Span { start, len: 2, tables: &tables }];
            let spans = if takes_tokens { &span[..] } else { &[] };
            let (feeds, wants) = (&feeds, &wants);
            let call = Call { method: name, feeds, spans, wants, ..Call::default() };
            let _ = engine.run(&call, &mut results);
        }
    }
}

fn feed_rows(t: &ValueType, n: usize) -> Vec<f32> {
    let channels = t.channels();
    if channels > 1 << 16 { Vec::new() } else { vec![0.5; n * channels] }
}
