use lapidary_backend::LoadOptions;
use lapidary_program::{Op, RopeSpec};

use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};
use crate::paging::Place;
use crate::tolerance::ELEMENTWISE;

const CONTEXT: usize = 1 << 18;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (t, heads, head_dim) in
        [(1, 1, 2), (3, 3, 8), (7, 1, 64), (5, 2, 72), (33, 4, 256), (2, 8, 512)]
    {
        for (theta, rotated, factor) in
            [(1e4, 1.0, 1.0), (1e6, 1.0, 8.0), (1e6, 0.25, 1.0), (1e4, 0.0, 1.0)]
        {
            let spec = RopeSpec {
                head_dim: head_dim as u32,
                theta,
                rotated_pairs: (rotated * head_dim as f64 / 2.0) as u32,
                factor,
            };
            cases.push(case(t, heads, spec));
        }
    }
    cases
}

fn case(t: usize, heads: usize, spec: RopeSpec) -> Case {
    let (head_dim, half) = (spec.head_dim as usize, spec.head_dim as usize / 2);
    let mut lab = Lab::new((t * 1000 + head_dim) as u64);
    let c = heads * head_dim;
    let x = lab.random.normals(t * c, 1.0);
    let mut positions = lab.random.indices(t, CONTEXT);
    positions[0] = 0;
    if let [_, second, ..] = positions.as_mut_slice() {
        *second = CONTEXT as i32 - 1;
    }
    let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    for (row, position) in expected.chunks_mut(c).zip(&positions) {
        for head in row.chunks_mut(head_dim) {
            for i in 0..spec.rotated_pairs as usize {
                // Frequencies and angles are f32 by definition: at 100k positions the rounding of
                // an angle is far above any tolerance.
                let power = spec.theta.powf(-2.0 * i as f64 / head_dim as f64);
                let frequency = (power / spec.factor) as f32;
                let angle = f64::from(*position as f32 * frequency);
                let (a, b) = (head[i], head[i + half]);
                head[i] = a * angle.cos() - b * angle.sin();
                head[i + half] = b * angle.cos() + a * angle.sin();
            }
        }
    }
    let inputs = [("x", rows(c))];
    let places = positions.iter().map(|position| Place::new(0, *position)).collect();
    let call = Call { places, ..Call::new(vec![("x", Data::F32(x))], expected) };
    Case {
        name: format!(
            "{t}×{heads} heads of {head_dim}, theta {}, {} pairs, factor {}",
            spec.theta, spec.rotated_pairs, spec.factor
        ),
        program: lab.one_op(Op::Rope(spec), &inputs),
        options: LoadOptions { max_context: CONTEXT as u32, ..options(t) },
        calls: vec![call],
        tolerance: ELEMENTWISE,
    }
}
