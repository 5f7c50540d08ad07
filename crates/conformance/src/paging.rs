//! Pages for tests: where tokens stand, in tables whose pages are in no order.

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_backend::{
    Backend, CallLimits, Engine, Feed, LoadOptions, PAGE, PageId, PageTable, Results, Span,
    pages_for,
};
use lapidary_program::Program;

use crate::case;

/// Where one token stands.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its sequence.
    pub sequence: i32,
    /// Its position.
    pub position: i32,
    /// The last position that it sees in a block.
    pub horizon: i32,
}

/// Hands out the pages of an engine: few more than are needed, in no order, and again as soon as no
/// window reaches them.
#[derive(Clone, Debug)]
pub struct Paging {
    groups: Vec<Group>,
}

#[derive(Clone, Debug)]
struct Group {
    window: Option<u32>,
    free: Vec<PageId>,
    /// Of each sequence: pages that are no longer held, and those that are.
    held: BTreeMap<i32, (usize, Vec<PageId>)>,
}

/// The spans of a call.
#[derive(Clone, Debug, Default)]
pub struct Placed {
    spans: Vec<OwnSpan>,
    /// `[T]`.
    pub horizons: Vec<u32>,
}

#[derive(Clone, Debug)]
struct OwnSpan {
    start: u32,
    len: u32,
    tables: Vec<(usize, Vec<PageId>)>,
}

/// An engine, and which of its pages are in use.
pub struct Paged {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// Its pages.
    pub paging: Paging,
}

impl Paged {
    /// On a backend's first device.
    pub fn load(
        backend: &dyn Backend,
        program: &Arc<Program>,
        options: &LoadOptions,
    ) -> Result<Self, String> {
        let engine = case::load(backend, program, options)?;
        Ok(Paged { engine, paging: Paging::new(program, options) })
    }

    /// Runs a call whose tokens stand where `places` says, of which every output is wanted whole.
    pub fn run(
        &mut self,
        method: &str,
        feeds: &[Feed<'_>],
        places: &[Place],
        results: &mut Results,
    ) -> Result<(), String> {
        let placed = self.paging.place(places);
        case::run_whole(&mut *self.engine, method, feeds, &placed, results)
            .map_err(|e| e.to_string())
    }
}

/// Limits for calls of so many tokens of a sequence.
pub fn limits(chunk: usize, n_sequences: u32) -> CallLimits {
    let chunk = chunk as u32;
    CallLimits { chunk, tokens: chunk + n_sequences.max(1) - 1, block: chunk }
}

/// Options with pages for all sequences, if they have none.
pub fn with_pages(program: &Program, options: &LoadOptions) -> LoadOptions {
    let mut options = options.clone();
    if options.pages.is_empty() {
        options.pages = options.limits.pages(program, options.max_context, options.n_sequences);
    }
    options
}

impl Place {
    /// A token that sees nothing after itself.
    pub fn new(sequence: i32, position: i32) -> Self {
        Place { sequence, position, horizon: position }
    }
}

impl Paging {
    /// All pages are free.
    pub fn new(program: &Program, options: &LoadOptions) -> Self {
        let options = with_pages(program, options);
        let groups = program.kv_groups().iter().enumerate().map(|(g, group)| {
            let n = options.pages_of(g) as u32;
            // Odd ones from the end, then even ones: no two neighbours in a row.
            let odd = (0..n).filter(|i| i % 2 == 1);
            let even = (0..n).rev().filter(|i| i % 2 == 0);
            let free = odd.chain(even).map(PageId).collect();
            Group { window: group.window, free, held: BTreeMap::new() }
        });
        Paging { groups: groups.collect() }
    }

    /// The pages of a sequence in each group.
    pub fn pages_of(&self, sequence: i32) -> Vec<Vec<PageId>> {
        let held = |group: &Group| group.held.get(&sequence).map_or(vec![], |(_, p)| p.clone());
        self.groups.iter().map(held).collect()
    }

    /// Makes room for the tokens of a call: neighbours of one sequence are one span.
    ///
    /// # Panics
    ///
    /// If there are more sequences or positions than pages were made for.
    pub fn place(&mut self, tokens: &[Place]) -> Placed {
        let mut placed = Placed::default();
        let follows = |a: &Place, b: &Place| {
            a.sequence == b.sequence && a.position.checked_add(1) == Some(b.position)
        };
        for run in tokens.chunk_by(follows) {
            let (start, len) = (run[0].position as u32, run.len() as u32);
            let tables = self.groups.iter_mut().map(|group| {
                group.hold(run[0].sequence, start as usize, start as usize + len as usize)
            });
            placed.spans.push(OwnSpan { start, len, tables: tables.collect() });
        }
        placed.horizons = tokens.iter().map(|t| t.horizon.max(0) as u32).collect();
        placed
    }
}

impl Group {
    fn hold(&mut self, sequence: i32, start: usize, end: usize) -> (usize, Vec<PageId>) {
        let (first, pages) = self.held.entry(sequence).or_default();
        let oldest = self.window.map_or(0, |w| (start + 1).saturating_sub(w as usize));
        while !pages.is_empty() && (*first + 1) * PAGE <= oldest {
            self.free.push(pages.remove(0));
            *first += 1;
        }
        if pages.is_empty() {
            *first = (*first).max(oldest.min(start) / PAGE);
        }
        while *first + pages.len() < pages_for(end) {
            pages.push(self.free.pop().expect("there are pages for all sequences"));
        }
        (*first, pages.clone())
    }
}

impl Placed {
    /// Lends the spans.
    pub fn with<R>(&self, body: impl FnOnce(&[Span<'_>]) -> R) -> R {
        let tables: Vec<Vec<PageTable<'_>>> = self
            .spans
            .iter()
            .map(|span| {
                let tables = span.tables.iter();
                tables.map(|(first, pages)| PageTable { first: *first as u32, pages }).collect()
            })
            .collect();
        let spans = self.spans.iter().zip(&tables);
        let spans: Vec<Span<'_>> =
            spans.map(|(s, tables)| Span { start: s.start, len: s.len, tables }).collect();
        body(&spans)
    }

    /// Changes where the first span begins; for calls that must be refused.
    pub fn spoil_start(&mut self, start: u32) {
        self.spans[0].start = start;
    }

    /// Changes how long the first span is; for calls that must be refused.
    pub fn spoil_len(&mut self, len: u32) {
        self.spans[0].len = len;
    }

    /// Changes the tables of the first span; for calls that must be refused.
    pub fn spoil_tables(&mut self, change: impl Fn(&mut Vec<PageId>)) {
        self.spans[0].tables.iter_mut().for_each(|(_, pages)| change(pages));
    }
}
