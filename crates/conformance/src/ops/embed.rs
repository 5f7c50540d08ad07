use lapidary_program::{Encoding, Op, input};

use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, encodings, indices};
use crate::tolerance::ELEMENTWISE;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (t, vocab, c) in [(1, 3, 7), (7, 33, 192), (33, 257, 33)] {
        for (i, encoding) in encodings(c).into_iter().enumerate() {
            let soft_id = (i % 2 == 1).then_some(vocab as u32 - 1);
            cases.push(case(t, vocab, c, encoding, soft_id));
        }
    }
    cases
}

fn case(t: usize, vocab: usize, c: usize, encoding: Encoding, soft_id: Option<u32>) -> Case {
    let mut lab = Lab::new(t as u64 + c as u64);
    let table = lab.weight("table", &[vocab, c], encoding, 1.0);
    let scale = lab.random.normal() * 10.0;
    let ids = lab.random.indices(t, vocab);
    let soft_index: Vec<i32> = (0..t).map(|_| lab.random.below(2) as i32 - 1).collect();
    let mut expected = Vec::new();
    for (id, soft) in ids.iter().zip(&soft_index) {
        let row = match soft_id {
            Some(soft_id) if *soft >= 0 => soft_id as usize,
            _ => *id as usize,
        };
        expected.extend(table[row * c..(row + 1) * c].iter().map(|x| x * f64::from(scale)));
    }
    let mut inputs = vec![(input::TOKENS, indices())];
    let mut feeds = vec![(input::TOKENS, Data::I32(ids))];
    if soft_id.is_some() {
        // Not `soft_index`: there are no soft rows here that it could point to.
        inputs.push(("where", indices()));
        feeds.push(("where", Data::I32(soft_index)));
    }
    let soft = if soft_id.is_some() { ", soft" } else { "" };
    Case {
        name: format!("{}, {vocab}×{c}, {t} tokens{soft}", encoding.label()),
        program: lab.one_op(Op::Embed { weight: "table".into(), scale, soft_id }, &inputs),
        options: options(t),
        calls: vec![Call::new(feeds, expected)],
        tolerance: ELEMENTWISE,
    }
}
