use lapidary_program::{DType, Encoding, Op, Sym, ValueType, input};

use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, encodings, indices};
use crate::tolerance::ELEMENTWISE;

/// Which rows ids mean.
#[derive(Clone, Copy)]
struct Ids {
    start: usize,
    stride: usize,
}

const PLAIN: Ids = Ids { start: 0, stride: 1 };

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (t, vocab, c) in [(1, 3, 7), (7, 33, 192), (33, 257, 33)] {
        for (i, encoding) in encodings(c).into_iter().enumerate() {
            let soft_id = (i % 2 == 1).then_some(vocab as u32 - 1);
            cases.push(case(t, (vocab, c), encoding, PLAIN, soft_id));
        }
    }
    for (start, stride) in [(0, 2), (1, 2), (16, 1), (32, 1), (5, 7), (3, 40)] {
        for (soft_id, dtype) in [(None, DType::F32), (Some(2), DType::Bf16)] {
            let ids = Ids { start, stride };
            cases.push(case(9, (33, 20), Encoding::Dense(dtype), ids, soft_id));
        }
    }
    cases
}

fn case(
    t: usize,
    (vocab, c): (usize, usize),
    encoding: Encoding,
    Ids { start, stride }: Ids,
    soft_id: Option<u32>,
) -> Case {
    let mut lab = Lab::new(t as u64 + c as u64);
    let table = lab.weight("table", &[vocab, c], encoding, 1.0);
    let scale = lab.random.normal() * 10.0;
    let ids = lab.random.indices(t, (vocab - start).div_ceil(stride));
    let soft_index: Vec<i32> = (0..t).map(|_| lab.random.below(2) as i32 - 1).collect();
    let mut expected = Vec::new();
    for (id, soft) in ids.iter().zip(&soft_index) {
        let row = match soft_id {
            Some(soft_id) if *soft >= 0 => soft_id as usize,
            _ => start + stride * *id as usize,
        };
        expected.extend(table[row * c..(row + 1) * c].iter().map(|x| x * f64::from(scale)));
    }
    let mut inputs = vec![(input::TOKENS, indices())];
    let mut feeds = vec![(input::TOKENS, Data::I32(ids))];
    if soft_id.is_some() {
        inputs.push((input::SOFT_INDEX, indices()));
        feeds.push((input::SOFT_INDEX, Data::I32(soft_index)));
        feeds.push((input::SOFT, Data::F32(vec![0.0])));
    }
    // The soft row that indices point to; this op does not read it.
    let soft_row = (input::SOFT, ValueType::rows(Sym::Soft, 1));
    let unread = if soft_id.is_some() { std::slice::from_ref(&soft_row) } else { &[] };
    let soft = if soft_id.is_some() { ", soft" } else { "" };
    let op = Op::Embed {
        weight: "table".into(),
        scale,
        start: start as u32,
        stride: stride as u32,
        soft_id,
    };
    Case {
        name: format!(
            "{}, {vocab}×{c}, {t} tokens from {start} by {stride}{soft}",
            encoding.label()
        ),
        program: lab.one_op_beside(op, &inputs, unread),
        options: options(t),
        calls: vec![Call::new(feeds, expected)],
        tolerance: ELEMENTWISE,
    }
}
