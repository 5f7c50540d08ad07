//! Resizing of 8-bit images.
//!
//! Bit for bit what torch does to 8-bit images with `antialias`, which is what the models'
//! own preparation does: the filter widens when an image shrinks, weights are 16-bit fixed point,
//! and columns are done first, rounded to 8 bits, then rows.

use lapidary_program::Resample;
use rayon::prelude::*;

use crate::image::Image;

/// Weights come in multiples of this, filled with zeros, so that sums run over whole vectors.
const LANES: usize = 8;
/// Rows that one task does at least.
const GRAIN: usize = 8;

/// The image with another size. A size of 0 is taken as 1.
pub fn resize(image: &Image, width: u32, height: u32, filter: Resample) -> Image {
    let (width, height) = (width.max(1), height.max(1));
    let mut data = None;
    if width != image.width() {
        let taps = Taps::new(image.width(), width, filter);
        data = Some(columns(image.data(), image.width(), &taps));
    }
    if height != image.height() {
        let taps = Taps::new(image.height(), height, filter);
        data = Some(rows(data.as_deref().unwrap_or(image.data()), width, &taps));
    }
    let data = data.unwrap_or_else(|| image.data().to_vec());
    Image::from_parts(width, height, data)
}

/// Which pixels of a line make each new pixel, and with what weights.
struct Taps {
    /// The first old pixel of each new one.
    first: Vec<usize>,
    /// How many there are.
    len: Vec<usize>,
    /// `stride` weights of each new pixel.
    weights: Vec<i16>,
    stride: usize,
    /// Bits after the point.
    precision: u32,
}

impl Taps {
    fn new(from: u32, to: u32, filter: Resample) -> Taps {
        let scale = f64::from(from) / f64::from(to);
        let widening = scale.max(1.0);
        let support = reach(filter) * widening;
        let stride = (2 * support.ceil() as usize + 1).next_multiple_of(LANES);
        let n = to as usize;
        let mut exact = vec![0.0f64; n * stride];
        let (mut first, mut len) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for (i, weights) in exact.chunks_exact_mut(stride).enumerate() {
            let centre = scale * (i as f64 + 0.5);
            let begin = (centre - support + 0.5).max(0.0) as usize;
            let end = ((centre + support + 0.5) as usize).min(from as usize);
            let used = end.saturating_sub(begin).min(stride);
            let mut total = 0.0;
            for (k, weight) in weights[..used].iter_mut().enumerate() {
                let distance = (k + begin) as f64 - centre + 0.5;
                *weight = shape(filter, distance / widening);
                total += *weight;
            }
            if total != 0.0 {
                weights[..used].iter_mut().for_each(|w| *w /= total);
            }
            first.push(begin);
            len.push(used);
        }
        let largest = exact.iter().copied().fold(0.0, f64::max);
        let precision = precision(largest);
        let weights = exact.iter().map(|w| fixed(*w, precision)).collect();
        Taps { first, len, weights, stride, precision }
    }

    fn weights(&self, i: usize) -> &[i16] {
        &self.weights[i * self.stride..(i + 1) * self.stride]
    }

    /// A sum of products, rounded to a level.
    fn level(&self, sum: i32) -> u8 {
        let half = 1 << self.precision.saturating_sub(1);
        ((sum + half) >> self.precision).clamp(0, 255) as u8
    }
}

/// How far a filter looks to each side, in pixels.
fn reach(filter: Resample) -> f64 {
    match filter {
        Resample::Bilinear => 1.0,
        Resample::Bicubic => 2.0,
    }
}

fn shape(filter: Resample, x: f64) -> f64 {
    let x = x.abs();
    match filter {
        Resample::Bilinear => (1.0 - x).max(0.0),
        Resample::Bicubic => {
            const A: f64 = -0.5;
            if x < 1.0 {
                ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
            } else if x < 2.0 {
                (((x - 5.0) * x + 8.0) * x - 4.0) * A
            } else {
                0.0
            }
        }
    }
}

/// The most bits after the point with which the largest weight still fits 16 bits.
fn precision(largest: f64) -> u32 {
    let fits = |bits: &u32| (0.5 + largest * f64::from(1u32 << (bits + 1))) < f64::from(1u32 << 15);
    (0..22).find(|bits| !fits(bits)).unwrap_or(22)
}

fn fixed(weight: f64, precision: u32) -> i16 {
    let scaled = weight * f64::from(1u32 << precision);
    (scaled + 0.5f64.copysign(weight)) as i16
}

/// New columns of each row.
fn columns(data: &[u8], width: u32, taps: &Taps) -> Vec<u8> {
    let (from, to) = (width as usize, taps.first.len());
    let height = data.len() / (3 * from).max(1);
    let mut out = vec![0u8; height * to * 3];
    let tasks = out.par_chunks_exact_mut(to * 3).zip(data.par_chunks_exact(from * 3));
    tasks.with_min_len(GRAIN).for_each_init(
        || vec![0i16; 3 * (from + taps.stride)],
        |planes, (new, old)| {
            spread(old, planes);
            let plane = planes.len() / 3;
            for (i, pixel) in new.chunks_exact_mut(3).enumerate() {
                let (weights, first) = (taps.weights(i), taps.first[i]);
                for (c, level) in pixel.iter_mut().enumerate() {
                    let begin = c * plane + first;
                    *level = taps.level(dot(weights, &planes[begin..begin + taps.stride]));
                }
            }
        },
    );
    out
}

/// Interleaved levels as three lines of 16-bit numbers.
fn spread(row: &[u8], planes: &mut [i16]) {
    let plane = planes.len() / 3;
    let (red, rest) = planes.split_at_mut(plane);
    let (green, blue) = rest.split_at_mut(plane);
    let targets = red.iter_mut().zip(green).zip(blue);
    for (pixel, ((r, g), b)) in row.chunks_exact(3).zip(targets) {
        (*r, *g, *b) = (i16::from(pixel[0]), i16::from(pixel[1]), i16::from(pixel[2]));
    }
}

/// Both have the same length, a multiple of [`LANES`].
fn dot(a: &[i16], b: &[i16]) -> i32 {
    a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
}

/// New rows.
fn rows(data: &[u8], width: u32, taps: &Taps) -> Vec<u8> {
    let line = width as usize * 3;
    let mut out = vec![0u8; line * taps.first.len()];
    out.par_chunks_exact_mut(line).enumerate().with_min_len(GRAIN).for_each_init(
        || vec![0i32; line],
        |sums, (i, new)| {
            sums.fill(0);
            let old = data.chunks_exact(line).skip(taps.first[i]).take(taps.len[i]);
            for (row, weight) in old.zip(taps.weights(i)) {
                let weight = i32::from(*weight);
                for (sum, level) in sums.iter_mut().zip(row) {
                    *sum += weight * i32::from(*level);
                }
            }
            for (level, sum) in new.iter_mut().zip(sums.iter()) {
                *level = taps.level(*sum);
            }
        },
    );
    out
}
