use lapidary_program::Op;

use super::wide;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};

pub(crate) fn cases() -> Vec<Case> {
    let case = |(t, c, start, len): (usize, usize, usize, usize)| {
        let mut lab = Lab::new(t as u64);
        let x = lab.random.normals(t * c, 1.0);
        let expected = x.chunks(c).flat_map(|row| wide(&row[start..start + len])).collect();
        Case {
            name: format!("{t}×{c}, {start}+{len}"),
            program: lab
                .one_op(Op::Slice { start: start as u32, len: len as u32 }, &[("x", rows(c))]),
            options: options(t),
            calls: vec![Call::new(vec![("x", Data::F32(x))], expected)],
            tolerance: 0.0,
        }
    };
    [(1, 1, 0, 1), (3, 7, 2, 3), (7, 33, 32, 1), (33, 257, 0, 257), (2, 512, 256, 256)]
        .map(case)
        .into()
}
