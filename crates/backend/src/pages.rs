//! KV memory comes in pages: a page holds [`PAGE`] positions of every cache of its group.

/// Positions of one page, the same on every backend.
pub const PAGE: usize = 128;

/// The number of a page in the pool of its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// The pages that hold a sequence's positions in one group, in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageTable<'a> {
    /// Pages before these that are no longer held: `pages[0]` holds positions from
    /// `first · PAGE` on.
    pub first: u32,
    /// The pages.
    pub pages: &'a [PageId],
}

impl PageId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl PageTable<'_> {
    /// The page that holds a position, and the place in it; `None` if it is not held.
    pub fn find(&self, position: usize) -> Option<(PageId, usize)> {
        let number = (position / PAGE).checked_sub(self.first as usize)?;
        Some((*self.pages.get(number)?, position % PAGE))
    }
}

/// Pages that hold so many positions from the start of a page on.
pub const fn pages_for(positions: usize) -> usize {
    positions.div_ceil(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_found_by_its_page() {
        let pages = [PageId(7), PageId(3)];
        let table = PageTable { first: 2, pages: &pages };
        assert_eq!(table.find(2 * PAGE - 1), None);
        assert_eq!(table.find(2 * PAGE), Some((PageId(7), 0)));
        assert_eq!(table.find(4 * PAGE - 1), Some((PageId(3), PAGE - 1)));
        assert_eq!(table.find(4 * PAGE), None);
        assert_eq!([0, 1, PAGE, PAGE + 1].map(pages_for), [0, 1, 1, 2]);
    }
}
