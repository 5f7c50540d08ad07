//! Every released size builds from its published configuration, with the published size.

use lapidary_gemma::{RELEASED, names};
use lapidary_program::{Op, method};

/// Parameters of the text side in millions, as published, to the digits that are published.
const PUBLISHED: &[(&str, f64, f64)] = &[
    ("gemma-3-270m", 268.1, 0.1),
    ("gemma-3-1b", 999.9, 0.1),
    ("gemma-3-4b", 3880.0, 5.0),
    ("gemma-3-12b", 11770.0, 5.0),
    ("gemma-3-27b", 27000.0, 50.0),
    ("gemma-4-e2b", 4630.0, 20.0),
    ("gemma-4-e4b", 7460.0, 10.0),
    ("gemma-4-12b", 11910.0, 5.0),
    ("gemma-4-26b-a4b", 25230.0, 5.0),
    ("gemma-4-31b", 30700.0, 5.0),
];

#[test]
fn every_released_size_builds_with_its_published_parameter_count() {
    assert_eq!(RELEASED.len(), PUBLISHED.len());
    for released in RELEASED {
        let program = released.skeleton().unwrap_or_else(|e| panic!("{}: {e}", released.name));
        let text: u64 = program
            .weights()
            .iter()
            .filter(|(name, _)| !name.starts_with(names::DRAFT_PREFIX))
            .filter_map(|(_, w)| w.checked_elements())
            .sum();
        let (_, want, tolerance) = PUBLISHED
            .iter()
            .find(|(name, ..)| *name == released.name)
            .unwrap_or_else(|| panic!("{} has no published size", released.name));
        let got = text as f64 / 1e6;
        assert!((got - want).abs() <= *tolerance, "{}: {got:.1} M, not {want}", released.name);
    }
}

#[test]
fn per_layer_tables_are_the_published_part() {
    for (name, want) in [("gemma-4-e2b", 2349.0), ("gemma-4-e4b", 2818.0)] {
        let released = RELEASED.iter().find(|r| r.name == name).unwrap();
        let program = released.skeleton().unwrap();
        let table = &program.weights()[names::EMBED_TOKENS_PER_LAYER];
        let got = table.checked_elements().unwrap() as f64 / 1e6;
        assert!((got - want).abs() < 1.0, "{name}: {got:.1} M");
    }
}

#[test]
fn shared_layers_own_no_cache_and_read_the_published_source() {
    // (size, caches, state of the last full layer, state of the last sliding layer)
    for (name, caches, full, sliding) in [
        ("gemma-4-e2b", 15, "kv.14", "kv.13"),
        ("gemma-4-e4b", 24, "kv.23", "kv.22"),
        ("gemma-4-31b", 60, "kv.59", "kv.58"),
        ("gemma-4-12b", 48, "kv.47", "kv.46"),
    ] {
        let released = RELEASED.iter().find(|r| r.name == name).unwrap();
        let program = released.skeleton().unwrap();
        assert_eq!(program.states().len(), caches, "{name}");
        for method in [method::FORWARD, method::DRAFT] {
            let graph = &program.method(method).unwrap().graph;
            let last = |windowed: bool| {
                graph.nodes.iter().rev().find_map(|n| match &n.op {
                    Op::Attention { state, spec } if spec.window.is_some() == windowed => {
                        Some(state.as_str())
                    }
                    _ => None,
                })
            };
            assert_eq!(last(false), Some(full), "{name} {method}");
            assert_eq!(last(true), Some(sliding), "{name} {method}");
        }
    }
}

#[test]
fn kv_memory_at_32k_matches_the_published_table() {
    // bf16 KV caches of 32 k tokens with an exact window (chunk 1), in MiB.
    for (name, want) in [
        ("gemma-4-e2b", 198.0),
        ("gemma-4-e4b", 532.0),
        ("gemma-4-12b", 832.0),
        ("gemma-4-26b-a4b", 840.0),
        ("gemma-4-31b", 3360.0),
    ] {
        let released = RELEASED.iter().find(|r| r.name == name).unwrap();
        let released = lapidary_gemma::Released { draft_config: None, ..*released };
        let program = released.skeleton().unwrap();
        let bytes: u64 = program
            .states()
            .iter()
            .map(|s| u64::from(s.capacity(32 * 1024, 1)) * s.channels() * 2 * 2)
            .sum();
        let got = bytes as f64 / (1024.0 * 1024.0);
        assert!((got - want).abs() < 1.0, "{name}: {got:.1} MiB, not {want}");
    }
}
