//! The command in a terminal of its own.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Far more than anything here takes, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(120);

/// A command that runs in a terminal, and what it has shown until now.
pub struct Terminal {
    child: Child,
    keyboard: File,
    shown: Arc<(Mutex<Shown>, Condvar)>,
}

#[derive(Default)]
struct Shown {
    bytes: Vec<u8>,
    is_over: bool,
}

impl Terminal {
    /// Starts a command.
    #[allow(unsafe_code)]
    pub fn start(command: &mut Command) -> Self {
        let (mut ours, mut theirs) = (-1, -1);
        let (name, modes) = (std::ptr::null_mut(), std::ptr::null());
        let size = libc::winsize { ws_row: 40, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the numbers are written; the descriptors are new, and owned from here on.
        let (ours, theirs) = unsafe {
            assert_eq!(libc::openpty(&mut ours, &mut theirs, name, modes, &size), 0);
            // Commands of other tests, which start meanwhile, shall not keep it open.
            for one in [ours, theirs] {
                assert_eq!(libc::fcntl(one, libc::F_SETFD, libc::FD_CLOEXEC), 0);
            }
            (File::from_raw_fd(ours), File::from_raw_fd(theirs))
        };
        let end = || Stdio::from(theirs.try_clone().expect("a copy"));
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: both calls may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        if command.get_envs().all(|(name, _)| name != "TERM") {
            command.env("TERM", "xterm-256color");
        }
        if command.get_envs().all(|(name, _)| name != "NO_COLOR") {
            command.env_remove("NO_COLOR");
        }
        let child = command.spawn().expect("it starts");
        // The command holds copies of this; they go with it.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        drop(theirs);
        let shown: Arc<(Mutex<Shown>, Condvar)> = Arc::default();
        let (mut screen, seen) = (ours.try_clone().expect("a copy"), shown.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                // The end of a terminal is an error.
                let n = screen.read(&mut bytes).unwrap_or(0);
                let mut shown = seen.0.lock().expect("nobody panics");
                shown.bytes.extend(&bytes[..n]);
                shown.is_over = n == 0;
                seen.1.notify_all();
                if n == 0 {
                    return;
                }
            }
        });
        Terminal { child, keyboard: ours, shown }
    }

    /// Types something.
    pub fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("it is taken");
    }

    /// Waits until something was shown after what was shown before, and returns all that is shown.
    #[track_caller]
    pub fn waits_for(&self, text: &str, after: usize) -> String {
        let until = Instant::now() + PATIENCE;
        let mut shown = self.shown.0.lock().expect("nobody panics");
        loop {
            let all = String::from_utf8_lossy(&shown.bytes).into_owned();
            if all.get(after..).is_some_and(|new| new.contains(text)) {
                return all;
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!shown.is_over && !left.is_zero(), "`{text}` is not shown: {all}");
            shown = self.shown.1.wait_timeout(shown, left).expect("nobody panics").0;
        }
    }

    /// Waits for the end; the exit code and all that was shown.
    #[track_caller]
    pub fn ends(mut self) -> (Option<i32>, String) {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it can be asked") {
                break status;
            }
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        drop(self.keyboard);
        let mut shown = self.shown.0.lock().expect("nobody panics");
        while !shown.is_over && Instant::now() < until {
            shown = self.shown.1.wait_timeout(shown, PATIENCE).expect("nobody panics").0;
        }
        let all = String::from_utf8_lossy(&shown.bytes).into_owned();
        assert!(!all.contains("panicked"), "{all}");
        (status.code(), all)
    }
}
