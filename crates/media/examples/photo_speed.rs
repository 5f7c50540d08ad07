//! How long a photo takes: `cargo run --release -p lapidary-media --example photo_speed FILE`.

use std::time::Instant;

use lapidary_media::{Limits, Picture, patches, resize};
use lapidary_program::{ImageSize, ImageSpec, PatchLayout, Resample, SoftTokens};

fn main() {
    let Some(file) = std::env::args().nth(1) else {
        eprintln!("usage: photo_speed FILE");
        return;
    };
    let bytes = match std::fs::read(&file) {
        Ok(bytes) => bytes,
        Err(e) => return eprintln!("{file}: {e}"),
    };
    let limits = Limits::default();
    let picture = match Picture::decode(&bytes, &limits) {
        Ok(picture) => picture,
        Err(e) => return eprintln!("{file}: {e}"),
    };
    println!("{}×{} pixels, {} bytes", picture.width(), picture.height(), bytes.len());
    let spec = spec();
    best("decode", || drop(Picture::decode(&bytes, &limits)));
    best("resize to 896×896, bilinear", || drop(resize(&picture, 896, 896, Resample::Bilinear)));
    best("patches, bicubic, 280 soft tokens", || drop(patches(&picture, &spec, None)));
    best("patches, bicubic, 1120 soft tokens", || drop(patches(&picture, &spec, Some(1120))));
    if let Ok(made) = patches(&picture, &spec, None) {
        best("hash of 280 soft tokens", || {
            std::hint::black_box(made.hash());
        });
    }
}

/// Of ten times.
fn best(what: &str, mut body: impl FnMut()) {
    let mut times = (0..10).map(|_| {
        let start = Instant::now();
        body();
        start.elapsed().as_secs_f64() * 1e3
    });
    let first = times.next().unwrap_or(f64::NAN);
    println!("{what}: {:.1} ms", times.fold(first, f64::min));
}

fn spec() -> ImageSpec {
    let (placeholder, before, after) = ("<image>".into(), String::new(), String::new());
    ImageSpec {
        size: ImageSize::Budget { choices: vec![280, 1120], default: 280 },
        resample: Resample::Bicubic,
        patch: 16,
        pool: 3,
        layout: PatchLayout::Interleaved,
        scale: 1.0,
        shift: 0.0,
        pan_and_scan: None,
        tokens: SoftTokens { placeholder, before, after, id: 0 },
    }
}
