//! `linear` by the kernel that is best for the weight, the device and the tokens of a call.

use lapidary_backend::Precision;
use lapidary_program::Dim;

use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::linear::kernels::{self, Activations, Gated, Variant};
use crate::linear::{CoopTile, MatvecTile, PackedForm, Sections, TILE_ROWS, Tuning, UNIT};
use crate::shader::Shader;
use crate::step::{Binding, Count, Grid, Value, When, Work};
use crate::weights::{RawLayout, ShardId, Span};

/// `x · Wᵀ (+ b)`.
pub(super) fn linear(
    cx: &mut MethodCompiler<'_>,
    weight: &str,
    bias: Option<&str>,
    x: Value,
    y: Value,
) {
    let decl = &cx.program.weights()[weight];
    match PackedForm::of(decl, cx.options.precision) {
        Some(form) => packed(cx, &[weight], bias, form, x, &[y], None),
        None => plain(cx, weight, bias, x, y),
    }
}

/// A gate after linears.
#[derive(Clone, Copy)]
pub(crate) struct Gate {
    /// What it makes: `gelu_tanh` of the first linear times the other factor.
    pub y: Value,
    /// The other factor: channels of a value from one on, or else the second linear.
    pub up: Option<(Value, u32)>,
}

/// Linears of one form that read the same rows.
pub(crate) fn linears(
    cx: &mut MethodCompiler<'_>,
    weights: &[&str],
    form: PackedForm,
    x: Value,
    ys: &[Value],
    gate: Option<Gate>,
) {
    packed(cx, weights, None, form, x, ys, gate);
    if let Some(Gate { y, up }) = gate {
        // More tokens have made the factors.
        let least = Tuning::few(has_coop(cx, &form)).last().copied().unwrap_or(0) + 1;
        let (up, start) = up.unwrap_or_else(|| (ys[1], 0));
        Kernel::over(cx, Shader::new("gelu_gate"), y)
            .words(&[up.channels as u32, start])
            .read(ys[0])
            .read(up)
            .write(y)
            .when(When::rows(y.rows, least, usize::MAX))
            .elements(cx, y);
    }
}

/// Whether few tokens are multiplied as bytes.
pub(crate) fn takes_bytes(cx: &MethodCompiler<'_>, form: &PackedForm) -> bool {
    let fast = cx.options.precision == Precision::Fast;
    fast && form.factors.is_some() && cx.abilities.packed_dots
}

/// How many tokens are few.
pub(crate) fn most_few(cx: &MethodCompiler<'_>, form: &PackedForm) -> usize {
    Tuning::few(has_coop(cx, form)).last().copied().unwrap_or(0)
}

/// Whether many tokens are multiplied by cooperative matrices.
fn has_coop(cx: &MethodCompiler<'_>, form: &PackedForm) -> bool {
    let tuning = Tuning { abilities: cx.abilities };
    cx.options.precision == Precision::Fast && tuning.has_coop(form)
}

fn packed(
    cx: &mut MethodCompiler<'_>,
    weights: &[&str],
    bias: Option<&str>,
    form: PackedForm,
    x: Value,
    ys: &[Value],
    gate: Option<Gate>,
) {
    let bias = bias.map(|b| cx.vector(b));
    let shards = cx.packed(weights, form);
    let len = cx.len(x.rows);
    let tuning = Tuning { abilities: cx.abilities };
    let bytes = takes_bytes(cx, &form);
    let coop = has_coop(cx, &form);
    let few = Tuning::few(coop);
    let most = few.last().copied().unwrap_or(0);
    let n_tiles = shards.iter().map(|(_, tiles, _)| tiles.len());
    let n_gated = n_gated(cx, gate);
    let shape = MatvecShape { gated: gated(gate), units: form.units(), bytes, n_gated };
    // Calls of fewer tokens have their bytes made by each workgroup.
    let local = |tokens: &&usize| {
        let own = |tiles| shape.activations(&tuning, tiles, **tokens) == Activations::OwnBytes;
        n_tiles.clone().all(own)
    };
    let n_local = few.iter().take_while(local).last().copied().unwrap_or(0);
    let kept = cx.bytes(x).filter(|_| bytes);
    // Who made few enough rows has made their bytes.
    let n_kept = kept.map_or(0, |[rows, _]| rows.most_rows().min(most));
    let n_local = n_local.max(n_kept);
    let made = (bytes && n_local < most).then(|| rows_to_bytes(cx, &form, x, (n_local + 1, most)));
    let prepared = Prepared { bytes, kept, n_kept, n_local, made };
    let halves = if coop { Some(rows_to_halves(cx, &form, x, most + 1)) } else { None };
    for (id, tiles, spans) in shards {
        let sections = form.sections(tiles.len());
        let part = Part { form, id, tiles: tiles.len(), spans, sections, bias, len, x, ys, gate };
        part.few(cx, &tuning, few, &prepared);
        match halves {
            Some(halves) => part.many(cx, &tuning, halves, most + 1),
            None => part.tile(cx, most + 1),
        }
    }
}

