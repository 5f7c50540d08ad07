//! A tokenizer as flat tables: what takes half a second to work out of a `tokenizer.json` is checked
//! and used where it stands.
//!
//! Numbers are `u32`, least byte first. Eight counts come first, then the tables that they
//! count, in the same order but for `starts`:
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
use super::bpe::{Bpe, OwnTables};
use super::settings::Settings;
use super::table::{Piece, Table, Text};
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
    let n_words = tables.words.map_or(0, Table::len);
    let bytes = tables.bytes.map_or(&[][..], |b| &b[..]);
    let counts = [
        ends.len(),
        tables.merges.len(),
        tables.chars.len(),
        n_words,
        bytes.len(),
        parts.added.len(),
        options.len(),
        text.bytes().len(),
    ];
    let mut out = Writer(Vec::new());
    for n in counts {
        out.put([u32::try_from(n).ok()?]);
    }
    out.put(ends.iter().flatten());
    out.put(tables.starts.iter().flatten());
    out.put(tables.merges.iter().flatten());
    out.put(tables.chars.iter().flatten());
    out.put(tables.words.into_iter().flat_map(Table::iter).flatten());
    out.put(bytes.iter().copied());
    out.put(parts.added.iter().flat_map(|token| {
        let flag = |is: bool, bit: u32| if is { bit } else { 0 };
        let strip = flag(token.lstrip, LSTRIP) | flag(token.rstrip, RSTRIP);
        [token.id, flag(token.special, SPECIAL) | strip]
    }));
    out.0.extend_from_slice(&options);
    out.0.extend_from_slice(text.bytes());
    Some(out.0)
}

/// The tokenizer; `None` if the bytes are not such a form, whole and audio.
pub(super) fn read(mut from: Piece) -> Option<Parts> {
    let [tokens, merges, chars, words, bytes, added, options, text] = counts(&mut from)?;
    let n_tokens = u32::try_from(tokens).ok()?;
    let ends = table(&mut from, tokens)?;
    let starts = table(&mut from, tokens.checked_add(1)?)?;
    let merges = table(&mut from, merges)?;
    let chars = table(&mut from, chars)?;
    let words = table(&mut from, words)?;
    let byte_tokens: Vec<u32> = table::<1>(&mut from, bytes)?.iter().flatten().collect();
    let added = table::<2>(&mut from, added)?;
    let options: OwnOptions = serde_json::from_slice(from.take(options)?.bytes()).ok()?;
    let text = from.take(text)?;
    if !from.bytes().is_empty() {
        return None;
    }
    let vocab = Vocab::from_parts(Text::kept(text)?, ends)?;
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
    let added = added.iter().map(|[id, flags]| added_token(&vocab, id, flags));
    let added = added.collect::<Option<Vec<Added>>>()?;
    Some(Parts { vocab, bpe, settings: options.settings, added, unk_id: options.unk_id })
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

fn counts<const N: usize>(from: &mut Piece) -> Option<[usize; N]> {
    let counts = table::<N>(from, 1)?.get(0);
    let counts: Option<Vec<usize>> = counts.iter().map(|n| usize::try_from(*n).ok()).collect();
    counts?.try_into().ok()
}

fn table<const N: usize>(from: &mut Piece, n: usize) -> Option<Table<N>> {
    Some(Table::Kept(from.take(n.checked_mul(N)?.checked_mul(4)?)?))
}
