//! What can be wrong with a file, or with what is asked of it.

/// What this room returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong. The sentences name no path and no address: they may be shown to
/// whoever sent the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There are no bytes.
    #[error("the {what} is empty: it has no bytes")]
    Empty {
        /// `image`, `video` or `audio`.
        what: &'static str,
    },
    /// The bytes are of a kind that isn't read.
    #[error("the {what} looks like {looks_like}, which is not read here; give {takes}")]
    Unread {
        /// `image`, `video` or `audio`.
        what: &'static str,
        /// What the bytes look like.
        looks_like: &'static str,
        /// What to give instead.
        takes: &'static str,
    },
    /// The image is larger than what is decoded.
    #[error(
        "the image has {width}×{height} pixels; at most {max_pixels} are read, {max_side} a side"
    )]
    ImageSize {
        /// Pixels, as its header says.
        width: u64,
        /// Pixels, as its header says.
        height: u64,
        /// The limit.
        max_pixels: u64,
        /// The limit.
        max_side: u32,
    },
    /// Decoding the image would take too much memory.
    #[error("the image needs more than {max_bytes} bytes to decode")]
    ImageMemory {
        /// The limit.
        max_bytes: u64,
    },
    /// The image is coded in so many passes that it would take too long.
    #[error("the JPEG image is coded in {passes} passes, more than are read for its size")]
    ImagePasses {
        /// How many there are.
        passes: u64,
    },
    /// The image doesn't decode.
    #[error("the {format} image is damaged or cut short")]
    Image {
        /// Its format.
        format: &'static str,
        /// What the decoder said.
        source: image::ImageError,
    },
    /// The image ends before its data does.
    #[error("the {format} image is cut short")]
    CutShort {
        /// Its format.
        format: &'static str,
    },
    /// The system does not give the memory that decoding takes.
    #[error(
        "decoding the {what} takes {bytes} bytes of memory, which are not to be had; give a smaller one"
    )]
    Memory {
        /// `image`, `video` or `audio`.
        what: &'static str,
        /// How many.
        bytes: u64,
    },
    /// The decoder gave up without saying why.
    #[error("the {what} is damaged in a way that its decoder did not expect")]
    Decoder {
        /// `image`, `video` or `audio`.
        what: &'static str,
    },
    /// A number of soft tokens that the program doesn't offer.
    #[error("{asked} soft tokens for an image: this model takes {choices:?}")]
    Budget {
        /// What was asked for.
        asked: u32,
        /// What is offered; nothing where images have one size.
        choices: Vec<u32>,
    },
    /// The program's description can't be followed.
    #[error("the program's description of media is wrong: {what}")]
    Spec {
        /// What is wrong.
        what: String,
    },
    /// The video has no frames.
    #[error("the video has no frames")]
    NoFrames,
    /// The video is larger than what is read.
    #[error(
        "the video has {frames} frames of {pixels} pixels; at most {max_pixels} in all are read"
    )]
    VideoSize {
        /// Its frames.
        frames: u64,
        /// Pixels of one.
        pixels: u64,
        /// The limit of their product.
        max_pixels: u64,
    },
    /// Reading the video takes too long.
    #[error("the video takes longer than {max_s} s to read; cut it, or give fewer pixels")]
    VideoTime {
        /// The limit.
        max_s: u64,
    },
    /// `ffmpeg` isn't there.
    #[error(
        "this video needs the program `ffmpeg`, which is not on the PATH; animated GIF and WebP and folders of images need nothing"
    )]
    NoFfmpeg,
    /// `ffmpeg` couldn't read the video.
    #[error("ffmpeg can't read the video{}", said(.detail))]
    Ffmpeg {
        /// The last thing it said.
        detail: String,
    },
    /// A folder or a process couldn't be read.
    #[error("the video can't be read")]
    Io(#[source] std::io::Error),
    /// The audio doesn't decode.
    #[error("the audio is damaged, cut short or of a kind that is not read")]
    Audio(#[source] symphonia::core::errors::Error),
    /// There is no audio in the file.
    #[error("there is no audio in the file")]
    NoAudio,
    /// The rate can't be true.
    #[error("the audio has {rate} samples in a second; {min} to {max} are read")]
    SampleRate {
        /// What its header says.
        rate: u32,
        /// The least.
        min: u32,
        /// The most.
        max: u32,
    },
    /// The audio is longer than what is decoded.
    #[error("the audio is longer than {max_s} s, or than {max_bytes} bytes of samples")]
    AudioLength {
        /// The limit.
        max_s: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// The audio is too short for one frame.
    #[error("the audio has {samples} samples at {rate} a second; at least {min} are needed")]
    AudioShort {
        /// Its samples.
        samples: usize,
        /// In one second.
        rate: u32,
        /// The least.
        min: u64,
    },
    /// A sample isn't a number that audio can have.
    #[error("sample {index} of the audio is {value}")]
    Sample {
        /// Which sample.
        index: usize,
        /// What it is.
        value: f32,
    },
}

fn said(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(": {detail}") }
}
