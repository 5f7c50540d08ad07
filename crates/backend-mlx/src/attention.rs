//! Ops that depend on where tokens stand: rope, and attention over pages.

use std::ops::Range;

use lapidary_backend::{Bound, Result, Span};
use lapidary_backend_kit::{angles, axial_frequencies, rope_frequencies};
use lapidary_program::{AttentionSpec, AxialRopeSpec, RopeSpec};

use crate::cache::Cache;
use crate::ffi::{Array, Mlx, Sees};

/// What ops of one call share: it depends on positions alone, and so is the same in every layer.
#[derive(Default)]
pub(crate) struct Shared {
    ropes: Vec<(RopeSpec, [Array; 2])>,
    masks: Vec<((usize, Predicate), Array)>,
}

/// A mask, but for positions.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Predicate {
    window: Option<u32>,
    bidirectional: bool,
    own_key: bool,
}

/// Cosines and sines of positions, `[T, 1, head_dim / 2]`; pairs that do not rotate have 1 and 0.
fn table(mlx: &Mlx, positions: &[i32], frequencies: &[f32], half: usize) -> Result<[Array; 2]> {
    let n = positions.len();
    let (mut cosines, mut sines) = (vec![1.0; n * half], vec![0.0; n * half]);
    let rows = cosines.chunks_exact_mut(half).zip(sines.chunks_exact_mut(half));
    for ((cosines, sines), position) in rows.zip(positions) {
        angles(*position, frequencies, cosines, sines);
    }
    let shape = [n, 1, half];
    Ok([mlx.floats(&cosines, &shape)?, mlx.floats(&sines, &shape)?])
}

/// `x [T, heads, 2 · half]`: pair `i` couples elements `i` and `i + half`.
fn turned(mlx: &Mlx, x: &Array, [cosines, sines]: &[Array; 2]) -> Result<Array> {
    let half = x.shape()[2] / 2;
    let (a, b) = (mlx.slice(x, 2, 0..half)?, mlx.slice(x, 2, half..2 * half)?);
    let times = |x: &Array, y: &Array| mlx.multiply(x, y);
    let first = mlx.subtract(&times(&a, cosines)?, &times(&b, sines)?)?;
    let second = mlx.add(&times(&b, cosines)?, &times(&a, sines)?)?;
    mlx.concat(&[&first, &second], 2)
}

/// Rope over the whole of each head.
pub(crate) fn rope(
    mlx: &Mlx,
    spec: &RopeSpec,
    x: &Array,
    positions: &[i32],
    shared: &mut Shared,
) -> Result<Array> {
    let head_dim = spec.head_dim as usize;
    let shape = x.shape();
    let known = match shared.ropes.iter().position(|(known, _)| known == spec) {
        Some(known) => known,
        None => {
            let made = table(mlx, positions, &rope_frequencies(spec), head_dim / 2)?;
            shared.ropes.push((*spec, made));
            shared.ropes.len() - 1
        }
    };
    let heads = mlx.reshape(x, &[shape[0], shape[1] / head_dim, head_dim])?;
    mlx.reshape(&turned(mlx, &heads, &shared.ropes[known].1)?, &shape)
}

/// Rope by column in the first half of each head, by row in the second.
pub(crate) fn axial_rope(
    mlx: &Mlx,
    spec: &AxialRopeSpec,
    x: &Array,
    places: [&[i32]; 2],
) -> Result<Array> {
    let head_dim = spec.head_dim as usize;
    let (half, frequencies) = (head_dim / 2, axial_frequencies(spec));
    let shape = x.shape();
    let heads = mlx.reshape(x, &[shape[0], shape[1] / head_dim, head_dim])?;
    let mut parts = Vec::new();
    for (i, places) in places.into_iter().enumerate() {
        let part = mlx.slice(&heads, 2, i * half..(i + 1) * half)?;
        parts.push(turned(mlx, &part, &table(mlx, places, &frequencies, half / 2)?)?);
    }
    mlx.reshape(&mlx.concat(&[&parts[0], &parts[1]], 2)?, &shape)
}

