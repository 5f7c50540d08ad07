//! The contract between a program and whatever runs it: devices, plan, load, submit, poll.
//!
//! A backend takes a whole method and compiles it as it likes; there is no op-by-op interface.
//! This room knows programs. It knows no backend and no model family.

mod bind;
mod call;
mod device;
mod error;
pub mod host;
mod limits;
mod options;
mod pages;
mod plan;
mod registry;
mod results;
mod sizes;

use std::sync::Arc;

use lapidary_program::Program;

pub use bind::{Bound, Fed, bind};
pub use call::{
    Call, Draw, DrawRule, Feed, FeedData, Mask, Span, StopFlag, Ticket, TicketRows, TopK, Want,
    Wanted,
};
pub use device::{Backend, Device, DeviceId, DeviceInfo, DeviceKind};
pub use error::{Error, Result};
pub use limits::{CallLimits, Wishes};
pub use options::{KvType, LoadOptions, Precision};
pub use pages::{PAGE, PageId, PageTable, pages_for};
pub use plan::{MemoryPlan, fit};
pub use registry::{Chosen, Registry};
pub use results::{Candidate, OutputResult, Results};
pub use sizes::Sizes;

/// What an engine can do with outputs without bringing them to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// The most numbers of a row that [`Want::TopK`] and [`Want::Draw`] give back.
    pub max_top_k: usize,
    /// Whether finding them on the device spares time: if not, a caller that chooses by itself
    /// had better ask for whole rows.
    pub prefers_top_k: bool,
    /// Calls that may be submitted before the first of them is waited for. With more than one, a
    /// call may be fed by one that has not ended ([`FeedData::Of`]).
    pub max_in_flight: usize,
}

/// A packed program on one device, with the pages of its KV caches.
///
/// An engine has no notion of a conversation: it knows pages by their number, and a call says
/// which of them hold what its tokens see. Whoever calls keeps the tables.
pub trait Engine: Send {
    /// The program.
    fn program(&self) -> &Arc<Program>;

    /// As given to `load`.
    fn options(&self) -> &LoadOptions;

    /// One line for people: backend, device, instruction set, threads.
    fn describe(&self) -> String;

    /// What it can do with outputs.
    fn abilities(&self) -> Abilities;

    /// Checks a call and starts it. Calls take effect in the order in which they are submitted, on
    /// pages as on outputs. An engine without a queue does the work here.
    fn submit(&mut self, call: &Call<'_>) -> Result<Ticket>;

    /// Takes the results of a call if it has ended: `true`, and the ticket is used up, but for
    /// outputs that were wanted as [`Want::Keep`] or [`Want::Draw`], which stay until
    /// [`Self::release`]. Results keep their storage from call to call.
    fn poll(&mut self, ticket: Ticket, results: &mut Results) -> Result<bool>;

    /// Waits for the results of a call. Engines that can sleep until then do so.
    fn wait(&mut self, ticket: Ticket, results: &mut Results) -> Result<()> {
        while !self.poll(ticket, results)? {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Forgets a ticket: its results, if nobody took them, and what was kept on the device.
    /// A call that has begun may run to its end.
    fn release(&mut self, ticket: Ticket);

    /// Runs a call from beginning to end; nothing of it is kept on the device.
    fn run(&mut self, call: &Call<'_>, results: &mut Results) -> Result<()> {
        let ticket = self.submit(call)?;
        let done = self.wait(ticket, results);
        self.release(ticket);
        done
    }

    /// Copies pages of a group, each `(from, to)`, after all calls that were submitted before.
    fn copy_pages(&mut self, group: usize, pairs: &[(PageId, PageId)]) -> Result<()>;

    /// What pages of this engine mean, besides the program and the KV type: bytes of a page go from
    /// one engine to another that says the same. The first part of [`Self::describe`] unless an
    /// engine knows better.
    fn page_layout(&self) -> String {
        let mut described = self.describe();
        described.truncate(described.find(" · ").unwrap_or(described.len()));
        described
    }

    /// Bytes of one page of a group as [`Self::read_page`] gives them.
    fn page_bytes(&self, group: usize) -> usize;

    /// Replaces `bytes` with those of a page, to be given to [`Self::write_page`] of an engine of
    /// the same backend, program and options.
    fn read_page(&mut self, group: usize, page: PageId, bytes: &mut Vec<u8>) -> Result<()>;

    /// Restores a page from what [`Self::read_page`] gave.
    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<()>;

    /// Runs a call and shows every `f32` value that is made, by node number, in node order; wants
    /// do not matter. This is how `verify` names the first op that diverges; speed does not matter
    /// here, but the kernels must be those that `submit` uses.
    fn trace(&mut self, call: &Call<'_>, sink: &mut dyn FnMut(usize, &[f32])) -> Result<()>;
}
