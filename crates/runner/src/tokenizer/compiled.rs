//! A tokenizer as flat tables: what takes half a second to work out of a `tokenizer.json` is read
//! back in a few copies.
//!
//! Numbers are `u32`, least byte first. Eight counts come first, in the order of [`Counts`]; then
//! the tables that they count:
//!
//! ```text
//! ends    [tokens]       where the spelling of each token ends in `text`
//! starts  [tokens + 1]   where the merges of each left token start
//! merges  [merges × 3]   right token, rank, what the two become
//! chars   [chars × 2]    character, token
//! words   [words]        tokens in the order of their spellings
//! bytes   [0 or 256]     tokens of single bytes
//! added   [added × 2]    token, flags
//! settings               JSON
//! text                   all spellings
//! ```

use serde::{Deserialize, Serialize};

use super::Parts;
use super::added::Added;
use super::bpe::{Bpe, Merge, OwnTables};
use super::settings::Settings;
use super::vocab::Vocab;

/// To be changed with the form, and with what `tokenizer.json` files are taken for.
pub(super) const FORMAT: u32 = 1;

const SPECIAL: u32 = 1;
const LSTRIP: u32 = 2;
const RSTRIP: u32 = 4;

/// The flat form; `None` for a tokenizer that it can't hold.
pub(super) fn write(parts: &Parts) -> Option<Vec<u8>> {
    let (text, ends) = parts.vocab.parts();
    let tables = parts.bpe.tables();
    // An added token has its spelling in the vocabulary; only that is kept.
    if parts.added.iter().any(|token| parts.vocab.get(token.id) != token.content) {
        return None;
    }
    let options = Options {
        settings: &parts.settings,
        unk_id: parts.unk_id,
        fuse_unk: tables.fuse_unk,
        whole_words: tables.words.is_some(),
    };
    let options = serde_json::to_vec(&options).ok()?;
    let words = tables.words.unwrap_or_default();
    let bytes = tables.bytes.map_or(&[][..], |b| &b[..]);
    let counts = [
        ends.len(),
        tables.merges.len(),
        tables.chars.len(),
        words.len(),
        bytes.len(),
        parts.added.len(),
        options.len(),
        text.len(),
    ];
    let mut out = Writer(Vec::new());
    for n in counts {
        out.put([u32::try_from(n).ok()?]);
    }
    out.put(ends.iter().copied());
    out.put(tables.starts.iter().copied());
    out.put(tables.merges.iter().flat_map(|m| [m.right, m.rank, m.into]));
    out.put(tables.chars.iter().flat_map(|(c, id)| [*c, *id]));
    out.put(words.iter().copied());
    out.put(bytes.iter().copied());
    out.put(parts.added.iter().flat_map(|token| {
        let flag = |is: bool, bit: u32| if is { bit } else { 0 };
        let strip = flag(token.lstrip, LSTRIP) | flag(token.rstrip, RSTRIP);
        [token.id, flag(token.special, SPECIAL) | strip]
    }));
    out.0.extend_from_slice(&options);
    out.0.extend_from_slice(text.as_bytes());
    Some(out.0)
}

/// The tokenizer; `None` if the bytes are not such a form, whole and sound.
pub(super) fn read(bytes: &[u8]) -> Option<Parts> {
    let mut from = Reader(bytes);
    let mut count = || usize::try_from(*from.numbers(1)?.first()?).ok();
    let counts = Counts {
        tokens: count()?,
        merges: count()?,
        chars: count()?,
        words: count()?,
        bytes: count()?,
        added: count()?,
        options: count()?,
        text: count()?,
    };
    let n_tokens = u32::try_from(counts.tokens).ok()?;
    let ends = from.numbers(counts.tokens)?;
    let starts = from.numbers(counts.tokens.checked_add(1)?)?;
    let merges = from.groups(counts.merges, |[right, rank, into]| Merge { right, rank, into })?;
    let chars = from.groups(counts.chars, |[c, id]| (c, id))?;
    let words = from.numbers(counts.words)?;
    let byte_tokens = from.numbers(counts.bytes)?;
    let added = from.groups(counts.added, |[id, flags]| (id, flags))?;
    let options: OwnOptions = serde_json::from_slice(from.take(counts.options)?).ok()?;
    let text = from.take(counts.text)?;
    if !from.0.is_empty() {
        return None;
    }
    let vocab = Vocab::from_parts(std::str::from_utf8(text).ok()?.to_owned(), ends)?;
    let byte_tokens = match byte_tokens.len() {
        0 => None,
        _ => Some(Box::new(<[u32; 256]>::try_from(byte_tokens).ok()?)),
    };
    let tables = OwnTables {
        starts,
        merges,
        chars,
        bytes: byte_tokens,
        words: options.whole_words.then_some(words),
        unk: options.unk_id,
        fuse_unk: options.fuse_unk,
    };
    let bpe = Bpe::from_tables(tables, n_tokens)?;
    let added = added.into_iter().map(|(id, flags)| added_token(&vocab, id, flags));
    let added = added.collect::<Option<Vec<Added>>>()?;
    Some(Parts { vocab, bpe, settings: options.settings, added, unk_id: options.unk_id })
}

struct Counts {
    tokens: usize,
    merges: usize,
    chars: usize,
    words: usize,
    bytes: usize,
    added: usize,
    options: usize,
    text: usize,
}

#[derive(Serialize)]
struct Options<'a> {
    settings: &'a Settings,
    unk_id: Option<u32>,
    fuse_unk: bool,
    whole_words: bool,
}

#[derive(Deserialize)]
struct OwnOptions {
    settings: Settings,
    unk_id: Option<u32>,
    fuse_unk: bool,
    whole_words: bool,
}

fn added_token(vocab: &Vocab, id: u32, flags: u32) -> Option<Added> {
    let content = Some(vocab.get(id)).filter(|content| !content.is_empty())?.to_owned();
    let is = |bit: u32| flags & bit != 0;
    Some(Added { id, content, lstrip: is(LSTRIP), rstrip: is(RSTRIP), special: is(SPECIAL) })
}

struct Writer(Vec<u8>);

impl Writer {
    fn put(&mut self, numbers: impl IntoIterator<Item = u32>) {
        self.0.extend(numbers.into_iter().flat_map(u32::to_le_bytes));
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn numbers(&mut self, n: usize) -> Option<Vec<u32>> {
        let (numbers, _) = self.take(n.checked_mul(4)?)?.as_chunks::<4>();
        Some(numbers.iter().map(|b| u32::from_le_bytes(*b)).collect())
    }

    fn groups<T, const N: usize>(
        &mut self,
        n: usize,
        of: impl Fn([u32; N]) -> T,
    ) -> Option<Vec<T>> {
        let bytes = self.take(n.checked_mul(N)?.checked_mul(4)?)?;
        let (groups, _) = bytes.as_chunks::<4>().0.as_chunks::<N>();
        Some(groups.iter().map(|group| of(group.map(u32::from_le_bytes))).collect())
    }
}
