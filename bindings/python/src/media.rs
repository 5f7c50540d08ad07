//! Images, audio and video, and the messages that show and play them.

use lapidary::serde_json::{self, Value, json};
use lapidary::{Audio, ErrorCode, Image, Message, Modality, Part, text};
use pyo3::prelude::*;

use crate::error::{Failure, Result};
use crate::options::Options;

/// Something that is shown or played.
#[pyclass(frozen, module = "lapidary._native")]
pub(crate) struct Media(pub(crate) lapidary::Media);

fn modality(kind: &str) -> Result<Modality> {
    match kind {
        "image" => Ok(Modality::Image),
        "audio" => Ok(Modality::Audio),
        "video" => Ok(Modality::Video),
        _ => Err(Failure::argument(format!("`{kind}` is not image, audio or video"))),
    }
}

#[pymethods]
impl Media {
    /// What it is: `image`, `audio` or `video`.
    #[getter]
    fn kind(&self) -> &'static str {
        self.0.modality().name()
    }

    /// The bytes of a file.
    #[staticmethod]
    fn bytes(kind: &str, data: Vec<u8>) -> PyResult<Self> {
        Ok(Media(match modality(kind)? {
            Modality::Image => lapidary::Media::image(data),
            Modality::Audio => lapidary::Media::audio(data),
            Modality::Video => lapidary::Media::video(data),
        }))
    }

    /// A file.
    #[staticmethod]
    fn file(kind: &str, path: std::path::PathBuf) -> PyResult<Self> {
        Ok(Media(lapidary::Media::file(modality(kind)?, path)))
    }

    /// Levels of red, green and blue, row by row.
    #[staticmethod]
    fn rgb(width: u32, height: u32, levels: Vec<u8>) -> PyResult<Self> {
        let wrong = || {
            let what = format!("an image of {width} x {height} does not have that many levels");
            Failure::argument(what)
        };
        let image = Image::from_rgb(width, height, levels).ok_or_else(wrong)?;
        Ok(Media(lapidary::Media::decoded_image(image)))
    }

    /// Samples of one channel: floats of 32 bits in this machine's order, from -1 to 1.
    #[staticmethod]
    fn samples(rate: u32, data: &[u8]) -> PyResult<Self> {
        let (samples, rest) = data.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(Failure::argument("samples of 32 bits are four bytes each").into());
        }
        let samples = samples.iter().map(|b| f32::from_ne_bytes(*b)).collect();
        let audio = Audio::from_samples(rate, samples).map_err(lapidary::Error::from);
        Ok(Media(lapidary::Media::decoded_audio(audio.map_err(Failure::from)?)))
    }
}

/// Media as Python gave them.
pub(crate) fn given(media: &[PyRef<'_, Media>]) -> Vec<lapidary::Media> {
    media.iter().map(|media| media.0.clone()).collect()
}

/// Reads messages in OpenAI's words. A part that shows or plays something has its number in `media`.
pub(crate) fn messages(
    json: &str,
    media: &[lapidary::Media],
    options: &Options,
) -> Result<Vec<Message>> {
    let read: Vec<text::Message> = serde_json::from_str(json)
        .map_err(|e| Failure::argument(format!("messages are not as they should be: {e}")))?;
    let mut shown = |part: &text::Part| {
        let source = match part {
            text::Part::Image { source }
            | text::Part::Audio { source }
            | text::Part::Video { source } => source,
            text::Part::Text { .. } => return Err(lost()),
        };
        let number = source.get("media").and_then(Value::as_u64);
        let number = number.and_then(|n| usize::try_from(n).ok());
        let found = number.and_then(|n| media.get(n)).ok_or_else(lost)?;
        Ok(options.shown(found.clone()))
    };
    read.into_iter().map(|message| Message::of_text(message, &mut shown)).collect()
}

fn lost() -> Failure {
    Failure::new(ErrorCode::Internal, "a part of a message has lost what it shows")
}

/// A message in OpenAI's words, as JSON, and the bytes of its media in order, as far as they are known.
pub(crate) fn written(message: &Message) -> (Value, Vec<Option<Vec<u8>>>) {
    let bytes = message.parts.iter().filter_map(|part| match part {
        Part::Media(media) => Some(media.bytes().map(|bytes| bytes.to_vec())),
        _ => None,
    });
    (message.to_json(), bytes.collect())
}

/// A call of a tool, in OpenAI's words.
pub(crate) fn call(call: &lapidary::ToolCall) -> Value {
    let arguments = Value::Object(call.arguments.clone());
    json!({ "id": call.id, "name": call.name, "arguments": arguments })
}
