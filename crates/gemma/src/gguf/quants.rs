//! GGUF's blocks, taken apart into the parts of our one quantised representation.
//!
//! A block holds 32 (or, in the K family, 256) numbers of a row: codes in an order that suits
//! llama.cpp's kernels, and scales among them. A row is a whole number of blocks and a block's
//! codes fill whole bytes, so each part of a weight is the concatenation of what its blocks give.
//! Every number keeps its exact value: `w = (code − offset)·scale (+ bias)` is computed by the
//! same `f32` operations as in gguf-py.

use lapidary_program::Part;
use rayon::prelude::*;

use super::ggml_type::GgmlType;

/// Blocks that one task takes: enough to drown its overhead.
const BLOCKS_PER_TASK: usize = 2048;

/// The bytes of one part of a quantised tensor; `None` if its type has no such part.
///
/// `blocks` is a whole number of blocks.
pub(super) fn part(ggml_type: GgmlType, part: Part, blocks: &[u8]) -> Option<Vec<u8>> {
    Some(match (ggml_type, part) {
        (GgmlType::Q4_0, Part::Data) => each::<18, 16>(blocks, |b, out| nibbles(&b[2..], out)),
        (GgmlType::Q4_1, Part::Data) => each::<20, 16>(blocks, |b, out| nibbles(&b[4..], out)),
        (GgmlType::Q5_0, Part::Data) => each::<22, 20>(blocks, |b, out| five_bits(&b[2..], out)),
        (GgmlType::Q5_1, Part::Data) => each::<24, 20>(blocks, |b, out| five_bits(&b[4..], out)),
        (GgmlType::Q8_0, Part::Data) => each::<34, 32>(blocks, q8_codes),
        (GgmlType::Q2_K, Part::Data) => each::<84, 64>(blocks, q2_k_codes),
        (GgmlType::Q3_K, Part::Data) => each::<110, 96>(blocks, q3_k_codes),
        (GgmlType::Q4_K, Part::Data) => each::<144, 128>(blocks, q4_k_codes),
        (GgmlType::Q5_K, Part::Data) => each::<176, 160>(blocks, q5_k_codes),
        (GgmlType::Q6_K, Part::Data) => each::<210, 192>(blocks, q6_k_codes),

        (GgmlType::Q4_0, Part::Scale) => field::<18, 2>(blocks, 0),
        (GgmlType::Q4_1, Part::Scale) => field::<20, 2>(blocks, 0),
        (GgmlType::Q4_1, Part::Bias) => field::<20, 2>(blocks, 2),
        (GgmlType::Q5_0, Part::Scale) => field::<22, 2>(blocks, 0),
        (GgmlType::Q5_1, Part::Scale) => field::<24, 2>(blocks, 0),
        (GgmlType::Q5_1, Part::Bias) => field::<24, 2>(blocks, 2),
        (GgmlType::Q8_0, Part::Scale) => field::<34, 2>(blocks, 0),

        (GgmlType::Q2_K, Part::Scale) => each::<84, 16>(blocks, |b, out| low_nibbles(b, out)),
        (GgmlType::Q2_K, Part::Bias) => each::<84, 16>(blocks, |b, out| high_nibbles(b, out)),
        (GgmlType::Q2_K, Part::SuperScale) => field::<84, 2>(blocks, 80),
        (GgmlType::Q2_K, Part::SuperBias) => negated::<84>(blocks, 82),
        (GgmlType::Q3_K, Part::Scale) => each::<110, 16>(blocks, q3_k_scales),
        (GgmlType::Q3_K, Part::SuperScale) => field::<110, 2>(blocks, 108),
        (GgmlType::Q4_K, Part::Scale) => each::<144, 8>(blocks, |b, out| k_scales(&b[4..], out)),
        (GgmlType::Q4_K, Part::Bias) => each::<144, 8>(blocks, |b, out| k_mins(&b[4..], out)),
        (GgmlType::Q4_K, Part::SuperScale) => field::<144, 2>(blocks, 0),
        (GgmlType::Q4_K, Part::SuperBias) => negated::<144>(blocks, 2),
        (GgmlType::Q5_K, Part::Scale) => each::<176, 8>(blocks, |b, out| k_scales(&b[4..], out)),
        (GgmlType::Q5_K, Part::Bias) => each::<176, 8>(blocks, |b, out| k_mins(&b[4..], out)),
        (GgmlType::Q5_K, Part::SuperScale) => field::<176, 2>(blocks, 0),
        (GgmlType::Q5_K, Part::SuperBias) => negated::<176>(blocks, 2),
        (GgmlType::Q6_K, Part::Scale) => field::<210, 16>(blocks, 192),
        (GgmlType::Q6_K, Part::SuperScale) => field::<210, 2>(blocks, 208),
        _ => return None,
    })
}

