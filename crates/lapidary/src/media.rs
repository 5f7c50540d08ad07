//! Images, videos and audio: as bytes, files or decoded, on their way into a prompt.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lapidary_media::{Frames, Limits, Patches, Video, VideoFrame, crops, frames, patches};
use lapidary_program::{
    AudioSpec, ImageSpec, Modality, Program, VideoSpec, input, method, read_at_most,
};
use lapidary_text::{Medium, SoftInput};

use crate::error::{Error, Result};

pub use lapidary_media::{Audio, Image};

/// Something that is shown or played: a part of a message.
///
/// ```no_run
/// use lapidary::Media;
/// let cat = Media::image(std::fs::read("cat.png")?);
/// let song = Media::audio_file("song.mp3");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Media {
    source: Source,
    image_tokens: Option<u32>,
    pan_and_scan: bool,
    fps: Option<f64>,
    /// As it was given, once it is ready.
    given: Option<Arc<Source>>,
}

#[derive(Clone)]
enum Source {
    Image(ImageSource),
    Audio(AudioSource),
    Video(VideoSource),
    /// Ready for one program.
    Ready(Arc<Prepared>),
}

#[derive(Clone)]
enum ImageSource {
    Bytes(Arc<[u8]>),
    File(PathBuf),
    Decoded(Arc<Image>),
}

#[derive(Clone)]
enum AudioSource {
    Bytes(Arc<[u8]>),
    File(PathBuf),
    Decoded(Arc<Audio>),
}

#[derive(Clone)]
enum VideoSource {
    Bytes(Arc<[u8]>),
    /// A file, or a folder of images.
    Path(PathBuf),
}

/// Something that is shown or played, as a program's towers take it.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) medium: Medium,
    /// What its owner may want to know.
    pub(crate) note: Option<String>,
}

impl Media {
    /// An image: PNG, JPEG, WebP, GIF or BMP.
    pub fn image(bytes: impl Into<Vec<u8>>) -> Self {
        Self::of(Source::Image(ImageSource::Bytes(bytes.into().into())))
    }

    /// An image in a file.
    pub fn image_file(path: impl Into<PathBuf>) -> Self {
        Self::of(Source::Image(ImageSource::File(path.into())))
    }

    /// An image that is decoded already.
    pub fn decoded_image(image: Image) -> Self {
        Self::of(Source::Image(ImageSource::Decoded(Arc::new(image))))
    }

    /// Audio: WAV, FLAC, MP3 or OGG.
    pub fn audio(bytes: impl Into<Vec<u8>>) -> Self {
        Self::of(Source::Audio(AudioSource::Bytes(bytes.into().into())))
    }

    /// Audio in a file.
    pub fn audio_file(path: impl Into<PathBuf>) -> Self {
        Self::of(Source::Audio(AudioSource::File(path.into())))
    }

    /// Audio that is decoded already.
    pub fn decoded_audio(audio: Audio) -> Self {
        Self::of(Source::Audio(AudioSource::Decoded(Arc::new(audio))))
    }

    /// A video: an animated GIF or WebP, or with ffmpeg any.
    pub fn video(bytes: impl Into<Vec<u8>>) -> Self {
        Self::of(Source::Video(VideoSource::Bytes(bytes.into().into())))
    }

    /// A video in a file, or a folder of images.
    pub fn video_file(path: impl Into<PathBuf>) -> Self {
        Self::of(Source::Video(VideoSource::Path(path.into())))
    }

    /// A file of a known kind.
    pub fn file(kind: Modality, path: impl Into<PathBuf>) -> Self {
        match kind {
            Modality::Image => Self::image_file(path),
            Modality::Audio => Self::audio_file(path),
            Modality::Video => Self::video_file(path),
        }
    }

    fn of(source: Source) -> Self {
        Media { source, image_tokens: None, pan_and_scan: false, fps: None, given: None }
    }

    /// Soft tokens of an image, at most, where the model lets you choose.
    pub fn image_tokens(mut self, n: u32) -> Self {
        self.image_tokens = Some(n);
        self
    }

