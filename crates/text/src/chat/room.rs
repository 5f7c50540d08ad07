//! A place to run a template: a thread whose stack is known, or the caller's where there is none.

use super::depth::Nesting;
use crate::error::Result;

/// How deep a template may go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Of its syntax.
    pub(super) nesting: Nesting,
    /// Of statements and expressions that run inside one another.
    pub(super) depth: usize,
}

/// What a stack of [`STACK`] bytes has room for, in a build without optimisation too.
const WIDE: Room = Room { nesting: Nesting { expression: 300, blocks: 100 }, depth: 1500 };

/// What every stack has room for.
const NARROW: Room = Room { nesting: Nesting { expression: 30, blocks: 15 }, depth: 60 };

/// Bytes of the stack. Only what is used of it takes memory.
const STACK: usize = 32 << 20;

/// Runs with a known stack.
pub(super) fn run<T: Send>(work: impl Fn(Room) -> Result<T> + Sync) -> Result<T> {
    if cfg!(target_family = "wasm") {
        return work(NARROW);
    }
    std::thread::scope(|scope| {
        let own = std::thread::Builder::new()
            .name("chat-template".to_string())
            .stack_size(STACK)
            .spawn_scoped(scope, || work(WIDE));
        match own {
            Ok(own) => own.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            // No thread to be had.
            Err(_) => work(NARROW),
        }
    })
}
