//! The spelling of every token, in one piece of memory.

/// Spellings by id; empty for an id that has none.
pub(super) struct Vocab {
    text: String,
    /// Token `i` is `text[ends[i − 1]..ends[i]]`.
    ends: Vec<u32>,
}

impl Vocab {
    /// Takes spellings by id.
    pub(super) fn new<'a>(spellings: impl Iterator<Item = &'a str>) -> Self {
        let mut vocab = Vocab { text: String::new(), ends: vec![] };
        for spelling in spellings {
            vocab.text.push_str(spelling);
            vocab.ends.push(vocab.text.len() as u32);
        }
        vocab
    }

    /// Takes all spellings, one after another, and where each ends; `None` unless every end is a
    /// place between characters, behind or at the one before, and the last is the end.
    pub(super) fn from_parts(text: String, ends: Vec<u32>) -> Option<Self> {
        let in_order = ends.is_sorted() && ends.last().copied().unwrap_or(0) as usize == text.len();
        let whole = ends.iter().all(|end| text.is_char_boundary(*end as usize));
        (in_order && whole).then_some(Vocab { text, ends })
    }

    /// All spellings, one after another, and where each ends.
    pub(super) fn parts(&self) -> (&str, &[u32]) {
        (&self.text, &self.ends)
    }

    /// One past the highest id.
    pub(super) fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The spelling; empty if there is none.
    pub(super) fn get(&self, id: u32) -> &str {
        let id = id as usize;
        let Some(end) = self.ends.get(id) else { return "" };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.text[start as usize..*end as usize]
    }

    /// The id of a spelling, by looking at all.
    pub(super) fn find(&self, spelling: &str) -> Option<u32> {
        (0..self.len()).find(|id| !spelling.is_empty() && self.get(*id) == spelling)
    }
}
