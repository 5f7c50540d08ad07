//! The released members of the family, as their published configurations describe them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_program::{DType, Metadata, Part, Program, WeightDecl, WeightStore};

use crate::answer::answer_format;
use crate::config::SAMPLING;
use crate::error::{Error, Result};
use crate::hf_config::{HfConfig, parse};
use crate::import::{Imported, ImportedDraft, MADE_BY, assemble};
use crate::names::{WeightSpec, draft_weights, text_weights};
use crate::towers::{MediaNumbers, media, tower_weights};

/// A released model.
pub struct Released {
    /// `gemma-4-e2b`.
    pub name: &'static str,
    /// Its `config.json`, cut to what matters here.
    pub config: &'static str,
    /// The `config.json` of its drafter.
    pub draft_config: Option<&'static str>,
}

macro_rules! released {
    ($($name:literal $(+ $draft:literal)?),* $(,)?) => {
        &[$(Released {
            name: $name,
            config: include_str!(concat!("../released/", $name, ".json")),
            draft_config: released!(@ $($draft)?),
        }),*]
    };
    (@ $draft:literal) => { Some(include_str!(concat!("../released/", $draft, ".json"))) };
    (@) => { None };
}

/// All released sizes.
pub const RELEASED: &[Released] = released![
    "gemma-3-270m",
    "gemma-3-1b",
    "gemma-3-4b",
    "gemma-3-12b",
    "gemma-3-27b",
    "gemma-4-e2b" + "gemma-4-e2b-assistant",
    "gemma-4-e4b" + "gemma-4-e4b-assistant",
    "gemma-4-12b" + "gemma-4-12b-assistant",
    "gemma-4-26b-a4b" + "gemma-4-26b-a4b-assistant",
    "gemma-4-31b" + "gemma-4-31b-assistant",
];

impl Released {
    /// The program of this size with its weights declared in bf16 but absent, and the `draft`
    /// method if a drafter was released.
    pub fn skeleton(&self) -> Result<Program> {
        let HfConfig::Model(config) = parse(self.config.as_bytes())? else {
            return Err(Error::config(format!("{} is not a model", self.name)));
        };
        let draft = match self.draft_config.map(|c| parse(c.as_bytes())).transpose()? {
            Some(HfConfig::Draft(config)) => Some(ImportedDraft {
                weights: declare(&draft_weights(&config)),
                store: Arc::new(Absent),
                config: *config,
            }),
            Some(HfConfig::Model(_)) => {
                return Err(Error::config(format!("{}'s drafter is a model", self.name)));
            }
            None => None,
        };
        let mut weights = declare(&text_weights(&config.text));
        weights.extend(declare(&tower_weights(&config.towers, config.text.hidden_size)));
        let numbers = MediaNumbers::released(&config.towers);
        let model = Imported {
            weights,
            store: Arc::new(Absent),
            metadata: Metadata {
                name: self.name.into(),
                architecture: config.text.architecture.clone(),
                made_by: MADE_BY.into(),
                vocab_size: config.text.vocab_size,
                max_context_len: config.text.max_position_embeddings,
                bos_id: config.bos_id,
                pad_id: config.pad_id,
                eos_ids: config.eos_ids.clone(),
                suppress_ids: vec![],
                add_bos: true,
                sampling: SAMPLING,
                media: media(&config.towers, &numbers),
                answer: answer_format(&config.text.architecture),
            },
            text: config.text,
            towers: config.towers,
            blobs: BTreeMap::new(),
        };
        assemble(model, draft)
    }
}

fn declare(specs: &[WeightSpec]) -> BTreeMap<String, WeightDecl> {
    specs
        .iter()
        .filter(|s| !(s.optional && s.name.ends_with(".bias")))
        .map(|s| {
            let dtype = if s.name.ends_with("token_ordering") { DType::I64 } else { DType::Bf16 };
            (s.name.clone(), WeightDecl::dense(s.shape.clone(), dtype))
        })
        .collect()
}

/// No bytes at all.
struct Absent;

impl WeightStore for Absent {
    fn part(&self, weight: &str, _: Part) -> lapidary_program::Result<Cow<'_, [u8]>> {
        Err(lapidary_program::Error::Weight {
            weight: weight.to_string(),
            what: "this program was built without its weights".into(),
        })
    }
}
