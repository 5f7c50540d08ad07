//! A model on a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lapidary::Request;

use crate::answer::AnswerStream;
use crate::conversation::Conversation;
use crate::error::{Result, guarded};
use crate::load::Plan;
use crate::message::{Message, messages};
use crate::model::ModelInfo;
use crate::options::{AnswerOptions, Wishes};
use crate::work::{aside, spawn};

/// A model on a device. Its memory is free after [`Engine::unload`], or when the last engine,
/// conversation and answer of it is dropped.
#[derive(uniffi::Object)]
pub struct Engine(Arc<Home>);

/// What an engine, its conversations and its answers hold together.
pub(crate) struct Home {
    /// There until the last of them is dropped.
    engine: Option<lapidary::Engine>,
    unloaded: AtomicBool,
}

/// What an engine does and has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, uniffi::Record)]
pub struct Metrics {
    /// Requests that have not ended.
    pub open: u32,
    /// Of those, requests that are being answered.
    pub running: u32,
    /// Of those, requests that wait.
    pub waiting: u32,
    /// Pages of KV memory that are needed now.
    pub pages_in_use: u32,
    /// Pages of KV memory.
    pub pages: u32,
    /// Requests that were put back to wait because pages were missing.
    pub preempted: u32,
    /// Answers that ended as they should.
    pub finished: u32,
    /// Answers that were cancelled.
    pub cancelled: u32,
    /// Requests that failed.
    pub failed: u32,
    /// Tokens of the prompts of all answers that ended.
    pub prompt_tokens: u64,
    /// How many of them were in the caches already.
    pub reused_tokens: u64,
    /// Tokens of all answers that ended.
    pub new_tokens: u64,
}

impl Engine {
    pub(crate) fn new(engine: lapidary::Engine) -> Self {
        let unloaded = AtomicBool::new(false);
        Engine(Arc::new(Home { engine: Some(engine), unloaded }))
    }

    fn engine(&self) -> &lapidary::Engine {
        self.0.engine()
    }

    async fn ask(
        &self,
        options: Option<AnswerOptions>,
        request: impl FnOnce(&Wishes) -> Result<Request> + Send + 'static,
    ) -> Result<Arc<AnswerStream>> {
        let home = self.0.clone();
        aside(move || {
            let wishes = Wishes::of(options.unwrap_or_default())?;
            let answer = home.engine().answer(wishes.refine(request(&wishes)?))?;
            Ok(Arc::new(AnswerStream::new(answer, home)))
        })
        .await
    }
}

#[uniffi::export]
impl Engine {
    /// One line about backend and device.
    pub fn describe(&self) -> String {
        self.engine().describe().to_string()
    }

    /// What was decided at loading, and what it takes.
    pub fn plan(&self) -> Plan {
        Plan::of(self.engine().plan())
    }

    /// Facts about the model.
    pub fn model_info(&self) -> ModelInfo {
        ModelInfo::of(self.engine().model())
    }

    /// What it does and has done.
    pub fn metrics(&self) -> Metrics {
        let m = self.engine().metrics();
        Metrics {
            open: crate::count(m.open),
            running: crate::count(m.running),
            waiting: crate::count(m.waiting),
            pages_in_use: crate::count(m.pages_in_use),
            pages: crate::count(m.pages),
            preempted: crate::count(m.preempted),
            finished: crate::count(m.finished),
            cancelled: crate::count(m.cancelled),
            failed: crate::count(m.failed),
            prompt_tokens: m.prompt_tokens as u64,
            reused_tokens: m.reused_tokens as u64,
            new_tokens: m.new_tokens as u64,
        }
    }

    /// Tokens that prompt and answer may fill together.
    pub fn max_context(&self) -> u32 {
        crate::count(self.engine().max_context())
    }

    /// How long loading took.
    pub fn load_seconds(&self) -> f64 {
        self.engine().load_time().as_secs_f64()
    }

    /// Whether it was not unloaded.
    pub fn is_loaded(&self) -> bool {
        !self.0.unloaded.load(Ordering::SeqCst)
    }

    /// Ends all answers and frees the device's memory. A second time does nothing.
    pub async fn unload(&self) -> Result<()> {
        self.0.unloaded.store(true, Ordering::SeqCst);
        let home = self.0.clone();
        aside(move || {
            home.engine().unload();
            Ok(())
        })
        .await
    }

    /// Begins a conversation.
    #[uniffi::method(default(system = None, options = None))]
    pub fn conversation(
        &self,
        system: Option<String>,
        options: Option<AnswerOptions>,
    ) -> Result<Arc<Conversation>> {
        let wishes = Wishes::of(options.unwrap_or_default())?;
        guarded(|| Ok(Arc::new(Conversation::new(self.0.clone(), system, wishes))))
    }

    /// Answers messages, without a conversation.
    #[uniffi::method(default(options = None))]
    pub async fn answer(
        &self,
        messages: Vec<Message>,
        options: Option<AnswerOptions>,
    ) -> Result<Arc<AnswerStream>> {
        self.ask(options, |wishes| Ok(Request::chat(self::messages(messages, wishes)?))).await
    }

    /// Continues plain text, without a chat template.
    #[uniffi::method(default(options = None))]
    pub async fn complete(
        &self,
        text: String,
        options: Option<AnswerOptions>,
    ) -> Result<Arc<AnswerStream>> {
        self.ask(options, |_| Ok(Request::text(text))).await
    }

    /// Embeddings of texts, in order.
    pub async fn embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>> {
        let home = self.0.clone();
        aside(move || {
            let embeddings = home.engine().embed(texts.into_iter().map(Request::text))?;
            Ok(embeddings.into_iter().map(|embedding| embedding.values).collect())
        })
        .await
    }
}

impl Home {
    pub(crate) fn engine(&self) -> &lapidary::Engine {
        self.engine.as_ref().expect("it is taken only when nobody holds this")
    }
}

impl Drop for Home {
    /// The engine's thread finishes its step before it ends; whoever drops, perhaps a user interface,
    /// does not wait for that.
    fn drop(&mut self) {
        let engine = self.engine.take();
        // Where there can't be a thread, it ends here.
        let _ = spawn(move || drop(engine));
    }
}
