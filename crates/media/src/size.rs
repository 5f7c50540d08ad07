//! The size that an image is given.

use lapidary_program::{ImageSize, ImageSpec};

use crate::error::{Error, Result};

// Descriptions come from files too. No model takes a tenth of this.
const MAX_SIDE: u32 = 1 << 17;
const MAX_PIXELS: u64 = 1 << 25;
/// Pixels of an image that has its new width already, and its old height still.
const MAX_BETWEEN: u64 = 1 << 28;

/// The width and height that an image is given, in pixels, for a budget that the user chose, or
/// the program's own.
///
/// With a budget an image is scaled up or down to fill it: the largest whole numbers of soft
/// tokens, with about the image's aspect, whose product is not above the budget.
pub fn fitted(
    width: u32,
    height: u32,
    spec: &ImageSpec,
    budget: Option<u32>,
) -> Result<(u32, u32)> {
    if let Some(asked) = budget {
        let choices = match &spec.size {
            ImageSize::Budget { choices, .. } => choices.as_slice(),
            ImageSize::Fixed { .. } => &[],
        };
        if !choices.contains(&asked) {
            return Err(Error::Budget { asked, choices: choices.to_vec() });
        }
    }
    fitted_within(width, height, spec, budget)
}

/// As [`fitted`], with a budget that the user need not be offered.
pub(crate) fn fitted_within(
    width: u32,
    height: u32,
    spec: &ImageSpec,
    budget: Option<u32>,
) -> Result<(u32, u32)> {
    let cell = spec.cell();
    if spec.patch == 0 || spec.pool == 0 || cell == u32::MAX {
        return Err(Error::Spec { what: format!("patches of {} by {}", spec.patch, spec.pool) });
    }
    let (fit_width, fit_height) = match &spec.size {
        ImageSize::Fixed { width, height } => {
            if [*width, *height].iter().any(|n| *n == 0 || !n.is_multiple_of(cell)) {
                let what = format!("{width}×{height} pixels in cells of {cell}");
                return Err(Error::Spec { what });
            }
            (*width, *height)
        }
        ImageSize::Budget { default, .. } => {
            let budget = budget.unwrap_or(*default);
            if budget == 0 || budget.checked_mul(cell).is_none() {
                return Err(Error::Spec { what: format!("{budget} soft tokens of {cell} pixels") });
            }
            filling(width.max(1), height.max(1), cell, budget)
        }
    };
    let area = |a: u32, b: u32| u64::from(a) * u64::from(b);
    let too_long = fit_width.max(fit_height) > MAX_SIDE || area(fit_width, height) > MAX_BETWEEN;
    if too_long || area(fit_width, fit_height) > MAX_PIXELS {
        let what = format!("images of {fit_width}×{fit_height} pixels");
        return Err(Error::Spec { what });
    }
    Ok((fit_width, fit_height))
}

fn filling(width: u32, height: u32, cell: u32, budget: u32) -> (u32, u32) {
    let (w, h, side) = (f64::from(width), f64::from(height), f64::from(cell));
    let factor = (f64::from(budget) * side * side / (w * h)).sqrt();
    // The order of these operations decides which side of a whole number a result falls on.
    let cells = |side_px: f64| (factor * side_px / side).floor() as u32;
    let (columns, rows) = match (cells(w), cells(h)) {
        // Only rounding brings both below one.
        (0, 0) => (1, 1),
        (_, 0) => (((w / h).floor() as u32).clamp(1, budget), 1),
        (0, _) => (1, ((h / w).floor() as u32).clamp(1, budget)),
        both => both,
    };
    (columns * cell, rows * cell)
}
