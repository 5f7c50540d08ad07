//! Images to patches.

use lapidary_program::{ImageSpec, PatchLayout};
use rayon::prelude::*;

use crate::error::Result;
use crate::image::Image;
use crate::resize::resize;
use crate::size::{fitted, fitted_within};

/// What `vision` is fed for one image.
///
/// The patches of one soft token follow each other, row by row inside its cell; cells come row by
/// row over the image.
#[derive(Clone, Debug, PartialEq)]
pub struct Patches {
    /// Numbers of each patch in turn.
    pub data: Vec<f32>,
    /// Each patch's place in the image, counted row by row.
    pub index: Vec<i32>,
    /// Its column.
    pub x: Vec<i32>,
    /// Its row.
    pub y: Vec<i32>,
    /// Soft tokens.
    pub n_soft: usize,
    /// Pixels of the resized image.
    pub width: u32,
    /// Pixels of the resized image.
    pub height: u32,
}

/// An image as patches, with a number of soft tokens at most that the user chose, or the
/// program's own.
pub fn patches(image: &Image, spec: &ImageSpec, budget: Option<u32>) -> Result<Patches> {
    let size = fitted(image.width(), image.height(), spec, budget)?;
    Ok(cut(image, spec, size))
}

/// As [`patches`], with a budget that the user need not be offered.
pub(crate) fn patches_within(image: &Image, spec: &ImageSpec, budget: u32) -> Result<Patches> {
    let size = fitted_within(image.width(), image.height(), spec, Some(budget))?;
    Ok(cut(image, spec, size))
}

/// Both sides are multiples of a cell's, which is not 0.
fn cut(image: &Image, spec: &ImageSpec, (width, height): (u32, u32)) -> Patches {
    let resized = resize(image, width, height, spec.resample);
    let (columns, rows) = (width / spec.patch, height / spec.patch);
    let places = in_cells(columns, rows, spec.pool);
    let levels = levels(spec.scale, spec.shift);
    let len = spec.patch as usize * spec.patch as usize * 3;
    let mut data = vec![0.0; places.len() * len];
    data.par_chunks_exact_mut(len).zip(&places).for_each(|(patch, place)| {
        fill(patch, &resized, *place, spec, &levels);
    });
    Patches {
        data,
        index: places.iter().map(|(x, y)| (y * columns + x) as i32).collect(),
        x: places.iter().map(|(x, _)| *x as i32).collect(),
        y: places.iter().map(|(_, y)| *y as i32).collect(),
        n_soft: places.len() / spec.patches_per_soft() as usize,
        width,
        height,
    }
}

/// Columns and rows of all patches in the order in which they are fed.
fn in_cells(columns: u32, rows: u32, pool: u32) -> Vec<(u32, u32)> {
    let mut places = Vec::with_capacity(columns as usize * rows as usize);
    for cell_y in 0..rows / pool {
        for cell_x in 0..columns / pool {
            let inside = (0..pool).flat_map(|y| (0..pool).map(move |x| (x, y)));
            places.extend(inside.map(|(x, y)| (cell_x * pool + x, cell_y * pool + y)));
        }
    }
    places
}

/// What each level of 0…255 becomes.
fn levels(scale: f32, shift: f32) -> [f32; 256] {
    std::array::from_fn(|level| level as f32 / 255.0 * scale + shift)
}

fn fill(
    patch: &mut [f32],
    image: &Image,
    (x, y): (u32, u32),
    spec: &ImageSpec,
    levels: &[f32; 256],
) {
    let side = spec.patch as usize;
    let line = image.width() as usize * 3;
    for row in 0..side {
        let begin = (y as usize * side + row) * line + x as usize * side * 3;
        let pixels = &image.data()[begin..begin + side * 3];
        match spec.layout {
            PatchLayout::Interleaved => {
                let target = &mut patch[row * side * 3..(row + 1) * side * 3];
                for (number, level) in target.iter_mut().zip(pixels) {
                    *number = levels[usize::from(*level)];
                }
            }
            PatchLayout::Planar => {
                for (column, pixel) in pixels.chunks_exact(3).enumerate() {
                    for (channel, level) in pixel.iter().enumerate() {
                        let at = (channel * side + row) * side + column;
                        patch[at] = levels[usize::from(*level)];
                    }
                }
            }
        }
    }
}

impl Patches {
    /// The same patches row by row over the image, as others feed them.
    pub fn row_major(&self) -> Patches {
        let mut order: Vec<usize> = (0..self.index.len()).collect();
        order.sort_by_key(|i| self.index[*i]);
        let len = self.data.len() / self.index.len().max(1);
        let pick = |numbers: &[i32]| order.iter().map(|i| numbers[*i]).collect();
        let rows = order.iter().flat_map(|i| &self.data[i * len..(i + 1) * len]);
        Patches {
            data: rows.copied().collect(),
            index: pick(&self.index),
            x: pick(&self.x),
            y: pick(&self.y),
            ..*self
        }
    }
}
