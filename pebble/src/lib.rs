//! Pebble, the small model that is part of the program: the same `.lap` file that any other model
//! has, opened where it stands in memory.
//!
//! This room holds bytes. What they mean is for `program` to say, and how to run them for a backend.

use lapidary_program::{FileBytes, Program, Result, lap};

/// The word that names this model on a command line.
pub const NAME: &str = "pebble";

/// Weights are used in place, so the file begins where its own alignment counts from.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

/// Registries take at most 10 MiB a package, so each half has a package of its own. They are joined when
/// this crate is compiled, so that the file is in one piece and nothing is copied at run time.
static FILE: &Aligned<[u8]> = &Aligned(join::<{ HALVES[0].len() + HALVES[1].len() }>(HALVES));

const HALVES: [&[u8]; 2] = [lapidary_pebble_1::BYTES, lapidary_pebble_2::BYTES];

const fn join<const N: usize>(halves: [&[u8]; 2]) -> [u8; N] {
    let mut whole = [0; N];
    let (first, second) = whole.split_at_mut(halves[0].len());
    first.copy_from_slice(halves[0]);
    second.copy_from_slice(halves[1]);
    whole
}

/// What guesses the next tokens of its answers, quantised by `draft_gguf.py`.
static DRAFTER: &Aligned<[u8]> = &Aligned(*include_bytes!("../drafter.gguf"));

/// The file.
pub fn file() -> FileBytes {
    FileBytes::from_static(&FILE.0)
}

/// The model. Nothing of its weights is copied.
pub fn open() -> Result<Program> {
    lap::from_bytes(file())
}

/// Its drafter: a GGUF file, as any other drafter may be one.
pub fn drafter() -> FileBytes {
    FileBytes::from_static(&DRAFTER.0)
}

/// The held-out sets: the name of each file, and its bytes.
pub const HELDOUT: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/sets.rs"));

/// What the demonstration asks: one JSON object per line, as in the held-out sets.
pub const DEMO: &str = include_str!("../demo.jsonl");

/// An image that [`DEMO`] names: an encoded file.
pub fn demo_image(name: &str) -> Option<&'static [u8]> {
    let name = name.strip_prefix("heldout/")?;
    HELDOUT.iter().find(|(known, _)| *known == name).map(|(_, bytes)| *bytes)
}

#[cfg(test)]
mod tests {
    use lapidary_program::lap;

    /// What a release may carry.
    const MAX_BYTES: usize = 16 << 20;

    #[test]
    fn the_file_is_small_aligned_and_as_it_was_written() {
        // What a registry takes, with room for what is packed beside it.
        assert!(super::HALVES.iter().all(|half| half.len() < 9 << 20));
        let file = super::file();
        assert!(file.len() <= MAX_BYTES, "{} bytes", file.len());
        assert_eq!(file.as_ptr() as usize % 64, 0);
        lap::check_hashes_in(&file).unwrap();
    }

    #[test]
    fn its_drafter_takes_a_mebibyte_at_most() {
        let file = super::drafter();
        assert!(file.len() <= 1 << 20, "{} bytes", file.len());
        assert_eq!(lap::sniff(&file), lap::Kind::Gguf);
    }

    #[test]
    fn it_opens_and_talks_and_sees() {
        let program = super::open().unwrap();
        assert_eq!(program.metadata().name, super::NAME);
        assert!(program.metadata().media.image.is_some());
        assert!(program.blob("chat_template.jinja").unwrap().is_some());
    }

    #[test]
    fn the_demonstration_has_its_image() {
        let named: Vec<&str> =
            super::DEMO.split('"').filter(|word| word.ends_with(".png")).collect();
        assert_eq!(named.len(), 1);
        assert!(named.iter().all(|name| super::demo_image(name).is_some()));
        assert!(super::demo_image("another.png").is_none());
    }
}
