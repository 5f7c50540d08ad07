//! Which of a repository's files a model needs.

use crate::error::Error;

/// Files that say what a model is; those that are there are taken.
const SMALL: [&str; 9] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
];
/// All weights in one file.
const WHOLE: &str = "model.safetensors";
/// The files that hold the weights.
pub const INDEX: &str = "model.safetensors.index.json";
/// GGUF files are taken in this order where no quant is named.
const QUANTS: [&str; 8] = ["q4_k_m", "q4_0", "q4_k_s", "q5_k_m", "q6_k", "q8_0", "bf16", "f16"];
/// Towers are small, so the most exact that all machines read goes first.
const TOWERS: [&str; 4] = ["bf16", "f16", "q8_0", "f32"];
/// GGUF files that are no models of their own.
const NOT_MODELS: [&str; 4] = ["mmproj", "imatrix", "assistant", "mtp-"];

/// The files of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The file that is opened; `None` for the folder.
    pub model: Option<String>,
    /// The GGUF file with the towers.
    pub towers: Option<String>,
    /// All files, in the order in which they are downloaded: without the last the model is not there.
    pub files: Vec<String>,
}

/// Chooses among a repository's files, with paths from its top.
pub fn select(repo: &str, files: &[String], quant: Option<&str>) -> Result<Selection, Error> {
    let refuse = |what: String| Error::NoFiles { repo: repo.to_string(), what };
    // Only what stands at the top, under a name that is one everywhere.
    let top: Vec<&str> = files.iter().map(String::as_str).filter(|f| is_plain(f)).collect();
    let has = |name: &str| top.contains(&name);
    let ggufs: Vec<&str> = top.iter().copied().filter(|f| is_gguf(f)).collect();
    let models =
        || ggufs.iter().copied().filter(|f| !NOT_MODELS.iter().any(|n| lower(f).contains(n)));

    if has("config.json") && quant.is_none() && (has(WHOLE) || has(INDEX)) {
        return Ok(folder(&top));
    }
    if models().next().is_none() {
        let what = if quant.is_some() {
            "it has no GGUF files, so no quant can be chosen"
        } else if has("config.json") {
            "it has no weights as safetensors, and no GGUF file at its top"
        } else {
            "it is no model: it has neither config.json with safetensors nor a GGUF file at its top"
        };
        return Err(refuse(what.into()));
    }
    let names = || models().map(String::from).collect::<Vec<_>>().join(", ");
    let model = match quant {
        Some(quant) => {
            let fitting: Vec<&str> = models().filter(|f| is_quant(f, quant)).collect();
            match fitting.as_slice() {
                [one] => *one,
                [] => {
                    return Err(refuse(format!("no file of it is `{quant}`; it has {}", names())));
                }
                several => {
                    let several = several.join(", ");
                    return Err(refuse(format!(
                        "`{quant}` may be each of {several}; write more of it"
                    )));
                }
            }
        }
        None => {
            let preferred = QUANTS.iter().find_map(|q| models().find(|f| is_quant(f, q)));
            let Some(model) = preferred.or_else(|| models().next()) else {
                return Err(refuse("it has no GGUF file".into()));
            };
            model
        }
    };
    if is_part(model) {
        let what =
            format!("{model} is one of several parts; only models in one GGUF file are read");
        return Err(refuse(what));
    }
    let towers: Vec<&str> = ggufs.iter().copied().filter(|f| lower(f).contains("mmproj")).collect();
    let best = TOWERS.iter().find_map(|q| towers.iter().find(|f| is_quant(f, q)));
    let towers = best.or(towers.first()).map(|f| f.to_string());
    // The towers go first: once the model is there, it is whole.
    let files = towers.iter().cloned().chain([model.to_string()]).collect();
    Ok(Selection { model: Some(model.to_string()), towers, files })
}

fn folder(top: &[&str]) -> Selection {
    let has = |name: &str| top.contains(&name);
    let mut files: Vec<String> =
        SMALL.iter().filter(|name| has(name)).map(|name| name.to_string()).collect();
    if has(WHOLE) {
        files.push(WHOLE.into());
    } else {
        files.push(INDEX.into());
        let mut shards: Vec<String> =
            top.iter().filter(|f| is_shard(f)).map(|f| f.to_string()).collect();
        shards.sort();
        files.extend(shards);
    }
    Selection { model: None, towers: None, files }
}

/// A name that is one file in one folder on every system.
fn is_plain(name: &str) -> bool {
    let bad = |c: char| {
        c.is_control() || matches!(c, '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|')
    };
    !name.is_empty() && name.len() <= 200 && !name.starts_with('.') && !name.contains(bad)
}

fn lower(name: &str) -> String {
    name.to_ascii_lowercase()
}

fn is_gguf(name: &str) -> bool {
    lower(name).ends_with(".gguf")
}

/// `model-00001-of-00002.safetensors`.
fn is_shard(name: &str) -> bool {
    let middle = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
    middle.and_then(|m| m.split_once("-of-")).is_some_and(|(i, n)| is_number(i) && is_number(n))
}

