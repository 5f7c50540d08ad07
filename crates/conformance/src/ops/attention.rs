//! Attention is tested with `kv_write`, since a cache can't be filled otherwise: sequences of
//! calls, against a cache that is a plain map and so forgets nothing.

mod many;

use std::collections::HashMap;
use std::ops::Range;

use lapidary_backend::{LoadOptions, Precision};
use lapidary_program::{AttentionSpec, GraphBuilder, Op};

use crate::case::{Call, Case, Data};
use crate::lab::{Lab, OP, Y, rows};
use crate::paging::{Place, limits};
use crate::tolerance::SUMS;

/// A method that reads the cache and writes nothing, as `draft` does.
const ASK: &str = "ask";

/// A cache, a reader, and calls.
pub(crate) struct Scenario {
    pub name: String,
    pub spec: AttentionSpec,
    /// The cache's own window.
    pub kept: Option<u32>,
    pub options: LoadOptions,
    /// Tokens of each call, and whether they write.
    pub calls: Vec<(bool, Vec<Place>)>,
    /// Size of the queries.
    pub sharpness: f32,
}

pub(crate) fn cases() -> Vec<Case> {
    let scenarios =
        [heads(), windows(), long(), bidirectional(), sequences(), asking(), rewinding(), sharp()];
    scenarios.into_iter().flatten().chain(many::scenarios()).map(case).collect()
}

/// Heads of all sizes and groupings: a prefill, then single tokens.
fn heads() -> Vec<Scenario> {
    let mut all = Vec::new();
    for head_dim in [7, 8, 16, 20, 64, 72, 128, 256, 512] {
        for (n_heads, n_kv_heads) in [(1, 1), (4, 1), (8, 2), (6, 3), (32, 1)] {
            let calls = vec![prefill(0, 0..9), prefill(0, 9..10), prefill(0, 10..11)];
            let spec = spec(n_heads, n_kv_heads, head_dim, None);
            all.push(scenario(format!("{n_heads}/{n_kv_heads} heads of {head_dim}"), spec, calls));
        }
    }
    all
}

/// Windows that move on by several times their size, in chunks of changing length.
fn windows() -> Vec<Scenario> {
    let mut all = Vec::new();
    for (window, kept) in
        [(1, 1), (2, 2), (3, 3), (5, 9), (16, 16), (17, 17), (100, 100), (130, 200)]
    {
        for max_chunk in [1, 4, 33] {
            let (mut calls, mut at) = (Vec::new(), 0);
            let end = 3 * kept as i32 + 40;
            for len in [max_chunk, 1, (max_chunk / 2).max(1), max_chunk].into_iter().cycle() {
                calls.push(prefill(0, at..(at + len).min(end)));
                at += len;
                if at >= end {
                    break;
                }
            }
            let mut s = scenario(
                format!("window {window} of {kept}, chunks of {max_chunk}"),
                spec(4, 2, 8, Some(window)),
                calls,
            );
            s.kept = Some(kept);
            s.options.limits = limits(max_chunk as usize, 3);
            s.options.max_context = end as u32;
            all.push(s);
        }
    }
    all
}

/// Caches of many blocks, read by chunks and by single tokens.
fn long() -> Vec<Scenario> {
    let mut all = Vec::new();
    for (window, kept) in [(None, None), (Some(600), Some(600)), (Some(513), Some(700))] {
        for (n_heads, n_kv_heads) in [(4, 1), (4, 4), (40, 1)] {
            let mut calls: Vec<_> = (0..7).map(|i| prefill(0, i * 129..(i + 1) * 129)).collect();
            calls.extend((903..906).map(|i| prefill(0, i..i + 1)));
            let name = format!("{n_heads}/{n_kv_heads} heads over 900 keys, window {window:?}");
            let mut s = scenario(name, spec(n_heads, n_kv_heads, 8, window), calls);
            s.kept = kept;
            s.options.limits = limits(129, 3);
            s.options.max_context = 1000;
            all.push(s);
        }
    }
    all
}

/// Blocks whose tokens see each other, between text.
fn bidirectional() -> Vec<Scenario> {
    let mut all = Vec::new();
    for window in [None, Some(1), Some(4), Some(8), Some(30)] {
        let mut tokens = prefill(0, 0..20).1;
        for (i, token) in tokens.iter_mut().enumerate() {
            token.horizon = match i {
                3..11 => 10,
                // A horizon before the token counts as its own position.
                15 => 2,
                _ => i as i32,
            };
        }
        let calls = vec![(true, tokens), prefill(0, 20..25)];
        let spec = AttentionSpec { bidirectional: true, ..spec(4, 2, 24, window) };
        all.push(scenario(format!("bidirectional, window {window:?}"), spec, calls));
    }
    all
}