    /// Shows a long image whole and in crops, where the model knows crops.
    pub fn pan_and_scan(mut self) -> Self {
        self.pan_and_scan = true;
        self
    }

    /// Images a second, of a folder of images.
    pub fn fps(mut self, fps: f64) -> Self {
        self.fps = Some(fps);
        self
    }

    /// What it is.
    pub fn modality(&self) -> Modality {
        match &self.source {
            Source::Image(_) => Modality::Image,
            Source::Audio(_) => Modality::Audio,
            Source::Video(_) => Modality::Video,
            Source::Ready(ready) => ready.medium.modality(),
        }
    }

    /// Decodes it and cuts it as the model wants it. Whoever does not do this beforehand has it done
    /// when a prompt is made of it.
    pub fn prepare(&self, model: &crate::Model) -> Result<Media> {
        let ready = self.ready(model.program())?;
        let given = self.given.clone().unwrap_or_else(|| Arc::new(self.source.clone()));
        Ok(Media { source: Source::Ready(ready), given: Some(given), ..self.clone() })
    }

    /// Its bytes, if it was given as bytes or as a file that is still there.
    pub fn bytes(&self) -> Option<Arc<[u8]>> {
        match self.given.as_deref().unwrap_or(&self.source) {
            Source::Image(ImageSource::Bytes(bytes))
            | Source::Audio(AudioSource::Bytes(bytes))
            | Source::Video(VideoSource::Bytes(bytes)) => Some(bytes.clone()),
            Source::Image(ImageSource::File(path))
            | Source::Audio(AudioSource::File(path))
            | Source::Video(VideoSource::Path(path)) => Some(read(path).ok()?.into()),
            _ => None,
        }
    }

    /// Soft tokens of one that [`Self::prepare`] gave; 0 else.
    pub fn n_tokens(&self) -> usize {
        match &self.source {
            Source::Ready(ready) => ready.medium.inputs().map(|i| i.n_soft).sum(),
            _ => 0,
        }
    }

    /// What its owner may want to know, of one that [`Self::prepare`] gave.
    pub fn note(&self) -> Option<&str> {
        match &self.source {
            Source::Ready(ready) => ready.note.as_deref(),
            _ => None,
        }
    }

    pub(crate) fn ready(&self, program: &Program) -> Result<Arc<Prepared>> {
        if let Source::Ready(ready) = &self.source {
            return Ok(ready.clone());
        }
        let made = Maker { program, media: self }.make();
        Ok(Arc::new(made.map_err(|e| match self.path() {
            Some(path) => Error::File { what: path.display().to_string(), source: Box::new(e) },
            None => e,
        })?))
    }

    fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::Image(ImageSource::File(path))
            | Source::Audio(AudioSource::File(path))
            | Source::Video(VideoSource::Path(path)) => Some(path),
            _ => None,
        }
    }
}

impl fmt::Debug for Media {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Media");
        shown.field("modality", &self.modality().name());
        match self.path() {
            Some(path) => shown.field("path", &path).finish(),
            None => shown.finish_non_exhaustive(),
        }
    }
}

/// Makes one medium for one program.
struct Maker<'a> {
    program: &'a Program,
    media: &'a Media,
}

impl<'a> Maker<'a> {
    fn make(&self) -> Result<Prepared> {
        let plain = |medium| Prepared { medium, note: None };
        match &self.media.source {
            Source::Image(source) => self.image(source).map(plain),
            Source::Video(source) => self.video(source).map(plain),
            Source::Audio(source) => self.audio(source),
            Source::Ready(ready) => Ok(plain(ready.medium.clone())),
        }
    }

