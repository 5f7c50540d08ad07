use std::io::Write as _;
use std::sync::Arc;

use lapidary_backend::{Candidate, DrawRule, Mask};
use lapidary_backend_kit::{draw, top_k};

use super::{MOST, Rows, Top, TopKey, TopUse, candidates};
use crate::adapter::{Api, Switches};
use crate::device::Gpu;

/// Numbers with many equals, zeros of both signs among them.
fn numbers(len: usize, seed: u32) -> Vec<f32> {
    let number = |i: u32| {
        let x = (i.wrapping_add(seed)).wrapping_mul(2_654_435_761) >> 7;
        match x % 5 {
            0 => -0.0,
            1 => 0.0,
            _ => ((x % 1009) as f32 - 700.0) / 16.0,
        }
    };
    (0..len as u32).map(number).collect()
}

/// The definition: sort all.
fn sorted(row: &[f32], k: usize) -> Vec<Candidate> {
    let candidate = |(i, x): (usize, &f32)| Candidate { value: *x, index: i as u32 };
    let mut all: Vec<Candidate> = row.iter().enumerate().map(candidate).collect();
    all.sort_by(|a, b| b.value.partial_cmp(&a.value).unwrap().then(a.index.cmp(&b.index)));
    all.truncate(k);
    all
}

/// What a GPU makes of rows.
struct Made {
    candidates: Vec<Vec<Candidate>>,
    sums: Vec<f32>,
    drawn: Vec<u32>,
}

