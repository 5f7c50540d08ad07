use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Binding, Count, Value, Work};
use crate::weights::{RawLayout, ShardId};

/// The weighted sum of what the chosen experts make. `x` is rows, experts, weights.
pub(super) fn experts(
    cx: &mut MethodCompiler<'_>,
    [gate_up, down]: [&str; 2],
    x: &[Value],
    y: Value,
) {
    let [rows, chosen, shares] = [x[0], x[1], x[2]];
    let inner = cx.program.weights()[down].cols();
    let top_k = chosen.channels;
    let hidden = cx.scratch(rows.rows, top_k * inner);
    let len = cx.len(rows.rows);
    for part in parts(cx, gate_up, 2 * inner) {
        Kernel::new(Shader::new("experts_gate"))
            .words(&part.words)
            .words(&[len, top_k as u32, inner as u32, part.first, part.n])
            .read(rows)
            .read(chosen)
            .reads(part.shard)
            .write(hidden)
            .groups(
                cx,
                Count::of(rows.rows, top_k * inner, 1),
                Work::Rows(rows.rows, (2 * top_k * inner * rows.channels) as u64),
            );
    }
    for (i, part) in parts(cx, down, y.channels).into_iter().enumerate() {
        Kernel::new(Shader::new("experts_down").with("MORE", i > 0))
            .words(&part.words)
            .words(&[len, top_k as u32, y.channels as u32, part.first, part.n])
            .read(hidden)
            .read(chosen)
            .read(shares)
            .reads(part.shard)
            .write(y)
            .groups(
                cx,
                Count::of(y.rows, y.channels, 1),
                Work::Rows(y.rows, (top_k * inner * y.channels) as u64),
            );
    }
}

/// Some experts of a weight.
struct Part {
    words: [u32; 16],
    first: u32,
    n: u32,
    shard: Binding,
}

/// The parts of a weight whose experts have so many rows each.
fn parts(cx: &mut MethodCompiler<'_>, weight: &str, rows: usize) -> Vec<Part> {
    let matrix = cx.matrix(weight, rows);
    let decl = &cx.program.weights()[weight];
    let shards = cx.shards(matrix).into_iter().enumerate().map(|(shard, range)| Part {
        words: RawLayout::new(decl, range.len()).words(decl),
        first: (range.start / rows) as u32,
        n: (range.len() / rows) as u32,
        shard: Binding::Shard(ShardId { matrix: matrix.0, shard }),
    });
    shards.collect()
}