    fn known(&self) -> &'a lapidary_program::Media {
        &self.program.metadata().media
    }

    fn refused(&self) -> Error {
        lapidary_text::Error::modality(self.known(), self.media.modality()).into()
    }

    fn image(&self, source: &ImageSource) -> Result<Medium> {
        let spec = self.known().image.as_ref().ok_or_else(|| self.refused())?;
        let image = match source {
            ImageSource::Bytes(bytes) => &Image::decode(bytes, &Limits::default())?,
            ImageSource::File(path) => &Image::decode(&read(path)?, &Limits::default())?,
            ImageSource::Decoded(image) => image,
        };
        let tokens = self.media.image_tokens;
        let whole = seen(patches(image, spec, tokens)?);
        let mut parts = Vec::new();
        if self.media.pan_and_scan {
            let Some(rule) = &spec.pan_and_scan else {
                return Err(Error::argument("pan and scan: this model knows no crops of images"));
            };
            for crop in crops(image.width(), image.height(), rule) {
                parts.push(seen(patches(&image.crop(&crop), spec, tokens)?));
            }
        }
        Ok(Medium::image(self.known(), whole, parts)?)
    }

    fn video(&self, source: &VideoSource) -> Result<Medium> {
        let spec = self.known().video.as_ref().ok_or_else(|| self.refused())?;
        let image = self.known().image.as_ref().ok_or_else(|| self.refused())?;
        let frames = self.frames(source, image, spec)?;
        let frames = frames.into_iter().map(|f| (f.time, seen(f.patches))).collect();
        Ok(Medium::video(self.known(), frames)?)
    }

    fn frames(
        &self,
        source: &VideoSource,
        image: &ImageSpec,
        spec: &VideoSpec,
    ) -> Result<Vec<VideoFrame>> {
        let (n, limits) = (spec.max_frames, Limits::default());
        match source {
            VideoSource::Path(path) if path.is_dir() => {
                Ok(Video::from_folder(path, self.media.fps, n, &limits)?.patches(image, spec)?)
            }
            VideoSource::Path(path) => {
                let ending = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
                if matches!(ending.as_deref(), Some("gif" | "webp")) {
                    let bytes = read(path)?;
                    return Ok(Video::from_animation(&bytes, n, &limits)?.patches(image, spec)?);
                }
                // ffmpeg's own words for a file that is not there are no better.
                std::fs::metadata(path).map_err(system)?;
                Ok(Video::from_file(path, None, n, &limits)?.patches(image, spec)?)
            }
            VideoSource::Bytes(bytes) if is_animation(bytes) => {
                Ok(Video::from_animation(bytes, n, &limits)?.patches(image, spec)?)
            }
            VideoSource::Bytes(bytes) => {
                // ffmpeg looks at the end of some files first, so it needs one.
                let mut file = tempfile::NamedTempFile::new().map_err(temporary)?;
                file.write_all(bytes).map_err(temporary)?;
                let video = Video::from_file(file.path(), None, n, &limits)?;
                Ok(video.patches(image, spec)?)
            }
        }
    }

    fn audio(&self, source: &AudioSource) -> Result<Prepared> {
        let spec = self.known().audio.as_ref().ok_or_else(|| self.refused())?;
        let audio = match source {
            AudioSource::Bytes(bytes) => &Audio::decode(bytes, &Limits::default())?,
            AudioSource::File(path) => &Audio::decode(&read(path)?, &Limits::default())?,
            AudioSource::Decoded(audio) => audio,
        };
        let made = frames(audio, spec)?;
        let note = made.is_cut.then(|| {
            let heard = f64::from(spec.max_samples) / f64::from(spec.sample_rate);
            format!("the first {heard:.0} s of {:.1} s are heard", audio.seconds())
        });
        Ok(Prepared { medium: Medium::audio(self.known(), heard(made))?, note })
    }
}

fn is_animation(bytes: &[u8]) -> bool {
    let webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    bytes.starts_with(b"GIF8") || webp
}

/// The longest file of an image or of audio that is read: ten minutes of audio without compression.
const MAX_BYTES: u64 = 1 << 30;

/// The most that is read from a pipe or a device.
const MAX_STREAM_BYTES: u64 = 64 << 20;

/// The path is said by whoever calls.
fn read(path: &Path) -> Result<Vec<u8>> {
    // Of what is no file on a disk nobody knows how long it is.
    let whole = std::fs::metadata(path).is_ok_and(|m| m.is_file());
    read_at_most(path, if whole { MAX_BYTES } else { MAX_STREAM_BYTES }).map_err(system)
}

