//! What goes into a method and what comes out, checked once here for every backend.

use lapidary_program::{Dim, Method, Op, Program, Sym, ValueType, input};

use crate::{Error, LoadOptions, Result};

/// The numbers of one input.
#[derive(Clone, Copy, Debug)]
pub enum FeedData<'a> {
    /// Indices.
    I32(&'a [i32]),
    /// Activations, row after row.
    F32(&'a [f32]),
}

/// One input by name.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// The input's name.
    pub name: &'a str,
    /// Its numbers.
    pub data: FeedData<'a>,
}

/// One output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputTensor {
    /// The output's name.
    pub name: String,
    /// Numbers of one row.
    pub channels: usize,
    /// Row after row.
    pub data: Vec<f32>,
}

/// All outputs of one call; reused from call to call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs {
    tensors: Vec<OutputTensor>,
}

/// The lengths of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// `T`.
    pub tokens: usize,
    /// `R`.
    pub rows: usize,
    /// `S`.
    pub soft: usize,
    /// `P`.
    pub patches: usize,
    /// `F`.
    pub frames: usize,
}

impl<'a> Feed<'a> {
    /// Indices by name.
    pub fn i32(name: &'a str, data: &'a [i32]) -> Self {
        Feed { name, data: FeedData::I32(data) }
    }

    /// Activations by name.
    pub fn f32(name: &'a str, data: &'a [f32]) -> Self {
        Feed { name, data: FeedData::F32(data) }
    }
}

impl Outputs {
    /// An output by name.
    pub fn get(&self, name: &str) -> Option<&OutputTensor> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// All outputs in graph order.
    pub fn tensors(&self) -> &[OutputTensor] {
        &self.tensors
    }

    /// For backends: the storage of output `index`, sized and named; allocates only to grow.
    pub fn prepare(
        &mut self,
        index: usize,
        name: &str,
        rows: usize,
        channels: usize,
    ) -> &mut [f32] {
        if self.tensors.len() <= index {
            self.tensors.resize_with(index + 1, OutputTensor::default);
        }
        let tensor = &mut self.tensors[index];
        if tensor.name != name {
            tensor.name = name.to_string();
        }
        tensor.channels = channels;
        tensor.data.resize(rows * channels, 0.0);
        &mut tensor.data
    }

    /// For backends: the storage of output `index`, which was prepared.
    pub fn data(&mut self, index: usize) -> &mut [f32] {
        &mut self.tensors[index].data
    }

    /// For backends: forgets outputs of an earlier call with another method.
    pub fn truncate(&mut self, n: usize) {
        self.tensors.truncate(n);
    }
}

impl Sizes {
    /// The lengths that room is kept for. A call may ask for more rows than there are slots (all
    /// logits of a prompt).
    pub fn planned(options: &LoadOptions) -> Self {
        let tokens = options.max_chunk.max(options.n_slots) as usize;
        Sizes {
            tokens,
            rows: (options.n_slots as usize).min(tokens),
            soft: tokens,
            patches: options.max_patches as usize,
            frames: options.max_frames as usize,
        }
    }

    /// The value of a symbol.
    pub fn of(&self, sym: Sym) -> usize {
        match sym {
            Sym::Tokens => self.tokens,
            Sym::Rows => self.rows,
            Sym::Soft => self.soft,
            Sym::Patches => self.patches,
            Sym::Frames => self.frames,
        }
    }

    /// A length of this call.
    pub fn len(&self, dim: Dim) -> usize {
        match dim {
            Dim::Fixed(n) => n as usize,
            Dim::Sym(s) => self.of(s),
            Dim::Part { of, by } => self.of(of).div_ceil(by.max(1) as usize),
        }
    }

    /// The length (first dimension) of a value.
    pub fn len_of(&self, t: &ValueType) -> usize {
        t.shape().first().map_or(1, |dim| self.len(*dim))
    }

    fn slot(&mut self, sym: Sym) -> &mut usize {
        match sym {
            Sym::Tokens => &mut self.tokens,
            Sym::Rows => &mut self.rows,
            Sym::Soft => &mut self.soft,
            Sym::Patches => &mut self.patches,
            Sym::Frames => &mut self.frames,
        }
    }
}

