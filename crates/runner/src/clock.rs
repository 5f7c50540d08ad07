//! Where time comes from: this room has no clock of its own.

use std::time::Duration;

/// Tells the time. A browser's clock, or one that a test moves, is as good as the system's.
pub trait Clock: Send + Sync {
    /// Time since a moment that never changes; never goes back.
    fn now(&self) -> Duration;
}

/// The system's clock.
#[cfg(not(target_arch = "wasm32"))]
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(std::time::Instant);

#[cfg(not(target_arch = "wasm32"))]
impl Default for SystemClock {
    fn default() -> Self {
        SystemClock(std::time::Instant::now())
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
