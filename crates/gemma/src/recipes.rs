//! The built-in recipes: which of the family's weights bear how few bits.

use lapidary_program::{DType, Program};
use lapidary_quantise::{Action, Error, Group, Method, Quantise, Recipe, Result};

use crate::towers::is_tower_weight;

/// Names of the built-in recipes, most exact first. The codes of `int4` are found by half-quadratic
/// optimisation, those of `…-minmax` by dividing each group's range evenly.
pub const BUILT_IN: &[&str] =
    &["bf16", "int8", "int4-sensitive", "int4-sensitive-minmax", "int4", "int4-minmax", "q4_0"];

/// Embedding tables and the output head.
const TABLES: &str = r"(.*\.)?(embed_tokens|embed_tokens_per_layer|lm_head)\.weight";
/// The linears of a tower's layers: attention, MLPs, and the two around a convolution.
const TOWER_LINEARS: &str = concat!(
    r"(.*\.)?(vision_tower|audio_tower)\.(.*\.)?layers\.\d+\.",
    r"(self_attn\.([qkvo]|out)_proj|self_attn\.post|mlp\.(fc1|fc2|gate_proj|up_proj|down_proj)",
    r"|feed_forward[12]\.ffw_layer_[12]|lconv1d\.linear_(start|end))(\.linear)?\.weight",
);
/// Everything else of a tower: convolutions, position tables, and the linears at either end.
const TOWER_REST: &str = concat!(
    r"(.*\.)?(vision_tower|audio_tower|vision_embedder|embed_vision|embed_audio",
    r"|multi_modal_projector)\..*",
);
/// Every weight that no rule before took.
const REST: &str = ".*";

const AFFINE4: Quantise = Quantise {
    bits: 4,
    group: Group::Size(32),
    symmetric: false,
    scale: DType::F16,
    method: Method::Hqq,
};
const SYMMETRIC8: Quantise = Quantise {
    bits: 8,
    group: Group::Size(32),
    symmetric: true,
    scale: DType::F16,
    method: Method::MinMax,
};
const SYMMETRIC4: Quantise =
    Quantise { bits: 4, symmetric: true, method: Method::MinMax, ..AFFINE4 };
const ROW8: Quantise = Quantise { group: Group::Row, scale: DType::F32, ..SYMMETRIC8 };

/// A built-in recipe for a program; some treat its outer layers otherwise.
pub fn built_in(name: &str, program: &Program) -> Result<Recipe> {
    for_layers(name, n_layers(program.weights().keys()))
}

fn for_layers(name: &str, n_layers: usize) -> Result<Recipe> {
    let (kind, affine4) = match name.strip_suffix("-minmax") {
        Some(kind) => (kind, Quantise { method: Method::MinMax, ..AFFINE4 }),
        None => (name, AFFINE4),
    };
    let quantised = |pattern: &str, q| (pattern.to_string(), Action::Quantise(q));
    let mut rules = match kind {
        _ if !BUILT_IN.contains(&name) => {
            let known = BUILT_IN.join(", ");
            return Err(Error::UnknownRecipe { name: name.to_string(), known });
        }
        "bf16" => vec![(REST.to_string(), Action::Dense(DType::Bf16))],
        "int8" => vec![quantised(TABLES, ROW8), quantised(REST, SYMMETRIC8)],
        "q4_0" => vec![quantised(TABLES, SYMMETRIC8), quantised(REST, SYMMETRIC4)],
        "int4-sensitive" => vec![
            quantised(TABLES, ROW8),
            quantised(&outer_layers(n_layers), SYMMETRIC8),
            quantised(REST, affine4),
        ],
        _ => vec![quantised(TABLES, ROW8), quantised(REST, affine4)],
    };
    if kind != "bf16" {
        // Towers are small beside their models, and an error of theirs is in every row that the
        // model gets of an image: eight bits halve them at next to no cost, four would be seen.
        // What stands at their ends, and what is not a linear, is smaller still and stays.
        let kept = (TOWER_REST.to_string(), Action::Keep);
        rules.splice(0..0, [quantised(TOWER_LINEARS, SYMMETRIC8), kept]);
    }
    Recipe::new(name, rules)
}

/// One more than the highest number after `layers.` in the names of the text side's weights.
fn n_layers<'a>(names: impl Iterator<Item = &'a String>) -> usize {
    let number = |name: &str| name.split_once("layers.")?.1.split('.').next()?.parse().ok();
    let names = names.filter(|name| !is_tower_weight(name));
    names.filter_map(|name| number(name)).max().map_or(0, |last: usize| last + 1)
}

