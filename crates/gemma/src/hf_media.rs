//! What a folder's processor files say of images, videos and audio.
//!
//! New folders have one `processor_config.json` with a part for each; older ones a
//! `preprocessor_config.json` and a `video_preprocessor_config.json`. What they leave out, and
//! folders that have none, get the released values.

use std::path::Path;

use lapidary_program::{Media, Resample};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::json_fields::{Fields, narrow};
use crate::shards::read_json;
use crate::towers::{Audio, MediaNumbers, Towers, Vision, media};

/// How the folder's images and audio are made ready; `config` is its `config.json`.
pub(crate) fn read(dir: &Path, config: &Value, towers: &Towers) -> Result<Media> {
    if towers.is_empty() {
        return Ok(Media::default());
    }
    let numbers = numbers(&Files::read(dir)?, config, towers)?;
    Ok(media(towers, &numbers))
}

/// The processor files of a folder, each an object.
struct Files {
    processor: Map<String, Value>,
    flat: Map<String, Value>,
    flat_video: Map<String, Value>,
}

impl Files {
    fn read(dir: &Path) -> Result<Self> {
        let file = |name: &str| match read_json(dir, name)? {
            None => Ok(Map::new()),
            Some(Value::Object(map)) => Ok(map),
            Some(_) => Err(Error::config(format!("{name} is not an object"))),
        };
        Ok(Files {
            processor: file("processor_config.json")?,
            flat: file("preprocessor_config.json")?,
            flat_video: file("video_preprocessor_config.json")?,
        })
    }

    /// A part of the new file, and the older file that it replaces.
    fn part<'a>(&'a self, name: &str, flat: &'a Map<String, Value>) -> Result<Part<'a>> {
        Ok(Part { new: Fields(&self.processor).object(name)?, old: Fields(flat) })
    }
}

/// Values of a part, from the new file or the older one.
struct Part<'a> {
    new: Option<Fields<'a>>,
    old: Fields<'a>,
}

impl<'a> Part<'a> {
    /// The file that has a key.
    fn of(&self, key: &str) -> Fields<'a> {
        self.new.filter(|f| f.get(key).is_some()).unwrap_or(self.old)
    }

    fn positive(&self, key: &str, default: u32) -> Result<u32> {
        self.of(key).positive(key, default)
    }

    fn number(&self, key: &str, default: f64) -> Result<f64> {
        self.of(key).number(key, default)
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool> {
        self.of(key).flag(key, default)
    }

    /// A number that must be this one, because nothing else is run.
    fn must_be(&self, key: &str, run: f64) -> Result<()> {
        let x = self.number(key, run)?;
        if x == run { Ok(()) } else { Err(Error::config(format!("{key} {x} is not run here"))) }
    }

    /// A whole number that the tower must agree with.
    fn agrees(&self, key: &str, tower: u32) -> Result<()> {
        let n = self.positive(key, tower)?;
        if n == tower {
            return Ok(());
        }
        Err(Error::config(format!("{key} is {n} for the processor, {tower} for the tower")))
    }
}

fn numbers(files: &Files, config: &Value, towers: &Towers) -> Result<MediaNumbers> {
    let mut n = MediaNumbers::released(towers);
    let top = config.as_object().ok_or_else(|| Error::config("config.json is not an object"))?;
    let top = Fields(top);
    // Gemma 3 calls it an index.
    let image_id = top.int("image_token_index", n.ids.image)?;
    n.ids.image = top.int("image_token_id", image_id)?;
    n.ids.audio = top.int("audio_token_id", n.ids.audio)?;
    n.ids.video = top.int("video_token_id", n.ids.video)?;
    let image = files.part("image_processor", &files.flat)?;
    if let Some(vision) = &towers.vision {
        read_images(&mut n, &image, vision)?;
    }
    let video = files.part("video_processor", &files.flat_video)?;
    n.max_frames = video.positive("num_frames", n.max_frames)?;
    n.frame_budget = video.positive("max_soft_tokens", n.frame_budget)?;
    if let Some(audio) = &towers.audio {
        let extractor = files.part("feature_extractor", &files.flat)?;
        read_audio(&mut n, &extractor, audio)?;
        let processor = Fields(&files.processor);
        n.max_soft_of_audio = processor.positive("audio_seq_length", n.max_soft_of_audio)?;
    }
    Ok(n)
}

