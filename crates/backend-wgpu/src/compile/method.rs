//! Compiles one method: values get buffers, nodes get kernels.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use lapidary_backend::LoadOptions;
use lapidary_program::{Dim, Method, Node, Program, ValueId, ValueType};

use super::{Compiled, Fusing, can_window, last_uses, lengths, makes_asked, order};
use crate::adapter::Abilities;
use crate::cache::CacheShape;
use crate::derived::{Derived, Form};
use crate::fuse::{Fuser, Unit};
use crate::host::HostFeed;
use crate::linear::{PackedForm, Tuning};
use crate::ops;
use crate::step::{Bound, CompiledMethod, Dispatch, FeedSpec, Output, Place, Value};
use crate::weights::{MatrixId, ShardId, Span};

/// What one method's nodes are compiled with.
pub(crate) struct MethodCompiler<'a> {
    pub program: &'a Program,
    pub method: &'a Method,
    pub options: &'a LoadOptions,
    pub abilities: &'a Abilities,
    pub(super) out: &'a mut Compiled,
    /// Where each value is; `None` before it is made.
    pub(super) values: Vec<Option<Value>>,
    /// The first value that each node makes.
    pub(super) firsts: Vec<ValueId>,
    /// The last step that reads each value; outputs are read at the end.
    last_use: Vec<usize>,
    pub(super) free: Vec<usize>,
    feeds: Vec<FeedSpec>,
    dims: Vec<Dim>,
    pub(super) written: HashSet<&'a str>,
    /// Values that are kept in bytes beside, by their buffers.
    bytes: HashMap<usize, [Value; 2]>,
    /// Of the node that is being compiled.
    pub(super) dispatches: Vec<Dispatch>,
    pub(super) scratch: Vec<usize>,
}

impl<'a> MethodCompiler<'a> {
    pub(super) fn new(
        program: &'a Program,
        method: &'a Method,
        options: &'a LoadOptions,
        abilities: &'a Abilities,
        out: &'a mut Compiled,
    ) -> Self {
        let mut values = vec![None; method.types().len()];
        let mut feeds = Vec::new();
        for (i, input) in method.graph.inputs.iter().enumerate() {
            let (rows, channels) = lengths(&input.value_type);
            feeds.push(FeedSpec { rows, channels, source: HostFeed::Input(i) });
            values[i] = Some(Value { place: Place::Feed(i), rows, channels });
        }
        MethodCompiler {
            program,
            method,
            options,
            abilities,
            // Methods do not run at the same time: each may use all buffers.
            free: (0..out.room.buffers.len()).collect(),
            out,
            values,
            firsts: method.graph.first_outputs().0,
            last_use: Vec::new(),
            feeds,
            dims: Vec::new(),
            written: HashSet::new(),
            bytes: HashMap::new(),
            dispatches: Vec::new(),
            scratch: Vec::new(),
        }
    }

    pub(super) fn compile(mut self, fusing: Fusing) -> CompiledMethod {
        let windows = can_window(self.method);
        let order = order(self.method, windows);
        let wanted = &self.out.weights;
        let fuser = Fuser {
            program: self.program,
            method: self.method,
            options: self.options,
            wanted,
            abilities: self.abilities,
        };
        let units = match fusing {
            Fusing::On => fuser.fused(&order),
            Fusing::Off => fuser.shown(&order),
        };
        let is_once = |unit: &&Unit| unit.is(|node| !(windows && makes_asked(self.method, node)));
        let n_once = units.iter().take_while(is_once).count();
        self.last_use = last_uses(self.method, &units, n_once);
        let steps = units.iter().enumerate().map(|(at, unit)| self.unit(at, unit)).collect();
        let outputs = self.method.graph.outputs.iter().map(|o| Output {
            name: o.name.clone(),
            value: self.value(o.value),
            indices: matches!(self.method.types()[o.value.index()], ValueType::I32(_)),
        });
        let outputs = outputs.collect();
        CompiledMethod { feeds: self.feeds, steps, n_once, outputs, dims: self.dims, windows }
    }

    pub(super) fn value(&self, id: ValueId) -> Value {
        self.values[id.index()].expect("validation has values made before they are read")
    }

    /// Gives back the buffers of values that step `at` was the last to need.
    pub(super) fn release(&mut self, at: usize, values: impl Iterator<Item = usize>) {
        let mut done = HashSet::new();
        for v in values {
            if self.last_use[v] > at || !done.insert(v) {
                continue;
            }
            if let Some(Place::Buffer(buffer)) = self.values[v].map(|value| value.place) {
                self.free.push(buffer);
                for value in self.bytes.remove(&buffer).into_iter().flatten() {
                    self.free.extend(value.buffer());
                }
            }
        }
    }

