//! Caches of every kind against one of `f32` that holds what they hold.

use half::bf16;
use lapidary_backend::{KvType, PageId, PageTable, Span};
use lapidary_program::AttentionSpec;

use super::{Queries, Room, attention, split_scratch, tile_scratch};
use crate::cache::{BLOCK, Cache, CacheShape};
use crate::matrix::Cpu;
use crate::ops::kv_write::kv_write;
use crate::simd::Isa;
use crate::workers::Workers;

const N_HEADS: usize = 6;
const N_KV_HEADS: usize = 2;
/// Neither a whole panel of channels nor a whole block of positions.
const DIM: usize = 40;
const N_KEYS: usize = 5 * BLOCK + 21;

/// Keys, values and queries of a run of tokens.
struct Tokens {
    k: Vec<f32>,
    v: Vec<f32>,
    q: Vec<f32>,
}

fn tokens(n: usize) -> Tokens {
    let mut state = 1u32;
    let mut numbers = |n: usize| {
        let number = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 22) as f32 - 2.0
        };
        std::iter::repeat_with(number).take(n).collect::<Vec<f32>>()
    };
    let (k, v) = (numbers(n * N_KV_HEADS * DIM), numbers(n * N_KV_HEADS * DIM));
    Tokens { k, v, q: numbers(n * N_HEADS * DIM) }
}

/// What the last `asked` tokens get from a cache that holds all, in consecutive pages.
fn attend(isa: Isa, kv: KvType, tokens: &Tokens, asked: usize) -> Vec<f32> {
    let pages: Vec<u32> = (0..N_PAGES).collect();
    attend_in(isa, kv, tokens, (asked, None), (0, &pages))
}

/// Pages that hold all keys.
const N_PAGES: u32 = N_KEYS.div_ceil(BLOCK) as u32;

/// The same with a window perhaps, and with pages that begin after some that were given up.
fn attend_in(
    isa: Isa,
    kv: KvType,
    tokens: &Tokens,
    (asked, window): (usize, Option<u32>),
    (first, pages): (u32, &[u32]),
) -> Vec<f32> {
    let n = tokens.k.len() / (N_KV_HEADS * DIM);
    let workers = Workers::new(2);
    let cpu = Cpu { isa, workers: &workers, exact: true, stop: None };
    let n_pages = 2 * N_PAGES as usize;
    let shape = CacheShape { kv, group: 0, n_pages, n_heads: N_KV_HEADS, head_dim: DIM };
    let mut cache = Cache::new(shape).unwrap();
    // What others left in the pages must not matter.
    for page in 0..n_pages as u32 {
        for place in 0..BLOCK {
            let head = place % N_KV_HEADS;
            cache.write((PageId(page), place), head, &[f32::NAN; DIM], &[f32::NAN; DIM]);
        }
    }
    let pages: Vec<PageId> = pages.iter().map(|page| PageId(*page)).collect();
    let tables = [PageTable { first, pages: &pages }];
    let from = first as usize * BLOCK;
    let span =
        |start: usize, len: usize| Span { start: start as u32, len: len as u32, tables: &tables };
    let channels = N_KV_HEADS * DIM;
    let held = from * channels..n * channels;
    kv_write(&mut cache, &tokens.k[held.clone()], &tokens.v[held], &[span(from, n - from)]);
    let spec = AttentionSpec {
        n_heads: N_HEADS as u32,
        n_kv_heads: N_KV_HEADS as u32,
        head_dim: DIM as u32,
        scale: 0.2,
        window,
        bidirectional: false,
        own_key: true,
    };
    let positions: Vec<i32> = ((n - asked) as i32..n as i32).collect();
    let queries = Queries {
        q: &tokens.q[(n - asked) * N_HEADS * DIM..],
        spans: &[span(n - asked, asked)],
        positions: &positions,
        horizons: &positions,
    };
    let mut scratch = vec![0.0; 2 * tile_scratch(DIM)];
    let mut split = vec![0.0; split_scratch(&spec, n as u32)];
    let room = Room { scratch: &mut scratch, split: &mut split, tiles: &mut Vec::new() };
    let mut out = vec![0.0; asked * N_HEADS * DIM];
    attention(cpu, &spec, &cache, queries, room, &mut out);
    out
}

