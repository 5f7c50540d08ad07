//! Threads that share one loop at a time.
//!
//! A decode step is some hundred short loops, so handing one out must cost about a microsecond:
//! workers spin a little before they sleep, and items are claimed from one counter. The caller
//! claims too and never waits for a worker that has not claimed anything, so a thread which the
//! system does not schedule (a shared machine) delays nothing.
//!
//! Which thread computes an item never changes what is computed.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use lapidary_backend::Result;

/// Looks at the gate before a worker sleeps: some 50 µs.
const SPINS: u32 = 4000;
/// Every so many looks a worker offers its core to others.
const YIELD_EVERY: u32 = 64;

/// The calling thread and `n_threads − 1` workers.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    busy: AtomicBool,
}

/// The gate's bits: workers inside, whether it is open, and which loop it is open for.
const INSIDE: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const LOOP: u64 = 1 << 17;

struct Shared {
    gate: AtomicU64,
    /// Valid while the gate is open or a worker is inside; written only when neither is so.
    job: UnsafeCell<Option<Job>>,
    next: AtomicUsize,
    panicked: AtomicBool,
    quit: AtomicBool,
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    bell: Condvar,
}

/// A loop body with its lifetime forgotten: `Workers::run` outlives every use of it.
#[derive(Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize, usize) + Sync),
    n_items: usize,
}

