//! Every operation of every instruction set against plain loops, to the bit.

use half::{bf16, f16};

use super::{CHUNK, Isa, Kernel, LANES, Simd};

/// All results one after the other, with inputs for which no rounding can differ.
struct Everything;

impl Kernel for Everything {
    type Output = Vec<u32>;

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> Vec<u32> {
        let mut out = Vec::new();
        floats(s, &mut out);
        conversions(s, &mut out);
        quads(s, &mut out);
        products::<S, 1, 1>(s, &mut out);
        products::<S, 2, 1>(s, &mut out);
        products::<S, 6, 1>(s, &mut out);
        products::<S, 4, 2>(s, &mut out);
        out
    }
}

#[test]
fn every_operation_is_that_of_plain_loops() {
    let want = Isa::named("scalar").expect("scalar is everywhere").run_integers(Everything);
    for isa in Isa::all() {
        let got = isa.run_integers(Everything);
        assert_eq!(got.len(), want.len(), "{isa:?}");
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got, want, "{isa:?}: number {i}");
        }
    }
}

#[inline(always)]
fn push<S: Simd>(s: S, out: &mut Vec<u32>, v: S::V) {
    let mut lanes = [0.0f32; LANES];
    // SAFETY: there is room for 16.
    unsafe { s.store(lanes.as_mut_ptr(), v) };
    // What is not a number is so in many ways.
    out.extend(lanes.map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }));
}

#[inline(always)]
fn floats<S: Simd>(s: S, out: &mut Vec<u32>) {
    let a: [f32; LANES] = std::array::from_fn(|i| i as f32 * 0.5 - 3.0);
    let mut b: [f32; LANES] = std::array::from_fn(|i| ((i * 7) % 16) as f32 - 4.0);
    // SAFETY: there are 16 numbers.
    let (x, y) = unsafe { (s.load(a.as_ptr()), s.load(b.as_ptr())) };
    push(s, out, s.add(x, y));
    push(s, out, s.sub(x, y));
    push(s, out, s.mul(x, y));
    push(s, out, s.div(x, y));
    push(s, out, s.mul_add(x, y, s.splat(0.25)));
    // Zeros may have either sign.
    push(s, out, s.add(s.round(x), s.splat(0.0)));
    push(s, out, s.exp2_int(y));
    out.extend([s.sum(x).to_bits(), s.largest(x).to_bits(), s.largest(y).to_bits()]);
    (b[3], b[7], b[9]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    // SAFETY: there are 16 numbers.
    let y = unsafe { s.load(b.as_ptr()) };
    for (x, y) in [(x, y), (y, x)] {
        push(s, out, s.min(x, y));
        push(s, out, s.max(x, y));
    }
}

#[inline(always)]
fn conversions<S: Simd>(s: S, out: &mut Vec<u32>) {
    let halves = [0.0f32, -0.0, 1.0, -2.5, 65504.0, 6e-8, -6.1e-5, f32::INFINITY];
    let f16s: [f16; LANES] = std::array::from_fn(|i| f16::from_f32(halves[i % 8]));
    let bf16s: [bf16; LANES] = std::array::from_fn(|i| bf16::from_f32(halves[i % 8]));
    let bytes: [u8; LANES] = std::array::from_fn(|i| (i * 17) as u8);
    let mut stored = [0i8; LANES];
    // SAFETY: there are 16 of each.
    unsafe {
        push(s, out, s.load_f16(f16s.as_ptr()));
        push(s, out, s.load_bf16(bf16s.as_ptr()));
        push(s, out, s.load_u8(bytes.as_ptr()));
        let signed = s.load_i8(bytes.as_ptr().cast());
        push(s, out, signed);
        s.store_i8(stored.as_mut_ptr(), signed);
    }
    out.extend(stored.map(|x| i32::from(x).cast_unsigned()));
}

#[inline(always)]
fn quads<S: Simd>(s: S, out: &mut Vec<u32>) {
    let bytes: [u8; CHUNK] = std::array::from_fn(|i| (i * 37 + 11) as u8);
    let mut stored = [0u8; CHUNK];
    // SAFETY: there are 64 bytes.
    let q = unsafe { s.load_quads(bytes.as_ptr()) };
    let made = [
        q,
        s.shift_right(q, 5),
        s.shift_left(q, 3),
        s.shift_left(q, 0),
        s.or(s.and(q, 0x0f0f_0f0f), s.shift_right(q, 24)),
    ];
    for q in made {
        // SAFETY: there is room for 64 bytes.
        unsafe { s.store_quads(stored.as_mut_ptr(), q) };
        out.extend(stored.map(u32::from));
        push(s, out, s.ints_to_floats(s.quads_to_ints(s.shift_right(q, 8))));
    }
}

/// Products of eight chunks, narrow codes and wide ones.
#[inline(always)]
fn products<S: Simd, const H: usize, const W: usize>(s: S, out: &mut Vec<u32>) {
    const N: usize = 8;
    let codes: [u8; W_MAX * N * CHUNK] = std::array::from_fn(|i| (i * 89 + i / 7) as u8);
    let narrow = codes.map(|code| code & 127);
    let mut x: [i8; H_MAX * N * 4] = std::array::from_fn(|i| ((i * 53 + 1) % 255) as i8);
    x.iter_mut().for_each(|x| *x = (*x).max(-127));
    let row_of = |r: usize| &x[r * N * 4..(r + 1) * N * 4];
    let sum_of = |x: &[i8]| x.iter().map(|x| i32::from(*x)).sum::<i32>();
    // Extremes, so that narrow sums would overflow.
    let extreme = [255u8; CHUNK];
    // SAFETY: there are 64 codes and 4 bytes; then as many chunks and rows as are asked for.
    unsafe {
        for x in [[127i8; 4], [-127; 4]] {
            let start = s.splat_int(S::WIDE_OFFSET * sum_of(&x));
            let (w, x) = (s.load_quads(extreme.as_ptr()), s.splat_quad(x.as_ptr()));
            push(s, out, s.ints_to_floats(s.dot::<true>(start, w, x)));
            let halved = s.and(w, 0x7f7f_7f7f);
            push(s, out, s.ints_to_floats(s.dot::<false>(s.splat_int(5), halved, x)));
        }
        let mut ints = [[s.splat_int(0); W]; H];
        for (r, ints) in ints.iter_mut().enumerate() {
            *ints = [s.splat_int(S::WIDE_OFFSET * sum_of(row_of(r))); W];
        }
        let panels = std::array::from_fn(|j| codes.as_ptr().add(j * N * CHUNK));
        s.dot_chunks::<true, H, W>(&mut ints, panels, (x.as_ptr(), N * 4), (0, N));
        let panels = std::array::from_fn(|j| narrow.as_ptr().add(j * N * CHUNK));
        s.dot_chunks::<false, H, W>(&mut ints, panels, (x.as_ptr(), N * 4), (N / 2, N / 2));
        for ints in ints.as_flattened() {
            push(s, out, s.ints_to_floats(*ints));
        }
    }
}

/// The tallest tile.
const H_MAX: usize = 6;
/// The widest tile.
const W_MAX: usize = 2;
