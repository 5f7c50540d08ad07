//! Which weights a program needs in which form, and those forms.
//!
//! A weight is a *matrix* where it is multiplied with activations, a *table* where single rows are
//! read, and a *vector* where it is small and made `f32`. Matrices are packed. Tables stay in the program's
//! store, in the mapped file if there is one: rows are gathered and nothing is loaded whole. A
//! table that is also a matrix (a tied output head) is stored once, as the matrix.

use std::collections::HashMap;
use std::path::Path;

use lapidary_backend::Result;
use lapidary_backend_kit::{Derived, RowSource, Table, TableRows, token_ids};
use lapidary_program::Program;

use crate::matrix::{MatrixShape, PackedWeight};
use crate::pack_cache::PackCache;
use crate::workers::Workers;

/// The number of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixId(usize);
/// The number of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableId(usize);
/// The number of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorId(usize);
/// The number of a token ordering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrderingId(usize);

/// The weights that compiled methods refer to, by form.
#[derive(Default)]
pub(crate) struct Wanted {
    matrices: Names,
    tables: Names,
    vectors: Vec<Derived>,
    orderings: Names,
}

/// The weights of an engine.
#[derive(Default)]
pub(crate) struct Weights {
    matrices: Vec<PackedWeight>,
    tables: Vec<AnyTable>,
    vectors: Vec<Vec<f32>>,
    orderings: Vec<Vec<u32>>,
}

/// Where the rows of a table are.
enum AnyTable {
    /// In the program's store, or beside it.
    Stored(Table),
    /// In a packed matrix.
    Matrix(MatrixId),
}

/// A table that is being read.
pub(crate) enum Rows<'a> {
    Stored(TableRows<'a>),
    Matrix(&'a PackedWeight),
}

#[derive(Default)]
struct Names {
    list: Vec<String>,
    index: HashMap<String, usize>,
}

impl Names {
    fn add(&mut self, name: &str) -> usize {
        *self.index.entry(name.to_string()).or_insert_with(|| {
            self.list.push(name.to_string());
            self.list.len() - 1
        })
    }
}

impl Wanted {
    pub(crate) fn matrix(&mut self, name: &str) -> MatrixId {
        MatrixId(self.matrices.add(name))
    }

    pub(crate) fn table(&mut self, name: &str) -> TableId {
        TableId(self.tables.add(name))
    }

    /// A weight as it is.
    pub(crate) fn vector(&mut self, name: &str) -> VectorId {
        self.derived(Derived::plain(name))
    }

    /// What is made of a weight.
    pub(crate) fn derived(&mut self, derived: Derived) -> VectorId {
        let known = self.vectors.iter().position(|d| *d == derived);
        VectorId(known.unwrap_or_else(|| {
            self.vectors.push(derived);
            self.vectors.len() - 1
        }))
    }

    pub(crate) fn ordering(&mut self, name: &str) -> OrderingId {
        OrderingId(self.orderings.add(name))
    }

    /// Bytes that `load` takes and keeps.
    pub(crate) fn size_bytes(&self, program: &Program) -> u64 {
        let decl = |name: &String| &program.weights()[name];
        let matrices: u64 =
            self.matrices.list.iter().map(|n| PackedWeight::size_bytes(decl(n))).sum();
        let orderings: u64 =
            self.orderings.list.iter().map(|n| decl(n).n_elements() as u64 * 4).sum();
        let vectors: u64 = self.vectors.iter().map(|v| v.size_bytes(program)).sum();
        let tables = self.tables.list.iter().filter(|name| !self.is_matrix(name));
        let tables: u64 = tables.map(|name| Table::size_bytes(program, name)).sum();
        matrices + orderings + vectors + tables
    }

    fn is_matrix(&self, name: &str) -> bool {
        self.matrices.index.contains_key(name)
    }

    /// Packs the weights one at a time.
    pub(crate) fn load(
        &self,
        program: &Program,
        workers: &Workers,
        pack_cache: Option<&Path>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Weights> {
        let stored = |name: &String| program.weights()[name].size_bytes();
        let named = self.matrices.list.iter().chain(&self.orderings.list);
        let total = named.chain(self.vectors.iter().map(|v| &v.weight)).map(stored).sum();
        let mut done = 0;
        progress(done, total);
        let mut told = |name: &String| {
            done += stored(name);
            progress(done, total);
        };
        let mut weights = Weights::default();
        let names = self.matrices.list.iter().map(String::as_str);
        let cache = PackCache::of(program, names, pack_cache);
        let kept = cache.as_ref().and_then(|cache| cache.read(workers));
        let was_kept = kept.is_some();
        let mut kept = kept.unwrap_or_default().into_iter();
        for name in &self.matrices.list {
            let found =
                if cache.as_ref().is_some_and(|c| c.keeps(name)) { kept.next() } else { None };
            weights.matrices.push(match found {
                Some(matrix) => matrix,
                None => PackedWeight::pack(&RowSource::open(program, name)?, workers)?,
            });
            program.store().forget(name);
            told(name);
        }
        if let Some(cache) = cache.filter(|_| !was_kept) {
            let named = self.matrices.list.iter().zip(&weights.matrices);
            let kept: Vec<&PackedWeight> =
                named.filter(|(name, _)| cache.keeps(name)).map(|(_, matrix)| matrix).collect();
            // A full disk or a folder that can't be written costs a later start, not this one.
            let _ = cache.write(&kept, workers);
        }
        for vector in &self.vectors {
            weights.vectors.push(vector.make(program)?);
            program.store().forget(&vector.weight);
            told(&vector.weight);
        }
        for name in &self.orderings.list {
            weights.orderings.push(token_ids(program, name)?);
            told(name);
        }
        for name in &self.tables.list {
            weights.tables.push(match self.matrices.index.get(name) {
                Some(matrix) => AnyTable::Matrix(MatrixId(*matrix)),
                None => AnyTable::Stored(Table::new(program, name)?),
            });
        }
        Ok(weights)
    }
}

impl Weights {
    pub(crate) fn matrix(&self, id: MatrixId) -> &PackedWeight {
        &self.matrices[id.0]
    }

    pub(crate) fn vector(&self, id: VectorId) -> &[f32] {
        &self.vectors[id.0]
    }

    pub(crate) fn ordering(&self, id: OrderingId) -> &[u32] {
        &self.orderings[id.0]
    }

    /// Opens a table for reading.
    pub(crate) fn table<'a>(&'a self, program: &'a Program, id: TableId) -> Result<Rows<'a>> {
        Ok(match &self.tables[id.0] {
            AnyTable::Stored(table) => Rows::Stored(table.open(program)?),
            AnyTable::Matrix(id) => Rows::Matrix(self.matrix(*id)),
        })
    }
}

impl Rows<'_> {
    /// Reads one row.
    pub(crate) fn row_f32(&self, row: usize, out: &mut [f32]) -> Result<()> {
        match self {
            Rows::Stored(rows) => rows.row_f32(row, out),
            Rows::Matrix(matrix) => {
                matrix.row_f32(row, out);
                Ok(())
            }
        }
    }
}

/// The shape of a declared matrix.
pub(crate) fn matrix_shape(program: &Program, name: &str) -> MatrixShape {
    MatrixShape::of(&program.weights()[name])
}
