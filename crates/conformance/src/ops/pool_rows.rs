use lapidary_backend::LoadOptions;
use lapidary_program::{Op, Sym, ValueType};

use crate::case::{Call, Case, Data, options};
use crate::lab::Lab;
use crate::tolerance::SUMS;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for size in [1, 4, 9, 16] {
        for (runs, c) in [(1, 1), (3, 7), (5, 33), (2, 1152)] {
            let mut lab = Lab::new((size * 1000 + c) as u64);
            let x = lab.random.normals(runs * size * c, 1.0);
            let mut expected = vec![0.0; runs * c];
            for (i, x) in x.iter().enumerate() {
                expected[i / (size * c) * c + i % c] += f64::from(*x) / size as f64;
            }
            let op = Op::PoolRows { size: size as u32 };
            cases.push(Case {
                name: format!("{runs} runs of {size}×{c}"),
                program: lab.one_op(op, &[("x", ValueType::rows(Sym::Patches, c as u64))]),
                options: LoadOptions { max_patches: (runs * size) as u32, ..options(1) },
                calls: vec![Call::new(vec![("x", Data::F32(x))], expected)],
                tolerance: SUMS,
            });
        }
    }
    cases
}
