//! Conversations.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lapidary::serde_json::Value;
use pyo3::prelude::*;

use crate::answer::Answer;
use crate::engine::Home;
use crate::error::Result;
use crate::media::{self, Media};
use crate::options::Options;
use crate::wait::{aside, wait};

/// A conversation with a model. It is answered one answer at a time.
#[pyclass(frozen, module = "lapidary._native")]
pub(crate) struct Conversation {
    /// Goes before the engine's home does.
    state: Arc<Mutex<lapidary::Conversation>>,
    home: Arc<Home>,
}

/// The bytes of a message's media, as far as they are known.
type Shown = Vec<Option<Vec<u8>>>;

/// A change under this lock is whole, so one that was left by a panic is taken as it is.
fn lock(state: &Mutex<lapidary::Conversation>) -> MutexGuard<'_, lapidary::Conversation> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Conversation {
    pub(crate) fn new(home: Arc<Home>, system: Option<String>) -> Result<Self> {
        let mut conversation = home.loaded()?.1.conversation();
        conversation.system(system.unwrap_or_default());
        Ok(Conversation { state: Arc::new(Mutex::new(conversation)), home })
    }
}

/// Holds the next requests to options. They were read before, so that what is wrong is said by then.
fn wish(conversation: &mut lapidary::Conversation, options: Options) -> Result<()> {
    options.refine(lapidary::Request::chat(vec![]))?;
    conversation.refine(move |request| options.refine(request.clone()).unwrap_or(request));
    Ok(())
}

#[pymethods]
impl Conversation {
    /// Says messages and asks for the answer. If that fails, nothing was said.
    fn answer(
        &self,
        py: Python<'_>,
        messages: String,
        media: Vec<PyRef<'_, Media>>,
        options: &str,
    ) -> PyResult<Answer> {
        let options = Options::read(options)?;
        let media = media::given(&media);
        let (state, home) = (self.state.clone(), self.home.clone());
        wait(py, move || {
            let (model, _) = home.loaded()?;
            let mut messages = media::messages(&messages, &media, &options)?;
            // Whoever looks at the history does not wait for pictures to be decoded.
            for part in messages.iter_mut().flat_map(|message| &mut message.parts) {
                if let lapidary::Part::Media(media) = part {
                    *media = media.prepare(&model)?;
                }
            }
            let mut conversation = lock(&state);
            wish(&mut conversation, options)?;
            for message in messages {
                conversation.message(message);
            }
            let answer = conversation.answer();
            if answer.is_err() {
                conversation.discard();
            }
            drop(conversation);
            Ok(Answer::new(answer?, home, 0))
        })
    }

    /// Answers the last question once more, in place of what was answered.
    fn regenerate(&self, py: Python<'_>, options: &str) -> PyResult<Answer> {
        let options = Options::read(options)?;
        let (state, home) = (self.state.clone(), self.home.clone());
        wait(py, move || {
            home.loaded()?;
            let mut conversation = lock(&state);
            wish(&mut conversation, options)?;
            let answer = conversation.regenerate()?;
            drop(conversation);
            Ok(Answer::new(answer, home, 0))
        })
    }

    /// What was said, as JSON, and for each message the bytes of its media.
    fn messages(&self, py: Python<'_>) -> PyResult<(String, Vec<Shown>)> {
        aside(py, || {
            let messages = lock(&self.state).messages();
            let (json, bytes): (Vec<Value>, Vec<_>) = messages.iter().map(media::written).unzip();
            Ok((Value::Array(json).to_string(), bytes))
        })
    }

    /// Takes messages for what was said; the first may be the instructions.
    fn replace(
        &self,
        py: Python<'_>,
        messages: String,
        media: Vec<PyRef<'_, Media>>,
    ) -> PyResult<()> {
        let media = media::given(&media);
        let state = self.state.clone();
        wait(py, move || {
            let messages = media::messages(&messages, &media, &Options::default())?;
            Ok(lock(&state).replace(messages)?)
        })
    }

    /// Keeps the first messages of what was said, so many, and forgets the rest.
    fn truncate(&self, py: Python<'_>, length: usize) -> PyResult<()> {
        aside(py, || {
            let mut conversation = lock(&self.state);
            let mut messages = conversation.messages();
            messages.truncate(length);
            Ok(conversation.replace(messages)?)
        })
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        aside(py, || {
            lock(&self.state).clear();
            Ok(())
        })
    }

    #[getter]
    fn system(&self, py: Python<'_>) -> PyResult<Option<String>> {
        aside(py, || Ok(lock(&self.state).instructions().map(String::from)))
    }

    fn set_system(&self, py: Python<'_>, text: Option<String>) -> PyResult<()> {
        aside(py, || {
            lock(&self.state).system(text.unwrap_or_default());
            Ok(())
        })
    }

    fn count_tokens(&self, py: Python<'_>) -> PyResult<usize> {
        let state = self.state.clone();
        wait(py, move || {
            let conversation = lock(&state).fork();
            Ok(conversation.count_tokens()?)
        })
    }

    /// Another conversation that goes on from here.
    fn fork(&self, py: Python<'_>) -> PyResult<Conversation> {
        aside(py, || {
            let conversation = lock(&self.state).fork();
            let state = Arc::new(Mutex::new(conversation));
            Ok(Conversation { state, home: self.home.clone() })
        })
    }

    /// Writes it to a file, and beside it what was computed of it.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<usize> {
        let state = self.state.clone();
        wait(py, move || {
            let conversation = lock(&state).fork();
            Ok(conversation.save(&path)?)
        })
    }

    /// Goes on with what `save` wrote.
    fn resume(&self, py: Python<'_>, path: PathBuf) -> PyResult<usize> {
        let state = self.state.clone();
        wait(py, move || Ok(lock(&state).resume(&path)?))
    }
}
