//! What a compiled method is made of: kernels with their operands, as data.
//!
//! Nothing here knows a device, so that `plan` needs none of its memory and tests can look at every
//! kernel that a program asks for.

use lapidary_backend::Sizes;
use lapidary_backend_kit::Purposes;
use lapidary_program::{Dim, Sym};

use crate::device::Access;
use crate::host::HostFeed;
use crate::shader::Shader;
use crate::weights::{ShardId, VectorId};

/// One entry point.
pub(crate) struct CompiledMethod {
    /// What the host writes before the first kernel.
    pub feeds: Vec<FeedSpec>,
    /// In the order in which they run.
    pub steps: Vec<Step>,
    /// Steps from here on are about asked rows, and run once for each window of those.
    pub n_once: usize,
    /// By graph output.
    pub outputs: Vec<Output>,
    /// The lengths that kernels ask for by number.
    pub dims: Vec<Dim>,
    /// Whether asked rows may be worked on in windows.
    pub windows: bool,
}

/// What the caller gets.
pub(crate) struct Output {
    pub name: String,
    pub value: Value,
    /// Whether its numbers are indices.
    pub indices: bool,
}

impl Output {
    /// Whether tokens may be drawn from its rows.
    pub(crate) fn is_drawn_from(&self) -> bool {
        !self.indices && is_asked(self.value.rows) && self.value.buffer().is_some()
    }
}

/// What stands in one region of the feeds.
pub(crate) struct FeedSpec {
    pub rows: FeedRows,
    pub channels: usize,
    pub source: HostFeed,
}

/// How many rows a feed has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeedRows {
    Of(Dim),
    /// As many as a call has spans.
    Spans,
}

impl FeedSpec {
    /// Numbers of it in a call of such sizes, with so many spans.
    pub(crate) fn len(&self, sizes: Sizes, spans: usize) -> usize {
        let rows = match self.rows {
            FeedRows::Of(rows) => sizes.len(rows),
            FeedRows::Spans => spans,
        };
        rows * self.channels
    }

    /// Whether its rows are the asked ones.
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self.rows, FeedRows::Of(rows) if is_asked(rows))
    }
}

/// One op of the graph, or several that are done at once.
pub(crate) struct Step {
    pub nodes: Vec<usize>,
    /// What it is for.
    pub purposes: Purposes,
    pub dispatches: Vec<Dispatch>,
    /// The `f32` values that it makes; with nodes that are not fused, one for each that makes one.
    pub shown: Vec<Value>,
}

/// One kernel with its operands.
pub(crate) struct Dispatch {
    pub shader: Shader,
    /// What the kernel's `Params` hold.
    pub words: Vec<u32>,
    pub bindings: Vec<(Binding, Access)>,
    pub grid: Grid,
    /// Lengths of which the kernel is meant for some only.
    pub when: Option<When>,
    pub work: Work,
}

/// A kernel that runs only if a length is in a range, and only for some numbers of keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct When {
    pub rows: Dim,
    pub least: usize,
    pub most: usize,
    pub keys: Keys,
}

/// For how many keys a kernel is meant: those of the newest position of a call and all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    Any,
    /// So many or fewer.
    Most(u64),
    /// Any, but one row alone sees more than so many.
    Beyond(u64),
}

/// A buffer, or part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    Value(Place),
    Vector(VectorId),
    Shard(ShardId),
    /// Some bytes of a shard: where they begin, and how many.
    Section(ShardId, u64, u64),
    /// The keys of a cache.
    Keys(usize),
    /// The values of a cache.
    Values(usize),
}

/// A value's place and lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub place: Place,
    pub rows: Dim,
    pub channels: usize,
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A region of the feeds.
    Feed(usize),
    /// A buffer of the room.
    Buffer(usize),
}

/// Workgroups: `x` folded into two directions if it is long, or `x` times `y`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub x: Count,
    pub y: Count,
}

/// `⌈⌈rows / tile⌉ · times / over⌉`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    pub rows: Dim,
    pub tile: u64,
    pub times: u64,
    pub over: u64,
}

/// Multiplications of a kernel, about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// So many for each row.
    Rows(Dim, u64),
    /// So many for each row and each key that it sees, which are no more than the second.
    Keys(Dim, u64, u64),
    /// So many for each pair of rows.
    Pairs(Dim, u64),
}

impl When {
    /// For any number of keys.
    pub(crate) const fn rows(rows: Dim, least: usize, most: usize) -> Self {
        When { rows, least, most, keys: Keys::Any }
    }

    fn holds(&self, sizes: Sizes, keys: u64) -> bool {
        let rows = sizes.len(self.rows);
        let fit = match self.keys {
            Keys::Any => true,
            Keys::Most(most) => keys <= most,
            Keys::Beyond(most) => rows > 1 || keys > most,
        };
        fit && (self.least..=self.most).contains(&rows)
    }
}

