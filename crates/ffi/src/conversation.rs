//! Conversations.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::answer::AnswerStream;
use crate::engine::Home;
use crate::error::{Result, guarded};
use crate::message::{Message, Part, Role, ToolCall, messages};
use crate::options::{AnswerOptions, Wishes};
use crate::work::aside;

/// A conversation with a model. It is answered one answer at a time.
#[derive(uniffi::Object)]
pub struct Conversation {
    /// Goes before the engine's home does.
    state: Arc<Mutex<State>>,
    home: Arc<Home>,
}

struct State {
    conversation: lapidary::Conversation,
    wishes: Arc<Wishes>,
    /// What is said with the next answer.
    next: Vec<lapidary::Message>,
}

impl Conversation {
    pub(crate) fn new(home: Arc<Home>, system: Option<String>, wishes: Wishes) -> Self {
        let conversation = home.engine().conversation();
        let mut state = State { conversation, wishes: Arc::default(), next: vec![] };
        state.conversation.system(system.unwrap_or_default());
        state.wish(wishes);
        Conversation { state: Arc::new(Mutex::new(state)), home }
    }

    /// A change under this lock is whole, so one that was left by a panic is taken as it is.
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Asks for an answer on a thread: media are decoded, messages become tokens.
    async fn ask(&self, message: Option<Message>, how: How) -> Result<Arc<AnswerStream>> {
        let (state, home) = (self.state.clone(), self.home.clone());
        aside(move || {
            let wishes = lock(&state).wishes.clone();
            let message = message.map(|m| m.library(&wishes)).transpose()?;
            // Whoever looks at the history does not wait for pictures to be decoded.
            let message = message.map(|m| prepared(m, &home)).transpose()?;
            let answer = lock(&state).answer(message, how)?;
            Ok(Arc::new(AnswerStream::new(answer, home)))
        })
        .await
    }
}

/// What is answered.
#[derive(Clone, Copy)]
enum How {
    /// What was said since.
    Next,
    /// The last question, once more.
    Again,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn prepared(mut message: lapidary::Message, home: &Home) -> Result<lapidary::Message> {
    for part in &mut message.parts {
        if let lapidary::Part::Media(media) = part {
            *media = media.prepare(home.engine().model())?;
        }
    }
    Ok(message)
}

impl State {
    fn wish(&mut self, wishes: Wishes) {
        let wishes = Arc::new(wishes);
        self.wishes = wishes.clone();
        self.conversation.refine(move |request| wishes.refine(request));
    }

    /// If it can't be answered, nothing has changed.
    fn answer(&mut self, message: Option<lapidary::Message>, how: How) -> Result<lapidary::Answer> {
        match how {
            How::Again => Ok(self.conversation.regenerate()?),
            How::Next => {
                for message in self.next.iter().cloned().chain(message) {
                    self.conversation.message(message);
                }
                let answer = self.conversation.answer();
                match &answer {
                    Ok(_) => self.next.clear(),
                    Err(_) => _ = self.conversation.discard(),
                }
                Ok(answer?)
            }
        }
    }
}

#[uniffi::export]
impl Conversation {
    /// Says something, shows and plays what is given with it, and asks for the answer. If that fails,
    /// nothing was said.
    #[uniffi::method(default(media = []))]
    pub async fn send(&self, text: String, media: Vec<Part>) -> Result<Arc<AnswerStream>> {
        let mut message = Message::new(Role::User);
        message.parts = media;
        message.parts.push(Part::Text { text });
        self.ask(Some(message), How::Next).await
    }

    /// Says something with the next answer.
    pub fn add(&self, message: Message) -> Result<()> {
        let mut state = self.lock();
        let message = message.library(&state.wishes)?;
        state.next.push(message);
        Ok(())
    }

    /// Tells with the next answer what a tool returned.
    pub fn add_tool_result(&self, call: ToolCall, result: String) -> Result<()> {
        let message = lapidary::Message::tool(&call.library(0)?, result);
        self.lock().next.push(message);
        Ok(())
    }

