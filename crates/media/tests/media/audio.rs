//! Audio: decoding, resampling, frames.

use lapidary_media::{Audio, Error, Limits, frames, resample};
use lapidary_program::{AudioFrames, AudioSpec};

use crate::reference::{Reference, bytes};
use crate::specs;

/// The same as `tone` of `make_media.py`.
fn tone(n: usize) -> Audio {
    let at = |i: u64| ((i * i * 7 / 64 + i * 13) % 4001) as f32 - 2000.0;
    let samples = (0..n as u64).map(|i| at(i) / 4096.0).collect();
    Audio::from_samples(16_000, samples).unwrap()
}

/// The size of the difference beside the size of the audio, in decibels.
fn noise_db(made: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(made.len(), expected.len());
    let power = |n: f64| n * n;
    let noise: f64 = made.iter().zip(expected).map(|(a, b)| power((a - b).into())).sum();
    let audio: f64 = expected.iter().map(|b| power(f64::from(*b))).sum();
    10.0 * (noise / audio).max(1e-30).log10()
}

#[test]
fn every_kind_of_audio_is_decoded() {
    let reference = Reference::open("sound.safetensors");
    let names = reference.names();
    let files: Vec<&str> = names.iter().filter_map(|n| n.strip_prefix("decoded.")).collect();
    assert_eq!(files.len(), 13);
    for name in files {
        let audio = Audio::decode(&bytes(&format!("sounds/{name}")), &Limits::default());
        let audio = audio.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert_eq!(audio.rate() as i32, reference.i32(&format!("rate.{name}"))[0], "{name}");
        let noise = noise_db(audio.samples(), &reference.f32(&format!("decoded.{name}")));
        assert!(noise < -100.0, "{name}: {noise:.1} dB");
    }
}

#[test]
fn a_cover_before_the_audio_is_passed_over() {
    let file = bytes("sounds/stereo.mp3");
    let bare = Audio::decode(&file, &Limits::default()).unwrap();
    for len in [10u32, 100_000, 3 << 20] {
        // The length of a tag is written in four times seven bits.
        let size = [21, 14, 7, 0].map(|shift| (len >> shift & 0x7f) as u8);
        let mut tagged = [b"ID3\x04\0\0".as_slice(), &size].concat();
        tagged.resize(tagged.len() + len as usize, 0);
        tagged.extend(&file);
        assert_eq!(Audio::decode(&tagged, &Limits::default()).unwrap(), bare, "{len}");
    }
}

#[test]
fn mel_spectra_and_counts_are_those_of_the_feature_extractor() {
    let reference = Reference::open("sound.safetensors");
    for row in reference.i32("counts.mel").chunks_exact(3) {
        let n = row[0] as usize;
        let made = frames(&tone(n), &specs::mel()).unwrap();
        let counts = (made.n_frames as i32, made.n_soft as i32);
        assert_eq!(counts, (row[1], row[2]), "{n} samples");
        assert_eq!(made.is_cut, n > 480_000);
        assert!(made.n_soft <= 750 && made.data.len() == made.n_frames * 128);
    }
    for n in [161, 1281, 15_321, 600_000] {
        let made = frames(&tone(n), &specs::mel()).unwrap();
        let rows = reference.i32(&format!("mel.{n}.rows"));
        let expected = reference.f32(&format!("mel.{n}"));
        for (row, expected) in rows.iter().zip(expected.chunks_exact(128)) {
            let made = &made.data[*row as usize * 128..][..128];
            let most = made.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(most < 1e-4, "frame {row} of {n} samples: {most}");
        }
    }
}

#[test]
fn raw_frames_and_counts_are_those_of_the_feature_extractor() {
    let reference = Reference::open("sound.safetensors");
    for row in reference.i32("counts.raw").chunks_exact(3) {
        let made = frames(&tone(row[0] as usize), &specs::raw()).unwrap();
        assert_eq!((made.n_frames as i32, made.n_soft as i32), (row[1], row[2]));
        assert_eq!(made.data.len(), made.n_frames * 640);
    }
    for n in [641, 15_321] {
        let made = frames(&tone(n), &specs::raw()).unwrap();
        assert_eq!(made.data[(made.n_frames - 2) * 640..], reference.f32(&format!("raw.{n}")));
    }
}

#[test]
fn audio_shorter_than_a_frame_is_an_error() {
    for n in [0, 1, 160] {
        let made = frames(&tone(n), &specs::mel());
        let want = |e: &Error| matches!(e, Error::AudioShort { rate: 16_000, min: 161, .. });
        assert!(made.as_ref().is_err_and(want), "{made:?}");
    }
    assert!(matches!(frames(&tone(0), &specs::raw()), Err(Error::AudioShort { .. })));
}

