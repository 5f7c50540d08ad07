//! How long a photo takes: `cargo run --release -p lapidary-media --example photo_speed FILE`.

use std::time::Instant;

use lapidary_media::{Image, Limits, patches, resize};
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
    let image = match Image::decode(&bytes, &limits) {
        Ok(image) => image,
        Err(e) => return eprintln!("{file}: {e}"),
    };
    println!("{}×{} pixels, {} bytes", image.width(), image.height(), bytes.len());
    let spec = spec();
    best("decode", || drop(Image::decode(&bytes, &limits)));
    best("resize to 896×896, bilinear", || drop(resize(&image, 896, 896, Resample::Bilinear)));
    best("patches, bicubic, 280 soft tokens", || drop(patches(&image, &spec, None)));
    best("patches, bicubic, 1120 soft tokens", || drop(patches(&image, &spec, Some(1120))));
    if let Ok(made) = patches(&image, &spec, None) {
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
        tokens: SoftTokens { placeholder, before, after, id: 0, is_padding: false },
    }
}
