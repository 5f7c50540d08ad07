//! Videos by the program `ffmpeg`, in two runs: one lists the frames, one decodes those wanted.
//!
//! It is started with arguments, never through a shell, and reads local files of known containers
//! only: a playlist would make it open other files and addresses.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Command};

use super::running::Running;
use super::{Frame, Video, ppm, sampled};
use crate::decode::check_size;
use crate::error::{Error, Result};
use crate::limits::Limits;

const CONTAINERS: &str = "mov,matroska,avi,flv,mpegts,mpeg,mpegvideo,ogg,asf,gif,apng,ivf,mxf,nut,\
                          h264,hevc,av1,m4v,dv,wtv,rm,yuv4mpegpipe";
/// Frames of a video; a day of them, about.
const MAX_LISTED: usize = 1 << 22;
/// A list's line is short.
const MAX_LINE: usize = 1 << 10;
/// More would not fit the command line.
const MAX_WANTED: u32 = 1 << 10;

pub(super) fn open(
    file: &Path,
    program: Option<&Path>,
    max_frames: u32,
    limits: &Limits,
) -> Result<Video<'static>> {
    let program = program.unwrap_or(Path::new("ffmpeg"));
    let listing = list(file, program, limits)?;
    let total = listing.starts.len() as u64;
    if total == 0 {
        return Err(Error::NoFrames);
    }
    if let Some((width, height)) = listing.size {
        check_size(width, height, limits)?;
        let (pixels, max_pixels) = (width * height, limits.max_video_pixels);
        // Only frames that are shown are counted here: time is bounded besides.
        if total.min(max_frames.into()).saturating_mul(pixels) > max_pixels {
            return Err(Error::VideoSize { frames: total, pixels, max_pixels });
        }
    }
    decode(file, program, listing.starts, max_frames.min(MAX_WANTED), limits)
}

/// What the first run finds.
#[derive(Debug, Default, PartialEq)]
struct Listing {
    /// When each frame begins, in seconds, ascending from 0.
    starts: Vec<f64>,
    /// Width and height.
    size: Option<(u64, u64)>,
}

fn list(file: &Path, program: &Path, limits: &Limits) -> Result<Listing> {
    let mut command = reading(program, file);
    command.args(["-c", "copy", "-f", "framecrc", "-"]);
    let (mut running, stdout) = Running::start(command, limits.max_video_work_s)?;
    let listing = parse_list(BufReader::new(stdout)).map_err(Error::Io)?;
    running.finish()?;
    Ok(listing)
}

/// Lines of `stream, dts, pts, duration, size, …`, headed by lines that begin with `#`.
fn parse_list(mut lines: impl BufRead) -> std::io::Result<Listing> {
    let mut unit = 0.0;
    let mut ticks: Vec<i64> = Vec::new();
    let mut size = None;
    let mut line = Vec::new();
    while ticks.len() < MAX_LISTED {
        line.clear();
        let mut bounded = std::io::Read::take(&mut lines, MAX_LINE as u64);
        if bounded.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&line);
        if let Some(ratio) = text.strip_prefix("#tb 0:") {
            unit = pair(ratio, '/').map_or(0.0, |(n, d)| n as f64 / d.max(1) as f64);
        } else if let Some(sides) = text.strip_prefix("#dimensions 0:") {
            size = pair(sides, 'x');
        } else if !text.starts_with('#') {
            ticks.extend(text.split(',').nth(2).and_then(|pts| pts.trim().parse::<i64>().ok()));
        }
    }
    // They are listed in the order of decoding.
    ticks.sort_unstable();
    let first = ticks.first().copied().unwrap_or(0);
    let starts = ticks.iter().map(|t| t.saturating_sub(first) as f64 * unit).collect();
    Ok(Listing { starts, size })
}

fn pair(text: &str, between: char) -> Option<(u64, u64)> {
    let (a, b) = text.trim().split_once(between)?;
    Some((a.parse().ok()?, b.parse().ok()?))
}

fn decode(
    file: &Path,
    program: &Path,
    starts: Vec<f64>,
    max_frames: u32,
    limits: &Limits,
) -> Result<Video<'static>> {
    let wanted = sampled(starts.len() as u64, max_frames);
    let terms: Vec<String> = wanted.iter().map(|n| format!("eq(n,{n})")).collect();
    // Frames are given new times, one after the other, so that none is doubled or dropped.
    let filter = format!("select='{}',setpts=N/(25*TB)", terms.join("+"));
    let mut command = reading(program, file);
    command.args(["-vf", &filter, "-r", "25", "-pix_fmt", "rgb24"]);
    command.args(["-f", "image2pipe", "-c:v", "ppm", "-"]);
    let (running, stdout) = Running::start(command, limits.max_video_work_s)?;
    let times = wanted.into_iter().map(|i| starts[i as usize]).collect::<Vec<f64>>();
    let limits = limits.clone();
    Ok(Video::new(Decoded { running, stdout: BufReader::new(stdout), times, next: 0, limits }))
}

/// Frames as they come from the pipe.
struct Decoded {
    running: Running,
    stdout: BufReader<ChildStdout>,
    times: Vec<f64>,
    next: usize,
    limits: Limits,
}

impl Iterator for Decoded {
    type Item = Result<Frame>;

    fn next(&mut self) -> Option<Self::Item> {
        let seconds = *self.times.get(self.next)?;
        self.next += 1;
        let wrong = match ppm::read(&mut self.stdout, &self.limits) {
            Ok(Some(image)) => return Some(Ok(Frame { seconds, image })),
            // Some frames of a damaged video are better than none.
            Ok(None) if self.next > 1 => self.running.in_time().err(),
            Ok(None) => Some(self.running.finish().err().unwrap_or(Error::NoFrames)),
            Err(e) => Some(self.running.in_time().err().unwrap_or(e)),
        };
        self.next = self.times.len();
        wrong.map(Err)
    }
}

/// What both runs begin with.
fn reading(program: &Path, file: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["-nostdin", "-hide_banner", "-loglevel", "error"]);
    command.args(["-protocol_whitelist", "file,pipe", "-format_whitelist", CONTAINERS]);
    // The prefix keeps a name like `-x` or `http:x` a name.
    let mut named = std::ffi::OsString::from("file:");
    named.push(file);
    command.arg("-i").arg(named).args(["-map", "0:v:0"]);
    command
}

#[cfg(test)]
mod tests {
    use super::{Listing, parse_list};

    #[test]
    fn a_list_is_sorted_by_time_and_begins_at_nought() {
        let text = "#tb 0: 1/12800\n#dimensions 0: 160x120\n\
                    0, -512, 1024, 512, 2715, 0x4c2fdec0\n0, 0, 2048, 512, 1, 0x1, F=0x0\n\
                    0, 512, 1536, 512, 1, 0x1\nnonsense\n0, x, y\n";
        let listing = parse_list(text.as_bytes()).unwrap();
        assert_eq!(listing, Listing { starts: vec![0.0, 0.04, 0.08], size: Some((160, 120)) });
    }

    #[test]
    fn a_list_without_lines_is_empty() {
        let endless = vec![b'7'; 1 << 16];
        for text in [b"".as_slice(), b"#tb 0: 1/0\n", b"#tb 0: a/b\n", &endless] {
            assert!(parse_list(text).unwrap().starts.is_empty());
        }
    }
}
