//! An mmproj file: the towers of a model whose text side is another GGUF file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lapidary_program::{FileBytes, Media, WeightDecl, WeightStore};

use super::import::{Names, refuse_parts, select};
use super::mmproj_config::{media_numbers, towers};
use super::mmproj_names::tensor_of;
use super::reader::Gguf;
use super::tensor_names::Tensors;
use crate::config::TextConfig;
use crate::error::{Error, Result};
use crate::towers::{Towers, Vision, media, tower_weights};

/// Towers that were read but not yet joined with their model.
pub struct ImportedTowers {
    /// Their tables of values.
    pub towers: Towers,
    /// Channels of the model that they are made for.
    pub text_hidden: u32,
    /// How images and audio are made ready for them.
    pub media: Media,
    /// Their weights under canonical names.
    pub weights: BTreeMap<String, WeightDecl>,
    /// Their bytes.
    pub store: Arc<dyn WeightStore>,
}

/// Reads the towers of a model.
pub fn read_towers(path: &Path, bytes: FileBytes) -> Result<ImportedTowers> {
    let file = Gguf::parse(bytes)?;
    match file.text("general.architecture")? {
        Some("clip") => {}
        Some(other) => {
            return Err(Error::NotAModel {
                path: path.to_path_buf(),
                what: format!(
                    "it is a `{other}` model, not an mmproj file, which holds the image or audio \
                     part of one"
                ),
            });
        }
        None => return Err(Error::config("`general.architecture` is missing")),
    }
    refuse_parts(&file)?;
    let described = towers(&file)?;
    let media = media(&described.towers, &media_numbers(&file, &described.towers)?);
    let exchanged = mlp_is_exchanged(&file, &described.towers);
    let of = |name: &str| tensor_of(name, exchanged).map(Tensors::One);
    let names = Names { of: &of, is_ignorable: &|_| false };
    let specs = tower_weights(&described.towers, described.text_hidden);
    let (weights, store) = select(Arc::new(file), &specs, &names)?;
    Ok(ImportedTowers {
        towers: described.towers,
        text_hidden: described.text_hidden,
        media,
        weights,
        store: Arc::new(store),
    })
}

/// Early files of Gemma 3 call the linear that widens `ffn_down`.
fn mlp_is_exchanged(file: &Gguf, towers: &Towers) -> bool {
    let Some(Vision::Siglip(c)) = &towers.vision else { return false };
    let wide = [u64::from(c.intermediate_size), u64::from(c.hidden_size)];
    c.intermediate_size != c.hidden_size
        && file.tensor("v.blk.0.ffn_down.weight").is_some_and(|t| t.shape == wide)
}

impl ImportedTowers {
    /// Why these are not the towers of a model, if they are not.
    pub fn misfit(&self, text: &TextConfig) -> Option<String> {
        let gemma3 = matches!(self.towers.vision, Some(Vision::Siglip(_)));
        let own = if gemma3 { "gemma3" } else { "gemma4" };
        if text.architecture != own {
            return Some(format!("it belongs to a `{own}` model, this is `{}`", text.architecture));
        }
        if self.text_hidden != text.hidden_size {
            return Some(format!(
                "it is made for a model of hidden size {}, this has {}",
                self.text_hidden, text.hidden_size
            ));
        }
        None
    }

    /// Whether a model lets the soft rows of one image see each other, and on its full layers too.
    pub(crate) fn sees_blocks(&self, text: &TextConfig) -> (bool, bool) {
        match self.towers.vision {
            None => (false, false),
            Some(Vision::Siglip(_)) => (true, true),
            // No key says so; of Gemma 4, the models with per-layer embeddings do not.
            Some(Vision::Tower(_) | Vision::Patches(_)) => (text.per_layer_input.is_none(), false),
        }
    }
}
