//! Videos: which frames, when, and what they show.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lapidary_media::{Error, Frame, Image, Limits, Video, sampled, time_stamp};
use lapidary_program::VideoSpec;

use crate::reference::{Reference, bytes, differences};
use crate::specs;

#[test]
fn frames_are_sampled_as_the_processor_samples_them() {
    let reference = Reference::open("patches.safetensors");
    let totals = reference.i32("video.totals");
    for (total, picked) in totals.iter().zip(reference.i32("video.picked").chunks_exact(32)) {
        let made: Vec<i32> = sampled(*total as u64, 32).iter().map(|i| *i as i32).collect();
        assert_eq!(made, picked, "{total} frames");
    }
    assert_eq!(sampled(3, 32), [0, 1, 2]);
    assert!(sampled(0, 32).is_empty() && sampled(5, 0).is_empty());
    assert_eq!(sampled(u64::MAX, 2), [0, u64::MAX / 2]);
}

#[test]
fn times_are_minutes_and_seconds() {
    for (seconds, text) in [
        (0.0, "00:00"),
        (0.999, "00:00"),
        (59.99, "00:59"),
        (60.0, "01:00"),
        (6000.5, "100:00"),
        (-3.0, "00:00"),
        (f64::NAN, "00:00"),
    ] {
        assert_eq!(time_stamp(seconds), text);
    }
}

#[test]
fn a_video_has_the_times_and_levels_of_the_processor() {
    let reference = Reference::open("patches.safetensors");
    let [n, height, width, 3] = reference.shape("video.film")[..] else { panic!() };
    let video = reference.u8("video.film");
    let folder = tempfile::tempdir().unwrap();
    for (i, frame) in video.chunks_exact(video.len() / n).enumerate() {
        write_bmp(&folder.path().join(format!("{i}.bmp")), width as u32, height as u32, frame);
    }
    let limits = Limits::default();
    let made = Video::from_folder(folder.path(), Some(5.0), 32, &limits).unwrap();
    let made = made.patches(&specs::budget(), &specs::video()).unwrap();
    let times: Vec<&str> = made.iter().map(|frame| frame.time.as_str()).collect();
    let expected = String::from_utf8(reference.u8("video.times")).unwrap();
    assert_eq!(times.join(" "), expected);
    let wanted = reference.i32("video.patches");
    let levels = reference.u8("video.levels");
    for (frame, levels) in made.iter().zip(levels.chunks_exact(levels.len() / 32)) {
        assert_eq!(frame.patches.n_soft as i32, reference.i32("video.n_soft")[0]);
        let rows = frame.patches.row_major();
        let numbers = wanted.iter().flat_map(|i| &rows.data[*i as usize * 768..][..768]);
        assert!(numbers.map(|n| (n * 255.0).round() as u8).eq(levels.iter().copied()));
    }
}

/// 24 bits, rows from the bottom.
fn write_bmp(path: &Path, width: u32, height: u32, rgb: &[u8]) {
    let mut file = b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
    file.extend(width.to_le_bytes());
    file.extend(height.to_le_bytes());
    file.extend([1, 0, 24, 0]);
    file.extend([0; 24]);
    for row in rgb.chunks_exact(width as usize * 3).rev() {
        row.chunks_exact(3).for_each(|pixel| file.extend([pixel[2], pixel[1], pixel[0]]));
        file.resize(file.len().next_multiple_of(4) + 2, 0);
        file.truncate((file.len() - 54) / 4 * 4 + 54);
    }
    std::fs::write(path, file).unwrap();
}

#[test]
fn animations_are_decoded_frame_by_frame() {
    let reference = Reference::open("pictures.safetensors");
    for name in ["film.gif", "film.webp"] {
        let file = bytes(&format!("pictures/{name}"));
        let key = format!("frames.{name}");
        let [n, height, width, 3] = reference.shape(&key)[..] else { panic!() };
        let all = reference.u8(&key);
        let begins = reference.i32(&format!("ms.{name}"));
        for max in [1, 7, 32, 1000] {
            let video = Video::from_animation(&file, max, &Limits::default()).unwrap();
            let made = video.collect::<Result<Vec<Frame>, Error>>().unwrap();
            let wanted = sampled(n as u64, max);
            assert_eq!(made.len(), wanted.len(), "{name}");
            for (frame, i) in made.iter().zip(wanted) {
                let i = i as usize;
                let expected = &all[i * width * height * 3..][..width * height * 3];
                assert_eq!(differences(frame.image.data(), expected).0, 0, "{name} {i}");
                assert_eq!(frame.seconds, f64::from(begins[i]) / 1000.0, "{name} {i}");
            }
        }
    }
}

