//! What the engine counts.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lapidary_runner::{Finish, FinishReason, Runner};

/// What an engine does and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Requests that have not ended.
    pub open: usize,
    /// Of those, requests that are being answered.
    pub running: usize,
    /// Of those, requests that wait.
    pub waiting: usize,
    /// Pages of KV memory in which something is kept that a request needs, in all groups.
    pub pages_in_use: usize,
    /// Pages of KV memory, in all groups.
    pub pages: usize,
    /// Requests that were put back to wait because pages were missing.
    pub preempted: usize,
    /// Answers that ended as they should.
    pub finished: usize,
    /// Answers that were cancelled.
    pub cancelled: usize,
    /// Requests that failed.
    pub failed: usize,
    /// Tokens of the prompts of all answers that ended.
    pub prompt_tokens: usize,
    /// How many of them were in the caches already.
    pub reused_tokens: usize,
    /// Tokens of all answers that ended.
    pub new_tokens: usize,
    /// How often the engine's thread went around: one that has something to do and stays at its number
    /// hangs.
    pub steps: u64,
}

#[derive(Default)]
pub(super) struct Counters(Mutex<Metrics>);

impl Counters {
    fn lock(&self) -> MutexGuard<'_, Metrics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn snapshot(&self, open: usize) -> Metrics {
        let metrics = *self.lock();
        let running = metrics.running.min(open);
        Metrics { open, running, waiting: open - running, ..metrics }
    }

    pub(super) fn note(&self, runner: &Runner) {
        let mut metrics = self.lock();
        metrics.running = runner.n_generations() - runner.n_waiting();
        (metrics.pages_in_use, metrics.pages) = runner.pages_in_use();
        metrics.preempted = runner.n_preempted();
        metrics.steps = metrics.steps.wrapping_add(1);
    }

    pub(super) fn finished(&self, finish: &Finish) {
        let mut metrics = self.lock();
        match finish.reason {
            FinishReason::Cancelled => metrics.cancelled += 1,
            _ => metrics.finished += 1,
        }
        metrics.prompt_tokens += finish.stats.prompt_tokens;
        metrics.reused_tokens += finish.stats.reused_tokens;
        metrics.new_tokens += finish.stats.new_tokens;
    }

    pub(super) fn cancelled(&self) {
        self.lock().cancelled += 1;
    }

    pub(super) fn failed(&self) {
        self.lock().failed += 1;
    }
}