// SAFETY: `job` is written only by the thread that owns the closed gate, and read only by workers
// that entered the open one; the gate's atomics order the two. The body is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Workers {
    /// Starts workers; fewer than asked where the system gives no more.
    pub(crate) fn new(n_threads: usize) -> Self {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            quit: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            bell: Condvar::new(),
        });
        let start = |worker: usize| {
            let shared = shared.clone();
            let name = format!("lapidary-{worker}");
            std::thread::Builder::new().name(name).spawn(move || shared.work(worker)).ok()
        };
        let handles = (1..n_threads.min(INSIDE as usize)).map_while(start).collect();
        Workers { shared, handles, busy: AtomicBool::new(false) }
    }

    /// Threads that take part, the caller's included.
    pub(crate) fn n_threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `body(thread, item)` once for each item, on any threads, and returns when all are
    /// done. `thread` is below `n_threads` and no two calls with the same one overlap, which is
    /// why loops do not nest.
    pub(crate) fn run(&self, n_items: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        assert!(!self.busy.swap(true, Ordering::Acquire), "loops do not nest");
        let done = catch_unwind(AssertUnwindSafe(|| {
            if n_items <= 1 || self.handles.is_empty() {
                (0..n_items).for_each(|item| body(0, item));
            } else {
                self.share(n_items, body);
            }
        }));
        self.busy.store(false, Ordering::Release);
        if let Err(panic) = done {
            resume_unwind(panic);
        }
    }

    /// The same for items that may fail; returns the first error that was met.
    pub(crate) fn try_run(
        &self,
        n_items: usize,
        body: &(dyn Fn(usize, usize) -> Result<()> + Sync),
    ) -> Result<()> {
        let failed = Mutex::new(None);
        self.run(n_items, &|thread, item| {
            if let Err(e) = body(thread, item) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn share(&self, n_items: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        // SAFETY: only the lifetime changes; `close` below returns, or unwinds, only when no
        // worker can use the body any more.
        let body: &'static (dyn Fn(usize, usize) + Sync) = unsafe { std::mem::transmute(body) };
        let job = Job { body, n_items };
        // SAFETY: the gate is closed and nobody is inside, since the last `close` waited for that.
        unsafe { *self.shared.job.get() = Some(job) };
        self.shared.next.store(0, Ordering::Relaxed);
        self.shared.open();
        let mine = catch_unwind(AssertUnwindSafe(|| self.shared.claim(job, 0)));
        self.shared.close();
        let theirs = self.shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = mine {
            resume_unwind(panic);
        }
        assert!(!theirs, "a worker thread panicked");
    }
}

impl Shared {
    fn open(&self) {
        let gate = self.gate.load(Ordering::Relaxed);
        let generation = (gate & !(INSIDE | OPEN)).wrapping_add(LOOP);
        self.gate.store(generation | OPEN, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
            self.bell.notify_all();
        }
    }

    /// Lets no more workers in and waits for those inside.
    fn close(&self) {
        let mut gate = self.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0u32;
        while gate & INSIDE != 0 {
            pause(&mut looks);
            gate = self.gate.load(Ordering::Acquire);
        }
    }

    /// Takes items until there are none.
    fn claim(&self, job: Job, thread: usize) {
        // SAFETY: the caller is inside the gate, or is the thread that opened it.
        let body = unsafe { &*job.body };
        loop {
            let item = self.next.fetch_add(1, Ordering::Relaxed);
            if item >= job.n_items {
                return;
            }
            body(thread, item);
        }
    }

    /// The life of a worker.
    fn work(&self, worker: usize) {
        let mut seen = 0;
        while !self.quit.load(Ordering::Relaxed) {
            let gate = self.await_change(seen);
            if gate & OPEN == 0 {
                seen = gate & !INSIDE;
                continue;
            }
            let entered = self
                .gate
                .compare_exchange(gate, gate + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
            if !entered {
                continue;
            }
            // SAFETY: inside the open gate, where the job is valid and not written.
            let job = unsafe { *self.job.get() };
            if let Some(job) = job
                && catch_unwind(AssertUnwindSafe(|| self.claim(job, worker))).is_err()
            {
                self.panicked.store(true, Ordering::Relaxed);
                // Leave nothing for others to claim.
                self.next.store(job.n_items, Ordering::Relaxed);
            }
            seen = gate & !INSIDE;
            self.gate.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits until the gate is not as it was seen, spinning first; returns how it is.
    fn await_change(&self, seen: u64) -> u64 {
        let changed = |gate: u64| gate & !INSIDE != seen;
        let mut looks = 0;
        while looks < SPINS {
            let gate = self.gate.load(Ordering::Relaxed);
            if changed(gate) {
                return gate;
            }
            pause(&mut looks);
        }
        let mut bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let gate = loop {
            let gate = self.gate.load(Ordering::SeqCst);
            if changed(gate) || self.quit.load(Ordering::Relaxed) {
                break gate;
            }
            bed = self.bell.wait(bed).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        gate
    }
}

fn pause(looks: &mut u32) {
    *looks += 1;
    if looks.is_multiple_of(YIELD_EVERY) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::Relaxed);
        {
            let _bed = self.shared.bed.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.bell.notify_all();
        }
        for handle in self.handles.drain(..) {
            // A worker catches panics of its items; there is nothing to learn from its end.
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::Workers;

    #[test]
    fn every_item_runs_once_in_every_loop() {
        for n_threads in [1, 2, 5] {
            let workers = Workers::new(n_threads);
            for n_items in (0..200).chain([5000]) {
                let counts: Vec<AtomicUsize> = (0..n_items).map(|_| AtomicUsize::new(0)).collect();
                workers.run(n_items, &|thread, item| {
                    assert!(thread < n_threads);
                    counts[item].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{n_items}");
            }
        }
    }

    #[test]
    fn threads_do_not_share_an_index() {
        let workers = Workers::new(3);
        let inside: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..50 {
            workers.run(100, &|thread, _| {
                assert_eq!(inside[thread].fetch_add(1, Ordering::SeqCst), 0);
                inside[thread].fetch_sub(1, Ordering::SeqCst);
            });
        }
        assert!(inside.iter().all(|i| i.load(Ordering::SeqCst) == 0));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let workers = Workers::new(2);
        for _ in 0..20 {
            let run = || workers.run(50, &|_, item| assert!(item != 31, "on purpose"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            let sum = AtomicUsize::new(0);
            workers.run(50, &|_, item| {
                sum.fetch_add(item, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 49 * 50 / 2);
        }
    }

    #[test]
    fn loops_do_not_nest() {
        let workers = Workers::new(2);
        let nested = || workers.run(4, &|_, _| workers.run(4, &|_, _| {}));
        assert!(catch_unwind(AssertUnwindSafe(nested)).is_err());
    }
}
