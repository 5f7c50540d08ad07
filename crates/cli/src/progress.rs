//! Bars on standard error; nothing where that is not a terminal.

use std::sync::Once;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over bytes that appears once it is told of some.
pub struct Bytes(Bar);

impl Bytes {
    /// A bar that says what is being done.
    pub fn new(what: &'static str) -> Self {
        let bar = ProgressBar::hidden();
        let style = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes} {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        bar.set_message(what);
        Bytes(Bar { bar, begun: Once::new() })
    }

    /// Moves it.
    pub fn set(&self, done: u64, total: u64) {
        self.0.set(done, total);
    }
}

/// A bar over things that are counted.
pub struct Counted(Bar);

impl Counted {
    /// A bar over windows of a text.
    pub fn windows() -> Self {
        Self::of("windows")
    }

    /// A bar that waits to be told how many there are.
    pub fn of(what: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        Self::shown_as("{bar:30} {pos}/{len} {msg} {eta}", what)
    }

    /// A bar over tokens, with how many of them there are in a second.
    pub fn tokens(what: &'static str) -> Self {
        Self::shown_as("{bar:30} {pos}/{len} {msg} {per_sec} {eta}", what)
    }

    fn shown_as(template: &str, what: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        let bar = ProgressBar::hidden();
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        bar.set_message(what);
        Counted(Bar { bar, begun: Once::new() })
    }

    /// Moves it.
    pub fn set(&self, done: usize, total: usize) {
        self.0.set(done as u64, total as u64);
    }
}

/// A bar that is drawn from when it is first told where it stands, so that it begins empty, to when
/// it is dropped.
struct Bar {
    bar: ProgressBar,
    begun: Once,
}

impl Bar {
    fn set(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.begun.call_once(|| self.bar.set_draw_target(ProgressDrawTarget::stderr()));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
