//! From a panel's bytes to what the integer kernel multiplies with: a byte per code, and floats.
#![allow(unsafe_code)]

use half::{bf16, f16};
use lapidary_program::{DType, ScaleFormat};

use super::activations::BLOCK;
use super::form::{CHUNK, CHUNKS, Form, LOW, Width};
use crate::simd::{LANES, Simd};

/// Spreads the codes of `n` blocks to bytes, `[block][chunk][16][4]`.
///
/// # Safety
/// `n` blocks of `width` can be read at `from`, and `n` times 512 bytes written at `to`.
#[inline(always)]
pub(crate) unsafe fn spread<S: Simd>(s: S, width: Width, from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: by the caller's promise.
    unsafe {
        match width {
            Width::Four => blocks::<S, 4>(s, from, to, n),
            Width::Five => blocks::<S, 5>(s, from, to, n),
            Width::Six => blocks::<S, 6>(s, from, to, n),
            Width::Eight => std::ptr::copy_nonoverlapping(from, to, n * CHUNKS * CHUNK),
        }
    }
}

/// # Safety
/// As [`spread`].
#[inline(always)]
unsafe fn blocks<S: Simd, const BITS: usize>(s: S, from: *const u8, to: *mut u8, n: usize) {
    for b in 0..n {
        // SAFETY: a block is `BITS` chunks long, and eight when spread.
        unsafe {
            let (from, to) = (from.add(b * BITS * CHUNK), to.add(b * CHUNKS * CHUNK));
            for i in 0..4 {
                let (low, high) = chunk_pair::<S, BITS>(s, from, i);
                s.store_quads(to.add(i * CHUNK), low);
                s.store_quads(to.add((i + 4) * CHUNK), high);
            }
        }
    }
}

/// Chunks `i` and `i + 4` of a block, a byte per code.
///
/// # Safety
/// `BITS` chunks can be read at `from`, and `i < 4`.
#[inline(always)]
pub(crate) unsafe fn chunk_pair<S: Simd, const BITS: usize>(
    s: S,
    from: *const u8,
    i: usize,
) -> (S::Quads, S::Quads) {
    // SAFETY: each line is below `BITS`.
    unsafe {
        let line = |i: usize| s.load_quads(from.add(i * CHUNK));
        if BITS == 8 {
            return (line(i), line(i + 4));
        }
        let both = line(i);
        let (low, high) = (s.and(both, LOW), s.and(s.shift_right(both, 4), LOW));
        let i = i as u32;
        match BITS {
            5 => {
                let bit = |c| s.and(shift_to_four(s, line(4), c), 0x1010_1010);
                (s.or(low, bit(i)), s.or(high, bit(i + 4)))
            }
            6 => {
                let bits = |plane| s.and(shift_to_four(s, line(plane), 2 * i), 0x3030_3030);
                (s.or(low, bits(4)), s.or(high, bits(5)))
            }
            _ => (low, high),
        }
    }
}

/// Moves bit `from` of each byte to bit 4; neighbours come along.
#[inline(always)]
fn shift_to_four<S: Simd>(s: S, plane: S::Quads, from: u32) -> S::Quads {
    if from < 4 { s.shift_left(plane, 4 - from) } else { s.shift_right(plane, from - 4) }
}

/// The scales, or the biases, of units `first .. first + n` as floats, `[unit][16]`.
///
/// # Safety
/// `panel` is a panel of `form`, which has those units, and `n · 16` numbers can be written at `to`.
#[inline(always)]
pub(crate) unsafe fn factors<S: Simd>(
    s: S,
    form: &Form,
    panel: *const u8,
    biases: bool,
    (first, n): (usize, usize),
    to: *mut f32,
) {
    let (own, sup) =
        if biases { (form.biases, form.super_biases) } else { (form.scales, form.super_scales) };
    let unit = form.unit();
    let group_of = |i: usize| form.group_of((first + i) * unit);
    // SAFETY: groups are those of the form, so that they stand within the panel.
    unsafe {
        match form.layout.scale {
            ScaleFormat::Plain { dtype } => {
                for i in 0..n {
                    let v = float(s, dtype, panel.add(own), group_of(i));
                    s.store(to.add(i * LANES), v);
                }
            }
            ScaleFormat::Nested { per, sub, dtype } => {
                for i in 0..n {
                    let group = group_of(i);
                    let own = panel.add(own + group * LANES);
                    let factor = match sub {
                        DType::I8 => s.load_i8(own.cast()),
                        _ => s.load_u8(own),
                    };
                    let sup = float(s, dtype, panel.add(sup), group / per as usize);
                    s.store(to.add(i * LANES), s.mul(factor, sup));
                }
            }
        }
    }
}

/// # Safety
/// `index + 1` times 16 numbers of this type stand at `p`.
#[inline(always)]
unsafe fn float<S: Simd>(s: S, dtype: DType, p: *const u8, index: usize) -> S::V {
    // SAFETY: by the caller's promise.
    unsafe {
        match dtype {
            DType::F16 => s.load_f16(p.cast::<f16>().add(index * LANES)),
            DType::Bf16 => s.load_bf16(p.cast::<bf16>().add(index * LANES)),
            _ => s.load(p.cast::<f32>().add(index * LANES)),
        }
    }
}

/// One panel's columns `first_block · 32 ..` as floats, `[k][16]`: `(code − offset) · scale + bias`,
/// each step rounded, as the encoding says. The codes and factors were unpacked before.
///
/// # Safety
/// `codes` are those of `n` blocks, `scales` and `biases` those of their units, and `n · 32 · 16`
/// numbers can be written at `to`.
#[inline(always)]
pub(crate) unsafe fn floats<S: Simd>(
    s: S,
    form: &Form,
    (codes, scales, biases): (*const u8, *const f32, *const f32),
    n: usize,
    to: *mut f32,
) {
    let offset = s.splat(f32::from(form.layout.offset));
    let unit = form.unit();
    for chunk in 0..n * CHUNKS {
        // SAFETY: `chunk` is one of the `n` blocks'.
        unsafe {
            let u = chunk * 4 / unit;
            let scale = s.load(scales.add(u * LANES));
            let quads = s.load_quads(codes.add(chunk * CHUNK));
            for i in 0..4 {
                let code = s.and(s.shift_right(quads, 8 * i), 0xff);
                let code = s.ints_to_floats(s.quads_to_ints(code));
                let mut w = s.mul(s.sub(code, offset), scale);
                if form.layout.affine {
                    w = s.add(w, s.load(biases.add(u * LANES)));
                }
                s.store(to.add((chunk * 4 + i as usize) * LANES), w);
            }
        }
    }
    debug_assert_eq!(BLOCK, CHUNKS * 4);
}
