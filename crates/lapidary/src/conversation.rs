//! A conversation: what was said, shown and called, and what is about to be.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lapidary_text::{Grammar, Prompt};
use serde_json::{Map, Value};

use crate::engine::{Answer, Engine};
use crate::error::{Error, Result};
use crate::event::{Reply, ToolCall};
use crate::media::Media;
use crate::message::{Message, Part};
use crate::request::{Request, Sampling};

/// Has the last word on each request.
type Refine = Arc<dyn Fn(Request) -> Request + Send + Sync>;

/// A conversation with a model.
///
/// ```no_run
/// # let engine = lapidary::Model::pebble()?.load(lapidary::Load::default())?;
/// let mut chat = engine.conversation();
/// chat.system("Be brief.");
/// chat.user("What is this?").image(std::fs::read("cat.png").unwrap());
/// println!("{}", chat.answer()?.text()?);
/// println!("{}", chat.user("And in French?").answer()?.text()?);
/// # Ok::<(), lapidary::Error>(())
/// ```
pub struct Conversation {
    engine: Engine,
    system: Option<String>,
    tools: Vec<Value>,
    thinking: Option<bool>,
    variables: Map<String, Value>,
    sampling: Sampling,
    max_tokens: usize,
    stop: Vec<String>,
    scope: u64,
    progress: bool,
    grammar: Option<Grammar>,
    refine: Option<Refine>,
    /// What the next user message shows and says.
    next: Next,
    said: Arc<Mutex<Said>>,
}

#[derive(Clone, Default)]
struct Next {
    /// What tools returned, and whatever else stands before the user's words.
    messages: Vec<Message>,
    media: Vec<Media>,
    text: String,
}

#[derive(Clone, Default)]
struct Said {
    messages: Vec<Message>,
    /// While an answer is under way: how many messages there were before what it answers.
    answering: Option<usize>,
    /// Answers until now, for the ids of tool calls.
    n_answers: usize,
}

impl Conversation {
    pub(crate) fn new(engine: Engine) -> Self {
        Conversation {
            engine,
            system: None,
            tools: vec![],
            thinking: None,
            variables: Map::new(),
            sampling: Sampling::default(),
            max_tokens: usize::MAX,
            stop: vec![],
            scope: 0,
            progress: false,
            grammar: None,
            refine: None,
            next: Next::default(),
            said: Arc::default(),
        }
    }

    /// Instructions for the model.
    pub fn system(&mut self, text: impl Into<String>) -> &mut Self {
        self.system = Some(text.into()).filter(|text: &String| !text.is_empty());
        self
    }

