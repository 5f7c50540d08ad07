//! `tokenizer.json`, read once, checked, and taken apart.

use std::borrow::Cow;
use std::fmt;

use foldhash::{HashMap, HashMapExt as _};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::Value;

use super::Parts;
use super::added::Added;
use super::bpe::{Bpe, BpeOptions};
use super::settings::Settings;
use super::vocab::Vocab;
use crate::error::{Error, Result};

/// The largest file that is read; the largest published one has 33 MiB.
const MAX_BYTES: usize = 128 << 20;

/// The longest token, in bytes; real ones have less than a hundred.
const MAX_TOKEN_BYTES: usize = 4096;

/// Ids are below this; the largest vocabularies have some 2¹⁸ tokens.
const MAX_ID: u32 = 1 << 22;

/// The most special tokens, and how far above the model's rows their ids may be.
const MAX_SPECIALS: u32 = 65_536;

/// Reads and checks the file. `serde_json` bounds the nesting.
pub(super) fn read(bytes: &[u8], vocab_size: u32) -> Result<Parts> {
    if bytes.len() > MAX_BYTES {
        return Err(invalid(format!("{} bytes, the limit is {MAX_BYTES}", bytes.len())));
    }
    let file: File<'_> = serde_json::from_slice(bytes).map_err(|e| invalid(e.to_string()))?;
    let File { added_tokens, normalizer, pre_tokenizer, decoder, model } = file;
    check_model(&model)?;
    let mut ids: HashMap<&str, u32> = HashMap::with_capacity(model.vocab.0.len());
    for (token, id) in &model.vocab.0 {
        ids.insert(token, *id);
    }
    for token in &added_tokens {
        place(token, &mut ids)?;
    }
    let n_specials = added_tokens.iter().filter(|t| t.special).count();
    if u32::try_from(n_specials).map_or(true, |n| n > MAX_SPECIALS) {
        return Err(invalid(format!("{n_specials} special tokens, the limit is {MAX_SPECIALS}")));
    }
    let vocab = spellings(&ids, &added_tokens, vocab_size)?;
    let merges = merge_ids(&model.merges.0, &ids)?;
    let unk_id = match &model.unk_token {
        None => None,
        Some(unk) => Some(*ids.get(unk.as_str()).ok_or_else(|| {
            invalid(format!("the unknown token `{unk}` is not in the vocabulary"))
        })?),
    };
    let options = BpeOptions {
        unk: unk_id,
        fuse_unk: model.fuse_unk,
        byte_fallback: model.byte_fallback,
        ignore_merges: model.ignore_merges,
    };
    let bpe = Bpe::new(&vocab, &merges, options);
    let settings = Settings { normalizer, pre_tokenizer, decoder };
    let added = added_tokens.into_iter().map(AddedEntry::take).collect();
    Ok(Parts { vocab, bpe, settings, added, unk_id })
}

#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    added_tokens: Vec<AddedEntry>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct AddedEntry {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(borrow)]
    vocab: VocabEntries<'a>,
    #[serde(borrow)]
    merges: MergeEntries<'a>,
}

/// Tokens and ids as they stand in the file.
struct VocabEntries<'a>(Vec<(Cow<'a, str>, u32)>);

/// Merges as they stand in the file: `["a", "b"]` or, in older files, `"a b"`.
struct MergeEntries<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl AddedEntry {
    fn take(self) -> Added {
        let AddedEntry { id, content, lstrip, rstrip, special, .. } = self;
        Added { id, content, lstrip, rstrip, special }
    }
}

fn check_model(model: &Model<'_>) -> Result<()> {
    match model.kind.as_deref() {
        None | Some("BPE") => {}
        Some(other) => {
            return Err(invalid(format!("model type `{other}` is not supported; BPE is")));
        }
    }
    let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
    match affixes.into_iter().flatten().find(|s| !s.is_empty()) {
        Some(affix) => {
            Err(invalid(format!("the affix `{affix}` on parts of words is not supported")))
        }
        None => Ok(()),
    }
}

/// Gives an added token its declared id, whether the model has it in its vocabulary or not.
fn place<'a>(token: &'a AddedEntry, ids: &mut HashMap<&'a str, u32>) -> Result<()> {
    let AddedEntry { id, content, .. } = token;
    if content.is_empty() {
        return Err(invalid(format!("added token {id} is empty")));
    }
    if token.single_word {
        return Err(invalid(format!("added token `{content}` uses `single_word`")));
    }
    match *ids.entry(content).or_insert(*id) {
        have if have == *id => Ok(()),
        have => Err(invalid(format!("token `{content}` has two ids, {have} and {id}"))),
    }
}