/// `…-00001-of-00002.gguf`.
fn is_part(name: &str) -> bool {
    let lower = lower(name);
    let stem = lower.strip_suffix(".gguf").unwrap_or(&lower);
    stem.rsplit_once("-of-").is_some_and(|(head, n)| {
        is_number(n) && head.rsplit_once('-').is_some_and(|(_, i)| is_number(i))
    })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Whether a word stands in a name by itself: `q4_0` in `gemma-q4_0.gguf`, not in `gemma-q4_0_x.gguf`.
fn is_quant(name: &str, quant: &str) -> bool {
    let (name, quant) = (lower(name), lower(quant));
    name.match_indices(&quant).any(|(at, _)| {
        let before = name[..at].bytes().next_back();
        let after = name[at + quant.len()..].bytes().next();
        let is_edge = |b: Option<u8>| b.is_none_or(|b| matches!(b, b'-' | b'.'));
        // Google writes gemma-4-E2B_q4_0-it.gguf.
        (is_edge(before) || before == Some(b'_')) && is_edge(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[&str], quant: Option<&str>) -> Result<Selection, String> {
        let files: Vec<String> = files.iter().map(|f| f.to_string()).collect();
        select("a/b", &files, quant).map_err(|e| e.to_string())
    }

    #[test]
    fn a_folder_is_its_configuration_tokenizer_and_weights() {
        let one = of(
            &[
                "README.md",
                "model.safetensors",
                "config.json",
                "tokenizer.json",
                "x/config.json",
                "model.bin",
            ],
            None,
        );
        let one = one.unwrap();
        assert_eq!(one.files, ["config.json", "tokenizer.json", "model.safetensors"]);
        assert_eq!((one.model, one.towers), (None, None));
        let many = of(
            &[
                "model-00002-of-00002.safetensors",
                "model-00001-of-00002.safetensors",
                "model-extra.safetensors",
                "adapter.safetensors",
                "model.safetensors.index.json",
                "config.json",
                "chat_template.jinja",
            ],
            None,
        );
        let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let many = many.unwrap().files;
        assert_eq!(many[..3], ["config.json", "chat_template.jinja", INDEX]);
        assert_eq!(many[3..], shards);
    }

    #[test]
    fn of_gguf_files_one_is_taken_with_the_towers() {
        let files = [
            "g-Q8_0.gguf",
            "g-Q4_K_M.gguf",
            "g-f16.gguf",
            "mmproj-g-f16.gguf",
            "mmproj-g-Q8_0.gguf",
        ];
        let model = |quant| of(&files, quant).map(|s| s.model.unwrap_or_default());
        assert_eq!(model(None).unwrap(), "g-Q4_K_M.gguf");
        assert_eq!(model(Some("q8_0")).unwrap(), "g-Q8_0.gguf");
        assert_eq!(of(&files, None).unwrap().files, ["mmproj-g-f16.gguf", "g-Q4_K_M.gguf"]);
        assert!(model(Some("Q5_0")).unwrap_err().contains("it has g-Q8_0.gguf, g-Q4_K_M.gguf"));
        // As Google names them.
        let google =
            of(&["gemma-4-E2B_q4_0-it.gguf", "gemma-4-E2B-it-mmproj.gguf", "config.json"], None);
        assert_eq!(
            google.unwrap().files,
            ["gemma-4-E2B-it-mmproj.gguf", "gemma-4-E2B_q4_0-it.gguf"]
        );
        let qat = ["gemma-4-12b-it-qat-q4_0.gguf", "mmproj-gemma-4-12b-it-qat-q4_0.gguf"];
        assert_eq!(of(&qat, None).unwrap().files, [qat[1], qat[0]]);
        let two = ["g-Q4_0.gguf", "h-Q4_0.gguf"];
        assert!(of(&two, Some("Q4_0")).unwrap_err().contains("may be each of"));
    }

    #[test]
    fn what_is_no_model_is_refused_with_a_reason() {
        for (files, quant, why) in [
            (&["config.json", "pytorch_model.bin"][..], None, "no weights as safetensors"),
            (&["README.md"][..], None, "it is no model"),
            (&["config.json", "model.safetensors"][..], Some("Q4_0"), "no GGUF files"),
            (&["g-Q4_0-00001-of-00002.gguf"][..], None, "several parts"),
            (&["mmproj.gguf", "g-imatrix.gguf"][..], None, "it is no model"),
            (&["../g.gguf", "a\\g.gguf", ".g.gguf", "C:g.gguf", "g\n.gguf"][..], None, "no model"),
        ] {
            let said = of(files, quant).unwrap_err();
            assert!(said.contains(why), "{files:?}: {said}");
        }
    }

    #[test]
    fn a_quant_is_a_word_of_the_name() {
        for (name, quant, is) in [
            ("g-Q4_K_M.gguf", "q4_k_m", true),
            ("g-Q4_K_M.gguf", "q4_k", false),
            ("g.Q8_0.gguf", "Q8_0", true),
            ("E2B_q4_0-it.gguf", "Q4_0", true),
            ("g-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", true),
            ("g-bf16.gguf", "f16", false),
            ("Q4_0", "Q4_0", true),
        ] {
            assert_eq!(is_quant(name, quant), is, "{name} {quant}");
        }
    }
}