/// Applies `f` to every block of `IN` bytes, each giving `OUT` bytes.
fn each<const IN: usize, const OUT: usize>(
    blocks: &[u8],
    f: impl Fn(&[u8; IN], &mut [u8; OUT]) + Sync,
) -> Vec<u8> {
    let mut out = vec![0u8; blocks.len() / IN * OUT];
    out.par_chunks_mut(OUT * BLOCKS_PER_TASK)
        .zip(blocks.par_chunks(IN * BLOCKS_PER_TASK))
        .for_each(|(out, blocks)| {
            for (o, b) in out.as_chunks_mut::<OUT>().0.iter_mut().zip(blocks.as_chunks::<IN>().0) {
                f(b, o);
            }
        });
    out
}

/// Bytes that stand in the block as we want them.
fn field<const IN: usize, const OUT: usize>(blocks: &[u8], at: usize) -> Vec<u8> {
    each::<IN, OUT>(blocks, |b, out| out.copy_from_slice(&b[at..at + OUT]))
}

/// A half-precision float with its sign turned: the K family subtracts what we add.
fn negated<const IN: usize>(blocks: &[u8], at: usize) -> Vec<u8> {
    each::<IN, 2>(blocks, |b, out| *out = [b[at], b[at + 1] ^ 0x80])
}

/// 16 bytes of nibbles: element `j` low in byte `j`, element `j + 16` high in it.
fn nibbles(qs: &[u8], out: &mut [u8; 16]) {
    let (low, high) = out.split_at_mut(8);
    for (i, pair) in qs.as_chunks::<2>().0.iter().enumerate() {
        low[i] = (pair[0] & 0xf) | (pair[1] << 4);
        high[i] = (pair[0] >> 4) | (pair[1] & 0xf0);
    }
}

/// 4 bytes of fifth bits, bit `j` for element `j`, then nibbles as above.
fn five_bits(b: &[u8], out: &mut [u8; 20]) {
    let (high, qs) = b.split_at(4);
    let mut codes = [0u8; 32];
    for j in 0..16 {
        codes[j] = (qs[j] & 0xf) | ((high[j / 8] >> (j % 8)) & 1) << 4;
        codes[j + 16] = (qs[j] >> 4) | ((high[2 + j / 8] >> (j % 8)) & 1) << 4;
    }
    pack::<5>(&codes, out);
}

/// Signed bytes become codes with offset 128.
fn q8_codes(b: &[u8; 34], out: &mut [u8; 32]) {
    for (o, q) in out.iter_mut().zip(&b[2..]) {
        *o = q ^ 0x80;
    }
}

/// Two-bit fields: each 32 bytes hold 128 elements, 32 to a bit position.
fn two_bits(qs: &[u8], codes: &mut [u8; 256]) {
    for (half, qs) in codes.chunks_exact_mut(128).zip(qs.chunks_exact(32)) {
        for (position, codes) in half.chunks_exact_mut(32).enumerate() {
            for (code, q) in codes.iter_mut().zip(qs) {
                *code = (q >> (2 * position)) & 3;
            }
        }
    }
}

/// Nibbles: each `WIDTH` bytes hold `2·WIDTH` elements, the low ones first.
fn wide_nibbles<const WIDTH: usize>(qs: &[u8], codes: &mut [u8; 256]) {
    for (pair, qs) in codes.chunks_exact_mut(2 * WIDTH).zip(qs.chunks_exact(WIDTH)) {
        let (low, high) = pair.split_at_mut(WIDTH);
        for ((low, high), q) in low.iter_mut().zip(high).zip(qs) {
            *low = q & 0xf;
            *high = q >> 4;
        }
    }
}