/// The value and down projections of the first and the last quarter of the layers.
fn outer_layers(n_layers: usize) -> String {
    let quarter = n_layers / 4;
    let outer: Vec<String> = (0..n_layers)
        .filter(|i| *i < quarter || *i >= n_layers - quarter)
        .map(|i| i.to_string())
        .collect();
    format!(r"(.*\.)?layers\.({})\.(self_attn\.v_proj|mlp\.down_proj)\.weight", outer.join("|"))
}

#[cfg(test)]
mod tests {
    use lapidary_program::{Encoding, WeightDecl};

    use super::*;

    fn decl() -> WeightDecl {
        WeightDecl::dense([64, 64], DType::Bf16)
    }

    #[test]
    fn outer_quarters_are_kept_wider() {
        let recipe = for_layers("int4-sensitive", 8).unwrap();
        let bits = |layer: usize, name: &str| {
            let name = format!("model.layers.{layer}.{name}.weight");
            match recipe.of(&name, &decl()).1.encoding {
                Encoding::Quant(q) => q.bits,
                Encoding::Dense(_) => 0,
            }
        };
        let down: Vec<u8> = (0..8).map(|l| bits(l, "mlp.down_proj")).collect();
        assert_eq!(down, [8, 8, 4, 4, 4, 4, 8, 8]);
        assert_eq!(bits(0, "self_attn.v_proj"), 8);
        assert_eq!(bits(0, "self_attn.q_proj"), 4);
    }

    #[test]
    fn a_suffix_changes_the_method_and_nothing_else() {
        let linear = "model.layers.3.mlp.up_proj.weight";
        for name in ["int4", "int4-sensitive"] {
            let (plain, min_max) = (for_layers(name, 8), for_layers(&format!("{name}-minmax"), 8));
            let (plain, min_max) = (plain.unwrap(), min_max.unwrap());
            let method = |recipe: &Recipe| match recipe.of(linear, &decl()).0 {
                Action::Quantise(q) => q.method,
                other => panic!("{other:?}"),
            };
            assert_eq!((method(&plain), method(&min_max)), (Method::Hqq, Method::MinMax));
            assert_eq!(plain.of(linear, &decl()).1, min_max.of(linear, &decl()).1);
        }
    }

    /// What each recipe does with each weight of the towers of all released models.
    #[test]
    fn towers_keep_eight_bits_and_their_tables() {
        let linears = ["_proj", "fc1", "fc2", "post", "ffw_layer_1", "ffw_layer_2", "linear_start"];
        for released in crate::RELEASED {
            let program = released.skeleton().unwrap();
            let recipes: Vec<Recipe> =
                BUILT_IN.iter().map(|name| built_in(name, &program).unwrap()).collect();
            let towers = program.weights().iter().filter(|(name, _)| is_tower_weight(name));
            for (name, decl) in towers {
                let stem = name.strip_suffix(".weight").unwrap_or(name);
                let stem = stem.strip_suffix(".linear").unwrap_or(stem);
                let linear = name.contains(".layers.")
                    && decl.shape.len() == 2
                    && !name.contains("relative_k_proj")
                    && (linears.iter().any(|l| stem.ends_with(l)) || stem.ends_with("linear_end"));
                for recipe in &recipes {
                    let bits = match recipe.of(name, decl).1.encoding {
                        Encoding::Quant(q) => q.bits,
                        Encoding::Dense(_) => 16,
                    };
                    let want = if linear && recipe.name != "bf16" { 8 } else { 16 };
                    assert_eq!(bits, want, "{} {name}", recipe.name);
                }
            }
        }
    }

    #[test]
    fn layers_of_towers_do_not_count() {
        let names = ["model.layers.3.x", "model.vision_tower.encoder.layers.26.x"];
        assert_eq!(n_layers(names.map(String::from).iter()), 4);
    }

    #[test]
    fn all_names_are_known_and_no_others() {
        for name in BUILT_IN {
            assert_eq!(for_layers(name, 8).unwrap().name, *name);
        }
        for name in ["int5", "int8-minmax", "-minmax", ""] {
            assert!(for_layers(name, 8).unwrap_err().to_string().contains("q4_0"), "{name}");
        }
    }
}
