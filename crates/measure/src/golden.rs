//! Goldens: how a device checks itself against what the reference computed at export.
//!
//! The blob is a safetensors file with, for each sequence `i`, `tokens.i` and `logits.i`, the
//! logits of its last token; and for each tower its inputs and its soft rows, `vision.patches` …
//! `vision.soft`. Where an engine differs, the first op that diverges is found by running both
//! engines op by op.

use std::collections::HashMap;

use lapidary_backend::{Call, Engine, Feed, PageId, PageTable, Results, Span, Wanted, pages_for};
use lapidary_program::{ImageSpec, Program, ValueType, blob, input, method, output};
use lapidary_runner::{Error, Result};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// Lengths of the sequences that are kept.
const LENGTHS: &[usize] = &[5, 24];
/// The most sequences that are read from a file.
const MAX_SEQUENCES: usize = 64;
/// Soft tokens of the image's sides.
const CELLS: (u32, u32) = (3, 2);
/// Frames of the audio.
const FRAMES: usize = 37;

const TOWERS: [&str; 2] = [method::VISION, method::AUDIO];
const LOGITS: &str = output::LOGITS;
const TOKENS: &str = input::TOKENS;

/// One call with its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Golden {
    /// The method.
    method: &'static str,
    /// What it is fed. For `forward`, the tokens alone: the rest follows.
    inputs: Vec<(String, Numbers)>,
    /// The logits of the last token, or all soft rows.
    expected: Vec<f32>,
}

/// The numbers of one input.
#[derive(Clone, Debug, PartialEq)]
enum Numbers {
    I32(Vec<i32>),
    F32(Vec<f32>),
}

/// How one engine did.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The method.
    pub method: &'static str,
    /// Calls that were made.
    pub n_calls: usize,
    /// The largest difference of a number.
    pub max_difference: f32,
    /// The largest difference that passes.
    pub tolerance: f32,
}

/// The first op whose values differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    /// The node's name.
    pub node: String,
    /// Its op's name.
    pub op: &'static str,
    /// Where in its value the difference is largest.
    pub index: usize,
    /// What the engine computed there.
    pub got: f32,
    /// What the reference computed there.
    pub want: f32,
}

impl Verdict {
    /// Whether every logit is within the tolerance.
    pub fn passed(&self) -> bool {
        self.max_difference <= self.tolerance
    }
}

/// Numbers that are arbitrary but always the same.
struct Fixed(u64);

impl Fixed {
    fn below(&mut self, n: u64) -> u64 {
        let Fixed(state) = self;
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % n.max(1)
    }

    /// Between −1 and 1.
    fn levels(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.below(1 << 24) as f32 / (1u32 << 23) as f32 - 1.0).collect()
    }
}

/// Token sequences that exercise a program: the same for every export of the same vocabulary.
fn sequences(program: &Program, max_context: usize) -> Vec<Vec<i32>> {
    let meta = program.metadata();
    let mut fixed = Fixed(0x9e37_79b9_7f4a_7c15);
    LENGTHS
        .iter()
        .map(|n| {
            let n = (*n).min(max_context);
            let mut tokens: Vec<i32> =
                (0..n).map(|_| fixed.below(u64::from(meta.vocab_size)) as i32).collect();
            if let (Some(bos), Some(first)) = (meta.bos_id, tokens.first_mut()) {
                *first = bos as i32;
            }
            tokens
        })
        .collect()
}

/// A small image and a short audio clip for the towers that a program has.
fn tower_inputs(program: &Program) -> Vec<(&'static str, Vec<(String, Numbers)>)> {
    let media = &program.metadata().media;
    let mut calls = Vec::new();
    if let Some(spec) = &media.image {
        calls.push((method::VISION, image(program, spec)));
    }
    if let Some(spec) = &media.audio {
        let frames = Fixed(2).levels(FRAMES * spec.channels() as usize);
        calls.push((method::AUDIO, vec![(input::FRAMES.to_string(), Numbers::F32(frames))]));
    }
    calls
}