#[test]
fn a_still_image_is_a_video_of_one_frame() {
    for name in ["lossless.webp", "still.gif"] {
        let file = bytes(&format!("pictures/{name}"));
        let video = Video::from_animation(&file, 32, &Limits::default()).unwrap();
        let frames = video.collect::<Result<Vec<Frame>, Error>>().unwrap();
        let image = Image::decode(&file, &Limits::default()).unwrap();
        assert_eq!(frames, [Frame { seconds: 0.0, image }], "{name}");
    }
}

#[test]
fn what_is_no_animation_is_refused() {
    let limits = Limits::default();
    let refused = |file: &[u8]| Video::from_animation(file, 32, &limits).err().unwrap();
    assert!(matches!(refused(b""), Error::Empty { what: "video" }));
    assert!(matches!(refused(&bytes("pictures/rgb.png")), Error::Unread { .. }));
    assert!(matches!(refused(b"GIF89a"), Error::CutShort { .. }));
}

#[test]
fn an_animation_with_too_much_work_in_it_is_refused_at_once() {
    let file = bytes("pictures/film.gif");
    let limits = Limits { max_video_pixels: 40 * 24 * 16 - 1, ..Limits::default() };
    let refused = Video::from_animation(&file, 2, &limits).err();
    assert!(matches!(refused, Some(Error::VideoSize { frames: 40, pixels: 384, .. })));
    // A million frames that say nothing, on a canvas of 36 million pixels.
    let mut bomb = b"GIF89a\x70\x17\x70\x17\0\0\0".to_vec();
    for _ in 0..1_000_000 {
        bomb.extend(b"\x2c\0\0\0\0\x01\0\x01\0\0\x02\x02\x44\x01\0");
    }
    bomb.push(0x3b);
    let timed = || {
        let start = Instant::now();
        let refused = Video::from_animation(&bomb, 32, &Limits::default()).err();
        assert!(matches!(refused, Some(Error::VideoSize { frames: 1_000_000, .. })));
        start.elapsed()
    };
    // The quickest of three: a machine that does something else for a moment is no fault of ours.
    assert!([timed(), timed(), timed()].into_iter().min().unwrap() < Duration::from_secs(2));
}

#[test]
fn a_folder_without_images_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "x").unwrap();
    let limits = Limits::default();
    let none = Video::from_folder(folder.path(), None, 32, &limits).err();
    assert!(matches!(none, Some(Error::NoFrames)));
    std::fs::write(folder.path().join("1.png"), "x").unwrap();
    let video = Video::from_folder(folder.path(), None, 32, &limits).unwrap();
    assert!(video.patches(&specs::budget(), &specs::video()).is_err());
    let absent = Video::from_folder(&folder.path().join("absent"), None, 32, &limits).err();
    assert!(matches!(absent, Some(Error::Io(_))));
    assert_eq!(absent.unwrap().to_string(), "the video can't be read");
}

#[test]
fn images_of_a_folder_are_24_in_a_second_unless_told() {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..60 {
        std::fs::copy(
            crate::reference::path("pictures/one_pixel.png"),
            folder.path().join(format!("frame{i}.PNG")),
        )
        .unwrap();
    }
    let video = Video::from_folder(folder.path(), None, 5, &Limits::default()).unwrap();
    let seconds: Vec<f64> = video.map(|frame| frame.unwrap().seconds).collect();
    assert_eq!(seconds, [0.0, 0.5, 1.0, 1.5, 2.0]);
    let spec = VideoSpec { budget: 1, ..specs::video() };
    let video = Video::from_folder(folder.path(), None, 5, &Limits::default()).unwrap();
    let made = video.patches(&specs::budget(), &spec).unwrap();
    assert!(made.iter().all(|frame| frame.patches.n_soft == 1));
}

/// A program in the place of `ffmpeg`.
#[cfg(unix)]
fn fake(folder: &Path, script: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("fake");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Lists four frames of 2×1 pixels, then gives two of them.
#[cfg(unix)]
const WORKS: &str = r#"case "$*" in
*framecrc*) printf '#tb 0: 1/10\n#dimensions 0: 2x1\n'
  for t in 600 605 620 610; do echo "0, 0, $t, 1, 1, 0x0"; done ;;
