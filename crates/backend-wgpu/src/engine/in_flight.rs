//! Calls that were submitted: what will come of them, and what of them stays on the device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lapidary_backend::{Error, Result, Results, Sizes, Ticket, TicketRows};

use super::buffers::Buffers;
use super::record::{KeptRows, Readback};
use super::top::{TopUse, candidates};
use crate::device::{Gpu, Mapping};
use crate::step::{CompiledMethod, Place};

/// Calls by ticket.
#[derive(Default)]
pub(super) struct InFlight {
    next: u64,
    calls: BTreeMap<u64, Submitted>,
}

/// A call that was submitted.
struct Submitted {
    state: State,
    /// The outputs' names with what stays of them.
    kept: Vec<(String, KeptRows)>,
}

enum State {
    /// Its outputs are on their way.
    Coming(Coming),
    /// Nothing comes back; whether it has ended.
    Silent(Arc<AtomicBool>),
    Ended(Results),
    Taken,
}

/// Outputs on their way.
pub(super) struct Coming {
    pub mapping: Mapping,
    pub readback: Readback,
    pub outputs: Outputs,
}

/// What a caller gets.
#[derive(Clone, Debug)]
pub(super) struct Outputs {
    /// In the order of the graph.
    list: Vec<OutputShape>,
}

#[derive(Clone, Debug)]
struct OutputShape {
    /// Its number in the graph.
    number: usize,
    name: String,
    rows: usize,
    channels: usize,
    /// Candidates of each row.
    per_row: usize,
    indices: bool,
    /// What the host has already.
    fed: Vec<f32>,
}

impl Outputs {
    /// The outputs that are read, with the candidates that are wanted of each row, and those that the
    /// host has.
    pub(super) fn new(
        method: &CompiledMethod,
        whole: Sizes,
        read: &[(usize, usize)],
        mut fed: BTreeMap<usize, Vec<f32>>,
    ) -> Self {
        let list = read.iter().map(|(number, per_row)| {
            let out = &method.outputs[*number];
            OutputShape {
                number: *number,
                name: out.name.clone(),
                rows: whole.len(out.value.rows),
                channels: out.value.channels,
                per_row: *per_row,
                indices: out.indices,
                fed: fed.remove(number).unwrap_or_default(),
            }
        });
        Outputs { list: list.collect() }
    }

    /// Makes room for them in results.
    pub(super) fn prepare(&self, results: &mut Results) {
        results.clear();
        for out in &self.list {
            let made = results.add(&out.name, out.rows, out.channels);
            made.per_row = out.per_row;
            if out.per_row == 0 {
                made.data.extend_from_slice(&out.fed);
                made.data.resize(out.rows * out.channels, 0.0);
            }
        }
    }

    /// Takes in what came back of one window.
    pub(super) fn read(&self, readback: &Readback, bytes: &[u8], results: &mut Results) {
        let mut rest = bytes;
        for part in &readback.parts {
            let (own, others) = rest.split_at((part.size_bytes() as usize).min(rest.len()));
            rest = others;
            let Some(shape) = self.list.iter().find(|out| out.number == part.output) else {
                continue;
            };
            let Some(out) = results.get_mut(&shape.name) else { continue };
            match (part.top, part.place) {
                (Some(TopUse { k, logsumexp, draws, .. }), _) => {
                    let (best, after) = own.split_at(part.rows * k * 8);
                    out.candidates.extend(candidates(best, k, shape.per_row));
                    let sums = part.rows * 4 * usize::from(logsumexp);
                    let (sums, drawn) = after.split_at(sums);
                    out.logsumexp.extend(words(sums).map(f32::from_le_bytes));
                    if draws {
                        out.drawn.extend(words(drawn).map(u32::from_le_bytes));
                    }
                }
                (None, Place::Buffer(_)) => {
                    let start = part.from * part.channels;
                    let to = &mut out.data[start..start + part.rows * part.channels];
                    decode(own, shape.indices, to);
                }
                (None, Place::Feed(_)) => {}
            }
        }
    }
}