/// Adds one more bit to each code: 32 bytes, bit `i` of byte `l` for element `32·i + l`.
fn or_bit_planes<const SHIFT: u8>(planes: &[u8], codes: &mut [u8; 256]) {
    for (i, codes) in codes.chunks_exact_mut(32).enumerate() {
        for (code, plane) in codes.iter_mut().zip(planes) {
            *code |= ((plane >> i) & 1) << SHIFT;
        }
    }
}

fn q2_k_codes(b: &[u8; 84], out: &mut [u8; 64]) {
    let mut codes = [0u8; 256];
    two_bits(&b[16..80], &mut codes);
    pack::<2>(&codes, out);
}

fn q3_k_codes(b: &[u8; 110], out: &mut [u8; 96]) {
    let mut codes = [0u8; 256];
    two_bits(&b[32..96], &mut codes);
    or_bit_planes::<2>(&b[..32], &mut codes);
    pack::<3>(&codes, out);
}

fn q4_k_codes(b: &[u8; 144], out: &mut [u8; 128]) {
    let mut codes = [0u8; 256];
    wide_nibbles::<32>(&b[16..], &mut codes);
    pack::<4>(&codes, out);
}

fn q5_k_codes(b: &[u8; 176], out: &mut [u8; 160]) {
    let mut codes = [0u8; 256];
    wide_nibbles::<32>(&b[48..], &mut codes);
    or_bit_planes::<4>(&b[16..48], &mut codes);
    pack::<5>(&codes, out);
}

fn q6_k_codes(b: &[u8; 210], out: &mut [u8; 192]) {
    let mut codes = [0u8; 256];
    let mut high = [0u8; 256];
    wide_nibbles::<64>(&b[..128], &mut codes);
    two_bits(&b[128..192], &mut high);
    for (code, high) in codes.iter_mut().zip(high) {
        *code |= high << 4;
    }
    pack::<6>(&codes, out);
}

fn low_nibbles(b: &[u8], out: &mut [u8; 16]) {
    for (o, b) in out.iter_mut().zip(b) {
        *o = b & 0xf;
    }
}

fn high_nibbles(b: &[u8], out: &mut [u8; 16]) {
    for (o, b) in out.iter_mut().zip(b) {
        *o = b >> 4;
    }
}

/// Sixteen 6-bit scales in 12 bytes: nibbles in the first 8, two high bits in the last 4; less 32.
fn q3_k_scales(b: &[u8; 110], out: &mut [u8; 16]) {
    let (nibbles, high) = b[96..108].split_at(8);
    for (j, o) in out.iter_mut().enumerate() {
        let low = (nibbles[j % 8] >> (4 * (j / 8))) & 0xf;
        let high = (high[j % 4] >> (2 * (j / 4))) & 3;
        *o = (low | high << 4).wrapping_sub(32);
    }
}

/// Eight 6-bit scales of the 12 bytes that hold scales and mins.
fn k_scales(b: &[u8], out: &mut [u8; 8]) {
    for j in 0..4 {
        out[j] = b[j] & 0x3f;
        out[j + 4] = (b[j + 8] & 0xf) | (b[j] >> 6) << 4;
    }
}

/// Eight 6-bit mins of the 12 bytes that hold scales and mins.
fn k_mins(b: &[u8], out: &mut [u8; 8]) {
    for j in 0..4 {
        out[j] = b[j + 4] & 0x3f;
        out[j + 4] = (b[j + 8] >> 4) | (b[j + 4] >> 6) << 4;
    }
}

/// Packs codes low-first: eight codes fill `BITS` bytes.
fn pack<const BITS: usize>(codes: &[u8], out: &mut [u8]) {
    for (codes, out) in codes.as_chunks::<8>().0.iter().zip(out.chunks_exact_mut(BITS)) {
        let mut word = 0u64;
        for (i, code) in codes.iter().enumerate() {
            word |= u64::from(*code) << (i * BITS);
        }
        out.copy_from_slice(&word.to_le_bytes()[..BITS]);
    }
}
