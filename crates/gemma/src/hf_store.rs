//! The bytes of a folder's weights: as they stand in its files, or made from them when asked for.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use lapidary_program::{Access, Error, FileBytes, Part, Result, WeightStore};

use crate::recode::Recoded;
use crate::shards::Place;
use crate::turned::Turned;

/// The weights of a folder under canonical names.
pub(crate) struct HfStore {
    pub files: Vec<FileBytes>,
    pub sources: HashMap<String, Source>,
}

/// Where a weight comes from.
pub(crate) enum Source {
    /// Parts that stand in the files as they are wanted.
    Stored(Vec<(Part, Place)>),
    /// Parts that are made from other tensors.
    Recoded(Box<Recoded>),
    /// Floats of which rows are wanted as columns.
    Turned(Place, Turned),
    /// Two stacks of matrices `[outer, I, K]` and `[outer, J, K]` in one encoding, joined to
    /// `[outer, I + J, K]`.
    Joined {
        /// Matrices in each stack.
        outer: usize,
        /// The stack whose rows come first.
        first: Box<Source>,
        /// The other.
        second: Box<Source>,
    },
}

impl Source {
    fn part<'a>(&self, files: &'a [FileBytes], part: Part) -> Result<Cow<'a, [u8]>, String> {
        let absent = || format!("{part:?} is not stored");
        match self {
            Source::Stored(places) => {
                let place = places.iter().find(|(p, _)| *p == part).map(|(_, place)| place);
                place.and_then(|p| p.bytes(files)).map(Cow::Borrowed).ok_or_else(absent)
            }
            Source::Recoded(recoded) => {
                recoded.part(files, part, 0..recoded.rows()).map(Cow::Owned)
            }
            Source::Turned(place, turned) => match (part, place.bytes(files)) {
                (Part::Data, Some(bytes)) => turned.whole(bytes).map(Cow::Owned).ok_or_else(absent),
                _ => Err(absent()),
            },
            Source::Joined { outer, first, second } => {
                let (first, second) = (first.part(files, part)?, second.part(files, part)?);
                join(*outer, &first, &second).map(Cow::Owned).ok_or_else(absent)
            }
        }
    }
}

impl WeightStore for HfStore {
    fn part(&self, weight: &str, part: Part) -> Result<Cow<'_, [u8]>> {
        let source = self.sources.get(weight).ok_or_else(|| "it is not stored".to_string());
        source
            .and_then(|s| s.part(&self.files, part))
            .map_err(|what| Error::Weight { weight: weight.to_string(), what })
    }

    fn access(&self, weight: &str) -> Access {
        match self.sources.get(weight) {
            Some(Source::Stored(_)) => Access::Lent,
            Some(Source::Recoded(_) | Source::Turned(..)) => Access::Rows,
            Some(Source::Joined { .. }) | None => Access::Whole,
        }
    }

    fn make_rows(&self, weight: &str, part: Part, rows: Range<usize>) -> Option<Vec<u8>> {
        match self.sources.get(weight)? {
            // What fails here fails again, and says why, when the whole part is asked for.
            Source::Recoded(recoded) => recoded.part(&self.files, part, rows).ok(),
            Source::Turned(place, turned) if part == Part::Data => {
                turned.rows(place.bytes(&self.files)?, rows)
            }
            Source::Stored(_) | Source::Turned(..) | Source::Joined { .. } => None,
        }
    }

    fn fingerprint(&self) -> Option<[u8; 32]> {
        let mut hasher = blake3::Hasher::new();
        for file in &self.files {
            hasher.update(&file.fingerprint()?);
        }
        Some(*hasher.finalize().as_bytes())
    }

    fn forget(&self, weight: &str) {
        // Pages of what is recoded, turned or joined stay: few folders have such, and they are clean.
        let Some(Source::Stored(places)) = self.sources.get(weight) else { return };
        for bytes in places.iter().filter_map(|(_, place)| place.bytes(&self.files)) {
            for file in &self.files {
                if let Some(range) = file.range_of(bytes) {
                    file.forget(range);
                }
            }
        }
    }
}

/// All of the first stack under index 0, then all of the second under index 0, and so on.
fn join(outer: usize, first: &[u8], second: &[u8]) -> Option<Vec<u8>> {
    let lengths = (first.len().checked_div(outer)?, second.len().checked_div(outer)?);
    if lengths.0 == 0 || lengths.1 == 0 {
        return None;
    }
    let mut joined = Vec::with_capacity(first.len().checked_add(second.len())?);
    for (a, b) in first.chunks_exact(lengths.0).zip(second.chunks_exact(lengths.1)) {
        joined.extend_from_slice(a);
        joined.extend_from_slice(b);
    }
    Some(joined)
}