/// Rows in bytes, for calls of few tokens.
struct Prepared {
    /// Whether activations become bytes.
    bytes: bool,
    /// By who made the rows, for so many tokens.
    kept: Option<[Value; 2]>,
    n_kept: usize,
    /// Up to so many tokens, and if not kept, each workgroup makes them for itself.
    n_local: usize,
    /// By a kernel of their own, for all others.
    made: Option<[Value; 2]>,
}

impl Prepared {
    fn of(&self, tokens: usize) -> Option<[Value; 2]> {
        if tokens <= self.n_kept { self.kept } else { self.made.filter(|_| tokens > self.n_local) }
    }
}

fn gated(gate: Option<Gate>) -> Gated {
    match gate {
        None => Gated::Not,
        Some(Gate { up: None, .. }) => Gated::Second,
        Some(Gate { up: Some(_), .. }) => Gated::Up,
    }
}

/// What `matvec` depends on besides the tiles of a matrix and the tokens of a call.
#[derive(Clone, Copy)]
struct MatvecShape {
    gated: Gated,
    units: usize,
    /// Whether activations become bytes.
    bytes: bool,
    /// Tokens up to which what a gate makes is kept in bytes.
    n_gated: usize,
}

/// Tokens up to which what a gate makes is kept in bytes.
fn n_gated(cx: &MethodCompiler<'_>, gate: Option<Gate>) -> usize {
    let gate = gate.filter(|gate| gate.up.is_none());
    gate.and_then(|gate| cx.bytes(gate.y)).map_or(0, |[bytes, _]| bytes.most_rows())
}

impl MatvecShape {
    fn tile(&self, tuning: &Tuning<'_>, tiles: usize, tokens: usize) -> MatvecTile {
        if tokens <= self.n_gated {
            return tuning.matvec_unit(self.units);
        }
        let tile = tuning.matvec(tiles, self.units, tokens);
        if self.gated == Gated::Second { MatvecTile { tiles: 2, ..tile } } else { tile }
    }

    fn activations(&self, tuning: &Tuning<'_>, tiles: usize, tokens: usize) -> Activations {
        let tile = self.tile(tuning, tiles, tokens);
        if !self.bytes {
            Activations::Floats
        } else if tuning.makes_bytes(&tile, tiles, self.units, tokens) {
            Activations::OwnBytes
        } else {
            Activations::Bytes
        }
    }
}

/// One buffer of a packed matrix, and what it is multiplied with.
struct Part<'a> {
    form: PackedForm,
    id: ShardId,
    tiles: usize,
    spans: Vec<Span>,
    sections: Sections,
    bias: Option<Binding>,
    len: u32,
    x: Value,
    ys: &'a [Value],
    gate: Option<Gate>,
}

