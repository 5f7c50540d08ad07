//! One `forward` call: its inputs, its run, and the search for what made it fail.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lapidary_backend::{
    Call, Engine, Feed, FeedData, PageTable, Results, Span, StopFlag, Ticket, TicketRows, Wanted,
};
use lapidary_program::{input, method, output};

use crate::error::{Error, Result};
use crate::pages::Held;
use crate::sampler::all_finite;

/// The tokens of one call, of one or of many sequences. Keeps its memory from call to call.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    tokens: Vec<i32>,
    horizons: Vec<u32>,
    /// Whether any token sees further than itself.
    has_blocks: bool,
    rows: Vec<i32>,
    soft_index: Vec<i32>,
    soft: Vec<f32>,
    /// The rows that a drafter goes on from.
    hidden: Vec<f32>,
    /// Soft rows in `soft`.
    n_soft: usize,
    /// Start and length of each span.
    spans: Vec<(u32, u32)>,
    tables: Vec<PageTable<'static>>,
    borrowed: Vec<Span<'static>>,
}

/// How a call is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How<'a> {
    /// `forward` or `draft`.
    pub(crate) method: &'static str,
    /// What becomes of outputs.
    pub(crate) wants: &'a [Wanted<'a>],
    /// Ends the call early.
    pub(crate) stop: Option<&'a StopFlag>,
    /// Where the tokens come from, if not from here.
    pub(crate) tokens: Option<TicketRows<'a>>,
}

impl Default for How<'_> {
    fn default() -> Self {
        How { method: method::FORWARD, wants: &[], stop: None, tokens: None }
    }
}

impl Batch {
    pub(crate) fn with_capacity(tokens: usize) -> Self {
        Batch {
            tokens: Vec::with_capacity(tokens),
            horizons: Vec::with_capacity(tokens),
            rows: Vec::with_capacity(tokens),
            soft_index: Vec::with_capacity(tokens),
            ..Batch::default()
        }
    }

    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.horizons.clear();
        self.has_blocks = false;
        self.rows.clear();
        self.soft_index.clear();
        self.soft.clear();
        self.hidden.clear();
        self.n_soft = 0;
        self.spans.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Adds tokens of a sequence from a position on; returns the number of the first.
    pub(crate) fn push(&mut self, position: usize, tokens: &[u32]) -> usize {
        let first = self.tokens.len();
        // Ids and positions were checked against limits that are far below 2³¹.
        self.tokens.extend(tokens.iter().map(|t| *t as i32));
        // Without a block every token sees up to itself.
        self.horizons.extend((position..position + tokens.len()).map(|p| p as u32));
        self.soft_index.extend(tokens.iter().map(|_| -1));
        self.spans.push((position as u32, tokens.len() as u32));
        first
    }

    /// Adds a token after the newest, of the same sequence, and asks for its logits.
    pub(crate) fn extend(&mut self, token: u32) {
        let Some((start, len)) = self.spans.last_mut() else { return };
        self.horizons.push(*start + *len);
        *len += 1;
        self.tokens.push(token as i32);
        self.soft_index.push(-1);
        self.ask_last();
    }

    /// Lets a token see up to a later position.
    pub(crate) fn see_to(&mut self, token: usize, horizon: usize) {
        self.horizons[token] = horizon as u32;
        self.has_blocks = true;
    }

    /// Puts soft rows in the place of tokens from `token` on.
    pub(crate) fn put_soft(&mut self, token: usize, rows: &[f32], n: usize) {
        for (i, index) in self.soft_index[token..token + n].iter_mut().enumerate() {
            *index = (self.n_soft + i) as i32;
        }
        self.soft.extend_from_slice(rows);
        self.n_soft += n;
    }

    /// Adds a token from which a drafter guesses the next, with the row that it goes on from.
    pub(crate) fn push_draft(&mut self, position: usize, token: u32, hidden: &[f32]) {
        self.push(position, &[token]);
        self.hidden.extend_from_slice(hidden);
    }

    /// Asks for the logits of the newest token; returns the row they will have.
    pub(crate) fn ask_last(&mut self) -> usize {
        self.ask(self.tokens.len() - 1)
    }

    /// Asks for the logits of a token; returns the row they will have.
    pub(crate) fn ask(&mut self, token: usize) -> usize {
        self.rows.push(token as i32);
        self.rows.len() - 1
    }