/// Several conversations in one call.
fn sequences() -> Vec<Scenario> {
    let mut all = Vec::new();
    for window in [None, Some(3)] {
        let interleaved = (0..8).map(|i| token(i / 4, i % 4)).collect();
        let batch = vec![token(1, 4), token(2, 0), token(0, 4)];
        let together = (0..5).map(|i| token(2, i + 1)).chain([token(1, 5), token(0, 5)]).collect();
        let calls = vec![(true, interleaved), (true, batch), (true, together)];
        all.push(scenario(format!("sequences, window {window:?}"), spec(4, 2, 16, window), calls));
    }
    all
}

/// A method that writes nothing sees the keys before its position, and not its own.
fn asking() -> Vec<Scenario> {
    let mut all = Vec::new();
    for window in [None, Some(1), Some(5), Some(40)] {
        let ask = |sequence, position| (false, vec![token(sequence, position)]);
        let several = (false, vec![token(0, 30), token(1, 7), token(0, 30), token(0, 29)]);
        let calls = vec![
            prefill(0, 0..30),
            prefill(1, 0..7),
            ask(0, 30),
            several,
            // Nothing is there to be seen.
            ask(2, 0),
            prefill(0, 30..33),
            ask(0, 33),
        ];
        all.push(scenario(format!("asking, window {window:?}"), spec(6, 3, 20, window), calls));
    }
    all
}

/// Positions that are written again.
fn rewinding() -> Vec<Scenario> {
    let mut all = Vec::new();
    for window in [None, Some(6)] {
        let calls = vec![
            prefill(0, 0..20),
            prefill(0, 14..18),
            prefill(0, 18..19),
            prefill(0, 17..30),
            prefill(0, 29..30),
        ];
        all.push(scenario(format!("rewinding, window {window:?}"), spec(4, 1, 16, window), calls));
    }
    all
}

/// Scores in the thousands: one key takes all the weight, and nothing overflows.
fn sharp() -> Vec<Scenario> {
    let calls = vec![prefill(0, 0..40), prefill(0, 40..41)];
    let mut s = scenario("sharp".into(), spec(4, 1, 64, None), calls);
    s.sharpness = SHARP;
    vec![s]
}

/// A power of two, so that queries of few bits stay so.
const SHARP: f32 = 4096.0;

pub(crate) fn spec(
    n_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    window: Option<u32>,
) -> AttentionSpec {
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionSpec {
        n_heads,
        n_kv_heads,
        head_dim,
        scale,
        window,
        bidirectional: false,
        own_key: true,
    }
}

pub(crate) fn scenario(
    name: String,
    spec: AttentionSpec,
    calls: Vec<(bool, Vec<Place>)>,
) -> Scenario {
    let options = LoadOptions {
        max_context: 64,
        n_sequences: 3,
        limits: limits(40, 3),
        threads: Some(2),
        precision: Precision::Exact,
        ..LoadOptions::default()
    };
    Scenario { name, spec, kept: spec.window, options, calls, sharpness: 1.0 }
}

pub(crate) fn prefill(sequence: i32, positions: Range<i32>) -> (bool, Vec<Place>) {
    (true, positions.map(|p| token(sequence, p)).collect())
}

fn token(sequence: i32, position: i32) -> Place {
    Place::new(sequence, position)
}

