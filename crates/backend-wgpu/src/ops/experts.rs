//! What chosen experts make of their tokens.
//!
//! A *use* is a token with one of the experts that it chose. For few tokens each use reads its expert
//! for itself. For many, uses are put in the order of their experts, and each expert is multiplied with
//! all of its uses, a block at a time.

use lapidary_program::Dim;

use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::linear::kernels::{self, Experts, Variant};
use crate::linear::{PackedForm, TILE_ROWS, Tuning};
use crate::shader::Shader;
use crate::step::{Binding, Count, Grid, Value, When, Work};
use crate::weights::{RawLayout, ShardId};

/// Tokens up to which each use reads its expert for itself.
const FEW: usize = 16;
/// Uses of one expert that are multiplied at once. The larger block needs fewer reads of weights, but
/// is seldom full where experts have few uses.
const BLOCKS: [usize; 2] = [16, 64];
/// Uses of an average expert from which on the larger block is better.
const LARGE_FROM: usize = 32;
/// Experts that a workgroup can count.
const MOST_EXPERTS: usize = 1024;
/// Rows of a matrix that a workgroup of `experts/many` makes.
const ROWS: usize = 64;

/// The weighted sum of what the chosen experts make. `x` is rows, experts, weights.
pub(super) fn experts(cx: &mut MethodCompiler<'_>, weights: [&str; 2], x: &[Value], y: Value) {
    let [rows, chosen, shares] = [x[0], x[1], x[2]];
    match Packed::of(cx, weights, y.channels) {
        Some(packed) => packed.compile(cx, [rows, chosen, shares], y),
        None => plain(cx, weights, [rows, chosen, shares], y),
    }
}

/// Both matrices of the experts, packed.
struct Packed {
    n_experts: usize,
    /// Numbers that an expert has inside.
    inner: usize,
    gate_up: Matrix,
    down: Matrix,
}

/// One matrix of the experts.
struct Matrix {
    factor: Experts,
    form: PackedForm,
    /// Tiles of one expert.
    tiles: usize,
    parts: Vec<Part>,
}

/// Some experts of a matrix.
struct Part {
    id: ShardId,
    first: usize,
    n: usize,
}

impl Packed {
    /// If experts are whole tiles, in forms that kernels can read.
    fn of(
        cx: &mut MethodCompiler<'_>,
        [gate_up, down]: [&str; 2],
        channels: usize,
    ) -> Option<Self> {
        let [decl, down_decl] = [gate_up, down].map(|name| &cx.program.weights()[name]);
        let inner = down_decl.cols();
        let n_experts = decl.rows() / (2 * inner).max(1);
        let whole = inner.is_multiple_of(TILE_ROWS) && channels.is_multiple_of(TILE_ROWS);
        if !whole || n_experts > MOST_EXPERTS {
            return None;
        }
        let forms = [decl, down_decl].map(|decl| PackedForm::of(decl, cx.options.precision));
        let [Some(gate_up_form), Some(down_form)] = forms else { return None };
        Some(Packed {
            n_experts,
            inner,
            gate_up: Matrix::of(cx, Experts::GateUp, gate_up, gate_up_form, 2 * inner)?,
            down: Matrix::of(cx, Experts::Down, down, down_form, channels)?,
        })
    }

    /// The kernels, for all numbers of tokens. `x` is rows, experts, weights.
    fn compile(&self, cx: &mut MethodCompiler<'_>, [x, chosen, shares]: [Value; 3], y: Value) {
        let top_k = chosen.channels;
        let hidden = cx.scratch(x.rows, top_k * self.inner);
        let few = When::rows(x.rows, 1, FEW);
        let uses = [chosen, shares];
        self.gate_up.few(cx, x, uses, hidden, few);
        self.down.few(cx, hidden, uses, y, few);

        let order = cx.scratch(x.rows, top_k);
        let starts = cx.scratch(Dim::Fixed(1), 2 * (self.n_experts + 1));
        let made = cx.scratch(x.rows, top_k * y.channels);
        let len = cx.len(x.rows);
        let most = (LARGE_FROM * self.n_experts / top_k.max(1)).max(FEW);
        for (block, least, most) in [(BLOCKS[0], FEW + 1, most), (BLOCKS[1], most + 1, usize::MAX)]
        {
            if least > most {
                continue;
            }
            let when = When::rows(x.rows, least, most);
            Kernel::new(kernels::experts_group(self.n_experts, block))
                .words(&[len, top_k as u32])
                .read(chosen)
                .write(order)
                .write(starts)
                .when(when)
                .groups(cx, Count::ONE, Work::Rows(x.rows, top_k as u64));
            let grouped = Grouped { n_experts: self.n_experts, block, top_k, order, starts };
            self.gate_up.many(cx, &grouped, x, hidden, when);
            self.down.many(cx, &grouped, hidden, made, when);
        }
        Kernel::over(cx, Shader::new("experts/sum"), y)
            .words(&[top_k as u32])
            .read(made)
            .read(shares)
            .write(y)
            .when(When::rows(x.rows, FEW + 1, usize::MAX))
            .groups(
                cx,
                Count::of(y.rows, y.channels, 256),
                Work::Rows(y.rows, (top_k * y.channels) as u64),
            );
    }
}

/// Uses in the order of their experts.
struct Grouped {
    n_experts: usize,
    block: usize,
    top_k: usize,
    order: Value,
    starts: Value,
}

