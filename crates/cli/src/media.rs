//! From files to what is shown and played to a model.

use std::path::Path;

use anyhow::{Context, Result};
use lapidary_media::{Film, Frames, Limits, Patches, Picture, Sound, crops, frames, patches};
use lapidary_program::{AudioSpec, ImageSpec, Media, Modality, Program, VideoSpec, input, method};
use lapidary_runner::{Content, Error, Medium, Message, Part, SoftInput};
use serde_json::Map;

use crate::args::MediaArgs;
use crate::tell::tell;

/// Reads media for one program.
pub struct Loader<'a> {
    media: &'a Media,
    image_tokens: Option<u32>,
    pan_and_scan: bool,
    fps: Option<f64>,
    limits: Limits,
}

/// Everything that the flags name, in the order they name it.
pub fn prepare(args: &MediaArgs, program: &Program) -> Result<Vec<Medium>> {
    let loader = Loader {
        image_tokens: args.image_tokens,
        pan_and_scan: args.pan_and_scan,
        fps: args.fps,
        ..Loader::new(program)
    };
    let (mut images, mut videos, mut audios) =
        (args.image.iter(), args.video.iter(), args.audio.iter());
    let mut all = Vec::with_capacity(args.order.len());
    for kind in &args.order {
        let path = match kind {
            Modality::Image => images.next(),
            Modality::Video => videos.next(),
            Modality::Audio => audios.next(),
        };
        if let Some(path) = path {
            all.push(loader.load(*kind, path)?);
        }
    }
    Ok(all)
}

/// A message that shows and plays media, then says something.
pub fn message(role: &str, media: &[Medium], text: &str) -> Message {
    if media.is_empty() {
        return Message::new(role, text);
    }
    let part = |m: &Medium| match m.modality() {
        Modality::Image => Part::Image { source: Map::new() },
        Modality::Video => Part::Video { source: Map::new() },
        Modality::Audio => Part::Audio { source: Map::new() },
    };
    let mut parts: Vec<Part> = media.iter().map(part).collect();
    parts.push(Part::Text { text: text.to_string() });
    Message { role: role.into(), content: Some(Content::Parts(parts)), ..Message::default() }
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

impl<'a> Loader<'a> {
    /// With what the program recommends.
    pub fn new(program: &'a Program) -> Self {
        Loader {
            media: &program.metadata().media,
            image_tokens: None,
            pan_and_scan: false,
            fps: None,
            limits: Limits::default(),
        }
    }

    /// Reads a file, or for a film a folder.
    pub fn load(&self, kind: Modality, path: &Path) -> Result<Medium> {
        let read = match kind {
            Modality::Image => self.image(path),
            Modality::Video => self.video(path),
            Modality::Audio => self.audio(path),
        };
        read.with_context(|| path.display().to_string())
    }

    fn image_spec(&self, given: Modality) -> Result<&'a ImageSpec> {
        self.media.image.as_ref().ok_or_else(|| self.refused(given))
    }

    fn refused(&self, given: Modality) -> anyhow::Error {
        Error::Modality { given, supported: self.media.modalities() }.into()
    }

    fn image(&self, path: &Path) -> Result<Medium> {
        let spec = self.image_spec(Modality::Image)?;
        let picture = Picture::decode(&std::fs::read(path)?, &self.limits)?;
        let whole = seen(patches(&picture, spec, self.image_tokens)?);
        let mut parts = Vec::new();
        if self.pan_and_scan {
            let Some(rule) = &spec.pan_and_scan else {
                let what = "this model knows no crops of pictures";
                return Err(crate::exit::Usage(format!("--pan-and-scan: {what}")).into());
            };
            for crop in crops(picture.width(), picture.height(), rule) {
                parts.push(seen(patches(&picture.crop(&crop), spec, self.image_tokens)?));
            }
        }
        Ok(Medium::image(self.media, whole, parts)?)
    }

    fn video(&self, path: &Path) -> Result<Medium> {
        let Some(spec) = &self.media.video else { return Err(self.refused(Modality::Video)) };
        let image = self.image_spec(Modality::Video)?;
        let frames = self.film(path, image, spec)?;
        let frames = frames.into_iter().map(|f| (f.time, seen(f.patches))).collect();
        Ok(Medium::video(self.media, frames)?)
    }

    fn film(
        &self,
        path: &Path,
        image: &ImageSpec,
        spec: &VideoSpec,
    ) -> Result<Vec<lapidary_media::FilmFrame>> {
        let n = spec.max_frames;
        if path.is_dir() {
            return Ok(Film::from_folder(path, self.fps, n, &self.limits)?.patches(image, spec)?);
        }
        let ending = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
        if matches!(ending.as_deref(), Some("gif" | "webp")) {
            let bytes = std::fs::read(path)?;
            return Ok(Film::from_animation(&bytes, n, &self.limits)?.patches(image, spec)?);
        }
        // ffmpeg's own words for a file that is not there are no better.
        std::fs::metadata(path)?;
        Ok(Film::from_file(path, None, n, &self.limits)?.patches(image, spec)?)
    }

    fn audio(&self, path: &Path) -> Result<Medium> {
        let Some(spec) = &self.media.audio else { return Err(self.refused(Modality::Audio)) };
        let sound = Sound::decode(&std::fs::read(path)?, &self.limits)?;
        let seconds = sound.seconds();
        let made = frames(&sound, spec)?;
        if made.is_cut {
            let heard = f64::from(spec.max_samples) / f64::from(spec.sample_rate);
            tell(format_args!("note: the first {heard:.0} s of {seconds:.1} s are heard"));
        }
        Ok(Medium::audio(self.media, heard(made))?)
    }
}

/// A picture that is arbitrary but always the same, for measurements.
pub fn some_picture(spec: &ImageSpec, image_tokens: Option<u32>) -> Result<SoftInput> {
    let (width, height) = (1024u32, 768u32);
    let levels = (0..width * height * 3).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8);
    let picture = Picture::from_rgb(width, height, levels.collect()).context("a picture")?;
    Ok(seen(patches(&picture, spec, image_tokens)?))
}

/// As much sound as a model hears at once, for measurements.
pub fn some_sound(spec: &AudioSpec) -> Result<SoftInput> {
    let sample = |i: u32| ((i.wrapping_mul(2_654_435_761) >> 16) as f32 / 32768.0 - 1.0) * 0.1;
    let samples = (0..spec.max_samples).map(sample).collect();
    Ok(heard(frames(&Sound::from_samples(spec.sample_rate, samples)?, spec)?))
}

fn seen(p: Patches) -> SoftInput {
    let hash = p.hash().0;
    SoftInput::picture(p.data, [p.index, p.x, p.y], p.n_soft, hash)
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