fn system(e: std::io::Error) -> Error {
    Error::io("can't read it", e)
}

fn temporary(e: std::io::Error) -> Error {
    Error::io("can't write a temporary file", e)
}

fn seen(p: Patches) -> SoftInput {
    let hash = p.hash().0;
    SoftInput::image(p.data, [p.index, p.x, p.y], p.n_soft, hash)
}

fn heard(f: Frames) -> SoftInput {
    SoftInput {
        method: method::AUDIO,
        hash: f.hash().0,
        n_soft: f.n_soft,
        block: false,
        indices: vec![],
        rows: (input::FRAMES, f.data),
    }
}

/// Levels of red, green and blue of an image that is arbitrary but always the same.
pub fn arbitrary_levels(width: u32, height: u32) -> Vec<u8> {
    let n = width.saturating_mul(height).saturating_mul(3);
    (0..n).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Samples of a quiet noise that is always the same.
pub fn arbitrary_samples(n: u32) -> Vec<f32> {
    let sample = |i: u32| ((i.wrapping_mul(2_654_435_761) >> 16) as f32 / 32768.0 - 1.0) * 0.1;
    (0..n).map(sample).collect()
}

/// An arbitrary image as a tower takes it: for measurements.
pub fn arbitrary_image(
    spec: &ImageSpec,
    (width, height): (u32, u32),
    image_tokens: Option<u32>,
) -> Result<SoftInput> {
    let image = Image::from_rgb(width, height, arbitrary_levels(width, height));
    let image = image.ok_or_else(|| Error::argument("an image without pixels"))?;
    Ok(seen(patches(&image, spec, image_tokens)?))
}

/// Arbitrary audio as a tower takes it, by default as long as the model hears: for measurements.
pub fn arbitrary_audio(spec: &AudioSpec, seconds: Option<u32>) -> Result<SoftInput> {
    let n = seconds.map_or(spec.max_samples, |s| s.saturating_mul(spec.sample_rate));
    let audio = Audio::from_samples(spec.sample_rate, arbitrary_samples(n))?;
    Ok(heard(frames(&audio, spec)?))
}

/// What towers are loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Towers {
    /// Patches of the largest image that room is kept for; 0 loads no vision tower.
    pub patches: u32,
    /// Frames of the longest audio that room is kept for; 0 loads no audio tower.
    pub frames: u32,
    /// Soft tokens that must go into one call; `None` for the most that the model knows.
    pub block: Option<u32>,
}

impl Towers {
    /// None: nothing is shown or played.
    pub fn none() -> Self {
        Towers { patches: 0, frames: 0, block: Some(0) }
    }

    /// All that the model has. Room is made when something comes.
    pub fn any() -> Self {
        Towers { patches: 1, frames: 1, block: None }
    }

    /// Those that these media need.
    pub fn of(media: &[Media], model: &crate::Model) -> Result<Self> {
        let ready = media.iter().map(|m| m.ready(model.program())).collect::<Result<Vec<_>>>()?;
        let inputs = ready.iter().flat_map(|r| r.medium.inputs());
        Ok(Self::of_inputs(inputs.map(AsRef::as_ref), model.program()))
    }

    /// Those that make soft tokens of these.
    pub fn of_inputs<'a>(inputs: impl Iterator<Item = &'a SoftInput>, program: &Program) -> Self {
        let mut towers = Self::none();
        let known = &program.metadata().media;
        for input in inputs {
            let rows = |channels: u64| small(input.rows.1.len() / (channels.max(1) as usize));
            match (input.method, &known.image, &known.audio) {
                (method::VISION, Some(spec), _) => {
                    towers.patches = towers.patches.max(rows(spec.channels()));
                    towers.block = towers.block.max(Some(small(input.n_soft)));
                }
                (method::AUDIO, _, Some(spec)) => {
                    towers.frames = towers.frames.max(rows(spec.channels()));
                }
                _ => {}
            }
        }
        towers
    }
}

fn small(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