/// Writes each token's key and value to its place.
pub(crate) fn kv_write(
    mlx: &Mlx,
    cache: &mut Cache,
    [keys, values]: [&Array; 2],
    spans: &[Span<'_>],
) -> Result<()> {
    for (span, tokens) in spans.iter().zip(tokens_of(spans)) {
        let table = &span.tables[cache.shape.group];
        let parts = [mlx.slice(keys, 0, tokens.clone())?, mlx.slice(values, 0, tokens)?];
        cache.write(mlx, table, span.start as usize, [&parts[0], &parts[1]])?;
    }
    Ok(())
}

/// The tokens of each span among those of the call.
fn tokens_of(spans: &[Span<'_>]) -> impl Iterator<Item = Range<usize>> {
    spans.iter().scan(0, |at, span| {
        let start = *at;
        *at += span.len as usize;
        Some(start..*at)
    })
}

/// Attention of each token over what the cache holds of its sequence.
pub(crate) fn attention(
    mlx: &Mlx,
    spec: &AttentionSpec,
    cache: &Cache,
    q: &Array,
    bound: &Bound<'_>,
    shared: &mut Shared,
) -> Result<Array> {
    let mut parts = Vec::new();
    for (i, tokens) in tokens_of(bound.spans).enumerate() {
        let q = mlx.slice(q, 0, tokens.clone())?;
        parts.push(of_span(mlx, spec, cache, &q, bound, (i, tokens), shared)?);
    }
    match parts.as_slice() {
        [one] => one.share(),
        _ => mlx.concat(&parts.iter().collect::<Vec<_>>(), 0),
    }
}

fn of_span(
    mlx: &Mlx,
    spec: &AttentionSpec,
    cache: &Cache,
    q: &Array,
    bound: &Bound<'_>,
    (i, tokens): (usize, Range<usize>),
    shared: &mut Shared,
) -> Result<Array> {
    let span = &bound.spans[i];
    let (n, start) = (tokens.len(), span.start as usize);
    let (n_heads, head_dim) = (spec.n_heads as usize, spec.head_dim as usize);
    let end = start + n - usize::from(!spec.own_key);
    let first = spec.window.map_or(0, |window| (start + 1).saturating_sub(window as usize));
    if first >= end {
        return mlx.zeros(&q.shape(), q.dtype());
    }
    let predicate = Predicate {
        window: spec.window.filter(|window| (*window as usize) < start + n),
        // A block that ends with each token is none.
        bidirectional: spec.bidirectional
            && bound.horizons[tokens.clone()] != bound.positions[tokens.clone()],
        own_key: spec.own_key,
    };
    let plain = Predicate { window: None, bidirectional: false, own_key: true };
    let known = match () {
        () if n == 1 => None,
        () if predicate == plain => None,
        () => Some(mask(mlx, predicate, bound, (i, tokens), first..end, shared)?),
    };
    let sees = match known {
        None if n == 1 => Sees::All,
        None => Sees::Causal,
        Some(known) => Sees::Mask(&shared.masks[known].1),
    };
    let [keys, values] = cache.read(mlx, &span.tables[cache.shape.group], first..end)?;
    let heads = mlx.transpose(&mlx.reshape(q, &[1, n, n_heads, head_dim])?, &[0, 2, 1, 3])?;
    let made = mlx.attention(&heads, &keys, &values, spec.scale, &sees)?;
    let made = mlx.reshape(&mlx.transpose(&made, &[0, 2, 1, 3])?, &[n, n_heads * head_dim])?;
    if spec.own_key || start > 0 {
        return Ok(made);
    }
    // The first token of a sequence sees nothing, which is 0.
    let seen: Vec<f32> = (0..n).map(|t| if t == 0 { 0.0 } else { 1.0 }).collect();
    let seen = mlx.less(&mlx.number(0.0)?, &mlx.floats(&seen, &[n, 1])?)?;
    mlx.choose(&seen, &made, &mlx.number(0.0)?)
}

/// The number of a mask `[queries, keys]` in `shared`.
fn mask(
    mlx: &Mlx,
    predicate: Predicate,
    bound: &Bound<'_>,
    (i, tokens): (usize, Range<usize>),
    keys: Range<usize>,
    shared: &mut Shared,
) -> Result<usize> {
    if let Some(known) = shared.masks.iter().position(|(key, _)| *key == (i, predicate)) {
        return Ok(known);
    }
    let n = tokens.len();
    let positions = &bound.positions[tokens.clone()];
    let last: Vec<i32> = match (predicate.own_key, predicate.bidirectional) {
        (false, _) => positions.iter().map(|position| position - 1).collect(),
        (true, true) => bound.horizons[tokens].to_vec(),
        (true, false) => positions.to_vec(),
    };
    let keys: Vec<i32> = keys.map(|key| key as i32).collect();
    let keys = mlx.indices(&keys, &[1, keys.len()])?;
    let mut mask = mlx.less_equal(&keys, &mlx.indices(&last, &[n, 1])?)?;
    if let Some(window) = predicate.window {
        let window = i32::try_from(window).unwrap_or(i32::MAX);
        let before: Vec<i32> = positions.iter().map(|position| position - window).collect();
        mask = mlx.and(&mask, &mlx.less(&mlx.indices(&before, &[n, 1])?, &keys)?)?;
    }
    shared.masks.push(((i, predicate), mask));
    Ok(shared.masks.len() - 1)
}