/// Spellings by id. Every id is below `vocab_size`, but for special tokens that the program has no
/// row for; using those is refused later.
fn spellings(ids: &HashMap<&str, u32>, added: &[AddedEntry], vocab_size: u32) -> Result<Vocab> {
    if let Some((token, id)) = ids.iter().find(|(_, id)| **id >= MAX_ID) {
        return Err(invalid(format!("token `{token}` has id {id}, the limit is {MAX_ID}")));
    }
    let mut by_id: Vec<&str> = Vec::new();
    let highest = ids.values().copied().filter(|id| *id < vocab_size).max();
    by_id.resize(highest.map_or(0, length), "");
    let mut above: HashMap<u32, &str> = HashMap::new();
    for token in added.iter().filter(|t| t.special && t.id >= vocab_size) {
        if token.id.saturating_sub(vocab_size) < MAX_SPECIALS {
            above.insert(token.id, &token.content);
        }
    }
    for (token, id) in ids {
        if token.is_empty() {
            return Err(invalid(format!("token {id} is empty")));
        }
        if token.len() > MAX_TOKEN_BYTES {
            let n = token.len();
            return Err(invalid(format!(
                "token {id} has {n} bytes, the limit is {MAX_TOKEN_BYTES}"
            )));
        }
        match by_id.get_mut(length(*id).saturating_sub(1)) {
            Some(spelling) if spelling.is_empty() => *spelling = token,
            Some(other) => {
                return Err(invalid(format!("tokens `{token}` and `{other}` have id {id}")));
            }
            None if above.get(id) == Some(token) => {}
            None => {
                return Err(invalid(format!(
                    "token `{token}` has id {id}, and the model has {vocab_size} rows"
                )));
            }
        }
    }
    if let Some(last) = above.keys().max() {
        by_id.resize(length(*last), "");
    }
    for (id, token) in above {
        if let Some(spelling) = by_id.get_mut(length(id).saturating_sub(1)) {
            *spelling = token;
        }
    }
    Ok(Vocab::new(by_id.into_iter()))
}

/// The length of a table whose last entry is `id`.
fn length(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX).saturating_add(1)
}

/// Merges as ids: left, right, and what they become.
fn merge_ids(
    merges: &[(Cow<'_, str>, Cow<'_, str>)],
    ids: &HashMap<&str, u32>,
) -> Result<Vec<(u32, u32, u32)>> {
    let mut joined = String::new();
    let mut found = Vec::with_capacity(merges.len());
    for (rank, (left, right)) in merges.iter().enumerate() {
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let all = [left.as_ref(), right.as_ref(), joined.as_str()].map(|t| ids.get(t).copied());
        let [Some(a), Some(b), Some(into)] = all else {
            return Err(invalid(format!(
                "merge {rank} (`{left}` `{right}`) is not in the vocabulary"
            )));
        };
        found.push((a, b, into));
    }
    Ok(found)
}

impl<'de: 'a, 'a> Deserialize<'de> for VocabEntries<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vec<(Cow<'de, str>, u32)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tokens to ids")
            }
            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((Text(token), id)) = map.next_entry()? {
                    entries.push((token, id));
                }
                Ok(entries)
            }
        }
        d.deserialize_map(Entries).map(VocabEntries)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for MergeEntries<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vec<(Cow<'de, str>, Cow<'de, str>)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of merges")
            }
            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(Merge(left, right)) = list.next_element()? {
                    entries.push((left, right));
                }
                Ok(entries)
            }
        }
        d.deserialize_seq(Entries).map(MergeEntries)
    }
}

/// A string that is borrowed from the file where it stands there as it is.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Str;
        impl<'de> Visitor<'de> for Str {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token")
            }
            fn visit_borrowed_str<E>(self, s: &'de str) -> std::result::Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(s)))
            }
            fn visit_str<E>(self, s: &str) -> std::result::Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(s.to_owned())))
            }
        }
        d.deserialize_str(Str)
    }
}

struct Merge<'a>(Cow<'a, str>, Cow<'a, str>);

impl<'de> Deserialize<'de> for Merge<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: two tokens")
            }
            fn visit_str<E: de::Error>(self, s: &str) -> std::result::Result<Merge<'de>, E> {
                match s.split_once(' ') {
                    Some((a, b)) if !b.contains(' ') => {
                        Ok(Merge(Cow::Owned(a.to_owned()), Cow::Owned(b.to_owned())))
                    }
                    _ => Err(E::invalid_value(de::Unexpected::Str(s), &self)),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> std::result::Result<Merge<'de>, A::Error> {
                let short = |n| de::Error::invalid_length(n, &Pair);
                let Text(a) = list.next_element()?.ok_or_else(|| short(0))?;
                let Text(b) = list.next_element()?.ok_or_else(|| short(1))?;
                match list.next_element::<de::IgnoredAny>()? {
                    None => Ok(Merge(a, b)),
                    Some(_) => Err(short(3)),
                }
            }
        }
        d.deserialize_any(Pair)
    }
}

fn invalid(what: impl Into<String>) -> Error {
    Error::Tokenizer(what.into())
}