impl Matrix {
    /// A matrix whose experts have so many rows; `None` if a buffer has no room for one.
    fn of(
        cx: &mut MethodCompiler<'_>,
        factor: Experts,
        name: &str,
        form: PackedForm,
        rows: usize,
    ) -> Option<Self> {
        let tiles = rows / TILE_ROWS;
        let parts = cx.packed_runs(name, form, tiles)?;
        let part = |(id, range): (ShardId, std::ops::Range<usize>)| Part {
            id,
            first: range.start / tiles,
            n: range.len() / tiles,
        };
        Some(Matrix { factor, form, tiles, parts: parts.into_iter().map(part).collect() })
    }

    /// A kernel over one part, up to the matrix.
    fn kernel(
        &self,
        cx: &mut MethodCompiler<'_>,
        shader: Shader,
        part: &Part,
        rows: Value,
        top_k: usize,
    ) -> Kernel {
        let sections = self.sections(part);
        let len = cx.len(rows.rows);
        Kernel::new(shader)
            .words(&[len, self.form.units() as u32, self.tiles as u32])
            .words(&[self.form.steps() as u32, self.form.units_per_step() as u32])
            .words(&[self.form.cols as u32, top_k as u32, part.first as u32, part.n as u32])
            .reads(section(part.id, &sections.codes))
            .reads(section(part.id, &sections.rows))
    }

    fn sections(&self, part: &Part) -> crate::linear::Sections {
        self.form.sections(part.n * self.tiles)
    }

    fn read_scales(&self, kernel: Kernel, part: &Part) -> Kernel {
        match self.form.factors {
            Some(_) => kernel.reads(section(part.id, &self.sections(part).scales)),
            None => kernel,
        }
    }

    const fn variant(&self) -> Variant {
        Variant { form: self.form, outs: 1, bias: false }
    }

    /// Products of one expert with one row.
    const fn products(&self) -> usize {
        self.tiles * TILE_ROWS * self.form.cols
    }

    fn few(
        &self,
        cx: &mut MethodCompiler<'_>,
        x: Value,
        [chosen, shares]: [Value; 2],
        y: Value,
        when: When,
    ) {
        let top_k = chosen.channels;
        let tuning = Tuning { abilities: cx.abilities };
        let (groups, units) = match self.factor {
            Experts::GateUp => (top_k * self.tiles / 2, self.form.units()),
            Experts::Down => (self.tiles, self.form.units() * top_k),
        };
        let invocations = tuning.experts_few(units);
        for (i, part) in self.parts.iter().enumerate() {
            let more = self.factor == Experts::Down && i > 0;
            let shader =
                self.variant().experts_few(self.factor, invocations, tuning.subgroup(), more);
            let kernel = self.kernel(cx, shader, part, x, top_k).read(x).read(chosen).write(y);
            let mut kernel = self.read_scales(kernel, part);
            if self.factor == Experts::Down {
                kernel = kernel.read(shares);
            }
            let work = Work::Rows(x.rows, (top_k * self.products()) as u64);
            kernel.when(when).groups(cx, Count::of(x.rows, groups, 1), work);
        }
    }

    fn many(&self, cx: &mut MethodCompiler<'_>, uses: &Grouped, x: Value, y: Value, when: When) {
        let wide = self.tiles * TILE_ROWS;
        for part in &self.parts {
            let shader = self.variant().experts_many(self.factor, uses.n_experts, uses.block);
            let kernel = self.kernel(cx, shader, part, x, uses.top_k);
            let kernel = kernel.read(x).read(uses.order).read(uses.starts).write(y);
            // Blocks that are not full come on top; who is done takes another.
            let grid = Grid {
                x: Count::of(x.rows, 2 * uses.top_k, uses.block as u64),
                y: Count::of(Dim::Fixed(1), wide.div_ceil(ROWS), 1),
            };
            let work = Work::Rows(x.rows, (uses.top_k * self.products()) as u64);
            self.read_scales(kernel, part).when(when).grid(cx, grid, work);
        }
    }
}

fn section(id: ShardId, range: &std::ops::Range<u64>) -> Binding {
    Binding::Section(id, range.start, range.end - range.start)
}

/// By kernels that need nothing, for any encoding.
fn plain(
    cx: &mut MethodCompiler<'_>,
    [gate_up, down]: [&str; 2],
    [rows, chosen, shares]: [Value; 3],
    y: Value,
) {
    let inner = cx.program.weights()[down].cols();
    let top_k = chosen.channels;
    let hidden = cx.scratch(rows.rows, top_k * inner);
    let len = cx.len(rows.rows);
    for part in plain_parts(cx, gate_up, 2 * inner) {
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
    for (i, part) in plain_parts(cx, down, y.channels).into_iter().enumerate() {
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
struct PlainPart {
    words: [u32; 16],
    first: u32,
    n: u32,
    shard: Binding,
}

/// The parts of a weight whose experts have so many rows each.
fn plain_parts(cx: &mut MethodCompiler<'_>, weight: &str, rows: usize) -> Vec<PlainPart> {
    let matrix = cx.matrix(weight, rows);
    let decl = &cx.program.weights()[weight];
    let shards = cx.shards(matrix).into_iter().enumerate().map(|(shard, range)| PlainPart {
        words: RawLayout::new(decl, range.len()).words(decl),
        first: (range.start / rows) as u32,
        n: (range.len() / rows) as u32,
        shard: Binding::Shard(ShardId { matrix: matrix.0, shard }),
    });
    shards.collect()
}
