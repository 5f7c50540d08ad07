//! What tiny multimodal checkpoints say of their media.

use std::path::Path;

use lapidary_gemma::OpenOptions;
use lapidary_program::{AudioFrames, Media};

fn media(family: &str) -> Media {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny");
    lapidary_gemma::open(&tiny.join(family), &OpenOptions::default())
        .unwrap()
        .metadata()
        .media
        .clone()
}

#[test]
fn media_are_described_as_the_released_processors_do() {
    let gemma3 = media("gemma3_mm");
    assert!(gemma3.image.is_some() && gemma3.video.is_none() && gemma3.audio.is_none());
    let large = media("gemma4_mm_large");
    assert!(large.image.is_some() && large.video.is_some() && large.audio.is_none());
    for family in ["gemma4_mm_e", "gemma4_unified"] {
        let both = media(family);
        assert!(both.image.is_some() && both.video.is_some() && both.audio.is_some());
    }
    let raw = media("gemma4_unified").audio.unwrap();
    assert_eq!(raw.frames, AudioFrames::Raw { len: 40 });
}
