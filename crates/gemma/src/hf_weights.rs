//! Finds every weight that a configuration needs in a folder's files, under whichever prefix, name
//! and encoding they stand there.

use std::collections::{BTreeMap, HashMap};

use lapidary_program::{DType, Part, WeightDecl};
use safetensors::Dtype;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::hf_store::{HfStore, Source};
use crate::names::{EMBED_TOKENS, LM_HEAD, Stored, WeightSpec};
use crate::shards::Shards;
use crate::towers::is_tower_weight;
use crate::turned::Turned;
use crate::{mlx, torchao};

/// How `config.json` says that the weights are quantised.
#[derive(Default)]
pub(crate) struct Quantisation {
    mlx: mlx::Declared,
    /// The name of another method.
    method: Option<String>,
}

/// The weights of a folder under canonical names.
pub(crate) struct Selected {
    pub weights: BTreeMap<String, WeightDecl>,
    pub store: HfStore,
    /// The embedding, if it is quantised.
    pub quantised_embedding: Option<Quantised>,
}

/// What is said of a quantised weight beside its encoding.
#[derive(Clone, Copy)]
pub(crate) struct Quantised {
    /// The type that its numbers have for those who wrote the folder.
    pub dtype: DType,
    /// Whether MLX wrote it.
    pub by_mlx: bool,
}

struct Found {
    decl: WeightDecl,
    source: Source,
    quantised: Option<Quantised>,
}

impl Quantisation {
    /// MLX writes `quantization`, and the same as `quantization_config`; everybody else the latter
    /// with a `quant_method`, in some folders only for the text side.
    pub fn read(config: &Value) -> Result<Self> {
        let given = |key: &str| {
            let text = config.get("text_config");
            config.get(key).or_else(|| text?.get(key)).filter(|v| !v.is_null())
        };
        let named = given("quantization_config");
        let method = named.and_then(|v| v.get("quant_method")).and_then(Value::as_str);
        let declared = given("quantization").or(named.filter(|_| method.is_none()));
        Ok(Quantisation {
            mlx: declared.map(mlx::Declared::read).transpose()?.unwrap_or_default(),
            method: method.map(str::to_string),
        })
    }

    /// What to add to a sentence about a tensor that can't be read.
    fn hint(&self) -> String {
        match self.method.as_deref() {
            None | Some("torchao") => String::new(),
            Some(method) => format!(
                "; the folder is quantised by `{method}`, which is not: give the bf16 checkpoint, a \
                 GGUF file, or an MLX or torchao folder"
            ),
        }
    }
}

/// Finds every weight of `specs`; `prefixes` are tried in their order.
pub(crate) fn select(
    files: Shards,
    quantisation: &Quantisation,
    specs: &[WeightSpec],
    prefixes: &[&str],
) -> Result<Selected> {
    let prefix = prefixes.iter().find(|p| is_there(&files, &format!("{p}embed_tokens.weight")));
    let prefix = prefix.copied().unwrap_or("model.");
    let mut weights = BTreeMap::new();
    let mut sources = HashMap::new();
    let mut quantised_embedding = None;
    for spec in specs {
        let names = candidates(&spec.name, prefix);
        let mut found = None;
        for name in &names {
            found = weight(&files, quantisation, name, spec)?;
            if found.is_some() {
                break;
            }
        }
        if found.is_none() {
            found = noted(&files, &names, spec, prefixes)?;
        }
        let Some(found) = found else {
            if spec.optional {
                continue;
            }
            return Err(missing(&files, quantisation, &names, &spec.name));
        };
        if spec.name == EMBED_TOKENS {
            quantised_embedding = found.quantised;
        }
        weights.insert(spec.name.clone(), found.decl);
        sources.insert(spec.name.clone(), found.source);
    }
    let store = HfStore { files: files.files, sources };
    Ok(Selected { weights, store, quantised_embedding })
}

/// Whether an MLX folder has an output head of its own. MLX loads a file only if its model uses
/// every tensor of it, so such a head is used, whatever the configuration says: mlx-vlm makes one
/// for every Gemma 3 and may quantise it otherwise than the embedding.
pub(crate) fn has_packed_head(files: &Shards) -> bool {
    let mut heads = candidates(LM_HEAD, "").into_iter().filter_map(|n| files.tensors.get(&n));
    heads.any(mlx::is_packed)
}

/// Whether a parameter stands in the files, in any encoding.
fn is_there(files: &Shards, name: &str) -> bool {
    files.tensors.contains_key(name) || torchao::is_packed(files, name)
}

/// The names under which a canonical name may stand.
fn candidates(canonical: &str, prefix: &str) -> Vec<String> {
    if is_tower_weight(canonical) {
        return tower_candidates(canonical);
    }
    match canonical.strip_prefix("model.") {
        Some(rest) => vec![format!("{prefix}{rest}")],
        None if canonical == LM_HEAD => {
            vec![canonical.to_string(), format!("language_model.{canonical}")]
        }
        None => vec![canonical.to_string()],
    }
}

