//! The compiled kernels that ship with this crate, made by `cargo xtask cuda`.
//!
//! `kernels/bundle.bin` holds one fat binary for each file of kernels, one after another: machine code
//! for several generations of GPUs, of which the driver takes the one that fits, and PTX for those to
//! come. `kernels/bundle.json` says where each begins, and of which sources it was made.

use std::collections::BTreeMap;

use lapidary_backend::{Error, Result};
use serde::Deserialize;

const BYTES: &[u8] = include_bytes!("../kernels/bundle.bin");
const MANIFEST: &str = include_str!("../kernels/bundle.json");

/// The kernels of a file, each with the most bytes of shared memory that it is started with, besides
/// what it declares.
type Names = &'static [(&'static str, u32)];

/// All that a GPU gives one block.
pub(crate) const MOST_SHARED: u32 = u32::MAX;

/// The kernels of each file.
const KERNELS: &[(&str, Names)] = &[
    (
        "plain.cu",
        &[
            ("add", 0),
            ("scale", 0),
            ("scale_by", 0),
            ("soft_cap", 0),
            ("gelu_gate", 0),
            ("gelu_halves", 0),
            ("sigmoid_gate", 0),
            ("activate", 0),
            ("clamp", 0),
            ("standardise", 0),
            ("slice", 0),
            ("concat", 0),
            ("gather_rows", 0),
            ("soft_merge", 0),
            ("embed_raw", 0),
            ("pool_rows", 0),
            ("causal_conv1d", 0),
            ("conv2d", 0),
            ("angles", 0),
            ("rope", 0),
            ("axial_rope", 0),
            ("rms_norm", 0),
            ("layer_norm", 0),
            ("pick_rows", 0),
        ],
    ),
    (
        "linear.cu",
        &[
            ("linear_few", 0),
            ("linear_experts", 0),
            ("linear_many", 0),
            ("experts_sum", 0),
            ("router", 0),
            ("centroid_choose", 0),
            ("centroid_logits", 0),
            ("centroid_fill", 0),
        ],
    ),
    (
        "attention.cu",
        &[
            ("attention", 0),
            ("attention_128", 0),
            ("attention_256", 0),
            ("attention_512", 0),
            ("attention_join", 0),
            ("self_attention", 0),
            ("local_attention", 0),
            ("kv_write", 0),
            ("heads", 0),
        ],
    ),
    (
        "packed.cu",
        &[
            ("pack", 0),
            ("embed_packed", 0),
            ("rows_to_bytes", 0),
            ("product_4_1", MOST_SHARED),
            ("product_4_2", MOST_SHARED),
            ("product_4_4", MOST_SHARED),
            ("product_8_1", MOST_SHARED),
            ("product_8_2", MOST_SHARED),
            ("product_8_4", MOST_SHARED),
            ("product_4a_1", MOST_SHARED),
            ("product_4a_2", MOST_SHARED),
            ("product_4a_4", MOST_SHARED),
            ("product_8a_1", MOST_SHARED),
            ("product_8a_2", MOST_SHARED),
            ("product_8a_4", MOST_SHARED),
            ("rows_to_halves", 0),
            ("many_4", MOST_SHARED),
            ("many_8", MOST_SHARED),
            ("many_4a", MOST_SHARED),
            ("many_8a", MOST_SHARED),
        ],
    ),
    ("rows.cu", &[("residual", MOST_SHARED), ("gelu_bytes", 0)]),
    (
        "top.cu",
        &[("top_numbers", 0), ("top_keys", 0), ("candidates", 0), ("logsumexp", 0), ("draw", 0)],
    ),
];

/// What stands in `bundle.json`.
#[derive(Debug, Deserialize)]
struct Manifest {
    /// By file of kernels.
    files: BTreeMap<String, Place>,
}

/// Where a fat binary stands.
#[derive(Debug, Deserialize)]
struct Place {
    start: usize,
    bytes: usize,
}

/// Each fat binary with its kernels.
pub(crate) fn images() -> Result<Vec<(&'static [u8], Names)>> {
    let broken = |what: String| Error::Device(format!("the bundle of kernels is broken: {what}"));
    let manifest: Manifest = serde_json::from_str(MANIFEST).map_err(|e| broken(e.to_string()))?;
    let image = |(file, names): &(&str, Names)| {
        let place = manifest.files.get(*file);
        let place = place.ok_or_else(|| broken(format!("`{file}` is missing")))?;
        let image =
            place.start.checked_add(place.bytes).and_then(|end| BYTES.get(place.start..end));
        Ok((image.ok_or_else(|| broken(format!("`{file}` is cut short")))?, *names))
    };
    KERNELS.iter().map(image).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};

    use super::{KERNELS, MANIFEST, images};

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
    }

    /// The sources that kernels are made of, by name.
    fn sources() -> BTreeMap<String, String> {
        let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
        let is_source = |path: &PathBuf| path.extension().is_some_and(|e| e == "cu" || e == "cuh");
        let read = |path: PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).unwrap())
        };
        files.filter(is_source).map(read).collect()
    }

    #[test]
    fn the_bundle_was_made_of_these_sources() {
        let manifest: serde_json::Value = serde_json::from_str(MANIFEST).unwrap();
        let hash = |text: &String| blake3::hash(text.as_bytes()).to_hex().to_string();
        let sources: BTreeMap<String, String> =
            sources().iter().map(|(name, text)| (name.clone(), hash(text))).collect();
        let made_of: BTreeMap<String, String> =
            serde_json::from_value(manifest["sources"].clone()).unwrap();
        assert_eq!(made_of, sources, "kernels have changed: run `cargo xtask cuda`");
        let bytes = blake3::hash(super::BYTES).to_hex().to_string();
        assert_eq!(
            manifest["hash"], bytes,
            "`bundle.bin` is not the one that `bundle.json` tells of"
        );
    }

    #[test]
    fn every_kernel_is_listed_once() {
        let sources = sources();
        for (file, names) in KERNELS {
            let text = &sources[*file];
            // Some are made by macros of capital letters, which declare one kernel each.
            let declared = text.matches("extern \"C\" __global__").count();
            let is_made =
                |line: &&str| line.starts_with(char::is_uppercase) && line.split('(').count() == 2;
            let macros = text.matches("#define PRODUCT(").count()
                + text.matches("#define MANY(").count()
                + text.matches("#define FEW_KEYS(").count();
            let made = text.lines().filter(is_made).count();
            assert_eq!(declared - macros + made, names.len(), "{file}");
            for (name, _) in *names {
                let is_there = [format!(" {name}("), format!("({name},")];
                let is_there = is_there.iter().any(|form| text.contains(form));
                assert!(is_there, "{file} has no kernel `{name}`");
            }
        }
        assert_eq!(images().unwrap().len(), KERNELS.len());
        assert!(images().unwrap().iter().all(|(image, _)| !image.is_empty()));
    }
}
