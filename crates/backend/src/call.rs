//! What goes into a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::pages::PageTable;

/// One run of a method.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call<'a> {
    /// The method.
    pub method: &'a str,
    /// Its inputs, in any order; those that it does not take are left out of account.
    pub feeds: &'a [Feed<'a>],
    /// Where its tokens stand, in the order of the tokens; empty for a method without positions.
    pub spans: &'a [Span<'a>],
    /// `[T]` the last position that each token may see in a bidirectional block, where that is
    /// later than its own; empty if it is so for none.
    pub horizons: &'a [u32],
    /// What becomes of outputs; those that are not named are skipped.
    pub wants: &'a [Wanted<'a>],
    /// Set by whoever wants the call to end early, with [`crate::Error::Stopped`]. Engines look at
    /// it between kernels where a call takes long.
    pub stop: Option<&'a StopFlag>,
}

/// One input by name.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// The input's name.
    pub name: &'a str,
    /// Its numbers.
    pub data: FeedData<'a>,
}

/// The numbers of one input.
#[derive(Clone, Copy, Debug)]
pub enum FeedData<'a> {
    /// Indices.
    I32(&'a [i32]),
    /// Activations, row after row.
    F32(&'a [f32]),
    /// Rows of an earlier call that are still on the device, or not even made yet: tokens that it
    /// drew ([`Want::Draw`]), or an output that it kept ([`Want::Keep`]).
    Of(TicketRows<'a>),
}

/// Rows of an output of an earlier call.
#[derive(Clone, Copy, Debug)]
pub struct TicketRows<'a> {
    /// The call.
    pub ticket: Ticket,
    /// Its output's name.
    pub output: &'a str,
    /// Which rows, in order.
    pub rows: &'a [u32],
}

/// Names a submitted call. No two calls of an engine have the same ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Consecutive tokens of one sequence, at consecutive positions.
///
/// A sequence has at most one span in a call that writes caches. Its tables hold every key that
/// these tokens see, and the pages that their own keys go to. Spans share pages that they read; a page
/// that a span writes is in no other span's reach.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The position of the first token.
    pub start: u32,
    /// Tokens.
    pub len: u32,
    /// One table for each group of the program ([`lapidary_program::Program::kv_groups`]).
    pub tables: &'a [PageTable<'a>],
}

/// An output by name, and what becomes of it.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The output's name.
    pub output: &'a str,
    /// What becomes of it.
    pub want: Want<'a>,
}

/// What becomes of an output.
#[derive(Clone, Copy, Debug, Default)]
pub enum Want<'a> {
    /// Nothing: it need not even be made.
    #[default]
    Skip,
    /// All of it comes to the host.
    Whole,
    /// The largest numbers of each row come to the host.
    TopK(TopK<'a>),
    /// A token is drawn from each row and stays on the device for [`FeedData::Of`]; it comes to the
    /// host as well, with the candidates that it was drawn from.
    ///
    /// The rule is the sampler's (`lapidary_backend_kit::draw`). A device whose arithmetic rounds
    /// differently may draw another token where two are nearly equal, so whoever asks draws again
    /// from the candidates and takes that for the truth: a token drawn on the device is the best
    /// guess at what the next call will be fed.
    Draw(Draw<'a>),
    /// It stays on the device for [`FeedData::Of`].
    Keep,
}

/// The largest numbers of each row.
#[derive(Clone, Copy, Debug)]
pub struct TopK<'a> {
    /// How many, at least 1 and at most [`crate::Abilities::max_top_k`]; all if a row has fewer.
    pub k: usize,
    /// For each row the numbers that count; empty if all do.
    pub masks: &'a [Mask<'a>],
    /// Whether `ln Σ eˣ` over each row comes along; over what the mask leaves, if there is one.
    pub logsumexp: bool,
}

/// Which numbers of a row count: bit `i % 32` of word `i / 32`. `None` for all.
pub type Mask<'a> = Option<&'a [u32]>;

/// How tokens are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// The candidates.
    pub top: TopK<'a>,
    /// For each row the rule.
    pub rules: &'a [DrawRule],
}

/// The sampler's rule for one row, as far as candidates are enough for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrawRule {
    /// 0 takes the first candidate.
    pub temperature: f32,
    /// Keeps the k best; 0 keeps all candidates.
    pub top_k: u32,
    /// Keeps the fewest best that together have this probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps what is at least this fraction of the best probability; 0 keeps all.
    pub min_p: f32,
    /// The key of the noise.
    pub seed: u64,
    /// The number of tokens before the one that is drawn.
    pub position: u32,
}

/// A flag that is set once, by anybody.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

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

impl<'a> Wanted<'a> {
    /// All of an output.
    pub fn whole(output: &'a str) -> Self {
        Wanted { output, want: Want::Whole }
    }
}

impl TopK<'_> {
    /// The `k` largest of all numbers of each row, and no more.
    pub fn of(k: usize) -> Self {
        TopK { k, masks: &[], logsumexp: false }
    }
}

impl Call<'_> {
    /// What becomes of an output.
    pub fn want(&self, output: &str) -> Want<'_> {
        let wanted = self.wants.iter().find(|w| w.output == output);
        wanted.map_or(Want::Skip, |w| w.want)
    }

    /// Whether the call is to end early.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_some_and(StopFlag::is_set)
    }
}

impl StopFlag {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets it.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
