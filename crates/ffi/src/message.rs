//! Messages, with what they show and play inside.

use lapidary::serde_json::{self, Map, Value};

use crate::error::{LapidaryError, Result};
use crate::options::Wishes;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said, shown and played, in order.
    #[uniffi(default = [])]
    pub parts: Vec<Part>,
    /// What the assistant thought.
    #[uniffi(default = None)]
    pub thinking: Option<String>,
    /// Tools that the assistant calls.
    #[uniffi(default = [])]
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool answers.
    #[uniffi(default = None)]
    pub tool_call_id: Option<String>,
    /// The tool's name.
    #[uniffi(default = None)]
    pub name: Option<String>,
}

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, uniffi::Enum)]
pub enum Role {
    /// Instructions.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool, which tells its result.
    Tool,
}

/// One part of a message.
#[derive(Clone, Debug, PartialEq, uniffi::Enum)]
pub enum Part {
    /// Text.
    Text {
        /// What is said.
        text: String,
    },
    /// An image: PNG, JPEG, WebP, GIF or BMP.
    Image {
        /// The file's bytes.
        bytes: Vec<u8>,
    },
    /// Audio: WAV, FLAC, MP3 or OGG.
    Audio {
        /// The file's bytes.
        bytes: Vec<u8>,
    },
    /// A video: an animated GIF or WebP.
    Video {
        /// The file's bytes.
        bytes: Vec<u8>,
    },
    /// An image in a file.
    ImageFile {
        /// Where.
        path: String,
    },
    /// Audio in a file.
    AudioFile {
        /// Where.
        path: String,
    },
    /// A video in a file, or a folder of images.
    VideoFile {
        /// Where.
        path: String,
    },
    /// Audio of one channel as microphones give it.
    Pcm {
        /// Samples of 16 bits, signed, little-endian.
        bytes: Vec<u8>,
        /// Samples in a second.
        rate: u32,
    },
}

/// A tool that the model calls.
#[derive(Clone, Debug, PartialEq, Eq, uniffi::Record)]
pub struct ToolCall {
    /// What the tool's result refers to; unique in a conversation.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Its arguments: a JSON object.
    pub arguments: String,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }

    fn of(name: &str) -> Self {
        match name {
            "system" | "developer" => Role::System,
            "assistant" => Role::Assistant,
            "tool" | "function" => Role::Tool,
            _ => Role::User,
        }
    }
}

/// Messages in the library's words.
pub(crate) fn messages(messages: Vec<Message>, wishes: &Wishes) -> Result<Vec<lapidary::Message>> {
    messages.into_iter().map(|message| message.library(wishes)).collect()
}

impl Message {
    /// In the library's words.
    pub(crate) fn library(self, wishes: &Wishes) -> Result<lapidary::Message> {
        let calls = self.tool_calls.into_iter().enumerate();
        let parts = self.parts.into_iter().map(|part| part.library(wishes));
        Ok(lapidary::Message {
            parts: parts.collect::<Result<_>>()?,
            thinking: self.thinking,
            tool_calls: calls.map(|(n, call)| call.library(n)).collect::<Result<_>>()?,
            tool_call_id: self.tool_call_id,
            name: self.name,
            ..lapidary::Message::new(self.role.name())
        })
    }

    /// As the library keeps it.
    pub(crate) fn of(message: lapidary::Message) -> Self {
        Message {
            role: Role::of(&message.role),
            parts: message.parts.into_iter().filter_map(Part::of).collect(),
            thinking: message.thinking,
            tool_calls: message.tool_calls.into_iter().map(ToolCall::of).collect(),
            tool_call_id: message.tool_call_id,
            name: message.name,
        }
    }
}

impl Part {
    pub(crate) fn library(self, wishes: &Wishes) -> Result<lapidary::Part> {
        use lapidary::Media;
        let media = match self {
            Part::Text { text } => return Ok(lapidary::Part::Text(text)),
            Part::Image { bytes } => Media::image(bytes),
            Part::Audio { bytes } => Media::audio(bytes),
            Part::Video { bytes } => Media::video(bytes),
            Part::ImageFile { path } => Media::image_file(path),
            Part::AudioFile { path } => Media::audio_file(path),
            Part::VideoFile { path } => Media::video_file(path),
            Part::Pcm { bytes, rate } => Media::audio(wav(&bytes, rate)?),
        };
        Ok(lapidary::Part::Media(wishes.media(media)))
    }

