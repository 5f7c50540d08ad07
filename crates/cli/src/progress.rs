//! Bars on standard error; nothing where that is not a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over bytes that appears once it is told of some.
pub struct Bytes(ProgressBar);

impl Bytes {
    /// A bar that says what is being done.
    pub fn new(what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes} {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        bar.set_message(what);
        Bytes(bar)
    }

    /// Moves it.
    pub fn set(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A bar over things that are counted.
pub struct Counted(ProgressBar);

impl Counted {
    /// A bar over windows of a text.
    pub fn windows() -> Self {
        Self::of("windows")
    }

    /// A bar that waits to be told how many there are.
    pub fn of(what: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        bar.set_message(what);
        Counted(bar)
    }

    /// Moves it.
    pub fn set(&self, done: usize, total: usize) {
        self.0.set_length(total as u64);
        self.0.set_position(done as u64);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
