//! Compiles one method: values get buffers, nodes get kernels.

use std::collections::HashMap;
use std::ops::Range;

use lapidary_backend::LoadOptions;
use lapidary_backend_kit::{Derived, Form, Liveness, Purposes};
use lapidary_program::{Dim, Method, Node, Program, ValueId, ValueType};

use super::{Compiled, Fusing, Tables, can_window, lengths, makes_asked, order};
use crate::adapter::Abilities;
use crate::cache::CacheShape;
use crate::fuse::{Fuser, Unit};
use crate::host::{HostFeed, PLACE_WORDS, RULE_WORDS};
use crate::linear::{PackedForm, Tuning};
use crate::ops;
use crate::step::{
    Binding, CompiledMethod, Dispatch, FeedRows, FeedSpec, Output, Place, Value, is_asked,
};
use crate::weights::{MatrixId, ShardId, Span, Vector};

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
    /// Which values are needed until when.
    live: Option<Liveness>,
    feeds: Vec<FeedSpec>,
    dims: Vec<Dim>,
    /// What each node is for.
    pub(super) purposes: Vec<Purposes>,
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
        out.arena.free_all();
        let mut values = vec![None; method.types().len()];
        let mut feeds = Vec::new();
        for (i, input) in method.graph.inputs.iter().enumerate() {
            let (rows, channels) = lengths(&input.value_type);
            let source = HostFeed::Input(i);
            feeds.push(FeedSpec { rows: FeedRows::Of(rows), channels, source });
            values[i] = Some(Value { place: Place::Feed(i), rows, channels });
        }
        MethodCompiler {
            program,
            method,
            options,
            abilities,
            out,
            values,
            firsts: method.graph.first_outputs().0,
            live: None,
            feeds,
            dims: Vec::new(),
            purposes: Purposes::of(method),
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
        let nodes: Vec<Vec<usize>> = units.iter().map(Unit::nodes).collect();
        // What every window of asked rows reads again is needed to the end.
        let is_again = |at: usize, value: usize| {
            at >= n_once && !is_asked(lengths(&self.method.types()[value]).0)
        };
        self.live = Some(Liveness::of_steps(self.method, &nodes, is_again));
        let steps = units.iter().enumerate().map(|(at, unit)| self.unit(at, unit)).collect();
        let outputs = self.method.graph.outputs.iter().map(|o| Output {
            name: o.name.clone(),
            value: self.value(o.value),
            indices: matches!(self.method.types()[o.value.index()], ValueType::I32(_)),
        });
        let outputs: Vec<Output> = outputs.collect();
        for (output, out) in outputs.iter().enumerate().filter(|(_, out)| out.is_drawn_from()) {
            self.feed((out.value.rows, RULE_WORDS), HostFeed::Rules { output });
        }
        CompiledMethod { feeds: self.feeds, steps, n_once, outputs, dims: self.dims, windows }
    }

    pub(super) fn value(&self, id: ValueId) -> Value {
        self.values[id.index()].expect("validation has values made before they are read")
    }

    /// Gives back the buffers of values that step `at` was the last to need.
    pub(super) fn release(&mut self, at: usize, values: impl Iterator<Item = usize>) {
        let ended = self.live.as_ref().map_or_else(Vec::new, |live| live.ended(at, values));
        for v in ended {
            if let Some(Place::Buffer(buffer)) = self.values[v].map(|value| value.place) {
                self.out.arena.give_back(buffer);
                for value in self.bytes.remove(&buffer).into_iter().flatten() {
                    value.buffer().into_iter().for_each(|b| self.out.arena.give_back(b));
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

    /// A free buffer.
    pub(super) fn take(&mut self, (rows, channels): (Dim, usize)) -> Value {
        let place = Place::Buffer(self.out.arena.take(rows, channels));
        Value { place, rows, channels }
    }

    /// Room for what the host makes; what was asked for before is shared.
    pub(crate) fn feed(&mut self, (rows, channels): (Dim, usize), source: HostFeed) -> Value {
        let place = self.feed_of(FeedSpec { rows: FeedRows::Of(rows), channels, source });
        Value { place, rows, channels }
    }

    fn feed_of(&mut self, spec: FeedSpec) -> Place {
        let known = self.feeds.iter().position(|feed| feed.source == spec.source);
        Place::Feed(known.unwrap_or_else(|| {
            self.feeds.push(spec);
            self.feeds.len() - 1
        }))
    }

    /// Where each of some rows of tokens stands, as a cache needs it.
    pub(crate) fn places(&mut self, cache: &CacheShape, rows: Dim) -> Value {
        self.feed((rows, PLACE_WORDS), HostFeed::Places { group: cache.group })
    }

    /// The pages of each span, as a cache needs them.
    pub(crate) fn pages(&mut self, cache: &CacheShape) -> Binding {
        let group = cache.group;
        let (rows, channels) = (FeedRows::Spans, self.out.groups[group].stride);
        let source = HostFeed::Pages { group };
        Binding::Value(self.feed_of(FeedSpec { rows, channels, source }))
    }

    /// Whether rows of tables are gathered on the device.
    pub(super) fn has_tables(&self) -> bool {
        self.out.tables == Tables::Device
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
    pub(crate) fn vector(&mut self, name: &str) -> Binding {
        self.derived(name, Form::Plain)
    }

    /// What is made of a small weight.
    pub(crate) fn derived(&mut self, name: &str, form: Form) -> Binding {
        Binding::Vector(self.out.weights.vector(Vector::Derived(Derived::new(name, form))))
    }

    /// A table of token ids.
    pub(crate) fn token_ids(&mut self, name: &str) -> Binding {
        Binding::Vector(self.out.weights.vector(Vector::TokenIds(name.to_string())))
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
        let id = self.out.weights.packed(self.program, names, form, 1);
        let parts = self.packed_parts(id).into_iter();
        parts.map(|(id, tiles)| (id, tiles, self.out.weights.spans(self.program, id))).collect()
    }

    /// A packed matrix whose parts hold whole runs of `unit` tiles, and the tiles of each; `None` if a
    /// buffer has no room for one.
    pub(crate) fn packed_runs(
        &mut self,
        name: &str,
        form: PackedForm,
        unit: usize,
    ) -> Option<Vec<(ShardId, Range<usize>)>> {
        if self.out.weights.fitting_tiles(&form) < unit {
            return None;
        }
        let id = self.out.weights.packed(self.program, &[name], form, unit);
        Some(self.packed_parts(id))
    }

    fn packed_parts(&self, id: MatrixId) -> Vec<(ShardId, Range<usize>)> {
        let shards = self.shards(id).into_iter().enumerate();
        shards.map(|(shard, tiles)| (ShardId { matrix: id.0, shard }, tiles)).collect()
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
}
