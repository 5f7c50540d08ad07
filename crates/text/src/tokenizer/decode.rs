//! Tokens to text, one at a time.

use std::sync::Arc;

use super::added::AddedTokens;
use super::settings::Decoder;
use super::vocab::Vocab;

/// Turns tokens into text as they come.
///
/// What it has given is always valid UTF-8. Bytes of a character that spans tokens are held back
/// until it is whole; bytes that can't become a character turn into U+FFFD, one for each byte.
/// All that it gives, joined, does not depend on how the tokens were split into calls.
#[derive(Clone)]
pub struct StreamDecoder {
    pieces: Arc<Pieces>,
    keep_special: bool,
    /// Bytes that are not yet a character; at most three between calls.
    bytes: Vec<u8>,
    /// Tokens since the last point that was safe to cut at, for decoders that look around.
    window: Vec<u32>,
    /// How many of `window` have been given as text.
    given: usize,
}

/// How the file says that tokens become text.
pub(super) enum DecoderKind {
    /// Each token has its bytes: `from` replaced by `to`, or one byte for `<0xXX>`.
    Pieces { from: String, to: String },
    /// A decoder that looks at the whole; without one, tokens are joined by spaces.
    Joined(Decoder),
}

/// What each token stands for.
pub(super) struct Pieces {
    vocab: Arc<Vocab>,
    /// In order.
    specials: Vec<u32>,
    decoder: DecoderKind,
}

impl std::fmt::Debug for StreamDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamDecoder").field("held", &self.bytes).finish_non_exhaustive()
    }
}

impl StreamDecoder {
    pub(super) fn new(pieces: Arc<Pieces>, keep_special: bool) -> Self {
        StreamDecoder {
            pieces,
            keep_special,
            bytes: Vec::with_capacity(64),
            window: Vec::new(),
            given: 0,
        }
    }

    /// Takes a token and appends to `out` the text that is now certain.
    pub fn push(&mut self, id: u32, out: &mut String) {
        let pieces = self.pieces.clone();
        if !self.keep_special && pieces.is_special(id) {
            return;
        }
        match &pieces.decoder {
            DecoderKind::Pieces { from, to } => {
                push_piece(pieces.vocab.get(id), from, to, &mut self.bytes);
                self.take_whole(out);
            }
            DecoderKind::Joined(decoder) => {
                self.window.push(id);
                self.step(&pieces, decoder, out);
            }
        }
    }

    /// Appends what was held back: nothing more will come. The decoder can be used anew.
    pub fn flush(&mut self, out: &mut String) {
        let pieces = self.pieces.clone();
        if let DecoderKind::Joined(decoder) = &pieces.decoder {
            let before = pieces.decode(decoder, &self.window[..self.given]);
            let all = pieces.decode(decoder, &self.window);
            out.push_str(all.get(before.len()..).unwrap_or(""));
        }
        out.extend(self.bytes.drain(..).map(|_| char::REPLACEMENT_CHARACTER));
        self.window.clear();
        self.given = 0;
    }

    /// Moves whole characters from `bytes` to `out`, and bytes that can't be one as U+FFFD.
    fn take_whole(&mut self, out: &mut String) {
        let mut rest = self.bytes.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(e) => {
                    let (valid, after) = rest.split_at(e.valid_up_to());
                    out.push_str(std::str::from_utf8(valid).expect("valid_up_to is a boundary"));
                    rest = after;
                    let Some(bad) = e.error_len() else { break };
                    out.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, bad));
                    rest = &rest[bad..];
                }
            }
        }
        let held = rest.len();
        self.bytes.drain(..self.bytes.len() - held);
    }

    /// Gives what the newest token adds to the decoded window, unless that may still change.
    fn step(&mut self, pieces: &Pieces, decoder: &Decoder, out: &mut String) {
        let all = pieces.decode(decoder, &self.window);
        if all.ends_with(char::REPLACEMENT_CHARACTER) {
            return;
        }
        let before = pieces.decode(decoder, &self.window[..self.given]);
        let Some(new) = all.strip_prefix(before.as_str()) else { return };
        if new.is_empty() {
            return;
        }
        out.push_str(new);
        // The last given tokens stay as context, so that the next is not taken for a beginning.
        self.window.drain(..self.given);
        self.given = self.window.len();
    }
}

impl Pieces {
    pub(super) fn new(vocab: Arc<Vocab>, specials: &AddedTokens, decoder: DecoderKind) -> Self {
        Pieces { vocab, specials: specials.tokens().iter().map(|t| t.id).collect(), decoder }
    }

    /// The bytes of a token by itself.
    pub(super) fn piece(&self, id: u32) -> Option<Vec<u8>> {
        let DecoderKind::Pieces { from, to } = &self.decoder else { return None };
        let mut bytes = Vec::new();
        push_piece(self.vocab.get(id), from, to, &mut bytes);
        Some(bytes)
    }

    fn is_special(&self, id: u32) -> bool {
        self.specials.binary_search(&id).is_ok()
    }

    fn decode(&self, decoder: &Decoder, ids: &[u32]) -> String {
        let tokens: Vec<String> =
            ids.iter().map(|id| self.vocab.get(*id).to_owned()).filter(|t| !t.is_empty()).collect();
        decoder.decode(tokens)
    }
}

/// Appends what a token stands for: `from` replaced by `to`, or one byte.
fn push_piece(token: &str, from: &str, to: &str, text: &mut Vec<u8>) {
    if let Some(byte) = byte_token(token) {
        text.push(byte);
        return;
    }
    for (i, part) in token.split(from).enumerate() {
        if i > 0 {
            text.extend_from_slice(to.as_bytes());
        }
        text.extend_from_slice(part.as_bytes());
    }
}

/// `<0x0A>` is a byte.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}
