//! Byte-pair encoding over tables that load fast.
//!
//! Some vocabularies do not split text into words, so one "word" may be the whole prompt: merging
//! is by a heap, `n log n` in the length of the text. The merge that comes first in the file goes
//! first, the leftmost among equals.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::table::Table;
use super::vocab::Vocab;

/// A vocabulary with its merges.
pub(super) struct Bpe {
    merges: Merges,
    chars: Chars,
    /// The tokens `<0x00>` to `<0xFF>`, if unknown characters fall back to their bytes.
    bytes: Option<Box<[u32; 256]>>,
    unk: Option<u32>,
    /// Whether a run of unknown characters is one token.
    fuse_unk: bool,
    /// Tokens in the order of their text, if a whole word is looked up before it is merged.
    words: Option<Table<1>>,
}

/// How a model treats what is not plain merging.
pub(super) struct BpeOptions {
    pub(super) unk: Option<u32>,
    pub(super) fuse_unk: bool,
    pub(super) byte_fallback: bool,
    pub(super) ignore_merges: bool,
}

/// All merges, by their left token and then by their right.
pub(super) struct Merges {
    /// Merges of left token `a` are `all[starts[a]..starts[a + 1]]`.
    starts: Table<1>,
    /// Right token, rank, what the two become.
    all: Table<3>,
}

#[derive(Clone, Copy)]
struct Merge {
    rank: u32,
    into: u32,
}

/// Tokens of one character.
pub(super) struct Chars {
    /// Characters, each once and in order, and their tokens.
    all: Table<2>,
    /// Tokens of the first characters; `NONE` where there is none.
    ascii: [u32; 128],
}

/// The tables of a [`Bpe`], to be kept.
pub(super) struct Tables<'a> {
    /// Where the merges of each left token start, and after those where the last end.
    pub(super) starts: &'a Table<1>,
    /// Right token, rank, what the two become.
    pub(super) merges: &'a Table<3>,
    /// Characters and their tokens.
    pub(super) chars: &'a Table<2>,
    pub(super) bytes: Option<&'a [u32; 256]>,
    pub(super) words: Option<&'a Table<1>>,
    pub(super) fuse_unk: bool,
}

/// The same, to be taken up again, with the token for what the vocabulary can't spell.
pub(super) struct OwnTables {
    pub(super) starts: Table<1>,
    pub(super) merges: Table<3>,
    pub(super) chars: Table<2>,
    pub(super) bytes: Option<Box<[u32; 256]>>,
    pub(super) words: Option<Table<1>>,
    pub(super) unk: Option<u32>,
    pub(super) fuse_unk: bool,
}

/// One piece of the text while it is merged; a doubly linked list by index.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
    alive: bool,
}

const NONE: u32 = u32::MAX;

impl Bpe {
    /// `merges` are pairs of token ids and what they become, first first.
    pub(super) fn new(vocab: &Vocab, merges: &[(u32, u32, u32)], options: BpeOptions) -> Self {
        let mut chars = Vec::new();
        for id in 0..vocab.len() {
            let mut text = vocab.get(id).chars();
            if let (Some(c), None) = (text.next(), text.next()) {
                chars.push([u32::from(c), id]);
            }
        }
        chars.sort_unstable();
        let bytes = options.byte_fallback.then(|| byte_tokens(vocab)).flatten();
        let words = options.ignore_merges.then(|| {
            let mut ids: Vec<u32> =
                (0..vocab.len()).filter(|i| !vocab.get(*i).is_empty()).collect();
            ids.sort_unstable_by_key(|i| vocab.get(*i));
            Table::Own(ids.into_iter().map(|id| [id]).collect())
        });
        Bpe {
            merges: Merges::new(vocab.len(), merges),
            chars: Chars::new(Table::Own(chars)),
            bytes,
            unk: options.unk,
            fuse_unk: options.fuse_unk,
            words,
        }
    }

    /// Takes up tables that were kept; `None` if one of them points at what a vocabulary of
    /// `n_tokens` does not have.
    pub(super) fn from_tables(tables: OwnTables, n_tokens: u32) -> Option<Self> {
        let OwnTables { starts, merges, chars, bytes, words, unk, fuse_unk } = tables;
        let known = |id: u32| id < n_tokens;
        let sound = starts.len() == n_tokens as usize + 1
            && starts.get(0) == [0]
            && Some(starts.get(n_tokens as usize)[0]) == u32::try_from(merges.len()).ok()
            && starts.iter().is_sorted()
            && merges.iter().all(|[right, _, into]| known(right) && known(into))
            && chars.iter().all(|[_, id]| known(id))
            && chars.iter().is_sorted_by(|[a, _], [b, _]| a < b)
            && bytes.iter().flat_map(|b| b.iter()).all(|id| known(*id))
            && words.iter().flat_map(Table::iter).all(|[id]| known(id))
            && unk.is_none_or(known);
        let merges = Merges { starts, all: merges };
        sound.then(|| Bpe { merges, chars: Chars::new(chars), bytes, unk, fuse_unk, words })
    }

