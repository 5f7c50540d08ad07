use lapidary_program::Op;

use super::wide;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};

pub(crate) fn cases() -> Vec<Case> {
    let case = |(t, a_len, b_len): (usize, usize, usize)| {
        let mut lab = Lab::new(t as u64);
        let (a, b) = (lab.random.normals(t * a_len, 1.0), lab.random.normals(t * b_len, 1.0));
        let pairs = a.chunks(a_len).zip(b.chunks(b_len));
        let expected = pairs.flat_map(|(a, b)| wide(&[a, b].concat())).collect();
        Case {
            name: format!("{t}×({a_len} + {b_len})"),
            program: lab.one_op(Op::Concat, &[("a", rows(a_len)), ("b", rows(b_len))]),
            options: options(t),
            calls: vec![Call::new(vec![("a", Data::F32(a)), ("b", Data::F32(b))], expected)],
            tolerance: 0.0,
        }
    };
    [(1, 1, 1), (3, 7, 2), (7, 1, 33), (33, 257, 3)].map(case).into()
}
