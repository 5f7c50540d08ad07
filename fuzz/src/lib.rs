//! What the fuzzers run. Each function takes arbitrary bytes and must return.
//!
//! `targets/` holds the binaries for `cargo fuzz`; `tests/replay.rs` feeds the corpus, and
//! mutations of it, to the same functions in ordinary tests.

use std::path::Path;

use lapidary_gemma::{assemble, gguf, hf_config};
use lapidary_media::{Film, Limits, Picture, Sound};
use lapidary_program::{FileBytes, lap};
use lapidary_runner::Tokenizer;

/// A target: its name, which is also its corpus folder, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("lap_open", lap_open),
    ("gguf_open", gguf_open),
    ("config_json", config_json),
    ("tokenizer_json", tokenizer_json),
    ("image_decode", image_decode),
    ("audio_decode", audio_decode),
];

/// Opens a `.lap` file and reads a row of each weight.
pub fn lap_open(data: &[u8]) {
    let Ok(program) = lap::from_bytes(FileBytes::from_vec(data.to_vec())) else { return };
    for (name, decl) in program.weights() {
        if let Ok(weight) = program.weight(name) {
            weight.row_f32(decl.rows() - 1, &mut vec![0.0; decl.cols()]);
        }
    }
}

/// Imports a GGUF file and reads a row of each weight.
pub fn gguf_open(data: &[u8]) {
    let bytes = FileBytes::from_vec(data.to_vec());
    let Ok(imported) = gguf::read_model(Path::new("fuzz.gguf"), bytes) else { return };
    let Ok(program) = assemble(imported, None) else { return };
    for (name, decl) in program.weights() {
        if let Ok(weight) = program.weight(name) {
            weight.row_f32(decl.rows() - 1, &mut vec![0.0; decl.cols()]);
        }
    }
}

/// Parses a `config.json`.
pub fn config_json(data: &[u8]) {
    let _ = hf_config::parse(data);
}

/// Loads a `tokenizer.json`, encodes a text with it and decodes that again.
pub fn tokenizer_json(data: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_json(data, 1 << 20) else { return };
    if let Ok(ids) = tokenizer.encode_text("Hello  wörld\n<bos> 👋") {
        let mut text = String::new();
        let mut decoder = tokenizer.stream(false);
        for id in ids {
            decoder.push(id, &mut text);
        }
        decoder.flush(&mut text);
    }
}

/// Little enough that a run takes no time, and more than the seeds need.
fn media_limits() -> Limits {
    Limits {
        max_pixels: 1 << 18,
        max_decode_bytes: 4 << 20,
        max_film_pixels: 1 << 18,
        max_sound_s: 5,
        max_pcm_bytes: 4 << 20,
        ..Limits::default()
    }
}

/// Decodes a picture, and the frames of an animation.
pub fn image_decode(data: &[u8]) {
    let limits = media_limits();
    if let Ok(picture) = Picture::decode(data, &limits) {
        let pixels = u64::from(picture.width()) * u64::from(picture.height());
        assert!(pixels > 0 && pixels <= limits.max_pixels);
        assert_eq!(picture.data().len() as u64, pixels * 3);
    }
    if let Ok(film) = Film::from_animation(data, 8, &limits) {
        assert!(film.count() <= 8);
    }
}

/// Decodes a sound.
pub fn audio_decode(data: &[u8]) {
    let limits = media_limits();
    if let Ok(sound) = Sound::decode(data, &limits) {
        assert!(sound.seconds() <= limits.max_sound_s as f64);
        assert!(sound.samples().iter().all(|sample| sample.is_finite()));
    }
}
