//! What a program says of images and audio agrees with itself and with its methods.

use crate::error::{Error, Result};
use crate::graph::ValueType;
use crate::media::{AudioFrames, AudioSpec, ImageSize, ImageSpec, LogMel, SoftTokens};
use crate::op::{input, output};
use crate::program::{Description, Method, method};
use crate::shape::{Dim, Sym};

type Rule<T> = std::result::Result<T, String>;

/// Sides and lengths stay far below this, so that their products fit.
const MAX_LEN: u32 = 1 << 16;
/// Text around soft tokens is short.
const MAX_TEXT: usize = 1 << 10;
/// An hour of audio at 48 kHz.
const MAX_SAMPLES: u32 = 3600 * 48_000;

pub(crate) fn check(d: &Description) -> Result<()> {
    let named = |name: &str, checked: Rule<()>| {
        checked.map_err(|what| Error::Program(format!("method `{name}`: {what}")))
    };
    let media = &d.metadata.media;
    let soft = match d.methods.get(method::FORWARD) {
        Some(forward) => soft_channels(forward),
        None => None,
    };
    match (&media.image, d.methods.get(method::VISION)) {
        (Some(spec), Some(m)) => {
            named(method::VISION, image(spec).and_then(|()| vision(spec, m, soft)))?;
        }
        (None, None) => {}
        _ => return Err(unmatched(method::VISION, "pictures")),
    }
    match (&media.audio, d.methods.get(method::AUDIO)) {
        (Some(spec), Some(m)) => {
            named(method::AUDIO, audio(spec).and_then(|()| hearing(spec, m, soft)))?;
        }
        (None, None) => {}
        _ => return Err(unmatched(method::AUDIO, "audio")),
    }
    if let Some(video) = &media.video {
        let Some(image) = &media.image else { return Err(unmatched(method::VISION, "videos")) };
        let in_budget = (1..=image.max_soft()).contains(&video.budget);
        let fixed = matches!(image.size, ImageSize::Fixed { .. });
        if !(in_budget || fixed) || !(1..MAX_LEN).contains(&video.max_frames) {
            let (n, budget) = (video.max_frames, video.budget);
            let what = format!("videos of {n} frames with {budget} soft tokens each");
            return Err(Error::Program(what));
        }
        named(method::VISION, text(&video.separator).and_then(|()| tokens(&video.tokens)))?;
    }
    Ok(())
}

fn unmatched(name: &str, what: &str) -> Error {
    Error::Program(format!("method `{name}` and the description of {what} come together"))
}

/// Channels of the soft rows that `forward` takes.
fn soft_channels(forward: &Method) -> Option<u64> {
    let taken = forward.graph.inputs.iter().find(|i| i.name == input::SOFT)?;
    match taken.value_type.shape().as_slice() {
        [_, Dim::Fixed(channels)] => Some(*channels),
        _ => None,
    }
}

fn image(spec: &ImageSpec) -> Rule<()> {
    let side = |what: &str, n: u32| {
        if (1..MAX_LEN).contains(&n) { Ok(()) } else { Err(format!("{what} {n}")) }
    };
    side("patch", spec.patch)?;
    side("pool", spec.pool)?;
    side("patch · pool", spec.cell())?;
    if !(spec.scale.is_finite() && spec.shift.is_finite()) {
        return Err(format!("levels times {} plus {}", spec.scale, spec.shift));
    }
    match &spec.size {
        ImageSize::Fixed { width, height } => {
            side("width", *width)?;
            side("height", *height)?;
            if !width.is_multiple_of(spec.cell()) || !height.is_multiple_of(spec.cell()) {
                return Err(format!("{width}×{height} pixels in cells of {}", spec.cell()));
            }
        }
        ImageSize::Budget { choices, default } => {
            if choices.len() > 64 || !choices.contains(default) {
                return Err(format!("{default} soft tokens is not among {choices:?}"));
            }
            for n in choices {
                side("soft tokens", *n)?;
            }
        }
    }
    if let Some(crops) = &spec.pan_and_scan {
        side("min_crop", crops.min_crop)?;
        side("max_crops", crops.max_crops)?;
        if !(crops.min_ratio.is_finite() && crops.min_ratio >= 1.0) {
            return Err(format!("crops from a ratio of {}", crops.min_ratio));
        }
        for s in [&crops.before, &crops.between, &crops.separator] {
            text(s)?;
        }
    }
    tokens(&spec.tokens)
}