pub(crate) fn case(s: Scenario) -> Case {
    let mut lab = Lab::new(s.spec.head_dim.into());
    let (heads, kv_heads) = (s.spec.n_heads as usize, s.spec.n_kv_heads as usize);
    let head_dim = s.spec.head_dim as usize;
    lab.state("kv", kv_heads, head_dim, s.kept);
    lab.method(OP, 1 << 16, |graph| build(graph, &s.spec, true));
    lab.method(ASK, 1 << 16, |graph| build(graph, &s.spec, false));
    let mut cache: HashMap<(i32, i32), [Vec<f32>; 2]> = HashMap::new();
    let mut calls = Vec::new();
    for (writes, tokens) in &s.calls {
        let mut q = lab.random.normals(tokens.len() * heads * head_dim, 1.0);
        if s.sharpness > 1.0 {
            // The key that takes all the weight must not depend on how queries are rounded.
            q.chunks_mut(head_dim).for_each(as_any_cache_holds);
        }
        q.iter_mut().for_each(|x| *x *= s.sharpness);
        let mut feeds = vec![];
        if *writes {
            let mut k = lab.random.normals(tokens.len() * kv_heads * head_dim, 1.0);
            if s.sharpness > 1.0 {
                // Nor on how keys are.
                k.chunks_mut(head_dim).for_each(as_any_cache_holds);
            }
            let v = lab.random.normals(tokens.len() * kv_heads * head_dim, 1.0);
            let rows = k.chunks(kv_heads * head_dim).zip(v.chunks(kv_heads * head_dim));
            for (token, (k, v)) in tokens.iter().zip(rows) {
                cache.insert((token.sequence, token.position), [k.to_vec(), v.to_vec()]);
            }
            feeds.extend([("k", Data::F32(k)), ("v", Data::F32(v))]);
        }
        let expected = tokens.iter().zip(q.chunks(heads * head_dim));
        let expected =
            expected.flat_map(|(token, q)| attend(&s.spec, &cache, *token, q, *writes)).collect();
        feeds.push(("q", Data::F32(q)));
        let method = if *writes { OP } else { ASK };
        let places = tokens.clone();
        calls.push(Call { method, feeds, places, expected: vec![(Y, expected)] });
    }
    Case {
        name: s.name,
        program: lab.finish(16, 1 << 16),
        options: s.options,
        calls,
        tolerance: SUMS,
    }
}

/// Makes a key one that every kind of cache holds exactly: codes of a byte, the largest of them
/// among them, times a power of two.
fn as_any_cache_holds(key: &mut [f32]) {
    const STEP: f32 = 1.0 / 32.0;
    for x in &mut *key {
        *x = (*x / STEP).round().clamp(-127.0, 127.0) * STEP;
    }
    key[0] = 127.0 * STEP;
}

fn build(
    graph: &mut GraphBuilder<'_>,
    spec: &AttentionSpec,
    writes: bool,
) -> lapidary_program::Result<()> {
    let channels = |heads: u32| (heads * spec.head_dim) as usize;
    let q = graph.input("q", rows(channels(spec.n_heads)));
    let kv =
        writes.then(|| ["k", "v"].map(|name| graph.input(name, rows(channels(spec.n_kv_heads)))));
    let state = || "kv".to_string();
    if let Some([k, v]) = kv {
        graph.node("write", Op::KvWrite { state: state() }, &[k, v])?;
    }
    let spec =
        AttentionSpec { own_key: writes, bidirectional: writes && spec.bidirectional, ..*spec };
    let y = graph.node("attention", Op::Attention { state: state(), spec }, &[q])?;
    graph.output(Y, y);
    Ok(())
}

/// One token's attention.
fn attend(
    spec: &AttentionSpec,
    cache: &HashMap<(i32, i32), [Vec<f32>; 2]>,
    token: Place,
    q: &[f32],
    own_key: bool,
) -> Vec<f64> {
    let head_dim = spec.head_dim as usize;
    let per_kv = (spec.n_heads / spec.n_kv_heads) as usize;
    let p = token.position;
    let sees = |k: i32| {
        let before = match (own_key, spec.bidirectional) {
            (false, _) => k < p,
            (true, true) => k <= p || k <= token.horizon,
            (true, false) => k <= p,
        };
        before && spec.window.is_none_or(|w| k > p - w as i32)
    };
    let last = p.max(token.horizon);
    let keys: Vec<&[Vec<f32>; 2]> =
        (0..=last).filter(|k| sees(*k)).map(|k| &cache[&(token.sequence, k)]).collect();
    let mut out = Vec::new();
    for (h, q) in q.chunks(head_dim).enumerate() {
        let at = h / per_kv * head_dim;
        let dot = |k: &[f32]| -> f64 {
            q.iter().zip(&k[at..]).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
        };
        let scores: Vec<f64> = keys.iter().map(|[k, _]| dot(k) * f64::from(spec.scale)).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exps: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = exps.iter().sum();
        for d in 0..head_dim {
            let weighted = keys.iter().zip(&exps).map(|([_, v], e)| f64::from(v[at + d]) * e);
            out.push(if keys.is_empty() { 0.0 } else { weighted.sum::<f64>() / sum });
        }
    }
    out
}
