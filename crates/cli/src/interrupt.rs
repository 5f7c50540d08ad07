//! Ctrl-C.

use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use lapidary::CancelToken;

/// From here on the first Ctrl-C asks the work to end and the second ends the process. Before, while
/// a model is loaded, the first one ends the process.
pub fn cancel_on_interrupt(asked: CancelToken) -> Result<()> {
    listen(move || {
        if asked.is_cancelled() {
            std::process::exit(130);
        }
        asked.cancel();
    })
}

/// Listens for Ctrl-C. Where there is no thread to listen, it ends the process, as it did before.
fn listen(heard: impl FnMut() + Send + 'static) -> Result<()> {
    match ctrlc::set_handler(heard) {
        Err(ctrlc::Error::System(_)) => {
            #[cfg(target_os = "linux")]
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                // SAFETY: only what a signal does is set, to what it does by default.
                #[allow(unsafe_code)]
                unsafe {
                    libc::signal(signal, libc::SIG_DFL);
                }
            }
            Ok(())
        }
        done => done.context("can't listen for Ctrl-C"),
    }
}

/// From here on Ctrl-C removes a temporary file and ends the process.
pub fn remove_on_interrupt(file: &Path) -> Result<()> {
    let file = file.to_path_buf();
    listen(move || {
        let _ = std::fs::remove_file(&file);
        std::process::exit(130);
    })
}

/// Ctrl-C in a chat: it ends the answer that is under way; again, the process.
pub struct Interrupt(Arc<Mutex<Option<UnderWay>>>);

/// What ends an answer, once.
type UnderWay = Box<dyn FnOnce() + Send>;

impl Interrupt {
    /// Listens from here on. While no answer is under way, Ctrl-C ends the process.
    pub fn listen() -> Result<Self> {
        let current: Arc<Mutex<Option<UnderWay>>> = Arc::default();
        let seen = current.clone();
        listen(move || match seen.lock().ok().and_then(|mut c| c.take()) {
            Some(end) => end(),
            None => std::process::exit(130),
        })?;
        Ok(Interrupt(current))
    }

    /// An answer is under way, which this ends.
    pub fn arm(&self, end: impl FnOnce() + Send + 'static) {
        self.put(Some(Box::new(end)));
    }

    /// No answer is under way.
    pub fn disarm(&self) {
        self.put(None);
    }

    fn put(&self, end: Option<UnderWay>) {
        if let Ok(mut current) = self.0.lock() {
            *current = end;
        }
    }
}