    /// The instructions, if there are any.
    pub fn instructions(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Says something with the next answer. What is said, shown and played before one answer is one
    /// message, in which media come first, as models are taught.
    pub fn user(&mut self, text: impl AsRef<str>) -> &mut Self {
        self.next.text.push_str(text.as_ref());
        self
    }

    /// Shows an image: PNG, JPEG, WebP, GIF or BMP.
    pub fn image(&mut self, bytes: impl Into<Vec<u8>>) -> &mut Self {
        self.show(Media::image(bytes))
    }

    /// Plays audio: WAV, FLAC, MP3 or OGG.
    pub fn audio(&mut self, bytes: impl Into<Vec<u8>>) -> &mut Self {
        self.show(Media::audio(bytes))
    }

    /// Shows a video: an animated GIF or WebP, or with ffmpeg any.
    pub fn video(&mut self, bytes: impl Into<Vec<u8>>) -> &mut Self {
        self.show(Media::video(bytes))
    }

    /// Shows or plays something.
    pub fn show(&mut self, media: Media) -> &mut Self {
        self.next.media.push(media);
        self
    }

    /// Adds any message.
    pub fn message(&mut self, message: Message) -> &mut Self {
        self.settle();
        self.next.messages.push(message);
        self
    }

    /// Tells what a tool returned.
    pub fn tool_result(&mut self, call: &ToolCall, result: impl Into<String>) -> &mut Self {
        self.message(Message::tool(call, result))
    }

    /// Tools that the model may call, as OpenAI writes them.
    pub fn tools(&mut self, tools: Vec<Value>) -> &mut Self {
        self.tools = tools;
        self
    }

    /// Whether the model thinks first, where its chat template can.
    pub fn thinking(&mut self, on: bool) -> &mut Self {
        self.thinking = Some(on);
        self
    }

    /// Further variables of the chat template.
    pub fn template_variables(&mut self, variables: Map<String, Value>) -> &mut Self {
        self.variables = variables;
        self
    }

    /// How tokens are chosen.
    pub fn sampling(&mut self, sampling: Sampling) -> &mut Self {
        self.sampling = sampling;
        self
    }

    /// The most tokens of one answer.
    pub fn max_tokens(&mut self, n: usize) -> &mut Self {
        self.max_tokens = n;
        self
    }

    /// Strings that end an answer and are not part of it.
    pub fn stop(&mut self, stop: Vec<String>) -> &mut Self {
        self.stop = stop;
        self
    }

    /// Only conversations of the same scope share cached tokens.
    pub fn scope(&mut self, scope: u64) -> &mut Self {
        self.scope = scope;
        self
    }

    /// Tells how much of each prompt was read.
    pub fn progress(&mut self, on: bool) -> &mut Self {
        self.progress = on;
        self
    }

    /// Holds answers to a grammar; `None` lets them be anything.
    pub fn grammar(&mut self, grammar: Option<Grammar>) -> &mut Self {
        self.grammar = grammar;
        self
    }

    /// Says of each request whatever else can be said of one: a deadline, log-probabilities, a budget of
    /// thoughts. It has the last word.
    ///
    /// ```no_run
    /// # let engine = lapidary::Model::pebble()?.load(lapidary::Load::default())?;
    /// let mut chat = engine.conversation();
    /// chat.refine(|request| request.logprobs(3).thinking_budget(100));
    /// # Ok::<(), lapidary::Error>(())
    /// ```
    pub fn refine(
        &mut self,
        refine: impl Fn(Request) -> Request + Send + Sync + 'static,
    ) -> &mut Self {
        self.refine = Some(Arc::new(refine));
        self
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What was said until now, without the instructions.
    pub fn messages(&self) -> Vec<Message> {
        self.said().messages.clone()
    }

    /// Forgets what was said, and what was about to be.
    pub fn clear(&mut self) -> &mut Self {
        self.next = Next::default();
        // An answer that is under way belongs to what is forgotten.
        self.said = Arc::default();
        self
    }

    /// Takes other messages for what was said until now, such as the newest of them. An answer that is
    /// under way is not part of it.
    pub fn set_messages(&mut self, messages: Vec<Message>) -> Result<&mut Self> {
        self.replace(messages)?;
        Ok(self)
    }

    /// Takes back what was about to be said, shown and played.
    pub fn discard(&mut self) -> &mut Self {
        self.next = Next::default();
        self
    }

    /// Asks for the answer to what was said. If that fails, nothing has changed, and it may be asked
    /// for again.
    ///
    /// The answer becomes part of the conversation when it ends, or with what it said until it is
    /// dropped. One that ends before a word was said leaves nothing, and takes back what it was to
    /// answer.
    pub fn answer(&mut self) -> Result<Answer> {
        let mut new = self.next.clone();
        new.settle();
        let (mut messages, n_before) = {
            let said = self.said();
            if said.answering.is_some() {
                return Err(Error::Answering);
            }
            (said.messages.clone(), said.messages.len())
        };
        let is_open = messages.last().is_some_and(|m| m.role != "assistant");
        if new.messages.is_empty() && !is_open {
            return Err(Error::argument("nothing was said that could be answered"));
        }
        if new.messages.iter().any(|m| m.role == "user") && self.trims_thoughts() {
            messages.iter_mut().for_each(|m| m.thinking = None);
        }
        let model = self.engine.model();
        new.messages.iter_mut().try_for_each(|m| m.prepare(model))?;
        messages.extend(new.messages);
        let answer = self.ask(messages, n_before)?;
        self.next = Next::default();
        Ok(answer)
    }

    /// Answers the last thing that the user said once more, in place of what was answered.
    pub fn regenerate(&mut self) -> Result<Answer> {
        let messages = {
            let said = self.said();
            if said.answering.is_some() {
                return Err(Error::Answering);
            }
            let asked = said.messages.iter().rposition(|m| m.role == "user");
            let n = asked.ok_or_else(|| Error::argument("nothing was asked yet"))? + 1;
            said.messages.get(..n).unwrap_or_default().to_vec()
        };
        // If there is no other answer, what the user said still stands.
        let n_before = messages.len();
        self.ask(messages, n_before)
    }

    /// Another conversation that goes on from here. An answer that is under way is not part of it.
    pub fn fork(&self) -> Conversation {
        let mut said = self.said().clone();
        if let Some(n) = said.answering.take() {
            said.messages.truncate(n);
        }
        Conversation {
            engine: self.engine.clone(),
            system: self.system.clone(),
            tools: self.tools.clone(),
            thinking: self.thinking,
            variables: self.variables.clone(),
            sampling: self.sampling.clone(),
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            scope: self.scope,
            progress: self.progress,
            grammar: self.grammar.clone(),
            refine: self.refine.clone(),
            next: self.next.clone(),
            said: Arc::new(Mutex::new(said)),
        }
    }

    /// The instructions, and what was said until now.
    pub(crate) fn all_messages(&self) -> Vec<Message> {
        let system = self.system.iter().map(Message::system);
        system.chain(self.said().messages.iter().cloned()).collect()
    }

    /// The prompt that what was said makes; `None` if nothing was.
    pub(crate) fn history_prompt(&self) -> Result<Option<Prompt>> {
        let messages = self.messages();
        if messages.is_empty() {
            return Ok(None);
        }
        self.request(&messages, 0).prompt(self.engine.model()).map(Some)
    }

    pub(crate) fn scope_number(&self) -> u64 {
        self.scope
    }

    /// Tokens of what was said until now, as a prompt; 0 if nothing was.
    pub fn count_tokens(&self) -> Result<usize> {
        Ok(self.history_prompt()?.map_or(0, |prompt| prompt.tokens.len()))
    }

    /// Takes messages for what was said; the first may be the instructions. An answer that is under way
    /// belongs to what was there before.
    pub fn replace(&mut self, mut messages: Vec<Message>) -> Result<()> {
        let model = self.engine.model();
        messages.iter_mut().try_for_each(|m| m.prepare(model))?;
        if messages.first().is_some_and(|m| m.role == "system") {
            self.system = Some(messages.remove(0).plain_text());
        }
        let n_answers = messages.iter().filter(|m| m.role == "assistant").count();
        self.next = Next::default();
        self.said = Arc::new(Mutex::new(Said { messages, answering: None, n_answers }));
        Ok(())
    }

    /// Asks for the next message after `messages`, which become what was said.
    fn ask(&mut self, messages: Vec<Message>, n_before: usize) -> Result<Answer> {
        let n_answers = self.said().n_answers;
        let request = self.request(&messages, n_answers);
        let said = self.said.clone();
        let on_end = Box::new(move |reply: Reply| lock(&said).end(reply));
        // The thread may end the answer before this one goes on.
        let answer = {
            let mut said = lock(&self.said);
            let answer = self.engine.answer_with(request, Some(on_end))?;
            said.messages = messages;
            said.answering = Some(n_before);
            said.n_answers += 1;
            answer
        };
        Ok(answer)
    }

    fn request(&self, messages: &[Message], n_answers: usize) -> Request {
        let system = self.system.iter().map(Message::system);
        let all = system.chain(messages.iter().cloned()).collect();
        let mut request = Request::chat(all)
            .tools(self.tools.clone())
            .template_variables(self.variables.clone())
            .sampling(self.sampling.clone())
            .max_tokens(self.max_tokens)
            .stop(self.stop.clone())
            .scope(self.scope);
        if let Some(on) = self.thinking {
            request = request.thinking(on);
        }
        request.progress = self.progress;
        request.grammar = self.grammar.clone();
        if let Some(refine) = &self.refine {
            request = refine(request);
        }
        request.call_prefix = format!("answer_{n_answers}_");
        request
    }

    fn trims_thoughts(&self) -> bool {
        let format = self.engine.metadata().answer.as_ref();
        format.and_then(|f| f.thinking.as_ref()).is_some_and(|t| t.trim_history)
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        lock(&self.said)
    }

    fn settle(&mut self) {
        self.next.settle();
    }
}

fn lock(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Next {
    /// Makes a message of what was said and shown.
    fn settle(&mut self) {
        if self.text.is_empty() && self.media.is_empty() {
            return;
        }
        let mut message = Message::new("user");
        message.parts.extend(std::mem::take(&mut self.media).into_iter().map(Part::Media));
        if !self.text.is_empty() {
            message.parts.push(Part::Text(std::mem::take(&mut self.text)));
        }
        self.messages.push(message);
    }
}

impl Said {
    fn end(&mut self, reply: Reply) {
        let Some(n_before) = self.answering.take() else { return };
        let was_finished = reply
            .finish
            .as_ref()
            .is_some_and(|f| f.reason != lapidary_runner::FinishReason::Cancelled);
        if was_finished || !reply.is_empty() {
            self.messages.push(Message::of_reply(reply));
        } else {
            self.messages.truncate(n_before);
        }
    }
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversation")
            .field("engine", &self.engine)
            .field("system", &self.system)
            .field("messages", &self.said().messages)
            .finish_non_exhaustive()
    }
}