#[test]
fn resampling_agrees_with_a_kept_resampler() {
    let reference = Reference::open("sound.safetensors");
    for rate in [8_000, 22_050, 44_100, 48_000] {
        let source = reference.f32(&format!("resampled.{rate}.from"));
        let made = resample(&Audio::from_samples(rate, source).unwrap(), 16_000);
        let expected = reference.f32(&format!("resampled.{rate}"));
        assert_eq!(made.samples().len(), expected.len(), "{rate}");
        // The ends, where the audio stops in full swing, depend on the length of the filter.
        let inner = 200..expected.len() - 200;
        let noise = noise_db(&made.samples()[inner.clone()], &expected[inner]);
        assert!(noise < -120.0, "{rate}: {noise:.1} dB");
    }
}

#[test]
fn a_sine_stays_a_sine_at_any_pair_of_rates() {
    let sine = |rate: u32, n: usize| -> Vec<f32> {
        let at = |i: usize| std::f64::consts::TAU * 700.0 * i as f64 / f64::from(rate);
        (0..n).map(|i| (0.5 * at(i).sin()) as f32).collect()
    };
    // The last two have more phases than are kept.
    for (from, to) in
        [(8_000, 16_000), (48_000, 16_000), (44_100, 16_000), (44_101, 16_000), (9_973, 16_001)]
    {
        let n = 12_345;
        let made = resample(&Audio::from_samples(from, sine(from, n)).unwrap(), to);
        let len = (n as f64 * f64::from(to) / f64::from(from)).round() as usize;
        assert_eq!(made.samples().len(), len, "{from} to {to}");
        let expected = sine(to, len);
        let inner = 400..len - 400;
        let noise = noise_db(&made.samples()[inner.clone()], &expected[inner]);
        assert!(noise < -130.0, "{from} to {to}: {noise:.1} dB");
    }
}

#[test]
fn what_the_lower_rate_cannot_hold_is_cut_off() {
    let high = |i: usize| (std::f64::consts::TAU * 9_000.0 * i as f64 / 48_000.0).sin() as f32;
    let audio = Audio::from_samples(48_000, (0..48_000).map(high).collect()).unwrap();
    let made = resample(&audio, 16_000);
    let most = made.samples()[400..15_600].iter().fold(0.0f32, |most, s| most.max(s.abs()));
    assert!(most < 1e-5, "{most}");
}

#[test]
fn resampling_to_the_same_rate_changes_nothing() {
    let audio = tone(100);
    assert_eq!(resample(&audio, 16_000), audio);
    assert!(resample(&tone(0), 44_100).samples().is_empty());
}

#[test]
fn frames_of_another_rate_are_those_of_the_resampled_audio() {
    let spec = AudioSpec { max_samples: 5_000, ..specs::mel() };
    let audio = Audio::from_samples(44_100, tone(40_000).samples().to_vec()).unwrap();
    let all = resample(&audio, 16_000);
    let heard = Audio::from_samples(16_000, all.samples()[..5_000].to_vec()).unwrap();
    let made = frames(&audio, &spec).unwrap();
    assert_eq!(made.data, frames(&heard, &spec).unwrap().data);
    assert!(made.is_cut);
}

#[test]
fn samples_that_no_audio_has_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, -1e30] {
        let refused = Audio::from_samples(16_000, vec![0.0, bad, 0.0]);
        assert!(matches!(refused, Err(Error::Sample { index: 1, .. })));
    }
    for rate in [0, 1, 1 << 31] {
        assert!(matches!(Audio::from_samples(rate, vec![]), Err(Error::SampleRate { .. })));
    }
}

#[test]
fn a_description_of_nothing_is_an_error_and_no_panic() {
    let AudioFrames::LogMel(mel) = specs::mel().frames else { panic!() };
    for wrong in [
        lapidary_program::LogMel { fft: 0, ..mel.clone() },
        lapidary_program::LogMel { n_mels: 0, ..mel.clone() },
        lapidary_program::LogMel { window: 600, ..mel.clone() },
        lapidary_program::LogMel { hop: 1, fft: 65_535, n_mels: 200, ..mel.clone() },
        lapidary_program::LogMel { fft: 65_535, n_mels: 65_535, ..mel.clone() },
        lapidary_program::LogMel { hop: 0, ..mel },
    ] {
        let spec = AudioSpec { frames: AudioFrames::LogMel(wrong), ..specs::mel() };
        assert!(matches!(frames(&tone(16_000), &spec), Err(Error::Spec { .. })));
    }
    for sample_rate in [0, 1, u32::MAX] {
        let spec = AudioSpec { sample_rate, ..specs::raw() };
        assert!(matches!(frames(&tone(10), &spec), Err(Error::Spec { .. })));
    }
    let spec = AudioSpec { frames: AudioFrames::Raw { len: 0 }, stride: 0, ..specs::raw() };
    assert_eq!(frames(&tone(10), &spec).unwrap().n_soft, 10);
}
