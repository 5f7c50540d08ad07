use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::blobs::Blob;
use crate::error::{Error, Result};
use crate::graph::{Graph, ValueType};
use crate::metadata::Metadata;
use crate::validate;
use crate::weights::{Weight, WeightDecl, WeightStore};

/// Names of methods.
pub mod method {
    /// Tokens in, logits out.
    pub const FORWARD: &str = "forward";
    /// One step of the drafter over the target's caches.
    pub const DRAFT: &str = "draft";
    /// Patches of one picture in, soft rows out.
    pub const VISION: &str = "vision";
    /// Frames of one sound in, soft rows out.
    pub const AUDIO: &str = "audio";
}

/// Names of blobs.
pub mod blob {
    /// A Hugging Face `tokenizer.json`.
    pub const TOKENIZER: &str = "tokenizer.json";
    /// The chat template.
    pub const CHAT_TEMPLATE: &str = "chat_template.jinja";
    /// Token sequences with the logits that the reference computed.
    pub const GOLDEN: &str = "golden.safetensors";
}

/// A KV cache: keys and values of `n_kv_heads × head_dim`, by slot and position.
///
/// A cache is addressed by position alone: with a window it is a ring indexed by
/// `position % capacity`, without one it is flat. Rolling back is therefore not an operation; the
/// runner just writes lower positions again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateDecl {
    /// Its name, unique in the program.
    pub name: String,
    /// Heads.
    pub n_kv_heads: u32,
    /// Elements of one head.
    pub head_dim: u32,
    /// Keys that the widest reader sees, itself included; `None` for all.
    pub window: Option<u32>,
}

/// An entry point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Method {
    /// The most tokens of one slot in one call; for `vision` and `audio`, the most patches or
    /// frames.
    pub max_chunk: u32,
    /// The ops.
    pub graph: Graph,
    /// The type of every value, found by `validate`.
    #[serde(skip)]
    pub(crate) types: Vec<ValueType>,
}

/// What stands in `program.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Facts about the model.
    pub metadata: Metadata,
    /// KV caches.
    pub states: Vec<StateDecl>,
    /// Entry points by name.
    pub methods: BTreeMap<String, Method>,
    /// Weights by name.
    pub weights: BTreeMap<String, WeightDecl>,
}

/// A validated model: nothing that was checked can change afterwards.
#[derive(Clone)]
pub struct Program {
    description: Description,
    blobs: BTreeMap<String, Blob>,
    store: Arc<dyn WeightStore>,
}

impl StateDecl {
    /// Channels of one key or value row.
    pub fn channels(&self) -> u64 {
        u64::from(self.n_kv_heads) * u64::from(self.head_dim)
    }

    /// Positions that the cache holds: a ring of `window + max_chunk − 1`, so that the first query
    /// of a chunk still has its whole window after the last key of the chunk is written; or all.
    pub fn capacity(&self, max_context: u32, max_chunk: u32) -> u32 {
        match self.window {
            Some(window) => window.saturating_add(max_chunk.saturating_sub(1)).min(max_context),
            None => max_context,
        }
    }
}

impl Method {
    /// A method; its types are found when a [`Program`] is made of it.
    pub fn new(max_chunk: u32, graph: Graph) -> Self {
        Method { max_chunk, graph, types: vec![] }
    }

    /// The type of every value, by number.
    pub fn types(&self) -> &[ValueType] {
        &self.types
    }
}

impl Program {
    /// Checks everything and makes a program of it.
    pub fn new(
        mut description: Description,
        blobs: BTreeMap<String, Blob>,
        store: Arc<dyn WeightStore>,
    ) -> Result<Self> {
        validate::description(&mut description)?;
        Ok(Program { description, blobs, store })
    }

    /// Everything but bytes.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Facts about the model.
    pub fn metadata(&self) -> &Metadata {
        &self.description.metadata
    }

    /// KV caches.
    pub fn states(&self) -> &[StateDecl] {
        &self.description.states
    }

    /// Entry points by name.
    pub fn methods(&self) -> &BTreeMap<String, Method> {
        &self.description.methods
    }

    /// One entry point.
    pub fn method(&self, name: &str) -> Result<&Method> {
        self.description
            .methods
            .get(name)
            .ok_or_else(|| Error::Program(format!("there is no method `{name}`")))
    }

    /// Weights by name.
    pub fn weights(&self) -> &BTreeMap<String, WeightDecl> {
        &self.description.weights
    }

    /// One weight with its bytes.
    pub fn weight(&self, name: &str) -> Result<Weight<'_>> {
        Weight::fetch(name, self.declared(name)?, self.store.as_ref())
    }

    /// Some rows of a weight, as a matrix of just those.
    pub fn weight_rows(&self, name: &str, rows: Range<usize>) -> Result<Weight<'_>> {
        Weight::fetch_rows(name, self.declared(name)?, self.store.as_ref(), rows)
    }

    fn declared(&self, name: &str) -> Result<&WeightDecl> {
        self.weights().get(name).ok_or_else(|| Error::weight(name, "it is not declared"))
    }

    /// Where the bytes come from.
    pub fn store(&self) -> &Arc<dyn WeightStore> {
        &self.store
    }

    /// A blob's bytes by its name, made now if they were not before; `None` if there is none.
    pub fn blob(&self, name: &str) -> Result<Option<&[u8]>> {
        self.blobs.get(name).map(Blob::bytes).transpose()
    }

    /// Blobs by name.
    pub fn blobs(&self) -> &BTreeMap<String, Blob> {
        &self.blobs
    }

    /// Adds or replaces a blob.
    pub fn set_blob(&mut self, name: &str, blob: impl Into<Blob>) {
        self.blobs.insert(name.to_string(), blob.into());
    }

    /// Number of weight elements.
    pub fn n_params(&self) -> u64 {
        self.weights().values().filter_map(WeightDecl::checked_elements).sum()
    }

    /// Bytes of all weights as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.weights().values().map(WeightDecl::size_bytes).sum()
    }
}
