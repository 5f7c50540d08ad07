//! Calls of so many tokens that a backend works on tiles of them: tiles that are not full, that have
//! several sequences, and whose tokens see different keys.

use lapidary_program::AttentionSpec;

use super::{Place, SHARP, Scenario, limits, prefill, scenario, spec, token};

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = heads();
    all.extend(windows());
    all.extend(bidirectional());
    all.extend([sequences(), asking(), sharp()]);
    all
}

/// Heads of the sizes that models have: two chunks that fill no tile.
fn heads() -> Vec<Scenario> {
    let mut all = Vec::new();
    for head_dim in [64, 72, 96, 128, 256, 512] {
        for (n_heads, n_kv_heads) in [(2, 2), (4, 2), (4, 1), (8, 1)] {
            let calls = vec![prefill(0, 0..45), prefill(0, 45..82)];
            let name = format!("tiles, {n_heads}/{n_kv_heads} heads of {head_dim}");
            all.push(long(scenario(name, spec(n_heads, n_kv_heads, head_dim, None), calls)));
        }
    }
    all
}

/// Windows that are longer than a tile, and whose end is within one.
fn windows() -> Vec<Scenario> {
    let mut all = Vec::new();
    for (head_dim, window) in [(64, 30), (64, 70), (256, 50)] {
        let calls = (0..6).map(|i| prefill(0, 41 * i..41 * (i + 1))).collect();
        let name = format!("tiles, window {window}, heads of {head_dim}");
        let mut s = long(scenario(name, spec(4, 2, head_dim, Some(window)), calls));
        s.options.max_context = 256;
        all.push(s);
    }
    all
}

/// Blocks whose tokens see each other, across the ends of tiles.
fn bidirectional() -> Vec<Scenario> {
    let mut all = Vec::new();
    for window in [None, Some(12), Some(60)] {
        let mut tokens = prefill(0, 0..49).1;
        tokens[7..41].iter_mut().for_each(|token| token.horizon = 40);
        let calls = vec![(true, tokens), prefill(0, 49..80)];
        let spec = AttentionSpec { bidirectional: true, ..spec(8, 2, 64, window) };
        all.push(long(scenario(format!("tiles, bidirectional, window {window:?}"), spec, calls)));
    }
    all
}

/// Several conversations in one tile: one after the other.
fn sequences() -> Scenario {
    let runs = [(0, 0, 13), (1, 0, 9), (2, 0, 18)];
    let of_run = |(sequence, first, end)| (first..end).map(move |p| token(sequence, p));
    let in_turn = (0..30).map(|i| token(i / 10, [13, 9, 18][i as usize / 10] + i % 10));
    let calls = vec![
        (true, runs.into_iter().flat_map(of_run).collect()),
        (true, in_turn.collect()),
        (true, prefill(1, 19..40).1.into_iter().chain((23..45).map(|p| token(0, p))).collect()),
    ];
    long(scenario("tiles, sequences".into(), spec(4, 1, 64, None), calls))
}

/// Many tokens that write nothing, some of which see nothing, with keys that are far apart.
fn asking() -> Scenario {
    let asked: Vec<Place> = (0..20)
        .map(|i| match i % 4 {
            0 => token(0, 40),
            1 => token(1, 0),
            2 => token(0, 2 * i),
            _ => token(1, i),
        })
        .collect();
    let calls = vec![prefill(0, 0..40), prefill(1, 0..20), (false, asked)];
    long(scenario("tiles, asking".into(), spec(4, 2, 64, None), calls))
}

/// Largest scores that grow by far from tile to tile.
fn sharp() -> Scenario {
    let calls = (0..4).map(|i| prefill(0, 50 * i..50 * (i + 1))).collect();
    let mut s = long(scenario("tiles, sharp".into(), spec(4, 1, 64, None), calls));
    s.options.max_context = 200;
    s.sharpness = SHARP;
    s
}

/// The same with room for more tokens.
fn long(mut s: Scenario) -> Scenario {
    s.options.limits = limits(50, 3);
    s.options.max_context = 100;
    s
}
