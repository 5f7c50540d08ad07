//! From files to what is shown and played to a model.

use std::path::Path;

use lapidary::{Media, Modality};

use crate::args::MediaArgs;

impl MediaArgs {
    /// Everything that the flags name, in the order they name it.
    pub fn media(&self) -> Vec<Media> {
        let (mut images, mut videos, mut audios) =
            (self.image.iter(), self.video.iter(), self.audio.iter());
        let of = |kind: &Modality| {
            let path = match kind {
                Modality::Image => images.next(),
                Modality::Video => videos.next(),
                Modality::Audio => audios.next(),
            };
            Some(self.options(Media::file(*kind, path?)))
        };
        self.order.iter().filter_map(of).collect()
    }

    fn options(&self, mut media: Media) -> Media {
        if let Some(n) = self.image_tokens {
            media = media.image_tokens(n);
        }
        if let Some(fps) = self.fps {
            media = media.fps(fps);
        }
        if self.pan_and_scan { media.pan_and_scan() } else { media }
    }
}

/// What a file that is dragged into a chat is taken for: by its ending, if it is there.
pub fn kind(path: &Path) -> Option<Modality> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    let kind = match ending.as_str() {
        "png" | "jpg" | "jpeg" | "webp" | "gif" | "bmp" => Modality::Image,
        "wav" | "flac" | "mp3" | "ogg" | "oga" => Modality::Audio,
        "mp4" | "mkv" | "mov" | "webm" | "avi" | "m4v" => Modality::Video,
        _ => return None,
    };
    path.is_file().then_some(kind)
}