impl Value {
    /// The rows that it always has room for.
    pub(crate) fn most_rows(&self) -> usize {
        match self.rows {
            Dim::Fixed(rows) => rows as usize,
            _ => 0,
        }
    }

    /// The buffer of the room that it is in.
    pub(crate) fn buffer(&self) -> Option<usize> {
        match self.place {
            Place::Buffer(buffer) => Some(buffer),
            Place::Feed(_) => None,
        }
    }

    /// Numbers that it has in a call of such sizes.
    pub(crate) fn len(&self, sizes: Sizes) -> usize {
        sizes.len(self.rows) * self.channels
    }
}

impl Count {
    /// One workgroup.
    pub(crate) const ONE: Self = Count { rows: Dim::Fixed(1), tile: 1, times: 1, over: 1 };

    /// A workgroup for each so many of `rows · times`.
    pub(crate) fn of(rows: Dim, times: usize, over: u64) -> Self {
        Count { rows, tile: 1, times: times as u64, over }
    }

    /// `times` workgroups for each tile of rows.
    pub(crate) fn tiles(rows: Dim, tile: u64, times: usize) -> Self {
        Count { rows, tile, times: times as u64, over: 1 }
    }

    fn get(&self, sizes: Sizes) -> u64 {
        let tiles = (sizes.len(self.rows) as u64).div_ceil(self.tile);
        tiles.saturating_mul(self.times).div_ceil(self.over)
    }
}

impl Grid {
    /// A grid in one direction.
    pub(crate) fn flat(x: Count) -> Self {
        Grid { x, y: Count::ONE }
    }

    /// Workgroups in each direction; `None` if there is nothing to do or too much to count.
    pub(crate) fn groups(&self, sizes: Sizes, most: u32) -> Option<[u32; 3]> {
        let (x, y) = (self.x.get(sizes), self.y.get(sizes));
        if x == 0 || y == 0 {
            return None;
        }
        let most = u64::from(most);
        let (x, y) = if x > most && y == 1 {
            (x.div_ceil(x.div_ceil(most)), x.div_ceil(most))
        } else {
            (x, y)
        };
        Some([u32::try_from(x).ok()?, u32::try_from(y).ok()?, 1])
    }
}

impl CompiledMethod {
    /// Whether each feed is read by a kernel; the host need not write others.
    pub(crate) fn read_feeds(&self) -> Vec<bool> {
        let mut read = vec![false; self.feeds.len()];
        let kernels = self.steps.iter().flat_map(|step| &step.dispatches);
        for (binding, _) in kernels.flat_map(|kernel| &kernel.bindings) {
            if let Binding::Value(Place::Feed(feed)) = binding {
                read[*feed] = true;
            }
        }
        read
    }

    /// Kernels of a call of such sizes whose newest key is at `keys − 1`.
    pub(crate) fn n_kernels(&self, sizes: Sizes, keys: u64, most_groups: u32) -> usize {
        let kernels = self.steps.iter().flat_map(|step| &step.dispatches);
        kernels.filter(|kernel| kernel.groups(sizes, keys, most_groups).is_some()).count()
    }

    /// Numbers of keys that are the last for which some kernels are meant: calls between two of
    /// them have the same kernels.
    pub(crate) fn key_limits(&self) -> Vec<u64> {
        let kernels = self.steps.iter().flat_map(|step| &step.dispatches);
        let limits = kernels.filter_map(|kernel| match kernel.when?.keys {
            Keys::Most(most) if most < u64::MAX => Some(most),
            _ => None,
        });
        let mut limits: Vec<u64> = limits.collect();
        limits.sort_unstable();
        limits.dedup();
        limits
    }
}

impl Dispatch {
    /// Workgroups in a call of such sizes whose newest key is at `keys − 1`; `None` if it does not
    /// run.
    pub(crate) fn groups(&self, sizes: Sizes, keys: u64, most: u32) -> Option<[u32; 3]> {
        self.grid.groups(sizes, most).filter(|_| self.is_meant(sizes, keys))
    }

    /// Whether this kernel is meant for such a call.
    pub(crate) fn is_meant(&self, sizes: Sizes, keys: u64) -> bool {
        self.when.is_none_or(|when| when.holds(sizes, keys))
    }
}

impl Work {
    /// Multiplications in a call of such sizes whose newest key is at `keys − 1`.
    pub(crate) fn of(&self, sizes: Sizes, keys: u64) -> u64 {
        let len = |rows: Dim| sizes.len(rows) as u64;
        match *self {
            Work::Rows(rows, n) => len(rows).saturating_mul(n),
            Work::Keys(rows, n, most) => len(rows).saturating_mul(n).saturating_mul(keys.min(most)),
            Work::Pairs(rows, n) => len(rows).saturating_mul(len(rows)).saturating_mul(n),
        }
    }
}

/// Whether a length is that of the asked rows.
pub(crate) fn is_asked(rows: Dim) -> bool {
    matches!(rows, Dim::Sym(Sym::Rows) | Dim::Part { of: Sym::Rows, .. })
}
