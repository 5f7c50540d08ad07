//! Rows of weights as a store gives them: in ranges while they are packed, one by one from tables.

use std::ops::Range;

use lapidary_backend::Result;
use lapidary_program::{Access, MemoryStore, Part, Program, Weight, WeightDecl, WeightStore};

/// A weight whose rows are asked for in small ranges, by several threads: a store that makes its
/// bytes is never made to hold more than those, unless it can make nothing less than all.
pub struct RowSource<'a> {
    name: &'a str,
    decl: &'a WeightDecl,
    store: Held<'a>,
}

enum Held<'a> {
    Lent(&'a dyn WeightStore),
    /// What a store could only make whole.
    Made(MemoryStore),
}

/// A table of which single rows are read, call after call. It stays in the program's store, in the
/// mapped file if there is one, unless the store would make it whole at every call.
pub struct Table {
    name: String,
    access: Access,
    /// What a store could only make whole.
    made: Option<MemoryStore>,
}

/// A table that is being read, by any number of threads.
pub enum TableRows<'a> {
    /// All of it is at hand.
    Whole(Weight<'a>),
    /// Rows are made as they are read.
    Made {
        /// Whose store makes them.
        program: &'a Program,
        /// The table.
        name: &'a str,
    },
}

impl<'a> RowSource<'a> {
    /// A weight of a program.
    pub fn open(program: &'a Program, name: &'a str) -> Result<Self> {
        Self::of(name, &program.weights()[name], program.store().as_ref())
    }

    /// A weight of a store.
    pub fn of(name: &'a str, decl: &'a WeightDecl, store: &'a dyn WeightStore) -> Result<Self> {
        let store = match store.access(name) {
            Access::Lent | Access::Rows => Held::Lent(store),
            Access::Whole => Held::Made(made_once(name, decl, store)?),
        };
        Ok(RowSource { name, decl, store })
    }

    /// Its declaration.
    pub fn decl(&self) -> &WeightDecl {
        self.decl
    }

    /// Some rows, counted over all matrices of the weight.
    pub fn rows(&self, rows: Range<usize>) -> Result<Weight<'_>> {
        let store: &dyn WeightStore = match &self.store {
            Held::Lent(store) => *store,
            Held::Made(store) => store,
        };
        Ok(Weight::fetch_rows(self.name, self.decl, store, rows)?)
    }
}

impl Table {
    /// A table of a program.
    pub fn new(program: &Program, name: &str) -> Result<Self> {
        let access = program.store().access(name);
        let made = match access {
            Access::Lent | Access::Rows => None,
            Access::Whole => {
                Some(made_once(name, &program.weights()[name], program.store().as_ref())?)
            }
        };
        Ok(Table { name: name.to_string(), access, made })
    }

    /// Bytes that [`Self::new`] takes.
    pub fn size_bytes(program: &Program, name: &str) -> u64 {
        match program.store().access(name) {
            Access::Lent | Access::Rows => 0,
            Access::Whole => program.weights()[name].size_bytes(),
        }
    }

    /// Opens it for reading; `program` is the one that it was made with.
    pub fn open<'a>(&'a self, program: &'a Program) -> Result<TableRows<'a>> {
        let name = &self.name;
        Ok(match (&self.made, self.access) {
            (Some(store), _) => {
                TableRows::Whole(Weight::fetch(name, &program.weights()[name], store)?)
            }
            (None, Access::Rows) => TableRows::Made { program, name },
            (None, _) => TableRows::Whole(program.weight(name)?),
        })
    }
}

impl TableRows<'_> {
    /// Reads one row.
    pub fn row_f32(&self, row: usize, out: &mut [f32]) -> Result<()> {
        match self {
            TableRows::Whole(weight) => weight.row_f32(row, out),
            TableRows::Made { program, name } => {
                program.weight_rows(name, row..row + 1)?.row_f32(0, out);
            }
        }
        Ok(())
    }
}

/// All parts of a weight, made once and kept.
fn made_once(name: &str, decl: &WeightDecl, store: &dyn WeightStore) -> Result<MemoryStore> {
    let mut made = MemoryStore::new();
    let parts: Vec<(Part, _)> = store.parts(name, decl)?;
    for (part, bytes) in parts {
        made.insert(name, part, bytes.into_owned());
    }
    Ok(made)
}
