//! A drafter for a program that is built already, as a `.lap` file holds one.
//!
//! A drafter's graph needs little of its target: how a token becomes a row, and which caches there
//! are. All of that stands in the program.

use std::path::Path;
use std::sync::Arc;

use lapidary_program::{FileBytes, Method, Op, Program, StateDecl, method};

use crate::build::{DraftTarget, draft_step, widest_window};
use crate::error::{Error, Result};
use crate::gguf;
use crate::import::{ImportedDraft, read_draft};
use crate::joined_store::{JoinedStore, Which};
use crate::names::{DRAFT_PREFIX, EMBED_TOKENS};

/// The same program with the drafter of a folder or a GGUF file as its method `draft`.
pub fn attach_at(program: &Program, path: &Path, mmap: bool) -> Result<Program> {
    attach(program, read_draft(path, mmap)?)
}

/// The same with a GGUF file that is in memory, under the name that errors give it.
pub fn attach_gguf(program: &Program, name: &str, file: FileBytes) -> Result<Program> {
    attach(program, gguf::read_draft(Path::new(name), file)?)
}

pub(crate) fn attach(program: &Program, draft: ImportedDraft) -> Result<Program> {
    if program.methods().contains_key(method::DRAFT) {
        return Err(Error::config("the model has a drafter already; leave out --draft"));
    }
    let mut description = program.description().clone();
    let ImportedDraft { config, weights, store: other } = draft;
    let named = |(name, decl)| (format!("{DRAFT_PREFIX}{name}"), decl);
    description.weights.extend(weights.into_iter().map(named));
    let most = description.metadata.max_context_len;
    let widest = widest_window(&config);
    for window in description.states.iter_mut().filter_map(|state| state.window.as_mut()) {
        *window = (*window).max(widest).min(most);
    }
    let graph = draft_step(&target(program)?, &config, &description.weights, &description.states)?;
    let max_chunk = program.method(method::FORWARD)?.max_chunk;
    description.methods.insert(method::DRAFT.to_string(), Method::new(max_chunk, graph));
    let which = Which::Prefixed(DRAFT_PREFIX);
    let store = Arc::new(JoinedStore { main: program.store().clone(), other, which });
    Ok(Program::new(description, program.blobs().clone(), store)?)
}

/// What a drafter needs to know of a program.
fn target(program: &Program) -> Result<DraftTarget> {
    let nodes = &program.method(method::FORWARD)?.graph.nodes;
    let is_embedding = |op: &&Op| matches!(op, Op::Embed { weight, .. } if weight == EMBED_TOKENS);
    let embed = nodes.iter().map(|node| &node.op).find(is_embedding);
    let embed = embed.ok_or_else(|| {
        let what = format!("it has no table {EMBED_TOKENS}, from which a drafter reads tokens");
        Error::config(what)
    })?;
    let table = program.weight(EMBED_TOKENS)?.decl.shape.clone();
    let [vocab_size, hidden_size] = table.as_slice() else {
        return Err(Error::tensor(EMBED_TOKENS, "it is no table"));
    };
    let length = |n: u64| {
        u32::try_from(n).map_err(|_| Error::tensor(EMBED_TOKENS, format!("it has {n} of a kind")))
    };
    // The last cache of each kind is what the layers after it share, and drafters read.
    let last = |is_full: bool| {
        let is_such = |state: &&StateDecl| state.window.is_none() == is_full;
        program.states().iter().rfind(is_such).map(|state| state.name.clone())
    };
    Ok(DraftTarget {
        hidden_size: length(*hidden_size)?,
        vocab_size: length(*vocab_size)?,
        embed: embed.clone(),
        sliding: last(false),
        full: last(true),
    })
}
