//! Files of audio to samples.

use std::io::Cursor;
use std::ops::RangeInclusive;

use symphonia::core::audio::GenericAudioBufferRef;
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::codecs::CodecParameters;
use symphonia::core::errors::Error as Said;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::well_known::FORMAT_ID_WAVE;
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::{MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;

use crate::error::{Error, Result};
use crate::guard::guarded;
use crate::limits::Limits;
use crate::sniff;

/// No recorder makes fewer samples in a second, nor more.
pub(crate) const RATES: RangeInclusive<u32> = 2_000..=768_000;
/// Samples lie in −1…1; some programs write floats on the scale of 16-bit integers.
const MAX_SAMPLE: f32 = 65_536.0;

/// Audio of one channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Audio {
    rate: u32,
    samples: Vec<f32>,
}

impl Audio {
    /// Decodes a WAV, FLAC, MP3 or OGG (Vorbis) file; channels are averaged.
    ///
    /// The format is found by content. Packets that are damaged are passed over, as players do.
    pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Audio> {
        guarded("audio", || decode(bytes, limits))
    }

    /// Audio from its samples; all must be numbers that audio can have.
    pub fn from_samples(rate: u32, samples: Vec<f32>) -> Result<Audio> {
        check_rate(rate)?;
        check_samples(&samples, 0)?;
        Ok(Audio { rate, samples })
    }

    /// Samples in a second.
    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// Samples, mostly in −1…1.
    pub fn samples(&self) -> &[f32] {
        &self.samples
    }

    /// How long it is.
    pub fn seconds(&self) -> f64 {
        f64::from(u32::try_from(self.samples.len()).unwrap_or(u32::MAX)) / f64::from(self.rate)
    }

    pub(crate) fn from_parts(rate: u32, samples: Vec<f32>) -> Audio {
        Audio { rate, samples }
    }
}

fn decode(bytes: &[u8], limits: &Limits) -> Result<Audio> {
    if bytes.is_empty() {
        return Err(Error::Empty { what: "audio" });
    }
    let mut reader = open(bytes)?;
    // Programs that write WAV into a pipe don't know its length and claim the most.
    let claims_length = reader.format_info().format != FORMAT_ID_WAVE;
    let track = reader.default_track(TrackType::Audio).ok_or(Error::NoAudio)?;
    let id = track.id;
    let claimed = track.num_frames.filter(|_| claims_length).unwrap_or(0);
    let mut decoder = decoder(track, claimed, limits)?;
    let mut mix = Mix { rate: 0, samples: Vec::new(), pcm_bytes: 0, limits };
    // The reader gives packets as long as there are bytes, so that this ends.
    loop {
        let packet = match reader.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) | Err(Said::ResetRequired) => break,
            Err(Said::IoError(e)) if e.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(e) if mix.samples.is_empty() => return Err(Error::Audio(e)),
            // The rest can't be found; what was heard so far is audio.
            Err(_) => break,
        };
        if packet.track_id != id {
            continue;
        }
        match decoder.decode(&packet) {
            Ok(buffer) => mix.add(&buffer)?,
            Err(Said::DecodeError(_) | Said::IoError(_)) => {}
            Err(e) => return Err(Error::Audio(e)),
        }
    }
    if mix.samples.is_empty() {
        return Err(Error::NoAudio);
    }
    Audio::from_samples(mix.rate, mix.samples)
}

fn open(bytes: &[u8]) -> Result<Box<dyn FormatReader + '_>> {
    let options = MediaSourceStreamOptions::default();
    let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), options);
    let (formats, tags) = (FormatOptions::default(), MetadataOptions::default());
    let probe = symphonia::default::get_probe();
    probe.probe(&Hint::new(), stream, formats, tags).map_err(|e| match e {
        Said::Unsupported(_) | Said::IoError(_) => {
            let looks_like = sniff::looks_like(bytes);
            Error::Unread { what: "audio", looks_like, takes: sniff::AUDIO }
        }
        e => Error::Audio(e),
    })
}

