//! A name for what is fed, by which a cache knows media again.

use crate::frames::Frames;
use crate::patches::Patches;

/// Equal for equal rows in an equal order, and for nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash(pub [u8; 32]);

impl Patches {
    /// The hash of what `vision` is fed.
    pub fn hash(&self) -> ContentHash {
        // The same numbers in another shape are another image.
        let sides = [self.width.into(), self.height.into(), self.n_soft as u64];
        hash("lapidary media patches v1", &sides, &[&self.index, &self.x, &self.y], &self.data)
    }
}

impl Frames {
    /// The hash of what `audio` is fed.
    pub fn hash(&self) -> ContentHash {
        let sizes = [self.n_frames as u64, self.n_soft as u64];
        hash("lapidary media frames v1", &sizes, &[], &self.data)
    }
}

fn hash(kind: &str, sizes: &[u64], places: &[&[i32]], data: &[f32]) -> ContentHash {
    let mut hasher = blake3::Hasher::new_derive_key(kind);
    for n in sizes {
        hasher.update(&n.to_le_bytes());
    }
    for place in places {
        feed(&mut hasher, place, i32::to_le_bytes);
    }
    feed(&mut hasher, data, f32::to_le_bytes);
    ContentHash(*hasher.finalize().as_bytes())
}

/// In blocks: the hasher is fast on long slices only.
fn feed<T: Copy>(hasher: &mut blake3::Hasher, numbers: &[T], bytes: impl Fn(T) -> [u8; 4]) {
    let mut block = Vec::with_capacity(4 * 4096);
    for part in numbers.chunks(4096) {
        block.clear();
        block.extend(part.iter().flat_map(|n| bytes(*n)));
        hasher.update(&block);
    }
}
