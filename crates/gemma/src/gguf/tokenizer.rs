//! A `tokenizer.json` made of a GGUF's vocabulary, and the ids that stand beside it.
//!
//! Two kinds are read. `llama` is SentencePiece with scores (Gemma 3); its merges are worked out.
//! `gemma4` has the same pieces with their merges written down. Both are BPE over text whose
//! spaces are `▁`, with bytes for what has no piece.

use std::borrow::Cow;
use std::ops::Range;

use foldhash::{HashMap, HashMapExt as _};

use super::cursor::damaged;
use super::merges::{Merge, Piece, from_scores};
use super::reader::Gguf;
use super::tokenizer_json::{self, Contents, SPACE};
use super::value::{Value, narrow};
use crate::error::{Error, Result};

/// What a GGUF says about its vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct Vocabulary {
    /// A Hugging Face `tokenizer.json`.
    pub tokenizer_json: Vec<u8>,
    /// Number of pieces.
    pub n_tokens: u32,
    /// Begin of sequence.
    pub bos_id: Option<u32>,
    /// Padding.
    pub pad_id: Option<u32>,
    /// Tokens that end an answer, in rising order.
    pub eos_ids: Vec<u32>,
    /// Tokens that are never sampled.
    pub suppress_ids: Vec<u32>,
    /// Whether plain text is preceded by `bos_id`.
    pub add_bos: bool,
}

/// The most pieces that are read; Gemma has a quarter of that.
const MAX_TOKENS: usize = 1 << 20;
/// The longest piece that is read; Gemma's longest has 93 bytes. Working out merges takes time by
/// the square of it.
const MAX_TOKEN_BYTES: usize = 512;

/// Tokens that structure a conversation. Text from users must never turn into one, so they are
/// special whatever the file says: llama.cpp marks some of them as plain to make them visible.
const CONTROL: [&str; 28] = [
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
    "<|think|>",
    "<|channel>",
    "<channel|>",
    "<|turn>",
    "<turn|>",
    "<|image>",
    "<|audio>",
    "<|image|>",
    "<|audio|>",
    "<image|>",
    "<audio|>",
    "<|video|>",
];

/// Tokens that end an answer wherever they exist: the end of a turn, and the place where the
/// model waits for a tool.
const END: [&str; 3] = ["<end_of_turn>", "<turn|>", "<|tool_response>"];

/// Reads the vocabulary; `None` if the file has none. `vocab_size` is the number of rows of the
/// embedding.
pub fn vocabulary(file: &Gguf, vocab_size: u32) -> Result<Option<Vocabulary>> {
    let Some(kind) = Kind::read(file)? else { return Ok(None) };
    let pieces = Pieces::read(file, kind, vocab_size)?;
    let merges = match kind {
        Kind::Scores => pieces.merges_from_scores(file)?,
        Kind::Merges => pieces.merges_from_file(file)?,
    };
    let ids = TokenIds::read(file, kind, token_ranges(file, vocab_size)?)?;
    let added: Vec<(u32, bool)> = pieces
        .iter()
        .filter_map(|(id, text, token_type)| Some((id, added(kind, text, token_type)?)))
        .collect();
    let tokenizer_json = tokenizer_json::write(&Contents {
        tokens: &pieces.tokens,
        added: &added,
        merges: &merges,
        unk: pieces.unknown(file)?,
        // Gemma 4's own file leaves the first token to its caller.
        bos: ids.bos.filter(|_| ids.add_bos && kind == Kind::Scores),
        space_prefix: file.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(false),
    })?;
    Ok(Some(Vocabulary {
        tokenizer_json,
        n_tokens: u32::try_from(pieces.tokens.len()).unwrap_or(u32::MAX),
        bos_id: ids.bos,
        pad_id: ids.pad,
        eos_ids: ids.eos,
        suppress_ids: ids.suppress,
        add_bos: ids.add_bos,
    }))
}

/// The ids alone, which cost little; `None` if the file has no vocabulary. What else may be wrong
/// with it shows when [`vocabulary`] reads it.
pub(super) fn token_ids(file: &Gguf, vocab_size: u32) -> Result<Option<TokenIds>> {
    let Some(kind) = Kind::read(file)? else { return Ok(None) };
    TokenIds::read(file, kind, token_ranges(file, vocab_size)?).map(Some)
}

/// A hash of all that [`vocabulary`] looks at.
pub(super) fn identity(file: &Gguf, vocab_size: u32) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    // To be changed with what `vocabulary` makes of a file.
    hasher.update(concat!("lapidary ", env!("CARGO_PKG_VERSION"), " gguf 1\n").as_bytes());
    hasher.update(&vocab_size.to_le_bytes());
    file.hash_entries(&mut hasher, "tokenizer.ggml.");
    *hasher.finalize().as_bytes()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Scores,
    Merges,
}

