//! Matches a call with its method and checks every index, once, for all backends.

use lapidary_program::{Dim, Method, Op, Program, Sym, ValueType, input};

use crate::call::{Call, Feed, FeedData, Span, TicketRows, Want};
use crate::pages::{PAGE, PageId, PageTable, pages_for};
use crate::sizes::Sizes;
use crate::{Error, LoadOptions, Result};

/// The numbers of one input that a method takes.
#[derive(Clone, Copy, Debug)]
pub enum Fed<'a> {
    /// Indices.
    I32(&'a [i32]),
    /// Activations, row after row.
    F32(&'a [f32]),
    /// What an earlier call of this engine made.
    Of(TicketRows<'a>),
}

/// A call whose every index was checked: engines need not look again.
#[derive(Clone, Debug)]
pub struct Bound<'a> {
    /// Its lengths.
    pub sizes: Sizes,
    /// Its feeds, in the order of the graph's inputs.
    pub feeds: Vec<Fed<'a>>,
    /// Where its tokens stand.
    pub spans: &'a [Span<'a>],
    /// `[T]` the span of each token; empty for a method without positions.
    pub sequences: Vec<u32>,
    /// `[T]` the position of each token; empty for a method without positions.
    pub positions: Vec<i32>,
    /// `[T]` the last position that each token sees in a block, at least its own; empty for a
    /// method without positions.
    pub horizons: Vec<i32>,
}

type Check<T> = std::result::Result<T, String>;

/// Checks a call. What was drawn or kept by an earlier call ([`FeedData::Of`]) is taken to be there:
/// engines check that themselves, and that drawn tokens feed nothing but `tokens`.
pub fn bind<'a>(program: &Program, call: &Call<'a>, options: &LoadOptions) -> Result<Bound<'a>> {
    let fail = |what: String| Error::Feed { method: call.method.to_string(), what };
    if call.is_stopped() {
        return Err(Error::Stopped);
    }
    let method = program.method(call.method)?;
    let mut sizes = Sizes::default();
    let feeds = match_feeds(method, call.feeds, &mut sizes).map_err(fail)?;
    check_sizes(method, sizes, options).map_err(fail)?;
    check_lengths(method, sizes).map_err(fail)?;
    check_indices(program, method, &feeds, sizes).map_err(fail)?;
    check_wants(method, call).map_err(fail)?;
    let mut bound = Bound {
        sizes,
        feeds,
        spans: call.spans,
        sequences: Vec::new(),
        positions: Vec::new(),
        horizons: Vec::new(),
    };
    if has_positions(method) {
        place(&mut bound, program, method, call, options).map_err(fail)?;
    } else if !call.spans.is_empty() {
        return Err(fail("its tokens stand at no positions, but spans were given".into()));
    }
    Ok(bound)
}

/// Whether a method depends on where its tokens stand.
fn has_positions(method: &Method) -> bool {
    let by_position =
        |op: &Op| matches!(op, Op::Rope(_) | Op::KvWrite { .. } | Op::Attention { .. });
    method.graph.nodes.iter().any(|node| by_position(&node.op))
}

fn match_feeds<'a>(method: &Method, feeds: &[Feed<'a>], sizes: &mut Sizes) -> Check<Vec<Fed<'a>>> {
    let mut known: Vec<Sym> = Vec::with_capacity(5);
    let mut bound = Vec::with_capacity(method.graph.inputs.len());
    for wanted in &method.graph.inputs {
        let feed = feeds
            .iter()
            .find(|f| f.name == wanted.name)
            .ok_or_else(|| format!("input `{}` is missing", wanted.name))?;
        let channels = wanted.value_type.channels().max(1);
        let (fed, numbers) = match (feed.data, &wanted.value_type) {
            (FeedData::I32(d), ValueType::I32(_)) => (Fed::I32(d), d.len()),
            (FeedData::F32(d), ValueType::F32(_)) => (Fed::F32(d), d.len()),
            (FeedData::Of(rows), _) => (Fed::Of(rows), rows.rows.len() * channels),
            _ => return Err(format!("input `{}` is of the wrong type", wanted.name)),
        };
        if matches!(fed, Fed::Of(_))
            && matches!(wanted.value_type, ValueType::I32(_))
            && wanted.name != input::TOKENS
        {
            return Err(format!("input `{}` can't be drawn by an earlier call", wanted.name));
        }
        if !numbers.is_multiple_of(channels) {
            return Err(format!("input `{}` has {numbers} numbers", wanted.name));
        }
        if let Some(Dim::Sym(sym)) = wanted.value_type.shape().first() {
            let n = numbers / channels;
            if !known.contains(sym) {
                *sizes.of_mut(*sym) = n;
                known.push(*sym);
            } else if sizes.of(*sym) != n {
                let have = sizes.of(*sym);
                return Err(format!("input `{}` has {n} rows, not {have}", wanted.name));
            }
        }
        bound.push(fed);
    }
    Ok(bound)
}

