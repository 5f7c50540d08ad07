use lapidary_program::{DType, Encoding, Op};

use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};
use crate::tolerance::SUMS;

/// A mean near 1 is rounded by up to 6e-8, and what differs is divided by a thousandth. Means of f32 sums
/// are off by a hundred times as much.
const PICTURES: f64 = 6e-5;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (t, c, width) in [
        (1, 1, 1),
        (1, 640, 640),
        (3, 21, 7),
        (7, 33, 33),
        (33, 512, 32),
        (4, 1152, 1152),
        (2, 3840, 3840),
    ] {
        for biased in [false, true] {
            for (eps, size, mean) in [(1e-6, 1.0, 0.0), (1e-5, 300.0, 90.0), (0.5, 0.01, -0.02)] {
                let normals = |n: usize, lab: &mut Lab| {
                    lab.random.normals(n, size).iter().map(|x| x + mean).collect()
                };
                let name = format!("{size} around {mean}");
                cases.push(case((t, c, width), biased, eps, &name, normals));
            }
        }
    }
    // What the unified Gemma 4 is fed of pictures without anything in them: 48 × 48 pixels a run. If
    // the mean is rounded by more than the levels differ, the rounding is all that is seen.
    type Levels = fn(usize) -> u8;
    let pictures: [(&str, Levels); 4] = [
        ("flat grey", |_| 128),
        ("flat white", |_| 255),
        ("near white", |i| if i % 97 == 0 { 254 } else { 255 }),
        ("a faint line", |i| if i < 144 { 101 } else { 100 }),
    ];
    for (name, level) in pictures {
        let levels = move |n: usize, _: &mut Lab| {
            (0..n).map(|i| f32::from(level(i % 6912)) / 255.0).collect()
        };
        let case = case((2, 6912, 6912), true, 1e-6, name, levels);
        cases.push(Case { tolerance: PICTURES, ..case });
    }
    cases
}

fn case(
    (t, c, width): (usize, usize, usize),
    biased: bool,
    eps: f32,
    name: &str,
    make: impl FnOnce(usize, &mut Lab) -> Vec<f32>,
) -> Case {
    let mut lab = Lab::new((t * 10_000 + c) as u64);
    let dtype = [DType::F32, DType::Bf16, DType::F16][t % 3];
    let w = lab.weight("w", &[width], Encoding::Dense(dtype), 1.0);
    let b = biased.then(|| lab.weight("b", &[width], Encoding::Dense(dtype), 1.0));
    let x = make(t * c, &mut lab);
    let mut expected = Vec::new();
    for run in x.chunks(width) {
        let mean = run.iter().map(|x| f64::from(*x)).sum::<f64>() / width as f64;
        let squares = run.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>();
        let root = (squares / width as f64 + f64::from(eps)).sqrt();
        for (i, x) in run.iter().enumerate() {
            let bias = b.as_ref().map_or(0.0, |b| b[i]);
            expected.push((f64::from(*x) - mean) / root * w[i] + bias);
        }
    }
    let bias = biased.then(|| "b".to_string());
    let op = Op::LayerNorm { weight: "w".into(), bias, eps, width: width as u32 };
    Case {
        name: format!("{t}×{c} by {width}, bias {biased}, eps {eps}, {name}"),
        program: lab.one_op(op, &[("x", rows(c))]),
        options: options(t),
        calls: vec![Call::new(vec![("x", Data::F32(x))], expected)],
        tolerance: SUMS,
    }
}
