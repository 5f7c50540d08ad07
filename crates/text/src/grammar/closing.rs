//! Bringing an answer to its end when there is little room left: of the tokens that a grammar allows,
//! those that close what is open.

use llguidance::toktrie::SimpleVob;

use crate::tokenizer::Tokenizer;

/// Pairs of characters that are tried for one token, at most: other answers wait meanwhile.
const MAX_TRIES: usize = 2048;

/// Tokens that close something.
#[derive(Debug, Default)]
pub(super) struct Closers {
    end: Vec<u32>,
    /// `"`.
    quote: Vec<u32>,
    /// `}`, `]`, and several of them.
    bracket: Vec<u32>,
    /// `,` and `:`, after which what is required comes.
    next: Vec<u32>,
    /// A letter that no word of JSON begins with: where it may stand, a string is open.
    letter: Option<u32>,
    /// All that begins with white space.
    space: SimpleVob,
    /// Single characters, which lead to an end by one or two of them.
    single: Vec<u32>,
}

/// Tokens of one answer format that open and close.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    /// What ends a thought or a call.
    pub(super) close: Vec<u32>,
    /// What begins a call.
    pub(super) open: Vec<u32>,
    /// What begins and ends a string, besides `"`.
    pub(super) quote: Vec<u32>,
}

impl Closers {
    pub(super) fn new(tokenizer: &Tokenizer, eos: &[u32]) -> Self {
        let space = SimpleVob::alloc(tokenizer.vocab_size() as usize);
        let mut closers = Closers { end: eos.to_vec(), space, ..Closers::default() };
        for id in (0..tokenizer.vocab_size()).filter(|id| !tokenizer.is_special(*id)) {
            let Some(piece) = tokenizer.piece(id) else { continue };
            let is_bracket = |bytes: &[u8]| bytes.iter().all(|b| b"}]".contains(b));
            if matches!(piece.as_slice(), [b'!'..=b'~']) {
                closers.single.push(id);
            }
            match piece.as_slice() {
                b"q" => closers.letter = closers.letter.or(Some(id)),
                [b' ' | b'\n' | b'\r' | b'\t', ..] => closers.space.allow_token(id),
                [b'"'] => closers.quote.push(id),
                [b',' | b':'] => closers.next.push(id),
                [_, ..] if is_bracket(&piece) => closers.bracket.push(id),
                _ => {}
            }
        }
        closers
    }

    /// Leaves of a mask what brings the answer nearer to its end. `fits` says whether tokens may come
    /// one after another.
    pub(super) fn narrow(
        &self,
        marks: &Marks,
        mask: &mut SimpleVob,
        fits: &mut dyn FnMut(&[u32]) -> bool,
    ) {
        let has = |ids: &[u32], mask: &SimpleVob| ids.iter().any(|id| mask.is_allowed(*id));
        if has(&self.end, mask) {
            // It may end as it is, but nothing new begins.
            marks.open.iter().for_each(|id| mask.disallow_token(*id));
            return;
        }
        let quotes: Vec<u32> = self.quote.iter().chain(&marks.quote).copied().collect();
        let in_string = self.letter.is_some_and(|letter| mask.is_allowed(letter));
        // A bracket in a string closes nothing.
        let classes: [&[u32]; 4] = match in_string {
            true => [&marks.close, &quotes, &[], &[]],
            false => [&marks.close, &self.bracket, &quotes, &self.next],
        };
        let best = classes.into_iter().find(|ids| has(ids, mask)).unwrap_or_default();
        let mut kept: Vec<u32> = best.iter().copied().filter(|id| mask.is_allowed(*id)).collect();
        if kept.is_empty() {
            kept = self.leading(&quotes, mask, fits);
        }
        if !kept.is_empty() {
            mask.set_all(false);
            kept.into_iter().for_each(|id| mask.allow_token(id));
        } else if mask.iter().any(|id| !self.space.is_allowed(id)) {
            // White space brings nothing nearer.
            mask.sub(&self.space);
        }
    }

    /// Characters after which a string may end: at once, or after one more.
    fn leading(
        &self,
        quotes: &[u32],
        mask: &SimpleVob,
        fits: &mut dyn FnMut(&[u32]) -> bool,
    ) -> Vec<u32> {
        let firsts = self.single.iter().copied().filter(|id| mask.is_allowed(*id));
        let firsts: Vec<u32> = firsts.collect();
        let mut ends = |before: &[u32]| {
            let all = |quote: &u32| before.iter().chain([quote]).copied().collect::<Vec<u32>>();
            quotes.iter().any(|quote| fits(&all(quote)))
        };
        let near: Vec<u32> = firsts.iter().copied().filter(|a| ends(&[*a])).collect();
        if !near.is_empty() || firsts.len() * self.single.len() > MAX_TRIES {
            return near;
        }
        firsts.into_iter().filter(|a| self.single.iter().any(|b| ends(&[*a, *b]))).collect()
    }
}
