//! Where the rows of a weight come from while it is packed.

use std::borrow::Cow;
use std::ops::Range;

use lapidary_backend::Result;
use lapidary_program::{MemoryStore, Program, Weight, WeightDecl, WeightStore};

/// A weight whose rows are asked for in small ranges, by several threads: a store that makes its
/// bytes is never made to hold more than those.
pub(crate) struct RowSource<'a> {
    name: &'a str,
    decl: &'a WeightDecl,
    store: Held<'a>,
}

enum Held<'a> {
    Lent(&'a dyn WeightStore),
    /// What a store could only make whole.
    Made(MemoryStore),
}

impl<'a> RowSource<'a> {
    pub(crate) fn open(program: &'a Program, name: &'a str) -> Result<Self> {
        Self::of(name, &program.weights()[name], program.store().as_ref())
    }

    pub(crate) fn of(
        name: &'a str,
        decl: &'a WeightDecl,
        store: &'a dyn WeightStore,
    ) -> Result<Self> {
        let lent = RowSource { name, decl, store: Held::Lent(store) };
        if store.make_row_parts(name, decl, 0..1.min(decl.rows())).is_some() {
            return Ok(lent);
        }
        let parts = store.parts(name, decl)?;
        if parts.iter().all(|(_, bytes)| matches!(bytes, Cow::Borrowed(_))) {
            return Ok(lent);
        }
        let mut made = MemoryStore::new();
        for (part, bytes) in parts {
            made.insert(name, part, bytes.into_owned());
        }
        Ok(RowSource { name, decl, store: Held::Made(made) })
    }

    pub(crate) fn decl(&self) -> &WeightDecl {
        self.decl
    }

    /// Some rows, counted over all matrices of the weight.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Result<Weight<'_>> {
        let store: &dyn WeightStore = match &self.store {
            Held::Lent(store) => *store,
            Held::Made(store) => store,
        };
        Ok(Weight::fetch_rows(self.name, self.decl, store, rows)?)
    }
}
