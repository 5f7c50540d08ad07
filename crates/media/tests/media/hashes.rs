//! Names for what is fed.

use std::collections::BTreeSet;

use lapidary_media::{Audio, Image, frames, patches};

use crate::specs;

#[test]
fn what_differs_has_another_hash() {
    let spec = specs::budget();
    let image = |w: u32, h: u32, level: u8| {
        Image::from_rgb(w, h, vec![level; (w * h * 3) as usize]).unwrap()
    };
    let made = |p: &Image, budget| patches(p, &spec, Some(budget)).unwrap();
    let same = made(&image(40, 20, 9), 70).hash();
    assert_eq!(made(&image(40, 20, 9), 70).hash(), same);
    // Twice as large, it is resized to the same levels.
    assert_eq!(made(&image(80, 40, 9), 70).hash(), same);
    let mut one_level = image(40, 20, 9).data().to_vec();
    one_level[300] = 10;
    let one_level = Image::from_rgb(40, 20, one_level).unwrap();
    let audio = Audio::from_samples(16_000, vec![0.25; 1280]).unwrap();
    let longer = Audio::from_samples(16_000, vec![0.25; 1281]).unwrap();
    let heard = |audio, spec| frames(audio, &spec).unwrap().hash();
    let all = [
        same,
        made(&image(40, 20, 9), 140).hash(),
        made(&image(20, 40, 9), 70).hash(),
        made(&image(40, 20, 10), 70).hash(),
        made(&one_level, 70).hash(),
        patches(&image(40, 20, 9), &specs::whole_cells(), Some(70)).unwrap().hash(),
        heard(&audio, specs::raw()),
        heard(&longer, specs::raw()),
        heard(&audio, specs::mel()),
    ];
    assert_eq!(BTreeSet::from(all).len(), all.len());
}