    /// The tables, to be kept.
    pub(super) fn tables(&self) -> Tables<'_> {
        Tables {
            starts: &self.merges.starts,
            merges: &self.merges.all,
            chars: &self.chars.all,
            bytes: self.bytes.as_deref(),
            words: self.words.as_ref(),
            fuse_unk: self.fuse_unk,
        }
    }

    /// Appends the tokens of one word.
    pub(super) fn encode(&self, word: &str, vocab: &Vocab, ids: &mut Vec<u32>) {
        if let Some(id) = self.whole(word, vocab) {
            ids.push(id);
            return;
        }
        let mut symbols = self.symbols(word);
        self.merge(&mut symbols);
        ids.extend(symbols.iter().filter(|s| s.alive).map(|s| s.id));
    }

    /// The token that is a whole word, if words are looked up.
    fn whole(&self, word: &str, vocab: &Vocab) -> Option<u32> {
        let words = self.words.as_ref()?;
        let i = words.partition_point(0..words.len(), |[id]| vocab.get(id) < word);
        let found = (i < words.len()).then(|| words.get(i)[0]);
        found.filter(|id| vocab.get(*id) == word)
    }

    /// The word as single characters, or bytes, or unknown tokens.
    fn symbols(&self, word: &str) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(word.len());
        let mut push = |id: u32| {
            let i = symbols.len() as u32;
            let previous = i.checked_sub(1).unwrap_or(NONE);
            symbols.push(Symbol { id, previous, next: i + 1, alive: true });
        };
        let mut after_unk = false;
        for c in word.chars() {
            let mut unknown = false;
            if let Some(id) = self.chars.get(c) {
                push(id);
            } else if let Some(bytes) = &self.bytes {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| push(bytes[usize::from(b)]));
            } else if let Some(unk) = self.unk {
                if !(after_unk && self.fuse_unk) {
                    push(unk);
                }
                unknown = true;
            }
            after_unk = unknown;
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        symbols
    }

    fn merge(&self, symbols: &mut [Symbol]) {
        // Rank above position, so that the least key is the next merge.
        let key = |m: Merge, at: u32| Reverse(u64::from(m.rank) << 32 | u64::from(at));
        let found = |symbols: &[Symbol], left: u32, right: u32| {
            self.merges.get(symbols[left as usize].id, symbols[right as usize].id)
        };
        let mut heap: BinaryHeap<Reverse<u64>> = (1..symbols.len() as u32)
            .filter_map(|right| found(symbols, right - 1, right).map(|m| key(m, right - 1)))
            .collect();
        while let Some(Reverse(top)) = heap.pop() {
            let (rank, at) = ((top >> 32) as u32, top as u32);
            let Symbol { next, previous, alive, .. } = symbols[at as usize];
            if !alive || next == NONE {
                continue;
            }
            // What stood here may have been merged otherwise since.
            let Some(merge) = found(symbols, at, next).filter(|m| m.rank == rank) else { continue };
            let after = symbols[next as usize].next;
            symbols[next as usize].alive = false;
            symbols[at as usize].id = merge.into;
            symbols[at as usize].next = after;
            if after != NONE {
                symbols[after as usize].previous = at;
                heap.extend(found(symbols, at, after).map(|m| key(m, at)));
            }
            if previous != NONE {
                heap.extend(found(symbols, previous, at).map(|m| key(m, previous)));
            }
        }
    }
}

impl Chars {
    /// Takes characters in order, each once: no two tokens have one spelling.
    fn new(all: Table<2>) -> Self {
        let mut ascii = [NONE; 128];
        for [c, id] in all.iter().take_while(|[c, _]| *c < 128) {
            ascii[c as usize] = id;
        }
        Chars { all, ascii }
    }

    fn get(&self, c: char) -> Option<u32> {
        let c = u32::from(c);
        match self.ascii.get(c as usize) {
            Some(id) => Some(*id).filter(|id| *id != NONE),
            None => {
                let i = self.all.partition_point(0..self.all.len(), |[e, _]| e < c);
                let found = (i < self.all.len()).then(|| self.all.get(i));
                found.filter(|[e, _]| *e == c).map(|[_, id]| id)
            }
        }
    }
}

impl Merges {
    fn new(vocab: u32, merges: &[(u32, u32, u32)]) -> Self {
        // A counting sort by the left token keeps the order of ranks; of a pair that stands twice
        // the later counts, as in the library that wrote the file.
        let mut starts = vec![0u32; vocab as usize + 2];
        for (left, ..) in merges {
            starts[*left as usize + 2] += 1;
        }
        for i in 2..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut all = vec![[0; 3]; merges.len()];
        for (rank, (left, right, into)) in merges.iter().enumerate() {
            let next = &mut starts[*left as usize + 1];
            all[*next as usize] = [*right, rank as u32, *into];
            *next += 1;
        }
        starts.pop();
        for left in 0..vocab as usize {
            let bucket = &mut all[starts[left] as usize..starts[left + 1] as usize];
            bucket.sort_unstable_by_key(|[right, rank, _]| (*right, Reverse(*rank)));
        }
        let starts = starts.into_iter().map(|start| [start]).collect();
        Merges { starts: Table::Own(starts), all: Table::Own(all) }
    }

    fn get(&self, left: u32, right: u32) -> Option<Merge> {
        let [start] = self.starts.get(left as usize);
        let [end] = self.starts.get(left as usize + 1);
        let i = self.all.partition_point(start as usize..end as usize, |[r, ..]| r < right);
        let found = (i < end as usize).then(|| self.all.get(i));
        found.filter(|[r, ..]| *r == right).map(|[_, rank, into]| Merge { rank, into })
    }
}

/// The tokens of all bytes; `None` if one is missing.
fn byte_tokens(vocab: &Vocab) -> Option<Box<[u32; 256]>> {
    let mut bytes = Box::new([NONE; 256]);
    for id in 0..vocab.len() {
        if let Some(b) = super::decode::byte_token(vocab.get(id)) {
            bytes[usize::from(b)] = id;
        }
    }
    (!bytes.contains(&NONE)).then_some(bytes)
}
