//! What bytes are, by their content: names and MIME types lie.

use crate::error::{Error, Result};

/// A format of images that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageFormat {
    Png,
    Jpeg,
    WebP,
    Gif,
    Bmp,
}

impl ImageFormat {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ImageFormat::Png => "PNG",
            ImageFormat::Jpeg => "JPEG",
            ImageFormat::WebP => "WebP",
            ImageFormat::Gif => "GIF",
            ImageFormat::Bmp => "BMP",
        }
    }
}

pub(crate) const IMAGES: &str = "a PNG, JPEG, WebP, GIF or BMP file";
pub(crate) const AUDIO: &str = "a WAV, FLAC, MP3 or OGG (Vorbis) file";
pub(crate) const VIDEOS: &str = "an animated GIF or WebP file";

/// The format of an image.
pub(crate) fn image(bytes: &[u8]) -> Result<ImageFormat> {
    if bytes.is_empty() {
        return Err(Error::Empty { what: "image" });
    }
    for (format, magic) in [
        (ImageFormat::Png, b"\x89PNG\r\n\x1a\n".as_slice()),
        (ImageFormat::Jpeg, b"\xff\xd8\xff"),
        (ImageFormat::Gif, b"GIF87a"),
        (ImageFormat::Gif, b"GIF89a"),
        (ImageFormat::Bmp, b"BM"),
    ] {
        if bytes.starts_with(magic) {
            return Ok(format);
        }
    }
    if has(bytes, 0, b"RIFF") && has(bytes, 8, b"WEBP") {
        return Ok(ImageFormat::WebP);
    }
    Err(Error::Unread { what: "image", looks_like: looks_like(bytes), takes: IMAGES })
}

/// The format of a video that needs no other program; `None` if it may need one.
pub(crate) fn animation(bytes: &[u8]) -> Option<ImageFormat> {
    let format = image(bytes).ok()?;
    matches!(format, ImageFormat::Gif | ImageFormat::WebP).then_some(format)
}

/// Names of what people send, by the bytes at an offset.
const KINDS: &[(usize, &[u8], &str)] = &[
    (8, b"WAVE", "a WAV audio file"),
    (8, b"AVI ", "an AVI video"),
    (8, b"WEBP", "a WebP image"),
    (0, b"fLaC", "a FLAC audio file"),
    (28, b"OpusHead", "an OGG audio file with Opus in it"),
    (0, b"OggS", "an OGG audio file"),
    (0, b"ID3", "an MP3 audio file"),
    (4, b"ftypheic", "a HEIC photo"),
    (4, b"ftypheix", "a HEIC photo"),
    (4, b"ftypmif1", "a HEIC photo"),
    (4, b"ftypavif", "an AVIF image"),
    (4, b"ftypM4A", "an M4A (AAC) audio file"),
    (4, b"ftyp", "an MP4 or MOV video"),
    (0, b"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (0, b"II*\0", "a TIFF image"),
    (0, b"MM\0*", "a TIFF image"),
    (0, b"\xff\x0a", "a JPEG XL image"),
    (4, b"JXL ", "a JPEG XL image"),
    (4, b"jP  ", "a JPEG 2000 image"),
    (0, b"8BPS", "a Photoshop file"),
    (0, b"\0\0\x01\0", "an icon"),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF8", "a GIF image"),
    (0, b"BM", "a BMP image"),
    (0, b"%PDF", "a PDF document"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"GGUF", "a GGUF model"),
    (0, b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
];

/// What bytes of another kind look like.
pub(crate) fn looks_like(bytes: &[u8]) -> &'static str {
    for (offset, magic, name) in KINDS {
        if has(bytes, *offset, magic) {
            return name;
        }
    }
    let head = bytes.get(..bytes.len().min(1024)).unwrap_or_default();
    let text = String::from_utf8_lossy(head).to_lowercase();
    let text = text.trim_start_matches('\u{feff}').trim_start();
    if text.contains("<svg") {
        return "an SVG drawing";
    }
    if text.starts_with("<!doctype html") || text.starts_with("<html") {
        return "a web page (HTML)";
    }
    if text.starts_with("data:") {
        return "a data URI that was not decoded";
    }
    if text.starts_with('<') || text.starts_with('{') {
        return "XML or JSON text";
    }
    if head.iter().all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace()) {
        return "plain text";
    }
    "nothing that is known here"
}

fn has(bytes: &[u8], offset: usize, magic: &[u8]) -> bool {
    bytes.get(offset..).is_some_and(|rest| rest.starts_with(magic))
}