/// Matches feeds with a method's inputs and checks every index, so that backends need not.
///
/// Feeds may stand in any order; their data is returned in the order of the graph's inputs.
/// For a method that writes caches, the tokens of each slot must be at consecutive positions.
pub fn bind<'a>(
    program: &Program,
    name: &str,
    feeds: &[Feed<'a>],
    options: &LoadOptions,
) -> Result<(Sizes, Vec<FeedData<'a>>)> {
    let fail = |what: String| Error::Feed { method: name.to_string(), what };
    let method = program.method(name)?;
    let mut sizes = Sizes::default();
    let mut known: [Option<Sym>; 5] = [None; 5];
    let mut bound = Vec::with_capacity(method.graph.inputs.len());
    for wanted in &method.graph.inputs {
        let feed = feeds
            .iter()
            .find(|f| f.name == wanted.name)
            .ok_or_else(|| fail(format!("input `{}` is missing", wanted.name)))?;
        let len = match (&feed.data, &wanted.value_type) {
            (FeedData::I32(d), ValueType::I32(_)) => d.len(),
            (FeedData::F32(d), ValueType::F32(_)) => d.len(),
            _ => return Err(fail(format!("input `{}` is of the wrong type", wanted.name))),
        };
        let channels = wanted.value_type.channels().max(1);
        if !len.is_multiple_of(channels) {
            return Err(fail(format!("input `{}` has {len} numbers", wanted.name)));
        }
        if let Some(Dim::Sym(sym)) = wanted.value_type.shape().first() {
            let n = len / channels;
            if known.contains(&Some(*sym)) {
                if sizes.of(*sym) != n {
                    let have = sizes.of(*sym);
                    return Err(fail(format!("input `{}` has {n} rows, not {have}", wanted.name)));
                }
            } else {
                *sizes.slot(*sym) = n;
                if let Some(free) = known.iter_mut().find(|k| k.is_none()) {
                    *free = Some(*sym);
                }
            }
        }
        bound.push(feed.data);
    }
    let tokens = options.max_chunk.max(options.n_slots);
    for sym in known.into_iter().flatten() {
        let (n, what, limit) = match sym {
            Sym::Tokens => (sizes.tokens, "tokens", tokens),
            Sym::Patches => (sizes.patches, "patches", method.max_chunk),
            Sym::Frames => (sizes.frames, "frames", method.max_chunk),
            Sym::Rows | Sym::Soft => continue,
        };
        if n == 0 || n > limit as usize {
            return Err(fail(format!("{n} {what} in one call, the limit is {limit}")));
        }
    }
    check_lengths(method, sizes).map_err(fail)?;
    check_indices(program, method, &bound, sizes, options).map_err(fail)?;
    Ok((sizes, bound))
}

/// Rows that are pooled come in whole runs.
fn check_lengths(method: &Method, sizes: Sizes) -> std::result::Result<(), String> {
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

/// Every index that an `embed` reads straight from an input is a row of its table.
fn check_rows(
    program: &Program,
    method: &Method,
    bound: &[FeedData<'_>],
) -> std::result::Result<(), String> {
    for node in &method.graph.nodes {
        let (Op::Embed { weight, start, stride, .. }, Some(ids)) = (&node.op, node.inputs.first())
        else {
            continue;
        };
        let Some(FeedData::I32(ids)) = bound.get(ids.index()) else { continue };
        let rows = program.weights().get(weight).and_then(|w| w.shape.first()).copied();
        let rows = i64::try_from(rows.unwrap_or(0)).unwrap_or(i64::MAX);
        let high = (rows - i64::from(*start) + i64::from(*stride) - 1) / i64::from(*stride);
        if let Some(id) = ids.iter().find(|id| !(0..high).contains(&i64::from(**id))) {
            return Err(format!("`{}` has no row for {id}, only 0..{high}", node.name));
        }
    }
    Ok(())
}

fn check_indices(
    program: &Program,
    method: &Method,
    bound: &[FeedData<'_>],
    sizes: Sizes,
    options: &LoadOptions,
) -> std::result::Result<(), String> {
    let get = |name: &str| {
        let i = method.graph.inputs.iter().position(|x| x.name == name)?;
        match bound.get(i) {
            Some(FeedData::I32(d)) => Some(*d),
            _ => None,
        }
    };
    let range = |name: &str, low: i64, high: i64| match get(name) {
        Some(d) => match d.iter().find(|x| !(low..high).contains(&i64::from(**x))) {
            Some(x) => Err(format!("{name} holds {x}, outside {low}..{high}")),
            None => Ok(()),
        },
        None => Ok(()),
    };
    range(input::TOKENS, 0, i64::from(program.metadata().vocab_size))?;
    check_rows(program, method, bound)?;
    range(input::SLOTS, 0, i64::from(options.n_slots))?;
    range(input::POSITIONS, 0, i64::from(options.max_context))?;
    range(input::HORIZONS, 0, i64::from(options.max_context))?;
    range(input::ROWS, 0, sizes.tokens as i64)?;
    range(input::SOFT_INDEX, -1, sizes.soft as i64)?;
    let writes = method.graph.nodes.iter().any(|n| matches!(n.op, Op::KvWrite { .. }));
    if !writes {
        return Ok(());
    }
    let (Some(slots), Some(positions)) = (get(input::SLOTS), get(input::POSITIONS)) else {
        return Ok(());
    };
    // A batch of many slots may be longer than a chunk, but no slot's share of it: rings are made
    // for chunks.
    if slots.len() > options.max_chunk as usize {
        let mut counts = vec![0u32; options.n_slots as usize];
        for slot in slots {
            counts[*slot as usize] += 1;
        }
        if let Some(slot) = counts.iter().position(|n| *n > options.max_chunk) {
            let (n, limit) = (counts[slot], options.max_chunk);
            return Err(format!("slot {slot}: {n} tokens in one call, the limit is {limit}"));
        }
    }
    // Tokens of one slot follow each other; the last position of each slot bounds its horizons.
    for (i, (slot, position)) in slots.iter().zip(positions).enumerate() {
        let before = slots[..i].iter().rposition(|s| s == slot);
        if let Some(j) = before
            && positions[j] + 1 != *position
        {
            let was = positions[j];
            return Err(format!("slot {slot}: position {position} follows position {was}"));
        }
    }
    if let Some(horizons) = get(input::HORIZONS) {
        for (slot, horizon) in slots.iter().zip(horizons) {
            let last = slots.iter().rposition(|s| s == slot).map_or(0, |j| positions[j]);
            if *horizon > last {
                return Err(format!("slot {slot}: horizon {horizon} is after position {last}"));
            }
        }
    }
    Ok(())
}
