//! Weights that a store would make anew at every call are made once and kept as they are.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use lapidary_program::{Access, MemoryStore, Op, Part, Program, Result, WeightStore};

/// The program, reading what had to be made from memory.
pub(crate) fn keep(program: &Arc<Program>) -> Result<Arc<Program>> {
    let names = to_keep(program);
    if names.is_empty() {
        return Ok(program.clone());
    }
    let mut made = MemoryStore::new();
    for name in &names {
        for (part, bytes) in program.store().parts(name, &program.weights()[name])? {
            made.insert(name.as_str(), part, bytes.into_owned());
        }
    }
    let store = Kept { made, names, source: program.store().clone() };
    let kept =
        Program::new(program.description().clone(), program.blobs().clone(), Arc::new(store))?;
    Ok(Arc::new(kept))
}

/// Bytes that `keep` takes.
pub(crate) fn size_bytes(program: &Program) -> u64 {
    to_keep(program).iter().map(|name| program.weights()[name].size_bytes()).sum()
}

/// What is not at hand, but for tables that are only read a row at a time.
fn to_keep(program: &Program) -> HashSet<String> {
    let nodes = program.methods().values().flat_map(|m| &m.graph.nodes);
    nodes
        .filter(|node| !matches!(node.op, Op::Embed { .. }))
        .flat_map(|node| node.op.weights())
        .filter(|name| program.store().access(name) != Access::Lent)
        .map(ToString::to_string)
        .collect()
}

struct Kept {
    made: MemoryStore,
    names: HashSet<String>,
    source: Arc<dyn WeightStore>,
}

impl WeightStore for Kept {
    fn part(&self, weight: &str, part: Part) -> Result<Cow<'_, [u8]>> {
        if self.names.contains(weight) {
            self.made.part(weight, part)
        } else {
            self.source.part(weight, part)
        }
    }

    fn access(&self, weight: &str) -> Access {
        if self.names.contains(weight) { Access::Lent } else { self.source.access(weight) }
    }

    fn make_rows(&self, weight: &str, part: Part, rows: Range<usize>) -> Option<Vec<u8>> {
        if self.names.contains(weight) { None } else { self.source.make_rows(weight, part, rows) }
    }
}
