use lapidary_program::{Op, Sym, ValueType, input};

use super::wide;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, indices, rows};

pub(crate) fn cases() -> Vec<Case> {
    let case = |(t, c, s): (usize, usize, usize)| {
        let mut lab = Lab::new(t as u64);
        let x = lab.random.normals(t * c, 1.0);
        let soft = lab.random.normals(s * c, 1.0);
        let index: Vec<i32> = (0..t).map(|_| lab.random.below(s + 1) as i32 - 1).collect();
        let row = |(t, i): (usize, &i32)| match usize::try_from(*i) {
            Ok(i) => wide(&soft[i * c..][..c]),
            Err(_) => wide(&x[t * c..][..c]),
        };
        let expected = index.iter().enumerate().flat_map(row).collect();
        let inputs = [
            ("x", rows(c)),
            (input::SOFT_INDEX, indices()),
            (input::SOFT, ValueType::rows(Sym::Soft, c as u64)),
        ];
        let feeds = vec![
            ("x", Data::F32(x)),
            (input::SOFT_INDEX, Data::I32(index)),
            (input::SOFT, Data::F32(soft)),
        ];
        Case {
            name: format!("{s} into {t}×{c}"),
            program: lab.one_op(Op::SoftMerge, &inputs),
            options: options(t),
            calls: vec![Call::new(feeds, expected)],
            tolerance: 0.0,
        }
    };
    [(1, 1, 1), (3, 7, 2), (7, 33, 0), (33, 257, 16)].map(case).into()
}
