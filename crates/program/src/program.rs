use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::answer::AnswerFormat;
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
    /// Patches of one image in, soft rows out.
    pub const VISION: &str = "vision";
    /// Frames of one audio clip in, soft rows out.
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

/// A KV cache: keys and values of `n_kv_heads × head_dim`, by sequence and position.
///
/// A cache is addressed by position alone, through the pages of a sequence. Rolling back is
/// therefore not an operation; the runner just writes lower positions again.
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

/// Caches that keep the same positions, and so share their pages: all of one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Keys that the widest reader sees, itself included; `None` for all.
    pub window: Option<u32>,
    /// Its caches, by their number in [`Program::states`].
    pub states: Vec<usize>,
}

/// An entry point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Method {
    /// The most tokens of one sequence in one call; for `vision` and `audio`, the most patches or
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
    groups: Vec<KvGroup>,
    blobs: BTreeMap<String, Blob>,
    store: Arc<dyn WeightStore>,
}

impl StateDecl {
    /// Channels of one key or value row.
    pub fn channels(&self) -> u64 {
        u64::from(self.n_kv_heads) * u64::from(self.head_dim)
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
        let groups = groups(&description.states);
        Ok(Program { description, groups, blobs, store })
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

    /// Caches by window: those that keep everything first, then from the shortest window on.
    pub fn kv_groups(&self) -> &[KvGroup] {
        &self.groups
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

    /// Says how the model writes its answers.
    pub fn set_answer_format(&mut self, format: AnswerFormat) -> Result<()> {
        validate::answer_format(&format)?;
        self.description.metadata.answer = Some(format);
        Ok(())
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

fn groups(states: &[StateDecl]) -> Vec<KvGroup> {
    let mut by_window: BTreeMap<Option<u32>, Vec<usize>> = BTreeMap::new();
    for (i, state) in states.iter().enumerate() {
        by_window.entry(state.window).or_default().push(i);
    }
    by_window.into_iter().map(|(window, states)| KvGroup { window, states }).collect()
}
