//! Which pages hold what: tables of sequences, pages that several share, and what can be found again.
//!
//! A sequence has a table for each group of caches. Pages that were written stay findable after
//! their sequence has ended, until their memory is needed. A prompt starts after the longest text
//! that can be found: a group that keeps everything must still have all of it, a group with a
//! window only what the next token sees. The page in which the prompt parts from what was found is
//! copied, unless nobody else uses it.

mod pool;
mod prefix;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use lapidary_backend::{PAGE, PageId, PageTable, pages_for};
use lapidary_program::KvGroup;

use pool::{Pool, Worth};
use prefix::{NodeId, Tree};
pub(crate) use prefix::{SoftKey, Text};

/// All pages of an engine.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    groups: Vec<Group>,
    tree: Tree,
    /// Counts releases.
    time: u64,
    /// Scratch.
    path: Vec<NodeId>,
    found: Vec<NodeId>,
}

#[derive(Clone, Debug)]
struct Group {
    pool: Pool,
    window: Option<usize>,
}

/// The pages of one sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    /// Where its text begins; `None` if nobody shall find it.
    root: Option<NodeId>,
    /// What its pages hold, from the first on.
    nodes: Vec<NodeId>,
    tables: Vec<Table>,
    /// Positions that are written.
    len: usize,
    /// Where its prompt ends: others are likely to start there.
    mark: usize,
}

#[derive(Clone, Debug, Default)]
struct Table {
    /// Pages before these that are no longer held.
    first: usize,
    pages: Vec<PageId>,
}

/// A page that is to be copied before the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageCopy {
    pub(crate) group: usize,
    pub(crate) from: PageId,
    pub(crate) to: PageId,
}

/// How much a prompt needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prospect {
    /// Tokens that need not be run.
    pub(crate) reused: usize,
    /// Whether there are pages for the rest.
    pub(crate) fits: bool,
}

impl Group {
    /// The first position that the query at `n` sees, or `n` if it sees none before itself.
    fn first_seen(&self, n: usize) -> usize {
        self.window.map_or(0, |window| (n + 1).saturating_sub(window).min(n))
    }

    /// The first page that the query at `n` needs.
    fn first_page(&self, n: usize) -> usize {
        self.first_seen(n) / PAGE
    }
}

impl Table {
    /// The page after the last.
    fn end(&self) -> usize {
        self.first + self.pages.len()
    }

    fn get(&self, page: usize) -> Option<PageId> {
        self.pages.get(page.checked_sub(self.first)?).copied()
    }
}

impl Held {
    /// Positions that are written.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The tables, in the order of the groups.
    pub(crate) fn tables(&self) -> impl Iterator<Item = PageTable<'_>> {
        self.tables.iter().map(|t| PageTable { first: t.first as u32, pages: &t.pages })
    }
}

impl Pages {
    /// Pools of so many pages, one for each group.
    pub(crate) fn new(groups: &[KvGroup], n_pages: impl Fn(usize) -> usize) -> Self {
        let groups = groups.iter().enumerate().map(|(g, group)| Group {
            pool: Pool::new(n_pages(g)),
            window: group.window.map(|w| w as usize),
        });
        Pages {
            groups: groups.collect(),
            tree: Tree::default(),
            time: 0,
            path: Vec::new(),
            found: Vec::new(),
        }
    }

