//! Calls that were submitted, and memory that they use in turns.

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_backend::{Error, Result, Results, Ticket, TicketRows};

use super::outputs::{self, Coming};
use crate::driver::{Context, Event, Memory, Pinned, Stream};

/// Rows that an earlier call has left on the device.
#[derive(Clone)]
pub(crate) struct Kept {
    pub memory: Arc<Memory>,
    pub rows: usize,
    pub channels: usize,
    /// For tokens: what they are less than.
    pub below: Option<usize>,
}

/// A call that was submitted.
struct Submitted {
    event: Event,
    coming: Vec<Coming>,
    readback: Option<Pinned>,
    kept: Vec<(String, Kept)>,
    is_taken: bool,
}

/// All of them, and what was given back.
#[derive(Default)]
pub(crate) struct InFlight {
    next: u64,
    calls: BTreeMap<u64, Submitted>,
    events: Vec<Event>,
    readbacks: Vec<Pinned>,
    kept: Vec<Arc<Memory>>,
}

impl InFlight {
    /// Memory for what comes back.
    pub(crate) fn readback(&mut self, context: &Arc<Context>, bytes: usize) -> Result<Pinned> {
        let fit = self.readbacks.iter().position(|pinned| pinned.len() >= bytes);
        match fit {
            Some(at) => Ok(self.readbacks.swap_remove(at)),
            None => Pinned::new(context, bytes.next_power_of_two().max(4096)),
        }
    }

    /// Memory for what is kept. What it held may be overwritten: the device does things in order.
    pub(crate) fn keep(&mut self, context: &Arc<Context>, bytes: usize) -> Result<Arc<Memory>> {
        let fit = self.kept.iter().position(|memory| memory.bytes >= bytes);
        match fit {
            Some(at) => Ok(self.kept.swap_remove(at)),
            None => Ok(Arc::new(Memory::new(context, bytes.next_power_of_two().max(256))?)),
        }
    }

    /// A call whose work was started.
    pub(crate) fn add(
        &mut self,
        stream: &Stream,
        coming: Vec<Coming>,
        readback: Option<Pinned>,
        kept: Vec<(String, Kept)>,
    ) -> Result<Ticket> {
        let event = match self.events.pop() {
            Some(event) => event,
            None => Event::new(&stream.context)?,
        };
        stream.record(&event)?;
        let ticket = self.next;
        self.next += 1;
        self.calls.insert(ticket, Submitted { event, coming, readback, kept, is_taken: false });
        Ok(Ticket(ticket))
    }

    /// What an earlier call has kept.
    pub(crate) fn kept(&self, wanted: &TicketRows<'_>) -> Result<Kept> {
        let call = self.calls.get(&wanted.ticket.0);
        let call = call.ok_or(Error::UnknownTicket(wanted.ticket.0))?;
        let fail = |what: String| Error::Feed { method: wanted.output.to_string(), what };
        let kept = call.kept.iter().find(|(name, _)| name == wanted.output);
        let (_, kept) = kept.ok_or_else(|| fail("an earlier call did not keep this".into()))?;
        match wanted.rows.iter().find(|row| **row as usize >= kept.rows) {
            Some(row) => Err(fail(format!("row {row} of {} was asked for", kept.rows))),
            None => Ok(kept.clone()),
        }
    }

    /// Takes the results of a call: at once if it has ended, else only if it may be waited for.
    pub(crate) fn take(
        &mut self,
        ticket: Ticket,
        results: &mut Results,
        may_wait: bool,
    ) -> Result<bool> {
        let unknown = || Error::UnknownTicket(ticket.0);
        let call = self.calls.get_mut(&ticket.0).ok_or_else(unknown)?;
        if call.is_taken {
            return Err(unknown());
        }
        if may_wait {
            call.event.wait()?;
        } else if !call.event.is_over()? {
            return Ok(false);
        }
        let bytes = call.readback.as_ref().map_or([].as_slice(), |pinned| pinned.bytes());
        outputs::read(&call.coming, bytes, results);
        call.is_taken = true;
        self.readbacks.extend(call.readback.take());
        if call.kept.is_empty() {
            self.forget(ticket);
        }
        Ok(true)
    }

    /// Forgets a call.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        let Some(call) = self.calls.remove(&ticket.0) else { return };
        self.events.push(call.event);
        self.readbacks.extend(call.readback);
        self.kept.extend(call.kept.into_iter().map(|(_, kept)| kept.memory));
    }
}