fn image(program: &Program, spec: &ImageSpec) -> Vec<(String, Numbers)> {
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for cell in 0..CELLS.0 * CELLS.1 {
        let (left, top) = (cell % CELLS.0 * spec.pool, cell / CELLS.0 * spec.pool);
        for patch in 0..spec.patches_per_soft() {
            x.push((left + patch % spec.pool) as i32);
            y.push((top + patch / spec.pool) as i32);
        }
    }
    let width = (CELLS.0 * spec.pool) as i32;
    let index = x.iter().zip(&y).map(|(x, y)| y * width + x).collect();
    let patches = Fixed(1).levels(x.len() * spec.channels() as usize);
    let all = [
        (input::PATCHES, Numbers::F32(patches)),
        (input::PATCH_INDEX, Numbers::I32(index)),
        (input::PATCH_X, Numbers::I32(x)),
        (input::PATCH_Y, Numbers::I32(y)),
    ];
    let taken = |name: &str| {
        let vision = program.method(method::VISION);
        vision.is_ok_and(|m| m.graph.inputs.iter().any(|i| i.name == name))
    };
    all.into_iter().filter(|(n, _)| taken(n)).map(|(n, data)| (n.to_string(), data)).collect()
}

/// Computes goldens with an engine, which should be the reference.
pub fn compute(engine: &mut dyn Engine) -> Result<Vec<Golden>> {
    let program = engine.program().clone();
    let context = engine.options().max_context.min(engine.options().limits.chunk) as usize;
    let tokens = sequences(&program, context).into_iter();
    let forward = tokens.map(|t| (method::FORWARD, vec![(TOKENS.to_string(), Numbers::I32(t))]));
    forward
        .chain(tower_inputs(&program))
        .map(|(method, inputs)| {
            let mut golden = Golden { method, inputs, expected: vec![] };
            golden.expected = golden.run(engine)?;
            Ok(golden)
        })
        .collect()
}

/// The blob that `.lap` files carry.
pub fn to_blob(goldens: &[Golden]) -> Result<Vec<u8>> {
    let mut tensors: Vec<(String, Dtype, usize, Vec<u8>)> = Vec::new();
    let floats = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    for (i, g) in goldens.iter().enumerate() {
        let spelled = |name: &str| match g.method {
            method::FORWARD => format!("{name}.{i}"),
            tower => format!("{tower}.{name}"),
        };
        for (name, data) in &g.inputs {
            let (dtype, n, bytes) = match data {
                Numbers::I32(x) => {
                    let wide = x.iter().flat_map(|x| i64::from(*x).to_le_bytes()).collect();
                    (Dtype::I64, x.len(), wide)
                }
                Numbers::F32(x) => (Dtype::F32, x.len(), floats(x)),
            };
            tensors.push((spelled(name), dtype, n, bytes));
        }
        let (n, bytes) = (g.expected.len(), floats(&g.expected));
        tensors.push((spelled(g.output()), Dtype::F32, n, bytes));
    }
    let broken = |e: safetensors::SafeTensorError| Error::Program(format!("golden: {e}"));
    let mut views = Vec::new();
    for (name, dtype, n, data) in &tensors {
        views.push((name, TensorView::new(*dtype, vec![*n], data).map_err(broken)?));
    }
    safetensors::serialize(views, None).map_err(broken)
}

