//! Conversations in files: what was said as JSON, and beside it what was computed of it.

use std::io::Write;
use std::path::{Path, PathBuf};

use lapidary_program::out_file::{Existing, OutFile};
use lapidary_program::read_at_most;
use lapidary_text as text;
use serde_json::{Map, Value, json};

use crate::conversation::Conversation;
use crate::data_uri;
use crate::error::{Error, Result};
use crate::media::Media;
use crate::message::Message;

/// The file of keys and values that belongs to a conversation's.
fn kv_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".kv");
    PathBuf::from(name)
}

impl Conversation {
    /// Writes the conversation as JSON, in the words of the OpenAI API and with its media inside, and
    /// beside it, in `FILE.kv`, what was computed of it. Files that are there are replaced. Returns how
    /// many tokens that were.
    pub fn save(&self, path: &Path) -> Result<usize> {
        let messages: Vec<Value> = self.all_messages().iter().map(Message::to_full_json).collect();
        let text = serde_json::to_string_pretty(&json!({ "messages": messages }));
        let text = text.unwrap_or_default() + "\n";
        let written = OutFile::create(path, Existing::Replace).and_then(|mut out| {
            out.write_all(text.as_bytes())?;
            out.finish()
        });
        written.map_err(|e| Error::io(format!("can't write {}", path.display()), e))?;
        let prompt = self.history_prompt()?;
        let Some(prompt) = prompt else { return Ok(0) };
        self.engine().save_prefix(&prompt, self.scope_number(), &kv_file(path))
    }

    /// Goes on with what [`Self::save`] wrote, in place of what was said until now. Returns how many
    /// tokens need not be computed again: none if that file is missing, or of another model or
    /// device.
    pub fn resume(&mut self, path: &Path) -> Result<usize> {
        let wrong = |what: String| Error::File {
            what: path.display().to_string(),
            source: Box::new(Error::argument(what)),
        };
        let file = read_at_most(path, MAX_BYTES)
            .map_err(|e| Error::io(format!("can't read {}", path.display()), e))?;
        let file: Value = serde_json::from_slice(&file).map_err(|e| wrong(e.to_string()))?;
        let messages = file.get("messages").cloned().unwrap_or_default();
        let messages: Vec<text::Message> =
            serde_json::from_value(messages).map_err(|e| wrong(e.to_string()))?;
        let mut shown = |part: &text::Part| media(part).ok_or_else(|| wrong(NO_BYTES.to_string()));
        let messages = messages.into_iter().map(|m| Message::of_text(m, &mut shown));
        self.replace(messages.collect::<Result<_>>()?)?;
        let kv = kv_file(path);
        match kv.exists() {
            true => match self.engine().restore_prefix(&kv, self.scope_number()) {
                Err(Error::Runner(lapidary_runner::Error::Prefix(_))) => Ok(0),
                done => done,
            },
            false => Ok(0),
        }
    }
}

/// The longest conversation that is read: media stand in it.
const MAX_BYTES: u64 = 1 << 30;

const NO_BYTES: &str = "it names an image, a video or audio without its bytes";

/// What a part shows, if its bytes are in it.
fn media(part: &text::Part) -> Option<Media> {
    let bytes = |source: &Map<String, Value>, name: &str| {
        data_uri::decode(source.get(name)?.get("url")?.as_str()?)
    };
    match part {
        text::Part::Image { source } => Some(Media::image(bytes(source, "image_url")?)),
        text::Part::Audio { source } => Some(Media::audio(bytes(source, "audio_url")?)),
        text::Part::Video { source } => Some(Media::video(bytes(source, "video_url")?)),
        text::Part::Text { .. } => None,
    }
}