fn on_device(
    gpu: &Gpu,
    rows: &[Vec<f32>],
    k: usize,
    masks: &[Mask<'_>],
    rules: &[DrawRule],
) -> Made {
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
    let bytes: Vec<u8> = rows.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    let numbers = gpu.buffer("numbers", bytes.len() as u64, usage).unwrap();
    gpu.queue.write_buffer(&numbers, 0, &bytes);
    let words = rules.iter().flat_map(|rule| crate::host::rule_words(rule, k));
    let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    let feeds = gpu.buffer("rules", bytes.len().max(32) as u64, usage).unwrap();
    gpu.queue.write_buffer(&feeds, 0, &bytes);
    let place = 0..feeds.size();
    let what = TopUse {
        k: TopUse::class(k),
        masks: !masks.is_empty(),
        logsumexp: true,
        draws: !rules.is_empty(),
    };
    let key = TopKey { method: "forward".into(), output: 0, what };
    let channels = rows[0].len();
    let of_rows = Rows {
        numbers: &numbers,
        n_rows: rows.len(),
        channels,
        feeds: &feeds,
        rules: [place.clone(), place],
    };
    let top = Top::new(gpu, key, &of_rows).unwrap();
    assert!(top.top.len() <= 3);
    top.write_masks(gpu, masks, 0..rows.len());
    let mut encoder = gpu.encoder();
    top.record(&mut encoder, rows.len(), false);
    let size: u64 = top.returned(rows.len()).map(|(_, size)| size).sum();
    let read = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    let readback = gpu.buffer("outputs", size, read).unwrap();
    let mut at = 0;
    for (buffer, size) in top.returned(rows.len()) {
        encoder.copy_buffer_to_buffer(buffer, 0, &readback, at, size);
        at += size;
    }
    gpu.queue.submit([encoder.finish()]);
    let mut bytes = Vec::new();
    gpu.map(&readback, size).wait(gpu, &mut |read| bytes.extend_from_slice(read)).unwrap();
    let (best, rest) = bytes.split_at(rows.len() * what.k * 8);
    let (sums, drawn) = rest.split_at(rows.len() * 4);
    let per_row = k.min(channels);
    let found: Vec<Candidate> = candidates(best, what.k, per_row).collect();
    Made {
        candidates: found.chunks(per_row).map(<[Candidate]>::to_vec).collect(),
        sums: sums.as_chunks::<4>().0.iter().map(|w| f32::from_le_bytes(*w)).collect(),
        drawn: drawn.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect(),
    }
}

/// The GPU as it is, and with nothing but what every GPU has.
fn gpus() -> Vec<Arc<Gpu>> {
    let mut gpus = Vec::new();
    for switches in [Switches::ALL, Switches::NONE] {
        // Devices that no other test has, whose errors would be taken for ours.
        let switches = Switches { shard: Some(2 << 20), ..switches };
        match Api::Vulkan.adapters(Some(switches)) {
            Ok(adapters) => gpus.push(Gpu::open(Api::Vulkan, &adapters[0], None).unwrap()),
            Err(e) => _ = writeln!(std::io::stderr(), "SKIPPED: {e}"),
        }
    }
    gpus
}

#[test]
fn the_largest_are_those_of_a_sort() {
    for gpu in gpus() {
        for len in [1, 63, 2049, 262_144] {
            let rows = [numbers(len, 3), numbers(len, 1 << 20)];
            for k in [1, 4, 40, 64, MOST] {
                let made = on_device(&gpu, &rows, k, &[], &[]);
                let wanted: Vec<_> = rows.iter().map(|row| sorted(row, k)).collect();
                assert_eq!(made.candidates, wanted, "{k} of {len} on {}", gpu.name);
                for (row, sum) in rows.iter().zip(&made.sums) {
                    let exact = row.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
                    assert!((f64::from(*sum) - exact).abs() < 1e-4, "{sum} is not {exact}");
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_comes_first() {
    for gpu in gpus() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut rows = [numbers(5000, 1), numbers(5000, 2)];
            rows[1][4321] = bad;
            for k in [1, 64] {
                let made = on_device(&gpu, &rows, k, &[], &[]).candidates;
                assert_eq!(made[0], sorted(&rows[0], k));
                assert!(made[1][0].value.is_nan() && made[1][0].index == 4321, "{bad}");
            }
        }
    }
}

#[test]
fn what_a_mask_leaves_out_is_not_found() {
    for gpu in gpus() {
        for len in [40usize, 5000] {
            let rows = [numbers(len, 1), numbers(len, 2), numbers(len, 3)];
            let some: Vec<u32> = (0..len.div_ceil(32) as u32).map(|i| i * 0x9e37 + 5).collect();
            let none = vec![0; len.div_ceil(32)];
            let masks: [Mask<'_>; 3] = [Some(&some), None, Some(&none)];
            for k in [1, 64] {
                let made = on_device(&gpu, &rows, k, &masks, &[]);
                for (row, mask) in rows.iter().zip(masks).zip(&made.candidates).map(|(a, b)| {
                    let mut wanted = Vec::new();
                    top_k(a.0, k.min(len), a.1, &mut wanted);
                    (wanted, b)
                }) {
                    assert_eq!(&row, mask, "{k} of {len}");
                }
                assert_eq!(made.sums[2], f32::NEG_INFINITY);
                let counts = |i: usize| some[i / 32] >> (i % 32) & 1 == 1;
                let counted = rows[0].iter().enumerate().filter(|(i, _)| counts(*i));
                let exact = counted.map(|(_, x)| f64::from(*x).exp()).sum::<f64>().ln();
                assert!((f64::from(made.sums[0]) - exact).abs() < 1e-4);
            }
        }
    }
}

/// Draws on the device are the sampler's; where two tokens are nearly equal, arithmetic of f32 may
/// choose the other, which is seldom.
#[test]
fn a_drawn_token_is_the_samplers() {
    let mut scratch = draw::Scratch::default();
    for gpu in gpus() {
        let (mut n, mut others) = (0, 0);
        for seed in 0..24u64 {
            let mut rules = Vec::new();
            for (i, temperature) in [0.0, 0.7, 1.0, 2.5].into_iter().enumerate() {
                for (top_k, top_p, min_p) in
                    [(0, 1.0, 0.0), (40, 0.95, 0.0), (1, 1.0, 0.0), (64, 0.5, 0.05), (7, 1.0, 0.3)]
                {
                    let position = (seed * 31 + i as u64) as u32;
                    let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    rules.push(DrawRule { temperature, top_k, top_p, min_p, seed, position });
                }
            }
            let row = |i: usize| {
                let of = numbers(3000, (seed as u32) * 977 + i as u32 * 5);
                of.into_iter().map(|x| x / 4.0).collect::<Vec<f32>>()
            };
            let mut rows: Vec<Vec<f32>> = (0..rules.len()).map(row).collect();
            rows[3][77] = f32::NAN;
            for k in [1, 20, MOST] {
                let made = on_device(&gpu, &rows, k, &[], &rules);
                assert_eq!(made.drawn.len(), rules.len());
                for ((row, rule), drawn) in made.candidates.iter().zip(&rules).zip(&made.drawn) {
                    // A row without candidates draws 0.
                    let wanted = draw::draw(row, rule, &mut scratch).unwrap_or(0);
                    let is_greedy = rule.temperature == 0.0 || rule.top_k == 1;
                    assert!(!is_greedy || *drawn == wanted, "{rule:?}: {drawn}, not {wanted}");
                    n += 1;
                    others += usize::from(*drawn != wanted);
                }
            }
        }
        assert!(n > 500 && others * 200 <= n, "{others} of {n} tokens are others");
    }
}