fn check_sizes(method: &Method, sizes: Sizes, options: &LoadOptions) -> Check<()> {
    let takes = |sym: Sym| {
        let inputs = method.graph.inputs.iter();
        inputs.into_iter().any(|i| i.value_type.shape().first() == Some(&Dim::Sym(sym)))
    };
    let limits = [
        (Sym::Tokens, "tokens", options.limits.tokens),
        (Sym::Patches, "patches", method.max_chunk),
        (Sym::Frames, "frames", method.max_chunk),
    ];
    for (sym, what, limit) in limits.into_iter().filter(|(sym, ..)| takes(*sym)) {
        let n = sizes.of(sym);
        if n == 0 || n > limit as usize {
            return Err(format!("{n} {what} in one call, the limit is {limit}"));
        }
    }
    Ok(())
}

/// Rows that are pooled come in whole runs.
fn check_lengths(method: &Method, sizes: Sizes) -> Check<()> {
    for node in &method.graph.nodes {
        let (Op::PoolRows { size }, [pooled]) = (&node.op, node.inputs.as_slice()) else {
            continue;
        };
        let n = sizes.len_of(&method.types()[pooled.index()]);
        if !n.is_multiple_of(*size as usize) {
            return Err(format!("{n} rows do not pool by {size}"));
        }
    }
    Ok(())
}

fn check_indices(program: &Program, method: &Method, feeds: &[Fed<'_>], sizes: Sizes) -> Check<()> {
    let range = |name: &str, low: i64, high: i64| {
        let i = method.graph.inputs.iter().position(|x| x.name == name);
        let Some(Fed::I32(d)) = i.and_then(|i| feeds.get(i)) else { return Ok(()) };
        match d.iter().find(|x| !(low..high).contains(&i64::from(**x))) {
            Some(x) => Err(format!("{name} holds {x}, outside {low}..{high}")),
            None => Ok(()),
        }
    };
    range(input::TOKENS, 0, i64::from(program.metadata().vocab_size))?;
    range(input::ROWS, 0, sizes.tokens as i64)?;
    range(input::SOFT_INDEX, -1, sizes.soft as i64)?;
    // Validation has every table of a token's own rows as long as the vocabulary.
    for node in &method.graph.nodes {
        let (Op::Embed { weight, start, stride, .. }, Some(ids)) = (&node.op, node.inputs.first())
        else {
            continue;
        };
        let Some(Fed::I32(ids)) = feeds.get(ids.index()) else { continue };
        let rows = program.weights().get(weight).and_then(|w| w.shape.first()).copied();
        let rows = i64::try_from(rows.unwrap_or(0)).unwrap_or(i64::MAX);
        let high = (rows - i64::from(*start) + i64::from(*stride) - 1) / i64::from(*stride);
        if let Some(id) = ids.iter().find(|id| !(0..high).contains(&i64::from(**id))) {
            return Err(format!("`{}` has no row for {id}, only 0..{high}", node.name));
        }
    }
    Ok(())
}

fn check_wants(method: &Method, call: &Call<'_>) -> Check<()> {
    for wanted in call.wants {
        let name = wanted.output;
        if !method.graph.outputs.iter().any(|out| out.name == name) {
            return Err(format!("it has no output `{name}`"));
        }
        let top = match wanted.want {
            Want::TopK(top) => top,
            Want::Draw(draw) => draw.top,
            Want::Skip | Want::Whole | Want::Keep => continue,
        };
        if top.k == 0 {
            return Err(format!("0 numbers of each row of `{name}` were asked for"));
        }
    }
    Ok(())
}

/// Finds where each token stands, and that its sequence holds what it sees and writes.
fn place(
    bound: &mut Bound<'_>,
    program: &Program,
    method: &Method,
    call: &Call<'_>,
    options: &LoadOptions,
) -> Check<()> {
    let n: u64 = call.spans.iter().map(|s| u64::from(s.len)).sum();
    if n != bound.sizes.tokens as u64 {
        return Err(format!("{} tokens, but spans for {n}", bound.sizes.tokens));
    }
    if !call.horizons.is_empty() && call.horizons.len() != bound.sizes.tokens {
        return Err(format!("{} tokens, {} horizons", bound.sizes.tokens, call.horizons.len()));
    }
    for (i, span) in call.spans.iter().enumerate() {
        let (len, limit) = (span.len, options.limits.chunk);
        if len == 0 || len > limit {
            return Err(format!("span {i}: {len} tokens in one call, the limit is {limit}"));
        }
        let end = u64::from(span.start) + u64::from(len);
        if end > u64::from(options.max_context) {
            let max = options.max_context;
            return Err(format!("span {i}: position {} is outside 0..{max}", end - 1));
        }
        bound.sequences.extend((0..len).map(|_| i as u32));
        bound.positions.extend((0..len).map(|t| (span.start + t) as i32));
    }
    bound.horizons.extend_from_slice(&bound.positions);
    for (t, horizon) in call.horizons.iter().enumerate() {
        let span = &call.spans[bound.sequences[t] as usize];
        let last = span.start + span.len - 1;
        if *horizon > last {
            return Err(format!("token {t}: horizon {horizon} is after position {last}"));
        }
        bound.horizons[t] = bound.horizons[t].max(*horizon as i32);
    }
    check_tables(program, method, call.spans, options)
}

/// Every page that is read or written is in its table and in the pool, and a page that one span
/// writes belongs to it alone: spans run side by side, so that another that read it would find some
/// of its keys and not others.
fn check_tables(
    program: &Program,
    method: &Method,
    spans: &[Span<'_>],
    options: &LoadOptions,
) -> Check<()> {
    for (g, group) in program.kv_groups().iter().enumerate() {
        let Some(touch) = Touched::of(program, method, &group.states) else { continue };
        let mut written: Vec<Written> = Vec::new();
        for (i, span) in spans.iter().enumerate() {
            let Some(table) = span.tables.get(g) else {
                return Err(format!("span {i}: there is no table for KV group {g}"));
            };
            let pool = options.pages_of(g);
            if let Some(page) = table.pages.iter().find(|p| p.index() >= pool) {
                return Err(format!("span {i}: page {} of a pool of {pool}", page.0));
            }
            let (first, end) = touch.positions(span);
            if first >= end {
                continue;
            }
            if table.find(first).is_none() || table.find(end - 1).is_none() {
                return Err(format!(
                    "span {i}: positions {first}..{end} are not all held in KV group {g}"
                ));
            }
            if touch.writes {
                let (start, end) = (span.start as usize, span.start as usize + span.len as usize);
                let pages = pages_of(table, start, end);
                written.extend(pages.iter().map(|page| Written { page: *page, span: i }));
            }
        }
        if spans.len() > 1 {
            check_alone(&mut written, spans, g, &touch)?;
        }
    }
    Ok(())
}

/// A page that a span writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Written {
    page: PageId,
    span: usize,
}

/// The pages that hold a range of positions that is held.
fn pages_of<'a>(table: &PageTable<'a>, start: usize, end: usize) -> &'a [PageId] {
    let first = table.first as usize;
    let range = (start / PAGE).saturating_sub(first)..pages_for(end).saturating_sub(first);
    table.pages.get(range).unwrap_or_default()
}

