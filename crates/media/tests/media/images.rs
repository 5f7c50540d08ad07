//! Files of images to RGB.

use lapidary_media::{Error, Image, Limits};

use crate::reference::{Reference, bytes, differences};

/// Levels, at most and on average. Decoders of JPEG differ in how they round, and in how they
/// spread colours over pixels.
fn allowed(name: &str) -> (u8, f64) {
    match name {
        "rgb420.jpg" => (3, 0.5),
        name if name.ends_with(".jpg") => (2, 0.05),
        _ => (0, 0.0),
    }
}

#[test]
fn every_kind_of_image_is_decoded_as_the_processors_see_it() {
    let reference = Reference::open("pictures.safetensors");
    let names = reference.names();
    let files: Vec<&str> = names.iter().filter_map(|n| n.strip_prefix("decoded.")).collect();
    assert!(files.len() > 30);
    for name in files {
        let key = format!("decoded.{name}");
        let image = Image::decode(&bytes(&format!("pictures/{name}")), &Limits::default());
        let image = image.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let [height, width, 3] = reference.shape(&key)[..] else { panic!("{name}") };
        let size = (image.width() as usize, image.height() as usize);
        assert_eq!(size, (width, height), "{name}");
        let (most, mean) = differences(image.data(), &reference.u8(&key));
        let (max_most, max_mean) = allowed(name);
        assert!(
            most <= max_most && mean <= max_mean,
            "{name}: {most} levels, {mean:.3} on average"
        );
    }
}

#[test]
fn the_end_of_a_file_cut_short_is_missed_at_every_length() {
    for name in ["rgb.png", "rgba16.png", "rgb420.jpg", "progressive.jpg", "lossy.webp", "rgb.bmp"]
    {
        let whole = bytes(&format!("pictures/{name}"));
        // A PNG's last chunk and a JPEG's last marker say only that it ends.
        let step = (whole.len() / 60).max(1);
        for len in (0..whole.len() - 16).step_by(step) {
            let cut = Image::decode(&whole[..len], &Limits::default());
            assert!(cut.is_err(), "{name} at {len} of {}", whole.len());
        }
    }
}

#[test]
fn an_image_may_be_as_large_as_its_limit_and_no_larger() {
    let file = bytes("pictures/rgb.png");
    let exact = Limits { max_pixels: 37 * 23, max_side: 37, ..Limits::default() };
    assert!(Image::decode(&file, &exact).is_ok());
    for less in [
        Limits { max_pixels: 37 * 23 - 1, ..exact.clone() },
        Limits { max_side: 36, ..exact.clone() },
    ] {
        let refused = Image::decode(&file, &less);
        assert!(matches!(refused, Err(Error::ImageSize { width: 37, height: 23, .. })));
    }
    let little = Limits { max_decode_bytes: 37 * 23 * 3 - 1, ..exact };
    let refused = Image::decode(&file, &little);
    assert!(matches!(refused, Err(Error::ImageMemory { .. })), "{refused:?}");
}

#[test]
fn an_image_needs_all_its_levels() {
    assert!(Image::from_rgb(2, 1, vec![0; 6]).is_some());
    assert!(Image::from_rgb(2, 1, vec![0; 5]).is_none());
    assert!(Image::from_rgb(0, 1, vec![]).is_none());
    assert!(Image::from_rgb(u32::MAX, u32::MAX, vec![]).is_none());
}
