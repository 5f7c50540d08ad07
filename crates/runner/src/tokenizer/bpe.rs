//! Byte-pair encoding over tables that load fast.
//!
//! Some vocabularies do not split text into words, so one "word" may be the whole prompt: merging
//! is by a heap, `n log n` in the length of the text. The merge that comes first in the file goes
//! first, the leftmost among equals.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

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
    words: Option<Vec<u32>>,
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
    starts: Vec<u32>,
    all: Vec<Merge>,
}

#[derive(Clone, Copy)]
pub(super) struct Merge {
    pub(super) right: u32,
    pub(super) rank: u32,
    pub(super) into: u32,
}

/// Tokens of one character.
pub(super) struct Chars {
    /// In the order of the characters, each once.
    all: Vec<(u32, u32)>,
    /// Tokens of the first characters; `NONE` where there is none.
    ascii: [u32; 128],
}

/// The tables of a [`Bpe`], to be kept and taken up again.
pub(super) struct Tables<'a> {
    /// Where the merges of each left token start, and after those where the last end.
    pub(super) starts: &'a [u32],
    pub(super) merges: &'a [Merge],
    /// Characters and their tokens.
    pub(super) chars: &'a [(u32, u32)],
    pub(super) bytes: Option<&'a [u32; 256]>,
    pub(super) words: Option<&'a [u32]>,
    pub(super) fuse_unk: bool,
}

/// The same, owned, with the token for what the vocabulary can't spell.
pub(super) struct OwnTables {
    pub(super) starts: Vec<u32>,
    pub(super) merges: Vec<Merge>,
    pub(super) chars: Vec<(u32, u32)>,
    pub(super) bytes: Option<Box<[u32; 256]>>,
    pub(super) words: Option<Vec<u32>>,
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
                chars.push((u32::from(c), id));
            }
        }
        chars.sort_unstable();
        let bytes = options.byte_fallback.then(|| byte_tokens(vocab)).flatten();
        let words = options.ignore_merges.then(|| {
            let mut ids: Vec<u32> =
                (0..vocab.len()).filter(|i| !vocab.get(*i).is_empty()).collect();
            ids.sort_unstable_by_key(|i| vocab.get(*i));
            ids
        });
        Bpe {
            merges: Merges::new(vocab.len(), merges),
            chars: Chars::new(chars),
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
        let known = |id: &u32| *id < n_tokens;
        let sound = starts.len() == n_tokens as usize + 1
            && starts.first() == Some(&0)
            && starts.last().copied() == u32::try_from(merges.len()).ok()
            && starts.is_sorted()
            && merges.iter().all(|m| known(&m.right) && known(&m.into))
            && chars.iter().all(|(_, id)| known(id))
            && chars.is_sorted_by(|a, b| a.0 < b.0)
            && bytes.iter().flat_map(|b| b.iter()).all(known)
            && words.iter().flatten().all(known)
            && unk.iter().all(known);
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
            words: self.words.as_deref(),
            fuse_unk: self.fuse_unk,
        }
    }

    /// Appends the tokens of one word.
    pub(super) fn encode(&self, word: &str, vocab: &Vocab, ids: &mut Vec<u32>) {
        if let Some(words) = &self.words
            && let Ok(i) = words.binary_search_by_key(&word, |id| vocab.get(*id))
        {
            ids.push(words[i]);
            return;
        }
        let mut symbols = self.symbols(word);
        self.merge(&mut symbols);
        ids.extend(symbols.iter().filter(|s| s.alive).map(|s| s.id));
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
    fn new(all: Vec<(u32, u32)>) -> Self {
        let mut ascii = [NONE; 128];
        for (c, id) in &all {
            if let Some(entry) = ascii.get_mut(*c as usize) {
                *entry = *id;
            }
        }
        Chars { all, ascii }
    }

    fn get(&self, c: char) -> Option<u32> {
        let c = u32::from(c);
        match self.ascii.get(c as usize) {
            Some(id) => Some(*id).filter(|id| *id != NONE),
            None => self.all.binary_search_by_key(&c, |e| e.0).ok().map(|i| self.all[i].1),
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
        let mut all = vec![Merge { right: 0, rank: 0, into: 0 }; merges.len()];
        for (rank, (left, right, into)) in merges.iter().enumerate() {
            let next = &mut starts[*left as usize + 1];
            all[*next as usize] = Merge { right: *right, rank: rank as u32, into: *into };
            *next += 1;
        }
        starts.pop();
        for left in 0..vocab as usize {
            let bucket = &mut all[starts[left] as usize..starts[left + 1] as usize];
            bucket.sort_unstable_by_key(|m| (m.right, Reverse(m.rank)));
        }
        Merges { starts, all }
    }

    fn get(&self, left: u32, right: u32) -> Option<Merge> {
        let left = left as usize;
        let bucket = &self.all[self.starts[left] as usize..self.starts[left + 1] as usize];
        let i = bucket.partition_point(|m| m.right < right);
        bucket.get(i).filter(|m| m.right == right).copied()
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
