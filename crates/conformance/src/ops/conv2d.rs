use lapidary_backend::LoadOptions;
use lapidary_program::{DType, Encoding, Op, Sym, ValueType};

use super::wide;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, OP, Y};
use crate::tolerance::SUMS;

/// Columns, input and output channels.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    width: usize,
    n_in: usize,
    n_out: usize,
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (lengths, width, n_in, n_out) in [
        (vec![1], 1, 1, 1),
        (vec![2, 1, 3], 2, 1, 1),
        (vec![5], 3, 1, 17),
        (vec![7, 8], 7, 3, 5),
        (vec![6], 8, 16, 33),
        (vec![9, 4, 1], 128, 1, 128),
        (vec![5], 64, 128, 32),
        (vec![11], 9, 40, 16),
    ] {
        for dtype in [DType::F32, DType::Bf16] {
            cases.push(case(&lengths, Kernel { width, n_in, n_out }, dtype));
        }
    }
    cases.push(two());
    cases
}

/// One after the other, and again: borders are zeros whatever was there before.
fn two() -> Case {
    let mut lab = Lab::new(2);
    let [first, second] =
        [(7, 2, 5), (4, 5, 3)].map(|(width, n_in, n_out)| Kernel { width, n_in, n_out });
    let mut weight = |name, k: Kernel| {
        lab.weight(name, &[k.n_out, k.n_in, 3, 3], Encoding::Dense(DType::F32), 0.3)
    };
    let (w1, w2) = (weight("w1", first), weight("w2", second));
    lab.method(OP, 1 << 16, |graph| {
        let mut x = graph.input("x", ValueType::rows(Sym::Frames, 14));
        for (name, kernel) in [("w1", first), ("w2", second)] {
            let op = Op::Conv2d { weight: name.into(), width: kernel.width as u32 };
            x = graph.node(name, op, &[x])?;
        }
        graph.output(Y, x);
        Ok(())
    });
    let calls = [9, 6, 9].map(|n| {
        let x = lab.random.normals(n * 14, 1.0);
        let expected = convolve(&convolve(&wide(&x), &w1, first), &w2, second);
        Call::new(vec![("x", Data::F32(x))], expected)
    });
    Case {
        name: "two".into(),
        program: lab.finish(1, 1 << 16),
        options: options(1),
        calls: calls.into(),
        tolerance: SUMS,
    }
}

fn case(lengths: &[usize], kernel: Kernel, dtype: DType) -> Case {
    let Kernel { width, n_in, n_out } = kernel;
    let mut lab = Lab::new((lengths[0] * 1000 + width * n_in) as u64);
    let size = 1.0 / (9.0 * n_in as f32).sqrt();
    let w = lab.weight("w", &[n_out, n_in, 3, 3], Encoding::Dense(dtype), size);
    let calls = lengths.iter().map(|n| {
        let x = lab.random.normals(n * width * n_in, 1.0);
        let expected = convolve(&wide(&x), &w, kernel);
        Call::new(vec![("x", Data::F32(x))], expected)
    });
    let calls = calls.collect();
    let op = Op::Conv2d { weight: "w".into(), width: width as u32 };
    Case {
        name: format!("{lengths:?} rows of {width}×{n_in} to {n_out} {}", dtype.name()),
        program: lab.one_op(op, &[("x", ValueType::rows(Sym::Frames, (width * n_in) as u64))]),
        options: LoadOptions { max_frames: lengths[0] as u32, ..options(1) },
        calls,
        tolerance: SUMS,
    }
}

fn convolve(x: &[f64], w: &[f64], Kernel { width, n_in, n_out }: Kernel) -> Vec<f64> {
    let n_rows = x.len() / (width * n_in);
    // 0 outside, counted with the border.
    let pixel = |row: usize, column: usize, i: usize| {
        let inside = (1..=n_rows).contains(&row) && (1..=width).contains(&column);
        if inside { x[((row - 1) * width + column - 1) * n_in + i] } else { 0.0 }
    };
    let mut out = Vec::new();
    for row in 0..n_rows.div_ceil(2) {
        for column in 0..width.div_ceil(2) {
            for o in 0..n_out {
                let mut sum = 0.0;
                for i in 0..n_in {
                    for place in 0..9 {
                        let (dy, dx) = (place / 3, place % 3);
                        let weight = w[(o * n_in + i) * 9 + place];
                        sum += weight * pixel(2 * row + dy, 2 * column + dx, i);
                    }
                }
                out.push(sum);
            }
        }
    }
    out
}
