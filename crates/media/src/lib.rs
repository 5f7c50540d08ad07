//! Images, videos and audio: from bytes to what a program's `vision` and `audio` methods are fed.
//!
//! How they are made ready is said by the program itself ([`lapidary_program::Media`]).
//! This room knows bytes, images, audio and that description. It knows no model family and no
//! backend, and no files but for [`Video`], which reads folders and runs `ffmpeg`.
//!
//! Bytes are untrusted: sizes are checked from headers before anything is decoded, and the modules
//! that parse may not panic, index, or do unchecked arithmetic.

macro_rules! untrusted {
    ($(#[$meta:meta])* $vis:vis mod $name:ident) => {
        #[deny(
            clippy::unwrap_used,
            clippy::expect_used,
            clippy::panic,
            clippy::indexing_slicing,
            clippy::arithmetic_side_effects,
            clippy::as_conversions
        )]
        $(#[$meta])*
        $vis mod $name;
    };
}

mod crops;
mod error;
mod frames;
mod guard;
mod hash;
mod image;
mod limits;
mod log_mel;
mod patches;
mod resample;
mod resize;
mod size;
mod video;

untrusted!(mod container);
untrusted!(mod decode);
untrusted!(mod sniff);
untrusted!(mod audio);

pub use self::image::Image;
pub use audio::Audio;
pub use crops::{Crop, crops};
pub use error::{Error, Result};
pub use frames::{Frames, frames};
pub use hash::ContentHash;
pub use limits::Limits;
pub use patches::{Patches, patches};
pub use resample::resample;
pub use resize::resize;
pub use size::fitted;
pub use video::{Frame, Video, VideoFrame, sampled, time_stamp};
