//! The draw on the device, by the rule of `lapidary_backend_kit::draw` in MLX's own arithmetic.
//!
//! What it draws is fed to the next call before the host has seen it. The host draws again from the same
//! logits, and finds another token only where two are nearly equal.

use lapidary_backend::{DrawRule, Result};

use crate::ffi::{Array, Dtype, Mlx};

/// The factors and the steps of the key of Philox4x32-10.
const FACTORS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: u32 = 10;

/// A token for each row of `logits`, out of its `k` best.
pub(crate) fn draw(mlx: &Mlx, logits: &Array, k: usize, rules: &[DrawRule]) -> Result<Array> {
    let is_best = |rule: &DrawRule| rule.temperature == 0.0 || rule.top_k == 1;
    if rules.iter().all(is_best) {
        return mlx.cast(&mlx.argmax(logits, 1)?, Dtype::I32);
    }
    let rows = rules.len();
    let column = |of: &dyn Fn(&DrawRule) -> f32| {
        let numbers: Vec<f32> = rules.iter().map(of).collect();
        mlx.floats(&numbers, &[rows, 1])
    };
    let (ids, values) = best(mlx, logits, k)?;
    let k = ids.shape()[1];
    let inverse = column(&|rule| if is_best(rule) { 1.0 } else { 1.0 / rule.temperature })?;
    let scores = mlx.multiply(&mlx.subtract(&values, &mlx.slice(&values, 1, 0..1)?)?, &inverse)?;
    // The best are cut by their number, then by their probability.
    let most = column(&|rule| match rule.top_k {
        _ if is_best(rule) => 1.0,
        0 => f32::INFINITY,
        most => most as f32,
    })?;
    let ranks: Vec<f32> = (0..k).map(|rank| rank as f32).collect();
    let few = mlx.less(&mlx.floats(&ranks, &[1, k])?, &most)?;
    let nothing = mlx.number(0.0)?;
    let shares = mlx.choose(&few, &mlx.exp(&scores)?, &nothing)?;
    let before = mlx.subtract(&mlx.running_sum(&shares, 1)?, &shares)?;
    // The first is always kept.
    let top_p = column(&|rule| if rule.top_p < 1.0 { rule.top_p.max(1e-30) } else { 2.0 })?;
    let enough = mlx.multiply(&mlx.sum(&shares, 1, true)?, &top_p)?;
    let mut kept = mlx.and(&few, &mlx.less(&before, &enough)?)?;
    let least = column(&|rule| if rule.min_p > 0.0 { rule.min_p.ln() } else { f32::NEG_INFINITY })?;
    kept = mlx.and(&kept, &mlx.less_equal(&least, &scores)?)?;
    let noisy = mlx.subtract(&scores, &mlx.log(&variates(mlx, &ids, rules)?)?)?;
    let noisy = mlx.choose(&kept, &noisy, &mlx.number(f32::NEG_INFINITY)?)?;
    let winner = mlx.reshape(&mlx.argmax(&noisy, 1)?, &[rows, 1])?;
    let drawn = mlx.take_along(&ids, &winner, 1)?;
    mlx.cast(&mlx.reshape(&drawn, &[rows])?, Dtype::I32)
}

/// The `k` largest numbers of each row and their places, largest first.
fn best(mlx: &Mlx, logits: &Array, k: usize) -> Result<(Array, Array)> {
    let all = logits.shape()[1];
    let negative = mlx.negative(logits)?;
    let ids = match k < all {
        true => mlx.slice(&mlx.partition(&negative, k - 1, 1)?, 1, 0..k)?,
        false => mlx.argsort(&negative, 1)?,
    };
    let values = mlx.take_along(logits, &ids, 1)?;
    let order = mlx.argsort(&mlx.negative(&values)?, 1)?;
    Ok((mlx.take_along(&ids, &order, 1)?, mlx.take_along(&values, &order, 1)?))
}

/// An exponential variate for each of some ids, made from seed, position and id alone.
fn variates(mlx: &Mlx, ids: &Array, rules: &[DrawRule]) -> Result<Array> {
    let wide = |numbers: &[u64], shape: &[usize]| {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
        mlx.bytes(&bytes, shape, Dtype::U64)
    };
    let column = |of: &dyn Fn(&DrawRule) -> u64| {
        let numbers: Vec<u64> = rules.iter().map(of).collect();
        wide(&numbers, &[rules.len(), 1])
    };
    let one = |n: u64| wide(&[n], &[1]);
    let (half, low) = (one(32)?, one(u32::MAX.into())?);
    let factors = [one(FACTORS[0])?, one(FACTORS[1])?];
    let ids = mlx.cast(ids, Dtype::U64)?;
    let mut counter =
        [mlx.shift_right(&ids, &one(2)?)?, column(&|rule| rule.position.into())?, one(0)?, one(0)?];
    for round in 0..ROUNDS {
        let key = |word: u32| {
            let step = STEPS[word as usize].wrapping_mul(round);
            column(&|rule| ((rule.seed >> (32 * word)) as u32).wrapping_add(step).into())
        };
        let [a, b] =
            [mlx.multiply(&counter[0], &factors[0])?, mlx.multiply(&counter[2], &factors[1])?];
        let mixed = |product: &Array, word: &Array, key: &Array| {
            mlx.xor(&mlx.xor(&mlx.shift_right(product, &half)?, word)?, key)
        };
        counter = [
            mixed(&b, &counter[1], &key(0)?)?,
            mlx.bits(&b, &low)?,
            mixed(&a, &counter[3], &key(1)?)?,
            mlx.bits(&a, &low)?,
        ];
    }
    let place = mlx.bits(&ids, &one(3)?)?;
    let [first, second, third, fourth] = &counter;
    let mut word = mlx.choose(&mlx.less(&place, &one(3)?)?, third, fourth)?;
    word = mlx.choose(&mlx.less(&place, &one(2)?)?, second, &word)?;
    word = mlx.choose(&mlx.less(&place, &one(1)?)?, first, &word)?;
    // −ln(1 − v) with v = (word + ½) · 2⁻³².
    let v = mlx.add(&mlx.cast(&word, Dtype::F32)?, &mlx.number(0.5)?)?;
    let v = mlx.multiply(&v, &mlx.number(1.0 / (1u64 << 32) as f32)?)?;
    mlx.negative(&mlx.log1p(&mlx.negative(&v)?)?)
}
