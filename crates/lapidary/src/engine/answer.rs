//! An answer while it comes.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use lapidary_runner::{CancelToken, FinishReason};

use super::Engine;
use super::channel::Receiver;
use crate::error::{Error, Result};
use crate::event::{Event, Reply};

/// Is told what an answer was when it ends: by its last event, by an error, or by being dropped.
pub(crate) type OnEnd = Box<dyn FnOnce(Reply) + Send>;

/// An answer while it comes: an iterator that waits for events, and an async stream of the same.
///
/// Dropping it cancels the answer.
///
/// ```no_run
/// # let engine = lapidary::Model::pebble()?.load(lapidary::Load::default())?;
/// # let mut chat = engine.conversation();
/// use lapidary::Event;
/// for event in chat.user("Tell me a story.").answer()? {
///     if let Event::Text(text) = event? {
///         print!("{text}");
///     }
/// }
/// # Ok::<(), lapidary::Error>(())
/// ```
pub struct Answer {
    receiver: Receiver,
    cancel: CancelToken,
    /// What came until now.
    reply: Reply,
    on_end: Option<OnEnd>,
    has_ended: bool,
    /// Lives as long as its answers.
    _engine: Engine,
}

impl Answer {
    pub(super) fn new(
        engine: Engine,
        receiver: Receiver,
        cancel: CancelToken,
        on_end: Option<OnEnd>,
    ) -> Self {
        let reply = Reply::default();
        Answer { receiver, cancel, reply, on_end, has_ended: false, _engine: engine }
    }

    /// Ends the answer early: what was said stays, and [`Event::Finished`] says that it was
    /// cancelled. Clones of the token do the same from any thread.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// What came until now.
    pub fn so_far(&self) -> &Reply {
        &self.reply
    }

    /// Reads it to its end. One that was cancelled is an error.
    pub fn reply(mut self) -> Result<Reply> {
        for event in &mut self {
            event?;
        }
        self.whole()
    }

    /// Reads it to its end without blocking. One that was cancelled is an error.
    pub async fn into_reply(mut self) -> Result<Reply> {
        while let Some(event) =
            std::future::poll_fn(|context| Pin::new(&mut self).poll_next(context)).await
        {
            event?;
        }
        self.whole()
    }

    /// Reads it to its end, for its text alone.
    pub fn text(self) -> Result<String> {
        Ok(self.reply()?.text)
    }

    fn whole(self) -> Result<Reply> {
        match &self.reply.finish {
            Some(finish) if finish.reason != FinishReason::Cancelled => Ok(self.reply.clone()),
            _ => Err(lapidary_runner::Error::Cancelled.into()),
        }
    }

    fn note(&mut self, event: Option<Result<Event>>) -> Option<Result<Event>> {
        let ends = match &event {
            Some(Ok(event)) => {
                self.reply.push(event);
                matches!(event, Event::Finished(_))
            }
            Some(Err(_)) | None => true,
        };
        if ends {
            self.end();
        }
        event
    }

    fn end(&mut self) {
        self.has_ended = true;
        if let Some(on_end) = self.on_end.take() {
            on_end(self.reply.clone());
        }
    }
}

impl Iterator for Answer {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let event = self.receiver.next();
        self.note(event)
    }
}

impl Stream for Answer {
    type Item = Result<Event, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        self.receiver.poll(context).map(|event| self.note(event))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.has_ended {
            self.cancel.cancel();
            self.end();
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("so_far", &self.reply).finish_non_exhaustive()
    }
}
