//! Tickets for engines that do the work when a call is submitted.

use std::collections::BTreeMap;

use lapidary_backend::{Call, Error, Result, Results, Ticket, TicketRows, Want};
use lapidary_program::{Input, Program, ValueType};

/// Results that wait to be taken, and rows that later calls may be fed with.
#[derive(Debug, Default)]
pub struct Tickets {
    next: u64,
    ended: BTreeMap<u64, Ended>,
    /// Storage that was given back.
    spare: Vec<Results>,
}

#[derive(Debug, Default)]
struct Ended {
    /// `None` once they were taken.
    results: Option<Results>,
    kept: Vec<Kept>,
}

/// An output that stays.
#[derive(Debug)]
struct Kept {
    output: String,
    channels: usize,
    rows: KeptRows,
}

#[derive(Debug)]
enum KeptRows {
    Tokens(Vec<i32>),
    Rows(Vec<f32>),
}

/// The numbers of [`lapidary_backend::FeedData::Of`].
#[derive(Clone, Debug, PartialEq)]
pub enum TicketData {
    /// Tokens.
    I32(Vec<i32>),
    /// Activations.
    F32(Vec<f32>),
}

impl Tickets {
    /// Room for the results of a call.
    pub fn begin(&mut self) -> Results {
        let mut results = self.spare.pop().unwrap_or_default();
        results.clear();
        results
    }

    /// Takes in what a call gave. `keep` are outputs that were wanted as [`Want::Keep`].
    pub fn end(
        &mut self,
        call: &Call<'_>,
        results: Results,
        keep: Vec<(String, usize, Vec<f32>)>,
    ) -> Ticket {
        let drawn = call.wants.iter().filter(|w| matches!(w.want, Want::Draw(_)));
        let drawn = drawn.filter_map(|w| results.get(w.output)).map(|out| Kept {
            output: out.name.clone(),
            channels: 1,
            rows: KeptRows::Tokens(out.drawn.iter().map(|id| *id as i32).collect()),
        });
        let keep = keep.into_iter().map(|(output, channels, data)| Kept {
            output,
            channels,
            rows: KeptRows::Rows(data),
        });
        let kept = drawn.chain(keep).collect();
        let ticket = self.next;
        self.next += 1;
        self.ended.insert(ticket, Ended { results: Some(results), kept });
        Ticket(ticket)
    }

    /// Gives the results of a call to whoever polls.
    pub fn take(&mut self, ticket: Ticket, results: &mut Results) -> Result<()> {
        let unknown = || Error::UnknownTicket(ticket.0);
        let ended = self.ended.get_mut(&ticket.0).ok_or_else(unknown)?;
        let taken = ended.results.take().ok_or_else(unknown)?;
        self.spare.push(std::mem::replace(results, taken));
        self.spare.truncate(4);
        if ended.kept.is_empty() {
            self.ended.remove(&ticket.0);
        }
        Ok(())
    }

    /// Forgets a call.
    pub fn release(&mut self, ticket: Ticket) {
        if let Some(Ended { results: Some(results), .. }) = self.ended.remove(&ticket.0) {
            self.spare.push(results);
            self.spare.truncate(4);
        }
    }

    /// Rows of an earlier call.
    pub fn rows(&self, wanted: &TicketRows<'_>) -> Result<TicketData> {
        let ended = self.ended.get(&wanted.ticket.0);
        let ended = ended.ok_or(Error::UnknownTicket(wanted.ticket.0))?;
        let fail = |what: String| Error::Feed { method: wanted.output.to_string(), what };
        let kept = ended.kept.iter().find(|kept| kept.output == wanted.output);
        let kept = kept.ok_or_else(|| fail("an earlier call did not keep this".into()))?;
        let picked = |len: usize| {
            let n = len / kept.channels.max(1);
            match wanted.rows.iter().find(|row| **row as usize >= n) {
                Some(row) => Err(fail(format!("row {row} of {n} was asked for"))),
                None => Ok(wanted.rows.iter().map(|row| *row as usize)),
            }
        };
        Ok(match &kept.rows {
            KeptRows::Tokens(ids) => TicketData::I32(picked(ids.len())?.map(|r| ids[r]).collect()),
            KeptRows::Rows(data) => {
                let channels = kept.channels;
                let rows = picked(data.len())?;
                TicketData::F32(
                    rows.flat_map(|r| &data[r * channels..(r + 1) * channels]).copied().collect(),
                )
            }
        })
    }

    /// Rows of an earlier call for an input of a method, checked as
    /// [`lapidary_backend::bind`] checks what a caller gives.
    pub fn feed(
        &self,
        program: &Program,
        (method, input): (&str, &Input),
        wanted: &TicketRows<'_>,
    ) -> Result<TicketData> {
        let rows = self.rows(wanted)?;
        let len = wanted.rows.len() * input.value_type.channels().max(1);
        let vocab = program.metadata().vocab_size;
        let fits = match (&rows, &input.value_type) {
            (TicketData::I32(ids), ValueType::I32(_)) => {
                ids.len() == len
                    && ids.iter().all(|id| (0..i64::from(vocab)).contains(&i64::from(*id)))
            }
            (TicketData::F32(data), ValueType::F32(_)) => data.len() == len,
            _ => false,
        };
        if fits {
            return Ok(rows);
        }
        let what = format!("output `{}` of an earlier call is no `{}`", wanted.output, input.name);
        Err(Error::Feed { method: method.to_string(), what })
    }
}
