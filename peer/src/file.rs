//! What a GGUF file says about the work of one token.

use std::path::Path;

use anyhow::Result;
use lapidary_gemma::gguf::{Gguf, TensorInfo};
use lapidary_program::FileBytes;

/// The sizes that measurements are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub file_bytes: u64,
    /// Bytes of weights, as they stand in the file, that one decoded token needs.
    pub decode_bytes: u64,
}

/// Reads the sizes of a file.
pub fn sizes(path: &Path) -> Result<Sizes> {
    let file_bytes = std::fs::metadata(path)?.len();
    let file = Gguf::parse(FileBytes::open(path, true)?)?;
    Ok(Sizes { file_bytes, decode_bytes: decode_bytes(&file)? })
}

fn decode_bytes(file: &Gguf) -> Result<u64> {
    let architecture = file.text("general.architecture")?.unwrap_or_default().to_string();
    let number = |key: &str| file.uint(&format!("{architecture}.{key}"));
    let n_layers = number("block_count")?.unwrap_or(0);
    let first_shared = n_layers - number("attention.shared_kv_layers")?.unwrap_or(0).min(n_layers);
    let n_experts = number("expert_count")?.unwrap_or(0).max(1);
    let n_used = number("expert_used_count")?.unwrap_or(1).min(n_experts);
    let untied = file.tensor("output.weight").is_some();
    Ok(file
        .tensors()
        .iter()
        .map(|t| {
            let bytes = t.range.len() as u64;
            match t.name.as_str() {
                // Rows are gathered from these; the embedding is the head as well if it is tied.
                "per_layer_token_embd.weight" => one_row(t, bytes),
                "token_embd.weight" if untied => one_row(t, bytes),
                "rope_freqs.weight" => 0,
                name if is_unused(name, first_shared) => 0,
                name if name.contains("_exps.") => bytes * n_used / n_experts,
                _ => bytes,
            }
        })
        .sum())
}

fn one_row(tensor: &TensorInfo, bytes: u64) -> u64 {
    bytes / tensor.shape.first().copied().unwrap_or(1).max(1)
}

/// Layers that share keys and values of others keep the projections that they do not use.
fn is_unused(name: &str, first_shared: u64) -> bool {
    let Some((layer, rest)) = name.strip_prefix("blk.").and_then(|n| n.split_once('.')) else {
        return false;
    };
    let unused = ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"].contains(&rest);
    unused && layer.parse().is_ok_and(|layer: u64| layer >= first_shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_needs_less_than_the_file() {
        let tiny = |family: &str| {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/gguf");
            sizes(&root.join(family).join("model.gguf")).unwrap()
        };
        for family in ["gemma3_text", "gemma4_text_dense", "gemma4_text_e", "gemma4_text_moe"] {
            let sizes = tiny(family);
            assert!(sizes.decode_bytes > sizes.file_bytes / 8, "{family}: {sizes:?}");
            assert!(sizes.decode_bytes < sizes.file_bytes, "{family}: {sizes:?}");
        }
    }

    #[test]
    fn only_sharing_layers_have_unused_keys() {
        assert!(is_unused("blk.15.attn_k.weight", 15));
        assert!(!is_unused("blk.14.attn_k.weight", 15));
        assert!(!is_unused("blk.15.attn_q.weight", 15));
        assert!(!is_unused("output_norm.weight", 0));
    }
}
