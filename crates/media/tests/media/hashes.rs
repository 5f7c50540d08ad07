//! Names for what is fed.

use std::collections::BTreeSet;

use lapidary_media::{Picture, Sound, frames, patches};

use crate::specs;

#[test]
fn what_differs_has_another_hash() {
    let spec = specs::budget();
    let picture = |w: u32, h: u32, level: u8| {
        Picture::from_rgb(w, h, vec![level; (w * h * 3) as usize]).unwrap()
    };
    let made = |p: &Picture, budget| patches(p, &spec, Some(budget)).unwrap();
    let same = made(&picture(40, 20, 9), 70).hash();
    assert_eq!(made(&picture(40, 20, 9), 70).hash(), same);
    // Twice as large, it is resized to the same levels.
    assert_eq!(made(&picture(80, 40, 9), 70).hash(), same);
    let mut one_level = picture(40, 20, 9).data().to_vec();
    one_level[300] = 10;
    let one_level = Picture::from_rgb(40, 20, one_level).unwrap();
    let sound = Sound::from_samples(16_000, vec![0.25; 1280]).unwrap();
    let longer = Sound::from_samples(16_000, vec![0.25; 1281]).unwrap();
    let heard = |sound, spec| frames(sound, &spec).unwrap().hash();
    let all = [
        same,
        made(&picture(40, 20, 9), 140).hash(),
        made(&picture(20, 40, 9), 70).hash(),
        made(&picture(40, 20, 10), 70).hash(),
        made(&one_level, 70).hash(),
        patches(&picture(40, 20, 9), &specs::whole_cells(), Some(70)).unwrap().hash(),
        heard(&sound, specs::raw()),
        heard(&longer, specs::raw()),
        heard(&sound, specs::mel()),
    ];
    assert_eq!(BTreeSet::from(all).len(), all.len());
}