/// Fails if two spans write one page, or one reads what another writes.
fn check_alone(
    written: &mut [Written],
    spans: &[Span<'_>],
    group: usize,
    touch: &Touched,
) -> Check<()> {
    written.sort_unstable();
    let same = |[a, b]: &&[Written; 2]| a.page == b.page;
    if let Some([Written { page, .. }, _]) = written.array_windows::<2>().find(same) {
        return Err(format!("two spans write page {} of KV group {group}", page.0));
    }
    if !touch.reads || written.is_empty() {
        return Ok(());
    }
    for (i, span) in spans.iter().enumerate() {
        let (first, end) = touch.positions(span);
        let Some(table) = span.tables.get(group).filter(|_| first < end) else { continue };
        for page in pages_of(table, first, end) {
            let Ok(at) = written.binary_search_by_key(page, |w| w.page) else { continue };
            if written[at].span != i {
                return Err(format!(
                    "span {i} reads page {} of KV group {group}, which span {} writes",
                    page.0, written[at].span
                ));
            }
        }
    }
    Ok(())
}

/// What a method does with a group of caches.
struct Touched {
    writes: bool,
    /// The widest window of its readers; `None` for all.
    window: Option<u32>,
    /// Whether any reader sees the key at its own position.
    own_key: bool,
    reads: bool,
}

impl Touched {
    fn of(program: &Program, method: &Method, states: &[usize]) -> Option<Self> {
        let has = |name: &str| states.iter().any(|s| program.states()[*s].name == name);
        let mut touched = Touched { writes: false, window: Some(0), own_key: false, reads: false };
        for node in &method.graph.nodes {
            match &node.op {
                Op::KvWrite { state } if has(state) => touched.writes = true,
                Op::Attention { state, spec } if has(state) => {
                    touched.reads = true;
                    touched.own_key |= spec.own_key;
                    touched.window = match (touched.window, spec.window) {
                        (Some(a), Some(b)) => Some(a.max(b)),
                        _ => None,
                    };
                }
                _ => {}
            }
        }
        (touched.writes || touched.reads).then_some(touched)
    }

    /// The positions that a span reads or writes.
    fn positions(&self, span: &Span<'_>) -> (usize, usize) {
        let (start, end) = (span.start as usize, span.start as usize + span.len as usize);
        let first = match self.window {
            _ if !self.reads => start,
            Some(window) => (start + 1).saturating_sub(window as usize).min(start),
            None => 0,
        };
        if self.writes || self.own_key { (first, end) } else { (first, end - 1) }
    }
}
