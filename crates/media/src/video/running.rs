//! A process that is read from, for a limited time.

use std::io::Read;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Result};

/// Of what it says, this much is kept.
const MAX_SAID: usize = 4 << 10;

/// A running process; it is ended when its time is up, and when this is dropped.
pub(super) struct Running {
    child: Arc<Mutex<Child>>,
    is_late: Arc<AtomicBool>,
    max_s: u64,
    said: Option<JoinHandle<Vec<u8>>>,
    /// Dropping it ends the watch.
    _watch: mpsc::Sender<()>,
}

impl Running {
    /// Starts it; also its output.
    pub(super) fn start(mut command: Command, max_s: u64) -> Result<(Running, ChildStdout)> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::NoFfmpeg,
            _ => Error::Io(e),
        })?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let child = Arc::new(Mutex::new(child));
        // Without threads there is no video: nobody would end a process that hangs.
        let thread = || std::thread::Builder::new();
        let no_thread = |e: std::io::Error| {
            end(&child);
            Error::Io(e)
        };
        let said = stderr.map(|pipe| thread().spawn(move || beginning(pipe)));
        let said = said.transpose().map_err(no_thread)?;
        let is_late = Arc::new(AtomicBool::new(false));
        let (watch, ended) = mpsc::channel::<()>();
        let (watched, late) = (child.clone(), is_late.clone());
        let watched = thread().spawn(move || {
            let waited = ended.recv_timeout(Duration::from_secs(max_s));
            if waited == Err(mpsc::RecvTimeoutError::Timeout) {
                late.store(true, Ordering::SeqCst);
                end(&watched);
            }
        });
        drop(watched.map_err(no_thread)?);
        let running = Running { child, is_late, max_s, said, _watch: watch };
        let piped = || Error::Io(std::io::Error::other("the process has no output"));
        Ok((running, stdout.ok_or_else(piped)?))
    }

    /// Fails if its time is up.
    pub(super) fn in_time(&self) -> Result<()> {
        match self.is_late.load(Ordering::SeqCst) {
            true => Err(Error::VideoTime { max_s: self.max_s }),
            false => Ok(()),
        }
    }

    /// Waits for its end, which its output's end announced, and says what was wrong, if anything.
    pub(super) fn finish(&mut self) -> Result<()> {
        let status = self.wait();
        self.in_time()?;
        if status.map_err(Error::Io)?.is_some_and(|s| s.success()) {
            return Ok(());
        }
        let said = self.said.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        Err(Error::Ffmpeg { detail: reason(&String::from_utf8_lossy(&said)) })
    }

    /// Waits without holding the lock, which the watch may need.
    fn wait(&self) -> std::io::Result<Option<std::process::ExitStatus>> {
        loop {
            let status = {
                let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
                child.try_wait()?
            };
            if status.is_some() {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end(&self.child);
    }
}

/// One that has ended already is only waited for.
fn end(child: &Mutex<Child>) {
    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
    // Neither can be mended here, and neither matters to who asked for frames.
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads to the end, so that the process isn't stopped by a full pipe, and keeps the beginning.
fn beginning(mut pipe: impl Read) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut block = [0; 1024];
    while let Ok(n @ 1..) = pipe.read(&mut block) {
        let room = MAX_SAID - kept.len();
        kept.extend_from_slice(&block[..n.min(room)]);
    }
    kept
}

/// The last reason in what it said. Its lines hold paths and addresses; reasons don't.
fn reason(said: &str) -> String {
    let reasons = said.lines().filter_map(|line| line.rsplit_once(": "));
    let plain = |text: &&str| {
        let fits = !text.is_empty() && text.len() < 100;
        fits && !text.contains(['/', '\\', '\'', '"']) && !text.contains("0x")
    };
    reasons.map(|(_, reason)| reason.trim()).rfind(plain).unwrap_or("").to_string()
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn a_reason_holds_no_path_and_no_address() {
        let said = "[in#0 @ 0x45d22bc0] Error opening input: Invalid data found\n\
                    Error opening input file file:/home/me/x.\n\
                    Error opening input files: /home/me/x: Is a directory\n\
                    [x @ 0x1] Not this: 0x12\n";
        assert_eq!(reason(said), "Is a directory");
        assert_eq!(reason("file:/home/me: /home"), "");
        assert_eq!(reason(""), "");
    }
}
