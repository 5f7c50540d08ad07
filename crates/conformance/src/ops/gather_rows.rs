use lapidary_program::{Op, Sym, ValueType, input};

use super::wide;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};

pub(crate) fn cases() -> Vec<Case> {
    let case = |(t, c, r): (usize, usize, usize)| {
        let mut lab = Lab::new(t as u64);
        let x = lab.random.normals(t * c, 1.0);
        // More rows than tokens is allowed: rows may repeat.
        let asked = lab.random.indices(r, t);
        let expected =
            asked.iter().flat_map(|i| wide(&x[*i as usize * c..][..c])).collect::<Vec<_>>();
        let inputs = [("x", rows(c)), (input::ROWS, ValueType::indices(Sym::Rows))];
        let feeds = vec![("x", Data::F32(x)), (input::ROWS, Data::I32(asked))];
        Case {
            name: format!("{r} of {t}×{c}"),
            program: lab.one_op(Op::GatherRows, &inputs),
            options: options(t),
            calls: vec![Call::new(feeds, expected)],
            tolerance: 0.0,
        }
    };
    [(1, 1, 1), (3, 7, 2), (7, 33, 0), (33, 257, 33), (2, 5, 9)].map(case).into()
}