fn audio(spec: &AudioSpec) -> Rule<()> {
    if !(1..=768_000).contains(&spec.sample_rate) {
        return Err(format!("{} samples in a second", spec.sample_rate));
    }
    if !(1..=MAX_SAMPLES).contains(&spec.max_samples) {
        return Err(format!("{} samples", spec.max_samples));
    }
    if !(1..MAX_LEN).contains(&spec.stride) {
        return Err(format!("{} frames of one soft token", spec.stride));
    }
    match &spec.frames {
        AudioFrames::Raw { len } if (1..MAX_LEN).contains(len) => {}
        AudioFrames::Raw { len } => return Err(format!("frames of {len} samples")),
        AudioFrames::LogMel(mel) => log_mel(mel)?,
    }
    tokens(&spec.tokens)
}

fn log_mel(m: &LogMel) -> Rule<()> {
    let lengths = [m.window, m.hop, m.fft, m.n_mels];
    if lengths.iter().any(|n| !(1..MAX_LEN).contains(n)) || m.pad_left >= MAX_LEN {
        return Err(format!("a mel spectrum of {lengths:?}, {} zeros before", m.pad_left));
    }
    if m.window > m.fft {
        return Err(format!("a window of {} in a transform of {}", m.window, m.fft));
    }
    let ordered = m.low >= 0.0 && m.low < m.high && m.high.is_finite();
    if !(ordered && m.floor.is_finite() && m.floor > 0.0) {
        return Err(format!("{}–{} Hz above a floor of {}", m.low, m.high, m.floor));
    }
    Ok(())
}

fn tokens(t: &SoftTokens) -> Rule<()> {
    if t.placeholder.is_empty() {
        return Err("the placeholder of soft tokens is empty".into());
    }
    for s in [&t.placeholder, &t.before, &t.after] {
        text(s)?;
    }
    if t.id >= 1 << 31 { Err(format!("soft token {}", t.id)) } else { Ok(()) }
}

fn text(s: &str) -> Rule<()> {
    if s.len() > MAX_TEXT { Err(format!("a text of {} bytes", s.len())) } else { Ok(()) }
}

fn vision(spec: &ImageSpec, m: &Method, soft: Option<u64>) -> Rule<()> {
    let mut sees = false;
    for i in &m.graph.inputs {
        let right = match i.name.as_str() {
            input::PATCHES => {
                sees = true;
                i.value_type == ValueType::rows(Sym::Patches, spec.channels())
            }
            input::PATCH_INDEX | input::PATCH_X | input::PATCH_Y => {
                i.value_type == ValueType::indices(Sym::Patches)
            }
            other => return Err(format!("nobody feeds an input `{other}`")),
        };
        if !right {
            return Err(format!("input `{}` is {:?}", i.name, i.value_type));
        }
    }
    if !sees {
        return Err(format!("it has no input `{}`", input::PATCHES));
    }
    makes_soft(m, Dim::Sym(Sym::Patches).divided(spec.patches_per_soft()), soft)
}

fn hearing(spec: &AudioSpec, m: &Method, soft: Option<u64>) -> Rule<()> {
    let want = ValueType::rows(Sym::Frames, spec.channels());
    match m.graph.inputs.as_slice() {
        [i] if i.name == input::FRAMES && i.value_type == want => {}
        _ => return Err(format!("it does not take `{}` alone, {want:?}", input::FRAMES)),
    }
    makes_soft(m, Dim::Sym(Sym::Frames).divided(spec.stride), soft)
}

/// The one output is the soft rows that `forward` takes.
fn makes_soft(m: &Method, len: Option<Dim>, channels: Option<u64>) -> Rule<()> {
    let Some(channels) = channels else { return Err("`forward` takes no soft rows".into()) };
    let made = match m.graph.outputs.as_slice() {
        [out] if out.name == output::SOFT => m.types.get(out.value.index()),
        _ => return Err(format!("its output is not `{}`", output::SOFT)),
    };
    let want = len.map(|len| ValueType::F32(vec![len, Dim::Fixed(channels)]));
    if made.is_some() && made == want.as_ref() {
        Ok(())
    } else {
        Err(format!("it makes {made:?}, `forward` takes {want:?}"))
    }
}