    /// Asks for the answer to what was added. If that fails, it is still there.
    pub async fn answer(&self) -> Result<Arc<AnswerStream>> {
        self.ask(None, How::Next).await
    }

    /// Answers the last question once more, in place of what was answered.
    pub async fn regenerate(&self) -> Result<Arc<AnswerStream>> {
        self.ask(None, How::Again).await
    }

    /// What was said and answered, without the instructions.
    pub fn history(&self) -> Vec<Message> {
        // Media may be in files, which are read without the lock.
        let messages = self.lock().conversation.messages();
        messages.into_iter().map(Message::of).collect()
    }

    /// Takes messages for what was said; the first may be the instructions.
    pub async fn set_history(&self, messages: Vec<Message>) -> Result<()> {
        let (state, home) = (self.state.clone(), self.home.clone());
        aside(move || {
            let wishes = lock(&state).wishes.clone();
            let messages = self::messages(messages, &wishes)?.into_iter();
            let messages = messages.map(|m| prepared(m, &home)).collect::<Result<_>>()?;
            let mut state = lock(&state);
            state.next.clear();
            Ok(state.conversation.replace(messages)?)
        })
        .await
    }

    /// Keeps the first messages of what was said, so many, and forgets the rest.
    pub fn truncate(&self, length: u32) -> Result<()> {
        guarded(|| {
            let mut state = self.lock();
            let mut messages = state.conversation.messages();
            messages.truncate(length as usize);
            state.next.clear();
            Ok(state.conversation.replace(messages)?)
        })
    }

    /// Forgets what was said, and what was about to be.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.next.clear();
        state.conversation.clear();
    }

    /// The instructions, if there are any.
    pub fn system(&self) -> Option<String> {
        self.lock().conversation.instructions().map(String::from)
    }

    /// Instructs the model, from the next answer on.
    pub fn set_system(&self, text: Option<String>) {
        self.lock().conversation.system(text.unwrap_or_default());
    }

    /// How answers are to be.
    pub fn options(&self) -> AnswerOptions {
        self.lock().wishes.options().clone()
    }

    /// How answers are to be, from the next one on.
    pub fn set_options(&self, options: AnswerOptions) -> Result<()> {
        let wishes = Wishes::of(options)?;
        self.lock().wish(wishes);
        Ok(())
    }

    /// Tokens of what was said, as a prompt.
    pub async fn count_tokens(&self) -> Result<u32> {
        let conversation = self.lock().conversation.fork();
        aside(move || Ok(crate::count(conversation.count_tokens()?))).await
    }

    /// Another conversation that goes on from here.
    pub fn fork(&self) -> Arc<Conversation> {
        let state = self.lock();
        let state = State {
            conversation: state.conversation.fork(),
            wishes: state.wishes.clone(),
            next: state.next.clone(),
        };
        Arc::new(Conversation { state: Arc::new(Mutex::new(state)), home: self.home.clone() })
    }

    /// Writes the conversation to a file, and beside it, in `FILE.kv`, what was computed of it.
    /// Returns how many tokens that were.
    pub async fn save(&self, path: String) -> Result<u32> {
        let conversation = self.lock().conversation.fork();
        aside(move || Ok(crate::count(conversation.save(path.as_ref())?))).await
    }

    /// Goes on with what [`Conversation::save`] wrote. Returns how many tokens need not be computed
    /// again.
    pub async fn resume(&self, path: String) -> Result<u32> {
        let state = self.state.clone();
        aside(move || {
            let mut state = lock(&state);
            state.next.clear();
            Ok(crate::count(state.conversation.resume(path.as_ref())?))
        })
        .await
    }
}

impl Message {
    fn new(role: Role) -> Self {
        Message {
            role,
            parts: vec![],
            thinking: None,
            tool_calls: vec![],
            tool_call_id: None,
            name: None,
        }
    }
}