    /// `None` for a kind of part that is not known here, and for a file that is gone.
    fn of(part: lapidary::Part) -> Option<Self> {
        let media = match part {
            lapidary::Part::Text(text) => return Some(Part::Text { text }),
            lapidary::Part::Media(media) => media,
            _ => return None,
        };
        let bytes = media.bytes()?.to_vec();
        Some(match media.modality() {
            lapidary::Modality::Image => Part::Image { bytes },
            lapidary::Modality::Audio => Part::Audio { bytes },
            lapidary::Modality::Video => Part::Video { bytes },
        })
    }
}

impl ToolCall {
    pub(crate) fn library(self, index: usize) -> Result<lapidary::ToolCall> {
        let ToolCall { id, name, arguments } = self;
        let arguments = object(&arguments, &format!("the arguments of the call of `{name}`"))?;
        Ok(lapidary::ToolCall { index, id, name, arguments })
    }

    pub(crate) fn of(call: lapidary::ToolCall) -> Self {
        let lapidary::ToolCall { id, name, arguments, .. } = call;
        ToolCall { id, name, arguments: Value::Object(arguments).to_string() }
    }
}

/// A JSON object from text; nothing is an empty one.
pub(crate) fn object(text: &str, what: &str) -> Result<Map<String, Value>> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text)
        .map_err(|e| LapidaryError::argument(format!("{what} must be a JSON object: {e}")))
}

/// A WAV file of samples.
fn wav(samples: &[u8], rate: u32) -> Result<Vec<u8>> {
    let wrong = || LapidaryError::argument("samples of 16 bits are an even number of bytes");
    let n = u32::try_from(samples.len()).ok().filter(|n| n.is_multiple_of(2)).ok_or_else(wrong)?;
    let mut file = Vec::with_capacity(samples.len() + 44);
    file.extend(b"RIFF");
    file.extend(n.saturating_add(36).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    // Plain integers, of one channel.
    file.extend([1u16, 1].iter().flat_map(|x| x.to_le_bytes()));
    file.extend([rate, rate.saturating_mul(2)].iter().flat_map(|x| x.to_le_bytes()));
    file.extend([2u16, 16].iter().flat_map(|x| x.to_le_bytes()));
    file.extend(b"data");
    file.extend(n.to_le_bytes());
    file.extend(samples);
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;

    #[test]
    fn messages_come_back() {
        let call = ToolCall { id: "a".into(), name: "f".into(), arguments: "{\"x\":1}".into() };
        let said = vec![Part::Text { text: "x".into() }, Part::Image { bytes: vec![1, 2] }];
        for role in [Role::System, Role::User, Role::Assistant, Role::Tool] {
            let message = Message {
                role,
                parts: said.clone(),
                thinking: Some("t".into()),
                tool_calls: vec![call.clone()],
                tool_call_id: Some("b".into()),
                name: Some("g".into()),
            };
            let there = message.clone().library(&Wishes::default()).unwrap();
            assert_eq!(Message::of(there), message);
        }
    }

    #[test]
    fn arguments_that_are_no_object_are_refused() {
        let wrong = ToolCall { id: "a".into(), name: "f".into(), arguments: "[1]".into() };
        let LapidaryError::Failed { code, reason } = wrong.library(0).unwrap_err();
        assert_eq!(code, ErrorCode::InvalidArgument);
        assert!(reason.contains("`f`"), "{reason}");
    }

    #[test]
    fn samples_become_a_file_that_decodes_to_them() {
        let samples: Vec<i16> = (0..800).map(|i| ((i * 331) % 20_000 - 10_000) as i16).collect();
        let bytes: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
        let file = wav(&bytes, 16_000).unwrap();
        let audio = lapidary::Audio::decode(&file, &Default::default()).unwrap();
        assert_eq!((audio.rate(), audio.samples().len()), (16_000, 800));
        let far = |(a, b): (&f32, &i16)| (a * 32_768.0 - f32::from(*b)).abs();
        assert!(audio.samples().iter().zip(&samples).map(far).all(|d| d < 1.5));
        assert!(wav(&bytes[1..], 16_000).is_err());
    }
}