/// The decoder of a track whose header claims nothing that is too much.
fn decoder(track: &Track, n_frames: u64, limits: &Limits) -> Result<Box<dyn AudioDecoder>> {
    let Some(CodecParameters::Audio(parameters)) = &track.codec_params else {
        return Err(Error::NoAudio);
    };
    if let Some(rate) = parameters.sample_rate {
        check_rate(rate)?;
        let n_channels = parameters.channels.as_ref().map_or(1, |c| c.count());
        check_length(n_frames, rate, n_channels, limits)?;
    }
    let options = AudioDecoderOptions::default();
    symphonia::default::get_codecs()
        .make_audio_decoder(parameters, &options)
        .map_err(Error::Audio)
}

fn check_rate(rate: u32) -> Result<()> {
    if RATES.contains(&rate) {
        return Ok(());
    }
    Err(Error::SampleRate { rate, min: *RATES.start(), max: *RATES.end() })
}

fn check_length(n_frames: u64, rate: u32, n_channels: usize, limits: &Limits) -> Result<()> {
    let too_long = n_frames > limits.max_audio_s.saturating_mul(rate.into());
    let n_channels = u64::try_from(n_channels).unwrap_or(u64::MAX);
    let bytes = n_frames.saturating_mul(n_channels).saturating_mul(4);
    check_total(too_long || bytes > limits.max_pcm_bytes, limits)
}

fn check_total(too_much: bool, limits: &Limits) -> Result<()> {
    let Limits { max_audio_s: max_s, max_pcm_bytes: max_bytes, .. } = *limits;
    if too_much { Err(Error::AudioLength { max_s, max_bytes }) } else { Ok(()) }
}

fn check_samples(samples: &[f32], before: usize) -> Result<()> {
    let wrong = samples.iter().position(|s| s.is_nan() || s.abs() > MAX_SAMPLE);
    let Some(at) = wrong else { return Ok(()) };
    let value = samples.get(at).copied().unwrap_or(f32::NAN);
    Err(Error::Sample { index: at.saturating_add(before), value })
}

/// Audio so far.
struct Mix<'a> {
    rate: u32,
    samples: Vec<f32>,
    pcm_bytes: u64,
    limits: &'a Limits,
}

impl Mix<'_> {
    fn add(&mut self, buffer: &GenericAudioBufferRef<'_>) -> Result<()> {
        let (n_frames, n_channels) = (buffer.frames(), buffer.num_planes());
        if n_frames == 0 || n_channels == 0 {
            return Ok(());
        }
        let rate = buffer.spec().rate();
        check_rate(rate)?;
        if self.rate == 0 {
            self.rate = rate;
        }
        if rate != self.rate {
            let what = "the sample rate changes inside the file";
            return Err(Error::Audio(Said::Unsupported(what)));
        }
        let total = u64::try_from(self.samples.len().saturating_add(n_frames)).unwrap_or(u64::MAX);
        check_length(total, rate, 1, self.limits)?;
        let bytes = buffer.samples_interleaved().saturating_mul(4);
        self.pcm_bytes = self.pcm_bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        check_total(self.pcm_bytes > self.limits.max_pcm_bytes, self.limits)?;
        let mut planes: Vec<Vec<f32>> = Vec::new();
        buffer.copy_to_vecs_planar(&mut planes);
        self.average(planes)
    }

    fn average(&mut self, planes: Vec<Vec<f32>>) -> Result<()> {
        let mut planes = planes.into_iter();
        let Some(mut sum) = planes.next() else { return Ok(()) };
        let mut n = 1.0f32;
        check_samples(&sum, self.samples.len())?;
        for plane in planes {
            check_samples(&plane, self.samples.len())?;
            sum.iter_mut().zip(&plane).for_each(|(sum, sample)| *sum += sample);
            n += 1.0;
        }
        self.samples.extend(sum.iter().map(|sum| sum / n));
        Ok(())
    }
}
