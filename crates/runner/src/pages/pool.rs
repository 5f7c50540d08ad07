//! The pages of one group: which are free, which are held, and which may be taken when none is free.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use lapidary_backend::PageId;

use super::prefix::NodeId;

/// How soon a page that nobody holds is given up, the lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Worth {
    /// Whether a prompt is likely to start after it.
    pub(crate) likely: bool,
    /// When it was last held.
    pub(crate) used: u64,
    /// Pages before it in its sequence: later ones go first, since they are of no use without these.
    pub(crate) depth: Reverse<usize>,
}

/// The pages of one group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    free: BTreeSet<u32>,
    slots: Vec<Slot>,
    /// Pages that nobody holds but that can still be found, those to be given up first in front.
    cached: BTreeSet<(Worth, u32)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Sequences that hold the page.
    refs: u32,
    /// What it holds, if that is known.
    node: Option<NodeId>,
    /// Its place in `cached`.
    worth: Option<Worth>,
}

impl Pool {
    pub(crate) fn new(n_pages: usize) -> Self {
        let free = (0..n_pages as u32).collect();
        Pool { free, slots: vec![Slot::default(); n_pages], cached: BTreeSet::new() }
    }

    /// Pages in all.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Pages that can be had now.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.cached.len()
    }

    /// Pages that hold nothing.
    pub(crate) fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Takes a free page, the one after `last` if that is free. Otherwise the first of the longest
    /// run of free pages, so that those to come can follow it.
    pub(crate) fn take(&mut self, last: Option<PageId>) -> Option<PageId> {
        let next = last.map(|page| page.0 + 1).filter(|next| self.free.contains(next));
        let page = next.or_else(|| self.longest_run())?;
        self.free.remove(&page);
        self.slots[page as usize] = Slot { refs: 1, node: None, worth: None };
        Some(PageId(page))
    }

    fn longest_run(&self) -> Option<u32> {
        let mut best = 0..0;
        let mut run = 0..0;
        for page in &self.free {
            if run.end != *page {
                run = *page..*page;
            }
            run.end += 1;
            if run.len() > best.len() {
                best = run.clone();
            }
        }
        (!best.is_empty()).then_some(best.start)
    }

    /// The page that would be given up first.
    pub(crate) fn least_worth(&self) -> Option<PageId> {
        self.cached.first().map(|(_, page)| PageId(*page))
    }

    /// Holds a page once more.
    pub(crate) fn hold(&mut self, page: PageId) {
        let slot = &mut self.slots[page.index()];
        slot.refs += 1;
        if let Some(worth) = slot.worth.take() {
            self.cached.remove(&(worth, page.0));
        }
    }

    /// Holds a page once less; whether nobody does any more.
    pub(crate) fn drop_ref(&mut self, page: PageId) -> bool {
        let slot = &mut self.slots[page.index()];
        slot.refs = slot.refs.checked_sub(1).expect("a page is dropped as often as it was held");
        slot.refs == 0
    }

    /// Keeps a page that nobody holds until its memory is needed.
    pub(crate) fn cache(&mut self, page: PageId, worth: Worth) {
        let slot = &mut self.slots[page.index()];
        if let Some(old) = slot.worth.replace(worth) {
            self.cached.remove(&(old, page.0));
        }
        self.cached.insert((worth, page.0));
    }

    /// Gives a page back that nobody holds.
    pub(crate) fn give_back(&mut self, page: PageId) {
        let slot = &mut self.slots[page.index()];
        if let Some(worth) = slot.worth.take() {
            self.cached.remove(&(worth, page.0));
        }
        slot.node = None;
        self.free.insert(page.0);
    }

    pub(crate) fn refs(&self, page: PageId) -> u32 {
        self.slots[page.index()].refs
    }

    pub(crate) fn is_cached(&self, page: PageId) -> bool {
        self.slots[page.index()].worth.is_some()
    }

    pub(crate) fn node(&self, page: PageId) -> Option<NodeId> {
        self.slots[page.index()].node
    }

    pub(crate) fn set_node(&mut self, page: PageId, node: Option<NodeId>) {
        self.slots[page.index()].node = node;
    }

    /// Whether every page is in exactly one place.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        for (i, slot) in self.slots.iter().enumerate() {
            let (free, cached) = (self.free.contains(&(i as u32)), slot.worth.is_some());
            let places = u32::from(free) + u32::from(cached) + u32::from(slot.refs > 0);
            assert_eq!(places, 1, "page {i}: {slot:?}");
            assert!(!cached || slot.node.is_some(), "page {i} is kept but can't be found");
            assert!(slot.worth.is_none_or(|w| self.cached.contains(&(w, i as u32))));
        }
        let cached = self.slots.iter().filter(|s| s.worth.is_some()).count();
        assert_eq!(cached, self.cached.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_one_another_where_they_can() {
        let mut pool = Pool::new(8);
        let a = pool.take(None).unwrap();
        let b = pool.take(Some(a)).unwrap();
        assert_eq!((a, b), (PageId(0), PageId(1)));
        // Another sequence begins where most pages are free in a row.
        let c = pool.take(None).unwrap();
        let d = pool.take(Some(c)).unwrap();
        assert_eq!((c, d), (PageId(2), PageId(3)));
        assert!(pool.drop_ref(a));
        pool.give_back(a);
        assert_eq!(pool.take(None), Some(PageId(4)), "4..8 is longer than 0..1");
        assert_eq!(pool.take(Some(d)), Some(PageId(5)));
        pool.check();
    }

    #[test]
    fn what_is_worth_least_goes_first() {
        let mut pool = Pool::new(4);
        let pages: Vec<PageId> = (0..4).map(|_| pool.take(None).unwrap()).collect();
        let worth = |likely, used, depth| Worth { likely, used, depth: Reverse(depth) };
        let worths = [worth(true, 1, 0), worth(true, 1, 1), worth(false, 9, 0), worth(true, 2, 5)];
        for (page, worth) in pages.iter().zip(worths) {
            assert!(pool.drop_ref(*page));
            pool.set_node(*page, Some(NodeId(0)));
            pool.cache(*page, worth);
        }
        pool.check();
        let mut order = vec![];
        while let Some(page) = pool.least_worth() {
            pool.give_back(page);
            order.push(page.0);
        }
        assert_eq!(order, [2, 1, 0, 3]);
        assert_eq!((pool.n_free(), pool.available(), pool.len()), (4, 4, 4));
        pool.check();
    }
}
