//! Images to patches: sizes, order and levels.

use lapidary_media::{Crop, Error, Image, Limits, Patches, crops, fitted, patches, resize};
use lapidary_program::{ImageSize, ImageSpec, Resample};

use crate::reference::{Reference, bytes, differences};
use crate::specs;

fn source(reference: &Reference, name: &str) -> Image {
    if name == "large" {
        return Image::decode(&bytes("large.png"), &Limits::default()).unwrap();
    }
    let key = format!("source.{name}");
    let [height, width, 3] = reference.shape(&key)[..] else { panic!("{name}") };
    Image::from_rgb(width as u32, height as u32, reference.u8(&key)).unwrap()
}

/// Levels of some patches, row-major.
fn levels(made: &Patches, spec: &ImageSpec, wanted: &[i32]) -> Vec<u8> {
    let len = made.data.len() / made.index.len();
    let numbers = wanted.iter().flat_map(|i| &made.data[*i as usize * len..][..len]);
    numbers.map(|n| ((n - spec.shift) / spec.scale * 255.0).round() as u8).collect()
}

/// The cases of one kind of model: their keys, budgets and sources.
fn cases(reference: &Reference, kind: &str) -> Vec<(String, u32, String)> {
    let names = reference.names();
    let keys = names.iter().filter_map(|name| name.strip_suffix(".levels"));
    let found: Vec<_> = keys
        .filter_map(|key| {
            let (budget, source) = key.strip_prefix(kind)?.strip_prefix('.')?.split_once('.')?;
            Some((key.to_string(), budget.parse().ok()?, source.to_string()))
        })
        .collect();
    assert!(found.len() >= 6, "{kind}");
    found
}

#[test]
fn budgets_give_the_sizes_positions_and_levels_of_the_processors() {
    let reference = Reference::open("patches.safetensors");
    for (kind, spec) in [("gemma4", specs::budget()), ("unified", specs::whole_cells())] {
        for (key, budget, name) in cases(&reference, kind) {
            let made = patches(&source(&reference, &name), &spec, Some(budget)).unwrap();
            let size = [made.width as i32, made.height as i32, made.n_soft as i32];
            assert_eq!(size.to_vec(), reference.i32(&format!("{key}.size")), "{key}");
            let rows = made.row_major();
            let places = rows.x.iter().zip(&rows.y).flat_map(|(x, y)| [*x, *y]);
            assert_eq!(places.collect::<Vec<_>>(), reference.i32(&format!("{key}.positions")));
            assert!(rows.index.iter().copied().eq(0..rows.index.len() as i32));
            let wanted = reference.i32(&format!("{key}.patches"));
            let off = differences(
                &levels(&rows, &spec, &wanted),
                &reference.u8(&format!("{key}.levels")),
            );
            assert_eq!(off.0, 0, "{key}");
        }
    }
}

#[test]
fn a_fixed_size_gives_the_levels_of_the_processor() {
    let reference = Reference::open("patches.safetensors");
    let spec = specs::fixed();
    for (key, _, name) in cases(&reference, "gemma3") {
        let made = patches(&source(&reference, &name), &spec, None).unwrap();
        assert_eq!((made.width, made.height, made.n_soft), (896, 896, 256));
        let wanted = reference.i32(&format!("{key}.patches"));
        let made = levels(&made.row_major(), &spec, &wanted);
        assert_eq!(differences(&made, &reference.u8(&format!("{key}.levels"))).0, 0, "{key}");
    }
}

#[test]
fn thousands_of_sizes_are_fitted_exactly() {
    let reference = Reference::open("patches.safetensors");
    let rows = reference.i32("sizes");
    assert!(rows.len() > 5 * 3000);
    for row in rows.chunks_exact(5) {
        let [width, height, budget, fit_width, fit_height] = [0, 1, 2, 3, 4].map(|i| row[i] as u32);
        for spec in [specs::budget(), specs::whole_cells()] {
            let fit = fitted(width, height, &spec, Some(budget)).unwrap();
            assert_eq!(fit, (fit_width, fit_height), "{width}×{height} in {budget}");
        }
    }
}

#[test]
fn the_patches_of_a_soft_token_follow_each_other() {
    let image = Image::from_rgb(20, 10, vec![7; 600]).unwrap();
    let made = patches(&image, &specs::budget(), Some(70)).unwrap();
    let (columns, pool) = (made.width / 16, 3);
    assert_eq!(made.n_soft * 9, made.index.len());
    for (soft, cell) in made.index.chunks_exact(9).enumerate() {
        let cells = columns / pool;
        let (cell_x, cell_y) = (soft as u32 % cells, soft as u32 / cells);
        for (i, index) in cell.iter().enumerate() {
            let (x, y) = (cell_x * pool + i as u32 % pool, cell_y * pool + i as u32 / pool);
            assert_eq!(*index as u32, y * columns + x);
            let at = soft * 9 + i;
            assert_eq!((made.x[at] as u32, made.y[at] as u32), (x, y));
        }
    }
    assert!(made.data.iter().all(|n| *n == 7.0 / 255.0));
}