/// Versions of transformers, and MLX, differ about `model.`, and about a level inside of SigLIP.
fn tower_candidates(canonical: &str) -> Vec<String> {
    let bare = canonical.strip_prefix("model.").unwrap_or(canonical);
    let mut stems = vec![bare.to_string()];
    if let Some(rest) = bare.strip_prefix("vision_tower.vision_model.") {
        stems.push(format!("vision_tower.{rest}"));
    }
    let mut names = vec![canonical.to_string()];
    for stem in stems {
        for name in [format!("model.{stem}"), stem] {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

fn weight(
    files: &Shards,
    quantisation: &Quantisation,
    name: &str,
    spec: &WeightSpec,
) -> Result<Option<Found>> {
    if files.tensors.contains_key(name) {
        return tensor(files, quantisation, name, &spec.shape, &spec.forms()).map(Some);
    }
    switched(files, quantisation, name, spec)
}

/// A weight that torchao quantised. transformers writes the tensors of a multimodal model under
/// the names of the published checkpoint, and its notes under those that its classes have.
fn noted(
    files: &Shards,
    names: &[String],
    spec: &WeightSpec,
    prefixes: &[&str],
) -> Result<Option<Found>> {
    let mut spellings = prefixes.iter().flat_map(|p| candidates(&spec.name, p));
    let Some(note) = spellings.find_map(|name| torchao::note(files, &name)) else {
        return Ok(None);
    };
    let stored = names.iter().find(|name| torchao::is_packed(files, name)).or(names.first());
    let Some(name) = stored else { return Ok(None) };
    let found = torchao::weight(files, name, &note, &spec.shape)?;
    Ok(Some(Found {
        decl: found.decl,
        source: Source::Recoded(Box::new(found.recoded)),
        quantised: Some(Quantised { dtype: found.dtype, by_mlx: false }),
    }))
}

/// Experts as MLX names them: gate and up apart, both under `switch_glu`.
fn switched(
    files: &Shards,
    quantisation: &Quantisation,
    name: &str,
    spec: &WeightSpec,
) -> Result<Option<Found>> {
    let Some((stem, leaf)) = name.rsplit_once(".experts.") else { return Ok(None) };
    let own = |leaf: &str| format!("{stem}.experts.switch_glu.{leaf}.weight");
    if leaf == "down_proj" && files.tensors.contains_key(&own(leaf)) {
        return tensor(files, quantisation, &own(leaf), &spec.shape, &spec.forms()).map(Some);
    }
    let (gate, up) = (own("gate_proj"), own("up_proj"));
    let both = files.tensors.contains_key(&gate) && files.tensors.contains_key(&up);
    let (true, [experts, rows, cols]) = (leaf == "gate_up_proj" && both, spec.shape.as_slice())
    else {
        return Ok(None);
    };
    let half = [*experts, rows.div_euclid(2), *cols];
    let form = [Stored::As(half.to_vec())];
    let first = tensor(files, quantisation, &gate, &half, &form)?;
    let second = tensor(files, quantisation, &up, &half, &form)?;
    if first.decl != second.decl {
        let what = format!(
            "it is {}, but `{gate}`, which is joined with it, is {}; get a folder that stores both \
             in the same way",
            second.decl.encoding.label(),
            first.decl.encoding.label()
        );
        return Err(Error::tensor(&up, what));
    }
    let source = Source::Joined {
        outer: usize::try_from(*experts).unwrap_or(0),
        first: Box::new(first.source),
        second: Box::new(second.source),
    };
    let decl = WeightDecl { shape: spec.shape.clone(), encoding: first.decl.encoding };
    Ok(Some(Found { decl, source, quantised: first.quantised }))
}

/// A dense tensor, or MLX's codes with what belongs to them.
fn tensor(
    files: &Shards,
    quantisation: &Quantisation,
    name: &str,
    shape: &[u64],
    forms: &[Stored],
) -> Result<Found> {
    let Some(tensor) = files.tensors.get(name) else {
        return Err(Error::tensor(name, "it is missing"));
    };
    if mlx::is_packed(tensor) {
        let found = quantisation.mlx.weight(files, name, shape)?;
        let quantised = Some(Quantised { dtype: found.dtype, by_mlx: true });
        return Ok(Found { decl: found.decl, source: found.source, quantised });
    }
    let dtype = match (tensor.float(), tensor.dtype) {
        (Some(dtype), _) => dtype,
        (None, Dtype::I64) if name.ends_with("token_ordering") => DType::I64,
        (None, other) => {
            let what =
                format!("its type {other:?} is not read; F32, F16 and BF16 are{}", quantisation.hint());
            return Err(Error::tensor(name, what));
        }
    };
    let place = tensor.place.clone();
    let source = match forms.iter().find(|form| form.shape() == tensor.shape) {
        Some(Stored::As(_)) => Source::Stored(vec![(Part::Data, place)]),
        Some(Stored::Turned { outer, rows, cols, .. }) => {
            Source::Turned(place, Turned::new([*outer, *rows, *cols], dtype))
        }
        None => {
            let asked = forms.first().map_or(shape, |form| form.shape());
            let what =
                format!("it has shape {:?}, the configuration asks for {asked:?}", tensor.shape);
            return Err(Error::tensor(name, what));
        }
    };
    Ok(Found { decl: WeightDecl::dense(shape, dtype), source, quantised: None })
}

fn missing(
    files: &Shards,
    quantisation: &Quantisation,
    names: &[String],
    canonical: &str,
) -> Error {
    let name = names.first().map_or(canonical, String::as_str);
    let stem = name.strip_suffix(".weight").unwrap_or(name);
    let has = |name: String| files.tensors.contains_key(&name);
    let what = if has(format!("{name}:qdata")) {
        "it is quantised by a torchao before 0.15, whose names are not read; save the folder again \
         with a newer one"
            .to_string()
    } else if torchao::is_packed(files, name) {
        "it is quantised by torchao, but the file's header has no note about it".to_string()
    } else if [".scales", ".qweight", ".weight_packed"].iter().any(|s| has(format!("{stem}{s}"))) {
        let of = quantisation.method.as_deref().unwrap_or("a method that is not named");
        format!(
            "it is quantised by {of}, which is not read; give the bf16 checkpoint, a GGUF file, or \
             an MLX or torchao folder"
        )
    } else {
        "it is missing".to_string()
    };
    Error::tensor(name, what)
}