impl InFlight {
    /// The number of the call that comes next.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    fn add(&mut self, state: State, kept: Vec<(String, KeptRows)>) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        self.calls.insert(ticket, Submitted { state, kept });
        Ticket(ticket)
    }

    /// A call whose outputs are on their way.
    pub(super) fn coming(&mut self, coming: Coming, kept: Vec<(String, KeptRows)>) -> Ticket {
        self.add(State::Coming(coming), kept)
    }

    /// A call of which nothing comes back.
    pub(super) fn silent(&mut self, gpu: &Gpu, kept: Vec<(String, KeptRows)>) -> Ticket {
        self.add(State::Silent(gpu.mark()), kept)
    }

    /// A call that has ended.
    pub(super) fn ended(&mut self, results: Results, kept: Vec<(String, KeptRows)>) -> Ticket {
        self.add(State::Ended(results), kept)
    }

    /// What an earlier call has kept.
    pub(super) fn kept(&self, wanted: &TicketRows<'_>) -> Result<KeptRows> {
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
    /// `false` if it has not ended.
    pub(super) fn take(
        &mut self,
        gpu: &Gpu,
        buffers: &mut Buffers,
        ticket: Ticket,
        results: &mut Results,
        may_wait: bool,
    ) -> Result<bool> {
        let unknown = || Error::UnknownTicket(ticket.0);
        let call = self.calls.get_mut(&ticket.0).ok_or_else(unknown)?;
        match &call.state {
            State::Taken => return Err(unknown()),
            State::Coming(coming) if !may_wait && !coming.mapping.is_done() => return Ok(false),
            State::Silent(done) if !may_wait && !done.load(Ordering::Acquire) => return Ok(false),
            _ => {}
        }
        match std::mem::replace(&mut call.state, State::Taken) {
            State::Coming(Coming { mapping, readback, outputs }) => {
                outputs.prepare(results);
                let mut read = |bytes: &[u8]| outputs.read(&readback, bytes, results);
                if may_wait {
                    mapping.wait(gpu, &mut read)?;
                } else {
                    mapping.read(gpu, &mut read)?;
                }
                if let Some(buffer) = readback.buffer {
                    buffers.readbacks.give_back(buffer);
                }
                buffers.running.end(gpu, ticket.0);
            }
            State::Silent(done) => {
                results.clear();
                if done.load(Ordering::Acquire) {
                    buffers.running.end(gpu, ticket.0);
                } else {
                    // Nobody needs to know when this one ends, but the host is not to run far ahead.
                    buffers.running.wait_before(gpu, ticket.0)?;
                }
            }
            State::Ended(made) => *results = made,
            State::Taken => return Err(unknown()),
        }
        if call.kept.is_empty() {
            self.calls.remove(&ticket.0);
        }
        Ok(true)
    }

    /// Forgets a call. What it kept may be written again: the device does things in order.
    pub(super) fn release(&mut self, buffers: &mut Buffers, ticket: Ticket) {
        let Some(call) = self.calls.remove(&ticket.0) else { return };
        if let State::Coming(Coming { readback: Readback { buffer: Some(buffer), .. }, .. }) =
            call.state
        {
            buffer.unmap();
            buffers.readbacks.give_back(buffer);
        }
        call.kept.into_iter().for_each(|(_, kept)| buffers.kept.give_back(kept.buffer));
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.as_chunks::<4>().0.iter().copied()
}

/// Words as numbers; indices become floats.
pub(super) fn decode(bytes: &[u8], indices: bool, out: &mut [f32]) {
    let words = words(bytes);
    if indices {
        out.iter_mut().zip(words).for_each(|(o, w)| *o = i32::from_le_bytes(w) as f32);
    } else {
        out.iter_mut().zip(words).for_each(|(o, w)| *o = f32::from_le_bytes(w));
    }
}
