use proptest::prelude::*;

use super::*;

fn one(logits: &[f32], params: &SamplingParams, position: u32) -> Result<u32> {
    Sampler::default().sample(logits, params, &History::default(), position)
}

fn seeded(seed: u64) -> SamplingParams {
    SamplingParams { seed: Some(seed), ..SamplingParams::default() }
}

/// The definition, with no regard to speed: sort all, cut, normalise.
fn survivors(logits: &[f32], p: &SamplingParams) -> Vec<u32> {
    let mut all: Vec<(f32, u32)> = logits.iter().enumerate().map(|(i, l)| (*l, i as u32)).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    if p.top_k > 0 {
        all.truncate(p.top_k as usize);
    }
    let t = f64::from(p.temperature);
    let weights: Vec<f64> = all.iter().map(|c| (f64::from(c.0 - all[0].0) / t).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut before = 0.0;
    let mut kept = vec![];
    for (c, w) in all.iter().zip(&weights) {
        if before < f64::from(p.top_p) * sum && *w >= f64::from(p.min_p) {
            kept.push(c.1);
        }
        before += w;
    }
    kept
}

#[test]
fn greedy_takes_the_lowest_id_among_equals() {
    let logits = [1.0, 3.0, -2.0, 3.0];
    assert_eq!(one(&logits, &SamplingParams::greedy(), 0).unwrap(), 1);
    let top_1 = SamplingParams { top_k: 1, ..seeded(5) };
    assert_eq!(one(&logits, &top_1, 0).unwrap(), 1);
}

#[test]
fn non_finite_logits_and_empty_rows_are_errors() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for params in [SamplingParams::greedy(), seeded(1)] {
            let e = one(&[0.0, bad, 1.0], &params, 0).unwrap_err();
            assert!(matches!(e, Error::NonFiniteLogits { node: None }), "{e}");
        }
    }
    for temperature in [0.0, 1.0] {
        let params = SamplingParams { temperature, suppress: vec![0, 1], ..seeded(1) };
        assert!(matches!(one(&[0.0, 1.0], &params, 0), Err(Error::AllMasked)));
    }
    assert!(matches!(one(&[], &seeded(1), 0), Err(Error::AllMasked)));
}

