//! Work on threads of our own, and futures that wait for it without a runtime.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use crate::error::{LapidaryError, Result, guarded};

/// Does something that takes long, and waits for it. Whoever no longer waits does not stop it: its
/// result is dropped.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let task = Task::<(), T>::start(move |_| work());
    poll_fn(|context| task.poll_end(context, |end| end.take().unwrap_or_else(taken))).await
}

/// A result is asked for once; it is there once.
fn taken<T>() -> Result<T> {
    Err(LapidaryError::new(lapidary::ErrorCode::Internal, "a result was asked for twice"))
}

/// Runs something on a thread.
pub(crate) fn spawn(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    thread::Builder::new().name("lapidary-ffi".into()).spawn(work).map(drop)
}

/// Work under way that tells how far it is. Any number of futures may wait for it.
pub(crate) struct Task<P, T>(Mutex<State<P, T>>);

struct State<P, T> {
    /// The newest progress that nobody took.
    news: Option<P>,
    /// `None` while it is under way.
    end: Option<Option<Result<T>>>,
    wakers: Wakers,
}

impl<P: Send + 'static, T: Send + 'static> Task<P, T> {
    /// Begins it.
    pub(crate) fn start(work: impl FnOnce(&Arc<Self>) -> Result<T> + Send + 'static) -> Arc<Self> {
        let state = State { news: None, end: None, wakers: Wakers::default() };
        let task = Arc::new(Task(Mutex::new(state)));
        let here = task.clone();
        let started = spawn(move || {
            let end = guarded(|| work(&here));
            here.end(end);
        });
        if let Err(e) = started {
            let reason = format!("can't start a thread: {e}");
            task.end(Err(LapidaryError::new(lapidary::ErrorCode::Io, reason)));
        }
        task
    }

    fn lock(&self) -> MutexGuard<'_, State<P, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells how far it is.
    pub(crate) fn tell(&self, news: P) {
        let mut state = self.lock();
        state.news = Some(news);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.wake();
    }

    /// Ends it with a result, unless it has one.
    pub(crate) fn end(&self, end: Result<T>) {
        let mut state = self.lock();
        if state.end.is_some() {
            // What came too late is dropped without the lock.
            drop(state);
            return;
        }
        state.end = Some(Some(end));
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.wake();
    }

    /// The newest progress; `None` once it has ended.
    pub(crate) async fn next(&self) -> Option<P> {
        poll_fn(|context| {
            let mut state = self.lock();
            if state.end.is_some() {
                return Poll::Ready(None);
            }
            if let Some(news) = state.news.take() {
                return Poll::Ready(Some(news));
            }
            state.wakers.add(context.waker());
            Poll::Pending
        })
        .await
    }

    /// What `take` makes of the result, when it is there.
    fn poll_end<R>(
        &self,
        context: &Context<'_>,
        take: impl FnOnce(&mut Option<Result<T>>) -> R,
    ) -> Poll<R> {
        let mut state = self.lock();
        if let Some(end) = &mut state.end {
            return Poll::Ready(take(end));
        }
        state.wakers.add(context.waker());
        Poll::Pending
    }

    /// The result, for whoever asks and however often.
    pub(crate) async fn result(&self) -> Result<T>
    where
        T: Clone,
    {
        let copy = |end: &mut Option<Result<T>>| end.clone().unwrap_or_else(taken);
        poll_fn(|context| self.poll_end(context, copy)).await
    }
}

/// Who waits.
#[derive(Default)]
pub(crate) struct Wakers(Vec<Waker>);

impl Wakers {
    pub(crate) fn add(&mut self, waker: &Waker) {
        if !self.0.iter().any(|known| known.will_wake(waker)) {
            self.0.push(waker.clone());
        }
    }

    fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

/// One waker that wakes all who wait, for a stream that knows but one.
#[derive(Default)]
pub(crate) struct Bell(Mutex<Wakers>);

impl Bell {
    pub(crate) fn add(&self, waker: &Waker) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(waker);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        all.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::ErrorCode;

    #[test]
    fn work_is_done_elsewhere_and_its_panic_is_an_error() {
        let here = thread::current().id();
        let there = pollster::block_on(aside(|| Ok(thread::current().id()))).unwrap();
        assert_ne!(there, here);
        let lost = aside(|| -> Result<()> { panic!("lost") });
        let LapidaryError::Failed { code, .. } = pollster::block_on(lost).unwrap_err();
        assert_eq!(code, ErrorCode::Internal);
    }

    #[test]
    fn all_who_wait_hear_of_the_end_and_progress_is_the_newest() {
        let (go, gate) = mpsc::channel::<()>();
        let task = Task::<u32, u32>::start(move |task| {
            (1..=3).for_each(|n| task.tell(n));
            gate.recv().unwrap();
            Ok(7)
        });
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                let task = task.clone();
                thread::spawn(move || pollster::block_on(task.result()))
            })
            .collect();
        // However many were told, the last is the newest.
        let mut newest = 0;
        while newest < 3 {
            newest = pollster::block_on(task.next()).unwrap();
        }
        go.send(()).unwrap();
        assert_eq!(pollster::block_on(task.next()), None);
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), Ok(7));
        }
        assert_eq!(pollster::block_on(task.result()), Ok(7));
    }

    #[test]
    fn the_first_end_stands() {
        let (go, gate) = mpsc::channel::<()>();
        let task = Task::<(), u32>::start(move |_| {
            gate.recv().unwrap();
            Ok(7)
        });
        task.end(Err(LapidaryError::cancelled()));
        go.send(()).unwrap();
        assert_eq!(pollster::block_on(task.result()), Err(LapidaryError::cancelled()));
    }
}
