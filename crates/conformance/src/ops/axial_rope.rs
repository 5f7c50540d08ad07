use lapidary_program::{AxialRopeSpec, Op, Sym, ValueType, input};

use crate::case::{Call, Case, Data, options};
use crate::lab::Lab;
use crate::tolerance::ELEMENTWISE;

/// Columns and rows that an image may have.
const SIDE: usize = 10_240;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (p, heads, head_dim) in
        [(1, 1, 4), (3, 3, 12), (7, 2, 16), (9, 12, 64), (5, 16, 72), (2, 1, 256)]
    {
        for theta in [100.0, 1e4] {
            cases.push(case(p, heads, AxialRopeSpec { head_dim, theta }));
        }
    }
    cases
}

fn case(p: usize, heads: usize, spec: AxialRopeSpec) -> Case {
    let head_dim = spec.head_dim as usize;
    let (half, quarter) = (head_dim / 2, head_dim / 4);
    let c = heads * head_dim;
    let mut lab = Lab::new((p * 1000 + head_dim) as u64);
    let x = lab.random.normals(p * c, 1.0);
    let mut columns = lab.random.indices(p, SIDE);
    let rows = lab.random.indices(p, SIDE);
    columns[0] = SIDE as i32 - 1;
    let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    for (i, head) in expected.chunks_mut(head_dim).enumerate() {
        for (part, place) in head.chunks_mut(half).zip([columns[i / heads], rows[i / heads]]) {
            for pair in 0..quarter {
                // As in `rope`: frequencies and angles are f32 by definition.
                let frequency = spec.theta.powf(-2.0 * pair as f64 / half as f64) as f32;
                let angle = f64::from(place as f32 * frequency);
                let (a, b) = (part[pair], part[pair + quarter]);
                part[pair] = a * angle.cos() - b * angle.sin();
                part[pair + quarter] = b * angle.cos() + a * angle.sin();
            }
        }
    }
    let index = ValueType::indices(Sym::Patches);
    let inputs = [
        ("x", ValueType::rows(Sym::Patches, c as u64)),
        (input::PATCH_X, index.clone()),
        (input::PATCH_Y, index),
    ];
    let feeds = vec![
        ("x", Data::F32(x)),
        (input::PATCH_X, Data::I32(columns)),
        (input::PATCH_Y, Data::I32(rows)),
    ];
    Case {
        name: format!("{p}×{heads} heads of {head_dim}, theta {}", spec.theta),
        program: lab.one_op(Op::AxialRope(spec), &inputs),
        options: options(1),
        calls: vec![Call::new(feeds, expected)],
        tolerance: ELEMENTWISE,
    }
}
