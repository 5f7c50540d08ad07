//! From the engine's thread to the reader of one answer: bounded, read by blocking or by polling.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lapidary_runner::CancelToken;

use crate::error::{Error, Result};
use crate::event::Event;

struct Channel {
    state: Mutex<State>,
    /// Told when an event was taken, or the reader went.
    room: Condvar,
    /// Told when an event came.
    news: Condvar,
    capacity: usize,
}

#[derive(Default)]
struct State {
    events: VecDeque<Result<Event>>,
    /// No more will come.
    ended: bool,
    /// Nobody will read.
    gone: bool,
    waker: Option<Waker>,
}

/// How often a sender that waits looks whether it should.
const LOOK: Duration = Duration::from_millis(20);

/// The engine's end.
pub(super) struct Sender {
    channel: Arc<Channel>,
    /// Set by whoever no longer wants the answer: then nobody is waited for.
    cancel: CancelToken,
    /// How much longer the reader is waited for.
    patience: Duration,
    limit: Duration,
}

/// The reader's end.
pub(super) struct Receiver(Arc<Channel>);

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It will be read.
    Taken,
    /// Nobody reads, or wants more.
    Gone,
    /// The reader was waited for long enough.
    TooSlow,
}

/// A channel for so many events, whose sender waits for the reader no longer than `patience` in all.
pub(super) fn channel(
    capacity: usize,
    patience: Duration,
    cancel: CancelToken,
) -> (Sender, Receiver) {
    let channel = Arc::new(Channel {
        state: Mutex::default(),
        room: Condvar::new(),
        news: Condvar::new(),
        capacity: capacity.max(1),
    });
    (Sender { channel: channel.clone(), cancel, patience, limit: patience }, Receiver(channel))
}

impl Channel {
    /// A panic elsewhere leaves the queue as it was: each change is one operation.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, mut state: MutexGuard<'_, State>, event: Result<Event>, ended: bool) {
        state.events.push_back(event);
        state.ended |= ended;
        let waker = state.waker.take();
        drop(state);
        self.news.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Sender {
    /// Sends an event; waits if the reader has too many.
    pub(super) fn send(&mut self, event: Event) -> Sent {
        let mut state = self.channel.lock();
        while !state.gone && state.events.len() >= self.channel.capacity {
            if self.cancel.is_cancelled() {
                return Sent::Gone;
            }
            if self.patience.is_zero() {
                return Sent::TooSlow;
            }
            let start = Instant::now();
            let room = self.channel.room.wait_timeout(state, self.patience.min(LOOK));
            (state, _) = room.unwrap_or_else(PoisonError::into_inner);
            // A limit that is no limit stays so.
            if self.limit != Duration::MAX {
                self.patience = self.patience.saturating_sub(start.elapsed());
            }
        }
        if state.gone {
            return Sent::Gone;
        }
        self.channel.put(state, Ok(event), false);
        Sent::Taken
    }

    /// How long the reader was waited for.
    pub(super) fn waited(&self) -> Duration {
        self.limit.saturating_sub(self.patience)
    }

    /// Sends the last event. It is not refused, however many wait.
    pub(super) fn end(self, last: Result<Event>) {
        self.channel.put(self.channel.lock(), last, true);
    }
}

impl Drop for Sender {
    /// Nobody waits for a sender that is gone.
    fn drop(&mut self) {
        let state = self.channel.lock();
        if !state.ended {
            let what = "its thread ended before the answer".to_string();
            self.channel.put(state, Err(Error::Stopped { what }), true);
        }
    }
}

impl Receiver {
    /// Waits for the next event; `None` after the last.
    pub(super) fn next(&self) -> Option<Result<Event>> {
        let mut state = self.0.lock();
        loop {
            if let Some(event) = state.events.pop_front() {
                self.0.room.notify_one();
                return Some(event);
            }
            if state.ended {
                return None;
            }
            state = self.0.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next event if it is there; else the task is woken when it comes.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        let mut state = self.0.lock();
        if let Some(event) = state.events.pop_front() {
            self.0.room.notify_one();
            return Poll::Ready(Some(event));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.gone = true;
        state.events.clear();
        drop(state);
        self.0.room.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(capacity: usize, patience: Duration) -> (Sender, Receiver) {
        super::channel(capacity, patience, CancelToken::new())
    }

    fn text(n: usize) -> Event {
        Event::Text(n.to_string())
    }

    #[test]
    fn events_come_in_order_and_then_none() {
        let (mut sender, receiver) = channel(2, Duration::MAX);
        let reader = std::thread::spawn(move || {
            let mut read = Vec::new();
            while let Some(event) = receiver.next() {
                read.push(event.unwrap());
            }
            read
        });
        for n in 0..100 {
            assert_eq!(sender.send(text(n)), Sent::Taken);
        }
        sender.end(Ok(text(100)));
        assert_eq!(reader.join().unwrap(), (0..=100).map(text).collect::<Vec<_>>());
    }

    #[test]
    fn a_reader_is_waited_for_so_long_and_no_longer() {
        let limit = Duration::from_millis(20);
        let (mut sender, receiver) = channel(1, limit);
        assert_eq!(sender.send(text(0)), Sent::Taken);
        let start = Instant::now();
        assert_eq!(sender.send(text(1)), Sent::TooSlow);
        assert!(start.elapsed() >= limit && sender.waited() == limit);
        // What is waited for is all of its events together.
        assert_eq!(sender.send(text(1)), Sent::TooSlow);
        sender.end(Err(Error::SlowReader { waited: limit }));
        assert_eq!(receiver.next().unwrap().unwrap(), text(0));
        assert!(matches!(receiver.next(), Some(Err(Error::SlowReader { .. }))));
        assert!(receiver.next().is_none());
    }

    #[test]
    fn whoever_cancels_ends_the_waiting() {
        let cancel = CancelToken::new();
        let (mut sender, receiver) = super::channel(1, Duration::MAX, cancel.clone());
        assert_eq!(sender.send(text(0)), Sent::Taken);
        let canceller = std::thread::spawn(move || cancel.cancel());
        assert_eq!(sender.send(text(1)), Sent::Gone);
        canceller.join().unwrap();
        assert_eq!(receiver.next().unwrap().unwrap(), text(0));
    }

    #[test]
    fn whoever_goes_is_not_waited_for() {
        let (mut sender, receiver) = channel(1, Duration::MAX);
        assert_eq!(sender.send(text(0)), Sent::Taken);
        let reader = std::thread::spawn(move || drop(receiver));
        // It waits for room if it comes first.
        assert_eq!(sender.send(text(1)), Sent::Gone);
        reader.join().unwrap();
        let (sender, receiver) = channel(1, Duration::MAX);
        drop(sender);
        assert!(matches!(receiver.next(), Some(Err(Error::Stopped { .. }))));
        assert!(receiver.next().is_none());
    }
}
