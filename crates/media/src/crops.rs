//! Crops beside a long image.

use lapidary_program::PanAndScan;

/// A part of an image, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crop {
    /// Its left edge.
    pub x: u32,
    /// Its upper edge.
    pub y: u32,
    /// Its width.
    pub width: u32,
    /// Its height.
    pub height: u32,
}

/// The parts into which a long image is cut along its longer side, or none.
///
/// Each is then made ready as the whole image is; the whole image comes first.
pub fn crops(width: u32, height: u32, spec: &PanAndScan) -> Vec<Crop> {
    let (long, short) = (width.max(height), width.min(height));
    if short == 0 || spec.min_crop == 0 || spec.max_crops == 0 {
        return Vec::new();
    }
    let ratio = f64::from(long) / f64::from(short);
    // The least ratio was rounded to 32 bits, so that 1.2 is no longer 6/5; no quotient of two
    // sides is close enough to it to be rounded wrongly here.
    if (ratio as f32) < spec.min_ratio {
        return Vec::new();
    }
    let wanted = (ratio + 0.5) as u32;
    let n = wanted.min(long / spec.min_crop).max(2).min(spec.max_crops);
    let step = long.div_ceil(n);
    if step.min(short) < spec.min_crop {
        return Vec::new();
    }
    let starts = (0..n).map(|i| i * step).filter(|start| *start < long);
    let part = |start: u32| {
        let len = step.min(long - start);
        if width >= height {
            Crop { x: start, y: 0, width: len, height }
        } else {
            Crop { x: 0, y: start, width, height: len }
        }
    };
    starts.map(part).collect()
}
