//! What bytes are, by their content: names and MIME types lie.

use crate::error::{Error, Result};

/// A format of pictures that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PictureFormat {
    Png,
    Jpeg,
    WebP,
    Gif,
    Bmp,
}

impl PictureFormat {
    pub(crate) fn name(self) -> &'static str {
        match self {
            PictureFormat::Png => "PNG",
            PictureFormat::Jpeg => "JPEG",
            PictureFormat::WebP => "WebP",
            PictureFormat::Gif => "GIF",
            PictureFormat::Bmp => "BMP",
        }
    }
}

pub(crate) const PICTURES: &str = "a PNG, JPEG, WebP, GIF or BMP file";
pub(crate) const SOUNDS: &str = "a WAV, FLAC, MP3 or OGG (Vorbis) file";
pub(crate) const FILMS: &str = "an animated GIF or WebP file";

/// The format of a picture.
pub(crate) fn picture(bytes: &[u8]) -> Result<PictureFormat> {
    if bytes.is_empty() {
        return Err(Error::Empty { what: "picture" });
    }
    for (format, magic) in [
        (PictureFormat::Png, b"\x89PNG\r\n\x1a\n".as_slice()),
        (PictureFormat::Jpeg, b"\xff\xd8\xff"),
        (PictureFormat::Gif, b"GIF87a"),
        (PictureFormat::Gif, b"GIF89a"),
        (PictureFormat::Bmp, b"BM"),
    ] {
        if bytes.starts_with(magic) {
            return Ok(format);
        }
    }
    if has(bytes, 0, b"RIFF") && has(bytes, 8, b"WEBP") {
        return Ok(PictureFormat::WebP);
    }
    Err(Error::Unread { what: "picture", looks_like: looks_like(bytes), takes: PICTURES })
}

/// The format of a film that needs no other program; `None` if it may need one.
pub(crate) fn animation(bytes: &[u8]) -> Option<PictureFormat> {
    let format = picture(bytes).ok()?;
    matches!(format, PictureFormat::Gif | PictureFormat::WebP).then_some(format)
}

/// Names of what people send, by the bytes at an offset.
const KINDS: &[(usize, &[u8], &str)] = &[
    (8, b"WAVE", "a WAV sound"),
    (8, b"AVI ", "an AVI film"),
    (8, b"WEBP", "a WebP picture"),
    (0, b"fLaC", "a FLAC sound"),
    (28, b"OpusHead", "an OGG sound with Opus in it"),
    (0, b"OggS", "an OGG sound"),
    (0, b"ID3", "an MP3 sound"),
    (4, b"ftypheic", "a HEIC photo"),
    (4, b"ftypheix", "a HEIC photo"),
    (4, b"ftypmif1", "a HEIC photo"),
    (4, b"ftypavif", "an AVIF picture"),
    (4, b"ftypM4A", "an M4A (AAC) sound"),
    (4, b"ftyp", "an MP4 or MOV film"),
    (0, b"\x1aE\xdf\xa3", "a Matroska or WebM film"),
    (0, b"II*\0", "a TIFF picture"),
    (0, b"MM\0*", "a TIFF picture"),
    (0, b"\xff\x0a", "a JPEG XL picture"),
    (4, b"JXL ", "a JPEG XL picture"),
    (4, b"jP  ", "a JPEG 2000 picture"),
    (0, b"8BPS", "a Photoshop file"),
    (0, b"\0\0\x01\0", "an icon"),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (0, b"\xff\xd8\xff", "a JPEG picture"),
    (0, b"GIF8", "a GIF picture"),
    (0, b"BM", "a BMP picture"),
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