#[test]
fn params_out_of_range_are_refused_by_name() {
    let d = SamplingParams::default;
    let cases: Vec<(&str, SamplingParams)> = vec![
        ("temperature", SamplingParams { temperature: f32::NAN, ..d() }),
        ("temperature", SamplingParams { temperature: f32::INFINITY, ..d() }),
        ("temperature", SamplingParams { temperature: -1.0, ..d() }),
        ("temperature", SamplingParams { temperature: 1e9, ..d() }),
        ("top_p", SamplingParams { top_p: 0.0, ..d() }),
        ("top_p", SamplingParams { top_p: 2.0, ..d() }),
        ("top_p", SamplingParams { top_p: f32::NAN, ..d() }),
        ("min_p", SamplingParams { min_p: -0.1, ..d() }),
        ("min_p", SamplingParams { min_p: f32::NAN, ..d() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..d() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: f32::INFINITY, ..d() }),
        ("presence_penalty", SamplingParams { presence_penalty: 2.1, ..d() }),
        ("frequency_penalty", SamplingParams { frequency_penalty: f32::NEG_INFINITY, ..d() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(10, 1.0)], ..d() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(1, f32::NAN)], ..d() }),
        ("suppress", SamplingParams { suppress: vec![10], ..d() }),
    ];
    for (name, params) in cases {
        match params.check(10) {
            Err(Error::Param { param, .. }) => assert_eq!(param, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    let edge = SamplingParams {
        temperature: 100.0,
        top_k: u32::MAX,
        top_p: 1.0,
        min_p: 1.0,
        seed: Some(u64::MAX),
        ..d()
    };
    assert!(edge.check(10).is_ok());
    assert!(one(&[0.5, 0.25], &edge, 0).is_ok());
}

#[test]
fn penalties_touch_only_what_was_seen() {
    let logits = [2.0, -2.0, 1.9, 0.0];
    let mut history = History::new(&[0, 1], 4);
    let repetition = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::greedy() };
    let mut sampler = Sampler::default();
    assert_eq!(sampler.sample(&logits, &repetition, &history, 0).unwrap(), 2);
    // The prompt does not count for presence; the answer does, once however often.
    let presence = SamplingParams { presence_penalty: 0.3, ..SamplingParams::greedy() };
    assert_eq!(sampler.sample(&logits, &presence, &history, 0).unwrap(), 0);
    history.push(0);
    assert_eq!(sampler.sample(&logits, &presence, &history, 0).unwrap(), 2);
    history.push(2);
    history.push(2);
    assert_eq!(sampler.sample(&logits, &presence, &history, 0).unwrap(), 0);
    let frequency = SamplingParams { frequency_penalty: 1.0, ..SamplingParams::greedy() };
    assert_eq!(sampler.sample(&logits, &frequency, &history, 0).unwrap(), 0);
    let bias = SamplingParams { logit_bias: vec![(1, 10.0)], ..SamplingParams::greedy() };
    assert_eq!(sampler.sample(&logits, &bias, &history, 0).unwrap(), 1);
}

#[test]
fn the_draw_follows_the_distribution() {
    let logits: Vec<f32> = vec![2.0, 1.0, 0.5, 0.0, -1.0, -3.0, 1.5, -0.5];
    for (seed, temperature) in [(1, 1.0), (2, 0.5), (u64::MAX, 2.0)] {
        let params = SamplingParams { temperature, ..seeded(seed) };
        let n = 200_000u32;
        let mut counts = vec![0u32; logits.len()];
        let mut sampler = Sampler::default();
        for position in 0..n {
            let id = sampler.sample(&logits, &params, &History::default(), position).unwrap();
            counts[id as usize] += 1;
        }
        let weights: Vec<f64> =
            logits.iter().map(|l| (f64::from(*l) / f64::from(temperature)).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let chi: f64 = counts
            .iter()
            .zip(&weights)
            .map(|(c, w)| {
                let expected = f64::from(n) * w / sum;
                (f64::from(*c) - expected).powi(2) / expected
            })
            .sum();
        // 7 degrees of freedom: 24.3 has probability 0.001.
        assert!(chi < 24.3, "seed {seed}, temperature {temperature}: chi² {chi}, {counts:?}");
    }
}

#[test]
fn neighbouring_seeds_and_positions_are_independent() {
    // With two equal tokens each draw is a fair coin; agreement of two streams is one as well.
    let logits = [0.0, 0.0];
    let n = 20_000u32;
    let toss = |seed, position| one(&logits, &seeded(seed), position).unwrap();
    for (a, b, shift) in [(7, 8, 0), (7, 7, 1), (7, 7 + (1 << 32), 0)] {
        let agree = (0..n).filter(|p| toss(a, *p) == toss(b, *p + shift)).count();
        let sigma = (f64::from(n) / 4.0).sqrt();
        let off = (agree as f64 - f64::from(n) / 2.0).abs() / sigma;
        assert!(off < 4.0, "seeds {a} and {b}, shift {shift}: {agree} of {n}");
    }
}

#[test]
fn scratch_does_not_grow_after_the_first_call() {
    let logits: Vec<f32> = (0..50_000).map(|i| ((i * 7919) % 1009) as f32 / 100.0).collect();
    let params = SamplingParams { top_k: 64, top_p: 0.95, suppress: vec![3], ..seeded(3) };
    let mut sampler = Sampler::default();
    sampler.sample(&logits, &params, &History::default(), 0).unwrap();
    let before = (sampler.candidates.capacity(), sampler.adjusted.capacity());
    for position in 1..50 {
        sampler.sample(&logits, &params, &History::default(), position).unwrap();
    }
    assert_eq!((sampler.candidates.capacity(), sampler.adjusted.capacity()), before);
}

proptest! {
    #[test]
    fn filters_keep_what_the_definition_keeps(
        // Few distinct values, so that ties are common.
        logits in prop::collection::vec((-40i32..40).prop_map(|x| x as f32 / 4.0), 1..3000),
        top_k in 0u32..200,
        top_p in 0.01f32..=1.0,
        min_p in prop_oneof![Just(0.0f32), 0.0f32..0.5],
        temperature in 0.2f32..3.0,
    ) {
        let params = SamplingParams { temperature, top_k, top_p, min_p, ..seeded(1) };
        let mut sampler = Sampler::default();
        let id = sampler.sample(&logits, &params, &History::default(), 0).unwrap();
        let expected = survivors(&logits, &params);
        prop_assert!(expected.contains(&id));
        if top_k != 1 {
            let mut kept: Vec<u32> = sampler.candidates.iter().map(|c| c.index).collect();
            kept.sort_unstable();
            let mut expected = expected;
            expected.sort_unstable();
            // At the edge of top-p one candidate may fall either way by rounding.
            let differ = kept.iter().filter(|id| !expected.contains(id)).count()
                + expected.iter().filter(|id| !kept.contains(id)).count();
            prop_assert!(differ <= 1, "{kept:?} {expected:?}");
        }
    }

    #[test]
    fn the_draw_does_not_depend_on_the_order_of_candidates(
        logits in prop::collection::vec(-10.0f32..10.0, 1..100),
        seed: u64,
        position: u32,
        turn in 0usize..100,
    ) {
        let mut candidates: Vec<Candidate> =
            logits.iter().enumerate().map(|(i, l)| Candidate { value: *l, index: i as u32 }).collect();
        let best = logits.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
        let first = gumbel_max(&candidates, best, 1.0, seed, position);
        let n = candidates.len();
        candidates.rotate_left(turn % n);
        prop_assert_eq!(gumbel_max(&candidates, best, 1.0, seed, position), first);
        candidates.reverse();
        prop_assert_eq!(gumbel_max(&candidates, best, 1.0, seed, position), first);
        // Filters that keep the winner don't change it.
        let winner = first.unwrap();
        candidates.retain(|c| c.index == winner || c.index % 2 == 0);
        prop_assert_eq!(gumbel_max(&candidates, best, 1.0, seed, position), first);
    }
}

/// The `k` best of a row, sorted.
fn largest(logits: &[f32], k: usize) -> Vec<Candidate> {
    let mut all: Vec<_> = logits
        .iter()
        .enumerate()
        .map(|(i, value)| Candidate { value: *value, index: i as u32 })
        .collect();
    all.sort_by(|a, b| b.value.partial_cmp(&a.value).unwrap().then(a.index.cmp(&b.index)));
    all.truncate(k);
    all
}

#[test]
fn what_needs_whole_rows_says_so() {
    let suppress = vec![3, 5];
    assert_eq!(SamplingParams::greedy().n_candidates(), Some(1));
    let top_k = SamplingParams { top_k: 40, suppress: suppress.clone(), ..seeded(1) };
    assert_eq!(top_k.n_candidates(), Some(42));
    let top_1 = SamplingParams { top_k: 1, suppress, ..seeded(1) };
    assert_eq!(top_1.n_candidates(), Some(3));
    assert_eq!(seeded(1).n_candidates(), None);
    let penalty = SamplingParams { repetition_penalty: 1.1, ..top_k.clone() };
    assert_eq!(penalty.n_candidates(), None);
    let bias = SamplingParams { logit_bias: vec![(1, 1.0)], ..top_k };
    assert_eq!(bias.n_candidates(), None);
}

#[test]
fn a_row_with_a_nan_or_nothing_left_is_an_error_from_its_largest_too() {
    let found = |value| Candidate { value, index: 3 };
    let e = Sampler::default().sample_largest(&[found(f32::NAN)], &SamplingParams::greedy(), 0);
    assert!(matches!(e, Err(Error::NonFiniteLogits { node: None })));
    for temperature in [0.0, 1.0] {
        let params = SamplingParams { temperature, top_k: 4, suppress: vec![3], ..seeded(1) };
        let e = Sampler::default().sample_largest(&[found(1.0)], &params, 0);
        assert!(matches!(e, Err(Error::AllMasked)));
    }
}

proptest! {
    #[test]
    fn the_largest_logits_give_the_token_that_all_give(
        steps in prop::collection::vec(-40i8..40, 1..300),
        top_k in 1u32..64,
        temperature in prop::sample::select(vec![0.0f32, 0.7, 1.3]),
        top_p in prop::sample::select(vec![1.0f32, 0.95, 0.5]),
        min_p in prop::sample::select(vec![0.0f32, 0.1]),
        suppress in prop::collection::vec(0u32..40, 0..6),
        seed: u64,
    ) {
        // Few steps of a quarter: many equals. Zeros of both signs.
        let number = |x: &i8| if *x == 1 { -0.0 } else { f32::from(*x) / 4.0 };
        let logits: Vec<f32> = steps.iter().map(number).collect();
        let params =
            SamplingParams { temperature, top_k, top_p, min_p, suppress, ..seeded(seed) };
        let k = params.n_candidates().unwrap();
        let whole = one(&logits, &params, 9).ok();
        let part = Sampler::default().sample_largest(&largest(&logits, k), &params, 9).ok();
        prop_assert_eq!(whole, part);
    }
}