#[test]
fn a_budget_must_be_offered() {
    let image = Image::from_rgb(1, 1, vec![0; 3]).unwrap();
    let refused = patches(&image, &specs::budget(), Some(71));
    assert!(matches!(refused, Err(Error::Budget { asked: 71, .. })));
    assert_eq!(
        refused.unwrap_err().to_string(),
        "71 soft tokens for an image: this model takes [70, 140, 280, 560, 1120]"
    );
    let refused = patches(&image, &specs::fixed(), Some(70));
    assert!(matches!(refused, Err(Error::Budget { asked: 70, .. })));
}

#[test]
fn a_description_that_cannot_be_followed_is_an_error() {
    let image = Image::from_rgb(1, 1, vec![0; 3]).unwrap();
    let odd = ImageSize::Fixed { width: 897, height: 896 };
    let none = ImageSize::Budget { choices: vec![0], default: 0 };
    let vast = ImageSize::Fixed { width: 65_520, height: 65_520 };
    let large = ImageSize::Budget { choices: vec![65_535], default: 65_535 };
    let endless = ImageSize::Budget { choices: vec![u32::MAX], default: u32::MAX };
    for spec in [
        ImageSpec { size: odd, ..specs::fixed() },
        ImageSpec { size: vast, ..specs::fixed() },
        ImageSpec { size: large, ..specs::budget() },
        ImageSpec { size: none, ..specs::budget() },
        ImageSpec { size: endless, ..specs::budget() },
        ImageSpec { patch: 0, ..specs::budget() },
        ImageSpec { pool: 0, ..specs::fixed() },
        ImageSpec { patch: u32::MAX, pool: u32::MAX, ..specs::budget() },
    ] {
        let made = patches(&image, &spec, None);
        assert!(matches!(made, Err(Error::Spec { .. })), "{spec:?}");
    }
}

#[test]
fn crops_are_those_of_the_processor() {
    let reference = Reference::open("patches.safetensors");
    let all = reference.i32("crops.all");
    let mut expected = all.chunks_exact(4).map(|c| {
        let [x, y, width, height] = [0, 1, 2, 3].map(|i| c[i] as u32);
        Crop { x, y, width, height }
    });
    let sizes = reference.i32("crops.sizes");
    assert!(sizes.chunks_exact(3).any(|row| row[2] == 4));
    for row in sizes.chunks_exact(3) {
        let found = crops(row[0] as u32, row[1] as u32, &specs::pan_and_scan(256));
        let wanted: Vec<Crop> = expected.by_ref().take(row[2] as usize).collect();
        assert_eq!(found, wanted, "{}×{}", row[0], row[1]);
    }
    assert!(expected.next().is_none());
}

#[test]
fn an_image_and_its_crops_have_the_levels_of_the_processor() {
    let reference = Reference::open("patches.safetensors");
    let (image, spec) = (source(&reference, "long"), specs::fixed());
    let found = crops(image.width(), image.height(), &specs::pan_and_scan(64));
    let mut all = vec![image.clone()];
    all.extend(found.iter().map(|crop| image.crop(crop)));
    let expected = reference.u8("cropped.levels");
    assert_eq!(all.len(), reference.shape("cropped.levels")[0]);
    let wanted = reference.i32("cropped.patches");
    for (part, expected) in all.iter().zip(expected.chunks_exact(expected.len() / all.len())) {
        let made = patches(part, &spec, None).unwrap().row_major();
        assert_eq!(differences(&levels(&made, &spec, &wanted), expected).0, 0);
    }
}

#[test]
fn crops_of_strange_images_are_inside_them() {
    let strange = specs::pan_and_scan(1);
    for (width, height) in [(5, 1), (1, 5), (1, 65_535), (65_535, 1), (0, 4), (7, 7), (9, 4)] {
        for crop in crops(width, height, &strange) {
            assert!(crop.width > 0 && crop.x + crop.width <= width, "{crop:?}");
            assert!(crop.height > 0 && crop.y + crop.height <= height, "{crop:?}");
        }
    }
    let image = Image::from_rgb(2, 2, (0..12).collect()).unwrap();
    let outside = Crop { x: 1, y: 1, width: 9, height: 0 };
    assert_eq!(image.crop(&outside).data(), [9, 10, 11]);
    let far = Crop { x: 7, y: 7, width: u32::MAX, height: u32::MAX };
    assert_eq!(image.crop(&far).data(), [9, 10, 11]);
}

#[test]
fn resizing_keeps_what_is_even_and_takes_any_size() {
    let flat = Image::from_rgb(7, 5, vec![200; 105]).unwrap();
    for filter in [Resample::Bilinear, Resample::Bicubic] {
        for (width, height) in [(1, 1), (7, 5), (48, 3), (1000, 1), (0, 0)] {
            let other = resize(&flat, width, height, filter);
            assert_eq!((other.width(), other.height()), (width.max(1), height.max(1)));
            assert!(other.data().iter().all(|level| *level == 200));
        }
    }
}
