//! Merges for a vocabulary that has scores instead: what SentencePiece does, said as BPE.

use std::cmp::Reverse;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::HashMap;
use rayon::prelude::*;

use crate::error::{Error, Result};

/// A left and a right piece, by id.
pub(super) type Merge = (u32, u32);

/// Gemma has half a million; a vocabulary made to have many more is not a language's.
const MAX_MERGES: usize = 1 << 23;

/// A piece that merges may form.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    /// Its text.
    pub text: &'a str,
    /// Higher is merged earlier.
    pub score: f32,
}

/// Every way to form a piece of two others, the best piece first.
///
/// This is the order of transformers' conversion: by score, then by the lengths of the left and
/// the right part in characters, all descending; equals stay in the order of the pieces, and
/// within one piece in the order of the parts' ids.
pub(super) fn from_scores(pieces: &[Piece<'_>], ids: &HashMap<&str, u32>) -> Result<Vec<Merge>> {
    let made = AtomicUsize::new(0);
    let mut ways: Vec<Way> = pieces
        .par_iter()
        .flat_map_iter(|piece| {
            let mut own: Vec<Way> = splits(piece, ids).collect();
            if made.fetch_add(own.len(), Relaxed) > MAX_MERGES {
                own.clear();
            }
            own.sort_by_key(|w| w.merge);
            own
        })
        .collect();
    let made = made.into_inner();
    if made > MAX_MERGES {
        return Err(Error::config(format!("the vocabulary has {made} merges, over {MAX_MERGES}")));
    }
    ways.par_sort_by(|a, b| {
        let lengths = |w: &Way| Reverse((w.left_chars, w.right_chars));
        b.score.total_cmp(&a.score).then_with(|| lengths(a).cmp(&lengths(b)))
    });
    Ok(ways.into_iter().map(|w| w.merge).collect())
}

struct Way {
    score: f32,
    left_chars: u32,
    right_chars: u32,
    merge: Merge,
}

fn splits<'a>(piece: &Piece<'a>, ids: &HashMap<&str, u32>) -> impl Iterator<Item = Way> {
    let text = piece.text;
    // Minus zero equals zero here, as it does in Python.
    let score = piece.score + 0.0;
    let n_chars = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
    text.char_indices().zip(0u32..).skip(1).filter_map(move |((at, _), left_chars)| {
        let (left, right) = text.split_at_checked(at)?;
        let merge = (*ids.get(left)?, *ids.get(right)?);
        Some(Way { score, left_chars, right_chars: n_chars.saturating_sub(left_chars), merge })
    })
}
