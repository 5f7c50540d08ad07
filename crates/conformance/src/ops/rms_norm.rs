use lapidary_program::{DType, Encoding, Op};

use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};
use crate::tolerance::SUMS;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (t, c, width) in
        [(1, 1, 1), (1, 640, 640), (3, 21, 7), (7, 33, 33), (33, 512, 256), (2, 5376, 5376)]
    {
        for (weighted, offset) in [(false, 0.0), (true, 0.0), (true, 1.0)] {
            for (eps, size) in [(1e-6, 1.0), (1e-6, 300.0), (1e-6, 1e-4), (0.5, 1.0)] {
                cases.push(case(t, c, width, weighted, offset, (eps, size)));
            }
        }
    }
    cases
}

fn case(
    t: usize,
    c: usize,
    width: usize,
    weighted: bool,
    offset: f32,
    (eps, size): (f32, f32),
) -> Case {
    let mut lab = Lab::new((t * 10_000 + c) as u64);
    let dtype = [DType::F32, DType::Bf16, DType::F16][t % 3];
    let w = weighted.then(|| lab.weight("w", &[width], Encoding::Dense(dtype), 1.0));
    let x = lab.random.normals(t * c, size);
    let mut expected = Vec::new();
    for run in x.chunks(width) {
        let mean = run.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
        let root = (mean + f64::from(eps)).sqrt();
        for (i, x) in run.iter().enumerate() {
            let factor = w.as_ref().map_or(1.0, |w| f64::from(offset) + w[i]);
            expected.push(f64::from(*x) / root * factor);
        }
    }
    let weight = weighted.then(|| "w".to_string());
    let op = Op::RmsNorm { weight, eps, offset, width: width as u32 };
    Case {
        name: format!("{t}×{c} by {width}, weight {weighted} + {offset}, eps {eps}, of {size}"),
        program: lab.one_op(op, &[("x", rows(c))]),
        options: options(t),
        calls: vec![Call::new(vec![("x", Data::F32(x))], expected)],
        tolerance: SUMS,
    }
}
