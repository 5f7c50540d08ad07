//! What the engine's thread is to do: a bounded queue.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use lapidary_runner::{CancelToken, Request, Runner};

use super::channel::Sender;
use crate::error::{Error, Result};

/// The name of a request, for the engine's own books.
pub(super) type Number = u64;

/// What the thread is to do.
pub(super) enum Job {
    /// An answer.
    Answer(Box<Wanted>),
    /// Something with the runner alone, when nothing else is under way.
    Alone(Box<dyn FnOnce(&mut Runner) + Send>),
}

/// An answer that is wanted.
pub(super) struct Wanted {
    pub(super) number: Number,
    pub(super) request: Request,
    pub(super) cancel: CancelToken,
    pub(super) sender: Sender,
    pub(super) tells: Tells,
    pub(super) call_prefix: String,
}

/// Which events are told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tells {
    pub(super) tokens: bool,
    pub(super) progress: bool,
}

pub(super) struct Inbox {
    state: Mutex<State>,
    news: Condvar,
    /// Requests that may be open at once.
    limit: usize,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Every request that has not ended, and what ends it.
    open: HashMap<Number, CancelToken>,
    next: Number,
    /// Why no more is taken.
    closed: Option<Error>,
}

/// What came.
pub(super) enum Taken {
    Jobs(VecDeque<Job>),
    Closed(Error),
}

impl Inbox {
    pub(super) fn new(limit: usize) -> Self {
        Inbox { state: Mutex::default(), news: Condvar::new(), limit: limit.max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, unless there are too many.
    pub(super) fn ask(
        &self,
        cancel: CancelToken,
        job: impl FnOnce(Number, CancelToken) -> Wanted,
    ) -> Result<()> {
        let mut state = self.lock();
        if let Some(why) = &state.closed {
            return Err(why.clone());
        }
        let open = state.open.len();
        if open >= self.limit {
            return Err(Error::QueueFull { open });
        }
        let number = state.next;
        state.next += 1;
        state.open.insert(number, cancel.clone());
        state.jobs.push_back(Job::Answer(Box::new(job(number, cancel))));
        drop(state);
        self.news.notify_one();
        Ok(())
    }

    /// Adds work with the runner alone.
    pub(super) fn alone(&self, work: Box<dyn FnOnce(&mut Runner) + Send>) -> Result<()> {
        let mut state = self.lock();
        if let Some(why) = &state.closed {
            return Err(why.clone());
        }
        state.jobs.push_back(Job::Alone(work));
        drop(state);
        self.news.notify_one();
        Ok(())
    }

    /// Whether there is room for one more request.
    pub(super) fn check(&self) -> Result<()> {
        let state = self.lock();
        match &state.closed {
            Some(why) => Err(why.clone()),
            None if state.open.len() >= self.limit => {
                Err(Error::QueueFull { open: state.open.len() })
            }
            None => Ok(()),
        }
    }

    /// Takes all that came; waits for something if `wait`.
    pub(super) fn take(&self, wait: bool) -> Taken {
        let mut state = self.lock();
        loop {
            if let Some(why) = &state.closed {
                return Taken::Closed(why.clone());
            }
            if !wait || !state.jobs.is_empty() {
                return Taken::Jobs(std::mem::take(&mut state.jobs));
            }
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Why no more is taken, if it is so.
    pub(super) fn closed(&self) -> Option<Error> {
        self.lock().closed.clone()
    }

    /// Waits until no more is taken, and says why.
    pub(super) fn why_closed(&self) -> Error {
        let mut state = self.lock();
        loop {
            if let Some(why) = &state.closed {
                return why.clone();
            }
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A request has ended.
    pub(super) fn done(&self, number: Number) {
        self.lock().open.remove(&number);
    }

    /// Requests that have not ended.
    pub(super) fn n_open(&self) -> usize {
        self.lock().open.len()
    }

    /// Takes no more, ends what is under way, and lets nobody wait. The first reason stays.
    pub(super) fn close(&self, why: &Error) {
        let mut state = self.lock();
        let why = state.closed.get_or_insert_with(|| why.clone()).clone();
        state.open.values().for_each(CancelToken::cancel);
        let jobs = std::mem::take(&mut state.jobs);
        state.open.clear();
        drop(state);
        self.news.notify_all();
        for job in jobs {
            if let Job::Answer(wanted) = job {
                wanted.sender.end(Err(why.clone()));
            }
        }
    }
}