    /// Starts the call; `held` are the pages of each span's sequence. A panic of the engine is an
    /// error here.
    pub(crate) fn submit<'h>(
        &mut self,
        engine: &mut dyn Engine,
        held: impl Iterator<Item = &'h Held>,
        how: How<'_>,
    ) -> Result<Ticket> {
        self.with_call(held, how, |call| {
            guard(how.method, AssertUnwindSafe(|| engine.submit(call)))
        })
    }

    /// Runs the call again, slowly, and names the first node that makes a number that is not
    /// finite.
    pub(crate) fn first_non_finite<'h>(
        &mut self,
        engine: &mut dyn Engine,
        held: impl Iterator<Item = &'h Held>,
    ) -> Option<String> {
        self.with_call(held, How::default(), |call| first_non_finite(engine, call))
    }

    fn with_call<'h, R>(
        &mut self,
        held: impl Iterator<Item = &'h Held>,
        how: How<'_>,
        run: impl FnOnce(&Call<'_>) -> R,
    ) -> R {
        let mut tables: Vec<PageTable<'_>> = recycle(std::mem::take(&mut self.tables));
        let mut spans: Vec<Span<'_>> = recycle(std::mem::take(&mut self.borrowed));
        tables.extend(held.flat_map(Held::tables));
        let n_groups = tables.len() / self.spans.len().max(1);
        spans.extend(self.spans.iter().enumerate().map(|(i, (start, len))| Span {
            start: *start,
            len: *len,
            tables: &tables[i * n_groups..(i + 1) * n_groups],
        }));
        let tokens = match how.tokens {
            Some(rows) => FeedData::Of(rows),
            None => FeedData::I32(&self.tokens),
        };
        // All inputs that a call may need; a method takes those it declares.
        let feeds = [
            Feed { name: input::TOKENS, data: tokens },
            Feed::i32(input::ROWS, &self.rows),
            Feed::i32(input::SOFT_INDEX, &self.soft_index),
            Feed::f32(input::SOFT, &self.soft),
            Feed::f32(input::HIDDEN, &self.hidden),
        ];
        let made = run(&Call {
            method: how.method,
            feeds: &feeds,
            spans: &spans,
            horizons: if self.has_blocks { &self.horizons } else { &[] },
            wants: how.wants,
            stop: how.stop,
        });
        self.borrowed = recycle(spans);
        self.tables = recycle(tables);
        made
    }
}

/// An empty vector in the memory of another whose elements borrow from elsewhere.
pub(crate) fn recycle<A, B>(mut old: Vec<A>) -> Vec<B> {
    old.clear();
    // Collecting in place keeps the allocation where the layouts agree.
    old.into_iter().filter_map(|_| None).collect()
}

/// Waits for a call. A panic of the engine is an error here.
pub(crate) fn wait(
    engine: &mut dyn Engine,
    ticket: Ticket,
    method: &'static str,
    results: &mut Results,
) -> Result<()> {
    guard(method, AssertUnwindSafe(|| engine.wait(ticket, results)))
}

/// Runs a call of the engine. A panic is an error here.
pub(crate) fn guard<R>(
    method: &'static str,
    call: AssertUnwindSafe<impl FnOnce() -> lapidary_backend::Result<R>>,
) -> Result<R> {
    match catch_unwind(call) {
        Ok(done) => Ok(done?),
        Err(panic) => Err(panicked(method, panic.as_ref())),
    }
}

/// Runs a call again, slowly, and names the first node that makes a number that is not finite.
pub(crate) fn first_non_finite(engine: &mut dyn Engine, call: &Call<'_>) -> Option<String> {
    let mut found = None;
    let mut sink = |node: usize, values: &[f32]| {
        if found.is_none() && !all_finite(values) {
            found = Some(node);
        }
    };
    // A failure of this second run changes nothing: the first failure is what is reported.
    let _ = catch_unwind(AssertUnwindSafe(|| engine.trace(call, &mut sink)));
    let method = engine.program().method(call.method).ok()?;
    method.graph.nodes.get(found?).map(|n| n.name.clone())
}

/// The logits of a call, row after row.
pub(crate) fn logits(results: &Results) -> Result<&lapidary_backend::OutputResult> {
    results.get(output::LOGITS).filter(|out| out.channels > 0).ok_or_else(|| {
        Error::Program(format!("method `forward` has no output `{}`", output::LOGITS))
    })
}

fn panicked(method: &'static str, panic: &(dyn std::any::Any + Send)) -> Error {
    let what = panic
        .downcast_ref::<&str>()
        .map(|s| s.to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it panicked".to_string());
    Error::EnginePanicked { method, what }
}