#[test]
fn the_order_of_pages_changes_no_bit() {
    let tokens = tokens(N_KEYS);
    for isa in Isa::all() {
        for kv in KvType::ALL {
            for asked in [1, 70] {
                let truth = attend(isa, kv, &tokens, asked);
                assert!(truth.iter().all(|x| x.is_finite()), "{isa:?}, {kv:?}");
                for pages in [[5, 4, 3, 2, 1, 0], [11, 0, 7, 2, 9, 4]] {
                    let got = attend_in(isa, kv, &tokens, (asked, None), (0, &pages));
                    assert_eq!(got, truth, "{isa:?}, {kv:?}, {asked} tokens, {pages:?}");
                }
            }
        }
    }
}

#[test]
fn pages_before_a_window_are_not_missed() {
    let tokens = tokens(N_KEYS);
    for isa in Isa::all() {
        for kv in KvType::ALL {
            // One token sees from position 521 on, in page 4; the first of 70 from 452 on, in page 3.
            for (asked, first) in [(1, 4), (70, 3)] {
                let wanted = (asked, Some(140));
                let all: Vec<u32> = (0..N_PAGES).collect();
                let truth = attend_in(isa, kv, &tokens, wanted, (0, &all));
                let pages = [8, 1, 5];
                let pages = &pages[..(N_PAGES - first) as usize];
                let got = attend_in(isa, kv, &tokens, wanted, (first, pages));
                assert_eq!(got, truth, "{isa:?}, {kv:?}, {asked} tokens");
                assert!(got.iter().all(|x| x.is_finite()), "{isa:?}, {kv:?}");
            }
        }
    }
}

/// The numbers that a cache of bytes holds for these.
fn as_bytes(x: &[f32]) -> Vec<f32> {
    let row = |row: &[f32]| {
        let scale = row.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0;
        row.iter().map(|x| (x / scale).round() * scale).collect::<Vec<_>>()
    };
    x.chunks(DIM).flat_map(row).collect()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn halves_attend_to_the_bit_as_the_numbers_that_they_are() {
    let tokens = tokens(N_KEYS);
    let round = |x: &[f32]| x.iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
    let rounded = Tokens { k: round(&tokens.k), v: round(&tokens.v), q: tokens.q.clone() };
    for isa in Isa::all() {
        for asked in [1, 70] {
            let got = attend(isa, KvType::Bf16, &tokens, asked);
            assert_eq!(got, attend(isa, KvType::F32, &rounded, asked), "{isa:?}, {asked} tokens");
        }
    }
}

#[test]
fn bytes_attend_as_the_numbers_that_they_stand_for() {
    let tokens = tokens(N_KEYS);
    let rounded = Tokens { k: as_bytes(&tokens.k), v: as_bytes(&tokens.v), q: tokens.q.clone() };
    for isa in Isa::all() {
        for asked in [1, 70] {
            let got = attend(isa, KvType::Int8, &tokens, asked);
            let worst = largest_difference(&got, &attend(isa, KvType::F32, &rounded, asked));
            assert!(worst <= 1e-5, "{isa:?}, {asked} tokens: {worst}");
            let unrounded = attend(isa, KvType::F32, &tokens, asked);
            assert!(largest_difference(&got, &unrounded) > 1e-4, "{isa:?}: nothing was rounded");
        }
    }
}

#[test]
fn a_token_gets_the_same_bits_alone_and_among_others() {
    let tokens = tokens(N_KEYS);
    for isa in Isa::all() {
        for kv in KvType::ALL {
            let alone = attend(isa, kv, &tokens, 1);
            let among = attend(isa, kv, &tokens, 90);
            assert_eq!(alone, among[89 * N_HEADS * DIM..], "{isa:?}, {kv:?}");
        }
    }
}

#[test]
fn what_is_not_finite_reaches_those_who_see_it() {
    for isa in Isa::all() {
        for kv in KvType::ALL {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for in_key in [false, true] {
                    // A key with an infinite channel may get no weight at all.
                    if in_key && kv != KvType::Int8 && !bad.is_nan() {
                        continue;
                    }
                    let mut tokens = tokens(BLOCK + 40);
                    let at = (BLOCK + 3) * N_KV_HEADS * DIM + DIM + 7;
                    let spoilt = if in_key { &mut tokens.k } else { &mut tokens.v };
                    spoilt[at] = bad;
                    let got = attend(isa, kv, &tokens, 1);
                    let (first, second) = got.split_at(N_HEADS / 2 * DIM);
                    let what = format!("{isa:?}, {kv:?}, {bad}, key: {in_key}");
                    assert!(first.iter().all(|x| x.is_finite()), "{what}: the other head");
                    let mut heads = second.chunks(DIM);
                    assert!(heads.all(|h| h.iter().any(|x| !x.is_finite())), "{what}: its head");
                }
            }
        }
    }
}