fn read_images(n: &mut MediaNumbers, f: &Part<'_>, vision: &Vision) -> Result<()> {
    if !f.flag("do_resize", true)? {
        return Err(Error::config("do_resize is false; images are always resized here"));
    }
    n.resample = match f.of("resample").get("resample").map(|v| (v, v.as_u64())) {
        None => n.resample,
        Some((_, Some(2))) => Resample::Bilinear,
        Some((_, Some(3))) => Resample::Bicubic,
        Some((v, _)) => {
            let what = format!("resample is {v}; 2 (bilinear) and 3 (bicubic) are run");
            return Err(Error::config(what));
        }
    };
    n.levels = levels(f, n.levels)?;
    match vision {
        Vision::Siglip(c) => {
            if let Some(size) = f.of("size").object("size")? {
                for side in ["height", "width"] {
                    Part { new: None, old: size }.agrees(side, c.image_size)?;
                }
            }
            let p = &mut n.pan_and_scan;
            p.min_crop = f.positive("pan_and_scan_min_crop_size", p.min_crop)?;
            p.max_crops = f.positive("pan_and_scan_max_num_crops", p.max_crops)?;
            let ratio = f.number("pan_and_scan_min_ratio_to_activate", p.min_ratio.into())?;
            p.min_ratio = narrow(ratio);
        }
        Vision::Tower(c) => {
            f.agrees("patch_size", c.patch_size)?;
            f.agrees("pooling_kernel_size", c.pool)?;
            n.image_budget = f.positive("max_soft_tokens", n.image_budget)?;
        }
        Vision::Patches(_) => {
            n.image_budget = f.positive("max_soft_tokens", n.image_budget)?;
        }
    }
    Ok(())
}

/// `(level·rescale_factor − mean) / std` of a level of 0…255, as a factor and a term for levels of
/// 0…1; what is not said is as released.
fn levels(f: &Part<'_>, released: (f32, f32)) -> Result<(f32, f32)> {
    let rescale = if f.flag("do_rescale", true)? {
        255.0 * f.number("rescale_factor", 1.0 / 255.0)?
    } else {
        255.0
    };
    // The factor that is published is 1/255 in so many digits.
    let rescale = if (rescale - 1.0).abs() < 1e-6 { 1.0 } else { rescale };
    let (mut mean, mut std) = (0.0, 1.0);
    if f.flag("do_normalize", released != (1.0, 0.0))? {
        let (scale, shift) = (f64::from(released.0), f64::from(released.1));
        mean = same_in_all_channels(f, "image_mean", -shift / scale)?;
        std = same_in_all_channels(f, "image_std", 1.0 / scale)?;
    }
    let (scale, shift) = (rescale / std, -mean / std);
    if !(scale.is_finite() && shift.is_finite()) {
        return Err(Error::config(format!("image_mean {mean} and image_std {std}")));
    }
    Ok((narrow(scale), narrow(shift)))
}

fn same_in_all_channels(f: &Part<'_>, key: &str, default: f64) -> Result<f64> {
    match f.of(key).get(key) {
        None => Ok(default),
        Some(Value::Array(list)) => match list.as_slice() {
            [r, g, b] if r == g && g == b => r.as_f64(),
            _ => None,
        }
        .ok_or_else(|| {
            let list = Value::Array(list.clone());
            Error::config(format!("{key} is {list}, not the same number for three channels"))
        }),
        Some(_) => f.number(key, default),
    }
}

fn read_audio(n: &mut MediaNumbers, f: &Part<'_>, audio: &Audio) -> Result<()> {
    n.sample_rate = f.positive("sampling_rate", n.sample_rate)?;
    let tower = match audio {
        Audio::Frames(c) => return f.agrees("audio_samples_per_token", c.len),
        Audio::Tower(c) => c,
    };
    f.agrees("feature_size", tower.n_mels)?;
    f.must_be("preemphasis", 0.0)?;
    f.must_be("dither", 0.0)?;
    f.must_be("input_scale_factor", 1.0)?;
    for key in ["per_bin_mean", "per_bin_stddev"] {
        if f.of(key).get(key).is_some() {
            return Err(Error::config(format!("{key} is not run here")));
        }
    }
    let mel = &mut n.mel;
    mel.window = f.positive("frame_length", mel.window)?;
    mel.hop = f.positive("hop_length", mel.hop)?;
    mel.fft = f.positive("fft_length", mel.fft)?;
    mel.pad_left = mel.window.div_euclid(2);
    mel.low = narrow(f.number("min_frequency", mel.low.into())?);
    mel.high = narrow(f.number("max_frequency", mel.high.into())?);
    mel.floor = narrow(f.number("mel_floor", 1e-3)?);
    Ok(())
}
