//! Files that want too much, or are not what they say: each is refused with a sentence, in bounded
//! memory and time.
#![allow(unsafe_code)]

mod forged;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lapidary_media::{Audio, Error, Image, Limits, Video};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn took(n: usize) {
    let live = LIVE.fetch_add(n, Ordering::Relaxed) + n;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; counting has no effect on memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the system's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, which is the system's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tests take turns, so that each is charged for its own memory.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a body gives, if it took at most so much memory and a few seconds.
fn bounded<T>(name: &str, max_bytes: usize, body: impl FnOnce() -> T) -> T {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let start = Instant::now();
    let made = body();
    let took = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    let time = start.elapsed();
    assert!(took <= max_bytes, "{name} took {took} bytes");
    // Other tests share the cores; what is bounded is far from minutes.
    assert!(time < Duration::from_secs(10), "{name} took {time:?}");
    made
}

/// What is refused at sight costs next to nothing.
const NOTHING: usize = 1 << 20;

fn refused(name: &str, file: &[u8]) -> Error {
    // Decoders copy the file.
    let room = NOTHING + 2 * file.len();
    let image = bounded(name, room, || Image::decode(file, &Limits::default()));
    let error = image.err().unwrap_or_else(|| panic!("{name} was decoded"));
    let text = error.to_string();
    assert!(!text.contains('/') && !text.contains("0x"), "{text}");
    error
}

#[test]
fn what_is_no_image_is_named() {
    let _turn = turn();
    let cases: [(&[u8], &str); 14] = [
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG drawing"),
        (b"<?xml version='1.0'?>\n<svg width='9'/>", "an SVG drawing"),
        (b"\n<!DOCTYPE html><html>", "a web page (HTML)"),
        (b"{\"error\": 1}", "XML or JSON text"),
        (b"data:image/png;base64,iVBORw0KGgo=", "a data URI that was not decoded"),
        (b"aGVsbG8=", "plain text"),
        (b"%PDF-1.7", "a PDF document"),
        (b"\0\0\0\x18ftypheic", "a HEIC photo"),
        (b"\0\0\0\x18ftypisom", "an MP4 or MOV video"),
        (b"RIFF\0\0\0\0WAVEfmt ", "a WAV audio file"),
        (b"II*\0\x08", "a TIFF image"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer, not the file itself"),
        (b"\0\xfe\xff\x80", "nothing that is known here"),
        (b"\x89", "nothing that is known here"),
    ];
    for (file, name) in cases {
        let error = refused(name, file);
        assert!(matches!(error, Error::Unread { looks_like, .. } if looks_like == name), "{error}");
        assert!(error.to_string().ends_with("give a PNG, JPEG, WebP, GIF or BMP file"));
    }
    assert_eq!(refused("nothing", b"").to_string(), "the image is empty: it has no bytes");
}

#[test]
fn headers_that_claim_too_many_pixels_are_refused_unread() {
    let _turn = turn();
    let cases = [
        ("png", forged::png_header(65_535, 65_535)),
        ("png wide", forged::png_header(65_536, 1)),
        ("png most", forged::png_header(u32::MAX >> 1, u32::MAX >> 1)),
        ("jpeg", forged::jpeg_header(0xc0, 65_500, 65_500)),
        ("jpeg progressive", forged::jpeg_header(0xc2, 8_000, 8_000)),
        ("gif", forged::gif_header(65_535, 65_535)),
        ("bmp", forged::bmp_header(65_535, 65_535)),
        ("bmp upside down", forged::bmp_header(65_535, -65_535)),
        ("webp canvas", forged::webp_canvas(1 << 24, 1 << 24, &[])),
        ("webp lossless", forged::webp_lossless(16_384, 16_384)),
        ("webp hidden", forged::webp_canvas(1, 1, &forged::vp8_chunk(16_383, 16_383))),
    ];
    for (name, file) in cases {
        let error = refused(name, &file);
        assert!(matches!(error, Error::ImageSize { .. }), "{name}: {error:?}");
    }
}

#[test]
fn headers_that_claim_nothing_or_nonsense_are_refused() {
    let _turn = turn();
    for (name, file) in [
        ("png", forged::png_header(0, 5)),
        ("png signature", b"\x89PNG\r\n\x1a\n".to_vec()),
        ("jpeg", forged::jpeg_header(0xc0, 0, 9)),
        ("jpeg marker", b"\xff\xd8\xff\xe0".to_vec()),
        ("gif", forged::gif_header(0, 0)),
        ("bmp", forged::bmp_header(0, 0)),
        ("bmp most negative", forged::bmp_header(i32::MIN, i32::MIN)),
        ("bmp letters", b"BM".to_vec()),
        ("webp", b"RIFF\xff\xff\xff\xffWEBP".to_vec()),
        ("webp without images", forged::webp_canvas(5, 5, &[])),
    ] {
        refused(name, &file);
    }
}

#[test]
fn a_frame_larger_than_its_canvas_is_refused() {
    let _turn = turn();
    let mut file = forged::gif_header(1, 1);
    file.extend(b"\x2c\0\0\0\0\xff\xff\xff\xff\0\x02\x02\x44\x01\0\x3b");
    let error = refused("gif", &file);
    assert!(matches!(error, Error::ImageMemory { .. } | Error::Image { .. }), "{error:?}");
    let video =
        bounded("video", NOTHING, || Video::from_animation(&file, 9, &Limits::default()).err());
    assert!(matches!(video, Some(Error::ImageSize { .. })), "{video:?}");
}

#[test]
fn data_that_unpacks_to_a_gigabyte_is_not_unpacked() {
    let _turn = turn();
    // Its colour profile, then its pixels.
    let profile = forged::png(9, 9, &forged::zeros(1 << 30), Some(&forged::zeros(1 << 30)));
    let pixels = forged::png(9, 9, &forged::zeros(1 << 30), None);
    for (name, file) in [("profile", profile), ("pixels", pixels)] {
        let room = 16 << 20;
        let image = bounded(name, room, || Image::decode(&file, &Limits::default()));
        if let Ok(image) = image {
            assert_eq!(image.data(), [0; 9 * 9 * 3], "{name}");
        }
    }
}

#[test]
fn small_files_of_the_largest_images_take_bounded_memory() {
    let _turn = turn();
    let (width, height) = (7_000, 7_000);
    let pixels = (width as usize) * (height as usize);
    let rows = forged::zeros((width as usize + 1) * height as usize);
    let file = forged::png(width, height, &rows, None);
    assert!(file.len() < 1 << 20);
    let room = 5 * pixels;
    let image = bounded("png", room, || Image::decode(&file, &Limits::default()).unwrap());
    assert_eq!((image.width(), image.height()), (width, height));
    // No coded data at all: a decoder keeps coefficients of all colours until the end.
    let mut file = forged::jpeg_header(0xc2, width as u16, height as u16);
    file.extend(b"\xff\xd9");
    bounded("jpeg", 10 * pixels, || drop(Image::decode(&file, &Limits::default())));
}

#[test]
fn a_small_file_that_goes_through_a_large_image_again_and_again_is_refused() {
    let _turn = turn();
    for (side, passes) in [(7_000, 20), (100, 100)] {
        let mut file = forged::jpeg_header(0xc2, side, side);
        for _ in 1..passes {
            file.extend([0; 64]);
            file.extend([0xff, 0xda, 0, 12, 3, 1, 0, 2, 0, 3, 0, 0, 0, 0]);
        }
        file.extend(b"\xff\xd9");
        let error = refused("passes", &file);
        assert!(matches!(error, Error::ImagePasses { passes: n } if n == passes), "{error:?}");
    }
}

#[test]
fn the_longest_line_is_an_image() {
    let _turn = turn();
    let rows = forged::zeros(2 * 65_535);
    let file = forged::png(1, 65_535, &rows, None);
    let image = bounded("line", NOTHING, || Image::decode(&file, &Limits::default()).unwrap());
    assert_eq!((image.width(), image.height()), (1, 65_535));
}

fn unheard(name: &str, file: &[u8]) -> Error {
    // The reader has a buffer; a decoder has tables.
    let room = 4 * NOTHING + 2 * file.len();
    let audio = bounded(name, room, || Audio::decode(file, &Limits::default()));
    let error = audio.err().unwrap_or_else(|| panic!("{name} was decoded"));
    let text = error.to_string();
    assert!(!text.contains('/') && !text.contains("0x"), "{text}");
    error
}

#[test]
fn what_is_no_audio_is_named() {
    let _turn = turn();
    for (file, name) in [
        (b"<html><body>404</body></html>".repeat(40), "a web page (HTML)"),
        (b"\x89PNG\r\n\x1a\n".repeat(40), "a PNG image"),
        (b"aGVsbG8=".repeat(40), "plain text"),
        (b"%PDF-1.7\n".repeat(40), "a PDF document"),
    ] {
        let error = unheard(name, &file);
        assert!(
            matches!(error, Error::Unread { looks_like, .. } if looks_like == name),
            "{error:?}"
        );
    }
    assert_eq!(unheard("nothing", b"").to_string(), "the audio is empty: it has no bytes");
    unheard("a letter", b"R");
}

#[test]
fn audio_of_nothing_and_of_no_number_is_refused() {
    let _turn = turn();
    let none = forged::wav(3, 1, 16_000, 32, &[]);
    assert!(matches!(unheard("0 samples", &none), Error::NoAudio | Error::Audio(_)));
    for bad in [f32::NAN, f32::INFINITY, 1e20] {
        let samples = [0.5, bad, 0.5].map(f32::to_le_bytes).concat();
        let error = unheard("NaN", &forged::wav(3, 1, 16_000, 32, &samples));
        assert!(matches!(error, Error::Sample { index: 1, .. }), "{error:?}");
    }
}

#[test]
fn forged_headers_of_audio_are_refused() {
    let _turn = turn();
    let samples = [7; 4000];
    for rate in [0, 1, 1 << 31, u32::MAX] {
        let error = unheard("rate", &forged::wav(1, 1, rate, 16, &samples));
        assert!(matches!(error, Error::SampleRate { .. } | Error::Audio(_)), "{error:?}");
    }
    for (name, channels, bits) in [("no channel", 0, 16), ("no bits", 1, 0), ("3000 bits", 1, 3000)]
    {
        unheard(name, &forged::wav(1, channels, 16_000, bits, &samples));
    }
    unheard("unknown coding", &forged::wav(0x1234, 1, 16_000, 16, &samples));
    let mut day = forged::flac_header(48_000, 48_000 * 36_000);
    day.extend(forged::flac_frame(0));
    assert!(matches!(unheard("10 hours", &day), Error::AudioLength { .. }));
}

#[test]
fn a_chunk_longer_than_its_file_ends_with_it() {
    let _turn = turn();
    let whole = forged::wav(1, 1, 16_000, 16, &[1; 32_000]);
    // Programs that write into a pipe claim the most of both.
    let mut file = whole.clone();
    file[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    file[40..44].copy_from_slice(&u32::MAX.to_le_bytes());
    let audio = bounded("pipe", 4 * NOTHING, || Audio::decode(&file, &Limits::default()).unwrap());
    assert!(audio.samples().len() > 14_000 && audio.samples().len() <= 16_000);
    for claimed in [33_000u32, 0x7fff_ffff, 0xffff_fffe, 0xffff_ffff] {
        let mut file = whole.clone();
        file[40..44].copy_from_slice(&claimed.to_le_bytes());
        let error = unheard("chunk", &file);
        assert!(matches!(error, Error::Audio(_)), "{error:?}");
    }
    for len in 0..60 {
        let cut = bounded("cut", 4 * NOTHING, || Audio::decode(&whole[..len], &Limits::default()));
        assert!(cut.is_err() || len > 44, "{len}");
    }
}

#[test]
fn ten_hours_in_a_small_file_are_stopped_at_the_limit() {
    let _turn = turn();
    // Every frame of this holds 65,535 times the same sample; the header doesn't say how many.
    let mut file = forged::flac_header(48_000, 0);
    for i in 0..(36_000 * 48_000 / 65_535) {
        file.extend(forged::flac_frame(i));
    }
    assert!(file.len() < 1 << 20);
    let audio = bounded("flac", 400 << 20, || Audio::decode(&file, &Limits::default()));
    assert!(matches!(audio, Err(Error::AudioLength { max_s: 600, .. })), "{audio:?}");
    let short = Limits { max_audio_s: 1, ..Limits::default() };
    let audio = bounded("flac", 8 << 20, || Audio::decode(&file, &short));
    assert!(matches!(audio, Err(Error::AudioLength { max_s: 1, .. })));
    let little = Limits { max_pcm_bytes: 1 << 20, ..Limits::default() };
    let audio = bounded("flac", 8 << 20, || Audio::decode(&file, &little));
    assert!(matches!(audio, Err(Error::AudioLength { max_bytes: 0x10_0000, .. })));
}

#[test]
fn the_frames_of_the_forged_audio_are_audio() {
    let _turn = turn();
    let mut file = forged::flac_header(48_000, 0);
    (0..3).for_each(|i| file.extend(forged::flac_frame(i)));
    let audio = Audio::decode(&file, &Limits::default()).unwrap();
    assert_eq!(audio.samples().len(), 3 * 65_535);
    assert!(audio.samples().iter().all(|sample| *sample == 0.25));
}
