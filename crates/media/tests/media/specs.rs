//! Descriptions as programs carry them.

use lapidary_program::{
    AudioFrames, AudioSpec, ImageSize, ImageSpec, LogMel, PanAndScan, PatchLayout, Resample,
    SoftTokens, VideoSpec,
};

pub fn tokens() -> SoftTokens {
    let text = |s: &str| s.to_string();
    SoftTokens {
        placeholder: text("<p>"),
        before: text("<b>"),
        after: text("<a>"),
        id: 9,
        is_padding: false,
    }
}

/// Images of one size, bilinear, planar.
pub fn fixed() -> ImageSpec {
    ImageSpec {
        size: ImageSize::Fixed { width: 896, height: 896 },
        resample: Resample::Bilinear,
        patch: 14,
        pool: 4,
        layout: PatchLayout::Planar,
        scale: 2.0,
        shift: -1.0,
        pan_and_scan: Some(pan_and_scan(256)),
        tokens: tokens(),
    }
}

/// Images within a budget, bicubic, interleaved.
pub fn budget() -> ImageSpec {
    let choices = vec![70, 140, 280, 560, 1120];
    ImageSpec {
        size: ImageSize::Budget { choices, default: 280 },
        resample: Resample::Bicubic,
        patch: 16,
        pool: 3,
        layout: PatchLayout::Interleaved,
        scale: 1.0,
        shift: 0.0,
        pan_and_scan: None,
        tokens: tokens(),
    }
}

/// The same with one patch to a soft token.
pub fn whole_cells() -> ImageSpec {
    ImageSpec { patch: 48, pool: 1, ..budget() }
}

pub fn pan_and_scan(min_crop: u32) -> PanAndScan {
    let text = String::new();
    let (before, between, separator) = (text.clone(), text.clone(), text);
    PanAndScan { min_crop, max_crops: 4, min_ratio: 1.2, before, between, separator }
}

pub fn video() -> VideoSpec {
    VideoSpec { max_frames: 32, budget: 70, separator: " ".into(), tokens: tokens() }
}

pub fn mel() -> AudioSpec {
    let mel = LogMel {
        window: 320,
        hop: 160,
        fft: 512,
        n_mels: 128,
        low: 0.0,
        high: 8000.0,
        floor: 1e-3,
        pad_left: 160,
    };
    AudioSpec {
        sample_rate: 16_000,
        max_samples: 480_000,
        frames: AudioFrames::LogMel(mel),
        stride: 4,
        tokens: tokens(),
    }
}

pub fn raw() -> AudioSpec {
    AudioSpec { frames: AudioFrames::Raw { len: 640 }, stride: 1, ..mel() }
}