impl Kind {
    fn read(file: &Gguf) -> Result<Option<Kind>> {
        match file.text("tokenizer.ggml.model")? {
            None => Ok(None),
            Some("llama") => Ok(Some(Kind::Scores)),
            Some("gemma4") => Ok(Some(Kind::Merges)),
            Some(other) => Err(Error::config(format!(
                "its tokenizer is of the kind `{other}`; `llama` and `gemma4` are read; convert \
                 the checkpoint again with its tokenizer.model or tokenizer.json beside it"
            ))),
        }
    }
}

/// Where the pieces stand; as many as the embedding has rows for.
fn token_ranges(file: &Gguf, vocab_size: u32) -> Result<&[Range<usize>]> {
    let key = "tokenizer.ggml.tokens";
    let ranges = file.texts(key)?.unwrap_or_default();
    let limit = usize::try_from(vocab_size).unwrap_or(MAX_TOKENS).min(MAX_TOKENS);
    if ranges.is_empty() || ranges.len() > limit {
        let n = ranges.len();
        return Err(Error::config(format!(
            "`{key}` has {n} tokens, the embedding has {vocab_size} rows"
        )));
    }
    Ok(ranges)
}

/// The token types of llama.cpp.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

struct Pieces<'a> {
    tokens: Vec<Cow<'a, str>>,
    types: Vec<TokenType>,
}

impl<'a> Pieces<'a> {
    fn read(file: &'a Gguf, kind: Kind, vocab_size: u32) -> Result<Self> {
        let ranges = token_ranges(file, vocab_size)?;
        let types = token_types(file, ranges.len())?;
        let mut tokens = Vec::with_capacity(ranges.len());
        for (id, (range, token_type)) in ranges.iter().zip(&types).enumerate() {
            let bytes = file.slice(range);
            let text = std::str::from_utf8(bytes)
                .map_err(|_| damaged(range.start, format!("token {id} is not UTF-8")))?;
            if text.is_empty() || text.len() > MAX_TOKEN_BYTES {
                let n = text.len();
                let what = format!("token {id} has {n} bytes, not 1 to {MAX_TOKEN_BYTES}");
                return Err(damaged(range.start, what));
            }
            // The converter writes plain spaces into the pieces that SentencePiece calls
            // user-defined, and only there.
            let spaced = kind == Kind::Scores && *token_type == TokenType::UserDefined;
            let spaced = spaced && text.contains(' ');
            tokens.push(if spaced { text.replace(' ', SPACE).into() } else { text.into() });
        }
        Ok(Pieces { tokens, types })
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &str, TokenType)> {
        let pieces = self.tokens.iter().zip(&self.types);
        (0u32..).zip(pieces).map(|(id, (text, kind))| (id, text.as_ref(), *kind))
    }

    fn ids(&self) -> Result<HashMap<&str, u32>> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (id, text, _) in self.iter() {
            if let Some(first) = ids.insert(text, id) {
                return Err(Error::config(format!("tokens {first} and {id} are both `{text}`")));
            }
        }
        Ok(ids)
    }

    /// What stands for text that has neither pieces nor bytes.
    fn unknown(&self, file: &Gguf) -> Result<Option<u32>> {
        if let Some(id) = token_id(file, "unknown", self.tokens.len())? {
            return Ok(Some(id));
        }
        let by_type = self.iter().find(|(.., kind)| *kind == TokenType::Unknown);
        Ok(by_type.or_else(|| self.iter().find(|(_, text, _)| *text == "<unk>")).map(|p| p.0))
    }

    fn text(&self, id: u32) -> &str {
        usize::try_from(id).ok().and_then(|i| self.tokens.get(i)).map_or("", AsRef::as_ref)
    }

    fn merges_from_scores(&self, file: &Gguf) -> Result<Vec<Merge>> {
        let ids = self.ids()?;
        let key = "tokenizer.ggml.scores";
        let scores = file.scalars(key)?.unwrap_or_default();
        if scores.len() != self.tokens.len() {
            let (n, want) = (scores.len(), self.tokens.len());
            return Err(Error::config(format!("`{key}` has {n} values for {want} tokens")));
        }
        let mut pieces = Vec::with_capacity(self.tokens.len());
        for ((id, text, token_type), score) in self.iter().zip(scores) {
            let score = match score {
                Value::Float(x) if x.is_finite() => narrow(x),
                _ => return Err(Error::config(format!("the score of token {id} is not a number"))),
            };
            match token_type {
                TokenType::Normal => pieces.push(Piece { text, score }),
                // SentencePiece gives these the score 0, the best there is; the converter writes
                // −1000 over it.
                TokenType::UserDefined => pieces.push(Piece { text, score: 0.0 }),
                _ => {}
            }
        }
        from_scores(&pieces, &ids)
    }

    /// Merges as they stand in the file: two pieces with a space between. A space inside a piece
    /// is written as `Ġ`, which is a letter too.
    fn merges_from_file(&self, file: &Gguf) -> Result<Vec<Merge>> {
        let ids = self.ids()?;
        let key = "tokenizer.ggml.merges";
        let ranges = file
            .texts(key)?
            .ok_or_else(|| Error::config(format!("`{key}` is missing")))?;
        let id_of = |piece: &str| {
            ids.get(piece).copied().or_else(|| ids.get(piece.replace('Ġ', " ").as_str()).copied())
        };
        let mut merges = Vec::with_capacity(ranges.len());
        for (i, range) in ranges.iter().enumerate() {
            let merge = std::str::from_utf8(file.slice(range))
                .ok()
                .and_then(|line| line.split_once(' '))
                .and_then(|(left, right)| Some((id_of(left)?, id_of(right)?)));
            let merge = merge.filter(|(left, right)| {
                let whole = [self.text(*left), self.text(*right)].concat();
                ids.contains_key(whole.as_str())
            });
            let what = "is not two pieces of the vocabulary that form a third";
            merges.push(merge.ok_or_else(|| damaged(range.start, format!("merge {i} {what}")))?);
        }
        Ok(merges)
    }
}