    /// Pages that sequences hold, and all of them, of all groups together.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        self.groups.iter().fold((0, 0), |(used, all), group| {
            let n = group.pool.len();
            (used + n - group.pool.available(), all + n)
        })
    }

    /// Positions of one sequence that all pools together can hold, of `wanted`, and how many of those
    /// may be written in one call.
    pub(crate) fn capacity(&self, wanted: usize) -> (usize, usize) {
        let (mut context, mut chunk) = (wanted, usize::MAX);
        for group in &self.groups {
            let n = group.pool.len();
            // A call of `c` tokens sees `window − 1 + c` positions, which may begin at the end of a
            // page.
            let room = group.window.map(|window| (n * PAGE + 2).saturating_sub(PAGE + window));
            match room {
                // Nothing need be released if all positions fit.
                _ if n * PAGE >= wanted => {}
                Some(room @ 1..) => chunk = chunk.min(room),
                Some(0) | None => context = context.min(n * PAGE),
            }
        }
        (context, chunk)
    }

    /// How many tokens of a text are at hand, of which at most `most` count, and whether all of it,
    /// and `more` positions, could be held as of now if it is run in chunks of `chunk`.
    pub(crate) fn prospect(
        &mut self,
        text: &Text<'_>,
        chunk: usize,
        (most, more): (usize, usize),
    ) -> Prospect {
        let mut path = std::mem::take(&mut self.path);
        let n = self.find(text, most, &mut path);
        let end = text.tokens.len() + more;
        let fits = self.groups.iter().enumerate().all(|(g, group)| {
            let (first, shared) = (group.first_page(n), n / PAGE);
            let taken = path.get(first..shared).unwrap_or_default();
            let new = match group.window {
                None => pages_for(end) - shared,
                // Chunks are as short as pages are few: what a token sees is enough to go on.
                Some(window) => {
                    let seen = (pages_for(window) + 1).saturating_sub(taken.len()).max(1);
                    (pages_for(end.min(n + chunk)) - shared).min(seen)
                }
            };
            let taken = taken.iter().filter_map(|id| self.tree.get(*id).pages[g]);
            let idle = taken.filter(|page| group.pool.is_cached(*page)).count();
            new + idle <= group.pool.available()
        });
        self.path = path;
        Prospect { reused: n, fits }
    }

    /// The path that a text has most in common with, and the last position that it can go on from.
    /// One token at least is left to run: what comes after the text is wanted.
    fn find(&self, text: &Text<'_>, most: usize, path: &mut Vec<NodeId>) -> usize {
        let common = self.tree.find(text, path).min(most);
        self.startable(text, path, common.min(text.tokens.len().saturating_sub(1)))
    }

    /// The last position, no later than `n`, that the text can go on from.
    fn startable(&self, text: &Text<'_>, path: &[NodeId], mut n: usize) -> usize {
        loop {
            n = text.whole(n);
            let missing = self.groups.iter().enumerate().filter_map(|(g, group)| {
                let from = group.first_seen(n);
                if from >= n {
                    return None;
                }
                let mut needed = (from / PAGE..=(n - 1) / PAGE).rev();
                needed.find(|i| self.tree.get(path[*i]).pages[g].is_none())
            });
            match missing.min() {
                Some(page) => n = page * PAGE,
                None => return n,
            }
        }
    }

    /// Begins a sequence with as much of its text as is at hand, but at most `most` tokens. `mark` is
    /// where its prompt ends. Pages that are to be copied before they are written are added to
    /// `copies`.
    pub(crate) fn start(
        &mut self,
        text: &Text<'_>,
        (most, mark): (usize, usize),
        copies: &mut Vec<PageCopy>,
    ) -> Held {
        let mut path = std::mem::take(&mut self.path);
        let mut n = self.find(text, most, &mut path);
        while !n.is_multiple_of(PAGE) && !self.has_room_for_tail(&path, n) {
            n = self.startable(text, &path, n / PAGE * PAGE);
        }
        let n_groups = self.groups.len();
        let root = self.tree.root(text.scope, n_groups);
        self.tree.get_mut(root).holders += 1;
        let mut held =
            Held { root: Some(root), nodes: Vec::new(), tables: Vec::new(), len: n, mark };
        let (whole, rest) = (n / PAGE, n % PAGE);
        for group in &self.groups {
            let first = if group.first_seen(n) < n { group.first_page(n) } else { whole };
            held.tables.push(Table { first, pages: Vec::new() });
        }
        for (i, id) in path.iter().enumerate().take(whole) {
            let node = self.tree.get_mut(*id);
            node.holders += 1;
            node.shared = true;
            held.nodes.push(*id);
            for (g, group) in self.groups.iter_mut().enumerate() {
                if i >= held.tables[g].first {
                    let page = node.pages[g].expect("what the text goes on from is at hand");
                    group.pool.hold(page);
                    held.tables[g].pages.push(page);
                }
            }
        }
        if rest > 0 {
            self.take_tail(&mut held, path[whole], rest, copies);
        }
        self.path = path;
        held
    }

    /// Whether the page in which `n` lies can be had, by itself or as a copy, beside all pages
    /// before it.
    fn has_room_for_tail(&self, path: &[NodeId], n: usize) -> bool {
        let whole = n / PAGE;
        let tail = self.tree.get(path[whole]);
        let is_taken = tail.holders == 0 && tail.tokens.len() == n % PAGE;
        self.groups.iter().enumerate().all(|(g, group)| {
            let used = path[group.first_page(n)..=whole].iter();
            let used = used.filter_map(|id| self.tree.get(*id).pages[g]);
            let idle = used.filter(|page| group.pool.is_cached(*page)).count();
            let new = usize::from(!is_taken || tail.pages[g].is_none());
            idle + new <= group.pool.available()
        })
    }

    /// Continues in the middle of a page: in the page itself if nobody else does and nothing in it
    /// comes after, else in a copy.
    fn take_tail(&mut self, held: &mut Held, id: NodeId, rest: usize, copies: &mut Vec<PageCopy>) {
        let tail = self.tree.get(id);
        let is_taken = tail.holders == 0 && tail.tokens.len() == rest;
        let pages = tail.pages.clone();
        for (group, page) in self.groups.iter_mut().zip(&pages) {
            // Held for now, so that it is not given up for its own copy.
            page.iter().for_each(|page| group.pool.hold(*page));
        }
        if is_taken {
            self.tree.get_mut(id).holders += 1;
            held.nodes.push(id);
            for (g, page) in pages.into_iter().enumerate() {
                let page = page.unwrap_or_else(|| self.new_page(g, held.tables[g].pages.last()));
                self.assign(g, page, id);
                held.tables[g].pages.push(page);
            }
            return;
        }
        let parent = held.nodes.last().or(held.root.as_ref()).copied();
        let parent = parent.expect("a sequence that was started has a root");
        let (tokens, soft) = (tail.tokens[..rest].to_vec(), tail.soft.clone());
        let copy = self.tree.child(parent, self.groups.len());
        let node = self.tree.get_mut(copy);
        (node.tokens, node.soft, node.holders) = (tokens, soft, 1);
        node.tokens.reserve(PAGE);
        held.nodes.push(copy);
        for (group, page) in pages.into_iter().enumerate() {
            let to = self.new_page(group, held.tables[group].pages.last());
            self.assign(group, to, copy);
            held.tables[group].pages.push(to);
            if let Some(from) = page {
                copies.push(PageCopy { group, from, to });
                self.drop_page(group, from, true);
            }
        }
    }

    /// Begins a sequence that shares nothing and that nobody will find.
    pub(crate) fn start_alone(&self) -> Held {
        Held { tables: vec![Table::default(); self.groups.len()], ..Held::default() }
    }

    /// How far a sequence can be extended with the pages that can be had now.
    pub(crate) fn reach(&self, held: &Held) -> usize {
        let ends = self.groups.iter().zip(&held.tables);
        let ends = ends.map(|(group, table)| (table.end() + group.pool.available()) * PAGE);
        ends.min().unwrap_or(usize::MAX)
    }

    /// Makes sure that a sequence has pages for all positions before `end`; `false`, and nothing
    /// changes, if there are too few.
    pub(crate) fn reserve(&mut self, held: &mut Held, end: usize) -> bool {
        if self.reach(held) < end {
            return false;
        }
        for g in 0..self.groups.len() {
            let need = pages_for(end).saturating_sub(held.tables[g].end());
            while self.groups[g].pool.n_free() < need && self.evict(g) {}
            for _ in 0..need {
                let page = self.new_page(g, held.tables[g].pages.last());
                held.tables[g].pages.push(page);
            }
        }
        true
    }

    /// Notes that the next `n` tokens of the text were written. Pages that no later query sees are
    /// released.
    pub(crate) fn wrote(&mut self, held: &mut Held, text: &Text<'_>, n: usize) {
        let end = held.len + n;
        while held.len < end {
            let page = held.len / PAGE;
            let until = end.min((page + 1) * PAGE);
            if held.root.is_some() {
                self.note(held, text, page, until);
            }
            held.len = until;
        }
        self.time += 1;
        for g in 0..self.groups.len() {
            let keep = self.groups[g].first_page(held.len);
            let table = &mut held.tables[g];
            let n = keep.saturating_sub(table.first).min(table.pages.len());
            let window = self.groups[g].window.unwrap_or(0);
            for page in table.first..table.first + n {
                let at = table.pages[page - table.first];
                let after = (page + 1) * PAGE + window > held.mark;
                self.drop_page(g, at, after && page * PAGE < held.mark);
            }
            let table = &mut held.tables[g];
            table.pages.drain(..n);
            table.first += n;
        }
    }

    /// Adds tokens of one page to what can be found.
    fn note(&mut self, held: &mut Held, text: &Text<'_>, page: usize, until: usize) {
        if held.nodes.len() == page {
            let parent = held.nodes.last().or(held.root.as_ref()).copied();
            let parent = parent.expect("a sequence that can be found has a root");
            let id = self.tree.child(parent, self.groups.len());
            self.tree.get_mut(id).holders = 1;
            for g in 0..self.groups.len() {
                if let Some(at) = held.tables[g].get(page) {
                    self.assign(g, at, id);
                }
            }
            held.nodes.push(id);
        }
        let id = held.nodes[page];
        let node = self.tree.get_mut(id);
        node.tokens.extend_from_slice(&text.tokens[held.len..until]);
        node.soft.clear();
        node.soft.extend(text.soft_in(page));
        if node.is_full()
            && node.listed
            && let Some(twin) = self.tree.twin(id)
        {
            self.merge(held, page, twin);
        }
    }

    /// Two sequences wrote the same page: one of them is enough.
    fn merge(&mut self, held: &mut Held, page: usize, twin: NodeId) {
        let id = std::mem::replace(&mut held.nodes[page], twin);
        self.tree.get_mut(twin).holders += 1;
        self.tree.get_mut(id).holders -= 1;
        for g in 0..self.groups.len() {
            let Some(ours) = self.tree.get_mut(id).pages[g].take() else { continue };
            self.groups[g].pool.set_node(ours, None);
            match self.tree.get(twin).pages[g] {
                Some(theirs) => {
                    self.groups[g].pool.hold(theirs);
                    let table = &mut held.tables[g];
                    let at = page - table.first;
                    table.pages[at] = theirs;
                    self.drop_page(g, ours, false);
                }
                None => self.assign(g, ours, twin),
            }
        }
        self.tree.prune(id);
    }

    /// Ends a sequence. What it wrote stays findable until its memory is needed.
    pub(crate) fn release(&mut self, held: &mut Held) {
        self.time += 1;
        for (g, table) in held.tables.iter_mut().enumerate() {
            for page in std::mem::take(&mut table.pages) {
                self.drop_page(g, page, true);
            }
        }
        for id in held.nodes.drain(..).rev().chain(held.root.take()) {
            self.tree.get_mut(id).holders -= 1;
            self.tree.prune(id);
        }
        *held = Held::default();
    }

    /// Makes sure that nobody finds what a sequence wrote from a position on, nor anything else in
    /// the page of that position: the write may have failed half-way.
    pub(crate) fn distrust(&mut self, held: &Held, from: usize) {
        let Some(first) = held.nodes.get(from / PAGE) else { return };
        self.unlist(*first);
    }

    /// Makes sure that nobody finds what a page holds: it was not written as it should have been.
    pub(crate) fn distrust_page(&mut self, group: usize, page: PageId) {
        if let Some(id) = self.groups[group].pool.node(page) {
            self.unlist(id);
        }
    }

    fn unlist(&mut self, first: NodeId) {
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        let before = self.tree.get(first).parent;
        self.tree.unlist(first, &mut found);
        for id in &found {
            for (g, group) in self.groups.iter_mut().enumerate() {
                let Some(page) = self.tree.get(*id).pages[g] else { continue };
                if group.pool.refs(page) == 0 {
                    self.tree.get_mut(*id).pages[g] = None;
                    group.pool.give_back(page);
                }
            }
        }
        // Later pages first, so that none names one that is gone.
        found.iter().rev().copied().chain(before).for_each(|id| self.tree.prune(id));
        self.found = found;
    }

    /// Pages of each group that hold nothing.
    pub(crate) fn n_free(&self) -> Vec<u32> {
        self.groups.iter().map(|group| group.pool.n_free() as u32).collect()
    }

    /// Forgets everything that no sequence holds.
    pub(crate) fn forget(&mut self) {
        for g in 0..self.groups.len() {
            while self.evict(g) {}
        }
    }

    /// The longest part of a text that is at hand, and its pages: the number of the first in each
    /// group, and those from there on.
    pub(crate) fn look_up(&mut self, text: &Text<'_>) -> (usize, Vec<(usize, Vec<PageId>)>) {
        let mut path = std::mem::take(&mut self.path);
        let common = self.tree.find(text, &mut path);
        let n = self.startable(text, &path, common);
        let tables = self.tables_for(n).into_iter().enumerate().map(|(g, (first, n))| {
            let ids = path.get(first..first + n).unwrap_or_default().iter();
            let page = |id: &NodeId| self.tree.get(*id).pages[g].expect("it is at hand");
            (first, ids.map(page).collect())
        });
        let tables = tables.collect();
        self.path = path;
        (n, tables)
    }

    /// For each group the number of the first page, and how many from there on, that a text needs to
    /// go on from `n`.
    pub(crate) fn tables_for(&self, n: usize) -> Vec<(usize, usize)> {
        let tables = self.groups.iter().map(|group| match group.first_seen(n) < n {
            true => (group.first_page(n), pages_for(n) - group.first_page(n)),
            false => (pages_for(n), 0),
        });
        tables.collect()
    }

    /// Begins a sequence of which `n` positions will be written from elsewhere; `None` if there are
    /// too few pages. Nothing can be found before [`Self::wrote`] is told.
    pub(crate) fn start_empty(&mut self, scope: u64, n: usize) -> Option<Held> {
        let root = self.tree.root(scope, self.groups.len());
        self.tree.get_mut(root).holders += 1;
        let tables = self.tables_for(n).into_iter();
        let tables = tables.map(|(first, _)| Table { first, pages: Vec::new() });
        let tables = tables.collect();
        let mut held = Held { root: Some(root), nodes: Vec::new(), tables, len: 0, mark: n };
        if !self.reserve(&mut held, n) {
            self.release(&mut held);
            return None;
        }
        Some(held)
    }

    /// A page for a sequence; there must be one.
    fn new_page(&mut self, g: usize, last: Option<&PageId>) -> PageId {
        if self.groups[g].pool.n_free() == 0 {
            self.evict(g);
        }
        self.groups[g].pool.take(last.copied()).expect("that there is a page was checked before")
    }

    /// Gives up the page that is worth least; `false` if all are held.
    fn evict(&mut self, g: usize) -> bool {
        let Some(page) = self.groups[g].pool.least_worth() else { return false };
        self.give_back(g, page);
        true
    }

    /// Holds a page once less.
    fn drop_page(&mut self, g: usize, page: PageId, likely: bool) {
        let pool = &mut self.groups[g].pool;
        if !pool.drop_ref(page) {
            return;
        }
        let node = pool.node(page).map(|id| self.tree.get(id)).filter(|node| node.listed);
        match node {
            Some(node) => {
                let likely = likely || node.shared;
                let worth = Worth { likely, used: self.time, depth: Reverse(node.depth) };
                pool.cache(page, worth);
            }
            None => self.give_back(g, page),
        }
    }

    /// Makes a page that nobody holds free.
    fn give_back(&mut self, g: usize, page: PageId) {
        let pool = &mut self.groups[g].pool;
        let node = pool.node(page);
        pool.give_back(page);
        if let Some(id) = node {
            self.tree.get_mut(id).pages[g] = None;
            self.tree.prune(id);
        }
    }

    fn assign(&mut self, g: usize, page: PageId, id: NodeId) {
        self.tree.get_mut(id).pages[g] = Some(page);
        self.groups[g].pool.set_node(page, Some(id));
    }
}
