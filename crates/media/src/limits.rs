//! How much a file may ask for.

/// What is refused before it is decoded, or as soon as it is seen while decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pixels of one image, and of one frame of a video.
    pub max_pixels: u64,
    /// Pixels of a side.
    pub max_side: u32,
    /// Bytes that a decoder of images may ask for at once.
    pub max_decode_bytes: u64,
    /// Frames of a video times pixels of a frame.
    pub max_video_pixels: u64,
    /// Seconds that `ffmpeg` may take for a video.
    pub max_video_work_s: u64,
    /// Seconds of audio.
    pub max_audio_s: u64,
    /// Bytes of decoded samples of all channels, four for each sample.
    pub max_pcm_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_pixels: 50_000_000,
            max_side: 65_535,
            max_decode_bytes: 512 << 20,
            max_video_pixels: 1 << 32,
            max_video_work_s: 120,
            max_audio_s: 600,
            max_pcm_bytes: 256 << 20,
        }
    }
}
