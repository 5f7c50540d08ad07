//! The weights of two files as one.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use lapidary_program::{Access, Part, Result, WeightDecl, WeightStore};

/// A model's weights and, beside them, those of a drafter or of towers.
pub(crate) struct JoinedStore {
    /// The model's.
    pub main: Arc<dyn WeightStore>,
    /// The others.
    pub other: Arc<dyn WeightStore>,
    /// Which are the others.
    pub which: Which,
}

/// Which weights are the others.
pub(crate) enum Which {
    /// Those under a prefix, which their own store does not know.
    Prefixed(&'static str),
    /// These.
    Named(HashSet<String>),
}

impl JoinedStore {
    /// The store of a weight, and its name there.
    fn find<'s, 'n>(&'s self, weight: &'n str) -> (&'s dyn WeightStore, &'n str) {
        match &self.which {
            Which::Prefixed(prefix) => match weight.strip_prefix(prefix) {
                Some(own) => (self.other.as_ref(), own),
                None => (self.main.as_ref(), weight),
            },
            Which::Named(names) if names.contains(weight) => (self.other.as_ref(), weight),
            Which::Named(_) => (self.main.as_ref(), weight),
        }
    }
}

impl WeightStore for JoinedStore {
    fn part(&self, weight: &str, part: Part) -> Result<Cow<'_, [u8]>> {
        let (store, name) = self.find(weight);
        store.part(name, part)
    }

    fn parts(&self, weight: &str, decl: &WeightDecl) -> Result<Vec<(Part, Cow<'_, [u8]>)>> {
        let (store, name) = self.find(weight);
        store.parts(name, decl)
    }

    fn make_row_parts(
        &self,
        weight: &str,
        decl: &WeightDecl,
        rows: Range<usize>,
    ) -> Option<Vec<(Part, Vec<u8>)>> {
        let (store, name) = self.find(weight);
        store.make_row_parts(name, decl, rows)
    }

    fn access(&self, weight: &str) -> Access {
        let (store, name) = self.find(weight);
        store.access(name)
    }

    fn make_rows(&self, weight: &str, part: Part, rows: Range<usize>) -> Option<Vec<u8>> {
        let (store, name) = self.find(weight);
        store.make_rows(name, part, rows)
    }

    fn forget(&self, weight: &str) {
        let (store, name) = self.find(weight);
        store.forget(name);
    }

    fn fingerprint(&self) -> Option<[u8; 32]> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.main.fingerprint()?);
        hasher.update(&self.other.fingerprint()?);
        Some(*hasher.finalize().as_bytes())
    }
}