    /// Room for so many rows of a value in bytes beside, or for all that are few, if a linear will
    /// read it so.
    pub(super) fn keep_bytes(&mut self, v: usize, rows: Option<usize>) {
        let Some(Value { place: Place::Buffer(buffer), channels, .. }) = self.values[v] else {
            return;
        };
        let reads = |node: &&Node| node.inputs.iter().any(|id| id.index() == v);
        let forms = self.method.graph.nodes.iter().filter(reads).filter_map(|node| {
            let weight = crate::fuse::weight_of(node)?;
            PackedForm::of(&self.program.weights()[weight], self.options.precision)
        });
        let mut forms = forms.filter(|form| ops::takes_bytes(self, form));
        let fits = Tuning { abilities: self.abilities }.keeps_bytes(channels);
        let Some(form) = forms.next().filter(|_| fits) else { return };
        let most = Dim::Fixed(rows.unwrap_or_else(|| ops::most_few(self, &form)) as u64);
        let units = form.units();
        let pair = [self.take((most, units.div_ceil(4) * 64)), self.take((most, units * 4))];
        self.bytes.insert(buffer, pair);
    }

    /// A value in bytes, with scales, if it is kept so.
    pub(crate) fn bytes(&self, x: Value) -> Option<[Value; 2]> {
        self.bytes.get(&x.buffer()?).copied()
    }

    /// A free buffer: the smallest that is large enough, or else the largest, made larger.
    pub(super) fn take(&mut self, (rows, channels): (Dim, usize)) -> Value {
        let sizes = self.out.planned;
        let need = sizes.len(rows) * channels;
        let room = &mut self.out.room;
        let fit = |b: usize| {
            let len = room.len(b, sizes);
            if len >= need { (0, len) } else { (1, usize::MAX - len) }
        };
        let best = (0..self.free.len()).min_by_key(|at| fit(self.free[*at]));
        let buffer = match best {
            Some(at) => self.free.swap_remove(at),
            None => {
                room.buffers.push(Vec::new());
                room.buffers.len() - 1
            }
        };
        if !room.buffers[buffer].contains(&(rows, channels)) {
            room.buffers[buffer].push((rows, channels));
        }
        Value { place: Place::Buffer(buffer), rows, channels }
    }

    /// Room for what the host makes; what was asked for before is shared.
    pub(crate) fn feed(&mut self, (rows, channels): (Dim, usize), source: HostFeed) -> Value {
        let known = self.feeds.iter().position(|feed| feed.source == source);
        let feed = known.unwrap_or_else(|| {
            self.feeds.push(FeedSpec { rows, channels, source });
            self.feeds.len() - 1
        });
        Value { place: Place::Feed(feed), rows, channels }
    }

    /// Room that the node being compiled needs besides its outputs.
    pub(crate) fn scratch(&mut self, rows: Dim, channels: usize) -> Value {
        let value = self.take((rows, channels));
        if let Place::Buffer(buffer) = value.place {
            self.scratch.push(buffer);
        }
        value
    }

    /// The number under which kernels know a length.
    pub(crate) fn len(&mut self, rows: Dim) -> u32 {
        let known = self.dims.iter().position(|d| *d == rows);
        known.unwrap_or_else(|| {
            self.dims.push(rows);
            self.dims.len() - 1
        }) as u32
    }

    pub(crate) fn push(&mut self, dispatch: Dispatch) {
        self.dispatches.push(dispatch);
    }

    /// A small weight.
    pub(crate) fn vector(&mut self, name: &str) -> Bound {
        Bound::Vector(self.out.weights.vector(Derived::plain(name)))
    }

    /// What is made of a small weight.
    pub(crate) fn derived(&mut self, name: &str, form: Form) -> Bound {
        Bound::Vector(self.out.weights.vector(Derived { weight: name.to_string(), form }))
    }

    /// A matrix whose parts hold whole runs of `unit` rows.
    pub(crate) fn matrix(&mut self, name: &str, unit: usize) -> MatrixId {
        self.out.weights.matrix(self.program, name, unit)
    }

    /// Packed matrices that stand together, and the weights in each of its parts.
    pub(crate) fn packed(
        &mut self,
        names: &[&str],
        form: PackedForm,
    ) -> Vec<(ShardId, Range<usize>, Vec<Span>)> {
        let id = self.out.weights.packed(self.program, names, form);
        let shards = self.shards(id).into_iter().enumerate().map(|(shard, tiles)| {
            let id = ShardId { matrix: id.0, shard };
            (id, tiles, self.out.weights.spans(self.program, id))
        });
        shards.collect()
    }

    /// The rows of each part of a matrix.
    pub(crate) fn shards(&self, id: MatrixId) -> Vec<Range<usize>> {
        self.out.weights.shards(id).to_vec()
    }

    /// A cache by its name.
    pub(crate) fn cache(&self, state: &str) -> (usize, CacheShape) {
        let mut states = self.program.states().iter();
        let i = states.position(|s| s.name == state).expect("validation knows the state");
        (i, self.out.caches[i])
    }

    /// Whether a step before has written a cache.
    pub(crate) fn is_written(&self, state: &str) -> bool {
        self.written.contains(state)
    }
}