/// The goldens of a program; none if it carries none.
pub fn of_program(program: &Program) -> Result<Vec<Golden>> {
    let Some(bytes) = program.blob(blob::GOLDEN).map_err(lapidary_backend::Error::from)? else {
        return Ok(vec![]);
    };
    let broken = |what: String| Error::Program(format!("golden: {what}"));
    let file = SafeTensors::deserialize(bytes).map_err(|e| broken(e.to_string()))?;
    let mut goldens = Vec::new();
    let vocab_size = program.metadata().vocab_size;
    for i in 0..MAX_SEQUENCES {
        let name = format!("{TOKENS}.{i}");
        if file.tensor(&name).is_err() {
            break;
        }
        let tokens = indices(&file, &name).map_err(broken)?;
        let expected = floats(&file, &format!("{LOGITS}.{i}")).map_err(broken)?;
        if tokens.is_empty() || expected.len() != vocab_size as usize {
            return Err(broken(format!("sequence {i} has {} logits", expected.len())));
        }
        if tokens.iter().any(|id| !(0..vocab_size as i32).contains(id)) {
            return Err(broken(format!("sequence {i} has a bad token id")));
        }
        let inputs = vec![(TOKENS.to_string(), Numbers::I32(tokens))];
        goldens.push(Golden { method: method::FORWARD, inputs, expected });
    }
    for tower in TOWERS {
        let Some(m) = program.methods().get(tower) else { continue };
        let output = format!("{tower}.{}", output::SOFT);
        if file.tensor(&output).is_err() {
            continue;
        }
        let mut inputs = Vec::new();
        for i in &m.graph.inputs {
            let name = format!("{tower}.{}", i.name);
            let data = match &i.value_type {
                ValueType::I32(_) => indices(&file, &name).map(Numbers::I32),
                ValueType::F32(_) => floats(&file, &name).map(Numbers::F32),
            };
            inputs.push((i.name.clone(), data.map_err(broken)?));
        }
        let expected = floats(&file, &output).map_err(broken)?;
        goldens.push(Golden { method: tower, inputs, expected });
    }
    Ok(goldens)
}

type Read<T> = std::result::Result<Vec<T>, String>;

