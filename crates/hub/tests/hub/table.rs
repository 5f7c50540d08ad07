//! The table of models against the shapes that Lapidary knows.

use lapidary_gemma::RELEASED;
use lapidary_hub::{Format, Table};
use lapidary_program::{Modality, WeightDecl};

/// The drafter's weights stand under this in a program.
const DRAFT: &str = "draft.";

#[test]
fn the_table_says_what_the_released_shapes_say() {
    let table = Table::get();
    assert_eq!(table.models.len(), RELEASED.len());
    let mut params = vec![];
    for (entry, released) in table.models.iter().zip(RELEASED) {
        assert_eq!(entry.shape, released.name);
        assert_eq!(entry.drafter().is_some(), released.draft_config.is_some(), "{}", entry.name());
        let program = released.skeleton().unwrap();
        let numbers = |decl: &WeightDecl| decl.shape.iter().product::<u64>();
        let own = program.weights().iter().filter(|(name, _)| !name.starts_with(DRAFT));
        params.push((entry.name(), own.map(|(_, decl)| numbers(decl)).sum::<u64>()));
        let input: Vec<&str> = std::iter::once("text")
            .chain(program.metadata().media.modalities().into_iter().map(|m| match m {
                Modality::Image => "image",
                Modality::Video => "video",
                Modality::Audio => "audio",
            }))
            .collect();
        assert_eq!(entry.input, input, "{}", entry.name());
        for variant in &entry.variants {
            if let Some(recipe) = variant.recipe_in_memory() {
                assert!(lapidary_gemma::recipes::BUILT_IN.contains(&recipe), "{recipe}");
            }
            if variant.format == Format::Gguf {
                assert_eq!(entry.download_bytes(variant), None);
            }
        }
    }
    let table: Vec<(String, u64)> = table.models.iter().map(|e| (e.name(), e.params)).collect();
    assert_eq!(table, params);
}
