//! Which weights a program needs in which form, and those forms.
//!
//! A weight is a *matrix* where it is multiplied with activations, a *table* where single rows are
//! read, and a *vector* where it has one length. Matrices are packed. Tables stay in the program's
//! store, in the mapped file if there is one: rows are gathered and nothing is loaded whole. A
//! table that is also a matrix (a tied output head) is stored once, as the matrix.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use lapidary_backend::Result;
use lapidary_program::{MemoryStore, Part, Program, Weight, WeightDecl};

use crate::derived::Derived;
use crate::matrix::{MatrixShape, PackedWeight, RowSource};
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
/// The number of what is made of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DerivedId(usize);

/// The weights that compiled methods refer to, by form.
#[derive(Default)]
pub(crate) struct Wanted {
    matrices: Names,
    tables: Names,
    vectors: Names,
    orderings: Names,
    derived: Vec<Derived>,
}

/// The weights of an engine.
#[derive(Default)]
pub(crate) struct Weights {
    matrices: Vec<PackedWeight>,
    tables: Vec<Table>,
    vectors: Vec<Vec<f32>>,
    orderings: Vec<Vec<u32>>,
    derived: Vec<Vec<f32>>,
}

/// Where the rows of a table are.
enum Table {
    /// In the program's store.
    Stored { name: String, source: Source },
    /// Here, because the store would make the whole table anew each time it is asked.
    Kept { name: String, store: MemoryStore },
    /// In a packed matrix.
    Matrix(MatrixId),
}

/// How a store comes by the bytes of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// It has them, and lends them.
    Lent,
    /// It makes single rows when asked.
    RowByRow,
    /// It makes all of them when asked.
    Whole,
}

/// A table that is being read.
pub(crate) enum Rows<'a> {
    Weight(Weight<'a>),
    Made { program: &'a Program, name: &'a str },
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

    pub(crate) fn vector(&mut self, name: &str) -> VectorId {
        VectorId(self.vectors.add(name))
    }

    pub(crate) fn ordering(&mut self, name: &str) -> OrderingId {
        OrderingId(self.orderings.add(name))
    }

    pub(crate) fn derived(&mut self, derived: Derived) -> DerivedId {
        let known = self.derived.iter().position(|d| *d == derived);
        DerivedId(known.unwrap_or_else(|| {
            self.derived.push(derived);
            self.derived.len() - 1
        }))
    }

    /// Bytes that `load` takes and keeps.
    pub(crate) fn size_bytes(&self, program: &Program) -> Result<u64> {
        let decl = |name: &String| &program.weights()[name];
        let matrices: u64 =
            self.matrices.list.iter().map(|n| PackedWeight::size_bytes(decl(n))).sum();
        let vectors: u64 = self
            .vectors
            .list
            .iter()
            .chain(&self.orderings.list)
            .map(|n| decl(n).n_elements() as u64 * 4)
            .sum();
        let mut tables = 0;
        for name in &self.tables.list {
            if !self.matrices.index.contains_key(name)
                && Source::of(program, name)? == Source::Whole
            {
                tables += decl(name).size_bytes();
            }
        }
        let derived: u64 = self.derived.iter().map(|d| d.size_bytes(program)).sum();
        Ok(matrices + vectors + tables + derived)
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
        let lists = [&self.matrices, &self.vectors, &self.orderings];
        let named = lists.iter().flat_map(|names| &names.list);
        let total = named.chain(self.derived.iter().map(|d| &d.weight)).map(stored).sum();
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
        for name in &self.vectors.list {
            weights.vectors.push(program.weight(name)?.to_f32());
            program.store().forget(name);
            told(name);
        }
        for name in &self.orderings.list {
            weights.orderings.push(ordering(name, &program.weight(name)?)?);
            told(name);
        }
        for derived in &self.derived {
            weights.derived.push(derived.make(program)?);
            program.store().forget(&derived.weight);
            told(&derived.weight);
        }
        for name in &self.tables.list {
            weights.tables.push(match self.matrices.index.get(name) {
                Some(matrix) => Table::Matrix(MatrixId(*matrix)),
                None => Table::new(program, name)?,
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

    pub(crate) fn derived(&self, id: DerivedId) -> &[f32] {
        &self.derived[id.0]
    }

    /// Opens a table for reading.
    pub(crate) fn table<'a>(&'a self, program: &'a Program, id: TableId) -> Result<Rows<'a>> {
        Ok(match &self.tables[id.0] {
            Table::Stored { name, source: Source::RowByRow } => Rows::Made { program, name },
            Table::Stored { name, .. } => Rows::Weight(program.weight(name)?),
            Table::Kept { name, store } => {
                Rows::Weight(Weight::fetch(name, &program.weights()[name], store)?)
            }
            Table::Matrix(id) => Rows::Matrix(self.matrix(*id)),
        })
    }
}

impl Table {
    fn new(program: &Program, name: &str) -> Result<Self> {
        let source = Source::of(program, name)?;
        if source != Source::Whole {
            return Ok(Table::Stored { name: name.to_string(), source });
        }
        let weight = program.weight(name)?;
        let mut store = MemoryStore::new();
        for part in Part::ALL {
            let bytes = weight.part(part);
            if !bytes.is_empty() {
                store.insert(name, part, bytes.to_vec());
            }
        }
        Ok(Table::Kept { name: name.to_string(), store })
    }
}

impl Rows<'_> {
    /// Reads one row.
    pub(crate) fn row_f32(&self, row: usize, out: &mut [f32]) -> Result<()> {
        match self {
            Rows::Weight(weight) => weight.row_f32(row, out),
            Rows::Made { program, name } => {
                program.weight_rows(name, row..row + 1)?.row_f32(0, out);
            }
            Rows::Matrix(matrix) => matrix.row_f32(row, out),
        }
        Ok(())
    }
}

impl Source {
    /// Asks the store. One that can only make whole tables makes this one, which is dropped again.
    fn of(program: &Program, name: &str) -> Result<Self> {
        let decl: &WeightDecl = &program.weights()[name];
        let mut source = Source::Lent;
        for part in Part::ALL.into_iter().filter(|part| decl.part_bytes(*part) > 0) {
            if program.store().make_rows(name, part, 0..1).is_some() {
                source = Source::RowByRow;
            } else if matches!(program.store().part(name, part)?, Cow::Owned(_)) {
                return Ok(Source::Whole);
            }
        }
        Ok(source)
    }
}

/// Reads an `i64` table of token ids. It comes from a file: an id outside the table is an error.
fn ordering(name: &str, weight: &Weight<'_>) -> Result<Vec<u32>> {
    let (ids, _) = weight.data.as_chunks::<8>();
    ids.iter()
        .map(|bytes| {
            let id = i64::from_le_bytes(*bytes);
            u32::try_from(id).ok().filter(|id| (*id as usize) < ids.len()).ok_or_else(|| {
                let what = format!("token id {id} is outside its {} tokens", ids.len());
                lapidary_program::Error::Weight { weight: name.to_string(), what }.into()
            })
        })
        .collect()
}

/// The shape of a declared matrix.
pub(crate) fn matrix_shape(program: &Program, name: &str) -> MatrixShape {
    MatrixShape::of(&program.weights()[name])
}