impl Part<'_> {
    /// What kernels depend on that write so many matrices.
    fn variant(&self, outs: usize) -> Variant {
        Variant { form: self.form, outs, bias: self.bias.is_some() }
    }

    fn section(&self, range: &std::ops::Range<u64>) -> Binding {
        Binding::Section(self.id, range.start, range.end - range.start)
    }

    /// `outs` of the kernels' `Params`.
    fn outs(&self) -> [u32; 12] {
        let mut words = [0; 12];
        for (span, words) in self.spans.iter().zip(words.chunks_exact_mut(4)) {
            let channels = self.ys[span.weight].channels;
            let own = [span.at, span.n_rows, span.first, channels];
            words.iter_mut().zip(own).for_each(|(word, n)| *word = n as u32);
        }
        words
    }

    fn write_outs(&self, mut kernel: Kernel) -> Kernel {
        for span in &self.spans {
            kernel = kernel.write(self.ys[span.weight]);
        }
        kernel
    }

    fn read_scales(&self, kernel: Kernel) -> Kernel {
        if self.form.factors.is_some() {
            kernel.reads(self.section(&self.sections.scales))
        } else {
            kernel
        }
    }

    fn read_bias(&self, kernel: Kernel) -> Kernel {
        match self.bias {
            Some(bias) => kernel.reads(bias),
            None => kernel,
        }
    }

    fn work(&self) -> Work {
        Work::Rows(self.x.rows, (self.tiles * TILE_ROWS * self.form.cols) as u64)
    }

    fn when(&self, least: usize, most: usize) -> When {
        When::rows(self.x.rows, least, most)
    }

    /// The kernels for few tokens.
    fn few(
        &self,
        cx: &mut MethodCompiler<'_>,
        tuning: &Tuning<'_>,
        tokens: &[usize],
        rows: &Prepared,
    ) {
        let (units, mut least) = (self.form.units(), 1);
        for &tokens in tokens {
            let gated = gated(self.gate);
            let n_gated = n_gated(cx, self.gate);
            let shape = MatvecShape { gated, units, bytes: rows.bytes, n_gated };
            let tile = shape.tile(tuning, self.tiles, tokens);
            let kept = self.gate.filter(|_| tokens <= n_gated);
            let keep = kept.and_then(|gate| cx.bytes(gate.y));
            let prepared = rows.of(tokens);
            let activations = match prepared {
                Some(_) => Activations::Bytes,
                None if rows.bytes => Activations::OwnBytes,
                None => Activations::Floats,
            };
            let up = self.gate.and_then(|gate| gate.up);
            let slots = tile.invocations / TILE_ROWS;
            let outs = if self.gate.is_some() { 1 } else { self.spans.len() };
            let channels = keep.and(self.gate).map(|gate| gate.y.channels);
            let shader = self.variant(outs).matvec(
                &tile,
                tokens,
                activations,
                gated,
                tuning.subgroup(),
                channels,
            );
            let rounds = units / (slots * tile.unroll);
            let mut kernel = Kernel::new(shader)
                .words(&[self.len, units as u32, self.tiles as u32, rounds as u32])
                .words(&[self.form.steps() as u32, self.form.units_per_step() as u32])
                .words(&[self.form.cols as u32, 0])
                .words(&self.outs())
                .words(&up.map_or([0; 2], |(up, start)| [up.channels as u32, start]))
                .reads(self.section(&self.sections.codes))
                .reads(self.section(&self.sections.rows))
                .read(prepared.map_or(self.x, |[bytes, _]| bytes));
            kernel = match self.gate {
                Some(gate) => kernel.write(gate.y),
                None => self.write_outs(kernel),
            };
            kernel = self.read_scales(kernel);
            if let Some([_, scales]) = prepared {
                kernel = kernel.read(scales);
            }
            if let Some((up, _)) = up {
                kernel = kernel.read(up);
            }
            kernel = keep.into_iter().flatten().fold(kernel, Kernel::write);
            let groups = self.tiles.div_ceil(tile.parts * tile.tiles);
            self.read_bias(kernel).when(self.when(least, tokens)).groups(
                cx,
                Count::of(Dim::Fixed(1), groups, 1),
                self.work(),
            );
            least = tokens + 1;
        }
    }

    /// The kernels for more tokens, by cooperative matrices.
    fn many(
        &self,
        cx: &mut MethodCompiler<'_>,
        tuning: &Tuning<'_>,
        halves: [Value; 2],
        mut least: usize,
    ) {
        let rows = self.tiles * TILE_ROWS;
        for (most, tile) in Tuning::COOP {
            let tile = tile.fitted(&self.form);
            // Sums are split where a call has few tiles; more tokens make more of them.
            let mut from = least;
            for till in [256, 512, 1024, usize::MAX].map(|till: usize| till.min(most)) {
                if from <= till {
                    let split = tuning.split(&tile, &self.form, rows, till);
                    self.coop(cx, &tile, split, halves, (from, till));
                    from = till.saturating_add(1);
                }
            }
            least = most.saturating_add(1);
        }
    }

    fn coop(
        &self,
        cx: &mut MethodCompiler<'_>,
        tile: &CoopTile,
        split: usize,
        [halves, factors]: [Value; 2],
        (least, most): (usize, usize),
    ) {
        let wide = self.tiles * TILE_ROWS;
        let partial = (split > 1).then(|| {
            let rows = if most == usize::MAX { self.x.rows } else { Dim::Fixed(most as u64) };
            cx.scratch(rows, split * wide)
        });
        let shader = match partial {
            Some(_) => Variant { bias: false, ..self.variant(1) }.coop(tile, split, true),
            None => self.variant(self.spans.len()).coop(tile, split, self.is_whole()),
        };
        let units = self.form.units();
        let rounds = units * UNIT / tile.bk / split;
        let mut kernel = Kernel::new(shader)
            .words(&[self.len, units as u32, self.tiles as u32, rounds as u32])
            .words(&[self.form.steps() as u32, self.form.units_per_step() as u32, 0, 0])
            .words(&self.outs())
            .reads(self.section(&self.sections.codes))
            .reads(self.section(&self.sections.rows))
            .read(halves)
            .read(factors);
        kernel = match partial {
            Some(partial) => self.read_scales(kernel.write(partial)),
            None => self.read_bias(self.read_scales(self.write_outs(kernel))),
        };
        let grid = Grid {
            x: Count::tiles(self.x.rows, tile.bm as u64, split),
            y: Count::of(Dim::Fixed(1), wide.div_ceil(tile.bn), 1),
        };
        kernel.when(self.when(least, most)).grid(cx, grid, self.work());
        if let Some(partial) = partial {
            let shader = self.variant(self.spans.len()).join(split);
            let kernel = Kernel::new(shader)
                .words(&[self.len, self.tiles as u32, 0, 0])
                .words(&self.outs())
                .read(partial)
                .reads(self.section(&self.sections.rows));
            self.read_bias(self.write_outs(kernel)).when(self.when(least, most)).groups(
                cx,
                Count::of(self.x.rows, wide, 256),
                Work::Rows(self.x.rows, (wide * split) as u64),
            );
        }
    }

    /// Whether what is made comes in vectors of four.
    fn is_whole(&self) -> bool {
        let of_four = |span: &Span| {
            let channels = self.ys[span.weight].channels;
            [span.n_rows, span.first, channels].iter().all(|n| n.is_multiple_of(4))
        };
        self.bias.is_none() && self.spans.iter().all(of_four)
    }

    /// The kernel for more tokens that needs nothing.
    fn tile(&self, cx: &mut MethodCompiler<'_>, least: usize) {
        let kernel = Kernel::new(self.variant(self.spans.len()).tile())
            .words(&[self.len, self.form.units() as u32, self.tiles as u32])
            .words(&[self.form.steps() as u32, self.form.units_per_step() as u32])
            .words(&[self.form.cols as u32, 0, 0])
            .words(&self.outs())
            .reads(self.section(&self.sections.codes))
            .reads(self.section(&self.sections.rows))
            .read(self.x);
        let kernel = self.read_bias(self.read_scales(self.write_outs(kernel)));
        let grid = Grid {
            x: Count::tiles(self.x.rows, 64, 1),
            y: Count::of(Dim::Fixed(1), (self.tiles * TILE_ROWS).div_ceil(64), 1),
        };
        kernel.when(self.when(least, usize::MAX)).grid(cx, grid, self.work());
    }
}

