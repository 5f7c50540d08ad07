//! The spelling of every token, in one piece of memory.

use super::table::{Table, Text};

/// Spellings by id; empty for an id that has none.
pub(super) struct Vocab {
    text: Text,
    /// Token `i` is `text[ends[i − 1]..ends[i]]`.
    ends: Table<1>,
}

impl Vocab {
    /// Takes spellings by id.
    pub(super) fn new<'a>(spellings: impl Iterator<Item = &'a str>) -> Self {
        let (mut text, mut ends) = (String::new(), Vec::new());
        for spelling in spellings {
            text.push_str(spelling);
            ends.push([text.len() as u32]);
        }
        Vocab { text: Text::Own(text), ends: Table::Own(ends) }
    }

    /// Takes all spellings, one after another, and where each ends; `None` unless every end is a
    /// place between characters, at or after the one before, and the last is the end.
    pub(super) fn from_parts(text: Text, ends: Table<1>) -> Option<Self> {
        let last = ends.len().checked_sub(1).map_or(0, |i| ends.get(i)[0]);
        let in_order = ends.iter().is_sorted() && last as usize == text.bytes().len();
        let whole = ends.iter().all(|[end]| text.is_char_boundary(end as usize));
        (in_order && whole).then_some(Vocab { text, ends })
    }

    /// All spellings, one after another, and where each ends.
    pub(super) fn parts(&self) -> (&Text, &Table<1>) {
        (&self.text, &self.ends)
    }

    /// One past the highest id.
    pub(super) fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The spelling; empty if there is none.
    pub(super) fn get(&self, id: u32) -> &str {
        let id = id as usize;
        if id >= self.ends.len() {
            return "";
        }
        let [start] = if id == 0 { [0] } else { self.ends.get(id - 1) };
        let [end] = self.ends.get(id);
        self.text.get(start as usize..end as usize)
    }

    /// The id of a spelling, by looking at all.
    pub(super) fn find(&self, spelling: &str) -> Option<u32> {
        (0..self.len()).find(|id| !spelling.is_empty() && self.get(*id) == spelling)
    }
}