*"select='eq(n,0)+eq(n,2)'"*) printf 'P6\n2 1\n255\nabcdefP6\n2 1\n255\nghijkl' ;;
*) exit 9 ;;
esac"#;

#[cfg(unix)]
#[test]
fn the_other_program_is_asked_twice_and_read_frame_by_frame() {
    let folder = tempfile::tempdir().unwrap();
    let program = fake(folder.path(), WORKS);
    let file = folder.path().join("-x.mp4");
    let video = Video::from_file(&file, Some(&program), 2, &Limits::default()).unwrap();
    let frames = video.collect::<Result<Vec<Frame>, Error>>().unwrap();
    let seen: Vec<(f64, &[u8])> = frames.iter().map(|f| (f.seconds, f.image.data())).collect();
    assert_eq!(seen, [(0.0, b"abcdef".as_slice()), (1.0, b"ghijkl")]);
}

#[cfg(unix)]
#[test]
fn the_other_program_may_fail_hang_or_lie() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { max_video_work_s: 1, ..Limits::default() };
    let file = folder.path().join("secret.mp4");
    let video = |script: &str| -> Result<Vec<Frame>, Error> {
        let program = fake(folder.path(), script);
        Video::from_file(&file, Some(&program), 2, &limits)?.collect()
    };
    let failed = video("echo \"file:$9: /x/secret: Invalid data found\" >&2; exit 1").unwrap_err();
    assert_eq!(failed.to_string(), "ffmpeg can't read the video: Invalid data found");
    let start = Instant::now();
    let hung = video("exec sleep 60").unwrap_err();
    assert!(matches!(hung, Error::VideoTime { max_s: 1 }), "{hung:?}");
    assert!(start.elapsed() < Duration::from_secs(20));
    let empty = video("exit 0").unwrap_err();
    assert!(matches!(empty, Error::NoFrames), "{empty:?}");
    let list = "case \"$*\" in *framecrc*) printf '#tb 0: 1/1\\n0,0,0,0\\n'; exit;; esac;";
    let huge = video(&format!("{list} printf 'P6\\n60000 60000\\n255\\n'; cat /dev/zero"));
    assert!(matches!(huge, Err(Error::ImageSize { .. })), "{huge:?}");
    let cut = video(&format!("{list} printf 'P6\\n2 2\\n255\\nabc'"));
    assert!(matches!(cut, Err(Error::CutShort { .. })), "{cut:?}");
    let large = video("printf '#dimensions 0: 90000x90000\\n0,0,0,0\\n'");
    assert!(matches!(large, Err(Error::ImageSize { .. })), "{large:?}");
}

#[test]
fn the_absence_of_the_other_program_is_said() {
    let absent = Path::new("lapidary-no-such-program");
    let error = Video::from_file(absent, Some(absent), 2, &Limits::default()).err().unwrap();
    assert!(matches!(error, Error::NoFfmpeg));
    assert!(error.to_string().contains("not on the PATH"));
}

/// Where it is installed, the true program.
#[test]
fn the_true_program_decodes_a_video() {
    let program = std::env::var_os("LAPIDARY_FFMPEG").unwrap_or("ffmpeg".into());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("video.mkv");
    let source = "testsrc=size=64x48:rate=25:duration=4";
    let mut command = std::process::Command::new(&program);
    command.args(["-loglevel", "error", "-f", "lavfi", "-i", source, "-c:v", "ffv1"]);
    let made = command.arg("-pix_fmt").arg("bgr0").arg(&file).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: there is no ffmpeg here that makes test videos");
        assert!(!file.exists());
        return;
    }
    let program = PathBuf::from(program);
    let limits = Limits::default();
    let video = Video::from_file(&file, Some(&program), 8, &limits).unwrap();
    let frames = video.collect::<Result<Vec<Frame>, Error>>().unwrap();
    let seconds: Vec<f64> = frames.iter().map(|f| (f.seconds * 100.0).round() / 100.0).collect();
    assert_eq!(seconds, [0.0, 0.48, 1.0, 1.48, 2.0, 2.48, 3.0, 3.48]);
    assert!(frames.iter().all(|f| (f.image.width(), f.image.height()) == (64, 48)));
    assert!(frames.windows(2).all(|pair| pair[0].image != pair[1].image));
    let text = folder.path().join("text.mp4");
    std::fs::write(&text, "not a video").unwrap();
    let refused = Video::from_file(&text, Some(&program), 8, &limits).err().unwrap();
    assert!(matches!(&refused, Error::Ffmpeg { detail } if !detail.contains('/')), "{refused}");
}
