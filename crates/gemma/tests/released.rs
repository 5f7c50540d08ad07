//! Every released size builds from its published configuration, with the published size.

use lapidary_gemma::{RELEASED, names, towers};
use lapidary_program::{AudioFrames, ImageSize, Op, Program, method};

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
            .filter(|(name, _)| !towers::is_tower_weight(name))
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
            .map(|s| u64::from(s.window.unwrap_or(32 * 1024)) * s.channels() * 2 * 2)
            .sum();
        let got = bytes as f64 / (1024.0 * 1024.0);
        assert!((got - want).abs() < 1.0, "{name}: {got:.1} MiB, not {want}");
    }
}

/// Elements of the weights whose names begin so, in millions.
fn millions(program: &Program, prefix: &str) -> f64 {
    let own = program.weights().iter().filter(|(name, _)| name.starts_with(prefix));
    own.filter_map(|(_, w)| w.checked_elements()).sum::<u64>() as f64 / 1e6
}

fn skeleton(name: &str) -> Program {
    RELEASED.iter().find(|r| r.name == name).unwrap().skeleton().unwrap()
}

#[test]
fn towers_have_their_published_sizes() {
    for (name, prefix, want, tolerance) in [
        ("gemma-3-4b", "vision_tower.", 416.9, 0.1),
        ("gemma-3-27b", "vision_tower.", 416.9, 0.1),
        ("gemma-4-e2b", "model.vision_tower.", 167.0, 0.7),
        ("gemma-4-e4b", "model.vision_tower.", 167.0, 0.7),
        ("gemma-4-26b-a4b", "model.vision_tower.", 569.0, 1.0),
        ("gemma-4-31b", "model.vision_tower.", 569.0, 1.0),
        ("gemma-4-e2b", "model.audio_tower.", 304.8, 0.1),
        ("gemma-4-e4b", "model.audio_tower.", 304.8, 0.1),
    ] {
        let got = millions(&skeleton(name), prefix);
        assert!((got - want).abs() <= tolerance, "{name} {prefix}: {got:.1} M, not {want}");
    }
}

#[test]
fn every_released_size_sees_and_hears_what_it_was_made_for() {
    // (size, patches of one image at most, frames of one audio clip at most)
    for (name, patches, frames) in [
        ("gemma-3-270m", None, None),
        ("gemma-3-1b", None, None),
        ("gemma-3-4b", Some(4096), None),
        ("gemma-3-12b", Some(4096), None),
        ("gemma-3-27b", Some(4096), None),
        ("gemma-4-e2b", Some(9 * 1120), Some(2999)),
        ("gemma-4-e4b", Some(9 * 1120), Some(2999)),
        ("gemma-4-12b", Some(1120), Some(750)),
        ("gemma-4-26b-a4b", Some(9 * 1120), None),
        ("gemma-4-31b", Some(9 * 1120), None),
    ] {
        let program = skeleton(name);
        let chunk = |method: &str| program.methods().get(method).map(|m| m.max_chunk);
        assert_eq!(chunk(method::VISION), patches, "{name}");
        assert_eq!(chunk(method::AUDIO), frames, "{name}");
    }
}

#[test]
fn media_are_described_as_they_were_released() {
    let gemma3 = skeleton("gemma-3-4b").metadata().media.clone();
    let image = gemma3.image.unwrap();
    assert_eq!(image.size, ImageSize::Fixed { width: 896, height: 896 });
    assert_eq!((image.channels(), image.max_soft(), image.tokens.id), (588, 256, 262_144));
    assert!(gemma3.video.is_none());

    for name in ["gemma-4-e2b", "gemma-4-31b", "gemma-4-12b"] {
        let media = skeleton(name).metadata().media.clone();
        let image = media.image.unwrap();
        let choices = vec![70, 140, 280, 560, 1120];
        assert_eq!(image.size, ImageSize::Budget { choices, default: 280 }, "{name}");
        assert_eq!((image.cell(), image.tokens.id), (48, 258_880), "{name}");
        let video = media.video.unwrap();
        assert_eq!((video.max_frames, video.budget, video.tokens.id), (32, 70, 258_884), "{name}");
    }
    let audio = skeleton("gemma-4-e2b").metadata().media.audio.clone().unwrap();
    assert_eq!((audio.max_samples, audio.stride, audio.tokens.id), (480_000, 4, 258_881));
    assert!(matches!(audio.frames, AudioFrames::LogMel(mel) if mel.n_mels == 128));
    let audio = skeleton("gemma-4-12b").metadata().media.audio.clone().unwrap();
    assert_eq!((audio.max_samples, audio.stride), (480_000, 1));
    assert_eq!(audio.frames, AudioFrames::Raw { len: 640 });
}
