//! Waiting for what takes long, without Python's lock and with an ear for its signals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::thread;
use std::time::Duration;

use lapidary::ErrorCode;
use pyo3::prelude::*;

use crate::error::{Failure, Result, guarded};

/// How often whoever waits looks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// Work under way that tells how far it is.
pub(crate) struct Task<P, T> {
    state: Mutex<State<P, T>>,
    news: Condvar,
    stop: AtomicBool,
}

struct State<P, T> {
    /// The newest progress that nobody took.
    progress: Option<P>,
    end: Option<Result<T>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one operation, so what a panic left is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<P, T> Task<P, T> {
    /// Tells how far it is.
    pub(crate) fn tell(&self, progress: P) {
        lock(&self.state).progress = Some(progress);
        self.news.notify_all();
    }

    /// Set when nobody waits for it any more.
    pub(crate) fn stop(&self) -> &AtomicBool {
        &self.stop
    }
}

/// Does something on a thread and waits for it. A signal, or an error of `tell`, ends the waiting; the
/// work is then told to stop, and its result is dropped.
pub(crate) fn wait_telling<P: Send + 'static, T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Arc<Task<P, T>>) -> Result<T> + Send + 'static,
    mut tell: impl FnMut(P) -> PyResult<()>,
) -> PyResult<T> {
    let state = Mutex::new(State { progress: None, end: None });
    let task = Arc::new(Task { state, news: Condvar::new(), stop: AtomicBool::new(false) });
    let here = task.clone();
    let thread = thread::Builder::new().name("lapidary-python".into());
    let started = thread.spawn(move || {
        let end = guarded(|| work(&here));
        lock(&here.state).end = Some(end);
        here.news.notify_all();
    });
    started.map_err(|e| Failure::new(ErrorCode::Io, format!("can't start a thread: {e}")))?;
    loop {
        let (progress, end) = py.detach(|| {
            let mut state = lock(&task.state);
            if state.end.is_none() && state.progress.is_none() {
                let waited = task.news.wait_timeout(state, LOOK);
                (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            }
            (state.progress.take(), state.end.take())
        });
        let told = py.check_signals().and_then(|()| progress.map_or(Ok(()), &mut tell));
        if let Err(e) = told {
            task.stop.store(true, Ordering::SeqCst);
            return Err(e);
        }
        if let Some(end) = end {
            return Ok(end?);
        }
    }
}

/// Does something on a thread and waits for it.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    wait_telling(py, |_: &Arc<Task<(), T>>| work(), |()| Ok(()))
}

/// Does something short without Python's lock.
pub(crate) fn aside<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    Ok(py.detach(|| guarded(work))?)
}

/// Wakes all who wait for one thing.
#[derive(Default)]
pub(crate) struct Bell {
    rung: Mutex<u64>,
    news: Condvar,
}

impl Bell {
    /// How often it rang.
    pub(crate) fn count(&self) -> u64 {
        *lock(&self.rung)
    }

    /// Wakes whoever waits.
    pub(crate) fn ring(&self) {
        *lock(&self.rung) += 1;
        self.news.notify_all();
    }

    /// Waits until it has rung more often than that, or for as long as signals may wait.
    pub(crate) fn wait(&self, count: u64) {
        let rung = lock(&self.rung);
        if *rung == count {
            // Whether it rang is looked at by whoever waits.
            drop(self.news.wait_timeout(rung, LOOK));
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}
