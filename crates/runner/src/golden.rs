//! Golden logits: how a device checks itself against what the reference computed at export.
//!
//! The blob is a safetensors file with, for each sequence `i`, `tokens.i` and `logits.i`, the
//! logits of its last token. Where they differ, the first op that diverges is found by running
//! both engines op by op.

use std::collections::HashMap;

use lapidary_backend::{Engine, Feed, Outputs};
use lapidary_program::{Program, blob, input, method};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::error::{Error, Result};

/// Lengths of the sequences that are kept.
const LENGTHS: &[usize] = &[5, 24];
/// The most sequences that are read from a file.
const MAX_SEQUENCES: usize = 64;

/// One sequence with its logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Golden {
    /// Token ids.
    pub tokens: Vec<i32>,
    /// Logits of the last one.
    pub logits: Vec<f32>,
}

/// How one engine did.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Sequences that were run.
    pub n_sequences: usize,
    /// The largest difference of a logit.
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

/// Token sequences that exercise a program: the same for every export of the same vocabulary.
pub fn sequences(program: &Program, max_context: usize) -> Vec<Vec<i32>> {
    let meta = program.metadata();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % u64::from(meta.vocab_size)) as i32
    };
    LENGTHS
        .iter()
        .map(|n| {
            let mut tokens: Vec<i32> = (0..(*n).min(max_context)).map(|_| next()).collect();
            if let (Some(bos), Some(first)) = (meta.bos_id, tokens.first_mut()) {
                *first = bos as i32;
            }
            tokens
        })
        .collect()
}

/// Computes goldens with an engine, which should be the reference.
pub fn compute(engine: &mut dyn Engine) -> Result<Vec<Golden>> {
    let program = engine.program().clone();
    let context = engine.options().max_context.min(engine.options().max_chunk) as usize;
    sequences(&program, context)
        .into_iter()
        .map(|tokens| Ok(Golden { logits: last_logits(engine, &tokens)?, tokens }))
        .collect()
}

/// The blob that `.lap` files carry.
pub fn to_blob(goldens: &[Golden]) -> Result<Vec<u8>> {
    let mut bytes: Vec<(String, Dtype, usize, Vec<u8>)> = Vec::new();
    for (i, g) in goldens.iter().enumerate() {
        let tokens = g.tokens.iter().flat_map(|t| i64::from(*t).to_le_bytes()).collect();
        let logits = g.logits.iter().flat_map(|x| x.to_le_bytes()).collect();
        bytes.push((format!("tokens.{i}"), Dtype::I64, g.tokens.len(), tokens));
        bytes.push((format!("logits.{i}"), Dtype::F32, g.logits.len(), logits));
    }
    let broken = |e: safetensors::SafeTensorError| Error::Program(format!("golden: {e}"));
    let mut views = Vec::new();
    for (name, dtype, n, data) in &bytes {
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
    for i in 0..MAX_SEQUENCES {
        let (Ok(tokens), Ok(logits)) =
            (file.tensor(&format!("tokens.{i}")), file.tensor(&format!("logits.{i}")))
        else {
            break;
        };
        if tokens.dtype() != Dtype::I64 || logits.dtype() != Dtype::F32 {
            return Err(broken(format!("sequence {i} is of the wrong type")));
        }
        let (ids, _) = tokens.data().as_chunks::<8>();
        let (values, _) = logits.data().as_chunks::<4>();
        let vocab_size = program.metadata().vocab_size;
        let tokens: Option<Vec<i32>> = ids
            .iter()
            .map(|b| i64::from_le_bytes(*b))
            .map(|id| i32::try_from(id).ok().filter(|id| (0..vocab_size as i32).contains(id)))
            .collect();
        let tokens = tokens.ok_or_else(|| broken(format!("sequence {i} has a bad token id")))?;
        let logits: Vec<f32> = values.iter().map(|b| f32::from_le_bytes(*b)).collect();
        if tokens.is_empty() || logits.len() != vocab_size as usize {
            return Err(broken(format!("sequence {i} has {} logits", logits.len())));
        }
        goldens.push(Golden { tokens, logits });
    }
    Ok(goldens)
}

/// Runs the goldens on an engine. `relative_tolerance` is multiplied by the largest logit.
pub fn verify(
    engine: &mut dyn Engine,
    goldens: &[Golden],
    relative_tolerance: f32,
) -> Result<Verdict> {
    let mut verdict = Verdict { n_sequences: goldens.len(), max_difference: 0.0, tolerance: 0.0 };
    let mut largest = 1.0f32;
    for g in goldens {
        let got = last_logits(engine, &g.tokens)?;
        for (a, b) in got.iter().zip(&g.logits) {
            // What is not finite, on either side, is the largest difference there is.
            let difference =
                if a.is_finite() && b.is_finite() { (a - b).abs() } else { f32::INFINITY };
            verdict.max_difference = verdict.max_difference.max(difference);
            if b.is_finite() {
                largest = largest.max(b.abs());
            }
        }
    }
    verdict.tolerance = relative_tolerance * largest;
    Ok(verdict)
}

/// The first op whose output differs from the reference's by more than `relative_tolerance` of the
/// largest number in that output.
pub fn first_divergence(
    engine: &mut dyn Engine,
    reference: &mut dyn Engine,
    tokens: &[i32],
    relative_tolerance: f32,
) -> Result<Option<Divergence>> {
    let program = engine.program().clone();
    let graph = &program.method(method::FORWARD).map_err(lapidary_backend::Error::from)?.graph;
    let mut want: HashMap<usize, Vec<f32>> = HashMap::new();
    with_feeds(tokens, |feeds| {
        reference.trace(method::FORWARD, feeds, &mut |node, values| {
            want.entry(node).or_insert_with(|| values.to_vec());
        })
    })?;
    let mut found = None;
    with_feeds(tokens, |feeds| {
        engine.trace(method::FORWARD, feeds, &mut |node, values| {
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

fn last_logits(engine: &mut dyn Engine, tokens: &[i32]) -> Result<Vec<f32>> {
    let mut out = Outputs::default();
    with_feeds(tokens, |feeds| engine.run(method::FORWARD, feeds, &mut out))?;
    let logits = out.get("logits").map(|t| t.data.clone());
    logits.ok_or_else(|| Error::Program("`forward` has no output `logits`".into()))
}

/// A whole sequence in slot 0, its last row asked.
fn with_feeds(
    tokens: &[i32],
    run: impl FnOnce(&[Feed<'_>]) -> lapidary_backend::Result<()>,
) -> Result<()> {
    let positions: Vec<i32> = (0..tokens.len() as i32).collect();
    let slots = vec![0; tokens.len()];
    let rows = [tokens.len() as i32 - 1];
    run(&[
        Feed::i32(input::TOKENS, tokens),
        Feed::i32(input::SLOTS, &slots),
        Feed::i32(input::POSITIONS, &positions),
        Feed::i32(input::HORIZONS, &positions),
        Feed::i32(input::ROWS, &rows),
    ])?;
    Ok(())
}