fn indices(file: &SafeTensors<'_>, name: &str) -> Read<i32> {
    let tensor = file.tensor(name).map_err(|e| format!("{name}: {e}"))?;
    if tensor.dtype() != Dtype::I64 {
        return Err(format!("{name} is of the wrong type"));
    }
    let wide = tensor.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
    let narrow = wide.map(|x| i32::try_from(x).map_err(|_| format!("{name} holds {x}")));
    narrow.collect()
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Read<f32> {
    let tensor = file.tensor(name).map_err(|e| format!("{name}: {e}"))?;
    if tensor.dtype() != Dtype::F32 {
        return Err(format!("{name} is of the wrong type"));
    }
    Ok(tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

/// Tokens of the longest sequence; `None` if there is none.
pub fn longest(goldens: &[Golden]) -> Option<usize> {
    goldens.iter().filter_map(|g| g.tokens().map(<[i32]>::len)).max()
}

/// Runs the goldens on an engine, one verdict for each method. `relative_tolerance` is multiplied by
/// the largest number that a method should give.
pub fn verify(
    engine: &mut dyn Engine,
    goldens: &[Golden],
    relative_tolerance: f32,
) -> Result<Vec<Verdict>> {
    let mut verdicts: Vec<Verdict> = Vec::new();
    for g in goldens {
        let got = g.run(engine)?;
        if got.len() != g.expected.len() {
            let (n, want) = (got.len(), g.expected.len());
            let what = format!("golden: method `{}` gives {n} numbers, not {want}", g.method);
            return Err(Error::Program(what));
        }
        let mut largest = 1.0f32;
        let mut worst = 0.0f32;
        for (a, b) in got.iter().zip(&g.expected) {
            // What is not finite, on either side, is the largest difference there is.
            let finite = a.is_finite() && b.is_finite();
            worst = worst.max(if finite { (a - b).abs() } else { f32::INFINITY });
            largest = largest.max(if b.is_finite() { b.abs() } else { 0.0 });
        }
        let allowed = relative_tolerance * largest;
        match verdicts.iter_mut().find(|v| v.method == g.method) {
            Some(v) => {
                v.n_calls += 1;
                v.max_difference = v.max_difference.max(worst);
                v.tolerance = v.tolerance.max(allowed);
            }
            None => verdicts.push(Verdict {
                method: g.method,
                n_calls: 1,
                max_difference: worst,
                tolerance: allowed,
            }),
        }
    }
    Ok(verdicts)
}

impl Golden {
    /// The method that it is of.
    pub fn method(&self) -> &'static str {
        self.method
    }

    fn tokens(&self) -> Option<&[i32]> {
        match self.inputs.first() {
            Some((_, Numbers::I32(tokens))) if self.method == method::FORWARD => Some(tokens),
            _ => None,
        }
    }

    /// The output that is compared.
    fn output(&self) -> &'static str {
        if self.method == method::FORWARD { LOGITS } else { output::SOFT }
    }

    fn run(&self, engine: &mut dyn Engine) -> Result<Vec<f32>> {
        let mut out = Results::default();
        let wants = [Wanted::whole(self.output())];
        let program = engine.program().clone();
        self.with_call(&program, |call| engine.run(&Call { wants: &wants, ..*call }, &mut out))?;
        let made = out.get(self.output()).map(|t| t.data.clone());
        made.ok_or_else(|| {
            Error::Program(format!("`{}` has no output `{}`", self.method, self.output()))
        })
    }

    /// For `forward`, the whole sequence in the first pages, its last row asked.
    fn with_call(
        &self,
        program: &Program,
        run: impl FnOnce(&Call<'_>) -> lapidary_backend::Result<()>,
    ) -> Result<()> {
        let Some(tokens) = self.tokens() else {
            let feeds: Vec<Feed<'_>> = self
                .inputs
                .iter()
                .map(|(name, data)| match data {
                    Numbers::I32(x) => Feed::i32(name, x),
                    Numbers::F32(x) => Feed::f32(name, x),
                })
                .collect();
            return Ok(run(&Call { method: self.method, feeds: &feeds, ..Call::default() })?);
        };
        let rows = [tokens.len() as i32 - 1];
        let pages: Vec<PageId> = (0..pages_for(tokens.len()) as u32).map(PageId).collect();
        let table = PageTable { first: 0, pages: &pages };
        let tables = vec![table; program.kv_groups().len()];
        let spans = [Span { start: 0, len: tokens.len() as u32, tables: &tables }];
        let no_soft = vec![-1; tokens.len()];
        let feeds = [
            Feed::i32(input::TOKENS, tokens),
            Feed::i32(input::ROWS, &rows),
            Feed::i32(input::SOFT_INDEX, &no_soft),
            Feed::f32(input::SOFT, &[]),
        ];
        let call = Call { method: self.method, feeds: &feeds, spans: &spans, ..Call::default() };
        Ok(run(&call)?)
    }
}

/// The first op whose output differs from the reference's by more than `relative_tolerance` of the
/// largest number in that output.
pub fn first_divergence(
    engine: &mut dyn Engine,
    reference: &mut dyn Engine,
    golden: &Golden,
    relative_tolerance: f32,
) -> Result<Option<Divergence>> {
    let program = engine.program().clone();
    let method = golden.method;
    let graph = &program.method(method).map_err(lapidary_backend::Error::from)?.graph;
    let mut want: HashMap<usize, Vec<f32>> = HashMap::new();
    golden.with_call(&program, |call| {
        reference.trace(call, &mut |node, values| {
            want.entry(node).or_insert_with(|| values.to_vec());
        })
    })?;
    let mut found = None;
    golden.with_call(&program, |call| {
        engine.trace(call, &mut |node, values| {
            if found.is_some() {
                return;
            }
            let (Some(want), Some(named)) = (want.get(&node), graph.nodes.get(node)) else {
                return;
            };
            let largest = want.iter().fold(1e-6f32, |m, x| m.max(x.abs()));
            let worst = values
                .iter()
                .zip(want)
                .enumerate()
                .map(|(i, (a, b))| (i, if a.is_finite() { (a - b).abs() } else { f32::INFINITY }))
                .max_by(|a, b| a.1.total_cmp(&b.1));
            if let Some((index, difference)) = worst
                && difference > relative_tolerance * largest
            {
                found = Some(Divergence {
                    node: named.name.clone(),
                    op: named.op.kind(),
                    index,
                    got: values[index],
                    want: want[index],
                });
            }
        })
    })?;
    Ok(found)
}
