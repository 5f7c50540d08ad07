//! Videos from folders of images.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use super::{Frame, Video, sampled};
use crate::error::{Error, Result};
use crate::image::Image;
use crate::limits::Limits;

/// Images of one second, unless told.
const FPS: f64 = 24.0;
/// Endings of images; what else lies in the folder is passed over.
const ENDINGS: &[&str] = &["png", "jpg", "jpeg", "webp", "gif", "bmp"];

/// The longest file of an image that is read.
const MAX_BYTES: u64 = 256 << 20;

pub(super) fn open(
    folder: &Path,
    fps: Option<f64>,
    max_frames: u32,
    limits: &Limits,
) -> Result<Video<'static>> {
    let fps = fps.filter(|fps| fps.is_finite() && *fps > 0.0).unwrap_or(FPS);
    let files = images(folder).map_err(Error::Io)?;
    if files.is_empty() {
        return Err(Error::NoFrames);
    }
    let limits = limits.clone();
    let wanted = sampled(files.len() as u64, max_frames);
    Ok(Video::new(wanted.into_iter().map(move |i| {
        let bytes =
            lapidary_program::read_at_most(&files[i as usize], MAX_BYTES).map_err(Error::Io)?;
        let image = Image::decode(&bytes, &limits)?;
        Ok(Frame { seconds: i as f64 / fps, image })
    })))
}

fn images(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        if ENDINGS.contains(&ending.as_str()) && path.is_file() {
            files.push(path);
        }
    }
    files.sort_by(|a, b| {
        let name = |p: &Path| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
        natural(&name(a), &name(b))
    });
    Ok(files)
}

/// `2` before `10`, and `02` beside `2`.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        let (n, m) = (digits(left), digits(right));
        let step = if n > 0 && m > 0 {
            let number = |s: &str| s.trim_start_matches('0').to_string();
            let (x, y) = (number(&left[..n]), number(&right[..m]));
            (left, right) = (&left[n..], &right[m..]);
            x.len().cmp(&y.len()).then(x.cmp(&y))
        } else {
            let (x, y) = (left.chars().next(), right.chars().next());
            let (Some(c), Some(d)) = (x, y) else { return x.cmp(&y).then(a.cmp(b)) };
            (left, right) = (&left[c.len_utf8()..], &right[d.len_utf8()..]);
            c.to_lowercase().cmp(d.to_lowercase())
        };
        if step != Ordering::Equal {
            return step;
        }
    }
}

fn digits(s: &str) -> usize {
    s.bytes().take_while(u8::is_ascii_digit).count()
}

#[cfg(test)]
mod tests {
    use super::natural;

    #[test]
    fn names_are_in_natural_order() {
        let mut names = ["b10", "a2.png", "b9", "a10.png", "A3.png", "a02.png", "é", "a"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["a", "a02.png", "a2.png", "A3.png", "a10.png", "b9", "b10", "é"]);
    }
}