/// Rows in two bytes a number, with their scales, for few tokens.
fn rows_to_bytes(
    cx: &mut MethodCompiler<'_>,
    form: &PackedForm,
    x: Value,
    (least, most): (usize, usize),
) -> [Value; 2] {
    let units = form.units();
    let rows = Dim::Fixed(most as u64);
    let bytes = cx.scratch(rows, units.div_ceil(4) * 64);
    let scales = cx.scratch(rows, units * 4);
    let len = cx.len(x.rows);
    Kernel::new(kernels::rows_to_bytes())
        .words(&[len, form.cols as u32, units as u32])
        .read(x)
        .write(bytes)
        .write(scales)
        .when(When::rows(x.rows, least, most))
        .groups(cx, Count::of(x.rows, units.div_ceil(32), 1), Work::Rows(x.rows, form.cols as u64));
    [bytes, scales]
}

/// Rows in `f16`, with a factor for each, for many tokens.
fn rows_to_halves(
    cx: &mut MethodCompiler<'_>,
    form: &PackedForm,
    x: Value,
    least: usize,
) -> [Value; 2] {
    let units = form.units();
    let halves = cx.scratch(x.rows, units * UNIT / 2);
    let factors = cx.scratch(x.rows, 1);
    let len = cx.len(x.rows);
    Kernel::new(kernels::rows_to_halves())
        .words(&[len, form.cols as u32, units as u32])
        .read(x)
        .write(halves)
        .write(factors)
        .when(When::rows(x.rows, least, usize::MAX))
        .groups(cx, Count::of(x.rows, 1, 1), Work::Rows(x.rows, form.cols as u64));
    [halves, factors]
}

/// Rows of `y` that a workgroup makes: `TILE` in the kernel.
const TILE: u64 = 8;

/// `x · Wᵀ (+ b)` by the kernel that needs nothing, for any encoding, in `f32`.
pub(super) fn plain(
    cx: &mut MethodCompiler<'_>,
    weight: &str,
    bias: Option<&str>,
    x: Value,
    y: Value,
) {
    let bias = bias.map(|b| cx.vector(b));
    let matrix = cx.matrix(weight, 1);
    let decl = &cx.program.weights()[weight];
    let len = cx.len(y.rows);
    for (shard, rows) in cx.shards(matrix).into_iter().enumerate() {
        let layout = RawLayout::new(decl, rows.len());
        let shard = Binding::Shard(ShardId { matrix: matrix.0, shard });
        let mut kernel = Kernel::new(Shader::new("linear_plain").with("BIAS", bias.is_some()))
            .words(&layout.words(decl))
            .words(&[len, rows.len() as u32, rows.start as u32, y.channels as u32])
            .read(x)
            .reads(shard)
            .write(y);
        if let Some(bias) = bias {
            kernel = kernel.reads(bias);
        }
        let work = Work::Rows(y.rows, (rows.len() * decl.cols()) as u64);
        kernel.groups(cx, Count::tiles(y.rows, TILE, rows.len()), work);
    }
}