fn token_types(file: &Gguf, n_tokens: usize) -> Result<Vec<TokenType>> {
    let key = "tokenizer.ggml.token_type";
    let Some(values) = file.scalars(key)? else {
        return Err(Error::config(format!("`{key}` is missing")));
    };
    if values.len() != n_tokens {
        let n = values.len();
        return Err(Error::config(format!("`{key}` has {n} values for {n_tokens} tokens")));
    }
    let token_type = |(id, value): (usize, Value)| {
        Ok(match value.as_u64() {
            // 0 is "undefined", which some writers use for ordinary pieces.
            Some(0 | 1) => TokenType::Normal,
            Some(2) => TokenType::Unknown,
            Some(3) => TokenType::Control,
            Some(4) => TokenType::UserDefined,
            Some(5) => TokenType::Unused,
            Some(6) => TokenType::Byte,
            _ => return Err(Error::config(format!("the type of token {id} is not known"))),
        })
    };
    values.into_iter().enumerate().map(token_type).collect()
}

/// Ids with a meaning of their own; see [`Vocabulary`].
pub(super) struct TokenIds {
    pub(super) bos: Option<u32>,
    pub(super) pad: Option<u32>,
    pub(super) eos: Vec<u32>,
    pub(super) suppress: Vec<u32>,
    pub(super) add_bos: bool,
}

/// The id under a key, which must be of one of `n` tokens.
fn token_id(file: &Gguf, name: &str, n: usize) -> Result<Option<u32>> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    file.uint(&key)?.map(|id| checked_id(&key, id, n)).transpose()
}

fn checked_id(key: &str, id: u64, n: usize) -> Result<u32> {
    match u32::try_from(id) {
        Ok(small) if usize::try_from(small).is_ok_and(|i| i < n) => Ok(small),
        _ => Err(Error::config(format!("`{key}` is {id}, there are {n} tokens"))),
    }
}

impl TokenIds {
    fn read(file: &Gguf, kind: Kind, tokens: &[Range<usize>]) -> Result<TokenIds> {
        let n = tokens.len();
        let id = |name: &str| token_id(file, name, n);
        let bos = id("bos")?;
        let mut eos: Vec<u32> = Vec::new();
        for name in ["eos", "eot", "eom"] {
            eos.extend(id(name)?);
        }
        let is_end = |token: &Range<usize>| {
            let same = |end: &&str| end.len() == token.len() && end.as_bytes() == file.slice(token);
            END.iter().any(same)
        };
        eos.extend((0u32..).zip(tokens).filter(|(_, token)| is_end(token)).map(|(id, _)| id));
        eos.sort_unstable();
        eos.dedup();
        let key = "tokenizer.ggml.suppress_tokens";
        let mut suppress = Vec::new();
        for value in file.scalars(key)?.unwrap_or_default() {
            let id = value.as_u64().ok_or_else(|| Error::config(format!("`{key}` has no id")))?;
            suppress.push(checked_id(key, id, n)?);
        }
        // Gemma 4 always begins with its token, whatever early converters wrote.
        let add_bos =
            kind == Kind::Merges || file.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(true);
        let add_bos = add_bos && bos.is_some();
        Ok(TokenIds { bos, pad: id("padding")?, eos, suppress, add_bos })
    }
}

/// Whether a token of the vocabulary is matched in raw text before anything else, and whether it
/// is special then.
fn added(kind: Kind, text: &str, token_type: TokenType) -> Option<bool> {
    match token_type {
        TokenType::Normal | TokenType::Unused | TokenType::Byte => None,
        TokenType::Unknown => Some(true),
        TokenType::UserDefined => Some(CONTROL.contains(&text)),
        // Gemma 3's placeholders are control tokens in the file, but plain in its tokenizer.json.
        TokenType::Control if kind == Kind::Scores => {
            Some(text != "<mask>" && !text.starts_with("<unused"))
        }
        TokenType::Control => Some(true),
    }
}
